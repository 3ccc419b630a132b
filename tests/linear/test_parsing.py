import math

import numpy as np
import pytest
import torch

import arc_twin
import oracle
from softq.errors import DataError, OutputError, TemperatureError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import refusing
from softq.kernels.features import arcs as arc_features
from softq.linear import parser_training as fit
from softq.linear import parsing as target_module
from softq.linear.features import ArcIndex
from softq.linear.lbfgs import LBFGS
from softq.linear.parser_training import Descent, EncodedTreebank, ParserObjective, ParserSettings
from softq.linear.parsing import Parser, Trees, TreeTargets

TEMPLATES = (
    "head.upos|dep.upos",
    "head.word|dep.word",
    "head.upos|between.upos|dep.upos",
    "dep.upos|dep.upos[1]",
)
RELATION_TEMPLATES = ("head.upos|dep.upos", "dep.word", "between.upos")
OBJECTIVES = [("ml", None), ("raml", 0.7), ("sqdml", 1.3)]


def sentence(rng, length):
    def column(values):
        return tuple(str(value) for value in rng.choice(values, length))

    return TreeSentence(
        column(("a", "b", "c", "d")),
        ("_",) * length,
        column(("N", "V", "P")),
        ("_",) * length,
        ("_",) * length,
        (),
        (),
    )


def random_tree(rng, length, projective):
    allowed = oracle.trees(length, multiroot=False, projective=projective)
    return allowed[rng.integers(len(allowed))]


def treebank(rng, lengths, references=1, *, projective=True):
    sentences = [sentence(rng, n) for n in lengths]
    index = ArcIndex.fit(sentences, TEMPLATES, RELATION_TEMPLATES, min_freq=1)
    heads = [
        np.array([random_tree(rng, n, projective) for _ in range(references)], np.int64)
        for n in lengths
    ]
    relations = [
        [tuple(str(r) for r in rng.choice(("x", "y", "z"), n)) for _ in range(references)]
        for n in lengths
    ]
    weights = [rng.random(references) + 0.1 for _ in lengths]
    trees = Trees(heads, relations, weights)
    return sentences, EncodedTreebank(index, index.encode(sentences), trees, trees)


def by_enumeration(bank, sentences, weights, objective, tau, projective):
    """Cross-entropy and its derivatives, tree by tree."""
    loss, gradient, entropy = 0.0, np.zeros_like(weights), 0.0
    for number, words in enumerate(sentences):
        n = len(words.forms)
        trees = oracle.trees(n, multiroot=False, projective=projective)
        counts = []
        for tree in trees:
            count = np.zeros(len(weights))
            for dependent, head in enumerate(tree, 1):
                np.add.at(
                    count,
                    list(
                        arc_twin.places(bank.index, TEMPLATES, words, head, dependent, len(weights))
                    ),
                    1.0,
                )
            counts.append(count)
        model = oracle.probabilities([float(count @ weights) for count in counts])
        references = bank.possible.heads[number]
        shares = bank.possible.weights[number] / bank.possible.weights[number].sum()
        rewards = [
            [oracle.matches(tree, reference) for tree in trees] for reference in references.tolist()
        ]
        if objective == "ml":
            target = [
                sum(
                    s
                    for s, r in zip(shares, references.tolist(), strict=True)
                    if tuple(r) == tuple(tree)
                )
                for tree in trees
            ]
        else:
            target = (oracle.raml if objective == "raml" else oracle.sqdml)(rewards, shares, tau)
        loss += oracle.cross_entropy(target, model)
        gradient += sum((p - q) * count for p, q, count in zip(model, target, counts, strict=True))
        entropy += oracle.entropy(target)
    return loss, gradient, entropy


