"""What `softq predict`, `softq evaluate` and `softq report` make of runs of `softq train lm`."""

import pytest
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from transformers import AutoTokenizer

from lm_runs import train_two, write_files
from ner_commands import evaluated, predictions, refused, softq, told, well
from softq.cli.kinds import Options
from softq.cli.kinds.sentences import FileTranslator, for_two_methods, search_options
from softq.errors import DataError
from softq.integrations.transformers.generation import Writer, Writing
from softq.lab.run import RunFolder
from softq.lab.tasks import lm
from softq.lab.tasks.lm_data import read_rows
from softq.metrics import sacre_bleu

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, files):
    return train_two(files, tmp_path_factory.mktemp("runs"))


# --- predict ----------------------------------------------------------------------------------------------


def test_a_text_for_each_line_whatever_the_batches(runs, files, tmp_path):
    sources = (files / "test.txt").read_text(encoding="utf-8").splitlines()
    expected = predictions(runs / "ml", files / "test.txt")
    assert len(expected.splitlines()) == len(sources)
    assert predictions(runs / "ml" / lm.BEST, files / "test.txt", "--batch-size", 5) == expected
    with_gap = [sources[0], "", *sources[1:]]
    found = predictions(runs / "ml", stdin="".join(f"{source}\n" for source in with_gap))
    assert found.splitlines() == [expected.splitlines()[0], "", *expected.splitlines()[1:]]
    facts = told(
        softq(
            "predict",
            runs / "ml",
            files / "test.txt",
            "--out",
            tmp_path / "out.txt",
            "--method",
            "mbr",
            "--samples",
            4,
            "--json",
        )
    )
    assert (facts["decoding"], facts["sentences"]) == ("mbr of 4", 12)
    assert facts["seconds"] > 0
    drawn = [
        predictions(runs / "ml", files / "test.txt", "--method", "sample", "--seed", seed)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    refused(
        softq("predict", runs / "ml", files / "test.txt", "--plain"),
        "is a text model of Transformers",
    )


def test_mbr_takes_the_text_of_the_highest_mean_reward(runs, monkeypatch):
    (model, _), how = (
        lm.open_text_model(str(runs / "ml"), "cpu"),
        Writing("mbr", beams=1, samples=5, max_new_tokens=6),
    )
    drawn = []
    as_ever = Writer.samples

    def samples(self, *arguments, **more):
        drawn.append(as_ever(self, *arguments, **more))
        return drawn[-1]

    monkeypatch.setattr(Writer, "samples", samples)
    (chosen,) = model.write(["ula tretz tir"], how)
    (evidence,) = drawn[0].texts.sentences.unpack()
    (best,) = model.write(["ula tretz tir"], Writing("greedy", max_new_tokens=6))
    smooth = SmoothingFunction().method3
    choices = [model.token_ids(best), *evidence]
    means = [
        sum(sentence_bleu([other], choice, smoothing_function=smooth) for other in evidence)
        / len(evidence)
        for choice in choices
    ]
    assert model.tokenizer.decode(choices[means.index(max(means))]) == chosen


# --- evaluate ---------------------------------------------------------------------------------------------


def test_scores_are_those_of_the_texts_and_of_training(runs, files):
    (cell,) = RunFolder(runs / "ml").result()["cells"]
    facts = evaluated(runs / "ml", files / "dev.tsv")
    assert {
        name: facts[name] for name in facts if name in cell and name != "seconds"
    } == pytest.approx({name: cell[name] for name in cell if name in facts and name != "seconds"})
    assert facts["decoding"] == "beam of 2"
    texts = predictions(runs / "ml", files / "dev.txt").splitlines()
    references = [row["references"] for row in read_rows(files / "dev.tsv")]
    assert facts["sacrebleu_bleu"] == pytest.approx(sacre_bleu(texts, references).score)
    tokenizer = AutoTokenizer.from_pretrained(runs / "ml" / lm.BEST)

    def tokens(text):
        return tokenizer(text)["input_ids"][:-1]

    smooth = SmoothingFunction().method3
    pairs = [
        (text, reference) for text, row in zip(texts, references, strict=True) for reference in row
    ]
    rewards = [
        sentence_bleu([tokens(reference)], tokens(text), smoothing_function=smooth)
        for text, reference in pairs
    ]
    assert facts["reward"] == pytest.approx(sum(rewards) / len(rewards))


def test_two_models_and_two_ways_to_write_are_compared(runs, files):
    facts = evaluated(runs / "raml", files / "test.tsv", "--against", runs / "ml")
    alone = evaluated(runs / "ml", files / "test.tsv")
    against = facts["against"]
    assert against["reward"]["score"] == pytest.approx(alone["reward"])
    gap = against["chrf"]["difference"]
    assert gap["value"] == pytest.approx(facts["chrf"] - alone["chrf"])
    assert gap["low"] <= gap["value"] <= gap["high"]
    assert against["seconds"] > 0
    itself = ["--method", "mbr", "--samples", 3, "--against", runs / "ml"]
    shown = well(
        softq("evaluate", runs / "ml", files / "test.tsv", *itself, "--against-method", "beam")
    )
    assert all(
        text in shown for text in ("mbr of 3", "beam of 2", "95 % interval", "seconds to write")
    )
    nothing = evaluated(runs / "ml", files / "test.tsv", *itself)["against"]["reward"]["difference"]
    assert (nothing["low"], nothing["high"]) == pytest.approx((0, 0), abs=1e-12)
    refused(
        softq("evaluate", runs / "ml", files / "test.tsv", "--against", files),
        "is not a model of softq",
    )
    refused(
        softq("evaluate", runs / "ml", files / "test.tsv", "--scheme", "bio"),
        "--scheme is for taggers",
    )


@pytest.mark.parametrize(
    ("name", "signature"),
    [("words:exact", "words:exact"), ("rouge", "rouge-l:"), ("chrf", "characters:chrf")],
)
def test_texts_are_chosen_by_every_reward_that_a_recipe_knows(runs, files, name, signature):
    facts = evaluated(
        runs / "ml", files / "dev.tsv", "--method", "mbr", "--samples", 2, "--reward", name
    )
    assert facts["signature"].startswith(signature)


def test_other_models_have_no_such_options(runs, files, tmp_path):
    refused(
        softq("predict", runs / "ml", files / "dev.txt", "--method", "mbr", "--reward", "blue"),
        "reward must be one of bleu",
    )
    with pytest.raises(
        DataError, match="--reward must be one of 'bleu', 'rouge', 'edit', got 'chrf'"
    ):
        FileTranslator(tmp_path, Options(method="mbr", reward="chrf"))
    refused(softq("predict", tmp_path, "--batch-size", 3), "is not a model of softq")
    refused(
        softq("evaluate", tmp_path, tmp_path / "x", "--against-method", "mbr"),
        "is not a model of softq",
    )


def test_two_searches_take_what_each_can_be_told():
    asked = Options(beam=3, samples=7, seed=1)
    first, second = for_two_methods(asked, "mbr")
    assert (search_options(first)["method"], first.beam, first.samples, first.seed) == (
        "beam",
        3,
        None,
        None,
    )
    assert (search_options(second)["method"], second.beam, second.samples, second.seed) == (
        "mbr",
        None,
        7,
        1,
    )
    first, second = for_two_methods(Options(samples=7), "beam")  # which neither takes
    with pytest.raises(DataError, match="--samples is for --method mbr, got --method beam"):
        search_options(first)


def test_a_report_shows_runs_and_their_curves(runs, tmp_path):
    page = tmp_path / "report.html"
    well(softq("report", runs, "--out", page))
    text = page.read_text(encoding="utf-8")
    dev = RunFolder(runs / "raml").result()["cells"][0]["dev"]
    assert f"{dev:.4f}" in text
    assert "softq train" in text
