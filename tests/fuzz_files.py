"""Damage files at random and read them.

``python fuzz_files.py FOLDER SEED COUNT [CASE …]``, in a process of its own.

Every reader, every kind of model file and every file of a run folder is a case. Whatever a file
holds, reading it works or ends in a `SoftqError` of one line, within `SECONDS` and `MEMORY`. A
crash ends the process, and so does a read that takes too long; the last line printed says which
input it was. The same seed and number give the same input.
"""

import gzip
import json
import lzma
import random
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import small_runs
from softq.errors import DataWarning, SoftqError
from softq.formats import read_conll, read_conllu
from softq.formats.annotations import check_annotations, looks_annotated, read_annotations
from softq.formats.bitext import read_bitext
from softq.formats.captions import check_captions, check_features, read_captions, read_features
from softq.formats.conll import check_conll
from softq.formats.conllu import check_conllu
from softq.formats.tables import Table, read_costs
from softq.formats.text import read_lines, read_references
from softq.formats.word_vectors import read_vectors
from strange_files import KINDS, NOTES, change_notes, use, write_models

SECONDS = 10
MEMORY = 2 << 30
BITS_ONLY = "bits"
"""As a name of a case: every input is one of `KINDS` with a single bit turned."""

DEEP, LONG = 3000, 5000
ODD_VALUES = (
    None, True, 0, -1, 1, 7, 10**6, 10**30, 1e300, float("nan"), float("inf"), "", "x", "\ud800", "a\nb",
    [], [[]], ["x"], [1], {}, {"a": 1},
)  # fmt: skip
ODD_TEXTS = (
    b"\0", b"\n", b"\r", b"\t", b"\n\n", b" ", b"_", b"#", b"# annotators =", b"-DOCSTART-", b"0", b"-1", b"1.1", b"1-2",
    b"?", b"[", b"]", b"{", b"}", b'"', b"[" * DEEP, b'{"a":' * DEEP, b"a = " + b"[" * DEEP, b"9" * LONG, b"1" * 400, b"NaN",
    b"1e999", b"null", b"\t\t\t", b"\\ud800", b"B-", b"true", b"=", b"[]", b"{}", b"x = {" * 50,
    b"\xef\xbb\xbf", "é\u2028".encode(), b"\xff", b"\xff\xfe", b"\xc3", b"\x80\x00",
)  # fmt: skip


class Case(NamedTuple):
    """What writes the files of a case into an empty folder, what reads them, and how often the case is chosen."""

    write: Callable[[Path], object]
    read: Callable[[Path], object]
    weight: int = 100


# --- readers ------------------------------------------------------------------------------------


def text_case(name, text, *reads, weight=100):
    """A case of one text file, which ``reads`` take the path of."""

    def write(folder):
        packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
        (folder / name).write_bytes(packed(text.encode()))

    def read(folder):
        each(reads, folder / name)

    return Case(write, read, weight)


def each(reads, path):
    """All reads of one path; the first error is raised after the last read."""
    errors = []
    for read in reads:
        try:
            read(path)
        except SoftqError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def as_conllu(path):
    for trees in (True, False, None):
        for sentence in read_conllu(path, trees=trees):
            sentence.text(sentence.heads, sentence.relations)
            sentence.multiword_tokens()


def as_text(read):
    """The same reader, given a file's text."""

    def reading(path):
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        return read(text + "\n")

    return reading


def as_crowd(path):
    from softq.annotators.agreement import agreement
    from softq.annotators.reliability import estimate

    corpus = read_conll(path, annotators="all")
    corpus.X_y()
    agreement(corpus.sentences)
    estimate(corpus.sentences, iterations=2)


def as_annotations(path):
    looks_annotated(path)
    check_annotations(path)
    read_annotations(path, annotators="all").X_y()


def as_recipe(path):
    from softq.lab.recipe import read_toml
    from softq.lab.sweep.grids import parse_recipe
    from softq.lab.tasks import TASKS

    parse_recipe(TASKS["ner"], read_toml(path), str(path))


def as_table(path):
    table = Table.read(path)
    table.numbers(["size", "age"])
    table.column("kind")


def as_rows(path):
    from softq.lab.tasks.lm_data import read_rows

    read_rows(path)


