"""A tagger with scikit-learn's interface and that of sklearn-crfsuite."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import torch

from softq.annotators.reliability import AnnotatorRow, WeightModel, reliability_of
from softq.annotators.truth import Posterior
from softq.calibration import UNKNOWN
from softq.checks import check_count
from softq.errors import DataError, EstimatorError
from softq.formats.file_checks import one_of
from softq.formats.tags import OUTSIDE, Scheme, every_tag
from softq.kernels.features import crf as kernels
from softq.linear.estimator_inputs import (
    Rule,
    check_single,
    choice,
    count,
    generator,
    none_or,
    not_negative,
    positive,
)
from softq.linear.features import FeatureMatrix
from softq.linear.saved_model import SavedEstimator
from softq.linear.segment_tags import SegmentTags
from softq.linear.tagger_input import (
    Annotations,
    Index,
    Kind,
    SchemeOption,
    TokenSentences,
    by_place,
    check_held_out,
    reward_as_json,
    reward_for,
    scheme_for,
)
from softq.linear.tagger_training import BatchFit, CRFSettings, SearchFit
from softq.linear.tagging import Constraints, Decoding, References, Tagger, segments_for
from softq.linear.training import Array, Batches, Stopping, diverging, epochs_of
from softq.linear.truth_loop import LoopOptions, TruthModel, find_truth
from softq.metrics import SpanScores, span_statistics
from softq.options import TaggerSpace
from softq.spaces import Distribution
from softq.targets import ObjectiveName

Algorithm = Literal["lbfgs", "adagrad"]

_MOST_ITERATIONS = 1000  # unless said
_CRFSUITE_ONLY = ("l2sgd", "ap", "pa", "arow")


class SpanProbability(NamedTuple):
    """An entity that a sentence may have: type, first word, word after its last, probability."""

    kind: str
    start: int
    end: int
    probability: float


class CRFTagger(SavedEstimator):
    """A linear chain over labels, or segments, with sparse features, trained by ML, RAML or SQDML.

    A drop-in for ``sklearn_crfsuite.CRF``.

    Training minimises Σ H(target, model) + c1 ‖w‖₁ + c2 ‖w‖² over the sentences (appendix eq. 5-6).
    With ``"ml"`` that is CRFsuite's objective, and the weights are CRFsuite's; but features whose
    values are negative are not dropped.

    A token of X is one of these, the same in all of X:

    - a string: a word, from which ``templates`` make features;
    - a *tuple* of two strings: a word and its part of speech, likewise;
    - a dict, or a *list* or set of strings: features of your own, as python-crfsuite takes them
      (see `softq.linear.features.AttributeIndex`).

    An option that ``sklearn_crfsuite.CRF`` has as well may be None, which is its default there:
    here, too.

    Args:
        algorithm: ``"lbfgs"``: all sentences at once, to convergence (with ``c1`` by OWL-QN);
            ``"adagrad"``: passes in batches.
        c1: penalty on absolute weights, which makes most of them 0; ``"lbfgs"`` alone has it.
        c2: penalty on squared weights.
        min_freq: a feature and a label, or two neighbouring labels, have a weight if they are seen
            together so often; a feature counts by its value, up to 1 once is enough, and at 0 a
            feature of the value 0 is seen, too.
        all_possible_states: weights for every feature with every label, not only for those seen
            together. ``"adagrad"`` always has all.
        all_possible_transitions: weights for every two neighbouring labels, not only for those
            seen. ``"adagrad"`` always has all.
        max_iterations: of ``"lbfgs"``; None: 1000.
        num_memories: steps that ``"lbfgs"`` remembers.
        epsilon: ``"lbfgs"`` has converged when the gradient's norm is at most this part of max(1,
            ‖w‖);
        delta: or when ``period`` iterations have lowered the loss by at most this part of it, less
            the target's entropy, which no weights can lower (0 with ``"ml"`` and one annotator).
            Take 0 for all that float32 can give.
        period: of ``delta``.
        tolerance: in place of ``epsilon`` and ``delta``: ``"lbfgs"`` has converged when the
            gradient's norm is at most this part of the first one, as in ``softq train ner``.
        learning_rate: of ``"adagrad"``.
        batch_size: sentences per step of ``"adagrad"``.
        max_epochs: passes of ``"adagrad"``.
        objective: ``"ml"`` (eq. 2), ``"raml"`` (eq. 16) or ``"sqdml"`` (eq. 15); with one annotator
            the last two are the same.
        tau: temperature of ``"raml"`` and ``"sqdml"``; ``"ml"`` ignores it.
        reward: what a predicted label earns: ``[K, K]`` (predicted, right) in the order of
            ``classes_``, or a `softq.rewards.TokenReward`; or a dict with what a hit on a label
            earns, 1 for labels it does not name. None: token accuracy. Of segments: a dict with
            what an exact segment of a type earns (``{"PER": 2.0, "O": 0.5}``), 1 for those it does
            not name, or None.
        entity_weight: what a hit on any label but ``O`` earns, where a hit on ``O`` earns 1; goes
            without ``reward``. Of segments: what an exact entity earns.
        space: ``"chain"``: labels, each of which depends on the one before; ``"segments"``: whole
            entities and single ``O``, a semi-Markov model (`softq.SemiMarkov`). A segment scores
            the sum of its words' labels, its length and the type before it, and is right or wrong
            as a whole. The labels must be tags of ``scheme``, BIO or BIOES, and what is predicted
            keeps to it, whatever ``constraints`` are. It goes without ``annotators`` and
            ``partial_labels``.
        max_segment: words of the longest segment; entities of y that are longer are cut into
            segments of so many words, with a `DataWarning`.
        constraints: where label sequences that break the tag scheme are forbidden: ``"none"``;
            ``"decode"``, in predictions; ``"target"``, there and in what is trained toward;
            ``"model"``, there and in the model as well. With them ``O`` is always a label, for
            without it there may be no sequence at all that is allowed.
        scheme: of ``constraints``; ``"auto"``: the scheme that the labels of `fit` follow.
        annotators: a model of the annotators' errors, estimated with a tagger in the loop (see
            `softq.linear.truth_loop`): ``"sequential"``, in which labels depend on the
            annotator's previous one, or ``"dawid-skene"``. With ``objective="ml"`` the tagger is
            then trained toward the probabilities of the true labels; with ``"sqdml"`` toward the
            annotators' log-probabilities alone, at the temperature ``tau``. None: annotators are
            references. They must have the same place in every sentence of ``y``, None where they
            are missing.
        partial_labels: whether a label of y may be None or ``"?"``, which nobody knows, a list of
            labels of which one is right (or ``"B-PER|B-ORG"``), or a dict of probabilities
            (``"B-PER=0.7|O=0.3"``; see `softq.annotators.known`). The rest is filled in with a
            tagger in the loop. It goes with ``objective="ml"``.
        rounds: of the tagger in the loop.
        templates: features of words (see `softq.linear.features.templates`); None:
            `softq.linear.features.default_templates`.
        hash_bits: hash features into 2^bits columns; None: keep a table of them.
        decoding: ``"viterbi"``, the most probable sequence; ``"mbr"``, the most right labels to be
            expected.
        random_state: None, a seed, or a generator of numpy: the batches of ``"adagrad"``.
        verbose: print a line per iteration or epoch.

    Attributes:
        classes_: K labels, sorted.
        tagger_: the `softq.linear.tagging.Tagger`.
        scheme_: the tag scheme that the labels follow; None where they are no tags of entities.
        n_iter_: iterations, or epochs.
        converged_: whether one of the rules was met; None for ``"adagrad"``, which has none.
        loss_curve_: the minimised loss at the start and after each iteration; for ``"adagrad"`` the
            cross-entropy of each epoch.
        truth_: the most probable true labels of the sentences, where they were estimated
            (``annotators`` or ``partial_labels``); else empty.
        annotators_: where ``ref_weights`` were, or a model of ``annotators``, what was: a row for each annotator
            (accuracy, precision, recall, weight), in the order of their names, which are their
            places in ``y``; else empty.
        temperature_: what scores are divided by: 1, or what `calibrate` has found.
        dev_score_: the `score` on ``X_dev`` and ``y_dev``; None where `fit` had none.
        kl_: KL(target ‖ model), the cross-entropy less what no model can avoid, per sentence; None
            for ``"adagrad"`` in a run of ``softq train``, which does not measure it.
        file_scheme_: the tag scheme in which ``softq predict`` writes labels; other than
            ``scheme_`` where a run converted its files.
        pos_column_: the column in which ``softq predict`` finds parts of speech, from 1; 0 where
            none are used.

    >>> X = [["Ann", "Lee", "met", "Bob", "."], ["He", "met", "Ann", "."]]
    >>> y = [["B-PER", "I-PER", "O", "B-PER", "O"], ["O", "O", "B-PER", "O"]]
    >>> tagger = CRFTagger(c2=0.1, constraints="decode").fit(X, y)
    >>> tagger.predict([["Ann", "met", "Lee", "."]])
    [['B-PER', 'O', 'B-PER', 'O']]
    >>> crowd = [[y[0], None, ["O", "B-PER", "O", "B-PER", "O"]], [y[1], y[1]]]  # three annotators, of whom two saw each sentence
    >>> CRFTagger(c2=0.1, objective="sqdml", tau=0.5).fit(X, crowd).predict_single(["He", "met", "Ann"])
    ['O', 'O', 'B-PER']

    """

    _noun, _format = "tagger", "softq tagger 2"
    _model_type, _model_name = Tagger, "tagger_"
    _learnt = (
        "n_iter_",
        "converged_",
        "loss_curve_",
        "kl_",
        "annotators_",
        "dev_score_",
        "scheme_",
        "file_scheme_",
        "pos_column_",
        "_kind",
    )

    kl_: float | None
    dev_score_: float | None

    _rules: ClassVar[Mapping[str, Rule]] = {
        "algorithm": choice(Algorithm),
        "c1": not_negative,
        "c2": not_negative,
        "min_freq": not_negative,
        "max_iterations": none_or(count),
        "num_memories": count,
        "epsilon": not_negative,
        "delta": not_negative,
        "period": count,
        "tolerance": none_or(positive),
        "learning_rate": positive,
        "batch_size": count,
        "max_epochs": count,
        "objective": choice(ObjectiveName),
        "entity_weight": positive,
        "constraints": choice(Constraints),
        "scheme": choice(SchemeOption),
        "space": choice(TaggerSpace),
        "max_segment": count,
        "annotators": none_or(choice(TruthModel)),
        "rounds": count,
        "decoding": choice(Decoding),
        "random_state": generator,
    }

    def __init__(
        self,
        *,
        algorithm: Algorithm | None = "lbfgs",
        c1: float | None = 0.0,
        c2: float | None = 1.0,
        min_freq: float | None = 0.0,
        all_possible_states: bool | None = False,
        all_possible_transitions: bool | None = False,
        max_iterations: int | None = None,
        num_memories: int | None = 6,
        epsilon: float | None = 1e-5,
        delta: float | None = 1e-5,
        period: int | None = 10,
        tolerance: float | None = None,
        learning_rate: float = 0.1,
        batch_size: int = 32,
        max_epochs: int = 30,
        objective: ObjectiveName = "ml",
        tau: float | None = None,
        reward: Any = None,
        entity_weight: float = 1.0,
        space: TaggerSpace = "chain",
        max_segment: int = 8,
        constraints: Constraints = "none",
        scheme: SchemeOption = "auto",
        annotators: TruthModel | None = None,
        partial_labels: bool = False,
        rounds: int = 5,
        templates: Sequence[str] | None = None,
        hash_bits: int | None = None,
        decoding: Decoding = "viterbi",
        random_state: Any = None,
        verbose: bool | None = False,
    ) -> None:
        # scikit-learn's convention: keep what was given, check it in fit.
        self.__dict__.update(
            algorithm=algorithm,
            c1=c1,
            c2=c2,
            min_freq=min_freq,
            all_possible_states=all_possible_states,
            all_possible_transitions=all_possible_transitions,
            max_iterations=max_iterations,
            num_memories=num_memories,
            epsilon=epsilon,
            delta=delta,
            period=period,
            tolerance=tolerance,
            learning_rate=learning_rate,
            batch_size=batch_size,
            max_epochs=max_epochs,
            objective=objective,
            tau=tau,
            reward=reward,
            entity_weight=entity_weight,
            space=space,
            max_segment=max_segment,
            constraints=constraints,
            scheme=scheme,
            annotators=annotators,
            partial_labels=partial_labels,
            rounds=rounds,
            templates=templates,
            hash_bits=hash_bits,
            decoding=decoding,
            random_state=random_state,
            verbose=verbose,
        )

    def fit(
        self, X: Any, y: Any, X_dev: Any = None, y_dev: Any = None, *, ref_weights: Any = None
    ) -> Self:
        """Train on sentences X and their labels y.

        Args:
            X: sentences, each a sequence of tokens (see the class); one may be empty.
            y: for each sentence a sequence of labels, strings, as long as the sentence; or one such
                sequence per annotator, None for one who is missing, and as many annotators as there
                happen to be.
            X_dev: sentences that are not learnt from, but scored when training is over
                (``dev_score_``; ``verbose`` prints it, too).
            y_dev: their labels, likewise.
            ref_weights: for each sentence a weight from 0 for each of its sequences in ``y``,
                missing ones too; None: all alike; ``"dawid-skene"`` or ``"one-coin"``: estimated
                from how annotators agree (`softq.annotators.reliability.estimate`), who must then
                have the same place in every sentence, None where they are missing.

        """
        self._check_options()  # what is wrong with them is told before anything takes long
        sentences = TokenSentences.read(X)
        check_held_out(X_dev, y_dev, sentences.kind)
        rows: tuple[AnnotatorRow, ...] = ()
        model = None
        if isinstance(ref_weights, str):
            model, ref_weights = choice(WeightModel)("ref_weights", ref_weights), None
        annotations = Annotations.read(
            y, sentences.lengths, ref_weights, partial=bool(self.partial_labels)
        )
        if model is not None:
            annotations, rows = annotations.weighed(model)
        index, matrix, kind = sentences.number(self.templates, self.hash_bits)
        settings = self._settings_for(annotations)
        references: References | Posterior
        truth: list[list[str]] = []
        if self.annotators is not None or self.partial_labels:
            references, truth, rows = self._estimate_truth(annotations, matrix, settings)
        else:
            references = annotations.references(settings.labels)
        fit = self.start(
            settings,
            index,
            lambda batch: matrix if batch is None else matrix.take(batch),
            references,
            self._batches(len(matrix.lengths)),
        )
        searches = isinstance(fit, SearchFit)
        lower = f"lower learning_rate ({self.learning_rate:g})"
        rescale = f"rescale features with large values, or raise c2 ({settings.c2:g})"
        with diverging(rescale if searches else lower):
            for epoch, measured in epochs_of(fit, 1 if searches else self.max_epochs):
                if not searches:
                    self._tell(f"epoch {epoch}: cross-entropy {measured['loss']:.6g}")
        if isinstance(fit, SearchFit):
            fit.search.warn()
        self.keep(fit, kind, settings.scheme or annotations.scheme())
        if self.kl_ is None:
            self.kl_ = settings.kl(self.tagger_, matrix, references)
        self.annotators_, self.truth_ = rows, truth
        if X_dev is not None:
            self.dev_score_ = self.score(X_dev, y_dev)
            self._tell(f"share of right labels on X_dev: {self.dev_score_:.4f}")
        return self

    def _estimate_truth(
        self, annotations: Annotations, matrix: FeatureMatrix, settings: CRFSettings
    ) -> tuple[Posterior, list[list[str]], tuple[AnnotatorRow, ...]]:
        """What to train toward, the most probable labels, and how reliable annotators are."""
        model = self._option("annotators")
        if model is not None:
            annotations.check_places()
        sentences = annotations.sentences()
        loop = find_truth(
            sentences,
            matrix,
            settings.labels,
            model,
            annotations.scheme(),
            LoopOptions(rounds=self._option("rounds"), c2=settings.c2 or LoopOptions.c2),
            tell=self._tell,
        )
        rows = by_place(reliability_of(loop).annotators) if model is not None else ()
        toward = loop.toward(settings.objective, settings.tau)
        return toward, [list(labels) for labels in loop.best()], rows

    def start(
        self,
        settings: CRFSettings,
        index: Index,
        features: Callable[[Array | None], FeatureMatrix],
        references: References | Posterior,
        batches: Batches,
        columns: kernels.Columns | None = None,
    ) -> SearchFit | BatchFit:
        """Start training by these options, for `fit` and ``softq train`` alike.

        Args:
            settings: what to train toward.
            index: of the features.
            features: features of a batch of sentences, or for None of all of them.
            references: labels of the sentences.
            batches: of each epoch.
            columns: the transposed features of all sentences, where they are known.

        """
        if settings.segments is not None and isinstance(references, References):
            settings.segments.warn_of_cuts(references.labels, references.weights)
        if self._option("algorithm") == "adagrad":
            return BatchFit(settings, index, features, references, batches, self.learning_rate)
        return SearchFit(
            settings,
            index,
            lambda: settings.whole(features(None), references, columns),
            self._stopping(),
            memory=self._option("num_memories"),
            c1=self._option("c1"),
            tell=self._tell if self.verbose else None,
        )

    def keep(self, fit: SearchFit | BatchFit, kind: Kind, scheme: Scheme | None) -> None:
        """Take the model that training has found, with what was measured on the way."""
        self._keep(fit.model())
        self.loss_curve_, self.converged_, self.kl_ = list(fit.losses), fit.converged, fit.kl
        # the first loss of a search is at its start
        self.n_iter_ = len(fit.losses) - isinstance(fit, SearchFit)
        self._kind = kind
        self.scheme_ = self.file_scheme_ = scheme
        self.pos_column_ = 2 if kind == "pairs" else 0
        self.annotators_, self.truth_, self.dev_score_ = (), [], None

    def _keep(self, model: Tagger) -> None:
        self.tagger_, self.classes_ = model, list(model.labels)

    def _batches(self, sentences: int) -> Batches:
        """The same batches in each epoch, in an order that is new."""
        if self._option("algorithm") != "adagrad":
            return lambda epoch: []
        random = self._option("random_state")
        batches = np.array_split(
            random.permutation(sentences), -(-sentences // self._option("batch_size"))
        )
        return lambda epoch: [batches[number] for number in random.permutation(len(batches))]

    def _tell(self, text: str) -> None:
        if self.verbose:
            print(text, flush=True)  # noqa: T201 -- what verbose asks for

    # --- predictions --------------------------------------------------------------------------------------

    def predict(
        self, X: Any, *, reward: Any = None, entity_weight: float | None = None
    ) -> list[list[str]]:
        """Labels of each sentence.

        Args:
            X: sentences, as in `fit`.
            reward: of a predicted label, as the option of this name: the labels are those that are
                expected to earn most, whatever ``decoding`` is. What the model was trained toward
                does not change.
            entity_weight: the same for what a hit on any label but ``O`` earns: a larger weight
                finds more entities, of which fewer are right
                (`softq.linear.tune_entity_weight`).

        """
        return self.decode(self.features(X), reward=reward, entity_weight=entity_weight)

    def decode(
        self, features: FeatureMatrix, *, reward: Any = None, entity_weight: float | None = None
    ) -> list[list[str]]:
        """`predict` of `features`."""
        model: Tagger = self._fitted()
        earned = None
        if reward is not None or entity_weight is not None:
            weight = 1.0 if entity_weight is None else positive("entity_weight", entity_weight)
            earned = reward_for(reward, weight, model.labels, model.segments)
        return model.decode(features, self._option("decoding"), earned)

    def predict_single(self, xseq: Any) -> list[str]:
        """Labels of one sentence."""
        return self.predict([xseq])[0]

    def predict_marginals(self, X: Any) -> list[list[dict[str, float]]]:
        """Probabilities of all labels at each token of each sentence."""
        marginals = self._fitted().marginals(self.features(X))
        return [
            [dict(zip(self.classes_, row, strict=True)) for row in sentence.tolist()]
            for sentence in marginals
        ]

    def predict_marginals_single(self, xseq: Any) -> list[dict[str, float]]:
        """Probabilities of all labels at each token of one sentence."""
        return self.predict_marginals([xseq])[0]

    def predict_spans(self, X: Any, *, least: float = 0.01) -> list[list[SpanProbability]]:
        """Entities that a sentence may have, with their probabilities: of models of segments.

        Args:
            X: sentences, as in `fit`.
            least: lowest probability of those to return.

        Returns:
            For each sentence its entities by their first words, which may overlap.

        """
        model: Tagger = self._fitted()
        segments = model.segments
        if segments is None:
            raise EstimatorError(
                "probabilities of whole entities are those of space='segments', and this tagger is"
                " a chain: take predict_marginals, or fit one of segments"
            )
        features = self.features(X)
        found: list[list[SpanProbability]] = [[] for _ in features.lengths]
        for batch, p in model.chains(features):
            entities = p.marginals[..., 1:]
            told = (entities >= least) & (entities > 0)
            for row, t, d, kind in told.nonzero().tolist():
                share = float(entities[row, t, d, kind])
                span = SpanProbability(segments.kinds[kind + 1], t, t + d + 1, share)
                found[batch[row]].append(span)
        return found

    def score(self, X: Any, y: Any) -> float:
        """Share of tokens with the right label.

        Where annotators disagree (``y`` as in `fit`), a label is as right as they are many.
        """
        predicted = self.predict(X)
        return Annotations.read(y, [len(labels) for labels in predicted]).accuracy(predicted)

    def output_ids(self, X: Any, y: Any = None) -> list[Array]:
        """The labels ``[n]`` of each sentence as places in ``classes_``; -1 of one unseen in `fit`."""
        annotations = Annotations.read(y, TokenSentences.read(X).lengths)
        check_single(annotations.sequences, "label sequence")
        number = {label: k for k, label in enumerate(self._fitted().labels)}
        return [
            np.array([number.get(str(label), UNKNOWN) for label in labels], np.int64)
            for (labels,) in annotations.sequences
        ]

    def output_probabilities(self, X: Any) -> list[Array]:
        """Probabilities ``[n, K]`` of ``classes_`` for the tokens of each sentence."""
        return list(self._fitted().marginals(self.features(X)))

    def _distributions(self, model: Tagger, X: Any) -> Iterator[tuple[Array, Distribution]]:
        return model.chains(self.features(X))

    def named(self, output: Sequence[int]) -> list[str]:
        """The labels of an output of the model's distribution."""
        segments: SegmentTags | None = self._fitted().segments
        if segments is None:
            return super().named(output)
        return segments.written(torch.tensor([output]), torch.tensor([len(output)]))[0]

    def _as_output(self, ids: Array) -> Array:
        segments: SegmentTags | None = self._fitted().segments
        return ids if segments is None else segments.output(ids)

    def features(self, X: Any) -> FeatureMatrix:
        """Features of sentences, to decode them more than once."""
        return TokenSentences.read(X).features(self._fitted().index, self._kind)

    # --- what was learnt ----------------------------------------------------------------------------------

    def _state_weights(self) -> Any:
        """Weights ``[F, K]``."""
        tagger = self._fitted()
        count = tagger.index.size * len(tagger.labels)
        return tagger.weights[:count].reshape(-1, len(tagger.labels))

    @property
    def attributes_(self) -> list[str]:
        """Names of the features that have a weight other than 0."""
        names = self._fitted().index.names()
        return [names[feature] for feature in np.flatnonzero(self._state_weights().any(1))]

    @property
    def num_attributes_(self) -> int:
        """Number of features that have a weight other than 0."""
        return int(self._state_weights().any(1).sum())

    @property
    def state_features_(self) -> dict[tuple[str, str], float]:
        """Weights of features with labels that are not 0: ``{(feature, label): weight}``."""
        weights, names = self._state_weights(), self._fitted().index.names()
        return {
            (names[feature], self.classes_[k]): float(weights[feature, k])
            for feature, k in np.argwhere(weights).tolist()
        }

    @property
    def transition_features_(self) -> dict[tuple[str, str], float]:
        """Weights of neighbouring labels that are not 0: ``{(label, next label): weight}``.

        Of segments, those of neighbouring types.
        """
        tagger = self._fitted()
        names = tagger.segments.kinds if tagger.segments else tagger.labels
        table = tagger.transitions[: len(names)]
        return {(names[i], names[j]): float(table[i, j]) for i, j in np.argwhere(table).tolist()}

    @property
    def length_features_(self) -> dict[tuple[int, str], float]:
        """Weights of lengths of segments that are not 0: ``{(words, type): weight}``."""
        tagger = self._fitted()
        kinds = tagger.segments.kinds if tagger.segments else tagger.labels
        table = tagger.transitions[len(kinds) :]
        return {(d + 1, kinds[k]): float(table[d, k]) for d, k in np.argwhere(table).tolist()}

    @property
    def size_(self) -> int:
        """Size of the model in bytes."""
        return sum(tensor.nbytes for tensor in self._fitted().tensors().values())

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"reward": reward_as_json(self.reward)}

    def _check_learnt(self) -> None:
        schemes = (None, *get_args(Scheme))
        one_of("scheme_", self.scheme_, schemes)
        one_of("file_scheme_", self.file_scheme_, schemes)
        check_count("pos_column_", self.pos_column_, DataError, least=0)
        one_of("_kind", self._kind, get_args(Kind))
        self.annotators_ = tuple(AnnotatorRow(*row) for row in self.annotators_)

    # --- options ------------------------------------------------------------------------------------------

    def _option(self, name: str) -> Any:
        """An option, checked; its default where it is None, as in sklearn_crfsuite."""
        value = getattr(self, name)
        if value is None:
            value = inspect.signature(CRFTagger).parameters[name].default
        return self._rules[name](name, value)

    def _check_options(self) -> None:
        if self.algorithm in _CRFSUITE_ONLY:
            raise EstimatorError(
                f"algorithm must be 'lbfgs' or 'adagrad', got {self.algorithm!r}, which is"
                " CRFsuite's alone: take 'adagrad' to learn in batches of sentences, 'lbfgs' for"
                " the best weights there are"
            )
        if self._option("algorithm") == "adagrad" and self.c1:
            raise EstimatorError(
                "c1 is for algorithm='lbfgs', 'adagrad' has no such penalty: leave out c1, got"
                f" {self.c1!r}"
            )
        self._options_of(self._rules)
        self._check_truth()

    def _check_truth(self) -> None:
        """Options that go together where the truth is estimated."""
        if self.annotators is None and not self.partial_labels:
            return
        name = "partial_labels" if self.annotators is None else "annotators"
        if self._option("space") == "segments":
            raise EstimatorError(
                f"{name} estimates the truth label by label and needs space='chain', got"
                " 'segments', which takes annotators as references"
            )
        wanted = ("ml",) if self.annotators is None else ("ml", "sqdml")
        if self.annotators is not None and self.partial_labels:
            raise EstimatorError(
                "annotators and partial_labels do not go together: tokens that an annotator left"
                " out are '?' in y, with annotators alone"
            )
        if self._option("objective") not in wanted:
            raise EstimatorError(
                f"{name} goes with objective {' or '.join(wanted)}, which are trained toward what"
                f" is known of the truth, got {self.objective!r}"
            )
        if self._option("algorithm") == "adagrad":
            raise EstimatorError(f"{name} needs algorithm='lbfgs', got 'adagrad'")

    def _stopping(self) -> Stopping:
        rules = self._options_of(Stopping._fields)
        return Stopping(**rules | {"max_iterations": rules["max_iterations"] or _MOST_ITERATIONS})

    def _settings_for(self, annotations: Annotations) -> CRFSettings:
        """What to train toward, for labels as they are in y."""
        spelled = self._option("space") == "segments"
        if self._option("constraints") == "none" and not spelled:
            return self.settings(annotations.labels, None)
        scheme = scheme_for(
            self._option("scheme"), annotations, "segments" if spelled else "constraints"
        )
        # Without O, labels such as B-PER and E-PER leave nothing that a sentence of one word can
        # be.
        labels = every_tag(annotations.labels, scheme) if spelled else annotations.labels
        return self.settings(tuple(sorted({OUTSIDE, *labels})), scheme)

    def settings(self, labels: tuple[str, ...], scheme: Scheme | None) -> CRFSettings:
        """What to train toward with these labels, which follow this scheme."""
        objective, tau = self._objective_and_tau()
        in_batches = self._option("algorithm") == "adagrad"
        longest = self._option("max_segment") if self._option("space") == "segments" else None
        segments = segments_for(labels, scheme, longest)
        return CRFSettings(
            labels=labels,
            objective=objective,
            tau=tau,
            reward=reward_for(self.reward, self._option("entity_weight"), labels, segments),
            max_segment=longest,
            scheme=scheme,
            all_states=in_batches or bool(self.all_possible_states),
            all_transitions=in_batches or bool(self.all_possible_transitions),
            **self._options_of(("constraints", "c2", "min_freq")),
        )


