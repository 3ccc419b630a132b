"""Training a parser: what to train toward, and two ways to get there.

    f(θ) = Σ_x H(target(x), P_θ(·|x)),    ∂f/∂θ = Σ_x Σ_arcs (P_θ(arc|x) - target(arc|x)) φ(arc, x)

(appendix eq. 5-8). Features φ are made of a batch of sentences when it is its turn, and hashed into
one table of weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from softq.kernels.features import arcs as arc_features
from softq.kernels.features import relations as arc_relations
from softq.kernels.operator import Expected
from softq.linear.features import ArcCodes, ArcIndex
from softq.linear.features.matrix import batches_of_like_lengths
from softq.linear.parsing import Parser, Trees, TreeTargets, score_arcs
from softq.linear.training import Array, Batches, NotFiniteError, Search, Stopping
from softq.spaces import ProjectiveTree, SpanningTree
from softq.targets import ObjectiveName

__all__ = [
    "Descent",
    "EncodedTreebank",
    "ParserFit",
    "ParserObjective",
    "ParserSettings",
]


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
        relation_bits: features of relations into 2^bits rows, each with a weight for every
            relation.

    """

    objective: ObjectiveName = "ml"
    tau: float | None = None
    spanning: bool = False
    bits: int = 22
    relation_bits: int = 17

    def targets(self, treebank: EncodedTreebank, *, remember: bool = True) -> TreeTargets:
        """The exact targets of its sentences."""
        return TreeTargets(
            treebank.possible, self.objective, self.tau, spanning=self.spanning, remember=remember
        )


@dataclass(frozen=True)
class EncodedTreebank:
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
    """Cross-entropy of a batch, summed, and its derivatives by the scores of arcs.

    Model's less target's expectations.
    """
    arcs = torch.from_numpy(scores).requires_grad_()
    model = (SpanningTree if spanning else ProjectiveTree)(
        arcs, torch.from_numpy(codes.lengths), validate=False
    )
    loss = model.fused_loss(Expected(parts=(expected,))).double().sum()
    (slopes,) = torch.autograd.grad(loss, arcs)
    return float(loss.detach()), slopes.numpy()


class ParserObjective:
    """Cross-entropy to the targets of a treebank plus c2 ‖θ‖², for L-BFGS.

    ``objective(parameters, gradient)`` returns the value.

    Attributes:
        cross_entropy: at the last point, summed over sentences.
        kl: likewise, less the entropy of the targets.

    """

    def __init__(
        self,
        treebank: EncodedTreebank,
        settings: ParserSettings,
        c2: float = 0.0,
        *,
        once: bool = False,
    ) -> None:
        """``once``.

        The objective is asked for at one point alone, so that there is no use in remembering its
        targets.
        """
        self._bank, self._settings, self._c2 = treebank, settings, c2
        self._targets = settings.targets(treebank, remember=not once)
        self.size = 1 << settings.bits
        self.cross_entropy = self.kl = float("nan")

    def __call__(self, parameters: Tensor, gradient: Tensor | None = None) -> float:
        """The value at ``parameters [F]``.

        Its derivatives are written to ``gradient [F]``, if there is one.
        """
        weights = parameters.numpy()
        sums = None if gradient is None else arc_features.Sums.like(weights)
        total = entropy = 0.0
        lengths = self._bank.codes.lengths
        cells = (lengths + 1) ** 2
        # sums are of so many batches in this order, to the bit
        for batch in batches_of_like_lengths(lengths, cells, _BATCH_CELLS - 1, padded=False):
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
        return total + self.penalty(parameters)

    def penalty(self, parameters: Tensor) -> float:
        """c2 ‖θ‖²."""
        return self._c2 * float(parameters.double().square().sum())


class _Table:
    """Weights of hashed features, with what AdaGrad knows of them (Duchi, Hazan and Singer 2011)."""

    def __init__(self, shape: int | tuple[int, int], rate: float, squares: float) -> None:
        """``squares`` is where the sums of squared derivatives begin."""
        self.weights = np.zeros(shape, np.float32)
        self.sums = arc_features.Sums.like(self.weights)
        self._moments, self._rate = arc_features.Moments.like(self.weights, squares), rate

    def descend(self, step: int) -> None:
        """Take the step that the summed derivatives call for; they are 0 after it."""
        arc_features.descend(self.sums, self._moments, self.weights, self._rate, step)

    def averaged(self, steps: int) -> Array:
        """Mean of the weights over all steps."""
        return arc_features.average(self.weights, self._moments, steps)

    def arrays(self) -> dict[str, Array]:
        """Everything that steps resume from."""
        moments = self._moments
        return {"weights": self.weights, "squares": moments.squares, "drift": moments.drift}


