"""Captioners: log-probabilities against plain loops and plain torch, what they say, and what their files hold."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from softq.decode import mbr
from softq.errors import DataError, ModelError, RecipeError
from softq.formats.vocabulary import END, SPECIALS, START, WordVocabulary
from softq.neural.captioner import CaptionDecoding, Captioner, CaptionerSettings
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.search import Said
from softq.neural.translator import ModelSettings, Translator
from softq.rewards import NegativeEditDistance, SentenceBLEU
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

CANDIDATES = Sentences.pack([[[4, 5], [6], [7, 6, 5]], [[7, 5, 4, 4]], [[], [4]]])
TEXTS = [
    "a red circle above a big blue square",
    "the small circle is red",
    "there is a square below the circle",
]


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


VECTORS = draw(3, 6)


def model_of(**options):
    chosen = {"embedding": 5, "hidden": 4, "init": 0.7, "dropout": 0.0} | options
    return ImageCaptioner(6, 8, **chosen).double()


# --- the model --------------------------------------------------------------------------------------------


def by_steps(model, vector, sentence):
    memory = model.encode((vector.unsqueeze(0),))
    state, total = model.start(memory, 1), 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        log_probs, state = model.next_log_probs(memory, state, torch.tensor([before]))
        total = total + log_probs[0, word]
    return total


def by_cells(model, vector, sentence):
    """The equations of Appendix C with torch's own cells: c_0 = W x + b; s_t = LSTM(y_{t-1}, s_{t-1}); softmax(W_s s_t)."""
    cells = []
    for layer in range(model.layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        cell = nn.LSTMCell(
            model.words.embedding_dim if layer == 0 else model.size, model.size
        ).double()
        parameters = {name: getattr(model.decoder[layer], f"{name}_l0").detach() for name in names}
        cell.load_state_dict(parameters)
        cells.append(cell)
    memory = (model.first_cell.weight @ vector + model.first_cell.bias).split(model.size)
    states = [(part.tanh().unsqueeze(0), part.unsqueeze(0)) for part in memory]
    total = 0.0
    for before, word in itertools.pairwise([START, *sentence, END]):
        below = model.words.weight[before].unsqueeze(0)
        for layer, cell in enumerate(cells):
            states[layer] = cell(below, states[layer])
            below = states[layer][0]
        scores = model.output.weight @ below[0] + model.output.bias
        total += float(
            scores[word] - scores[END:].logsumexp(0)
        )  # neither padding nor the start is ever said
    return total


KINDS = pytest.mark.parametrize(
    "options", [{}, {"layers": 3}, {"tie": True, "embedding": 4}], ids=["plain", "deep", "tied"]
)


@KINDS
def test_ragged_candidates_equal_a_loop_over_them_with_gradients(options):
    model = model_of(**options)
    vectors = VECTORS.clone().requires_grad_()
    found = model.log_prob((vectors,), CANDIDATES)
    weights = draw(*found.shape, seed=1)
    (weights * found).sum().backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters()} | {
        "vectors": vectors.grad.clone()
    }
    model.zero_grad()
    vectors.grad = None
    expected = 0.0
    for b, candidates in enumerate(CANDIDATES.unpack()):
        for k, sentence in enumerate(candidates):
            one = by_steps(model, vectors[b], sentence)
            torch.testing.assert_close(found[b, k], one)
            expected = expected + weights[b, k] * one
    expected.backward()
    for name, value in [*model.named_parameters(), ("vectors", vectors)]:
        torch.testing.assert_close(gradients[name], value.grad, msg=name)
    assert not found[1, 1:].any()  # what is missing counts nothing


@KINDS
@torch.no_grad()
def test_the_equations_of_the_paper(options):
    model = model_of(**options)
    found = model.log_prob((VECTORS,), CANDIDATES)
    for b, candidates in enumerate(CANDIDATES.unpack()):
        for k, sentence in enumerate(candidates):
            assert float(found[b, k]) == pytest.approx(
                by_cells(model, VECTORS[b], sentence), abs=1e-12
            )


