"""Translators as files, what they make of texts, and training that goes on from them."""

import shutil

import pytest
import torch

from small_runs import CPU
from softq.errors import DataError, RunError
from softq.formats.vocabulary import SPECIALS, UNKNOWN
from softq.lab.run import BEST, RESULT, RunFolder
from softq.lab.tasks.sequence_task import SequenceJudge
from softq.neural.text_generator import TextGenerator
from translation_runs import TASK, WORLD, make_files, parts, recipe, run, write

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")

TEXT = WORLD.sample(30, seed=0, references=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def prepared(*flags):
    return SequenceJudge.of(TASK, recipe(*flags)).data


# --- from another run -------------------------------------------------------------------------------------


def test_training_goes_on_from_another_run(tmp_path, files):
    flags = parts(files, "train", "dev", "test")
    run(tmp_path / "ml", *flags)
    other = write(tmp_path / "other.tsv", ["unheard of"], [["a b c"]])
    for start in (tmp_path / "ml", tmp_path / "ml" / BEST):
        made = recipe(
            "--train",
            other,
            "--dev",
            files["dev"],
            "--start",
            start,
            "--seed",
            5,
            "--dropout",
            0.5,
            "--objective",
            "raml",
            "--tau",
            1,
        )
        begun, learner = TextGenerator.load(tmp_path / "ml" / BEST), TASK.learner([made], CPU)
        model = learner._model
        assert all(
            torch.equal(value, begun.model.state_dict()[name])
            for name, value in model.state_dict().items()
        )
        assert SequenceJudge.of(TASK, made).data.source.encode("unheard of") == [UNKNOWN, UNKNOWN]
    learner.train(0, 0, 1, [True])  # which leaves the kept one as it was
    again = TASK.learner([made], CPU)._model
    assert all(
        torch.equal(value, begun.model.state_dict()[name])
        for name, value in again.state_dict().items()
    )
    assert not any(map(torch.equal, model.parameters(), again.parameters()))
    row = run(
        tmp_path / "raml", *flags, "--start", tmp_path / "ml", "--objective", "raml", "--tau", 0.5
    )
    assert row["objective"] == "raml"
    with pytest.raises(
        RunError,
        match=(
            r"expected a model of the recipe's architecture, lstm with embedding 12, hidden 8, 1"
            r" layers, got lstm .*hidden 16, 1 layers"
        ),
    ):
        run(tmp_path / "no", *flags, "--start", tmp_path / "ml", "--hidden", 8)
    with pytest.raises(
        RunError,
        match=r"cannot start from .*nowhere: there is no .*nowhere; expected a run folder",
    ):
        run(tmp_path / "no", *flags, "--start", tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"dev.tsv is not a translator of softq"):
        run(tmp_path / "no", *flags, "--start", files["dev"])
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocabulary.kind", "subwords"], "kind = subwords, got kind = words;"),
        (["--lowercase"], "lowercase = True, got lowercase = False;"),
        (
            ["--tokenizer", "space", "--lowercase"],
            "tokenizer = space, lowercase = True, got tokenizer = unicode, lowercase = False;",
        ),
        (["--min-freq", 4], "min_freq = at least 4, got min_freq = 3;"),
        (["--vocabulary.size", 3], "size = at most 3, got size = 4;"),
        (["--min-freq", 3], ""),
        (["--vocabulary.size", 4], ""),
        ([], ""),
    ],
)
def test_training_goes_on_with_the_same_words(tmp_path, flags, message):
    train = write(tmp_path / "train.tsv", ["a b, c " * 3 + "d"], [["A B " * 3 + "D"]])
    run(tmp_path / "ml", "--train", train, "--min-freq", 3, "--epochs", 1)
    start = ["--train", train, "--start", tmp_path / "ml", *flags]
    if not message:
        assert len(prepared(*start).source) == SPECIALS + 4  # a b , c
        return
    with pytest.raises(
        RunError, match=rf"whose vocabulary stays: expected the recipe's \[vocabulary\], {message}"
    ):
        prepared(*start)


def test_subwords_to_go_on_with(tmp_path):
    train = write(tmp_path / "train.tsv", ["abcdefg abcdefg"] * 3, [["ABCDEFG ABCDEFG"]] * 3)
    subwords = ["--vocabulary.kind", "subwords"]
    run(tmp_path / "ml", "--train", train, *subwords, "--vocabulary.size", 259, "--epochs", 1)
    start = ["--train", train, "--start", tmp_path / "ml"]
    for size in ([], ["--vocabulary.size", 259]):
        assert len(prepared(*start, *subwords, *size).target) == SPECIALS + 259
    with pytest.raises(RunError, match="size = at most 258, got size = 259;"):
        prepared(*start, *subwords, "--vocabulary.size", 258)
    with pytest.raises(RunError, match="kind = words, got kind = subwords;"):
        prepared(*start, "--lowercase")


def test_what_has_started_elsewhere_is_judged_without_it(tmp_path, files):
    run(tmp_path / "ml", "--train", files["test"])  # fewer words
    flags = [*parts(files, "train", "dev", "test"), "--start", tmp_path / "ml"]
    row = run(tmp_path / "run", *flags, "--epochs", 1)
    shutil.rmtree(tmp_path / "ml")
    found = RunFolder(tmp_path / "run").test_counts().sums()[0]
    assert float(TASK.metrics[TASK.chosen_by](found)) == pytest.approx(row["test"])
    assert run(tmp_path / "run", *flags, "--epochs", 1, resume=True) == row  # it is finished
    (tmp_path / "run" / RESULT).unlink()
    with pytest.raises(
        RunError,
        match=(
            r"there is no .*ml; .* A run that began there needs it until it is finished: put it"
            r" back, or let a new"
        ),
    ):
        run(tmp_path / "run", *flags, "--epochs", 1, resume=True)