class Descent:
    """AdaGrad, a batch of sentences at a time, with the mean of all steps' weights for the parser.

    Relations are learned beside the trees, by a log-linear model on the references' own arcs.
    """

    def __init__(
        self,
        treebank: EncodedTreebank,
        settings: ParserSettings,
        rate: float,
        relation_rate: float,
        *,
        trees: bool = True,
    ) -> None:
        """Start from weights of 0; without ``trees`` only relations are learned."""
        self._bank, self._settings, self._learns_trees = treebank, settings, trees
        self.targets = settings.targets(treebank)
        self._names, self._root = treebank.relations, treebank.root_relation
        self._numbers = {name: k for k, name in enumerate(self._names)}
        size = 1 << settings.bits if trees else 2 * arc_features.BANKS
        self._trees = _Table(size, rate, _SQUARES)
        rows = 1 << settings.relation_bits, len(self._names)
        self._relations = _Table(rows, relation_rate, _RELATION_SQUARES)
        self.steps = 0

    @property
    def weights(self) -> Array:
        """Weights of features of arcs after the last step."""
        return self._trees.weights

    def step(self, sentences: Array) -> tuple[float, float]:
        """One batch of sentences (their numbers).

        Returns cross-entropies of its trees and of its relations before it, summed.
        """
        self.steps += 1
        codes = self._bank.codes.take(sentences)
        loss = relation_loss = 0.0
        if self._learns_trees:
            words, scores = score_arcs(self._bank.index, codes, self.weights)
            expected = self.targets.expected(sentences, scores.shape[1] - 1)
            loss, slopes = _slopes(scores, codes, expected, self._settings.spanning)
            arc_features.add_gradient(self._bank.index.plan, words, slopes, self._trees.sums)
            self._trees.descend(self.steps)
        if self._names:
            relation_loss = self._measure(
                sentences, codes, self._relations.weights, self._relations.sums
            )
            self._relations.descend(self.steps)
        return loss, relation_loss

    def relation_loss(self, sentences: Array, parser: Parser) -> float:
        """Cross-entropy of a parser's relations on the arcs of these sentences' references, summed over words."""
        codes = self._bank.codes.take(sentences)
        return self._measure(sentences, codes, parser.relation_weights) if self._names else 0.0

    def _measure(
        self,
        sentences: Array,
        codes: ArcCodes,
        weights: Array,
        sums: arc_features.Sums | None = None,
    ) -> float:
        """Cross-entropy of relations, of which a word's references share it.

        Its derivatives are added to ``sums``.
        """
        trees, rows, heads, dependents, wanted, shares = self._bank.trees, [], [], [], [], []
        for row, number in enumerate(sentences):
            share = trees.weights[number] / trees.weights[number].sum()
            for tree, names, part in zip(
                trees.heads[number], trees.relations[number], share, strict=True
            ):
                rows.append(np.full(len(tree), row))
                heads.append(tree)
                dependents.append(np.arange(1, len(tree) + 1))
                wanted += [self._numbers[name] for name in names]
                shares.append(np.full(len(tree), part, np.float32))
        arcs = arc_relations.Arcs(*map(np.concatenate, (rows, heads, dependents)))
        plan = self._bank.index.relation_plan
        words = arc_features.parts(plan, codes.codes, codes.starts)
        scores = torch.from_numpy(arc_relations.scores(plan, words, arcs, weights))
        log_probabilities = scores.log_softmax(1)
        share = torch.from_numpy(np.concatenate(shares))
        right = torch.arange(len(wanted)), torch.tensor(wanted)
        if sums is not None:
            slopes = log_probabilities.exp()
            slopes[right] -= 1
            slopes *= share.unsqueeze(1)
            arc_relations.add_gradient(plan, words, arcs, slopes.numpy(), sums)
        return -float((log_probabilities[right] * share).double().sum())

    def parser(self, weights: Array | None = None) -> Parser:
        """The parser of the averaged weights, or of these weights of arcs."""
        return Parser(
            self._bank.index,
            self._trees.averaged(self.steps) if weights is None else weights,
            self._names,
            self._relations.averaged(self.steps),
            self._settings.spanning,
            self._root,
        )

    def state(self) -> dict[str, Tensor]:
        """Everything that `step` resumes from."""
        tables = {"": self._trees, "relation_": self._relations}
        arrays = {
            f"{prefix}{name}": array
            for prefix, table in tables.items()
            for name, array in table.arrays().items()
        }
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return state | {"steps": torch.tensor(self.steps)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])  # the arrays' own memory
        self.steps = int(state["steps"])


