"""Translators as files, what they make of texts, and training that goes on from them."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from small_runs import CPU
from softq.decode import mbr
from softq.errors import DataError, ModelError, RunError
from softq.formats.vocabulary import END, SPECIALS, UNKNOWN, WordVocabulary
from softq.lab.run import BEST, RESULT, RunFolder
from softq.lab.tasks.translation_judge import TranslationJudge
from softq.neural.search import Said
from softq.neural.translator import Decoding, ModelSettings, Translator
from softq.rewards import NegativeEditDistance, SentenceBLEU
from softq.sentences import Sentences
from translation_runs import TASK, WORLD, make_files, parts, recipe, run, write

pytestmark = pytest.mark.usefixtures("one_thread", "no_events")

TEXT = WORLD.sample(30, seed=0, references=2)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def prepared(*flags):
    return TranslationJudge.of(recipe(*flags)).prepared


def make(kind="lstm", **settings):
    """A translator that knows its words and nothing else, but is sure of what it says, and says something."""
    source = WordVocabulary.fit(TEXT.sources)
    target = WordVocabulary.fit([reference for several in TEXT.references for reference in several])
    options = ModelSettings(
        kind=kind, **{"embedding": 8, "hidden": 8, "heads": 2, "init": 0.7, **settings}
    )
    model = options.build(len(source), len(target), seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.output.bias[END] -= 6
    return Translator(
        model, options, source, target, Decoding(beam=3, length_penalty=0.5, max_ratio=1.5)
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"tie": True}, {"kind": "transformer"}, {"kind": "transformer", "tie": True, "layers": 2}],
)
def test_what_is_saved_is_loaded(tmp_path, settings):
    made = make(**settings)
    made.save(tmp_path / "model")
    again = Translator.load(tmp_path / "model")
    assert (again.settings, again.decoding) == (made.settings, made.decoding)
    assert list(again.translate(TEXT.sources)) == list(made.translate(TEXT.sources))
    assert not again.model.training
    both = made.tensors() | {
        f"model.{name}": value.clone() for name, value in made.model.state_dict().items()
    }
    assert list(Translator.from_tensors(both).translate(TEXT.sources[:3])) == list(
        made.translate(TEXT.sources[:3])
    )


def damaged(made, **changes):
    tensors = made.tensors()
    about = json.loads(tensors["about"].numpy().tobytes()) | changes
    return tensors | {
        "about": torch.from_numpy(np.frombuffer(json.dumps(about).encode(), np.uint8).copy())
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: {n: v for n, v in t.items() if n != "about"}, "got none of the name 'about'"),
        (
            lambda t, m: t | {"about": torch.tensor([1], dtype=torch.uint8)},
            "expected JSON in the tensor 'about'",
        ),
        (
            lambda t, m: damaged(m, format="softq parser 1"),
            f"expected the format '{Translator.format}', got 'softq parser 1'",
        ),
        (lambda t, m: damaged(m, model={"kind": "gru"}), "does not fit together"),
        (lambda t, m: damaged(m, model=None), "does not fit together"),
        (
            lambda t, m: damaged(m, model={"hidden": 16, "embedding": 8}),
            r"as torch.float32 \[.*\], got",
        ),
        (
            lambda t, m: damaged(m, model={"hidden": 8, "embedding": 8, "layers": 2}),
            "expected a parameter",
        ),
        (
            lambda t, m: t | {"model.more": torch.zeros(1)},
            "expected no parameter more: the model is another one",
        ),
        (
            lambda t, m: t | {"model.output.bias": t["model.output.bias"].double()},
            "got torch.float64",
        ),
        (lambda t, m: {n: v for n, v in t.items() if n != "source.about"}, "does not fit together"),
    ],
)
def test_what_is_no_translator(tmp_path, change, message):
    made = make()
    tensors = change(made.tensors(), made)
    with pytest.raises(DataError, match=message):
        Translator.from_tensors(tensors)
    save_file(tensors, tmp_path / "model")
    with pytest.raises(
        DataError,
        match=r"model is not a translator of softq \(.*\); expected a run's best.safetensors",
    ):
        Translator.load(tmp_path / "model")


def test_files_that_are_none(tmp_path):
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "text", tmp_path / "nothing"):
        with pytest.raises(DataError, match="is not a translator of softq"):
            Translator.load(path)
    make().save(tmp_path / "model")
    assert not any(load_file(tmp_path / "model")["source.frequencies"][:4])


def test_translations_come_in_order_whatever_the_batches():
    made = make()
    texts = [*TEXT.sources[:12], "", *TEXT.sources[12:], "   "]
    one_by_one = [next(iter(made.translate([text]))) for text in texts]
    for batch_size in (1, 5, 64):
        found = list(made.translate(texts, batch_size=batch_size))
        assert [one.text for one in found] == [one.text for one in one_by_one]
        assert [one.log_prob for one in found] == pytest.approx(
            [one.log_prob for one in one_by_one], abs=1e-4
        )
    assert found[12] == found[-1] == Said("", (), 0.0)
    assert len({one.text for one in found}) > 10


def test_texts_are_taken_as_they_are_needed(monkeypatch):
    monkeypatch.setattr("softq.neural.translator._WINDOW", 2)
    taken = []
    texts = (taken.append(text) or text for text in TEXT.sources)
    found = make().translate(texts, method="greedy")
    next(found)
    assert len(taken) == 2
    assert len(list(found)) == 29


def test_what_is_said_of_a_translation():
    made = make()
    for method in ("beam", "greedy", "sample"):
        for source, one in zip(
            TEXT.sources, made.translate(TEXT.sources, method=method), strict=True
        ):
            assert len(one.words) <= np.ceil(1.5 * len(source.split())) + 10
            assert one.expected_reward is None
            if "<unk>" not in one.words:
                numbers = made.target.encode(one.text)
                assert made.target.words(numbers) == list(one.words)
                pair = Sentences.pack([made.source.encode(source)]), Sentences.pack([[numbers]])
                assert one.log_prob == pytest.approx(made.model.log_prob(*pair).item(), abs=1e-3)


def test_a_wider_beam_finds_what_is_at_least_as_good():
    made = make()
    narrow, wide = (
        made.translate_numbers([[5, 6, 7]], beam=size, length_penalty=0.0)[0].log_prob
        for size in (1, 30)
    )
    assert wide >= narrow


@pytest.mark.parametrize("reward", [None, NegativeEditDistance()])
def test_minimum_bayes_risk_is_of_the_draws(reward):
    made = make()
    numbers = made.source.encode(TEXT.sources[0])
    drawn = made.model.generate(
        Sentences.pack([numbers]),
        method="sample",
        size=9,
        max_length=torch.tensor([int(np.ceil(1.5 * len(numbers))) + 10]),
        generator=torch.Generator().manual_seed(3),
    )
    best = mbr(drawn, reward or SentenceBLEU())
    (one,) = made.translate_numbers(
        [numbers],
        method="mbr",
        samples=9,
        reward=reward,
        generator=torch.Generator().manual_seed(3),
    )
    assert one.text == made.target.decode(best.sentences.unpack()[0])
    assert one.expected_reward == pytest.approx(float(best.expected_reward))
    assert one.log_prob == pytest.approx(float(drawn.log_model[0, int(best.index)]))


def test_draws_are_the_generators():
    made = make()
    again = [[one.text for one in made.translate(TEXT.sources, method="sample")] for _ in range(2)]
    assert again[0] == again[1]
    other = made.translate(
        TEXT.sources, method="sample", generator=torch.Generator().manual_seed(1)
    )
    assert [one.text for one in other] != again[0]


def test_unknown_methods():
    with pytest.raises(
        ModelError, match="method must be one of beam, greedy, sample, mbr, got 'best'"
    ):
        make().translate_numbers([[5]], method="best")


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
        begun, learner = Translator.load(tmp_path / "ml" / BEST), TASK.learner([made], CPU)
        model = learner._model
        assert all(
            torch.equal(value, begun.model.state_dict()[name])
            for name, value in model.state_dict().items()
        )
        assert TranslationJudge.of(made).prepared.source.encode("unheard of") == [UNKNOWN, UNKNOWN]
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
        match=r"expected a model of the recipe's architecture, lstm with embedding 12, hidden 8, 1 layers, got lstm .*hidden 16, 1 layers",
    ):
        run(tmp_path / "no", *flags, "--start", tmp_path / "ml", "--hidden", 8)
    with pytest.raises(
        RunError,
        match=r"nowhere cannot be gone on from: there is no .*nowhere; expected a run folder",
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
        RunError, match=rf"its words stay: expected the recipe's \[vocabulary\], {message}"
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
        match=r"there is no .*ml; .* A run that began there needs it until it is finished: put it back, or let a new",
    ):
        run(tmp_path / "run", *flags, "--epochs", 1, resume=True)
