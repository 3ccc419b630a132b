"""Translators as files, and what they make of texts."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from softq.data.vocabulary import END, WordVocabulary
from softq.decode import mbr
from softq.errors import DataError, ModelError
from softq.generation.translator import FORMAT, Decoding, ModelSettings, Translation, Translator
from softq.rewards import NegativeEditDistance, SentenceBLEU
from softq.sentences import Sentences
from translation_runs import WORLD

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = WORLD.draw(30, seed=0, references=2)


def make(kind="lstm", **settings):
    """A translator that knows its words and nothing else, but is sure of what it says, and says something."""
    source = WordVocabulary.fit(TEXT.sources)
    target = WordVocabulary.fit([reference for several in TEXT.references for reference in several])
    options = ModelSettings(kind=kind, **{"embedding": 8, "hidden": 8, "heads": 2, "init": 0.7, **settings})
    model = options.build(len(source), len(target), seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.output.bias[END] -= 6
    return Translator(model, options, source, target, Decoding(beam=3, length_penalty=0.5, max_ratio=1.5))


@pytest.mark.parametrize("settings", [{}, {"tie": True}, {"kind": "transformer"}, {"kind": "transformer", "tie": True, "layers": 2}])
def test_what_is_saved_is_loaded(tmp_path, settings):
    made = make(**settings)
    made.save(tmp_path / "model")
    again = Translator.load(tmp_path / "model")
    assert (again.settings, again.decoding) == (made.settings, made.decoding)
    assert list(again.translate(TEXT.sources)) == list(made.translate(TEXT.sources))
    assert not again.model.training
    both = made.tensors() | {f"model.{name}": value.clone() for name, value in made.model.state_dict().items()}
    assert list(Translator.from_tensors(both).translate(TEXT.sources[:3])) == list(made.translate(TEXT.sources[:3]))


def damaged(made, **changes):
    tensors = made.tensors()
    about = json.loads(tensors["about"].numpy().tobytes()) | changes
    return tensors | {"about": torch.from_numpy(np.frombuffer(json.dumps(about).encode(), np.uint8).copy())}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: {n: v for n, v in t.items() if n != "about"}, "got none of the name 'about'"),
        (lambda t, m: t | {"about": torch.tensor([1], dtype=torch.uint8)}, "expected JSON in the tensor 'about'"),
        (lambda t, m: damaged(m, format="softq parser 1"), f"expected the format '{FORMAT}', got 'softq parser 1'"),
        (lambda t, m: damaged(m, model={"kind": "gru"}), "does not fit together"),
        (lambda t, m: damaged(m, model=None), "does not fit together"),
        (lambda t, m: damaged(m, model={"hidden": 16, "embedding": 8}), r"as torch.float32 \[.*\], got"),
        (lambda t, m: damaged(m, model={"hidden": 8, "embedding": 8, "layers": 2}), "expected a parameter"),
        (lambda t, m: t | {"model.more": torch.zeros(1)}, "expected no parameter more: the model is another one"),
        (lambda t, m: t | {"model.output.bias": t["model.output.bias"].double()}, "got torch.float64"),
        (lambda t, m: {n: v for n, v in t.items() if n != "source.about"}, "does not fit together"),
    ],
)
def test_what_is_no_translator(tmp_path, change, message):
    made = make()
    tensors = change(made.tensors(), made)
    with pytest.raises(DataError, match=message):
        Translator.from_tensors(tensors)
    save_file(tensors, tmp_path / "model")
    with pytest.raises(DataError, match=r"model is not a translator of softq \(.*\); expected a run's best.safetensors"):
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
        assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in one_by_one], abs=1e-4)
    assert found[12] == found[-1] == Translation("", (), 0.0)
    assert len({one.text for one in found}) > 10


def test_texts_are_taken_as_they_are_needed(monkeypatch):
    monkeypatch.setattr("softq.generation.translator._WINDOW", 2)
    taken = []
    texts = (taken.append(text) or text for text in TEXT.sources)
    found = make().translate(texts, method="greedy")
    next(found)
    assert len(taken) == 2
    assert len(list(found)) == 29


def test_what_is_said_of_a_translation():
    made = make()
    for method in ("beam", "greedy", "sample"):
        for source, one in zip(TEXT.sources, made.translate(TEXT.sources, method=method), strict=True):
            assert len(one.words) <= np.ceil(1.5 * len(source.split())) + 10
            assert one.expected_reward is None
            if "<unk>" not in one.words:
                numbers = made.target.encode(one.text)
                assert made.target.words(numbers) == list(one.words)
                pair = Sentences.pack([made.source.encode(source)]), Sentences.pack([[numbers]])
                assert one.log_prob == pytest.approx(made.model.log_prob(*pair).item(), abs=1e-3)


def test_a_wider_beam_finds_what_is_at_least_as_good():
    made = make()
    narrow, wide = (made.translate_numbers([[5, 6, 7]], beam=size, length_penalty=0.0)[0].log_prob for size in (1, 30))
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
    (one,) = made.translate_numbers([numbers], method="mbr", samples=9, reward=reward, generator=torch.Generator().manual_seed(3))
    assert one.text == made.target.decode(best.sentences.unpack()[0])
    assert one.expected_reward == pytest.approx(float(best.expected_reward))
    assert one.log_prob == pytest.approx(float(drawn.log_model[0, int(best.index)]))


def test_draws_are_the_generators():
    made = make()
    again = [[one.text for one in made.translate(TEXT.sources, method="sample")] for _ in range(2)]
    assert again[0] == again[1]
    other = made.translate(TEXT.sources, method="sample", generator=torch.Generator().manual_seed(1))
    assert [one.text for one in other] != again[0]


def test_unknown_methods():
    with pytest.raises(ModelError, match="method must be one of beam, greedy, sample, mbr, got 'best'"):
        make().translate_numbers([[5]], method="best")