@torch.no_grad()
def test_what_stands_behind_an_end_never_matters():
    model = model_of(layers=2)
    found = model.log_prob((VECTORS,), CANDIDATES)
    wider = Sentences(nn.functional.pad(CANDIDATES.tokens, (0, 2), value=7), CANDIDATES.lengths)
    torch.testing.assert_close(model.log_prob((VECTORS,), wider), found)
    torch.testing.assert_close(
        model.log_prob((VECTORS[1:],), Sentences(*(part[1:] for part in CANDIDATES))), found[1:]
    )


def test_tied_weights_are_one():
    tied, own = model_of(tie=True, embedding=4), model_of(embedding=4)
    assert tied.output.weight is tied.words.weight
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (own, tied)]
    assert count[0] - count[1] == 8 * 4
    with pytest.raises(
        ModelError,
        match=r"to tie the output to embeddings they must have the shape \[8, 4\], got \[8, 5\]",
    ):
        model_of(tie=True)


def test_parameters_begin_uniform_and_follow_from_the_seed():
    first, again, other = (ImageCaptioner(40, 50, init=0.2, seed=seed) for seed in (1, 1, 2))
    for one, same, else_ in zip(
        first.parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(one, same)
        assert not torch.equal(one, else_)
        assert float(one.detach().abs().max()) <= 0.2
    assert float(first.words.weight.detach().std()) == pytest.approx(0.2 / math.sqrt(3), rel=0.05)


@torch.no_grad()
def test_dropout_is_of_training_alone():
    model = model_of(layers=2, dropout=0.5)
    calm = model_of(layers=2)
    for name, value in calm.named_parameters():
        assert torch.equal(value, dict(model.named_parameters())[name])
    expected = calm.log_prob((VECTORS,), CANDIDATES)
    torch.testing.assert_close(model.eval().log_prob((VECTORS,), CANDIDATES), expected)
    model.train()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, second = (model.log_prob((VECTORS,), CANDIDATES) for _ in range(2))
        torch.manual_seed(0)
        assert torch.equal(model.log_prob((VECTORS,), CANDIDATES), first)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, expected)


def test_dropout_is_of_features_words_and_states_of_every_layer():
    model, shapes = model_of(layers=2, dropout=0.5).train(), []
    drop = model._drop

    def watched(vectors):
        shapes.append(tuple(vectors.shape))
        return drop(vectors)

    model._drop = watched
    with torch.random.fork_rng():
        model.log_prob((VECTORS,), CANDIDATES)
    assert shapes == [
        (3, 6),
        (5, 9, 5),
        (5, 9, 4),
        (5, 9, 4),
    ]  # five steps, three candidates of three images


@pytest.mark.parametrize("shape", [(3, 5), (3, 7), (6,), (2, 3, 6)])
def test_features_of_a_wrong_size(shape):
    with pytest.raises(
        ModelError,
        match=rf"expected features \[B, 6\], as this model was made for, got \[{', '.join(map(str, shape))}\]",
    ):
        model_of().encode((torch.zeros(shape).double(),))


@torch.no_grad()
def everything(model, vector, longest):
    """All sentences of up to so many words with their log-probabilities."""
    words = range(SPECIALS - 1, model.vocab)  # the unknown word may be said
    sentences = [
        list(chosen)
        for length in range(longest + 1)
        for chosen in itertools.product(words, repeat=length)
    ]
    found = model.log_prob((vector.unsqueeze(0),), Sentences.pack([sentences]))[0]
    return dict(zip(map(tuple, sentences), found.tolist(), strict=True))


@pytest.mark.parametrize("options", [{}, {"layers": 2}])
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_beam_search_finds_the_best_of_all_sentences(options, penalty):
    model = model_of(init=1.5, **options)
    longest = 3
    found = model.generate(
        (VECTORS,), size=130, max_length=longest, length_penalty=penalty
    )  # wider than 5 words to the third
    for b, vector in enumerate(VECTORS):
        space = everything(model, vector, longest)
        ranked = sorted(
            space, key=lambda words: space[words] / (len(words) + 1) ** penalty, reverse=True
        )
        assert list(map(tuple, found.sentences.unpack()[b])) == ranked[:130]
        assert found.log_model[b].tolist() == pytest.approx(
            [space[words] for words in ranked[:130]], abs=1e-5
        )


