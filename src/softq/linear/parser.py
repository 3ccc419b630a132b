"""A dependency parser with scikit-learn's interface."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np

from softq.errors import DataError
from softq.formats.conllu import TreeSentence
from softq.formats.trees import is_projective
from softq.linear.estimator_inputs import (
    Rule,
    bits,
    check_single,
    choice,
    count,
    generator,
    held_out_data,
    not_negative,
    positive,
)
from softq.linear.features import ArcIndex
from softq.linear.parser_input import (
    attachment_score,
    check_tags,
    read_held_out,
    read_sentences,
    read_trees,
)
from softq.linear.parser_training import EncodedTreebank, ParserFit, ParserSettings
from softq.linear.parsing import Decoding, Parse, Parser
from softq.linear.saved_model import SavedEstimator
from softq.linear.training import Array, Batches, Stopping, diverging, epochs_of
from softq.rewards import PartReward
from softq.spaces import Distribution
from softq.targets import ObjectiveName

Optimizer = Literal["adagrad", "lbfgs"]
Nonprojective = Literal["lift", "skip", "error"]


class NonprojectiveWarning(UserWarning):
    """Training trees with crossing arcs were changed or left out, because a projective model has none."""


class DependencyParser(SavedEstimator):
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
        num_memories: steps that ``"lbfgs"`` remembers.
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
        relation_loss_curve_: cross-entropy of relations in each epoch; empty where the trees had none.
        kl_: KL(target ‖ model) of trees, per sentence: the cross-entropy less what no model can avoid; for ``"adagrad"`` from
            ``loss_curve_`` at the epoch that is kept. None in a run of ``softq train``, whose results have it.
        temperature_: what scores of arcs are divided by: 1, or what `calibrate` has found.
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

    _noun, _format = "parser", "softq parser 2"
    _model_type, _model_name = Parser, "parser_"
    _learnt = (
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

    kl_: float | None
    dev_score_: float | None

    _rules: ClassVar[Mapping[str, Rule]] = {
        "objective": choice(ObjectiveName),
        "spanning": lambda name, value: bool(value),
        "decoding": choice(Decoding),
        "bits": bits,
        "relation_bits": bits,
        "min_freq": count,
        "optimizer": choice(Optimizer),
        "learning_rate": positive,
        "relation_learning_rate": positive,
        "epochs": count,
        "batch_size": count,
        "patience": lambda name, value: count(name, value) if value else 0,
        "c2": not_negative,
        "max_iterations": count,
        "tolerance": positive,
        "num_memories": count,
        "nonprojective": choice(Nonprojective),
        "random_state": generator,
    }

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
        num_memories: int = 8,
        nonprojective: Nonprojective = "lift",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        # scikit-learn's convention: keep what was given, check it in fit.
        self.__dict__.update(
            objective=objective,
            tau=tau,
            spanning=spanning,
            decoding=decoding,
            templates=templates,
            relation_templates=relation_templates,
            bits=bits,
            relation_bits=relation_bits,
            min_freq=min_freq,
            optimizer=optimizer,
            learning_rate=learning_rate,
            relation_learning_rate=relation_learning_rate,
            epochs=epochs,
            batch_size=batch_size,
            patience=patience,
            c2=c2,
            max_iterations=max_iterations,
            tolerance=tolerance,
            num_memories=num_memories,
            nonprojective=nonprojective,
            random_state=random_state,
            verbose=verbose,
        )

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
            y: for each sentence its tree: a sequence of heads, whole numbers, 0 for the root; or a
                pair of heads and relations, strings; or a `TreeSentence`, or what `predict`
                returns. Or a *list* of such trees, one per annotator, None for one who is missing,
                and as many annotators as there happen to be: heads are integers and relations
                strings, so that two trees are never taken for one with relations. None: the trees
                that the sentences of X have.
            X_dev: sentences that are not learnt from, but scored (``dev_scores_``); ``"adagrad"``
                keeps the epoch that is best on them.
            y_dev: their trees, likewise.
            ref_weights: for each sentence a weight from 0 for each of its trees in ``y``, missing
                ones too; None: all alike.

        """
        settings = self.settings()  # what is wrong with options is told before it takes long
        checked = self._options_of(self._rules)
        random, treatment = checked["random_state"], checked["nonprojective"]
        sentences = read_sentences(X)
        trees = read_trees(sentences, y, ref_weights)
        held_out = read_held_out(X_dev, y_dev)
        numbers = np.flatnonzero([bool(sentence.forms) for sentence in sentences])
        if not len(numbers):
            raise DataError(
                f"X must hold at least one word to learn from, got {len(sentences)} sentences"
                " without any"
            )
        crossing = numbers[:0] if settings.spanning else numbers[trees.take(numbers).crossing()]
        if len(crossing):
            tell_of_crossing(crossing, len(numbers), treatment)
        if treatment == "skip":
            numbers = np.setdiff1d(numbers, crossing)
        sentences, trees = [sentences[number] for number in numbers], trees.take(numbers)
        index = ArcIndex.fit(
            sentences, self.templates, self.relation_templates, min_freq=self.min_freq
        )
        possible = trees.projectivised() if treatment == "lift" and len(crossing) else trees
        bank = EncodedTreebank(index, index.encode(sentences), trees, possible)
        if held_out is not None:
            with held_out_data():
                check_tags(index, held_out[0], relations=bool(bank.relations))

        def batches(epoch: int) -> list[Array]:
            order = random.permutation(len(bank))
            return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]

        fit = self.start(bank, settings, batches)
        self._run(fit, None if held_out is None else (index.encode(held_out[0]), held_out[1]))
        self.nonprojective_ = len(crossing)
        return self

    def start(self, bank: EncodedTreebank, settings: ParserSettings, batches: Batches) -> ParserFit:
        """Start training by these options, for `fit` and ``softq train`` alike."""
        searches = self.optimizer == "lbfgs"
        return ParserFit(
            bank,
            settings,
            batches,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            relation_learning_rate=self.relation_learning_rate,
            stopping=Stopping(self.max_iterations, self.tolerance) if searches else None,
            c2=self.c2 if searches else 0.0,
            memory=self.num_memories,
            tell=self._tell if self.verbose else None,
        )

    def _run(self, fit: ParserFit, held_out: Any) -> None:
        """Train to the end, and keep the parser that is best on held-out sentences, or the last one."""
        searches = self.optimizer == "lbfgs"
        rates = (
            f"lower learning_rate ({self.learning_rate:g}) or relation_learning_rate"
            f" ({self.relation_learning_rate:g})"
        )
        scores: list[float] = []
        with diverging(f"raise c2 ({self.c2:g})" if searches else rates):
            for epoch, found in epochs_of(fit, self.epochs):
                trees = "" if searches else f"of trees {found['loss']:.6g}, "
                told = (
                    f"epoch {epoch}: cross-entropy {trees}of relations {found['relation_loss']:.6g}"
                )
                if held_out is not None and (not searches or epoch == self.epochs):
                    parser = fit.model()
                    scores.append(
                        attachment_score(
                            parser.parse_codes(held_out[0], self.decoding), held_out[1]
                        )
                    )
                    told += f", UAS on X_dev {scores[-1]:.4f}"
                    if scores[-1] > max(scores[:-1], default=-1.0):
                        self.keep(fit)
                self._tell(told)
                if (
                    not searches
                    and self.patience
                    and scores
                    and epoch - self.best_iter_ >= self.patience
                ):
                    break
        if not scores:
            self.keep(fit)
        if fit.search is not None:
            fit.search.warn()
        self._measure(fit)
        self.kl_ = fit.kl(self.best_iter_)
        self.dev_scores_, self.dev_score_ = scores, max(scores, default=None)

    def keep(self, fit: ParserFit) -> None:
        """Take the parser that training has found, with what was measured on the way."""
        self._keep(fit.model())
        self._measure(fit)
        self.best_iter_ = self.n_iter_
        self.dev_scores_, self.dev_score_, self.nonprojective_ = [], None, 0

    def _measure(self, fit: ParserFit) -> None:
        """What training has measured so far."""
        search = fit.search
        self.n_iter_ = len(fit.relation_losses) if search is None else search.iterations
        self.loss_curve_ = list(fit.losses if search is None else search.losses)
        self.relation_loss_curve_ = list(fit.relation_losses) if self.relations_ else []
        self.converged_, self.kl_ = None if search is None else search.converged, None

    def _keep(self, model: Parser) -> None:
        self.parser_, self.index_, self.relations_ = model, model.index, list(model.relations)

    def _tell(self, text: str) -> None:
        if self.verbose:
            print(text, flush=True)  # noqa: T201 -- what verbose asks for

    # --- predictions --------------------------------------------------------------------------------------

    def predict(self, X: Any, *, reward: PartReward | None = None) -> list[Parse]:
        """The tree of each sentence.

        Its heads, and its relations where the training trees had some. With a reward over arcs,
        the tree that is expected to earn most of it, whatever ``decoding`` is.
        """
        return self._parse(self._sentences(X), reward)

    def predict_marginals(self, X: Any) -> list[Array]:
        """Probabilities of all arcs of each sentence of n words, ``[n + 1, n + 1]`` (head, dependent); 0 is the root.

        Each column but the first, which is 0, sums to 1.
        """
        sentences = self._sentences(X)
        return self.parser_.marginals(sentences)

    def score(self, X: Any, y: Any = None) -> float:
        """Share of words with the right head (UAS), punctuation included.

        Where annotators disagree, a head is as right as they are many.

        ``y`` is as in `fit`; None: the trees of the sentences of X.
        """
        sentences = self._sentences(X)
        return attachment_score(self._parse(sentences), read_trees(sentences, y))

    def output_ids(self, X: Any, y: Any = None) -> list[Array]:
        """The heads ``[n]`` of the words of each sentence, 0 the root."""
        trees = read_trees(self._sentences(X), y)
        check_single(trees.heads, "tree")
        return [heads[0] for heads in trees.heads]

    def output_probabilities(self, X: Any) -> list[Array]:
        """Probabilities ``[n, n + 1]`` of the heads of each word, 0 the root."""
        return [table[:, 1:].T for table in self.predict_marginals(X)]

    def _is_possible(self, output: Array) -> bool:
        return self._fitted().spanning or is_projective(output)

    def _distributions(self, model: Parser, X: Any) -> Iterator[tuple[Array, Distribution]]:
        return model.trees(model.index.encode(self._sentences(X)))

    def _parse(
        self, sentences: list[TreeSentence], reward: PartReward | None = None
    ) -> list[Parse]:
        return self.parser_.parse(sentences, self._option("decoding"), reward=reward)

    def _sentences(self, X: Any) -> list[TreeSentence]:
        parser = self._fitted()
        sentences = read_sentences(X)
        check_tags(parser.index, sentences, relations=bool(parser.relations))
        return sentences

    # --- options ------------------------------------------------------------------------------------------

    def settings(self) -> ParserSettings:
        """What to train toward, and how large a parser."""
        objective, tau = self._objective_and_tau()
        sizes = self._options_of(("spanning", "bits", "relation_bits"))
        return ParserSettings(objective, tau, **sizes)


def tell_of_crossing(crossing: Array, sentences: int, treatment: Nonprojective) -> None:
    """Warn of sentences (their numbers) with crossing arcs, or refuse them."""
    count = f"{len(crossing)} of {sentences} sentences have a tree with crossing arcs"
    if treatment == "error":
        raise DataError(
            f"{count}, the first is sentence {crossing[0]}, and nonprojective='error': take 'lift'"
            " or 'skip', or spanning=True"
        )
    if treatment == "skip" and len(crossing) == sentences:
        raise DataError(
            f"{count}, and with nonprojective='skip' nothing is left to learn from: take 'lift', or"
            " spanning=True"
        )
    done = (
        "they are lifted until none cross"
        if treatment == "lift"
        else "these sentences are left out"
    )
    warnings.warn(
        f"{count}, which a projective model has none of: {done}", NonprojectiveWarning, stacklevel=3
    )