CONLL = "# sent_id = 7\nAnn NNP B-PER\nmet VBD O\nBob NNP B-PER\n\n-DOCSTART- -X- O\n\nHi UH O\n"
CROWD = "# annotators = w1 w2\nAnn\tB-PER\tO\nran\tO\t?\n\n# annotators = w2 w3\nHi\tO\tO\n"
CONLLU = (
    "# sent_id = a\n1-2\tdas\t_\t_\t_\t_\t_\t_\t_\t_\n1\tda\tda\tADP\tIN\t_\t2\tcase\t_\t_\n"
    "2\ts\ts\tPRON\tPR\tCase=Nom\t0\troot\t_\tSpaceAfter=No\n2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n\n"
    "1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_\n\n"
)
TSV = "ein Haus\ta house\tone house\nja\tyes\n"
JSONL = (
    '{"source": "ein Haus", "references": ["a house"], "candidates": ["house"],'
    ' "candidate_rewards": [0.5]}\n{"source": "ja", "references": "yes"}\n'
)
KARPATHY = json.dumps(
    {
        "images": [
            {
                "filepath": "v",
                "filename": "a.jpg",
                "split": "val",
                "sentences": [{"raw": "A dog."}],
            },
            {"filename": "b.jpg", "split": "train", "sentences": [{"tokens": ["a", "cat"]}]},
        ]
    }
)
SPAN = {"start": 0, "end": 3, "label": "PER", "text": "Ann"}
LABELLED = [
    {"id": 1, "text": "Ann ran.", "label": [[0, 3, "PER"], [4, 7, "X"]], "annotation_approver": "w1"},
    {"text": "Hi \U0001f600 Bo", "entities": [{"start_offset": 3, "end_offset": 4, "label": 3, "user": 2}]},
    {"tokens": ["Ann", "ran"], "annotations": {"w1": ["B-PER", None], "w2": None, "w3": ["O", "O"]}},
    {"tokens": ["a", "b"], "labels": [{"B-X": 0.7, "O": 0.3}, ["B-X", "O"]], "user": "w1"},
    {"text": "Ann ran", "tokens": ["Ann", "ran"], "annotation": [SPAN], "annotation_agent": "a"},
    {"fields": {"t": "Ann"}, "responses": {"q": [{"value": [SPAN], "user_id": "u"}]}},
    {"text": "Ann", "q.responses": [[SPAN], []], "q.responses.users": ["u", "v"]},
]  # fmt: skip
TASKS = [
    {
        "id": 5,
        "data": {"text": "Ann ran"},
        "annotations": [
            {"completed_by": {"email": "a@b"}, "result": [{"value": {"start": 0, "end": 3, "labels": ["X"]}}]},
            {"completed_by": 2, "result": [], "was_cancelled": False},
        ],
    },
    {"id": 6, "text": "Ann ran", "annotation_id": 3, "annotator": 1, "label": [SPAN]},
]  # fmt: skip
RECIPE = (
    'task = "ner"\n\n[features]\ntemplates = ["word[0]"]\n\n[training]\nseed ='
    ' 3\n\n[objective]\nname = "raml"\ntau = 0.5\n'
)


def write_features(folder):
    (folder / "x.tsv").write_text("a.jpg\tA dog.\nb.jpg\tA cat.\n")
    np.save(folder / "x.features.npy", np.eye(2, 5, dtype=np.float32))
    (folder / "x.features.names.txt").write_text("b.jpg\nv/a.jpg\n")


def read_all_features(folder):
    features = folder / "x.features.npy"
    captions = read_captions(folder / "x.tsv")
    check_features(features, captions)
    np.array(read_features(features, captions))


def write_side_by_side(folder):
    (folder / "a").write_text("ein Haus\nja\n")
    (folder / "b").write_text("a house\nyes\n")


def write_vectors(folder):
    np.save(folder / "v.npy", np.eye(3, 4, dtype=np.float16))
    (folder / "v.words.txt").write_text("Ann\nran\nmet\n")