@torch.no_grad()
def test_probabilities_of_all_sentences_sum_to_one():
    model = model_of(init=1.0)
    model.output.bias[END] += 6  # so that few are longer
    total = sum(math.exp(value) for value in everything(model, VECTORS[0], 5).values())
    assert 0.99 < total < 1 + 1e-9


def test_draws_have_the_probabilities_of_the_model():
    model = model_of(init=1.0)
    with torch.no_grad():
        model.output.bias[END] += 2
    found = model.generate(
        (VECTORS[:1],),
        method="sample",
        size=4000,
        max_length=1,
        generator=torch.Generator().manual_seed(0),
    ).sentences.unpack()[0]
    space = everything(model, VECTORS[0], 1)
    share = found.count([]) / len(found)
    p = math.exp(space[()])
    assert abs(share - p) < 5 * math.sqrt(
        p * (1 - p) / len(found)
    )  # fails by chance once in a million times
    greedy = model.generate((VECTORS,), method="greedy", max_length=4)
    one = model.generate((VECTORS,), size=1, max_length=4)
    assert greedy.sentences.unpack() == one.sentences.unpack()


def test_a_caption_has_fifty_words_at_most_unless_told():
    model = model_of()
    with torch.no_grad():
        model.output.bias[END] -= 1000
    assert model.generate((VECTORS,), method="greedy").lengths.tolist() == [[50]] * 3


# --- captioners -------------------------------------------------------------------------------------------


FEATURES = draw(9, 6, dtype=torch.float32, seed=3).numpy()


def make(encoder="", **settings):
    """A captioner that knows its words and nothing else, but is sure of what it says, and says something."""
    vocabulary = WordVocabulary.fit(TEXTS)
    options = CaptionerSettings(**{"embedding": 8, "hidden": 8, "init": 0.7, **settings})
    model = options.build(6, len(vocabulary), seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
        model.output.bias[END] -= 6
    return Captioner(
        model,
        options,
        vocabulary,
        CaptionDecoding(beam=3, length_penalty=0.5, max_words=7),
        encoder,
    )


@pytest.mark.parametrize("settings", [{}, {"tie": True}, {"layers": 2}, {"encoder": "vgg16-fc7"}])
def test_what_is_saved_is_loaded(tmp_path, settings):
    made = make(**settings)
    made.save(tmp_path / "model")
    again = Captioner.load(tmp_path / "model")
    assert (again.settings, again.decoding, again.encoder, again.features) == (
        made.settings,
        made.decoding,
        made.encoder,
        6,
    )
    assert again.caption(FEATURES) == made.caption(FEATURES)
    assert not again.model.training
    assert Captioner.from_tensors(made.tensors()).caption(FEATURES[:2]) == made.caption(
        FEATURES[:2]
    )
    assert (
        json.loads(load_file(tmp_path / "model")["about"].numpy().tobytes())["format"]
        == "softq captioner 1"
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
        (
            lambda t, m: {n: v for n, v in t.items() if n != "about"},
            "expected the tensors of a captioner, got none of the name 'about'",
        ),
        (
            lambda t, m: t | {"about": torch.tensor([1], dtype=torch.uint8)},
            "expected JSON in the tensor 'about' of a captioner",
        ),
        (
            lambda t, m: damaged(m, format="softq captioner 2"),
            "expected the format 'softq captioner 1', got 'softq captioner 2'",
        ),
        (
            lambda t, m: damaged(m, model={"kind": "lstm"}),
            "settings and words of a captioner, got what does not fit together",
        ),
        (lambda t, m: damaged(m, model=None), "does not fit together"),
        (lambda t, m: damaged(m, features=None), "does not fit together"),
        (lambda t, m: damaged(m, features="many"), "does not fit together"),
        (lambda t, m: damaged(m, features=-6), "does not fit together"),
        (
            lambda t, m: damaged(m, features=7),
            r"the parameter first_cell.weight as torch.float32 \[8, 7\], got torch.float32 \[8, 6\]",
        ),
        (lambda t, m: damaged(m, decoding={"beam": 0}), "does not fit together"),
        (
            lambda t, m: damaged(m, model={"hidden": 16, "embedding": 8}),
            r"as torch.float32 \[.*\], got",
        ),
        (
            lambda t, m: damaged(m, model={"hidden": 8, "embedding": 8, "layers": 2}),
            "expected a parameter decoder",
        ),
        (
            lambda t, m: t | {"model.more": torch.zeros(1)},
            "expected no parameter more: the model is another one",
        ),
        (
            lambda t, m: t | {"model.output.bias": t["model.output.bias"].double()},
            "got torch.float64",
        ),
        (
            lambda t, m: {n: v for n, v in t.items() if not n.startswith("words.")},
            "does not fit together",
        ),
    ],
)
def test_what_is_no_captioner(tmp_path, change, message):
    made = make()
    tensors = change(made.tensors(), made)
    with pytest.raises(DataError, match=message):
        Captioner.from_tensors(tensors)
    save_file(tensors, tmp_path / "model")
    with pytest.raises(
        DataError,
        match=r"model is not a captioner of softq \(.*\); expected a run's best.safetensors or a file of Capt",
    ):
        Captioner.load(tmp_path / "model")


