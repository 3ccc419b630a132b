"""Training a parser: what to train toward, and two ways to get there.

    f(θ) = Σ_x H(target(x), P_θ(·|x)),    ∂f/∂θ = Σ_x Σ_arcs (P_θ(arc|x) - target(arc|x)) φ(arc, x)

(appendix eq. 5-8). Features φ are made of a batch of sentences when it is its turn, and hashed into one table of weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.features import arcs as arc_features
from softq.kernels.features import relations as arc_relations
from softq.kernels.operator import Expected
from softq.linear.features import ArcCodes, ArcIndex
from softq.linear.parsing.model import Parser, score_arcs
from softq.linear.parsing.target import Trees, TreeTargets
from softq.spaces import ProjectiveTree, SpanningTree
from softq.targets import ObjectiveName

Array = np.ndarray[Any, Any]

FEWEST_BITS, MOST_BITS = 4, 30
"""Bits of tables of weights: each of eight banks has two weights at least, and a feature is a number of 32 bits."""

_BATCH_CELLS = 1 << 19  # arcs of one batch where the whole corpus is summed
_SQUARES, _RELATION_SQUARES = (
    10.0,
    1.0,
)  # where AdaGrad's sums of squares begin; a derivative is at most the number of words of a batch


@dataclass(frozen=True)
class ParserSettings:
    """What a parser is trained toward, and how large it is.

    Attributes:
        objective: ML, RAML or SQDML.
        tau: temperature of the latter two.
        spanning: trees may have crossing arcs.
        bits: features of arcs are hashed into 2^bits weights.
        relation_bits: features of relations into 2^bits rows, each with a weight for every relation.

    """

    objective: ObjectiveName = "ml"
    tau: float | None = None
    spanning: bool = False
    bits: int = 22
    relation_bits: int = 17

    def targets(self, treebank: Treebank, *, remember: bool = True) -> TreeTargets:
        """The exact targets of its sentences."""
        return TreeTargets(
            treebank.possible, self.objective, self.tau, spanning=self.spanning, remember=remember
        )


@dataclass(frozen=True)
class Treebank:
    """Sentences as numbers, and their references as the model can have them.

    Attributes:
        index: from words to numbers.
        codes: the words of all sentences.
        trees: references as annotated; relations are learned from these.
        possible: references to train trees toward: projective ones for a projective model.

    """

    index: ArcIndex
    codes: ArcCodes
    trees: Trees
    possible: Trees

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.trees.heads)

    @property
    def relations(self) -> tuple[str, ...]:
        """Names of relations, in order."""
        return tuple(
            sorted(
                {name for sentence in self.trees.relations for names in sentence for name in names}
            )
        )

    @property
    def root_relation(self) -> str | None:
        """The relation that the words under the root have, and no others (Universal Dependencies: root); None if there is no such one."""
        pairs = {
            (name, head == 0)
            for trees, sentence in zip(
                self.trees.heads, self.trees.relations, strict=False
            )  # none where there are no relations
            for tree, names in zip(trees.tolist(), sentence, strict=True)
            for head, name in zip(tree, names, strict=True)
        }
        found = {name for name, under_root in pairs if under_root}
        return (
            found.pop()
            if len(found) == 1 and not any((name, False) in pairs for name in found)
            else None
        )


def _slopes(
    scores: Array, codes: ArcCodes, expected: Tensor, spanning: bool
) -> tuple[float, Array]:
    """Cross-entropy of a batch, summed, and its derivatives by the scores of arcs: model's less target's expectations."""
    arcs = torch.from_numpy(scores).requires_grad_()
    model = (SpanningTree if spanning else ProjectiveTree)(
        arcs, torch.from_numpy(codes.lengths), validate=False
    )
    loss = model.fused_loss(Expected(parts=(expected,))).double().sum()
    (slopes,) = torch.autograd.grad(loss, arcs)
    return float(loss.detach()), slopes.numpy()


class ParserObjective:
    """Cross-entropy to the targets of a treebank plus c2 ‖θ‖², for L-BFGS: ``objective(parameters, gradient)`` returns the value.

    Attributes:
        cross_entropy: at the last point, summed over sentences.
        kl: likewise, less the entropy of the targets.

    """

    def __init__(
        self, treebank: Treebank, settings: ParserSettings, c2: float = 0.0, *, once: bool = False
    ) -> None:
        """``once``: the objective is asked for at one point alone, so that there is no use in remembering its targets."""
        self._bank, self._settings, self._c2 = treebank, settings, c2
        self._targets = settings.targets(treebank, remember=not once)
        self.size = 1 << settings.bits
        self.cross_entropy = self.kl = float("nan")

    def _batches(self) -> Iterator[Array]:
        lengths = self._bank.codes.lengths
        order = np.argsort(lengths, kind="stable")
        cells = np.cumsum((lengths[order] + 1) ** 2)
        begin = 0
        while begin < len(order):
            before = cells[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(cells, before + _BATCH_CELLS)))
            yield order[begin:end]
            begin = end

    def __call__(self, parameters: Tensor, gradient: Tensor | None = None) -> float:
        """The value at ``parameters [F]``; its derivatives are written to ``gradient [F]``, if there is one."""
        weights = parameters.numpy()
        sums = None if gradient is None else arc_features.Sums.like(weights)
        total = entropy = 0.0
        for batch in self._batches():
            codes = self._bank.codes.take(batch)
            words, scores = score_arcs(self._bank.index, codes, weights)
            expected, target_entropy = self._targets.both(batch, scores.shape[1] - 1)
            loss, slopes = _slopes(scores, codes, expected, self._settings.spanning)
            if sums is not None:
                arc_features.add_gradient(self._bank.index.plan, words, slopes, sums)
            total += loss
            entropy += target_entropy
        self.cross_entropy, self.kl = total, total - entropy
        if gradient is not None and sums is not None:
            gradient.copy_(torch.from_numpy(sums.values)).add_(parameters, alpha=2 * self._c2)
        return total + self._c2 * float(parameters.double().square().sum())


class _Measured(NamedTuple):
    """What a batch says of relations: the loss, its derivatives by their scores, and what these were made of."""

    loss: float
    slopes: Array
    arcs: arc_relations.Arcs
    words: arc_features.Words


class Relations:
    """A log-linear model of relations, trained on the arcs of the references beside the trees."""

    def __init__(self, treebank: Treebank, settings: ParserSettings, rate: float) -> None:
        self._bank, self._rate = treebank, rate
        self.names, self.root = treebank.relations, treebank.root_relation
        self._numbers = {name: k for k, name in enumerate(self.names)}
        shape = 1 << settings.relation_bits, len(self.names)
        self.weights = np.zeros(shape, np.float32)
        self.moments = arc_features.Moments.like(self.weights, _RELATION_SQUARES)
        self._sums = arc_features.Sums.like(self.weights)

    def loss(self, sentences: Array, codes: ArcCodes, weights: Array) -> float:
        """Cross-entropy of relations under these weights, summed over the words of a batch; a word's references share it."""
        return self._measure(sentences, codes, weights).loss if self.names else 0.0

    def step(self, sentences: Array, codes: ArcCodes, step: int) -> float:
        """One batch; returns its loss before the step."""
        if not self.names:
            return 0.0
        found = self._measure(sentences, codes, self.weights)
        plan = self._bank.index.relation_plan
        arc_relations.add_gradient(plan, found.words, found.arcs, found.slopes, self._sums)
        arc_features.descend(self._sums, self.moments, self.weights, self._rate, step)
        return found.loss

    def _measure(self, sentences: Array, codes: ArcCodes, weights: Array) -> _Measured:
        rows, heads, dependents, wanted, shares = [], [], [], [], []
        for row, number in enumerate(sentences):
            trees, ref_weights = self._bank.trees.heads[number], self._bank.trees.weights[number]
            for tree, names, share in zip(
                trees,
                self._bank.trees.relations[number],
                ref_weights / ref_weights.sum(),
                strict=True,
            ):
                rows.append(np.full(len(tree), row))
                heads.append(tree)
                dependents.append(np.arange(1, len(tree) + 1))
                wanted += [self._numbers[name] for name in names]
                shares.append(np.full(len(tree), share, np.float32))
        arcs = arc_relations.Arcs(
            np.concatenate(rows), np.concatenate(heads), np.concatenate(dependents)
        )
        plan = self._bank.index.relation_plan
        words = arc_features.parts(plan, codes.codes, codes.starts)
        share = torch.from_numpy(np.concatenate(shares))
        log_probabilities = torch.from_numpy(
            arc_relations.scores(plan, words, arcs, weights)
        ).log_softmax(1)
        right = torch.arange(len(wanted)), torch.tensor(wanted)
        slopes = log_probabilities.exp()
        slopes[right] -= 1
        slopes *= share.unsqueeze(1)
        return _Measured(
            -float((log_probabilities[right] * share).double().sum()), slopes.numpy(), arcs, words
        )

    def averaged(self, steps: int) -> Array:
        """Mean of the weights over all steps."""
        return arc_features.average(self.weights, self.moments, steps)