READERS = {
    "conll": text_case("a.conll", CONLL, read_conll, check_conll, as_text(read_conll)),
    "crowd": text_case("a.conll", CROWD, as_crowd, check_conll),
    "conll.gz": text_case("a.conll.gz", CONLL, read_conll),
    "conllu": text_case("a.conllu", CONLLU, as_conllu, check_conllu, as_text(read_conllu)),
    "conllu.xz": text_case("a.conllu.xz", CONLLU, read_conllu),
    "bitext": text_case("a.tsv", TSV, read_bitext, read_references, lambda path: list(read_lines(path))),
    "side by side": Case(write_side_by_side, lambda folder: read_bitext(folder / "a", folder / "b")),
    "captions": text_case("a.tsv", TSV, read_captions, check_captions),
    "karpathy": text_case("a.json", KARPATHY, read_captions, lambda path: read_captions(path, "val"), check_captions),
    "karpathy.gz": text_case("a.json.gz", KARPATHY, read_captions),
    "features": Case(write_features, read_all_features),
    "json lines": text_case("a.jsonl", JSONL, as_rows),
    "annotations": text_case("a.jsonl", "".join(f"{json.dumps(one)}\n" for one in LABELLED), as_annotations, as_text(read_annotations)),
    "tasks": text_case("a.json", json.dumps(TASKS), as_annotations),
    "tasks.xz": text_case("a.json.xz", json.dumps(TASKS), as_annotations),
    "recipe": text_case("a.toml", RECIPE, as_recipe),
    "vectors": text_case("a.txt", "3 2\nAnn 0.5 1\nran -1 2e-3\nmet 0 0\n", read_vectors),
    "vectors.npy": Case(write_vectors, lambda folder: read_vectors(folder / "v.npy")),
    "table": text_case("a.csv", "size,age,kind\n1,2.5,good\n-3,1e3,bad\n", as_table),
    "costs": text_case("a.csv", "decided,a,b\na,0,10\nb,1,0\n", lambda path: read_costs(path, ["a", "b"])),
    "costs.toml": text_case("a.toml", '[a]\na = 0\nb = 10\n[b]\na = 1\nb = 0\n', lambda path: read_costs(path, ["a", "b"])),
}  # fmt: skip


# --- models -------------------------------------------------------------------------------------


def model_case(kind):
    def write(folder):
        write_models(folder)
        for path in folder.iterdir():
            if path.name != kind:
                path.unlink()

    return Case(write, lambda folder: use(kind, folder / kind), weight=20)


def write_pretrained(folder):
    from softq.integrations.transformers.loading import make_t5, save_model, train_tokenizer

    tokenizer = train_tokenizer(["a b c", "b c d"], 20)
    save_model(make_t5("t5-tiny", tokenizer), tokenizer, folder / "model")


def read_pretrained(folder):
    from softq.integrations.transformers.loading import load_model

    load_model(str(folder / "model"))


MODELS = {kind: model_case(kind) for kind in KINDS} | {
    "pretrained": Case(write_pretrained, read_pretrained, weight=2)
}


# --- run folders --------------------------------------------------------------------------------