def test_files_that_are_none(tmp_path):
    (tmp_path / "text").write_text("hello")
    for path in (tmp_path / "text", tmp_path / "nothing", tmp_path):
        with pytest.raises(DataError, match="is not a captioner of softq"):
            Captioner.load(path)
    words = WordVocabulary.fit(TEXTS)
    settings = ModelSettings(embedding=4, hidden=4)
    Translator(settings.build(len(words), len(words)), settings, words, words).save(
        tmp_path / "translator"
    )
    with pytest.raises(
        DataError, match="expected the format 'softq captioner 1', got 'softq translator 1'"
    ):
        Captioner.load(tmp_path / "translator")
    make().save(tmp_path / "captioner")
    with pytest.raises(
        DataError, match=r"is not a translator of softq \(expected the format 'softq translator 1'"
    ):
        Translator.load(tmp_path / "captioner")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tie": True, "embedding": 4, "hidden": 8}, "tie needs embedding = hidden, got 4 and 8"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"init": 0.0}, "init must be a positive number"),
    ],
)
def test_settings_that_make_no_model(settings, message):
    with pytest.raises(RecipeError, match=message):
        CaptionerSettings(**settings)
    with pytest.raises(RecipeError, match="max_words must be at least 1"):
        CaptionDecoding(max_words=0)


def test_which_parameters_fit():
    usual = CaptionerSettings()
    assert usual.same_parameters(CaptionerSettings(dropout=0.0, init=1.0))
    for other in ({"hidden": 8}, {"embedding": 8}, {"layers": 2}, {"tie": True, "embedding": 512}):
        assert not usual.same_parameters(CaptionerSettings(**other))
    assert (
        str(CaptionerSettings(hidden=8, embedding=8, tie=True))
        == "embedding 8, hidden 8, 1 layers, tied"
    )


@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_batches_do_not_matter(method):
    made = make()
    one_by_one = [
        made.caption(FEATURES[number : number + 1], method=method)[0] for number in range(9)
    ]
    assert len({said.text for said in one_by_one}) > 3
    for batch_size in (1, 4, None):
        found = made.caption(FEATURES, method=method, batch_size=batch_size)
        assert [said.words for said in found] == [said.words for said in one_by_one]
        assert [said.log_prob for said in found] == pytest.approx(
            [said.log_prob for said in one_by_one], abs=1e-4
        )
    assert made.caption(FEATURES[:0]) == []


def test_what_is_said_is_what_the_model_says():
    made = make()
    for method in ("beam", "greedy", "sample"):
        for vector, said in zip(FEATURES, made.caption(FEATURES, method=method), strict=True):
            assert len(said.words) <= 7
            assert said.expected_reward is None
            assert said.text.split() == list(said.words)
            if "<unk>" not in said.words:
                numbers = made.vocabulary.encode(said.text)
                expected = made.model.log_prob(
                    (torch.from_numpy(vector).unsqueeze(0),), Sentences.pack([[numbers]])
                )
                assert said.log_prob == pytest.approx(expected.item(), abs=1e-3)


