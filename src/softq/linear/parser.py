"""A dependency parser with scikit-learn's interface."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np

from softq.errors import ConvergenceWarning, DataError
from softq.formats.conllu import TreeSentence
from softq.lab.run import BEST
from softq.linear import options
from softq.linear.features import ArcIndex
from softq.linear.options import choice, not_negative, positive
from softq.linear.parser_input import (
    attachment_score,
    check_tags,
    read_held_out,
    read_sentences,
    read_trees,
)
from softq.linear.parser_training import (
    Judge,
    Schedule,
    Stopping,
    Trained,
    by_batches,
    by_search,
)
from softq.linear.parsing import Decoding, Parse, Parser, ParserSettings, Treebank, Trees
from softq.linear.saved_model import FiledEstimator
from softq.targets import ObjectiveName

Array = np.ndarray[Any, Any]
Optimizer = Literal["adagrad", "lbfgs"]
Nonprojective = Literal["lift", "skip", "error"]


class NonprojectiveWarning(UserWarning):
    """Training trees with crossing arcs were changed or left out, because a projective model has none."""


class DependencyParser(FiledEstimator):
    """A log-linear model of dependency trees, scored arc by arc, trained exactly by ML, RAML or SQDML (appendix eq. 5-8).

    Training minimises Σ H(target, model) over the sentences, by default over projective trees. What an arc's relation is is learnt
    beside it, by a log-linear model on the arcs of the references; ``objective`` is of trees alone.

    A sentence of X is one of these, the same in all of X:

    - a `softq.formats.conllu.TreeSentence`, as `softq.formats.conllu.read_conllu` gives it, with a tree or without;
    - a sequence of words, each a string; a *tuple* (form, upos) or (form, upos, xpos); or a dict with ``"form"`` and what is known of
      ``"lemma"``, ``"upos"``, ``"xpos"`` and ``"feats"``. Parts of speech matter much; without them a parser is poor.

    Args:
        objective: ``"ml"`` (eq. 2), ``"raml"`` (eq. 16) or ``"sqdml"`` (eq. 15), the reward being the number of right heads; with one
            annotator the last two are the same.
        tau: temperature of ``"raml"`` and ``"sqdml"``; ``"ml"`` ignores it.
        spanning: arcs may cross (matrix-tree theorem); else trees are projective (Eisner's algorithm).
        decoding: ``"mode"``, the most probable tree; ``"mbr"``, the tree of the most right heads to be expected.
        templates: features of arcs (see `softq.linear.features.templates`); None: those built in that read what X has.
        relation_templates: features of an arc's relation, likewise.
        bits: features of arcs are hashed into 2^bits weights.
        relation_bits: features of relations into 2^bits rows, each with a weight for every relation.
        min_freq: words, lemmas and affixes that occur less often in X are as good as unknown.
        optimizer: ``"adagrad"``: passes in batches of sentences, the weights averaged over all steps; ``"lbfgs"``: all sentences at
            once, to convergence, and relations by ``"adagrad"`` all the same.
        learning_rate: of ``"adagrad"``, for trees.
        relation_learning_rate: likewise for relations.
        epochs: passes of ``"adagrad"``, for trees and relations.
        batch_size: sentences per step of ``"adagrad"``.
        patience: with ``X_dev``, ``"adagrad"`` stops after so many epochs without a better score on it; 0: never before ``epochs``.
        c2: penalty c2 ‖w‖² on the weights of arcs; ``"lbfgs"`` alone has it.
        max_iterations: of ``"lbfgs"``.
        tolerance: ``"lbfgs"`` has converged when the gradient's norm is this part of the first one.
        nonprojective: what to do with training trees that have crossing arcs where ``spanning`` is off: ``"lift"`` them until they are
            projective, ``"skip"`` their sentences, both with a `NonprojectiveWarning` that says how many, or take them for an ``"error"``.
        random_state: None, a seed, or a generator of numpy: the batches of ``"adagrad"``.
        verbose: print a line per epoch or iteration.

    Attributes:
        relations_: names of relations, sorted; empty where the trees had none.
        parser_: the `softq.linear.parsing.Parser`.
        index_: its `softq.linear.features.ArcIndex`.
        n_iter_: epochs, or iterations.
        best_iter_: the epoch that is kept: with ``X_dev`` the one of the best score, else the last; with ``"lbfgs"`` its last iteration.
        converged_: whether ``tolerance`` was reached; None for ``"adagrad"``, which has no such rule.
        loss_curve_: the minimised loss at the start and after each iteration; for ``"adagrad"`` the cross-entropy of the trees in each
            epoch, each batch's before its step.
        relation_loss_curve_: cross-entropy of relations in each epoch.
        kl_: KL(target ‖ model) of trees, per sentence: the cross-entropy less what no model can avoid; for ``"adagrad"`` from
            ``loss_curve_`` at the epoch that is kept.
        dev_scores_: `score` on ``X_dev`` after each epoch; with ``"lbfgs"`` at its end; empty where `fit` had none.
        dev_score_: the best of them, which is that of the parser; None where there is none.
        nonprojective_: how many sentences of X had a tree with crossing arcs, and were lifted or skipped.

    >>> X = [[("dogs", "NOUN"), ("bark", "VERB")], [("a", "DET"), ("dog", "NOUN"), ("barks", "VERB")]]
    >>> y = [([2, 0], ["nsubj", "root"]), ([2, 3, 0], ["det", "nsubj", "root"])]
    >>> parser = DependencyParser(bits=12, relation_bits=8, min_freq=1, random_state=0).fit(X, y)
    >>> parser.predict([[("the", "DET"), ("cat", "NOUN"), ("sleeps", "VERB")]])
    [Parse(heads=(2, 3, 0), relations=('det', 'nsubj', 'root'), confidences=())]
    >>> crowd = [[y[0], y[0], ([0, 1], ["root", "obj"])], [y[1], None, y[1]]]  # three annotators, of whom one missed a sentence
    >>> parser.set_params(objective="sqdml", tau=0.5).fit(X, crowd).score(X, y)
    1.0

    """

    def __init__(
        self,
        *,
        objective: ObjectiveName = "ml",
        tau: float | None = None,
        spanning: bool = False,
        decoding: Decoding = "mode",
        templates: Sequence[str] | None = None,
        relation_templates: Sequence[str] | None = None,
        bits: int = 22,
        relation_bits: int = 17,
        min_freq: int = 2,
        optimizer: Optimizer = "adagrad",
        learning_rate: float = 0.1,
        relation_learning_rate: float = 0.2,
        epochs: int = 6,
        batch_size: int = 32,
        patience: int = 3,
        c2: float = 1.0,
        max_iterations: int = 200,
        tolerance: float = 1e-3,
        nonprojective: Nonprojective = "lift",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        # scikit-learn's convention: keep what was given, check it in fit.
        self.objective = objective
        self.tau = tau
        self.spanning = spanning
        self.decoding = decoding
        self.templates = templates
        self.relation_templates = relation_templates
        self.bits = bits
        self.relation_bits = relation_bits
        self.min_freq = min_freq
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.relation_learning_rate = relation_learning_rate
        self.epochs = epochs
        self.batch_size = batch_size
        self.patience = patience
        self.c2 = c2
        self.max_iterations = max_iterations
        self.tolerance = tolerance
        self.nonprojective = nonprojective
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        X_dev: Any = None,
        y_dev: Any = None,
        *,
        ref_weights: Any = None,
    ) -> Self:
        """Train on sentences X and their trees y.

        Args:
            X: sentences (see the class); one without words teaches nothing.
            y: for each sentence its tree: a sequence of heads, whole numbers, 0 for the root; or a pair of heads and relations, strings;
                or a `TreeSentence`, or what `predict` returns. Or a *list* of such trees, one per annotator, None for one who is missing,
                and as many annotators as there happen to be: heads are integers and relations strings, so that two trees are never
                taken for one with relations. None: the trees that the sentences of X have.
            X_dev: sentences that are not learnt from, but scored (``dev_scores_``); ``"adagrad"`` keeps the epoch that is best on them.
            y_dev: their trees, likewise.
            ref_weights: for each sentence a weight from 0 for each of its trees in ``y``, missing ones too; None: all alike.

        """
        settings, schedule, stopping = (
            self._settings(),
            self._schedule(),
            self._stopping(),
        )  # what is wrong is told before it takes long
        random = options.generator(self.random_state)
        least = options.count("min_freq", self.min_freq)
        choice("decoding", self.decoding, get_args(Decoding))
        treatment = choice("nonprojective", self.nonprojective, get_args(Nonprojective))
        sentences = read_sentences(X)
        trees = read_trees(sentences, y, ref_weights)
        held_out = read_held_out(X_dev, y_dev)
        numbers = np.flatnonzero([bool(sentence.forms) for sentence in sentences])
        if not len(numbers):
            raise DataError(
                f"X must hold at least one word to learn from, got {len(sentences)} sentences without any"
            )
        crossing = numbers[:0] if settings.spanning else numbers[trees.take(numbers).crossing()]
        if len(crossing):
            _tell_of_crossing(crossing, len(numbers), treatment)
        if treatment == "skip":
            numbers = np.setdiff1d(numbers, crossing)
        sentences, trees = [sentences[number] for number in numbers], trees.take(numbers)
        index = ArcIndex.fit(sentences, self.templates, self.relation_templates, min_freq=least)
        possible = trees.projectivised() if treatment == "lift" and len(crossing) else trees
        bank = Treebank(index, index.encode(sentences), trees, possible)
        trained = self._train(
            bank, settings, schedule, stopping, random, self._judge(bank, held_out)
        )
        if trained.problem is not None:
            warnings.warn(trained.problem, ConvergenceWarning, stacklevel=2)
        self._keep(trained.parser)
        self.n_iter_ = trained.kept if trained.converged is not None else len(trained.losses)
        self.best_iter_ = trained.kept
        self.converged_ = trained.converged
        self.loss_curve_, self.relation_loss_curve_ = trained.losses, trained.relation_losses
        self.kl_ = trained.kl / len(sentences)
        self.dev_scores_ = trained.scores
        self.dev_score_ = max(trained.scores, default=None)
        self.nonprojective_ = len(crossing)
        return self

    def _train(
        self,
        bank: Treebank,
        settings: ParserSettings,
        schedule: Schedule,
        stopping: Stopping | None,
        random: options.Random,
        judge: Judge | None,
    ) -> Trained:
        verbose = bool(self.verbose)
        if stopping is None:
            return by_batches(bank, settings, schedule, random=random, judge=judge, verbose=verbose)
        return by_search(
            bank, settings, schedule, stopping, random=random, judge=judge, verbose=verbose
        )

    def _judge(
        self, bank: Treebank, held_out: tuple[list[TreeSentence], Trees] | None
    ) -> Judge | None:
        """What scores a parser on held-out sentences, which get their numbers once."""
        if held_out is None:
            return None
        sentences, trees = held_out
        try:
            check_tags(bank.index, sentences, relations=bool(bank.relations))
        except DataError as error:
            raise DataError(f"X_dev and y_dev: {error}") from None
        codes = bank.index.encode(sentences)
        return lambda parser: attachment_score(parser.parse_codes(codes, self.decoding), trees)

    def _keep(self, parser: Parser) -> None:
        self.parser_, self.index_, self.relations_ = parser, parser.index, list(parser.relations)

    # --- predictions --------------------------------------------------------------------------------------

    def predict(self, X: Any) -> list[Parse]:
        """The tree of each sentence: its heads, and its relations where the training trees had some."""
        return self._parse(self._sentences(X))

    def predict_marginals(self, X: Any) -> list[Array]:
        """Probabilities of all arcs of each sentence of n words, ``[n + 1, n + 1]`` (head, dependent); 0 is the root.

        Each column but the first, which is 0, sums to 1.
        """
        return self._fitted().marginals(self._sentences(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Share of words with the right head (UAS), punctuation included; where annotators disagree, a head is as right as they are many.

        ``y`` is as in `fit`; None: the trees of the sentences of X.
        """
        sentences = self._sentences(X)
        return attachment_score(self._parse(sentences), read_trees(sentences, y))

    def _parse(self, sentences: list[TreeSentence]) -> list[Parse]:
        return self._fitted().parse(
            sentences, choice("decoding", self.decoding, get_args(Decoding))
        )

    def _sentences(self, X: Any) -> list[TreeSentence]:
        parser = self._fitted()
        sentences = read_sentences(X)
        check_tags(parser.index, sentences, relations=bool(parser.relations))
        return sentences

    def _fitted(self) -> Parser:
        self._check_fitted()
        return self.parser_

    def __sklearn_is_fitted__(self) -> bool:
        return "parser_" in vars(self)

    # --- on the disk --------------------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted parser to one safetensors file, which `softq predict` and `softq evaluate` read too; nothing is pickled.

        The file appears whole or not at all, and replaces an older one. Options are kept as they are now; of a ``random_state`` that is
        neither None nor a seed None is kept.
        """
        parser = self._fitted()
        parser.save(
            path,
            self._notes(options.as_json(self.get_params()), _LEARNT) | {"decoding": self.decoding},
        )

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The parser that `save` wrote; it predicts the same. Its arrays stay on the disk until they are used.

        A run folder of ``softq train parsing`` is read too, or the ``best.safetensors`` in it: what the run measured stays there.
        """
        parser, notes = Parser.load(Path(path) / BEST if Path(path).is_dir() else path)
        if "decoding" in notes and "estimator" not in notes:
            return cls._of_run(parser, notes)
        with cls._reading_notes(path, notes) as (loaded, learnt):
            for name in _LEARNT:
                setattr(loaded, name, learnt[name])
            loaded._keep(parser)
        return loaded

    @classmethod
    def _of_run(cls, parser: Parser, notes: dict[str, Any]) -> Self:
        """The parser of a run; attributes of a fit are None."""
        index = parser.index
        templates = {
            "templates": list(index.templates),
            "relation_templates": list(index.relation_templates),
        }
        sizes = {
            "bits": len(parser.weights).bit_length() - 1,
            "relation_bits": len(parser.relation_weights).bit_length() - 1,
        }
        loaded = cls(spanning=parser.spanning, decoding=notes["decoding"], **templates, **sizes)  # type: ignore[arg-type]
        for name in _LEARNT:
            setattr(loaded, name, None)
        loaded._keep(parser)
        return loaded

    # --- options ------------------------------------------------------------------------------------------

    def _settings(self) -> ParserSettings:
        objective = choice("objective", self.objective, get_args(ObjectiveName))
        return ParserSettings(
            objective=objective,
            tau=options.temperature(objective, self.tau),
            spanning=bool(self.spanning),
            bits=options.bits("bits", self.bits),
            relation_bits=options.bits("relation_bits", self.relation_bits),
        )

    def _schedule(self) -> Schedule:
        return Schedule(
            learning_rate=positive("learning_rate", self.learning_rate),
            relation_learning_rate=positive("relation_learning_rate", self.relation_learning_rate),
            batch_size=options.count("batch_size", self.batch_size),
            epochs=options.count("epochs", self.epochs),
            patience=options.count("patience", self.patience) if self.patience else 0,
        )

    def _stopping(self) -> Stopping | None:
        """When a search ends; None for AdaGrad."""
        if choice("optimizer", self.optimizer, get_args(Optimizer)) == "adagrad":
            return None
        return Stopping(
            c2=not_negative("c2", self.c2),
            max_iterations=options.count("max_iterations", self.max_iterations),
            tolerance=positive("tolerance", self.tolerance),
        )


_LEARNT = (
    "n_iter_",
    "best_iter_",
    "converged_",
    "loss_curve_",
    "relation_loss_curve_",
    "kl_",
    "dev_scores_",
    "dev_score_",
    "nonprojective_",
)
"""Attributes of a fit that are no part of the parser."""


def _tell_of_crossing(crossing: Array, sentences: int, treatment: Nonprojective) -> None:
    """Warn of sentences (their numbers) with crossing arcs, or refuse them."""
    count = f"{len(crossing)} of {sentences} sentences have a tree with crossing arcs"
    if treatment == "error":
        raise DataError(
            f"{count}, the first is sentence {crossing[0]}, and nonprojective='error': take 'lift' or 'skip', or spanning=True"
        )
    if treatment == "skip" and len(crossing) == sentences:
        raise DataError(
            f"{count}, and with nonprojective='skip' nothing is left to learn from: take 'lift', or spanning=True"
        )
    done = (
        "they are lifted until none cross"
        if treatment == "lift"
        else "these sentences are left out"
    )
    warnings.warn(
        f"{count}, which a projective model has none of: {done}", NonprojectiveWarning, stacklevel=3
    )