class ParserFit:
    """Training of a parser: trees by AdaGrad or, with ``stopping``, by L-BFGS over all sentences.

    Relations by AdaGrad.

    An epoch is a pass of AdaGrad, after its share of the iterations of L-BFGS.

    Attributes:
        losses: cross-entropy of the trees in each epoch of AdaGrad, of each batch before its step.
        relation_losses: of relations likewise.

    """

    def __init__(
        self,
        treebank: EncodedTreebank,
        settings: ParserSettings,
        batches: Batches,
        *,
        epochs: int,
        learning_rate: float,
        relation_learning_rate: float,
        stopping: Stopping | None = None,
        c2: float = 0.0,
        memory: int = 8,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._bank, self._batches = treebank, lru_cache(maxsize=1)(batches)
        self._stopping, self._memory, self._tell = stopping, memory, tell
        self.descent = Descent(
            treebank, settings, learning_rate, relation_learning_rate, trees=stopping is None
        )
        # AdaGrad's cross-entropies are asked for at one point alone
        self.objective = ParserObjective(treebank, settings, c2, once=stopping is None)
        self._share = -(-stopping.max_iterations // epochs) if stopping else 0
        self._passes = len(self._batches(0))
        self.steps, self._epochs = self._share + self._passes, epochs
        self.losses: list[float] = []
        self.relation_losses: list[float] = []
        self._sums = [0.0, 0.0]  # of this epoch so far

    @property
    def passes_per_epoch(self) -> int:
        """How often an epoch sees each sentence."""
        return self._share + 1

    @cached_property
    def search(self) -> Search | None:
        """L-BFGS, which begins when it is first asked for."""
        if self._stopping is None:
            return None
        size, stopping = self.objective.size, self._stopping
        return Search(size, self.objective, stopping, memory=self._memory, tell=self._tell)

    @property
    def over(self) -> bool:
        """Whether all passes are done."""
        return self.descent.steps >= self._passes * self._epochs

    def step(self, epoch: int, step: int) -> None:
        """An iteration of L-BFGS, or a batch."""
        if step < self._share and self.search is not None:
            self.search.iterate()
            return
        sentences = self._batches(epoch)[step - self._share]
        losses = self.descent.step(sentences)
        if not all(map(math.isfinite, losses)):
            codes = self._bank.codes.take(sentences)
            raise NotFiniteError(
                f"in epoch {epoch + 1} the loss is not finite: {losses[0]:g} of trees,"
                f" {losses[1]:g} of relations",
                {**codes._asdict(), "sentences": sentences, "weights": self.descent.weights},
            )
        self._sums = [total + loss for total, loss in zip(self._sums, losses, strict=True)]

    def end_epoch(self) -> dict[str, float]:
        """Cross-entropies of trees and of relations, summed, and how far L-BFGS got."""
        loss, relation_loss = self._sums
        self._sums = [0.0, 0.0]
        self.relation_losses.append(relation_loss)
        if self.search is None:
            self.losses.append(loss)
            return {"loss": loss, "relation_loss": relation_loss}
        reached = self.search.measures()
        penalty = self.objective.penalty(self.search.point)
        found = {"loss": reached["penalised_loss"] - penalty, "relation_loss": relation_loss}
        return found | reached

    def model(self) -> Parser:
        """The parser as it is."""
        return self.descent.parser(None if self.search is None else self.search.point.numpy())

    def kl(self, epoch: int) -> float:
        """KL(target ‖ model) of trees per sentence.

        Of AdaGrad from the losses of an epoch, from 1.
        """
        if self.search is None:
            entropy = self.descent.targets.entropy(np.arange(len(self._bank)))
            return (self.losses[epoch - 1] - entropy) / len(self._bank)
        self.objective(self.search.point)
        return self.objective.kl / len(self._bank)

    def measures(self, parser: Parser) -> dict[str, float]:
        """How near a parser comes to the targets of the training sentences.

        ``kl`` is the cross-entropy less the target's entropy, KL(target ‖ model). RAML of several
        trees is a mixture, whose own entropy nobody can sum up: the mean of its components' is
        subtracted, so that ``kl`` is the mean of KL(component ‖ model), one component for each
        tree.
        """
        self.objective(torch.from_numpy(parser.weights))
        words = int(self._bank.codes.lengths.sum())
        relation_loss = sum(self.descent.relation_loss(batch, parser) for batch in self._batches(0))
        return {
            "cross_entropy": self.objective.cross_entropy / len(self._bank),
            "kl": self.objective.kl / len(self._bank),
            "relation_loss": relation_loss / words,
            "parameters": float(parser.weights.size + parser.relation_weights.size),
        } | ({} if self.search is None else self.search.measures())

    def state(self) -> dict[str, Tensor]:
        """Weights, step sizes, sums of weights, losses, and the search."""
        losses = {
            "losses": [*self.losses, self._sums[0]],
            "relation_losses": [*self.relation_losses, self._sums[1]],
        }
        state = {name: torch.tensor(values, dtype=torch.float64) for name, values in losses.items()}
        search = {} if self.search is None else self.search.state()
        return self.descent.state() | state | search

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        self.descent.load_state(state)
        *self.losses, loss = state["losses"].tolist()
        *self.relation_losses, relation_loss = state["relation_losses"].tolist()
        self._sums = [loss, relation_loss]
        if self.search is not None:
            self.search.load_state(state)
