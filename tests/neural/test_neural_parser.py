"""The neural parser: one sentence at a time or many, projective trees or all, in memory and on the disk."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import softq
from softq.errors import DataError, ModelError
from softq.formats.trees import is_projective
from softq.formats.word_vectors import WordVectors
from softq.lab.worlds import TreeWorld
from softq.neural import BiaffineParser, TreeVocabulary
from softq.neural.parser_settings import ParserSettings

SENTENCES = TreeWorld(crossing=0.3, lemmas=6).sample(6, seed=0)
RELATIONS = sorted({name for one in SENTENCES for name in one.relations})
SMALL = {
    "word_size": 6, "tag_size": 3, "character_size": 4, "filters": 5, "hidden": 7, "layers": 2,
    "arc_size": 8, "relation_size": 4,
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("one_thread")


def make(*, spanning=False, rare=True, seed=0, **sizes):
    vocabulary = TreeVocabulary.of(SENTENCES, RELATIONS)
    if not rare:
        words = dataclasses.replace(vocabulary.words, rare=())
        vocabulary = dataclasses.replace(vocabulary, words=words)
    settings = ParserSettings(**SMALL | sizes)
    parser = BiaffineParser(vocabulary, settings, spanning=spanning, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for biaffine in (parser.biaffine.arc, parser.biaffine.relation):
        torch.nn.init.normal_(biaffine.weight, generator=generator)
    return parser


def heads_of(sentences, width):
    found = torch.zeros(len(sentences), width - 1, dtype=torch.int64)
    for row, sentence in zip(found, sentences, strict=True):
        row[: len(sentence.heads)] = torch.tensor(sentence.heads)
    return found


@pytest.mark.parametrize("spanning", [True, False])
def test_a_sentence_is_scored_alike_alone_and_beside_others(spanning):
    parser = make(spanning=spanning).eval()
    many, views = parser(SENTENCES)
    assert isinstance(many, softq.SpanningTree if spanning else softq.ProjectiveTree)
    assert many.scores.shape[1] % 16 == 0
    heads = heads_of(SENTENCES, many.scores.shape[1])
    relations = parser.relation_scores(views, heads)
    for row, sentence in enumerate(SENTENCES):
        alone, own = parser([sentence])
        size = len(sentence.forms) + 1
        torch.testing.assert_close(many.scores[row, :size, :size], alone.scores[0, :size, :size])
        torch.testing.assert_close(many.log_partition[row], alone.log_partition[0])
        found = parser.relation_scores(own, heads_of([sentence], alone.scores.shape[1]))
        torch.testing.assert_close(relations[row, : size - 1], found[0, : size - 1])


def test_relations_are_scored_by_the_biaffine_form():
    parser = make().eval()
    _, (head, dependent) = parser(SENTENCES[:1])
    heads = heads_of(SENTENCES[:1], head.shape[1])
    found = parser.relation_scores((head, dependent), heads)[0]
    size = parser.settings.relation_size
    weight = parser.biaffine.relation.weight.view(len(RELATIONS), size + 1, size)
    bias = parser.biaffine.relation.bias.view(len(RELATIONS), size + 1)
    for word, top in enumerate(SENTENCES[0].heads):
        with_one = torch.cat([head[0, top], torch.ones(1)])
        form = weight @ dependent[0, word + 1] + bias  # [K, size + 1]
        torch.testing.assert_close(found[word], form @ with_one)


@pytest.mark.parametrize("objective", ["ml", "raml"])
def test_the_gradient_of_a_batch_is_the_sum_over_single_sentences(objective):
    sentences = [one for one in SENTENCES if is_projective(one.heads)][:3]
    parser = make(rare=False, dropout=0.0, input_dropout=0.0).train()

    def gradient(groups):
        parser.zero_grad()
        for group in groups:
            tree, views = parser(group)
            heads = heads_of(group, tree.scores.shape[1])
            target = softq.targets.target_of(
                objective, tree, heads, 0.4 if objective != "ml" else None
            )
            relations = parser.relation_scores(views, heads)
            lengths = [len(one.forms) for one in group]
            own = torch.cat([row[:n, 0] for row, n in zip(relations, lengths, strict=True)])
            (softq.cross_entropy(target, tree).sum() + own.square().sum()).backward()
        return {name: p.grad.clone() for name, p in parser.named_parameters()}

    together, alone = gradient([sentences]), gradient([[one] for one in sentences])
    for name, found in together.items():
        assert found.abs().sum() > 0, name
        scale = float(alone[name].abs().max())
        torch.testing.assert_close(found, alone[name], atol=1e-5 * max(scale, 1), rtol=1e-5)


def test_dropout_is_of_training_alone_and_the_same_at_all_words_of_a_sentence():
    parser = make()
    batch = parser.vocabulary.encode(SENTENCES).batch(range(6))
    parser.eval()
    assert torch.equal(parser(batch)[0].scores, parser(batch)[0].scores)
    ones = torch.ones(len(batch.words.words), 40)
    assert torch.equal(parser._drop(ones, batch), ones)
    parser.train()
    assert not torch.equal(parser(batch)[0].scores, parser(batch)[0].scores)
    dropped = parser._drop(ones, batch)
    for row in range(6):
        mine = dropped[batch.words.packing.row == row]
        assert torch.equal(mine, mine[:1].expand_as(mine))
    assert 0 < float((dropped == 0).float().mean()) < 0.7


def test_trees_and_their_confidences():
    for spanning in (False, True):
        parser = make(spanning=spanning)
        found = parser.parse(SENTENCES, confidences=True)
        for sentence, parse in zip(SENTENCES, found, strict=True):
            (alone,) = parser.parse([sentence], confidences=True)
            assert (parse.heads, parse.relations) == (alone.heads, alone.relations)
            assert parse.confidences == pytest.approx(alone.confidences, abs=1e-4)
            assert len(parse.heads) == len(parse.relations) == len(sentence.forms)
            assert spanning or is_projective(parse.heads)
            assert {*parse.relations} <= {*RELATIONS}
            assert all(0 <= share <= 1 + 1e-5 for share in parse.confidences)
        plain, mbr = parser.parse(SENTENCES), parser.parse(SENTENCES, "mbr")
        assert [one.heads for one in plain] == [one.heads for one in found]
        assert [one.confidences for one in plain] == [()] * 6
        tree, _ = parser.eval()(SENTENCES)
        best = tree.mbr().tolist()
        sizes = [len(one.forms) for one in SENTENCES]
        assert [list(one.heads) for one in mbr] == [
            row[:n] for row, n in zip(best, sizes, strict=True)
        ]
        asked = parser.parse(SENTENCES, reward=softq.rewards.Attachment())
        assert [one.heads for one in asked] == [one.heads for one in mbr]
    assert parser.parse([]) == []


def test_words_begin_with_their_vectors():
    word = SENTENCES[0].forms[0]
    vectors = WordVectors((word.lower(),), np.full((1, 6), 2.0, np.float32))
    parser = BiaffineParser(
        TreeVocabulary.of(SENTENCES, RELATIONS, vectors), ParserSettings(**SMALL)
    )
    assert parser.take_vectors(vectors) >= 1
    number = parser.vocabulary.words.id(word)
    assert parser.encoder.words.weight[number].tolist() == [2.0] * 6
    with pytest.raises(ModelError, match=r"expected vectors of 6 numbers \(word_size\), got 2"):
        parser.take_vectors(WordVectors(("a",), np.ones((1, 2), np.float32)))


def test_a_file_parses_the_same(tmp_path):
    parser = make(spanning=True, seed=2)
    parser.decoding = "mbr"
    parser.save(tmp_path / "parser.safetensors")
    loaded = BiaffineParser.load(tmp_path / "parser.safetensors")
    assert loaded.parse(SENTENCES) == parser.parse(SENTENCES)
    assert (loaded.spanning, loaded.decoding) == (True, "mbr")
    assert loaded.vocabulary.tags == parser.vocabulary.tags


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({"format": "softq parser 2"}, "expected the format 'softq parser neural 1'"),
        ({"relations": ["a", "a"]}, "expected relations, each once"),
        ({"relations": ["a"]}, "expected the parameter biaffine.relation"),
        ({"tags": {"upos": []}}, "no 'xpos'"),
        ({"settings": {"layers": 10**9}}, "expected parameters of 1000000000 layers"),
    ],
)
def test_damaged_files_are_refused(tmp_path, notes, message):
    path = tmp_path / "parser.safetensors"
    make().save(path)
    tensors = load_file(path)
    about = json.loads(tensors["about"].numpy().tobytes()) | notes
    tensors["about"] = torch.from_numpy(np.frombuffer(json.dumps(about).encode(), np.uint8).copy())
    save_file(tensors, path)
    with pytest.raises(DataError, match=f"is not a neural parser of softq .*{message}"):
        BiaffineParser.load(path)
