"""The neural tagger: one sentence at a time or many, with padding or without, in memory and on the disk."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import softq
from softq.errors import DataError, ModelError
from softq.formats.tags import faults
from softq.formats.word_vectors import WordVectors
from softq.neural import SequenceTagger, WordVocabulary
from softq.neural.tagger_settings import TaggerSettings
from softq.neural.words import UNKNOWN_WORD, Packing, like_lengths

LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
SENTENCES = [
    ["Ann", "Lee", "saw", "Rome", "."],
    ["He", "ran"],
    ["Go"],
    ["It", "rains", "in", "the", "internationalised", "park", "again"],
]
SMALL = {"word_size": 6, "character_size": 4, "filters": 5, "hidden": 7}
pytestmark = pytest.mark.usefixtures("one_thread")


def make(sentences=SENTENCES, labels=LABELS, seed=0, rare=True, **options):
    sizes = {name: options.pop(name, SMALL.get(name)) for name in (*SMALL, "layers", "dropout")}
    settings = TaggerSettings(
        **{name: size for name, size in sizes.items() if size is not None},
        crf=options.pop("crf", True),
    )
    vocabulary = WordVocabulary.of(sentences)
    if not rare:
        vocabulary = WordVocabulary(vocabulary.words, vocabulary.characters)
    tagger = SequenceTagger(vocabulary, labels, settings, seed=seed, **options)
    if tagger.transitions is not None:
        torch.nn.init.normal_(tagger.transitions, generator=torch.Generator().manual_seed(seed))
    return tagger


def padded(rows, value=-1):
    width = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (width - len(row))] for row in rows])


def plain_scores(tagger, sentence):
    """The tagger's definition for one sentence, word for word and character for character."""
    vectors = []
    for word in sentence:
        letters = [
            tagger.vocabulary.characters.index(c) + 2 if c in tagger.vocabulary.characters else 1
            for c in word
        ]
        known = [word in tagger.vocabulary.words, word.lower() in tagger.vocabulary.words]
        form = word if known[0] else word.lower()
        number = tagger.vocabulary.words.index(form) + 1 if any(known) else 0
        spelling = tagger.encoder.characters.weight[letters].T
        found = functional.conv1d(
            spelling, tagger.encoder.spelling.weight, tagger.encoder.spelling.bias, padding=1
        )
        vectors.append(torch.cat([tagger.encoder.words.weight[number], found.amax(-1)]))
    hidden = torch.stack(vectors)
    for layer in tagger.layers:
        hidden, _ = layer(hidden)
    return tagger.emissions(hidden)


