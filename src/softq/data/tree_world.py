"""Dependency trees from a seed: a world whose distribution of trees given words is known exactly, with imperfect annotators.

`TreeWorld` makes sentences head-outward by a grammar over words. Given the words, its trees score each arc on its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from softq.data.conllu import TreeSentence
from softq.data.tree_grammar import CLASSES, MOST_LEMMAS, RELATIONS, Lexicon, make_lexicon, relations_of
from softq.data.trees import is_projective, tree_fault
from softq.data.worlds import seeded_generator
from softq.errors import DataError
from softq.kernels import arborescence, projective, spanning

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Heads = tuple[int, ...]

SHORTEST, LONGEST = 2, 40
"""Words of a sentence, at least and at most."""

CARELESSNESS = 0.5
"""Share of the sentences on which an annotator is careless, unless told otherwise."""


@dataclass(frozen=True)
class TreeWorld:
    """Sentences with dependency trees from a grammar, and annotators who get some of them wrong.

    **Sentences.** A first word is drawn. Then each word draws its dependents, on its left and on its right, from itself outward: it
    stops with a probability that its tag and the direction give, or draws another word and goes on. What it draws depends on its own tag
    and the direction (the dependent's tag), on its own class (the dependent's class: each tag's lemmas fall into classes, which show in
    nothing but what they go with) and on its number, with which its dependents agree more often than not. A derivation is a projective
    tree over the words and the other way round. Each word stops once on each side whatever the tree, so that

        log P(words, tree) = Σ over words d with head h of [log(1 - stop(h, side)) + log P(d | h, side)] + what the words alone decide

    and given the words the tree is a `softq.ProjectiveTree` with the arc scores of `scores`, exactly. Sentences of fewer than `SHORTEST`
    or more than `LONGEST` words are drawn again. That depends on the words alone (on their number), so it changes what sentences there
    are, but not the distribution of the tree given the words.

    **Crossing arcs.** With probability c = `crossing` the tree of a sentence is drawn again among all spanning trees with one root, with
    the same arc scores:

        P(tree | words) = (1 - c) · Projective(tree) + c · Spanning(tree)

    The share of arcs that cross is therefore c times that of a world where every tree is drawn again; the example below measures it.
    A parser that scores each arc on its own, with features of the two words and the direction, contains this distribution for c = 0
    (among projective trees) and for c = 1 (among all). Between, it is a mixture, which no such parser is; all that is computed here is
    exact all the same.

    **Relations** follow from the tags of head and dependent and the direction, except that a share e = `label_noise` of those not under
    the root are another one of the relations, each alike, whatever else is the case. With the relations of `relations`, heads h have an
    expected LAS of Σ_d P(h_d → d) (1 - e · [h_d ≠ 0]) / n, and no others do better if e is at most one half.

    **Annotators** are careless on a sentence with a probability k of their own, each for herself: then they draw a tree from the flattened
    distribution F(tree | words), which is P(tree | words) with all scores divided by `temperature` (so it may cross with probability c as
    well); else they write the true tree. What one annotator writes is distributed as (1 - k) P + k F (see `marginals_of_annotator`);
    what all of them wrote says more about the true tree (see `marginals`).

    Attributes:
        crossing: Probability c that the tree of a sentence may cross; with 0 no tree ever does.
        lemmas: How many lemmas each open class of words (NOUN, VERB, …) has.
        temperature: Of what careless annotators write; 1 is as good as the words allow, and the larger the nearer to any tree.
        label_noise: Share of relations that do not follow from the tags.
        seed: Of the words, and of what goes with what.

    >>> world = TreeWorld()
    >>> sentence = world.draw(1, seed=0)[0]
    >>> world.marginals(sentence)[:, 1:].sum(0).round(6).tolist() == [1.0] * len(sentence.forms)
    True
    >>> trees = world.annotate([sentence], annotators=3, seed=0)[0]
    >>> len(trees), len(world.bayes_heads(sentence, trees)) == len(sentence.forms)
    (3, True)

    How many arcs cross in a hundred words, if every tree is drawn again:

    >>> from softq.data.trees import crossing_arcs
    >>> sentences = TreeWorld(crossing=1.0).draw(1000, seed=0)
    >>> round(100 * sum(crossing_arcs(s.heads) for s in sentences) / sum(len(s.heads) for s in sentences))
    33

    """

    crossing: float = 0.1
    lemmas: int = 18
    temperature: float = 4.0
    label_noise: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        _check_share("crossing", self.crossing)
        _check_share("label_noise", self.label_noise)
        if not CLASSES <= self.lemmas <= MOST_LEMMAS:
            raise DataError(f"lemmas of a world must be {CLASSES} (one for each class of words) to {MOST_LEMMAS}, got {self.lemmas}")
        if not 1 <= self.temperature < math.inf:
            raise DataError(f"temperature of a world must be 1 or more and finite, got {self.temperature}")
        if self.seed < 0:
            raise DataError(f"seed must be 0 or more, got {self.seed}")

    def draw(self, count: int, *, seed: int) -> list[TreeSentence]:
        """Sentences with their true trees; another seed draws others from the same world."""
        rng = seeded_generator(self.seed, seed, "draw")
        chances = _chances(rng)
        words: list[Integers] = []
        heads: list[Heads] = []
        while len(words) < count:
            grown = self._grow(chances)
            if grown is not None:
                words.append(grown[0])
                heads.append(grown[1])
        again = np.flatnonzero(rng.random(count) < self.crossing).tolist()
        drawn = self._sample([words[number] for number in again], np.ones(len(again), dtype=np.bool_), 1.0, rng)
        for number, tree in zip(again, drawn, strict=True):
            heads[number] = tree
        return [self._sentence(number, *tree, rng) for number, tree in enumerate(zip(words, heads, strict=True), start=1)]

    def annotate(
        self, sentences: Iterable[TreeSentence], *, annotators: int = 3, carelessness: float | Sequence[float] = CARELESSNESS, seed: int
    ) -> list[list[Heads]]:
        """The heads that each annotator gives each sentence.

        Args:
            sentences: With their true trees, as `draw` gives them.
            annotators: How many there are; all of them see every sentence.
            carelessness: The probability that an annotator is careless on a sentence: one for all, or one for each.
            seed: Another seed gives other errors.

        """
        if annotators < 1:
            raise DataError(f"expected one annotator or more, got {annotators}")
        rng = seeded_generator(self.seed, seed, "annotate")
        sentences = list(sentences)
        for sentence in sentences:
            _check_tree(sentence, sentence.heads)
        careless = rng.random((len(sentences), annotators)) < _for_each(carelessness, annotators)  # [sentences, annotators]
        places = np.argwhere(careless).tolist()
        words = [self._numbers(sentence) for sentence in sentences]
        drawn = self._sample([words[row] for row, _ in places], rng.random(len(places)) < self.crossing, self.temperature, rng)
        found = [[sentence.heads] * annotators for sentence in sentences]
        for (row, who), tree in zip(places, drawn, strict=True):
            found[row][who] = tree
        return found

    def scores(self, sentence: TreeSentence) -> Floats:
        """Arc scores ``[n+1, n+1]`` by head and dependent, of the words alone; -inf on the diagonal and towards the root.

        ``softq.ProjectiveTree(torch.tensor(world.scores(sentence)))`` is the distribution of the tree if it may not cross, and its
        log-partition is log P(words), before sentences are drawn again for their length; `softq.SpanningTree` that of one that may.
        """
        scores: Floats = self._arcs(self._numbers(sentence)[None])[0]
        return scores

    def log_prob(self, sentence: TreeSentence, heads: Sequence[int]) -> float:
        """Log P(tree | words): -inf for a tree that crosses where none may."""
        _check_tree(sentence, heads)
        return _Trees(self.scores(sentence), self.crossing).log_prob(heads)

    def marginals(
        self, sentence: TreeSentence, annotations: Sequence[Sequence[int]] = (), carelessness: float | Sequence[float] = CARELESSNESS
    ) -> Floats:
        """P(arc is in the true tree | words, annotations), ``[n+1, n+1]`` by head and dependent; exact.

        Given the words and a true tree y, annotator i writes her tree a_i with probability (1 - k_i) [a_i = y] + k_i F(a_i). By Bayes'
        theorem, with all that does not depend on y (the product of all k_i F(a_i)) divided out,

            P(y | words, a) ∝ P(y | words) · R(y),   R(y) = Π over annotators with a_i = y of (1 + (1 - k_i) / (k_i F(a_i)))

        A tree that nobody wrote has R = 1. So the posterior is a mixture of P(· | words), with weight 1, and of each distinct tree t that
        somebody wrote, with weight P(t | words) (R(t) - 1), over the sum of these weights; and so are its marginals. Where
        some k_i = 0 it is a_i alone.

        Args:
            sentence: Its heads are not looked at.
            annotations: The heads that annotators gave the sentence; none for the distribution given the words alone.
            carelessness: Of these annotators: one for all, or one for each.

        """
        arcs = self.scores(sentence)
        truth = _Trees(arcs, self.crossing)
        if not annotations:
            return truth.marginals
        flat = _Trees(arcs / self.temperature, self.crossing)
        log_ratios: dict[Heads, float] = defaultdict(float)  # log R of each distinct tree
        for heads, k in zip(annotations, _for_each(carelessness, len(annotations)).tolist(), strict=True):
            _check_tree(sentence, heads)
            log_flat = flat.log_prob(heads)
            if log_flat == -math.inf:
                raise DataError(f"expected trees that do not cross, as all are in a world with crossing 0, got {list(heads)}")
            log_ratios[tuple(heads)] += math.inf if k == 0 else float(np.logaddexp(0.0, _log(1 - k) - math.log(k) - log_flat))
        certain = [tree for tree, log_ratio in log_ratios.items() if log_ratio == math.inf]
        if len(certain) > 1:
            raise DataError(f"annotators with carelessness 0 write the true tree, but they gave {list(certain[0])} and {list(certain[1])}")
        if certain:
            return _indicator(certain[0])
        extra = [truth.log_prob(tree) + x + _log(-math.expm1(-x)) for tree, x in log_ratios.items()]  # log of P(t) (R(t) - 1)
        weights = np.exp(np.array([0.0, *extra]) - np.logaddexp.reduce([0.0, *extra]))
        found: Floats = weights[0] * truth.marginals
        for weight, tree in zip(weights[1:], log_ratios, strict=True):
            found += weight * _indicator(tree)
        return found

    def marginals_of_annotator(self, sentence: TreeSentence, carelessness: float | Sequence[float] = CARELESSNESS) -> Floats:
        """P(arc is in the tree that an annotator writes | words), ``[n+1, n+1]`` by head and dependent; of several, one taken at random.

        The trees that a parser sees when it learns from annotators are distributed so, and the Bayes rule under that distribution (paper,
        eq. 7) is `best_heads` of these marginals.
        """
        k = float(np.mean(_for_each(carelessness, np.size(carelessness))))
        arcs = self.scores(sentence)
        found: Floats = (1 - k) * _Trees(arcs, self.crossing).marginals + k * _Trees(arcs / self.temperature, self.crossing).marginals
        return found

    def bayes_heads(
        self, sentence: TreeSentence, annotations: Sequence[Sequence[int]] = (), carelessness: float | Sequence[float] = CARELESSNESS
    ) -> Heads:
        """The tree with the highest expected UAS, given the words and the annotations: the Bayes rule (paper, eq. 7) of that reward.

        UAS is a sum over arcs (paper, Appendix D.2.3), so its expectation is the sum of their `marginals`.
        """
        return self.best_heads(self.marginals(sentence, annotations, carelessness))

    def best_heads(self, marginals: Floats) -> Heads:
        """The tree with one root, and without crossing arcs if `crossing` is 0, that has the largest sum of these marginals of its arcs."""
        mode = arborescence.mode if self.crossing else projective.mode
        heads, _ = mode(torch.tensor([len(marginals) - 1]), torch.from_numpy(marginals)[None], False)
        return tuple(heads[0].tolist())

    def relations(self, sentence: TreeSentence, heads: Sequence[int]) -> tuple[str, ...]:
        """The likeliest relations of these arcs: what they are without noise."""
        return relations_of(sentence.upos, heads)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words."""
        return self._lexicon.forms

    def _grow(self, chances: Iterator[float]) -> tuple[Integers, Heads] | None:
        """Words and heads of a sentence of the grammar, None if it is too short or too long."""
        first, stops, dependents = self._steps
        words = [bisect_right(first, next(chances))]
        sides: list[tuple[list[int], list[int]]] = [([], [])]  # dependents on the left and on the right, from the head outward
        for node, word in enumerate(words):  # which grows on the way
            for side in (0, 1):
                while next(chances) >= stops[side][word]:
                    sides[node][side].append(len(words))
                    words.append(bisect_right(dependents[side][word], next(chances)))
                    sides.append(([], []))
                    if len(words) > LONGEST:
                        return None
        if len(words) < SHORTEST:
            return None
        order: list[int] = []

        def visit(node: int) -> None:
            for child in reversed(sides[node][0]):
                visit(child)
            order.append(node)
            for child in sides[node][1]:
                visit(child)

        visit(0)
        position = {node: place for place, node in enumerate(order, start=1)}
        heads = [0] * len(words)
        for node, (left, right) in enumerate(sides):
            for child in left + right:
                heads[position[child] - 1] = position[node]
        return np.array([words[node] for node in order]), tuple(heads)

    def _sample(self, words: Sequence[Integers], crossing: NDArray[np.bool_], temperature: float, rng: np.random.Generator) -> list[Heads]:
        """A tree for each sentence, of those that may cross or not; sentences of one length are drawn together."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        groups = defaultdict(list)
        for place, (row, crosses) in enumerate(zip(words, crossing.tolist(), strict=True)):
            groups[len(row), crosses].append(place)
        found: list[Heads] = [()] * len(words)
        for (length, crosses), places in sorted(groups.items()):
            arcs = torch.from_numpy(self._arcs(np.stack([words[place] for place in places])) / temperature)
            sample = spanning.sample if crosses else projective.sample
            heads = sample(torch.full((len(places),), length), arcs, False, 1, generator)[0]
            for place, tree in zip(places, heads.tolist(), strict=True):
                found[place] = tuple(tree)
        return found

    def _arcs(self, words: Integers) -> Floats:
        """Arc scores ``[B, n+1, n+1]`` of sentences ``[B, n]`` of one length."""
        count, length = words.shape
        nodes = np.concatenate([np.full((count, 1), len(self.vocabulary)), words], 1)
        to_right = np.triu(np.ones((length + 1, length + 1), dtype=np.int64))
        found: Floats = self._log_arcs[to_right, nodes[:, :, None], nodes[:, None, :]]
        found[:, np.arange(length + 1), np.arange(length + 1)] = -np.inf
        return found

    def _sentence(self, number: int, words: Integers, heads: Heads, rng: np.random.Generator) -> TreeSentence:
        forms, lemmas, upos, feats = (tuple(column[word] for word in words) for column in self._lexicon[:4])
        relations = list(relations_of(upos, heads))
        for place, (wrong, which) in enumerate(rng.random((len(words), 2)).tolist()):
            if heads[place] and wrong < self.label_noise:
                others = [relation for relation in RELATIONS if relation != relations[place]]
                relations[place] = others[int(which * len(others))]
        unknown = ("_",) * len(words)
        return TreeSentence(forms, lemmas, upos, unknown, feats, heads, tuple(relations), lines=(), line=0, sent_id=str(number))

    def _numbers(self, sentence: TreeSentence) -> Integers:
        unknown = [form for form in sentence.forms if form not in self._number_of]
        if unknown:
            raise DataError(f"expected words of this world's vocabulary, got {unknown[0]!r}")
        return np.array([self._number_of[form] for form in sentence.forms], dtype=np.int64)

    @cached_property
    def _lexicon(self) -> Lexicon:
        return make_lexicon(self.lemmas, seeded_generator(self.seed, 0, "words"))

    @cached_property
    def _number_of(self) -> Mapping[str, int]:
        return {form: number for number, form in enumerate(self.vocabulary)}

    @cached_property
    def _steps(self) -> tuple[list[float], list[list[float]], list[list[list[float]]]]:
        """What `_grow` draws from: cumulative P(first word), P(stop) by side and word, cumulative P(dependent) by side and head."""
        lexicon = self._lexicon
        # Without the last entry, which rounding may leave below 1: a chance above all others is the last word's.
        return lexicon.first.cumsum()[:-1].tolist(), lexicon.stops.tolist(), lexicon.dependents.cumsum(2)[:, :, :-1].tolist()

    @cached_property
    def _log_arcs(self) -> Floats:
        """Scores by side, head and dependent ``[2, W+1, W+1]``, W being the root; with log P(stop) of the dependent on both its sides."""
        lexicon = self._lexicon
        size = len(lexicon.forms)
        found = np.full((2, size + 1, size + 1), -np.inf)
        found[:, :size, :size] = np.log1p(-lexicon.stops)[:, :, None] + np.log(lexicon.dependents)
        found[:, size, :size] = np.log(lexicon.first)
        found[:, :, :size] += np.log(lexicon.stops).sum(0)
        return found


class _Trees:
    """Trees with one root by arc scores ``[n+1, n+1]``: among all of them with probability ``crossing``, else among projective ones."""

    def __init__(self, arcs: Floats, crossing: float) -> None:
        self._arcs = arcs
        lengths, scores = torch.tensor([len(arcs) - 1]), (torch.from_numpy(arcs)[None],)
        self.marginals = np.zeros_like(arcs)
        self._log_shares = [-math.inf, -math.inf]  # of projective and of all trees: log of their probability over their Z
        for kind, (kernel, share) in enumerate(((projective, 1 - crossing), (spanning, crossing))):
            if share > 0:
                log_z, (marginals,) = kernel.structure(False).infer(lengths, scores, True)
                self.marginals += share * marginals[0].numpy()
                self._log_shares[kind] = math.log(share) - float(log_z)

    def log_prob(self, heads: Sequence[int]) -> float:
        score = float(self._arcs[list(heads), range(1, len(heads) + 1)].sum())
        inside, anywhere = self._log_shares
        return score + (float(np.logaddexp(inside, anywhere)) if is_projective(heads) else anywhere)


def _indicator(heads: Heads) -> Floats:
    found = np.zeros((len(heads) + 1, len(heads) + 1))
    found[list(heads), range(1, len(heads) + 1)] = 1.0
    return found


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise DataError(f"{name} must lie in 0..1, got {value}")


def _check_tree(sentence: TreeSentence, heads: Sequence[int]) -> None:
    if len(heads) != len(sentence.forms):
        raise DataError(f"expected a head for each of the {len(sentence.forms)} words of a sentence, got {len(heads)}")
    fault = tree_fault(heads)
    if fault is not None:
        raise DataError(f"heads {list(heads)} are no tree with one root, at word {fault[0]}: {fault[1]}")


def _for_each(carelessness: float | Sequence[float], annotators: int) -> Floats:
    """The carelessness of each annotator."""
    found = np.array(carelessness, dtype=np.float64)
    if found.ndim and len(found) != annotators:
        raise DataError(f"expected one carelessness for all annotators, or one for each of {annotators}, got {len(found)}")
    for value in found.reshape(-1).tolist():
        _check_share("carelessness", value)
    return np.broadcast_to(found, annotators)


def _chances(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(4096).tolist()


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