def entity_f1_scorer(estimator: Any, X: Any, y: Any) -> float:
    """F1 of entities, conlleval's.

    For ``scoring=`` of scikit-learn's searches and cross-validation.

    Args:
        estimator: a fitted tagger, `CRFTagger` or another one whose ``predict(X)`` has label
            sequences.
        X: sentences.
        y: for each sentence its labels, tags of entities such as ``B-PER`` in IOB1, BIO or BIOES.

    >>> X, y = [["Ann", "ran"], ["Bob", "met", "Ann"]], [["B-PER", "O"], ["B-PER", "O", "B-PER"]]
    >>> entity_f1_scorer(CRFTagger(c2=0.1).fit(X, y), X, y)
    1.0

    """
    true, scheme = single_labels(estimator, X, y)
    return SpanScores.of(span_statistics(true, estimator.predict(X), scheme)).f1


def single_labels(estimator: Any, X: Any, y: Any) -> tuple[list[Sequence[str]], Scheme]:
    """The labels of each sentence, tags of entities, and their scheme."""
    gold = Annotations.read(y, [len(sentence) for sentence in X])
    if any(len(sequences) > 1 for sequences in gold.sequences):
        raise DataError("entity F1 needs one label sequence for each sentence, got several")
    scheme = gold.scheme() or getattr(estimator, "scheme_", None) or "bio"
    return [sequences[0] for sequences in gold.sequences], scheme
