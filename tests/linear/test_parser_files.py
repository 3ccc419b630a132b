"""Files of softq.DependencyParser.

What they keep, who else reads them, and what is no such file.
"""

import pytest
import torch
from safetensors.torch import load_file

from parsing_runs import run, write
from small_runs import single_thread
from softq import CRFTagger, DependencyParser
from softq.errors import DataError
from softq.lab.worlds import TreeWorld
from strange_files import change_notes

pytestmark = pytest.mark.usefixtures("no_events")

WORLD = TreeWorld(crossing=0.0, lemmas=6)
TRAIN, TEST = WORLD.sample(20, seed=0), WORLD.sample(10, seed=1)
OPTIONS = {
    "bits": 12,
    "relation_bits": 8,
    "epochs": 2,
    "random_state": 0,
    "templates": ("head.upos|dep.upos", "dep.word"),
}


@pytest.fixture(scope="module")
def fitted():
    with single_thread():
        return DependencyParser(**OPTIONS, decoding="mbr", objective="raml", tau=0.5).fit(
            TRAIN, None, TEST
        )


def test_a_file_holds_all_of_it(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    loaded = DependencyParser.load(tmp_path / "model")
    assert loaded.predict(TEST) == fitted.predict(TEST)
    assert loaded.get_params() == fitted.get_params() | {"templates": list(OPTIONS["templates"])}
    for name in (
        "relations_",
        "n_iter_",
        "best_iter_",
        "converged_",
        "loss_curve_",
        "relation_loss_curve_",
        "kl_",
        "dev_scores_",
    ):
        assert getattr(loaded, name) == getattr(fitted, name)
    assert (loaded.dev_score_, loaded.nonprojective_, loaded.index_) == (
        fitted.dev_score_,
        0,
        fitted.index_,
    )
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"model", "again"}


def test_a_run_of_the_command_is_read(tmp_path):
    train = write(tmp_path / "train.conllu", TRAIN)
    flags = ["--train", train, "--bits", 12, "--relation-bits", 8, "--decoding", "mbr"]
    run(tmp_path / "run", *flags, "--epochs", 3)
    loaded = DependencyParser.load(tmp_path / "run")
    assert (loaded.decoding, loaded.bits, loaded.epochs) == ("mbr", 12, 3)
    assert loaded.n_iter_ == loaded.best_iter_ == len(loaded.loss_curve_) <= 3
    assert loaded.predict(TEST) == loaded.parser_.parse(TEST, "mbr")
    loaded.save(tmp_path / "again")
    again, best = (load_file(tmp_path / name) for name in ("again", "run/best.safetensors"))
    assert again.keys() == best.keys()
    assert all(torch.equal(again[name], best[name]) for name in best)
    loaded.fit(TRAIN)


@pytest.mark.parametrize(
    "change",
    [
        lambda notes: notes.pop("learnt"),
        lambda notes: notes.pop("parameters"),
        lambda notes: notes["learnt"].pop("kl_"),
        lambda notes: notes.update(learnt=None),
        lambda notes: notes.update(parameters=3),
        lambda notes: notes["parameters"].update(colour=1),
    ],
)
def test_damaged_notes_are_told_in_a_sentence(fitted, tmp_path, change):
    fitted.save(tmp_path / "changed")
    change_notes(tmp_path / "changed", lambda notes: (change(notes), notes)[1])
    with pytest.raises(
        DataError,
        match=(
            r"changed is not a parser of softq \(expected the tensors and notes of"
            r" DependencyParser.save: "
        ),
    ):
        DependencyParser.load(tmp_path / "changed")


def test_files_that_are_no_parsers(fitted, tmp_path):
    CRFTagger(templates=["word[0]"]).fit([["a"]], [["X"]]).save(tmp_path / "tagger")
    (tmp_path / "text").write_text("no")
    for name in ("tagger", "text", "nothing"):
        with pytest.raises(DataError, match=f"{name} is not a parser of softq"):
            DependencyParser.load(tmp_path / name)
    fitted.save(tmp_path / "parser")
    with pytest.raises(DataError, match="parser is not a tagger of softq"):
        CRFTagger.load(tmp_path / "parser")
