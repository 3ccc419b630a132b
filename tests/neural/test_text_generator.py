"""Translators and captioners as files, and the texts that they generate."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from softq.decode import mbr
from softq.errors import DataError, ModelError, RecipeError
from softq.formats.vocabulary import END, Vocabulary
from softq.lab.worlds import LanguageWorld
from softq.neural.generation import GeneratedText
from softq.neural.recipe import (
    CaptionDecoding,
    CaptionerSettings,
    TranslationDecoding,
    TranslatorSettings,
)
from softq.neural.text_generator import TextGenerator
from softq.rewards import NegativeEditDistance, SentenceBLEU
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = LanguageWorld().sample(30, seed=0, references=2)
TARGETS = [reference for several in TEXT.references for reference in several]
FEATURES = np.random.default_rng(3).standard_normal((30, 6)).astype(np.float32)
INPUTS = {"translator": TEXT.sources, "captioner": FEATURES}
KINDS = ["translator", "captioner"]


def make(kind, /, encoder="", **settings):
    """An untrained model that is sure of its outputs, which are not empty."""
    target = Vocabulary.fit_words(TARGETS)
    beam = {"beam": 3, "length_penalty": 0.5}
    if kind == "translator":
        source = Vocabulary.fit_words(TEXT.sources)
        sizes = {"embedding": 8, "hidden": 8, "heads": 2, "init": 0.7} | settings
        network, decoding = TranslatorSettings(**sizes), TranslationDecoding(**beam, max_ratio=1.5)
    else:
        source, decoding = None, CaptionDecoding(**beam, max_words=7)
        network = CaptionerSettings(**{"embedding": 8, "hidden": 8, "init": 0.7} | settings)
    model = network.build(6 if source is None else len(source), len(target), seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.output.bias[END] -= 6
    return TextGenerator(model, network, target, source, decoding, encoder)


def as_inputs(made, index):
    """One input as its model takes it."""
    if made.source is None:
        return (torch.from_numpy(FEATURES[index : index + 1]),)
    return Sentences.pack([made.source.encode(TEXT.sources[index])])


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("translator", {}),
        ("translator", {"tie": True}),
        ("translator", {"kind": "transformer"}),
        ("translator", {"kind": "transformer", "tie": True, "layers": 2}),
        ("captioner", {"tie": True}),
        ("captioner", {"layers": 2, "encoder": "vgg16-fc7"}),
    ],
)
def test_what_is_saved_is_loaded(tmp_path, kind, settings):
    made = make(kind, **settings)
    made.save(tmp_path / "model")
    again = TextGenerator.load(tmp_path / "model", kind)
    for name in ("kind", "settings", "decoding", "encoder", "inputs"):
        assert getattr(again, name) == getattr(made, name)
    assert again.generate(INPUTS[kind]) == made.generate(INPUTS[kind])
    assert not again.model.training
    both = made.tensors() | {
        f"model.{name}": value.clone() for name, value in made.model.state_dict().items()
    }
    assert TextGenerator.from_tensors(both).generate(INPUTS[kind][:3]) == made.generate(
        INPUTS[kind][:3]
    )


def damaged(made, **changes):
    tensors = made.tensors()
    about = json.loads(tensors["about"].numpy().tobytes()) | changes
    written = np.frombuffer(json.dumps(about).encode(), np.uint8).copy()
    return tensors | {"about": torch.from_numpy(written)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: {n: v for n, v in t.items() if n != "about"}, "got none of the name 'about'"),
        (lambda t, m: t | {"about": torch.tensor([1], dtype=torch.uint8)}, "expected JSON in the"),
        (lambda t, m: damaged(m, format="softq parser 1"), "expected the format .* 2', got 'softq"),
        (lambda t, m: damaged(m, model={"kind": "gru"}), "does not fit together"),
        (lambda t, m: damaged(m, model=None), "does not fit together"),
        (lambda t, m: damaged(m, features="many"), "does not fit together"),
        (lambda t, m: damaged(m, features=-6), "does not fit together"),
        (lambda t, m: damaged(m, decoding={"beam": 0}), "does not fit together"),
        (lambda t, m: damaged(m, model={"hidden": 16, "embedding": 8}), r"float32 \[.*\], got"),
        (
            lambda t, m: damaged(m, model={"hidden": 8, "embedding": 8, "layers": 2}),
            "expected a parameter",
        ),
        (lambda t, m: t | {"model.more": torch.zeros(1)}, "expected no parameter more: the model"),
        (lambda t, m: t | {"model.output.bias": t["model.output.bias"].double()}, "got torch.fl"),
        (lambda t, m: {n: v for n, v in t.items() if n != "target.about"}, "does not fit together"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, kind, change, message):
    made = make(kind)
    tensors = change(made.tensors(), made)
    with pytest.raises(DataError, match=message):
        TextGenerator.from_tensors(tensors, kind)
    save_file(tensors, tmp_path / "model")
    with pytest.raises(
        DataError, match=rf"model is not a {kind} of softq \(.*\); expected a run's"
    ):
        TextGenerator.load(tmp_path / "model", kind)


def test_files_of_something_else_are_refused(tmp_path):
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "text", tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match="is not a captioner of softq"):
            TextGenerator.load(path, "captioner")
        with pytest.raises(DataError, match="is not a translator or captioner of softq"):
            TextGenerator.load(path)
    make("translator").save(tmp_path / "translator")
    with pytest.raises(DataError, match="expected the format 'softq captioner 2', got 'softq tr"):
        TextGenerator.load(tmp_path / "translator", "captioner")
    assert TextGenerator.load(tmp_path / "translator").kind == "translator"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tie": True, "embedding": 4, "hidden": 8}, "tie needs embedding = hidden, got 4 and 8"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"init": 0.0}, "init must be a positive number"),
    ],
)
def test_settings_that_make_no_model(settings, message):
    for network in (CaptionerSettings, TranslatorSettings):
        with pytest.raises(RecipeError, match=message):
            network(**settings)
    with pytest.raises(RecipeError, match="max_words must be at least 1"):
        CaptionDecoding(max_words=0)


def test_settings_are_equal_as_text_where_parameters_fit():
    usual = CaptionerSettings()
    assert str(usual) == str(CaptionerSettings(dropout=0.0, init=1.0))
    for other in ({"hidden": 8}, {"embedding": 8}, {"layers": 2}, {"tie": True, "embedding": 512}):
        assert str(usual) != str(CaptionerSettings(**other))
    lstm, transformer = TranslatorSettings(), TranslatorSettings(kind="transformer")
    assert str(lstm) == str(TranslatorSettings(heads=2)) != str(transformer)
    assert str(transformer) == str(TranslatorSettings(kind="transformer", embedding=8))
    assert str(transformer) != str(TranslatorSettings(kind="transformer", heads=2))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_come_in_order_whatever_the_batches(kind):
    made, inputs = make(kind), INPUTS[kind]
    if kind == "translator":
        inputs = [*inputs[:12], "", *inputs[12:], "   "]
    one_by_one = [made.generate(inputs[index : index + 1])[0] for index in range(len(inputs))]
    for batch_size in (1, 5, None):
        found = made.generate(inputs, batch_size=batch_size)
        assert [one.text for one in found] == [one.text for one in one_by_one]
        assert [one.log_prob for one in found] == pytest.approx(
            [one.log_prob for one in one_by_one], abs=1e-4
        )
    assert len({one.text for one in found}) > 10
    if kind == "translator":
        assert found[12] == found[-1] == GeneratedText("", (), 0.0)
    assert made.generate(inputs[:0]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_have_the_probability_that_the_model_gives_them(kind):
    made = make(kind)
    for method in ("beam", "greedy", "sample"):
        for index, one in enumerate(made.generate(INPUTS[kind], method=method)):
            inputs = as_inputs(made, index)
            limit = 7 if kind == "captioner" else np.ceil(1.5 * int(inputs.lengths)) + 10
            assert len(one.words) <= limit
            assert one.expected_reward is None
            if "<unk>" not in one.words:
                tokens = made.vocabulary.encode(one.text)
                assert made.vocabulary.words(tokens) == list(one.words)
                expected = made.model.log_prob(inputs, Sentences.pack([[tokens]])).item()
                assert one.log_prob == pytest.approx(expected, abs=1e-3)


def test_beam_search_is_the_models_own_unless_told():
    made = make("captioner")
    expected = made.model.generate(
        (torch.from_numpy(FEATURES),), size=3, max_length=7, length_penalty=0.5
    )
    usual = made.generate(FEATURES)
    assert usual == made.generate(FEATURES, beam=3, length_penalty=0.5)
    assert [one.words for one in usual] == [
        tuple(made.vocabulary.words(several[0])) for several in expected.sentences.unpack()
    ]
    assert made.generate(FEATURES, beam=1, length_penalty=0.0) != usual
    narrow, wide = (made.generate(FEATURES, beam=size, length_penalty=0.0) for size in (1, 100))
    assert sum(one.log_prob for one in wide) > sum(one.log_prob for one in narrow)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_follow_from_their_generators(kind):
    made, inputs = make(kind), INPUTS[kind][:9]
    first, again = (made.generate(inputs, method="sample") for _ in range(2))
    assert first == again
    other = torch.Generator().manual_seed(1)
    assert made.generate(inputs, method="sample", generator=other) != first

    def own():
        return [torch.Generator().manual_seed(index) for index in range(9)]

    apart = made.generate(inputs, method="sample", generator=own())
    for batch_size in (1, 4):  # one generator for each input: batches do not matter
        found = made.generate(inputs, method="sample", generator=own(), batch_size=batch_size)
        assert [one.words for one in found] == [one.words for one in apart]
    rest = made.generate(inputs[4:], method="sample", generator=own()[4:])
    assert [one.words for one in rest] == [one.words for one in apart[4:]]
    greedy = [one.words for one in made.generate(inputs, method="greedy")]
    for options in ({"temperature": 1e-4}, {"top_p": 1e-9}):
        cold = made.generate(inputs, method="sample", **options)
        assert [one.words for one in cold] == greedy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", [None, NegativeEditDistance()])
def test_minimum_bayes_risk_is_of_the_samples(kind, reward):
    made = make(kind)
    inputs = as_inputs(made, 0)
    sampled = made.model.generate(
        inputs,
        method="sample",
        size=9,
        max_length=made.decoding.max_length(inputs),
        generator=torch.Generator().manual_seed(3),
    )
    best = mbr(sampled, reward or SentenceBLEU())
    generator = torch.Generator().manual_seed(3)
    (one,) = made.generate(
        INPUTS[kind][:1], method="mbr", samples=9, reward=reward, generator=generator
    )
    assert one.text == made.vocabulary.decode(best.sentences.unpack()[0])
    assert one.expected_reward == pytest.approx(float(best.expected_reward))
    assert one.log_prob == pytest.approx(float(sampled.log_model[0, int(best.index)]))


def test_features_may_have_any_precision():
    made, half = make("captioner"), FEATURES.astype(np.float16)
    expected = made.generate(half.astype(np.float32))
    half.flags.writeable = False  # as a memory-mapped file may be
    assert made.generate(half) == made.generate(half.astype(np.float64)) == expected


def test_inputs_that_cannot_be_used():
    message = r"expected features of vgg16-fc7 of 6 numbers for each image, got \[30, 5\]"
    with pytest.raises(DataError, match=message):
        make("captioner", encoder="vgg16-fc7").generate(FEATURES[:, :5])
    with pytest.raises(DataError, match=r"expected features of 6 numbers for each image, got \[6]"):
        make("captioner").generate(FEATURES[0])
    with pytest.raises(ModelError, match="method must be one of beam, greedy, sample, mbr, got"):
        make("captioner").generate(FEATURES, method="best")


def test_generation_leaves_a_model_as_it_was():
    made = make("captioner", dropout=0.5)
    expected = made.generate(FEATURES)
    made.model.train()
    assert made.generate(FEATURES) == expected
    assert made.model.training
    assert made.to("cpu") is made
