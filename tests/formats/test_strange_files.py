"""Model files of strangers and broken disks.

What a kernel trusts is checked when a file is opened, and errors are one line.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from small_runs import new_run
from softq.cli.kinds import find_kind
from softq.cli.kinds.tagger import FileTagger
from softq.errors import DataError, RunError, SoftqError
from softq.formats import read_conll, read_conllu
from softq.formats.annotations import read_annotations
from softq.formats.bitext import read_bitext
from softq.formats.captions import read_captions
from softq.formats.file_checks import check_offsets, check_slots
from softq.formats.text import read_lines
from softq.lab.run import LAST, RESULT
from strange_files import KINDS, change_notes, change_tensors, changed, use, write_models

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture
def copy(models, tmp_path):
    def made(kind):
        return Path(shutil.copy(models / kind, tmp_path / kind))

    return made


def assert_refused(kind, path, message=None):
    """Opened and used, it is one line of an error that softq raises on purpose."""
    with pytest.raises(SoftqError, match=message) as error:
        use(kind, path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


def works_or_is_refused(action):
    try:
        action()
    except SoftqError as error:
        told = str(error)
    else:
        told = ""
    assert "\n" not in told


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_whole_works(copy, kind):
    use(kind, copy(kind))


# --- indices that kernels trust -----------------------------------------------------------------------


def of_table(change):
    def changing(tensors):
        slots = tensors["index.slots"].numpy()
        change(slots, np.flatnonzero(slots[:, 0]))
        return tensors

    return changing


def put(array, place, value):
    array[place] = value


@pytest.mark.parametrize("kind", ["tagger", "attributes"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_table(lambda slots, used: put(slots, (used[0], 1), 1 << 28)), "expected columns below"),
        (of_table(lambda slots, used: put(slots, (used[0], 1), -1)), "expected columns below"),
        (
            of_table(lambda slots, used: put(slots, (used[0], 1), slots[used[1], 1])),
            "columns once, got none of",
        ),
        (of_table(lambda slots, used: put(slots, (slice(None), 0), 5)), "expected a table of .*"),
        (of_table(lambda slots, used: put(slots, (used[0], 0), 0)), "expected a table of .* keys"),
        (
            lambda tensors: tensors | {"index.slots": tensors["index.slots"].to(torch.bfloat16)},
            "got bfloat16",
        ),
        (
            lambda tensors: tensors | {"index.name_offsets": tensors["index.name_offsets"].flip(0)},
            "offsets of names that rise",
        ),
        (
            lambda tensors: tensors | {"index.names": tensors["index.names"][:-1]},
            "offsets of names that rise",
        ),
        (
            lambda tensors: tensors | {"index.names": torch.full_like(tensors["index.names"], 255)},
            "names of features are damaged",
        ),
        (
            lambda tensors: (
                tensors | {"transitions": torch.full_like(tensors["transitions"], torch.nan)}
            ),
            "transitions that are numbers",
        ),
        (
            lambda tensors: tensors | {"weights": torch.full_like(tensors["weights"], torch.nan)},
            "scores of labels are not finite",
        ),
        (lambda tensors: tensors | {"about": tensors["about"].to(torch.bfloat16)}, "got bfloat16"),
    ],
)
def test_tables_of_taggers(copy, kind, change, message):
    path = copy(kind)
    change_tensors(path, change)
    assert_refused(kind, path, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: {"index.word": tensors["index.word"].to(torch.bfloat16)}, "got bfloat16"),
        (lambda tensors: {"index.word": torch.tensor([255], dtype=torch.uint8)}, "can't decode"),
        (
            lambda tensors: {"weights": torch.full_like(tensors["weights"], torch.nan)},
            "scores of arcs are not finite",
        ),
        (lambda tensors: {"weights": tensors["weights"][:-1]}, r"expected 2\^bits weights"),
        (lambda tensors: {"weights": tensors["weights"].to(torch.bfloat16)}, "expected weights of"),
    ],
)
def test_tensors_of_parsers(copy, change, message):
    path = copy("parser")
    change_tensors(path, change)
    assert_refused("parser", path, message)


def table(used, size):
    slots = np.zeros((size, 2), np.int64)
    slots[used, 0], slots[used, 1] = 1, np.arange(len(used))
    return slots


def test_a_table_has_free_slots_all_over():
    check_slots(table(np.arange(0, 1 << 14, 2), 1 << 14), 1 << 13)
    check_slots(table(np.zeros(0, np.int64), 16), 0)
    check_slots(table(np.array([0, 15]), 16), 2)
    with pytest.raises(DataError, match="expected free slots all over a table"):
        check_slots(table(np.arange(5000), 1 << 14), 5000)
    with pytest.raises(DataError, match="expected free slots all over a table"):
        check_slots(table((np.arange(5000) - 2500) % (1 << 14), 1 << 14), 5000)  # around its end
    with pytest.raises(DataError, match="expected free slots all over a table"):
        check_slots(table(np.arange(16), 16), 16)


def test_offsets():
    check_offsets("offsets", np.array([0, 2, 2, 5]), 3, 5)
    check_offsets("offsets", np.array([0]), 0, 0)
    for wrong in ([0, 3, 2, 5], [1, 2, 2, 5], [0, 2, 5], [0, 2, 2, 4], []):
        with pytest.raises(DataError, match="expected 4 offsets that rise from 0 to 5"):
            check_offsets("offsets", np.array(wrong, np.int64), 3, 5)


# --- notes --------------------------------------------------------------------------------------------

DEEP = "[" * 100_000
ODD = (None, True, 1, -1, 10**30, 1e300, "x", [], [[]], {}, {"a": 1}, "\ud800")


def places_of(notes, before=()):
    """All places in notes, those of what stands inside of others among them."""
    for key, value in notes.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places_of(value, (*before, key))


@pytest.mark.parametrize("kind", KINDS)
def test_notes_that_are_something_else(copy, kind):
    path = copy(kind)
    whole = path.read_bytes()
    for text in (
        DEEP,
        '{"a":' * 100_000,
        "[]",
        "1",
        "null",
        "{}",
        '"x"',
        "",
        "{",
        "\x00",
        "1e400",
        "9" * 5000,
    ):
        path.write_bytes(whole)
        change_notes(path, lambda notes, text=text: text)
        assert_refused(kind, path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_note_may_be_of_another_type(copy, kind):
    path = copy(kind)
    whole, places = path.read_bytes(), []
    change_notes(path, lambda notes: places.extend(places_of(notes)) or notes)
    assert len(places) > 5
    odd = ODD[::4] if kind.startswith("transformers") else ODD  # they are slow to open
    for place in places:
        for value in odd:
            path.write_bytes(whole)
            change_notes(
                path, lambda notes, place=place, value=value: changed(notes, *place, value=value)
            )
            works_or_is_refused(lambda: use(kind, path))


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        ("tagger", ["labels"], 1, "labels must be a list of strings, got 1"),
        ("tagger", ["labels"], [], "expected at least one label"),
        ("tagger", ["index"], [], r"index must be one of .*, got \[\]"),
        ("tagger", ["index_notes"], [], "expected an object of JSON in index_notes"),
        ("tagger", ["index_notes", "size"], 10**30, "slots of an index of 1000"),
        ("tagger", ["index_notes", "templates"], 7, "templates must be a list of strings"),
        ("tagger", ["scheme"], "x", "scheme must be one of"),
        ("tagger", ["parameters"], [1], "expected an object of JSON in parameters"),
        ("tagger", ["learnt"], [1], "expected an object of JSON in learnt"),
        ("tagger", ["learnt", "pos_column_"], "2", "pos_column_"),
        ("parser", ["index"], [], "expected an object of JSON in index"),
        ("parser", ["index", "columns"], ["colour"], "a column must be one of 'word'"),
        ("parser", ["index", "templates"], [["dep.word"]], "templates must be a list of strings"),
        ("parser", ["relations"], 1, "relations must be a list of strings"),
        ("parser", ["root_relation"], ["root"], "relation under the root"),
        ("classifier", ["classes"], ["a" * 9000, *map(str, range(9000))], "expected classes of"),
        ("classifier", ["classes"], ["b", "a"], "sorted and distinct"),
        ("classifier", ["classes"], [1, 2], "classes must be a list of strings"),
        ("classifier", ["labels_per_row"], "many", "labels_per_row must be a number"),
        ("classifier", ["feature_names"], ["one"], "expected names of 2 features, got 1"),
        ("classifier", ["parameters"], [], "expected an object of JSON in parameters"),
        ("translator", ["model", "hidden"], 8000, r"expected the parameter .* as torch.float32"),
        ("translator", ["model", "layers"], 10**6, "expected parameters of 1000000 layers, got"),
        ("translator", ["model", "embedding"], 10**30, "does not fit together"),
        (
            "translator",
            ["decoding", "beam"],
            10**6,
            "beam must be at least 1 and at most 1000, got 1000000",
        ),
        (
            "translator",
            ["decoding", "max_ratio"],
            1e15,
            "max_ratio must be more than 0 and at most 100, got",
        ),
        (
            "translator",
            ["decoding", "length_penalty"],
            1e300,
            "length_penalty must be at least 0 and at most 10",
        ),
    ],
)
def test_notes_are_refused_for_what_is_wrong_with_them(copy, kind, place, value, message):
    path = copy(kind)
    change_notes(path, lambda notes: changed(notes, *place, value=value))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert_refused(kind, path, message)
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("name", ["coefs.0", "mean", "scale", "reward", "loss_curve"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.float16])
def test_types_of_classifiers(copy, name, dtype):
    path = copy("classifier")
    change_tensors(path, lambda tensors: {name: tensors[name].to(dtype)})
    with pytest.raises(DataError, match=r"classifier (is damaged|cannot be read)"):
        use("classifier", path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("coefs.0", torch.nan), ("reward", torch.inf), ("scale", 0.0), ("mean", torch.nan)],
)
def test_values_of_classifiers(copy, name, value):
    path = copy("classifier")
    change_tensors(path, lambda tensors: {name: torch.full_like(tensors[name], value)})
    assert_refused("classifier", path, f"{name} must be")


def test_pieces_of_words_that_a_stranger_made(tmp_path):
    pytest.importorskip("tokenizers")
    from softq.formats.vocabulary import Vocabulary

    tensors = Vocabulary.fit_subwords(["ab ab abc"], 262).tensors()
    assert Vocabulary.from_tensors(tensors).encode("ab") == Vocabulary.fit_subwords(
        ["ab ab abc"], 262
    ).encode("ab")
    notes = json.loads(tensors["tokenizer"].numpy().tobytes())
    far = json.loads(json.dumps(notes))
    far["model"]["vocab"]["a"] = 10**6
    for wrong, message in (
        (
            notes | {"normalizer": {"type": "Lowercase"}},
            "expected a tokenizer of bytes and byte pairs",
        ),
        (notes | {"model": 1}, "expected a tokenizer of bytes and byte pairs"),
        (notes | {"model": {"type": "BPE", "vocab": 1}}, "expected a tokenizer in tokenizer"),
        (far, "for the subwords of tokenizer, got others"),
    ):
        text = torch.tensor(list(json.dumps(wrong).encode()), dtype=torch.uint8)
        with pytest.raises(DataError, match=message):
            Vocabulary.from_tensors(tensors | {"tokenizer": text})


# --- what the commands read ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", [DEEP, "[]", "{", '{"format": ["softq tagger 1"]}'])
def test_the_format_of_a_model(copy, text):
    path = copy("tagger")
    change_notes(path, lambda notes: text)
    with pytest.raises(DataError, match="is not a model of softq"):
        find_kind(path)


@pytest.mark.parametrize("name", ["_kind", "scheme_", "file_scheme_", "pos_column_"])
def test_notes_of_taggers_that_commands_read(copy, name):
    path = copy("tagger")
    whole = path.read_bytes()
    for value in ODD[2:]:
        path.write_bytes(whole)
        change_notes(path, lambda notes, value=value: changed(notes, "learnt", name, value=value))
        works_or_is_refused(lambda: FileTagger(path))


def test_run_folders(tmp_path):
    run = new_run(tmp_path / "run")
    for text in (DEEP, "[]", "{", "1"):
        (run.path / RESULT).write_text(text)
        with pytest.raises(RunError, match=f"{RESULT} is damaged"):
            run.result()
        save_file({"x": torch.ones(1)}, run.path / LAST, {"softq": text})
        with pytest.raises(RunError, match=f"{LAST} is not a checkpoint of softq"):
            run.load(LAST)
    save_file({"x": torch.ones(1)}, run.path / LAST)
    with pytest.raises(RunError, match=f"{LAST} is not a checkpoint of softq"):
        run.load(LAST)


# --- anything -----------------------------------------------------------------------------------------


def test_damage_at_random_neither_crashes_nor_hangs(tmp_path):
    """A small share; ``SOFTQ_FUZZ=200000`` makes it a large one."""
    script = Path(__file__).parents[1] / "fuzz_files.py"
    command = [sys.executable, str(script), str(tmp_path), "0", os.environ.get("SOFTQ_FUZZ", "500")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"exit {done.returncode} at {done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"
    )


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.conll", read_conll),
        ("a.conllu", read_conllu),
        ("a.jsonl", read_annotations),
        ("a.tsv", read_bitext),
        ("a.tsv", read_captions),
        ("a.txt", lambda path: list(read_lines(path))),
    ],
)
def test_a_line_without_end(tmp_path, name, read):
    path = tmp_path / name
    path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"line 1: expected at most 64 MiB, got a longer line"):
        read(path)


def test_a_file_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("softq.formats.text._LARGEST_FILE", 1 << 20)
    (tmp_path / "a.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="expected a file of at most 1 MiB, got a larger one"):
        read_captions(tmp_path / "a.json")
