"""Files of softq.CRFTagger.

Those of other machines and versions, damaged ones, and what the commands learn from them.
"""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from softq import CRFTagger, cli
from softq.cli.kinds.tagger import FileTagger
from softq.errors import DataError
from softq.formats.conll import Sentence, to_conll
from softq.formats.tags import convert
from softq.lab.recipe import build, parse_flags
from softq.lab.tasks import TASKS, train_cells
from softq.lab.worlds import EntityWorld
from strange_files import change_notes

GOLDEN = Path(__file__).parent / "golden"
SENTENCES = [
    ["Ann", "Lee", "met", "Zoë", "in", "Łódź", "."],
    ["She", "lives", "in", "Paris", "now"],
    ["Ann"],
    [],
]


pytestmark = pytest.mark.usefixtures("one_thread")


def write_golden():
    """Writes the files of tests/linear/golden anew, which only a new format of taggers asks for."""
    X = [
        ["Ann", "Lee", "met", "Bob", "in", "Łódź", "."],
        ["He", "lives", "in", "Paris", "."],
        ["Zoë", "met", "Ann", "Lee"],
    ]
    y = [
        ["B-PER", "I-PER", "O", "B-PER", "O", "B-LOC", "O"],
        ["O", "O", "O", "B-LOC", "O"],
        ["B-PER", "O", "B-PER", "I-PER"],
    ]
    templates = ("bias", "word[0]", "lower[-1]", "suffix[0]{2:2}", "shape[0]")
    tagger = CRFTagger(
        c2=0.1, objective="raml", tau=0.5, constraints="decode", templates=templates
    ).fit(X, y)
    tagger.save(GOLDEN / "tagger.safetensors")
    marginals = [
        [list(token.values()) for token in sentence]
        for sentence in tagger.predict_marginals(SENTENCES)
    ]
    expected = {
        "sentences": SENTENCES,
        "classes": tagger.classes_,
        "labels": tagger.predict(SENTENCES),
        "marginals": marginals,
    }
    (GOLDEN / "tagger.json").write_text(
        json.dumps(expected, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def test_a_file_that_another_machine_wrote():
    tagger = CRFTagger.load(GOLDEN / "tagger.safetensors")
    expected = json.loads((GOLDEN / "tagger.json").read_text(encoding="utf-8"))
    assert tagger.classes_ == expected["classes"]
    assert tagger.predict(expected["sentences"]) == expected["labels"]
    assert any(label != "O" for labels in expected["labels"] for label in labels)
    for found, right in zip(
        tagger.predict_marginals(expected["sentences"]), expected["marginals"], strict=True
    ):
        rows = [[token[label] for label in expected["classes"]] for token in found]
        np.testing.assert_allclose(rows, right, rtol=0, atol=1e-6)
    assert (tagger.objective, tagger.tau, tagger.converged_) == ("raml", 0.5, True)


# --- tag schemes for the commands ---------------------------------------------------------------------


def in_scheme(sentences, scheme):
    return [Sentence(s.tokens, (tuple(convert(s.labels[0], "bio", scheme)),)) for s in sentences]


def parts(sentences):
    return [list(s.tokens) for s in sentences], [list(s.labels[0]) for s in sentences]


@pytest.mark.parametrize("scheme", ["bio", "bioes", "iob1"])
def test_evaluate_converts_the_labels_of_a_model_without_constraints(tmp_path, scheme):
    world = EntityWorld()
    train, test = world.sample(80, seed=0), world.sample(60, seed=1)
    CRFTagger(templates=["bias", "word[0]", "word[-1]"], c2=0.1).fit(
        *parts(in_scheme(train, scheme))
    ).save(tmp_path / "model")
    file_tagger = FileTagger(tmp_path / "model")
    assert (file_tagger.file_scheme, file_tagger.trained_scheme) == (scheme, scheme)
    CRFTagger.load(tmp_path / "model").save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
    scores = []
    for other in ("bio", "bioes", "iob1"):
        (tmp_path / "test.conll").write_text(to_conll(in_scheme(test, other)), encoding="utf-8")
        done = CliRunner().invoke(
            cli.app, ["evaluate", str(tmp_path / "model"), str(tmp_path / "test.conll"), "--json"]
        )
        assert done.exit_code == 0, done.output
        scores.append(json.loads(done.stdout.splitlines()[-1])["f1"])
    assert scores == [scores[0]] * 3
    assert scores[0] > 0.2


@pytest.mark.parametrize("labels", [["NN", "VB"], ["B-PER", "VB"]])
def test_labels_that_are_no_tags_have_no_scheme(tmp_path, labels):
    CRFTagger(templates=["word[0]"]).fit([["a", "b"]], [labels]).save(tmp_path / "model")
    assert CRFTagger.load(tmp_path / "model").scheme_ is None


# --- notes that are not all there ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    return CRFTagger(templates=["word[0]"]).fit([["a", "b"], ["c"]], [["X", "Y"], ["Y"]])


@pytest.mark.parametrize(
    "change",
    [
        lambda notes: notes.pop("learnt"),
        lambda notes: notes.pop("parameters"),
        lambda notes: notes["learnt"].pop("kl_"),
        lambda notes: notes["learnt"].pop("_kind"),
        lambda notes: notes.update(learnt=None),
        lambda notes: notes.update(learnt="no"),
        lambda notes: notes.update(parameters=3),
        lambda notes: notes["parameters"].update(colour=1),
        lambda notes: notes["learnt"].update(_kind="letters"),
        lambda notes: notes["learnt"].update(_kind=["words"]),
        lambda notes: notes["learnt"].update(scheme_="letters"),
        lambda notes: notes["learnt"].update(pos_column_=-1),
        lambda notes: notes["learnt"].update(annotators_=[["0", 1.0]]),
        lambda notes: notes["learnt"].update(annotators_=7),
    ],
)
def test_damaged_notes_are_told_in_a_sentence(fitted, tmp_path, change):
    fitted.save(tmp_path / "changed")
    change_notes(tmp_path / "changed", lambda notes: (change(notes), notes)[1])
    with pytest.raises(
        DataError,
        match=(
            r"changed is not a tagger of softq \(expected the tensors and notes of CRFTagger.save:"
            r" .*\); expected a file of"
        ),
    ):
        CRFTagger.load(tmp_path / "changed")


def test_a_run_of_the_command_is_read(tmp_path):
    train = tmp_path / "train.conll"
    sentences = EntityWorld().sample(40, seed=3)
    train.write_text(
        "\n".join(
            "".join(f"{t}\t{y}\n" for t, y in zip(s.tokens, s.labels[0], strict=True))
            for s in sentences
        )
    )
    task = TASKS["ner"]
    table = parse_flags(
        task.recipe_type, ["--train", str(train), "--templates", "word[0],word[-1]"]
    )
    train_cells(task, [build(task.recipe_type, table)], tmp_path / "run")
    words, labels = parts(sentences)
    options = {"c2": 0.5, "constraints": "decode", "all_possible_transitions": True}
    options |= {"tolerance": 1e-4, "num_memories": 8, "templates": ["word[0]", "word[-1]"]}
    by_hand = CRFTagger(**options).fit(words, labels)  # the same training: the same bits
    for path in (tmp_path / "run", tmp_path / "run" / "best.safetensors"):
        loaded = CRFTagger.load(path)
        assert loaded.predict(words) == by_hand.predict(words)
        for name in ("loss_curve_", "converged_", "n_iter_", "kl_", "scheme_", "classes_"):
            assert getattr(loaded, name) == getattr(by_hand, name)
        np.testing.assert_array_equal(loaded.tagger_.weights, by_hand.tagger_.weights)
    loaded.save(tmp_path / "again")
    again, best = (load_file(tmp_path / name) for name in ("again", "run/best.safetensors"))
    assert again.keys() == best.keys()
    assert all(torch.equal(again[name], best[name]) for name in best)