@pytest.mark.parametrize("spanning", [False, True], ids=["projective", "spanning"])
@pytest.mark.parametrize(("objective", "tau"), OBJECTIVES, ids=[name for name, _ in OBJECTIVES])
@pytest.mark.parametrize("references", [1, 3])
def test_objective_and_gradient_by_enumeration(objective, tau, spanning, references):
    rng = np.random.default_rng(0)
    sentences, bank = treebank(rng, (1, 3, 4, 2), references, projective=not spanning)
    settings = ParserSettings(objective, tau, spanning=spanning, bits=7, relation_bits=4)
    whole = ParserObjective(bank, settings, c2=0.3)
    point = torch.from_numpy(rng.standard_normal(whole.size))
    gradient = torch.empty_like(point)
    value = whole(point, gradient)
    loss, slopes, entropy = by_enumeration(
        bank, sentences, point.numpy(), objective, tau, not spanning
    )
    assert whole.cross_entropy == pytest.approx(loss, rel=1e-5)  # targets are float32
    assert value == pytest.approx(loss + 0.3 * float(point.square().sum()), rel=1e-5)
    np.testing.assert_allclose(gradient.numpy(), slopes + 0.6 * point.numpy(), atol=2e-5)
    if references == 1 or objective != "raml":
        assert whole.kl == pytest.approx(loss - entropy, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("spanning", [False, True], ids=["projective", "spanning"])
def test_gradient_by_finite_differences(spanning):
    rng = np.random.default_rng(2)
    _, bank = treebank(rng, (4, 5, 5), 2, projective=not spanning)
    whole = ParserObjective(
        bank, ParserSettings("sqdml", 0.8, spanning=spanning, bits=8, relation_bits=4), c2=0.1
    )
    point = torch.from_numpy(0.5 * rng.standard_normal(whole.size))
    gradient, other = torch.empty_like(point), torch.empty_like(point)
    whole(point, gradient)
    for _ in range(3):
        direction = torch.from_numpy(rng.standard_normal(whole.size))
        slope = (
            whole(point + 1e-5 * direction, other) - whole(point - 1e-5 * direction, other)
        ) / 2e-5
        assert float(gradient @ direction) == pytest.approx(slope, rel=1e-5, abs=1e-4)


def test_targets_are_the_librarys_and_remembered_or_not_the_same(monkeypatch):
    rng = np.random.default_rng(3)
    _, bank = treebank(rng, (3, 5, 1, 4), 2)
    order = np.array([2, 0, 3, 0])
    remembering = TreeTargets(bank.trees, "raml", 0.4)
    first = remembering.expected(order, 5)
    again = remembering.expected(order[::-1].copy(), 5)
    torch.testing.assert_close(first, again.flip(0), rtol=0, atol=0)
    monkeypatch.setattr(target_module, "_REMEMBERED", 0)
    forgetful = TreeTargets(bank.trees, "raml", 0.4)
    torch.testing.assert_close(forgetful.expected(order, 5), first)
    assert forgetful.entropy(order) == pytest.approx(remembering.entropy(order), rel=1e-6)
    for row, number in enumerate(order):
        n = bank.trees.heads[number].shape[1]
        torch.testing.assert_close(first[row, : n + 1, 1 : n + 1].sum(0), torch.ones(n))
        assert not first[row, n + 1 :].any()


def test_the_roots_relation_is_the_roots_alone():
    rng = np.random.default_rng(12)
    sentences, bank = treebank(rng, (4, 5, 3))
    assert bank.root_relation is None  # relations are by chance
    named = [
        [
            tuple("root" if h == 0 else r for h, r in zip(t, n, strict=True))
            for t, n in zip(trees.tolist(), names, strict=True)
        ]
        for trees, names in zip(bank.trees.heads, bank.trees.relations, strict=True)
    ]
    trees = bank.trees._replace(relations=named)
    bank = EncodedTreebank(bank.index, bank.codes, trees, trees)
    assert bank.root_relation == "root"
    parser = Descent(
        bank, ParserSettings(bits=6, relation_bits=4), 0.1, 0.1
    ).parser()  # which knows nothing yet
    for parse in parser.parse(sentences):
        assert [name == "root" for name in parse.relations] == [head == 0 for head in parse.heads]
    assert Parser.from_tensors(tensors_of(parser), parser.notes()).root_relation == "root"


def test_raml_becomes_ml_as_tau_vanishes():
    rng = np.random.default_rng(4)
    _, bank = treebank(rng, (3, 5), 2)
    order = np.arange(2)
    torch.testing.assert_close(
        TreeTargets(bank.trees, "raml", 0.02).expected(order, 5),
        TreeTargets(bank.trees, "ml").expected(order, 5),
    )


def test_bad_references_are_told_with_their_sentence():
    trees = Trees.single([[0, 1], [2, 1]])
    with pytest.raises(
        OutputError, match=r"heads must form a tree .* got \[2, 1\] .*of sentences 0, 1 and others"
    ):
        TreeTargets(trees).expected(np.array([0, 1]), 2)
    with pytest.raises(OutputError, match="crosses"):
        TreeTargets(Trees.single([[3, 0, 2, 2, 3, 2], [3, 4, 0, 3]])).expected(np.array([0, 1]), 6)
    with pytest.raises(TemperatureError, match="raml needs a temperature"):
        TreeTargets(trees, "raml").expected(np.array([0]), 2)


def train(bank, settings, epochs, rate=0.5):
    descent = Descent(bank, settings, rate, 0.5)
    losses = []
    for _ in range(epochs):
        found = [descent.step(np.arange(first, len(bank), 2)) for first in range(2)]
        losses.append(np.sum(found, 0))
    return descent, np.array(losses)


@pytest.mark.parametrize("spanning", [False, True], ids=["projective", "spanning"])
def test_descent_learns_trees_and_relations(spanning):
    rng = np.random.default_rng(5)
    sentences, bank = treebank(rng, (3, 5, 4, 5), projective=not spanning)
    settings = ParserSettings(bits=12, relation_bits=8, spanning=spanning)
    whole = ParserObjective(bank, settings)
    start = torch.zeros(whole.size)
    descent, losses = train(bank, settings, 1)
    assert losses[0, 0] == pytest.approx(
        whole(start, torch.empty_like(start)), abs=1.0
    )  # the second batch has moved already
    descent, losses = train(bank, settings, 100)
    assert (losses[-1] < 0.1 * losses[0]).all()
    parses = descent.parser().parse(sentences)
    assert [parse.heads for parse in parses] == [
        tuple(heads[0].tolist()) for heads in bank.trees.heads
    ]
    assert [parse.relations for parse in parses] == [
        tuple(names[0]) for names in bank.trees.relations
    ]


def test_a_first_step_is_that_of_the_objectives_gradient():
    rng = np.random.default_rng(6)
    _, bank = treebank(rng, (3, 5, 4), 2)
    settings = ParserSettings("raml", 0.6, bits=8, relation_bits=4)
    descent = Descent(bank, settings, 0.25, 0.1)
    loss, _ = descent.step(np.arange(3))
    whole = ParserObjective(bank, settings)
    gradient = torch.empty(whole.size)
    assert loss == pytest.approx(whole(torch.zeros(whole.size), gradient), rel=1e-6)
    moved = gradient.abs() > 1e-4
    step = 0.25 * gradient / (fit._SQUARES + gradient.square()).sqrt()
    np.testing.assert_allclose(descent.weights[moved], -step[moved], rtol=1e-3)


def test_relations_are_a_weighted_cross_entropy():
    rng = np.random.default_rng(7)
    _, bank = treebank(rng, (3, 2), 3)
    descent = Descent(bank, ParserSettings(bits=6, relation_bits=4), 0.1, 0.1, trees=False)
    trees, relations = descent.step(np.arange(2))
    assert trees == 0.0
    assert relations == pytest.approx(
        5 * math.log(3), rel=1e-6
    )  # five words, three relations, however many references


def test_descent_goes_on_from_its_state():
    rng = np.random.default_rng(8)
    _, bank = treebank(rng, (3, 5, 4, 2))
    settings = ParserSettings("raml", 0.5, bits=8, relation_bits=5)
    whole, _ = train(bank, settings, 3)
    first, _ = train(bank, settings, 2)
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    second = Descent(bank, settings, 0.5, 0.5)
    second.load_state(kept)
    for part in range(2):
        second.step(np.arange(part, 4, 2))
    np.testing.assert_array_equal(second.parser().weights, whole.parser().weights)
    np.testing.assert_array_equal(second.parser().relation_weights, whole.parser().relation_weights)


def test_lbfgs_finds_the_minimum():
    rng = np.random.default_rng(9)
    _, bank = treebank(rng, (3, 4, 5), 2)
    whole = ParserObjective(bank, ParserSettings("raml", 0.5, bits=8, relation_bits=4), c2=0.5)
    search = LBFGS(torch.zeros(whole.size), whole, tolerance=1e-3)
    for _ in range(100):
        search.iterate()
    assert search.status == "converged"
    descent = Descent(
        bank, ParserSettings("raml", 0.5, bits=8, relation_bits=4), 0.1, 0.1, trees=False
    )
    descent.step(np.arange(3))
    assert np.array_equal(descent.parser(search.point.numpy()).weights, search.point.numpy())


@pytest.fixture(scope="module", params=[False, True], ids=["projective", "spanning"])
def random_parser(request):
    rng = np.random.default_rng(10)
    sentences, bank = treebank(rng, (4, 1, 5, 3))
    weights = rng.standard_normal(1 << 8).astype(np.float32)
    relation_weights = rng.standard_normal((1 << 6, 3)).astype(np.float32)
    return sentences, Parser(bank.index, weights, ("x", "y", "z"), relation_weights, request.param)


def test_parses_by_enumeration(random_parser):
    sentences, parser = random_parser
    modes, rules = (
        parser.parse(sentences, decoding, confidences=True) for decoding in ("mode", "mbr")
    )
    for words, mode, rule, marginals in zip(
        sentences, modes, rules, parser.marginals(sentences), strict=True
    ):
        n = len(words.forms)
        trees = oracle.trees(n, multiroot=False, projective=not parser.spanning)
        scores = [
            sum(
                float(
                    parser.weights[
                        list(
                            arc_twin.places(
                                parser.index, TEMPLATES, words, h, d, len(parser.weights)
                            )
                        )
                    ].sum()
                )
                for d, h in enumerate(tree, 1)
            )
            for tree in trees
        ]
        probabilities = oracle.probabilities(scores)
        right = [
            sum(p for p, t in zip(probabilities, trees, strict=True) if t[d - 1] == h)
            for d in range(1, n + 1)
            for h in range(n + 1)
        ]
        expected = np.array(right).reshape(n, n + 1).T
        np.testing.assert_allclose(marginals[:, 1:], expected, atol=1e-5)
        assert tuple(mode.heads) == tuple(trees[int(np.argmax(scores))])
        gains = [sum(expected[h, d] for d, h in enumerate(tree)) for tree in trees]
        assert sum(expected[h, d] for d, h in enumerate(rule.heads)) == pytest.approx(
            max(gains), rel=1e-5
        )
        np.testing.assert_allclose(
            mode.confidences, [expected[h, d] for d, h in enumerate(mode.heads)], atol=1e-5
        )
        for dependent, (head, name) in enumerate(zip(mode.heads, mode.relations, strict=True), 1):
            places = list(
                arc_twin.places(
                    parser.index,
                    RELATION_TEMPLATES,
                    words,
                    head,
                    dependent,
                    len(parser.relation_weights),
                )
            )
            assert name == parser.relations[int(parser.relation_weights[places].sum(0).argmax())]


def test_empty_sentences_and_none_at_all(random_parser):
    sentences, parser = random_parser
    empty = TreeSentence((), (), (), (), (), (), ())
    found = parser.parse([empty, sentences[0], empty])
    assert found[0].heads == found[2].heads == ()
    assert found[1] == parser.parse(sentences[:1])[0]
    assert parser.parse([]) == []


def test_batches_do_not_matter(random_parser, monkeypatch):
    sentences, parser = random_parser
    whole = parser.parse(sentences)
    monkeypatch.setattr("softq.linear.parsing._BATCH_CELLS", 1)
    assert parser.parse(sentences) == whole


def tensors_of(parser):
    return {name: torch.from_numpy(np.array(array)) for name, array in parser.tensors().items()}


def test_a_parser_comes_back_from_its_tensors(random_parser):
    sentences, parser = random_parser
    again = Parser.from_tensors(tensors_of(parser), parser.notes())
    assert again.index == parser.index
    assert again.parse(sentences, confidences=True) == parser.parse(sentences, confidences=True)
    none = np.zeros((2 * arc_features.BANKS, 0), np.float32)
    bare = Parser(parser.index, parser.weights, (), none)
    assert all(parse.relations == () for parse in bare.parse(sentences))
    assert Parser.from_tensors(tensors_of(bare), bare.notes()).relations == ()


@pytest.mark.parametrize(
    ("tensors", "notes", "message"),
    [
        ({"weights": torch.zeros(64, dtype=torch.float64)}, {}, "expected weights of float32"),
        ({"weights": torch.zeros(100)}, {}, r"expected 2\^bits weights, got 100"),
        ({"relation_weights": torch.zeros(64, 2)}, {}, "weights of 3 relations, got 2"),
        ({"relation_weights": torch.zeros(8, 3)}, {}, r"expected 2\^bits relation_weights, got 8"),
        ({"index.word": torch.tensor([255], dtype=torch.uint8)}, {}, "decode"),
        ({}, {"relations": None}, "relations must be a list of strings"),
        ({}, {"root_relation": "nobody's"}, "the relation under the root must be one of None, 'x'"),
        (
            {},
            {
                "index": {
                    "columns": ["word"],
                    "templates": ["dep.upos"],
                    "relation_templates": ["dep.word"],
                }
            },
            "no parser: ",
        ),
    ],
)
def test_tensors_that_are_no_parser(random_parser, tensors, notes, message):
    _, parser = random_parser
    with pytest.raises(DataError, match=message), refusing("no parser"):
        Parser.from_tensors(tensors_of(parser) | tensors, parser.notes() | notes)