def test_the_models_own_beam_unless_told():
    made = make()
    expected = made.model.generate(
        (torch.from_numpy(FEATURES),), size=3, max_length=7, length_penalty=0.5
    )
    usual, told = made.caption(FEATURES), made.caption(FEATURES, beam=3, length_penalty=0.5)
    assert usual == told
    assert [said.words for said in usual] == [
        tuple(made.vocabulary.words(several[0])) for several in expected.sentences.unpack()
    ]
    assert made.caption(FEATURES, beam=1, length_penalty=0.0) != usual
    narrow, wide = (made.caption(FEATURES, beam=size, length_penalty=0.0) for size in (1, 100))
    assert sum(said.log_prob for said in wide) > sum(said.log_prob for said in narrow)


def test_draws_are_the_generators():
    made = make()
    first, again = (made.caption(FEATURES, method="sample") for _ in range(2))
    assert first == again
    assert (
        made.caption(FEATURES, method="sample", generator=torch.Generator().manual_seed(1)) != first
    )

    def own():
        return [torch.Generator().manual_seed(number) for number in range(9)]

    apart = made.caption(FEATURES, method="sample", generator=own())
    for batch_size in (1, 4):  # one for each image: batches do not matter
        found = made.caption(FEATURES, method="sample", generator=own(), batch_size=batch_size)
        assert [said.words for said in found] == [said.words for said in apart]
    assert [
        said.words for said in made.caption(FEATURES[4:], method="sample", generator=own()[4:])
    ] == [said.words for said in apart[4:]]
    cold = made.caption(FEATURES, method="sample", temperature=1e-4)
    assert [said.words for said in cold] == [
        said.words for said in made.caption(FEATURES, method="greedy")
    ]
    narrow = made.caption(FEATURES, method="sample", top_p=1e-9)
    assert [said.words for said in narrow] == [said.words for said in cold]


@pytest.mark.parametrize("reward", [None, NegativeEditDistance()])
def test_minimum_bayes_risk_is_of_the_draws(reward):
    made = make()
    drawn = made.model.generate(
        (torch.from_numpy(FEATURES[:1]),),
        method="sample",
        size=9,
        max_length=7,
        generator=torch.Generator().manual_seed(3),
    )
    best = mbr(drawn, reward or SentenceBLEU())
    (said,) = made.caption(
        FEATURES[:1],
        method="mbr",
        samples=9,
        reward=reward,
        generator=torch.Generator().manual_seed(3),
    )
    assert said.text == made.vocabulary.decode(best.sentences.unpack()[0])
    assert said.expected_reward == pytest.approx(float(best.expected_reward))
    assert said.log_prob == pytest.approx(float(drawn.log_model[0, int(best.index)]))


def test_features_may_be_of_any_precision():
    made = make()
    half = FEATURES.astype(np.float16)
    expected = made.caption(half.astype(np.float32))
    assert made.caption(half) == expected
    assert made.caption(half.astype(np.float64)) == expected
    assert half.dtype == np.float16
    half.flags.writeable = False  # as a mapped file may be
    assert made.caption(half) == expected


def test_what_cannot_be_captioned():
    with pytest.raises(
        DataError, match=r"expected features of 6 numbers for each image, got \[9, 5\]"
    ):
        make().caption(FEATURES[:, :5])
    with pytest.raises(
        DataError, match=r"expected features of vgg16-fc7 of 6 numbers for each image, got \[6\]"
    ):
        make(encoder="vgg16-fc7").caption(FEATURES[0])
    with pytest.raises(
        ModelError, match="method must be one of beam, greedy, sample, mbr, got 'best'"
    ):
        make().caption(FEATURES, method="best")


def test_captioning_leaves_a_model_as_it_was():
    made = make(dropout=0.5)
    expected = made.caption(FEATURES)
    made.model.train()
    assert made.caption(FEATURES) == expected
    assert made.model.training
    assert made.to("cpu") is made
    assert isinstance(expected[0], Said)
