"""Dependency trees whose distribution given the words is known exactly, with imperfect annotators.

A `TreeWorld` generates sentences head-outward by a grammar over words. Given the words, it scores
each arc of a tree on its own.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch

from softq.errors import DataError
from softq.formats.conllu import TreeSentence
from softq.formats.trees import tree_faults
from softq.lab.worlds.grammar import (
    Floats,
    Integers,
    check_probability,
    choose_other,
    seeded_generator,
    uniforms,
    word_ids,
)
from softq.lab.worlds.tree_grammar import (
    CLASSES,
    MOST_LEMMAS,
    RELATION_OF_PAIR,
    RELATIONS,
    Lexicon,
    make_lexicon,
)
from softq.lab.worlds.tree_mixture import TreeMixture, arc_indicator, tree_space
from softq.options import check_conflicts

Heads = tuple[int, ...]
Key = TypeVar("Key")

SHORTEST, LONGEST = 2, 40
"""Words of a sentence, at least and at most."""

CARELESSNESS = 0.5
"""The default probability that an annotator is careless on a sentence."""


@dataclass(frozen=True)
class TreeWorld:
    """Sentences with dependency trees from a grammar, and annotators who get some of them wrong.

    **Sentences.** A first word is sampled. Then each word samples its dependents, on its left and
    on its right, from itself outward: it stops with a probability that depends on its tag and the
    direction, or samples another word and continues. What it samples depends on its own tag and the
    direction (the tag of the dependent), on its own class (the class of the dependent: the lemmas
    of a tag fall into classes, which show in nothing but what they go with) and on its number, with
    which its dependents agree more often than not. A derivation is a projective tree over the words
    and the other way round. Each word stops once on each side whatever the tree, so that

        log P(words, tree) = Σ over words d with head h of
            [log(1 - stop(h, side)) + log P(d | h, side)]  +  a term of the words alone

    and given the words the tree is a `softq.ProjectiveTree` with the arc scores of `scores`,
    exactly. Sentences of fewer than `SHORTEST` or more than `LONGEST` words are sampled again. That
    depends on the words alone (on their number), so that it changes which sentences there are, but
    not the distribution of the tree given the words.

    **Crossing arcs.** With probability c = `crossing` the tree of a sentence is sampled again among
    all spanning trees with one root, with the same arc scores:

        P(tree | words) = (1 - c) · Projective(tree) + c · Spanning(tree)

    The share of arcs that cross is therefore c times that of a world where every tree is sampled
    again; the example below measures it. A parser that scores each arc on its own, with features of
    the two words and the direction, contains this distribution for c = 0 (among projective trees)
    and for c = 1 (among all). Between, it is a mixture, which no such parser is; all that is
    computed here is exact all the same.

    **Relations** follow from the tags of head and dependent and the direction, except that a share
    e = `label_noise` of those not under the root are another one of the relations, all equally
    likely and independent of everything else. With the relations of `relations`, heads h have an
    expected LAS of Σ_d P(h_d → d) (1 - e · [h_d ≠ 0]) / n, and no others do better if e is at most
    one half.

    **Annotators** are careless on a sentence with a probability k of their own, independently: then
    they sample a tree from the flattened distribution F(tree | words), which is P(tree | words)
    with all scores divided by `temperature` (so it may cross with probability c as well); else they
    write the true tree. What one annotator writes is distributed as (1 - k) P + k F (see
    `marginals_of_annotator`); what all of them wrote says more about the true tree (see
    `marginals`).

    Attributes:
        crossing: Probability c that the tree of a sentence may cross; with 0 no tree ever does.
        lemmas: Number of lemmas of each open class of words (NOUN, VERB, …).
        temperature: Of careless annotators; 1 is as good as the words allow, and the larger the
            nearer to a random tree.
        label_noise: Share of relations that do not follow from the tags.
        seed: Random seed of the words, and of their probabilities.

    >>> world = TreeWorld()
    >>> sentence = world.sample(1, seed=0)[0]
    >>> world.marginals(sentence)[:, 1:].sum(0).round(6).tolist() == [1.0] * len(sentence.forms)
    True
    >>> trees = world.annotate([sentence], annotators=3, seed=0)[0]
    >>> len(trees), len(world.bayes_heads(sentence, trees)) == len(sentence.forms)
    (3, True)

    How many arcs cross in a hundred words, if every tree is sampled again:

    >>> from softq.formats.trees import crossing_arcs
    >>> sentences = TreeWorld(crossing=1.0).sample(1000, seed=0)
    >>> crossing = sum(crossing_arcs(sentence.heads) for sentence in sentences)
    >>> round(100 * crossing / sum(len(sentence.heads) for sentence in sentences))
    33

    """

    crossing: float = 0.1
    lemmas: int = 18
    temperature: float = 4.0
    label_noise: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        check_probability("crossing", self.crossing)
        check_probability("label_noise", self.label_noise)
        check_conflicts(
            (
                (
                    not CLASSES <= self.lemmas <= MOST_LEMMAS,
                    f"lemmas of a world must be {CLASSES} (one for each class of words) to "
                    f"{MOST_LEMMAS}, got {self.lemmas}",
                ),
                (
                    not 1 <= self.temperature < math.inf,
                    f"temperature of a world must be 1 or more and finite, got {self.temperature}",
                ),
                (
                    self.seed < 0,
                    f"seed must be 0 or more, got {self.seed}",
                ),
            ),
            DataError,
        )

    def sample(self, size: int, *, seed: int) -> list[TreeSentence]:
        """Sentences with their true trees; another seed gives others of the same world."""
        rng = seeded_generator(self.seed, seed, "draw")
        numbers = uniforms(rng)
        grown = [self._grow(numbers) for _ in range(size)]
        again = np.flatnonzero(rng.random(size) < self.crossing).tolist()
        words = {number: grown[number][0] for number in again}
        crossing = self._sample_trees(words, [True] * len(again), 1.0, rng)
        return [
            self._sentence(number, ids, crossing.get(number, heads), rng)
            for number, (ids, heads) in enumerate(grown)
        ]

    def _grow(self, numbers: Iterator[float]) -> tuple[Integers, Heads]:
        """Word ids and heads of a sentence, neither too short nor too long."""
        first, stops, dependents = self._steps
        words: list[int] = []
        while not SHORTEST <= len(words) <= LONGEST:
            words, parents = [bisect_right(first, next(numbers))], [0]
            order = [0]  # the nodes from left to right; dependents go beside their head, outward
            for node, word in enumerate(words):  # which grows on the way
                for side in (0, 1):
                    place = order.index(node) + side
                    while len(words) <= LONGEST and next(numbers) >= stops[side][word]:
                        order.insert(place, len(words))
                        words.append(bisect_right(dependents[side][word], next(numbers)))
                        parents.append(node)
                        place += side
        positions = {node: position for position, node in enumerate(order, start=1)}
        heads = tuple(positions[parents[node]] if node else 0 for node in order)
        return np.array([words[node] for node in order]), heads

    def _sentence(
        self, number: int, words: Integers, heads: Heads, rng: np.random.Generator
    ) -> TreeSentence:
        lexicon = self._lexicon
        columns = (self.vocabulary, lexicon.lemmas, lexicon.upos, lexicon.feats)
        forms, lemmas, upos, feats = (tuple(column[word] for word in words) for column in columns)
        xpos, name = ("_",) * len(words), str(number + 1)
        sentence = TreeSentence(forms, lemmas, upos, xpos, feats, heads, sent_id=name)
        relations = list(self.relations(sentence, heads))
        for place, (wrong, which) in enumerate(rng.random((len(words), 2)).tolist()):
            if heads[place] and wrong < self.label_noise:
                relations[place] = choose_other(RELATIONS, relations[place], which)
        return replace(sentence, relations=tuple(relations))

    def annotate(
        self,
        sentences: Iterable[TreeSentence],
        *,
        annotators: int = 3,
        carelessness: float | Sequence[float] = CARELESSNESS,
        seed: int,
    ) -> list[list[Heads]]:
        """The heads that each annotator gives each sentence.

        Args:
            sentences: With their true trees, as `sample` returns them.
            annotators: How many there are; all of them see every sentence.
            carelessness: The probability that an annotator is careless on a sentence: one for all,
                or one for each.
            seed: Another seed gives other errors.

        """
        if annotators < 1:
            raise DataError(f"expected one annotator or more, got {annotators}")
        rng = seeded_generator(self.seed, seed, "annotate")
        truth, words = [], []
        for sentence in sentences:
            _check_tree(sentence, sentence.heads)
            truth.append(sentence.heads)
            words.append(word_ids(self._lexicon.ids, sentence.forms))
        careless = rng.random((len(words), annotators)) < _for_each(carelessness, annotators)
        places = {(row, who): words[row] for row, who in np.argwhere(careless).tolist()}
        crossing = (rng.random(len(places)) < self.crossing).tolist()
        flat = self._sample_trees(places, crossing, self.temperature, rng)
        return [
            [flat.get((row, who), heads) for who in range(annotators)]
            for row, heads in enumerate(truth)
        ]

    def _sample_trees(
        self,
        words: Mapping[Key, Integers],
        crossing: Sequence[bool],
        temperature: float,
        rng: np.random.Generator,
    ) -> dict[Key, Heads]:
        """A tree for each sentence, of those that may cross or not."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        groups: dict[tuple[int, bool], list[Key]] = defaultdict(list)
        for key, crosses in zip(words, crossing, strict=True):
            groups[len(words[key]), crosses].append(key)
        found: dict[Key, Heads] = {}
        for (_, crosses), keys in sorted(groups.items()):  # those of one length together
            arcs = self._arcs(np.stack([words[key] for key in keys])) / temperature
            sampled = tree_space(arcs, crosses).sample(generator=generator)
            found |= zip(keys, map(tuple, sampled.tolist()), strict=True)
        return found

    def scores(self, sentence: TreeSentence) -> Floats:
        """Arc scores ``[n+1, n+1]`` by head and dependent, given the words.

        They are -inf on the diagonal and towards the root.
        ``softq.ProjectiveTree(torch.tensor(world.scores(sentence)))`` is the distribution of the
        tree if it may not cross, and its log-partition is log P(words), before sentences are
        sampled again for their length; `softq.SpanningTree` is that of one that may.
        """
        return self._arcs(word_ids(self._lexicon.ids, sentence.forms))

    def _arcs(self, words: Integers) -> Floats:
        """Arc scores ``[*B, n+1, n+1]`` of sentences ``[*B, n]`` of one length."""
        nodes = np.insert(words, 0, -1, axis=-1)  # the root is the last one in the table
        right = np.triu(np.ones((nodes.shape[-1],) * 2, dtype=np.int64))
        scores = self._log_arcs[right, nodes[..., :, None], nodes[..., None, :]]
        return np.where(np.eye(nodes.shape[-1], dtype=np.bool_), -np.inf, scores)

    def log_prob(self, sentence: TreeSentence, heads: Sequence[int]) -> float:
        """Log P(tree | words): -inf for a tree that crosses where none may."""
        _check_tree(sentence, heads)
        return TreeMixture(self.scores(sentence), self.crossing).log_prob(heads)

    def _mixtures(self, sentence: TreeSentence) -> list[TreeMixture]:
        """The distributions of the true tree and of a careless annotator's, given the words."""
        arcs = self.scores(sentence)
        return [TreeMixture(arcs / t, self.crossing) for t in (1.0, self.temperature)]

    def marginals(
        self,
        sentence: TreeSentence,
        annotations: Sequence[Sequence[int]] = (),
        carelessness: float | Sequence[float] = CARELESSNESS,
    ) -> Floats:
        """P(arc is in the true tree | words, annotations), ``[n+1, n+1]`` by head and dependent.

        Given the words and a true tree y, annotator i writes the tree a_i with probability
        (1 - k_i) [a_i = y] + k_i F(a_i). By Bayes' theorem, with all that does not depend on y (the
        product of all k_i F(a_i)) divided out,

            P(y | words, a) ∝ P(y | words) · R(y),
            R(y) = Π over annotators with a_i = y of (1 + (1 - k_i) / (k_i F(a_i)))

        A tree that nobody wrote has R = 1. So the posterior is a mixture of P(· | words), with
        weight 1, and of each distinct tree t that somebody wrote, with weight P(t | words)
        (R(t) - 1), over the sum of these weights; and so are its marginals. Where some k_i = 0 it
        is a_i alone.

        Args:
            sentence: Its heads are not used.
            annotations: The heads that annotators gave the sentence; none for the distribution
                given the words alone.
            carelessness: Of these annotators: one for all, or one for each.

        """
        truth, flat = self._mixtures(sentence)
        log_ratios: dict[Heads, float] = defaultdict(float)  # log R of each distinct tree
        for heads, k in zip(annotations, _for_each(carelessness, len(annotations)), strict=True):
            _check_tree(sentence, heads)
            log_flat = flat.log_prob(heads)
            if log_flat == -math.inf:
                raise DataError(
                    "expected trees that do not cross, as all are in a world with crossing 0, "
                    f"got {list(heads)}"
                )
            log_ratios[tuple(heads)] += np.logaddexp(0.0, _log(1 - k) - _log(k) - log_flat)
        certain = [tree for tree, log_ratio in log_ratios.items() if log_ratio == math.inf]
        if len(certain) > 1:
            raise DataError(
                "annotators with carelessness 0 write the true tree, but they gave "
                f"{list(certain[0])} and {list(certain[1])}"
            )
        if certain:
            return arc_indicator(certain[0])
        log_weights = [0.0]  # of P(. | words), and of each tree: log of P(t) (R(t) - 1)
        for tree, x in log_ratios.items():
            log_weights.append(truth.log_prob(tree) + x + _log(-math.expm1(-x)))
        weights = np.exp(np.array(log_weights) - np.logaddexp.reduce(log_weights))
        parts = [truth.marginals, *map(arc_indicator, log_ratios)]
        return np.tensordot(weights, np.stack(parts), 1)

    def marginals_of_annotator(
        self, sentence: TreeSentence, carelessness: float | Sequence[float] = CARELESSNESS
    ) -> Floats:
        """P(arc is in the tree that an annotator writes | words), by head and dependent.

        Of several annotators, one is taken at random. The trees that a parser sees when it learns
        from annotators are distributed so, and the Bayes rule under that distribution (paper,
        eq. 7) is `best_heads` of these marginals.
        """
        k = float(np.mean(_for_each(carelessness, np.size(carelessness))))
        truth, flat = self._mixtures(sentence)
        return np.add((1 - k) * truth.marginals, k * flat.marginals)

    def bayes_heads(
        self,
        sentence: TreeSentence,
        annotations: Sequence[Sequence[int]] = (),
        carelessness: float | Sequence[float] = CARELESSNESS,
    ) -> Heads:
        """The Bayes rule (paper, eq. 7): the tree of the highest expected UAS given all arguments.

        UAS is a sum over arcs (paper, Appendix D.2.3), so its expectation is the sum of their
        `marginals`.
        """
        return self.best_heads(self.marginals(sentence, annotations, carelessness))

    def best_heads(self, marginals: Floats) -> Heads:
        """The tree with one root that has the largest sum of these marginals of its arcs.

        Its arcs do not cross if `crossing` is 0.
        """
        return tuple(tree_space(marginals, self.crossing > 0).mode().tolist())

    def relations(self, sentence: TreeSentence, heads: Sequence[int]) -> tuple[str, ...]:
        """The likeliest relations of these arcs: what they are without noise."""
        tags = ("", *sentence.upos)
        arcs = [(tags[head], tags[word], head < word) for word, head in enumerate(heads, start=1)]
        return tuple(
            RELATION_OF_PAIR[head, tag][right] if head else "root" for head, tag, right in arcs
        )

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """All words."""
        return tuple(self._lexicon.ids)

    @cached_property
    def _lexicon(self) -> Lexicon:
        return make_lexicon(self.lemmas, seeded_generator(self.seed, 0, "words"))

    @cached_property
    def _log_arcs(self) -> Floats:
        return self._lexicon.log_arcs()

    @cached_property
    def _steps(self) -> tuple[list[float], list[list[float]], list[list[list[float]]]]:
        """P(first word), P(stop) by side and word, P(dependent) by side and head.

        All but P(stop) are cumulative, without the last entry, which rounding may leave below 1.
        """
        first, stops, dependents = self._lexicon[-3:]
        return first.cumsum()[:-1].tolist(), stops.tolist(), dependents.cumsum(2)[..., :-1].tolist()


def _check_tree(sentence: TreeSentence, heads: Sequence[int]) -> None:
    if len(heads) != len(sentence.forms):
        raise DataError(
            f"expected a head for each of the {len(sentence.forms)} words of a sentence, "
            f"got {len(heads)}"
        )
    for word, message in tree_faults(heads):
        raise DataError(f"heads {list(heads)} are no tree with one root, at word {word}: {message}")


def _for_each(carelessness: float | Sequence[float], annotators: int) -> Floats:
    """The carelessness of each annotator."""
    found = np.array(carelessness, dtype=np.float64)
    if found.ndim and len(found) != annotators:
        raise DataError(
            f"expected one carelessness for all annotators, or one for each of {annotators}, "
            f"got {len(found)}"
        )
    for value in found.reshape(-1).tolist():
        check_probability("carelessness", value)
    return np.broadcast_to(found, annotators)


def _log(probability: float) -> float:
    return math.log(probability) if probability else -math.inf
