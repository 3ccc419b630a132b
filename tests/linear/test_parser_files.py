"""Files of softq.DependencyParser: what they keep, who else reads them, and what is no such file."""

import pytest

from small_runs import single_thread
from softq import CRFTagger, DependencyParser
from softq.errors import DataError
from softq.lab.worlds import TreeWorld
from softq.linear.parsing import Parser

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


def test_a_parser_without_relations(tmp_path):
    model = DependencyParser(**OPTIONS).fit(TRAIN, [s.heads for s in TRAIN])
    model.save(tmp_path / "model")
    assert DependencyParser.load(tmp_path / "model").predict(TEST) == model.predict(TEST)


def test_a_run_of_the_command_is_read(fitted, tmp_path):
    fitted.parser_.save(tmp_path / "best.safetensors", {"decoding": "mbr"})
    for path in (tmp_path, tmp_path / "best.safetensors"):
        loaded = DependencyParser.load(path)
        assert loaded.predict(TEST) == fitted.predict(TEST)
        assert (loaded.decoding, loaded.bits, loaded.relation_bits, loaded.n_iter_) == (
            "mbr",
            12,
            8,
            None,
        )
    loaded.save(tmp_path / "again")
    again = DependencyParser.load(tmp_path / "again")
    assert again.predict(TEST) == fitted.predict(TEST)
    again.fit(TRAIN)


@pytest.mark.parametrize(
    "change",
    [
        lambda notes: notes.pop("learnt") and None,
        lambda notes: notes.pop("parameters") and None,
        lambda notes: notes["learnt"].pop("kl_") and None,
        lambda notes: notes.update(learnt=None),
        lambda notes: notes.update(parameters=3),
    ],
)
def test_damaged_notes_are_told_in_a_sentence(fitted, tmp_path, change):
    fitted.save(tmp_path / "whole")
    parser, notes = Parser.load(tmp_path / "whole")
    change(notes)
    parser.save(tmp_path / "changed", notes)
    with pytest.raises(
        DataError,
        match=r"changed is damaged, .*: expected the notes of DependencyParser\.save, got .*; fit and save",
    ):
        DependencyParser.load(tmp_path / "changed")


def test_files_that_are_no_parsers(fitted, tmp_path):
    fitted.parser_.save(tmp_path / "bare")
    with pytest.raises(
        DataError,
        match=r"holds a model that is no DependencyParser's: expected a file of DependencyParser\.save",
    ):
        DependencyParser.load(tmp_path / "bare")
    fitted.parser_.save(
        tmp_path / "newer",
        {"estimator": "DependencyParser", "parameters": {"colour": 1}, "learnt": {}},
    )
    with pytest.raises(
        DataError, match=r"options that this version of softq does not know .*colour"
    ):
        DependencyParser.load(tmp_path / "newer")
    CRFTagger(templates=["word[0]"]).fit([["a"]], [["X"]]).save(tmp_path / "tagger")
    (tmp_path / "text").write_text("no")
    for name in ("tagger", "text", "nothing"):
        with pytest.raises(DataError, match=f"{name} is not a parser of softq"):
            DependencyParser.load(tmp_path / name)
    fitted.save(tmp_path / "parser")
    with pytest.raises(DataError, match="parser is not a tagger of softq"):
        CRFTagger.load(tmp_path / "parser")
