"""Translation from files and from the built-in world.

What is read, trained, judged, refused, and gone on with.
"""

import itertools
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from test_crashes import broken_off_at_every_write

from small_runs import CPU, contents
from softq.errors import DataError, RecipeError, RunError
from softq.formats.bitext import read_bitext
from softq.formats.vocabulary import END, SPECIALS, UNKNOWN
from softq.lab.recipe import read_toml
from softq.lab.run import BEST, METRICS, RESULT, RunFolder
from softq.lab.tasks import train_cells
from softq.lab.tasks.sequence_task import SequenceJudge
from softq.lab.tasks.translation import read_translations
from softq.metrics import TRANSLATION_METRICS, sacre_bleu, sentence_bleu, translation_statistics
from softq.neural.target_maker import target_signature
from softq.neural.text_generator import TextGenerator
from softq.rewards import SentenceBLEU
from softq.sentences import Sentences
from translation_runs import TASK, WORLD, make_files, parts, recipe, run, write, write_side_by_side

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def prepared(*flags):
    return SequenceJudge.of(TASK, recipe(*flags)).data


# --- from end to end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["ml", "--label-smoothing", 0.1],
        ["raml", "--tau", 0.5, "--model.kind", "transformer", "--heads", 2],
        ["sqdml", "--tau", 0.5, "--tie", "--embedding", 16, "--layers", 2],
        [
            "raml",
            "--tau",
            0.5,
            "--sampler",
            "hamming",
            "--estimator",
            "importance",
            "--vocabulary.kind",
            "subwords",
            "--vocabulary.size",
            300,
        ],
        ["raml", "--tau", 0.5, "--sampler", "model", "--no-merge", "--dev-beam", 2],
    ],
    ids=lambda flags: "-".join(map(str, flags[::2])),
)
def test_from_end_to_end(tmp_path, files, flags):
    flags = [*parts(files, "train", "dev", "test"), "--objective", *flags]
    row = run(tmp_path, *flags)
    translator = TextGenerator.load(tmp_path / BEST)
    assert translator.decoding.beam == 2
    for part in ("dev", "test"):
        text = read_bitext(files[part])
        found = list(translator.generate(text.sources))
        references = [
            [translator.vocabulary.plain(reference) for reference in several]
            for several in text.references
        ]
        exact = [list(one.words) in several for one, several in zip(found, references, strict=True)]
        assert row[f"{part}_exact_match"] == pytest.approx(sum(exact) / len(exact))
        words = sum(len(one.words) for one in found)
        closest = sum(
            min((abs(len(one.words) - len(ref)), len(ref)) for ref in several)[1]
            for one, several in zip(found, references, strict=True)
        )
        assert row[f"{part}_length_ratio"] == pytest.approx(words / closest)
        assert {f"{part}_{name}" for name in TRANSLATION_METRICS} <= row.keys()
        if part == "test":
            assert row["test_sacrebleu"] == pytest.approx(
                sacre_bleu([one.text for one in found], text.references).score
            )
    lines = RunFolder(tmp_path).lines(METRICS)
    assert len(lines) == 2
    assert row["dev"] == max(line["dev"] for line in lines)
    assert row["test"] == row["test_sentence_bleu"]
    assert lines[-1]["dev_perplexity"] < len(translator.vocabulary)
    statistics = RunFolder(tmp_path).test_counts().model(0)
    assert statistics.shape == (10, 14)
    assert float(TASK.metrics[TASK.chosen_by](statistics.sum(0))) == pytest.approx(row["test"])
    assert len(RunFolder(tmp_path).outputs()) == 10
    result = json.loads((tmp_path / RESULT).read_text())
    assert (result["task"], result["metric"]) == ("translation", "sentence BLEU")
    scoring, target = result["signature"].split("; target ")
    assert target == target_signature(recipe(*flags).objective, recipe(*flags).candidates)
    by_words, by_sacre = scoring.split()
    assert by_words == "multi-reference-bleu:order=4:smoothing=nltk3:bp=on:effective-order=off"
    assert by_sacre.startswith("sacrebleu:case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert result["cells"] == [row]
    assert row["parameters"] == sum(
        parameter.numel() for parameter in translator.model.parameters()
    )


def test_dev_scores_are_of_the_quick_search(files):
    made = recipe(*parts(files, "train", "dev", "test"), "--beam", 5)
    judge = SequenceJudge.of(TASK, made)
    model = made.model.build(len(judge.data.source), len(judge.data.target), seed=1)
    with torch.no_grad():  # something to say, and other things for other methods
        for parameter in model.parameters():
            parameter.mul_(20)
        model.output.bias[END] -= 3
    sources, scores = read_bitext(files["dev"]).sources, {}
    for method in ("greedy", "beam"):
        words = [one.words for one in judge.generator(model).generate(sources, method=method)]
        scores[method] = float(
            sentence_bleu(translation_statistics(words, judge.data.dev.references).sum(0))
        )
    assert judge.score(model) == pytest.approx(scores["greedy"])
    assert abs(scores["greedy"] - scores["beam"]) > 1e-4
    assert model.training  # judging leaves it as it was


def test_perplexity_is_that_of_the_references_one_by_one(tmp_path, files):
    row = run(tmp_path, *parts(files, "train", "dev"))
    translator, text = TextGenerator.load(tmp_path / BEST), read_bitext(files["dev"])
    surprise = words = 0
    with torch.no_grad():
        for source, several in zip(text.sources, text.references, strict=True):
            for reference in several:
                numbers = translator.vocabulary.encode(reference)
                pair = (
                    Sentences.pack([translator.source.encode(source)]),
                    Sentences.pack([[numbers]]),
                )
                surprise -= float(translator.model.log_prob(*pair))
                words += len(numbers) + 1
    assert row["test_perplexity"] == pytest.approx(math.exp(surprise / words), rel=1e-4)
    assert row["dev_perplexity"] == pytest.approx(
        row["test_perplexity"], rel=1e-4
    )  # there is no test part


def test_the_expected_reward_of_the_world_is_exact(tmp_path):
    row = run(tmp_path)
    sources = read_translations(recipe().data).test.inputs
    found = TextGenerator.load(tmp_path / BEST).generate(sources)
    total = 0.0
    for source, one in zip(sources, found, strict=True):
        for text, probability in WORLD.outputs(source).items():
            names = {
                word: number
                for number, word in enumerate(dict.fromkeys([*one.words, *text.split()]))
            }
            pair = ([[[names[word] for word in words]]] for words in (one.words, text.split()))
            total += probability * float(
                SentenceBLEU()(*(part for sentences in pair for part in Sentences.pack(sentences)))
            )
    assert row["test_expected_reward"] == pytest.approx(total / len(sources))
    assert row["test_average_reward"] <= 1
    assert row["examples"] == 48


def test_without_dev_it_is_judged_by_what_it_learnt_from(tmp_path, files):
    row = run(tmp_path, "--train", files["train"], "--dev-beam", 2)
    assert row["dev"] == row["test"] == row["dev_sentence_bleu"]
    assert "test_expected_reward" not in row


@pytest.mark.parametrize("there", [999, 1000, 2500])
def test_without_dev_no_more_than_a_thousand_are_decoded(tmp_path, there):
    sources = [f"s{number}" for number in range(there)]
    train = write(tmp_path / "train.tsv", sources, [[source.upper()] for source in sources])
    found = prepared("--train", train)
    assert len(found.train) == there
    chosen = [int(source[1:]) for source in found.dev.corpus.inputs]
    assert len(chosen) == len(found.dev.examples) == min(there, 1000)
    assert {after - before for before, after in itertools.pairwise(chosen)} == (
        {2, 3} if there > 1000 else {1}
    )
    assert found.dev.corpus.references == [[f"S{number}"] for number in chosen]
    assert found.test is found.dev
    test = write(tmp_path / "test.tsv", ["a"], [["b"]])
    assert prepared("--train", train, "--test", test).dev.corpus == found.dev.corpus


@pytest.mark.parametrize(
    ("precision", "products"), [("float32", "highest"), ("tf32", "high"), ("bf16", "high")]
)
def test_outputs_are_of_the_precision_of_the_recipe(
    tmp_path, files, monkeypatch, precision, products
):
    flags = [*parts(files, "train", "dev"), "--epochs", 1, "--precision", precision]
    seen, generate = [], TextGenerator.generate

    def watched(self, *args, **options):
        seen.append(torch.get_float32_matmul_precision())
        return generate(self, *args, **options)

    monkeypatch.setattr(TextGenerator, "generate", watched)
    before = torch.get_float32_matmul_precision()
    run(tmp_path, *flags)
    assert set(seen) == {products}
    assert torch.get_float32_matmul_precision() == before


# --- parts ------------------------------------------------------------------------------------------------


def test_halves_of_dev_share_no_source(tmp_path, files):
    text = read_bitext(files["dev"])
    pairs = [
        (source, reference)
        for source, several in zip(text.sources, text.references, strict=True)
        for reference in several
    ]
    repeated = write(
        tmp_path / "dev.tsv",
        [source for source, _ in pairs],
        [[reference] for _, reference in pairs],
    )
    found = read_translations(
        recipe("--train", files["train"], "--dev", repeated, "--halve-dev").data
    )
    assert (found.dev.inputs, found.test.inputs) == (text.sources[::2], text.sources[1::2])
    assert found.dev.references == text.references[::2]
    assert not set(found.dev.inputs) & set(found.test.inputs)
    even, odd = (
        write(tmp_path / f"{half}.tsv", text.sources[half::2], text.references[half::2])
        for half in (0, 1)
    )
    flags = ["--train", files["train"], "--epochs", 1]
    rows = [
        run(tmp_path / "a", *flags, "--dev", repeated, "--halve-dev"),
        run(tmp_path / "b", *flags, "--dev", even, "--test", odd),
    ]
    for row in rows:
        del row["hash"]
    assert rows[0] == rows[1]


def test_parallel_files_are_a_file_of_columns(tmp_path, files):
    source, *references = write_side_by_side(tmp_path, "train", read_bitext(files["train"]))
    beside = read_translations(
        recipe("--train", source, "--train-references", ",".join(map(str, references))).data
    ).train
    columns = read_translations(recipe("--train", files["train"]).data).train
    assert (beside.inputs, beside.references) == (columns.inputs, columns.references)


def test_merge(tmp_path):
    train = write(tmp_path / "train.tsv", ["a b", "c", "a b"], [["A B", "B A"], ["C"], ["B"]])
    merged = read_translations(recipe("--train", train).data).train
    assert (merged.inputs, merged.references) == (["a b", "c"], [["A B", "B A", "B"], ["C"]])
    pairs = read_translations(recipe("--train", train, "--no-merge").data).train
    assert pairs.inputs == ["a b", "a b", "c", "a b"]
    assert pairs.references == [["A B"], ["B A"], ["C"], ["B"]]
    assert len(prepared("--train", train, "--no-merge").train) == 4


def test_sentences_that_are_too_long_are_left_out_of_training_alone(tmp_path):
    sources, references = ["a b", "c d e", "f"], [["A", "A B C"], ["D"], ["F G"]]
    train, dev = (write(tmp_path / f"{name}.tsv", sources, references) for name in ("train", "dev"))
    found = prepared("--train", train, "--dev", dev, "--max-length", 2)
    assert found.left_out == 2
    assert (len(found.train), len(found.dev.examples)) == (2, 3)
    assert found.train.take_references(torch.arange(2)).lengths.tolist() == [[1], [2]]
    assert [len(several) for several in found.dev.references] == [2, 1, 1]
    assert run(tmp_path / "run", "--train", train, "--dev", dev, "--max-length", 2)["left_out"] == 2
    with pytest.raises(
        DataError, match=r"train.tsv: expected a text of at most max_length = 1 words, got none"
    ):
        prepared("--train", write(train, ["a b"], [["A B"]]), "--max-length", 1)


@pytest.mark.parametrize("kind", [[], ["--vocabulary.kind", "subwords", "--vocabulary.size", 300]])
def test_vocabularies_are_of_the_training_part(tmp_path, kind):
    train = write(tmp_path / "train.tsv", ["ab cd"] * 3, [["AB CD"]] * 3)
    alone, beside = (
        prepared(
            "--train", train, "--dev", write(tmp_path / "dev.tsv", ["ab xy"], [["XY"]]), *kind
        ),
        prepared("--train", train, *kind),
    )
    assert torch.equal(alone.target.frequencies, beside.target.frequencies)
    assert (
        int(alone.target.frequencies.sum()) == 6
        if not kind
        else len(alone.target) <= SPECIALS + 300
    )
    if not kind:
        assert alone.dev.examples.inputs[0].tolist() == [SPECIALS, UNKNOWN]
        assert alone.dev.references == [[["XY"]]]  # words of references stay what they are


def test_settings_of_words(tmp_path):
    train = write(tmp_path / "train.tsv", ["Ja, Ja, Nein", "Nein"], [["Yes, yes", "Yes"], ["No"]])
    assert len(prepared("--train", train).target) == SPECIALS + 4  # Yes yes , No
    assert len(prepared("--train", train, "--lowercase").target) == SPECIALS + 3
    assert (
        len(prepared("--train", train, "--tokenizer", "space").target) == SPECIALS + 4
    )  # Yes, yes Yes No
    assert len(prepared("--train", train, "--min-freq", 2).target) == SPECIALS + 1
    assert len(prepared("--train", train, "--vocabulary.size", 2).target) == SPECIALS + 2


@pytest.mark.parametrize("size", [256, 260])
def test_settings_of_subwords(tmp_path, size):
    train = write(tmp_path / "train.tsv", ["abcdefghijklmnop " * 2], [["qrstuvwxyz " * 2]])
    found = prepared("--train", train, "--vocabulary.kind", "subwords", "--vocabulary.size", size)
    assert len(found.source) == len(found.target) == SPECIALS + size


def test_without_sacrebleu(tmp_path, files, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    assert "test_sacrebleu" not in run(tmp_path, *parts(files, "train", "dev"), "--epochs", 1)
    assert (
        TASK.signature(recipe())
        == "multi-reference-bleu:order=4:smoothing=nltk3:bp=on:effective-order=off; target ml"
    )


# --- broken off -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [["--checkpoint-every", 1], ["--objective", "sqdml", "--tau", 0.5, "--tie", "--embedding", 16]],
    ids=["steps", "tied"],
)
def test_a_run_that_is_broken_off_at_any_write_ends_the_same(tmp_path, files, flags):
    text = read_bitext(files["train"])
    train = write(tmp_path / "train.tsv", text.sources[:24], text.references[:24])

    def job(out):
        train_cells(
            TASK,
            [recipe("--train", train, "--dev", files["test"], *flags)],
            out,
            resume=True,
            workers=CPU,
        )

    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
    assert writes >= 2 * 6


def test_a_run_does_not_go_on_with_other_sentences(tmp_path, files):
    text = read_bitext(files["train"])
    train = write(tmp_path / "train.tsv", text.sources[:24], text.references[:24])
    flags = ["--train", train, "--dev", files["test"]]
    run(tmp_path / "run", *flags)
    (tmp_path / "run" / RESULT).unlink()  # as if it were not finished
    write(train, text.sources[1:25], text.references[1:25])
    with pytest.raises(
        RunError, match="cannot be resumed: the training data or the vocabulary of this run differs"
    ):
        train_cells(TASK, [recipe(*flags)], tmp_path / "run", resume=True, workers=CPU)


# --- recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dev", "a.tsv"], "name the training file as well"),
        (["--train", "a", "--halve-dev"], "halve_dev takes the test part from dev"),
        (["--train-references", "b"], "train_references are translations of the sources in train"),
        (
            ["--train", "a", "--dev-references", "b"],
            "dev_references are translations of the sources in dev",
        ),
        (["--vocabulary.kind", "subwords", "--lowercase"], "of whole words"),
        (
            ["--vocabulary.kind", "subwords", "--vocabulary.size", 255],
            "vocabulary.size must be at least 256 with kind = subwords.*got 255",
        ),
        (["--tie"], "tie needs embedding = hidden, got 12 and 16"),
        (["--model.kind", "transformer", "--heads", 3], "a multiple of heads"),
        (["--objective", "sqdml", "--tau", 1, "--no-merge"], "merge = false"),
        (["--objective", "raml", "--tau", 1, "--temperature-scaled"], "temperature_scaled"),
    ],
)
def test_what_does_not_go_together(flags, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*flags)


def test_a_pair_is_an_example_as_in_the_paper():
    for name in ("paper", "tatoeba"):
        assert (
            read_toml(Path(__file__).parents[2] / "recipes" / f"translation-{name}.toml")["data"][
                "merge"
            ]
            is False
        )