@pytest.mark.parametrize("layers", [1, 2])
def test_scores_are_those_of_the_definition(layers):
    tagger = make(layers=layers).double().eval()
    sentences = [*SENTENCES, ["ann", "unseen", "ROME", "…"]]
    batch = tagger.vocabulary.encode(sentences).batch(range(len(sentences)))
    scores = tagger.scores(batch)
    for sentence, found in zip(sentences, scores, strict=True):
        torch.testing.assert_close(found[: len(sentence)], plain_scores(tagger, sentence))
        assert (found[len(sentence) :] == 0).all()


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("crf", [True, False])
def test_the_gradient_of_a_batch_is_the_sum_over_single_sentences(objective, crf):
    generator = torch.Generator().manual_seed(1)
    refs = [torch.randint(5, (2, len(one)), generator=generator).tolist() for one in SENTENCES]
    tagger = make(dropout=0.0, rare=False, crf=crf).train()

    def gradient(groups):
        tagger.zero_grad()
        for group in groups:
            p = tagger([SENTENCES[i] for i in group])
            both = torch.stack([padded([refs[i][k] for i in group]) for k in (0, 1)], 1)
            tau = None if objective == "ml" else 0.5
            target = softq.targets.target_of(objective, p, both, tau)
            softq.cross_entropy(target, p).sum().backward()
        return {name: parameter.grad.clone() for name, parameter in tagger.named_parameters()}

    together, alone = gradient([range(4)]), gradient([[i] for i in range(4)])
    assert together.keys() == alone.keys()
    for name, found in together.items():
        assert found.abs().sum() > 0, name
        torch.testing.assert_close(found, alone[name], atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing():
    tagger = make().eval()
    encoded = tagger.vocabulary.encode(SENTENCES)
    alone = tagger.scores(encoded.batch([1]))
    wide = tagger.scores(encoded.batch([0, 1, 3], width=12))  # beside longer words and sentences
    assert wide.shape == (3, 12, 5)
    torch.testing.assert_close(wide[1, :2], alone[0])
    assert (wide[1, 2:] == 0).all()


def test_dropout_and_unknown_words_are_of_training_alone():
    tagger = make()
    batch = tagger.vocabulary.encode(SENTENCES).batch(range(4))
    tagger.eval()
    assert torch.equal(tagger.scores(batch), tagger.scores(batch))
    tagger.train()
    assert not torch.equal(tagger.scores(batch), tagger.scores(batch))
    tagger.predict(SENTENCES)
    assert tagger.training  # as it was


def test_rare_words_are_taken_for_unknown_ones_half_of_the_time():
    vocabulary = WordVocabulary.of([["it", "it", "Rain", "Snow"]], vectors_of({"snow": [0.0] * 6}))
    assert [vocabulary.words[number - 1] for number in vocabulary.rare] == ["Rain"]
    tagger = SequenceTagger(vocabulary, LABELS, TaggerSettings(**SMALL)).train()
    torch.manual_seed(0)
    ids = torch.tensor([vocabulary.id(word) for word in ("it", "Rain", "Snow")]).repeat(4000)
    found = (
        (tagger.encoder.of_words(ids) == tagger.encoder.words.weight[UNKNOWN_WORD])
        .all(1)
        .view(-1, 3)
    )
    assert found.any(0).tolist() == [False, True, False]
    # by chance beyond 4 standard deviations: one time in 15,000 seeds
    assert abs(found[:, 1].double().mean() - 0.5) < 4 * 0.5 / 4000**0.5


def vectors_of(rows):
    return WordVectors(tuple(rows), np.array([*rows.values()], np.float32))


def test_words_begin_with_their_vector_or_that_of_their_lower_case():
    vectors = vectors_of(
        {"ann": [1.0] * 6, "Rome": [2.0] * 6, "rome": [3.0] * 6, "paris": [4.0] * 6}
    )
    vocabulary = WordVocabulary.of(SENTENCES, vectors)
    tagger = SequenceTagger(vocabulary, LABELS, TaggerSettings(**SMALL))
    before = tagger.encoder.words.weight.detach().clone()
    assert tagger.take_vectors(vectors) == 5
    after = tagger.encoder.words.weight
    words = {"Ann": 1.0, "ann": 1.0, "Rome": 2.0, "rome": 3.0, "Paris": 4.0, "ROME": 3.0}
    for word, value in words.items():
        assert after[vocabulary.id(word)].tolist() == [value] * 6
    for word in ("saw", "unseen"):
        assert torch.equal(after[vocabulary.id(word)], before[vocabulary.id(word)])
    assert vocabulary.id("unseen") == UNKNOWN_WORD
    with pytest.raises(ModelError, match=r"expected vectors of 6 numbers \(word_size\), got 3"):
        tagger.take_vectors(vectors_of({"ann": [1.0] * 3}))


@pytest.mark.parametrize("crf", [True, False])
def test_constraints_forbid_what_breaks_the_scheme(crf):
    def broken(tagger):
        return sum(bool(faults(labels, "bio")) for labels in tagger.predict(SENTENCES * 5))

    def possible(tagger):
        p = tagger([["Rome", "ran"]])
        return bool(p.log_prob(torch.tensor([[2, 3]])).isfinite())  # I-LOC I-PER

    free = [make(crf=crf, seed=seed) for seed in range(3)]
    assert sum(map(broken, free)) > 0
    for constraints, in_training in (("decode", True), ("target", True), ("model", False)):
        for seed in range(3):
            tagger = make(crf=crf, seed=seed, scheme="bio", constraints=constraints)
            assert broken(tagger) == 0
            assert possible(tagger.train()) is in_training
            assert not possible(tagger.eval())
    assert isinstance(free[0](SENTENCES), softq.Chain if crf else softq.Independent)


def test_predictions_keep_the_order_and_sentences_may_be_empty():
    tagger = make()
    sentences = [[], *SENTENCES, [], ["Rome"] * 30]
    found = tagger.predict(sentences)
    assert list(map(len, found)) == list(map(len, sentences))
    for sentence, labels in zip(sentences, found, strict=True):
        assert [labels] == tagger.predict([sentence])
    mbr, marginals = tagger.predict(sentences, "mbr"), tagger.predict_marginals(sentences)
    for labels, rows in zip(mbr, marginals, strict=True):
        assert labels == [max(row, key=row.get) for row in rows]
        for row in rows:
            assert sum(row.values()) == pytest.approx(1, abs=1e-5)
    weights = torch.arange(1.0, len(tagger.labels) + 1)
    by_weight = tagger.predict(sentences, reward=softq.rewards.TokenReward.weighted(weights))
    values = dict(zip(tagger.labels, weights.tolist(), strict=True))
    for labels, rows in zip(by_weight, marginals, strict=True):
        assert labels == [max(row, key=lambda one: row[one] * values[one]) for row in rows]
    assert by_weight != mbr
    with pytest.raises(DataError, match="expected sentences of one word or more"):
        tagger([[]])


def test_a_few_steps_teach_it():
    y = [["B-PER", "I-PER", "O", "B-LOC", "O"], ["O", "O"], ["O"], ["O"] * 7]
    tagger = make(labels=LABELS, dropout=0.1)
    refs = padded([[LABELS.index(label) for label in labels] for labels in y])
    optimizer = torch.optim.Adam(tagger.parameters(), lr=0.02)
    torch.manual_seed(0)
    for _ in range(60):
        p = tagger(SENTENCES)
        optimizer.zero_grad()
        softq.cross_entropy(softq.raml(p, refs, tau=0.2), p).mean().backward()
        optimizer.step()
    assert tagger.predict(SENTENCES) == y


# --- on the disk ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crf", [True, False])
def test_a_file_predicts_the_same(tmp_path, crf):
    tagger = make(crf=crf, layers=2, scheme="bio", constraints="decode", seed=3)
    tagger.decoding, tagger.file_scheme = "mbr", "bioes"
    tagger.save(tmp_path / "tagger.safetensors")
    loaded = SequenceTagger.load(tmp_path / "tagger.safetensors")
    sentences = [*SENTENCES, ["new", "Words"]]
    assert loaded.predict(sentences) == tagger.predict(sentences)
    assert loaded.predict_marginals(sentences) == tagger.predict_marginals(sentences)
    assert (loaded.decoding, loaded.file_scheme, loaded.scheme) == ("mbr", "bioes", "bio")
    assert loaded.vocabulary == tagger.vocabulary
    assert not loaded.training


def change(path, **notes):
    tensors = load_file(path)
    about = json.loads(tensors["about"].numpy().tobytes()) | notes
    tensors["about"] = torch.from_numpy(np.frombuffer(json.dumps(about).encode(), np.uint8).copy())
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({"format": "softq tagger 2"}, "expected the format 'softq tagger neural 1'"),
        ({"labels": ["O", "O"]}, "expected one label or more, each once"),
        ({"labels": ["O", "B-X"]}, "expected the parameter"),
        ({"words": ["a", "a"]}, "each word of a vocabulary once"),
        ({"words": ["a"]}, "expected the parameter encoder.words.weight"),
        ({"settings": {"hidden": 10**7}}, "expected the parameter"),
        ({"settings": {"layers": 10**9}}, "expected parameters of 1000000000 layers"),
        ({"settings": {"depth": 1}}, "there is no key 'depth'"),
        ({"constraints": "some"}, "constraints must be one of"),
        ({"decoding": ["mbr"]}, "decoding must be one of"),
        ({"scheme": "bix"}, "scheme must be one of"),
    ],
)
def test_damaged_files_are_refused(tmp_path, notes, message):
    path = tmp_path / "tagger.safetensors"
    make().save(path)
    change(path, **notes)
    with pytest.raises(DataError, match=f"is not a neural tagger of softq .*{message}"):
        SequenceTagger.load(path)