class Descent:
    """AdaGrad (Duchi, Hazan and Singer 2011), a batch of sentences at a time, with the mean of all steps' weights for the parser.

    Relations are learned beside the trees, on the references' own arcs.
    """

    def __init__(
        self,
        treebank: Treebank,
        settings: ParserSettings,
        rate: float,
        relation_rate: float,
        *,
        trees: bool = True,
    ) -> None:
        self._bank, self._settings, self._rate, self._trees = treebank, settings, rate, trees
        self._targets = settings.targets(treebank)
        size = 1 << settings.bits
        self.weights = np.zeros(size if trees else 2 * arc_features.BANKS, np.float32)
        self._sums = arc_features.Sums.like(self.weights)
        self._moments = arc_features.Moments.like(self.weights, _SQUARES)
        self.relations = Relations(treebank, settings, relation_rate)
        self.steps = 0

    def step(self, sentences: Array) -> tuple[float, float]:
        """One batch of sentences (their numbers); returns cross-entropies of its trees and of its relations before it, summed."""
        self.steps += 1
        codes = self._bank.codes.take(sentences)
        loss = 0.0
        if self._trees:
            words, scores = score_arcs(self._bank.index, codes, self.weights)
            expected = self._targets.expected(sentences, scores.shape[1] - 1)
            loss, slopes = _slopes(scores, codes, expected, self._settings.spanning)
            arc_features.add_gradient(self._bank.index.plan, words, slopes, self._sums)
            arc_features.descend(self._sums, self._moments, self.weights, self._rate, self.steps)
        return loss, self.relations.step(sentences, codes, self.steps)

    def entropy(self, sentences: Array) -> float:
        """Entropy of the targets, summed: what no model can get below."""
        return self._targets.entropy(sentences)

    def relation_loss(self, sentences: Array, parser: Parser) -> float:
        """Cross-entropy of a parser's relations on the arcs of these sentences' references, summed over words."""
        return self.relations.loss(
            sentences, self._bank.codes.take(sentences), parser.relation_weights
        )

    def parser(self, weights: Array | None = None) -> Parser:
        """The parser of the averaged weights, or of these weights of arcs."""
        if weights is None:
            weights = arc_features.average(self.weights, self._moments, self.steps)
        relations = self.relations.averaged(self.steps)
        return Parser(
            self._bank.index,
            weights,
            self.relations.names,
            relations,
            self._settings.spanning,
            self.relations.root,
        )

    def state(self) -> dict[str, Tensor]:
        """Everything `step` goes on from."""
        state = {name: torch.from_numpy(array) for name, array in self._arrays().items()}
        return state | {"steps": torch.tensor(self.steps)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        for name, array in self._arrays().items():
            array[:] = state[name].numpy()
        self.steps = int(state["steps"])

    def _arrays(self) -> dict[str, Array]:
        relations = self.relations
        return {
            "weights": self.weights,
            "squares": self._moments.squares,
            "drift": self._moments.drift,
            "relation_weights": relations.weights,
            "relation_squares": relations.moments.squares,
            "relation_drift": relations.moments.drift,
        }
