"""A scikit-learn classifier that is trained toward a table of rewards."""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

from __future__ import annotations

import difflib
import json
import math
import numbers
from collections.abc import Iterable
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_safetensors
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from softq.checks import check_tau
from softq.errors import DataError, EstimatorError, OutputError, RewardError, ScoreError, ShapeError
from softq.estimators import options
from softq.estimators.inverse import expected_rewards
from softq.estimators.labels import Array, learn_labels, match_labels
from softq.estimators.training import Examples, Schedule, layers_of, target_table, train
from softq.run import write_atomically
from softq.targets import ObjectiveName

_FORMAT = "softq.RewardClassifier 1"
_SCORE_RANGE = 4.0  # of temperature-scaled scores, for the whole range of the rewards: where networks learn fastest
_SMALLEST_AUTO_BATCH, _LARGEST_AUTO_BATCH = 16, 200


class RewardClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small network trained toward what its decisions earn, by ML, RAML or SQDML (paper, §4.1.1).

    Give it what each decision earns against each right answer, and one or several labels per row. Inputs are standardised inside, by the
    mean and deviation of the training rows. Hidden layers are rectified; training is gradient descent with momentum on the
    cross-entropy between the exact target and the network's distribution. The network is the mean of its weights over the last epoch.

    Args:
        reward: ``[K, K]``, what predicting one class earns when another is right: ``reward[predicted, right]``, both in the order of
            ``classes_``. None: 1 for the right class, 0 for any other.
        objective: ``"ml"`` learns P(y|x) and ignores the reward (eq. 2); ``"raml"`` learns Q' (eq. 16); ``"sqdml"`` learns the
            softmax Q-distribution (eq. 12 and 15), whose most probable class is the Bayes rule's at any temperature.
            With one label per row the targets of ``"raml"`` and ``"sqdml"`` are the same, and both learn Q'.
        tau: temperature of ``"raml"`` and ``"sqdml"``; ``"ml"`` has none.
        temperature_scaled: let the network score rewards, in units of their range, instead of rewards over τ, with the loss multiplied to
            match (see `softq.cross_entropy`). Learning is then as fast at any τ; otherwise a large τ leaves little to learn from.
            ``"ml"`` is not changed by it.
        hidden: units of each hidden layer; ``()`` is a linear model.
        learning_rate: of gradient descent.
        momentum: of gradient descent, at least 0 and below 1.
        batch_size: rows per step; ``"auto"`` is a tenth of the training rows, but between 16 and 200.
        max_epochs: passes over the training rows.
        early_stopping: hold out some rows, stop when the reward on them no longer grows, and keep the best epoch.
        validation_fraction: share of the rows that early stopping holds out.
        patience: epochs without a higher validation reward before early stopping.
        device: where to train: ``"cpu"``, ``"cuda"`` or another device of torch. Predictions are made on the CPU.
        random_state: None, a seed or a `numpy.random.RandomState`: first weights, order of the rows, held-out rows.

    Attributes:
        classes_: ``[K]``, the labels that occur in y, sorted.
        reward_: ``[K, K]`` float64, the rewards in use.
        objective_: what `fit` trained by; `expected_reward` depends on it, not on a later ``objective``.
        tau_: the temperature of that.
        coefs_: weights ``[in, out]`` of each layer, for inputs that are standardised by ``mean_`` and ``scale_``.
        intercepts_: biases ``[out]`` of each layer.
        mean_: ``[D]``, mean of each feature.
        scale_: ``[D]``, standard deviation of each feature.
        loss_curve_: ``[epochs]``, mean cross-entropy between target and model, in nats.
        validation_rewards_: ``[epochs]``, mean reward on the held-out rows; empty without early stopping.
        n_iter_: epochs that were run.
        labels_per_row_: mean number of labels of a row in `fit`.
        n_features_in_: number of features D.
        feature_names_in_: their names, where X had some.

    A third of the rows belong to class True, whatever x is, and to miss one costs ten times what a false alarm does:

    >>> X, y = np.zeros((300, 1)), np.arange(300) % 3 == 1
    >>> costs = np.array([[0.0, -10.0], [-1.0, 0.0]])
    >>> model = RewardClassifier(reward=costs, objective="ml", batch_size=300, random_state=0).fit(X, y)
    >>> model.predict([[0.0]]), model.expected_reward([[0.0]]).round(1)  # P(y|x) alone says False, the costs say True
    (array([False]), array([[-3.3, -0.7]]))
    >>> RewardClassifier(reward=costs, tau=5.0, random_state=0).fit(X, y).predict([[0.0]])
    array([ True])

    """

    def __init__(
        self,
        *,
        reward: Any = None,
        objective: ObjectiveName = "sqdml",
        tau: float = 1.0,
        temperature_scaled: bool = False,
        hidden: tuple[int, ...] = (8, 8),
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        batch_size: int | Literal["auto"] = "auto",
        max_epochs: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        # scikit-learn's convention: keep what was given, check it in fit.
        self.reward = reward
        self.objective = objective
        self.tau = tau
        self.temperature_scaled = temperature_scaled
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train on inputs ``X [n, D]`` and labels ``y``.

        ``y`` is one label per row ``[n]``, or several ``[n, m]`` from several annotators or draws. A label may be missing (NaN among
        numbers, None or NaN among objects), but not all of a row. scikit-learn cannot stratify by such a y: where labels are missing,
        give `GridSearchCV` and its like a splitter such as ``cv=KFold(5)`` instead of a number.
        """
        objective, tau = _known_objective(self.objective), check_tau(options.plain(self.tau))
        hidden = self._hidden_units()
        random = check_random_state(self.random_state)
        X = validate_data(self, X, dtype=np.float64)
        classes, patterns = learn_labels(y, len(X))
        table = _reward_table(self.reward, classes)
        mean, scale = _standardisation(X)
        inputs = ((X - mean) / scale).astype(np.float32)
        training, validation = self._split(Examples(inputs, patterns.of_row), random)
        sizes = (X.shape[1], *hidden, len(classes))
        score_scale = 1.0
        if self.temperature_scaled and objective != "ml":
            score_scale = tau * _SCORE_RANGE / (float(np.ptp(table)) or 1.0)
        trained = train(
            sizes,
            training,
            validation,
            targets=target_table(objective, patterns, table, tau),
            earned=patterns.mean_rewards(table),
            scale=score_scale,
            schedule=self._schedule(len(training.inputs)),
            device=options.device(self.device),
            random=random,
        )
        self.classes_, self.reward_ = classes, table
        self._reward_given = self.reward is not None
        self.objective_, self.tau_ = objective, tau
        self.mean_, self.scale_ = mean, scale
        self.coefs_, self.intercepts_ = layers_of(trained.parameters, sizes)
        # Folded into the last layer, the scale is needed no more: the scores are the log-distribution, up to a constant per row.
        self.coefs_[-1] /= score_scale
        self.intercepts_[-1] /= score_scale
        self.loss_curve_, self.validation_rewards_ = trained.loss_curve, trained.validation_rewards
        self.n_iter_ = len(trained.loss_curve)
        self.labels_per_row_ = patterns.labels_per_row
        return self

    def predict(self, X: Any) -> Array:
        """The most probable class of the model's distribution for each row, ``[n]``."""
        decided = self._scores(X).argmax(1)
        return np.asarray(self.classes_[decided])

    def predict_proba(self, X: Any) -> Array:
        """The model's distribution over ``classes_``, ``[n, K]``.

        It estimates what the objective asks for: P(y|x) with ``"ml"``, Q' with ``"raml"``, the softmax Q-distribution with ``"sqdml"``.
        """
        return np.asarray(torch.from_numpy(self._scores(X)).softmax(1))

    def predict_log_proba(self, X: Any) -> Array:
        """Log of `predict_proba`, ``[n, K]``; finite also where that rounds to 0."""
        return np.asarray(torch.from_numpy(self._scores(X)).log_softmax(1))

    def expected_reward(self, X: Any) -> Array:
        """What the model expects each decision to earn, E[r(k, Y)|x], ``[n, K]`` in the order of ``classes_``.

        The model's distribution is solved for P(y|x) by the equation of its objective. ML's is P(y|x), RAML's is Q' (eq. 16), and SQDML's
        satisfies τ log Q(k|x) = E[r(k, Y)|x] - c(x) (eq. 12) if rows have many labels; with few it lies between Q and Q', and the
        estimate with it; with one it is Q', and is solved as such. The answer is unique unless two right classes, or mixtures
        of right classes, are rewarded alike (by SQDML: alike up to a constant); then P(y|x) is the solution nearest to uniform.
        No solution is forced into 0..1, so a network that asks for more than any P(y|x) gives may leave the range of the rewards. RAML's
        equation is ill-conditioned at a τ far below the rewards' differences: Q' hardly tells right classes with one best answer apart.

        >>> from softq.theory import four_class_problem
        >>> inputs, p, rewards = four_class_problem(grid=40)
        >>> labels = torch.multinomial(p, 10, replacement=True, generator=torch.Generator().manual_seed(0))
        >>> model = RewardClassifier(reward=rewards, tau=1.1, max_epochs=60, random_state=0).fit(inputs, labels)
        >>> estimate = torch.from_numpy(model.expected_reward(inputs))
        >>> bool((estimate - p @ rewards.T).abs().mean() < 0.15)  # of rewards up to 7.4
        True
        """
        scores = self._scores(X)
        one_label_each = self.objective_ == "sqdml" and self.labels_per_row_ == 1.0
        return expected_rewards("raml" if one_label_each else self.objective_, scores, self.reward_, self.tau_)

    def score(self, X: Any, y: Any) -> float:
        """Mean reward that `predict` earns, over rows and over the labels of each row; without a reward table it is the accuracy.

        ``y`` is as in `fit`. A label that `fit` never saw counts as a miss without a reward table, and is an error with one.
        """
        decided = self._scores(X).argmax(1)
        patterns = match_labels(y, len(decided), self.classes_)
        classes = len(self.classes_)
        if self._reward_given and (patterns.references == classes).any():
            row = int(np.flatnonzero((patterns.references == classes).any(1)[patterns.of_row])[0])
            raise OutputError(f"the reward table is for the classes {_listed(self.classes_)}, row {row} of y has another label")
        unseen = np.zeros((classes, 1))  # what any decision earns against a label that is none of the classes
        earned = patterns.mean_rewards(np.hstack([self.reward_, unseen]))
        return float(earned[patterns.of_row, decided].mean())

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one safetensors file; nothing is pickled.

        The file appears whole or not at all, and replaces an older one. Options are kept as they are now, but ``reward`` as in `fit`,
        and a ``random_state`` that is neither None nor a seed not at all.
        """
        check_is_fitted(self)
        tensors = {"reward": self.reward_, "mean": self.mean_, "scale": self.scale_}
        tensors |= {"loss_curve": self.loss_curve_, "validation_rewards": self.validation_rewards_}
        for layer, (weight, bias) in enumerate(zip(self.coefs_, self.intercepts_, strict=True)):
            tensors |= {f"coefs.{layer}": weight, f"intercepts.{layer}": bias}
        parameters = {**self.get_params(), "reward": "in tensor reward" if self._reward_given else None}
        if not isinstance(self.random_state, numbers.Integral):
            parameters["random_state"] = None
        names = getattr(self, "feature_names_in_", None)
        notes = {
            "parameters": parameters,
            "classes": self.classes_.tolist(),
            "classes_dtype": self.classes_.dtype.str,
            "feature_names": None if names is None else names.tolist(),
            "labels_per_row": self.labels_per_row_,
            "objective": self.objective_,
            "tau": self.tau_,
        }
        metadata = {"format": _FORMAT, "softq": json.dumps(notes, default=options.plain)}
        write_atomically(Path(path), to_safetensors({name: np.ascontiguousarray(value) for name, value in tensors.items()}, metadata))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model that `save` wrote; it predicts the same to the last bit."""
        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path} cannot be read as a safetensors file: {error}") from None
        if metadata.get("format") != _FORMAT:
            raise DataError(f"{path} must be a file of {_FORMAT!r}, as RewardClassifier.save writes, got {metadata.get('format')!r}")
        try:
            return cls()._restore(json.loads(metadata["softq"]), tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is damaged or was not written by RewardClassifier.save: {error!r}") from None

    def _restore(self, notes: dict[str, Any], tensors: dict[str, Array]) -> Self:
        parameters = notes["parameters"]
        self._reward_given = parameters["reward"] is not None
        parameters["reward"] = tensors["reward"] if self._reward_given else None
        if isinstance(parameters["hidden"], list):
            parameters["hidden"] = tuple(parameters["hidden"])
        self.set_params(**parameters)
        layers = sum(name.startswith("intercepts.") for name in tensors)
        hidden = [len(tensors[f"intercepts.{layer}"]) for layer in range(layers - 1)]
        sizes = (len(tensors["mean"]), *hidden, len(notes["classes"]))
        shapes: dict[str, tuple[int, ...]] = {"reward": (sizes[-1], sizes[-1]), "scale": (sizes[0],)}
        for layer, (before, after) in enumerate(pairwise(sizes)):
            shapes |= {f"coefs.{layer}": (before, after), f"intercepts.{layer}": (after,)}
        for name, shape in shapes.items():
            if tensors[name].shape != shape:
                raise ShapeError(f"{name} must have shape {list(shape)}, got {list(tensors[name].shape)}")
        self.classes_ = np.array(notes["classes"], dtype=notes["classes_dtype"])
        self.reward_, self.mean_, self.scale_ = tensors["reward"], tensors["mean"], tensors["scale"]
        self.coefs_ = [tensors[f"coefs.{layer}"] for layer in range(layers)]
        self.intercepts_ = [tensors[f"intercepts.{layer}"] for layer in range(layers)]
        self.loss_curve_, self.validation_rewards_ = tensors["loss_curve"], tensors["validation_rewards"]
        self.n_iter_, self.n_features_in_ = len(self.loss_curve_), sizes[0]
        self.labels_per_row_ = notes["labels_per_row"]
        self.objective_, self.tau_ = _known_objective(notes["objective"]), check_tau(notes["tau"])
        if notes["feature_names"] is not None:
            self.feature_names_in_ = np.array(notes["feature_names"], dtype=object)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coefs_")

    def _scores(self, X: Any) -> Array:
        """Log of the model's distribution up to a constant per row, ``[n, K]``; in float64: a row hardly depends on its neighbours."""
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, reset=False)
        with np.errstate(over="ignore", invalid="ignore"):
            values = (values - self.mean_) / self.scale_
            for layer, (weight, bias) in enumerate(zip(self.coefs_, self.intercepts_, strict=True)):
                values = (values if layer == 0 else np.maximum(values, 0.0)) @ weight + bias
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).all(1))[0])
            raise ScoreError(f"the scores of row {row} of X are not finite: it lies too far from the training rows")
        return np.asarray(values)

    def _hidden_units(self) -> tuple[int, ...]:
        hidden = self.hidden if isinstance(self.hidden, Iterable) else [self.hidden]
        return tuple(options.count("each layer of hidden", units) for units in hidden)

    def _schedule(self, rows: int) -> Schedule:
        """Options of gradient descent for this many training rows."""
        batch_size = min(max(rows // 10, _SMALLEST_AUTO_BATCH), _LARGEST_AUTO_BATCH)
        if not isinstance(self.batch_size, str) or self.batch_size != "auto":
            batch_size = options.count('batch_size (or "auto")', self.batch_size)
        return Schedule(
            learning_rate=options.number("learning_rate", self.learning_rate, "a positive number", lambda value: 0.0 < value < math.inf),
            momentum=options.number("momentum", self.momentum, "a number of at least 0 and below 1", lambda value: 0.0 <= value < 1.0),
            batch_size=batch_size,
            max_epochs=options.count("max_epochs", self.max_epochs),
            patience=options.count("patience", self.patience),
        )

    def _split(self, examples: Examples, random: np.random.RandomState) -> tuple[Examples, Examples | None]:
        """Training rows, and those that early stopping holds out."""
        if not self.early_stopping:
            return examples, None
        share = options.number(
            "validation_fraction", self.validation_fraction, "a number above 0 and below 1", lambda value: 0.0 < value < 1.0
        )
        rows = len(examples.inputs)
        held_out = math.ceil(share * rows)
        if held_out >= rows:
            raise DataError(
                f"early stopping would hold out {held_out} of n_samples = {rows} and leave none to train on; "
                "give more rows, lower validation_fraction or turn early_stopping off"
            )
        order = random.permutation(rows)
        return (
            Examples(*(values[order[held_out:]] for values in examples)),
            Examples(*(values[order[:held_out]] for values in examples)),
        )


def _known_objective(objective: Any) -> ObjectiveName:
    known: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
    if objective not in known:
        near = difflib.get_close_matches(str(objective).lower(), known, 1, cutoff=0.0)
        raise EstimatorError(f"objective must be one of {', '.join(known)}, got {objective!r}; did you mean {near[0]!r}?")
    return known[known.index(objective)]


def _reward_table(reward: Any, classes: Array) -> Array:
    """The rewards as float64 ``[K, K]``; exact match if None."""
    size = len(classes)
    if reward is None:
        return np.eye(size)
    try:
        table = np.asarray(reward, dtype=np.float64).copy()
    except (TypeError, ValueError):
        raise RewardError(f"reward must be a table of numbers, [{size}, {size}], got {type(reward).__name__}") from None
    if table.shape != (size, size):
        raise ShapeError(
            f"reward must be [{size}, {size}] (predicted, right) for the classes that occur in y, {_listed(classes)}; "
            f"got {list(table.shape)}"
        )
    if not np.isfinite(table).all():
        place = tuple(np.argwhere(~np.isfinite(table))[0].tolist())
        raise RewardError(f"every reward must be finite, got {table[place]} at {place}; a large negative reward forbids a decision")
    return table


def _standardisation(X: Array) -> tuple[Array, Array]:
    """Mean and deviation of each feature, ``[D]``; a deviation of 1 for a constant one."""
    with np.errstate(over="ignore", invalid="ignore"):
        standard = StandardScaler().fit(X)
    bad = ~(np.isfinite(standard.mean_) & np.isfinite(standard.scale_))
    if bad.any():
        raise ScoreError(f"the deviation of feature {int(np.flatnonzero(bad)[0])} of X is beyond float64; rescale it")
    return standard.mean_, standard.scale_


def _listed(classes: Array) -> str:
    """The first few classes, for an error."""
    shown = ", ".join(repr(label) for label in classes[:5].tolist())
    return shown if len(classes) <= 5 else f"{shown}, … ({len(classes)} in all)"