def test_labels_are_named_once():
    with pytest.raises(ModelError, match="expected one label or more, each once"):
        make(labels=[])


# --- batches ----------------------------------------------------------------------------------------------


def test_packed_tokens_are_where_a_padded_batch_has_them():
    lengths = [2, 5, 1, 5, 3]
    packing = Packing.of(lengths, width=7)
    tokens = torch.arange(float(sum(lengths))).unsqueeze(1)
    table = packing.padded(tokens).squeeze(-1)
    assert table.shape == (5, 7)
    assert ((table != 0).sum(1) + (table[:, :1] == 0).sum(1)).tolist() == lengths
    unpacked, sizes = torch.nn.utils.rnn.pad_packed_sequence(packing.packed(tokens))
    order = sorted(range(5), key=lambda row: -lengths[row])
    assert sizes.tolist() == [lengths[row] for row in order]
    assert torch.equal(unpacked[:, :, 0].T, table[order, :5])


def test_batches_hold_each_sentence_once_and_sentences_of_like_length():
    lengths = np.random.default_rng(0).integers(1, 40, 100)
    batches = like_lengths(lengths, 8, np.random.default_rng(1))
    assert sorted(np.concatenate(batches).tolist()) == list(range(100))
    ranges = [(lengths[batch].min(), lengths[batch].max()) for batch in batches]
    assert all(low >= most for (low, _), (_, most) in pairwise(ranges))


def test_long_words_lose_their_middle_and_a_word_may_have_no_characters():
    vocabulary = WordVocabulary.of([["a" * 30 + "b" * 30, "ab"]])
    encoded = vocabulary.encode([["a" * 30 + "b" * 30, "", "c"]])
    assert encoded.sizes.tolist() == [48, 1, 1]
    assert encoded.letters[0].tolist() == [2] * 24 + [3] * 24
    assert encoded.letters[1:, 0].tolist() == [0, 1]
    tagger = SequenceTagger(vocabulary, ["O"], TaggerSettings(**SMALL)).eval()
    assert tagger.scores(encoded.batch([0])).isfinite().all()