def write_runs(folder):
    done = small_runs.softq(
        "sweep", "classification", *small_runs.SMALL, "--tau", "0.5,1", "--objective", "ml,raml",
        "--out", folder / "sweep",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    done = small_runs.softq(
        "train", "ner", "--sentences", 40, "--dev-sentences", 20, "--iterations", 3, "--templates", "word[0]",
        "--out", folder / "run",
    )  # fmt: skip
    assert done.exit_code == 0, done.output


def read_runs(folder):
    from softq.lab.report import find_sources, read_sections

    read_sections(find_sources([folder]))


def resume_run(folder):
    """Start the training again from whatever is left."""
    flags = [*small_runs.SMALL, "--out", folder / "run", "--resume"]
    done = small_runs.softq("train", "classification", *flags)
    if done.exit_code == 2:
        raise SoftqError(done.output.strip())
    if done.exit_code:
        raise done.exception


def write_finished(folder):
    done = small_runs.softq("train", "classification", *small_runs.SMALL, "--out", folder / "run")
    assert done.exit_code == 0, done.output


def write_unfinished(folder):
    write_finished(folder)
    (folder / "run" / "result.json").unlink()


RUNS = {
    "runs": Case(write_runs, read_runs, weight=2),
    "finished": Case(write_finished, resume_run, weight=1),
    "resume": Case(write_unfinished, resume_run, weight=2),
}
CASES = READERS | MODELS | RUNS


# --- damage -------------------------------------------------------------------------------------


def damage(path, draw):
    """Change a file at random, in a way that suits its contents; returns what was done."""
    kind = path.name
    if kind in KINDS and draw.random() < 0.33:
        return change_one_note(path, draw)
    if path.suffix in (".gz", ".xz") and draw.random() < 0.5:
        module = gzip if path.suffix == ".gz" else lzma
        content, done = change_bytes(module.decompress(path.read_bytes()), draw)
        path.write_bytes(module.compress(content))
        return f"{done}, packed again"
    if path.suffix in (".json", ".jsonl") and draw.random() < 0.5:
        return change_json(path, draw)
    content, done = change_bytes(path.read_bytes(), draw)
    path.write_bytes(content)
    return done


def change_bytes(content, draw):
    """Turn a bit; cut, repeat or move a stretch; insert or put something odd."""
    if not content or draw.random() < 0.4:
        return turn_bit(content, draw)
    begin = draw.randrange(len(content))
    end = min(len(content), begin + draw.choice((1, 1, 2, 8, 64, 1 << 20)))
    odd = draw.choice(ODD_TEXTS)
    parts = {
        "cut": content[:begin] + content[end:],
        "repeated": content[:end] + content[begin:],
        "moved": content[:begin] + content[end:] + content[begin:end],
        "inserted": content[:begin] + odd + content[begin:],
        "put": content[:begin] + odd + content[end:],
        "alone": odd,
    }
    done = draw.choice(list(parts))
    told = f" {odd[:20]!r} ({len(odd)})" if done in ("inserted", "put", "alone") else ""
    return parts[done], f"{begin}:{end} {done}{told}"


def turn_bit(content, draw):
    if not content:
        return b"\0", "one byte"
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    changed = bytearray(content)
    changed[place] ^= 1 << bit
    return bytes(changed), f"bit {bit} of byte {place}"


def places_of(value, before=()):
    """All places in what JSON holds."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for key, one in inside:
        yield (*before, key)
        yield from places_of(one, (*before, key))


def change_value(found, draw):
    """Something odd at one place, or nothing there any more.

    Returns the whole and what was done.
    """
    places = list(places_of(found))
    if not places or draw.random() < 0.05:
        value = draw.choice(ODD_VALUES)
        return value, f"{value!r} instead"
    place = draw.choice(places)
    at = found
    for key in place[:-1]:
        at = at[key]
    action = draw.random()
    if action < 0.2:
        del at[place[-1]]
        return found, f"no {place}"
    if action < 0.3 and isinstance(at, dict):
        at[f"{place[-1]}x"] = at.pop(place[-1])
        return found, f"another name of {place}"
    value = draw.choice(ODD_VALUES)
    at[place[-1]] = value
    return found, f"{value!r} at {place}"


def change_one_note(path, draw):
    tensor, told = draw.choice(NOTES.get(path.name, ("about",))), []

    def change(notes):
        found, done = change_value(notes, draw)
        told.append(done)
        return json.dumps(found)

    change_notes(path, change, tensor)
    return f"{tensor}: {told[0]}"


def change_json(path, draw):
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    if not lines:
        return "empty"
    number = draw.randrange(len(lines))
    found, done = change_value(json.loads(lines[number]), draw)
    lines[number] = json.dumps(found)
    path.write_text("\n".join(lines) + "\n")
    return f"line {number}: {done}"


# --- the loop -----------------------------------------------------------------------------------


def snapshot(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def restore(folder, whole):
    """Files as they were, and no others."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder) not in whole:
            path.unlink()
    for name, content in whole.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            (folder / name).write_bytes(content)


def main(folder, seed, count, names):
    """Print what is done before it is done; returns the exit status."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, within a kernel too
    bits_only = names == [BITS_ONLY]
    names = list(KINDS) if bits_only else names or list(CASES)
    whole = {}
    for name in names:
        (folder / name).mkdir()
        CASES[name].write(folder / name)
        whole[name] = snapshot(folder / name)
        CASES[name].read(folder / name)  # kernels are compiled now
        restore(folder / name, whole[name])
    before, read = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Counter()
    weights = [1 if bits_only else CASES[name].weight for name in names]
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        name = draw.choices(names, weights)[0]
        path = folder / name / draw.choice(list(whole[name]))
        if bits_only:
            content, done = turn_bit(path.read_bytes(), draw)
            path.write_bytes(content)
        else:
            done = damage(path, draw)
        print(f"{number}: {path.relative_to(folder)}, {done}", flush=True)
        signal.alarm(SECONDS)
        try:
            CASES[name].read(folder / name)
        except SoftqError as error:
            read["several lines" if "\n" in str(error) else "refused"] += 1
        except Exception:
            print(f"{number}: {path.relative_to(folder)}, {done}", file=sys.stderr)
            traceback.print_exc(limit=-4)
            read["failed"] += 1
        signal.alarm(0)
        read[name] += 1
        if (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 > MEMORY:
            raise MemoryError(f"expected at most {MEMORY} bytes")
        restore(folder / name, whole[name])
    print(f"{count} inputs: {dict(read)}")
    shutil.rmtree(folder)
    return int(read["failed"] + read["several lines"] > 0)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))  # spares the machine the worst
    warnings.simplefilter("ignore", DataWarning)
    with small_runs.single_thread():
        sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
