"""A scikit-learn classifier that is trained toward a table of rewards."""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

from __future__ import annotations

import difflib
import json
import math
import numbers
import warnings
from collections.abc import Iterable, Mapping
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from safetensors.numpy import save as to_safetensors
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from softq.calibration import UNKNOWN, fit_temperature
from softq.checks import check_tau
from softq.errors import (
    DataError,
    EstimatorError,
    OutputError,
    RewardError,
    ScoreError,
    ShapeError,
)
from softq.formats.file_checks import (
    mapping,
    one_of,
    read_object,
    read_tensors,
    refusing,
    string_list,
)
from softq.lab.run import write_atomically
from softq.linear.class_targets import (
    Array,
    expected_rewards,
    learn_labels,
    match_labels,
    mean_rewards,
    read_classes,
)
from softq.linear.classifier_training import (
    LabelledRows,
    PatternTask,
    Schedule,
    Solver,
    choose,
    forward,
    train,
)
from softq.linear.estimator_inputs import (
    CheckedOptions,
    Rule,
    auto_or,
    choice,
    count,
    device,
    none_or,
    not_negative,
    number,
    plain,
    positive,
)
from softq.linear.tempering import read_temperature
from softq.spaces import Categorical
from softq.targets import ObjectiveName

_FORMAT = "softq.RewardClassifier 3"
_ARRAYS = ("mean", "scale", "loss_curve", "validation_rewards")
_MOST_ROWS_FOR_LBFGS = 10_000
_ABSTAINED = -1


class RewardWarning(UserWarning):
    """The right class does not earn most: rewards may be costs by mistake."""


def _layers(name: str, value: Any) -> tuple[int, ...]:
    """Units of each hidden layer; one number is one layer."""
    layers = value if isinstance(value, Iterable) else [value]
    return tuple(count("each layer of hidden", units) for units in layers)


class RewardClassifier(CheckedOptions, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A small network trained toward the rewards of its decisions, by ML, RAML or SQDML (§4.1.1).

    Give it the reward of each decision against each right answer, or its cost, and one or several
    labels per row. Inputs are standardised inside, by the mean and deviation of the training rows.
    Hidden layers are rectified, and the loss is the cross-entropy between the exact target and the
    network's distribution, plus an L2 penalty. Whatever the objective, `predict` takes the decision
    of the highest expected reward.

    Args:
        reward: ``[K, K]``, what predicting one class earns when another is right:
            ``reward[predicted, right]``, both in the order of ``classes_``. None: 1 for the right
            class, 0 for any other. By name, for classes that are numbers: ``"absolute"`` and
            ``"squared"``, minus the (squared) difference of predicted and right class;
            ``"quadratic-kappa"``, 1 less the squared difference of their places in ``classes_``
            over (K - 1)², the weights of quadratic weighted kappa.
        cost: ``[K, K]``, instead of ``reward``: what predicting one class costs when another is
            right.
        abstain: what it earns not to decide, or with ``cost``, what it costs; `predict` then
            returns None where that is better than the best decision is expected to be. Without a
            table, 0.9 asks for decisions that are right with a probability of at least 0.9. None:
            always decide. Training does not depend on it.
        objective: ``"ml"`` learns P(y|x) and ignores the reward (eq. 2); ``"raml"`` learns Q'
            (eq. 16); ``"sqdml"`` learns the softmax Q-distribution (eq. 12 and 15). With one label
            per row the targets of ``"raml"`` and ``"sqdml"`` are the same, and both learn Q'.
        tau: temperature of ``"raml"`` and ``"sqdml"``; ``"ml"`` has none. ``"auto"``: of 0.005,
            0.3, 1 and 3 times the range of the rewards the one whose decisions earn most on
            held-out rows of five inner folds. The coldest (SQDML with several labels per row: 0.3)
            is kept unless another earns more by two standard errors; from one label per row its
            target is nearly that of ML.
        temperature_scaled: where τ is above a quarter of the rewards' range, let the network score
            rewards in units of that quarter instead of rewards over τ, with the loss multiplied to
            match (see `softq.cross_entropy`). Learning is then as fast at any τ, and ``alpha``
            means the same; otherwise a large τ leaves little to learn from. ``"ml"`` is not changed
            by it.
        alpha: L2 penalty: alpha / (2n) · Σ weights² is added to the mean loss of n rows; biases are
            free. With ``hidden=()`` and ``"ml"`` it is 1 / C of scikit-learn's
            `LogisticRegression`. ``"auto"``: of 1, 3 and 10 the one whose P(y|x) has the least
            cross-entropy on held-out rows of the inner folds.
        hidden: units of each hidden layer; ``()`` is a linear model. ``"auto"``: none, or one layer
            of 32, chosen together with ``alpha``.
        solver: ``"lbfgs"`` minimises over all rows at once; ``"sgd"`` is gradient descent with
            momentum on batches, and its network the mean over the steps of the last epoch.
            ``"auto"``: ``"lbfgs"`` on the CPU up to 10,000 rows without early stopping.
        learning_rate: of ``"sgd"``.
        momentum: of ``"sgd"``, at least 0 and below 1.
        batch_size: rows per step of ``"sgd"``; ``"auto"`` is a tenth of the training rows, but
            between 16 and 200.
        max_epochs: passes of ``"sgd"`` over the training rows, or the most iterations of
            ``"lbfgs"``.
        early_stopping: hold out some rows, stop when the reward on them no longer grows, and keep
            the best epoch; ``"sgd"`` alone.
        validation_fraction: share of the rows that early stopping holds out.
        patience: epochs without a higher validation reward before early stopping.
        device: where ``"sgd"`` trains: ``"cpu"``, ``"cuda"`` or another device of torch.
            Predictions are made on the CPU.
        random_state: None, a seed or a `numpy.random.RandomState`: first weights, order of the
            rows, held-out rows, inner folds.
        verbose: print a line for every choice of the inner folds, and the end of training.

    Attributes:
        classes_: ``[K]``, the labels that occur in y, sorted.
        reward_: ``[K, K]`` float64, the rewards in use; None after a `fit` with a table for each
            row.
        objective_: what `fit` trained by; `expected_reward` depends on it, not on a later
            ``objective``.
        tau_: the temperature of that.
        alpha_: the penalty of that.
        coefs_: weights ``[in, out]`` of each layer, for inputs that are standardised by ``mean_``
            and ``scale_``.
        intercepts_: biases ``[out]`` of each layer.
        mean_: ``[D]``, mean of each feature.
        scale_: ``[D]``, standard deviation of each feature.
        loss_curve_: ``[epochs]``, mean cross-entropy between target and model, in nats.
        validation_rewards_: ``[epochs]``, mean reward on the held-out rows; empty without early
            stopping.
        n_iter_: number of epochs or iterations.
        temperature_: what scores are divided by for probabilities: 1 after `fit`, or what
            `calibrate` has found.
        labels_per_row_: mean number of labels of a row in `fit`; of soft labels, of classes that
            may be right.
        n_features_in_: number of features D.
        feature_names_in_: their names, where X had some.

    A third of the rows belong to class True, whatever x is, and to miss one costs ten times as much
    as a false alarm:

    >>> X, y = np.zeros((300, 1)), np.arange(300) % 3 == 1
    >>> model = RewardClassifier(cost=[[0.0, 10.0], [1.0, 0.0]], random_state=0).fit(X, y)
    >>> model.predict_proba([[0.0]]).round(2), model.expected_reward([[0.0]]).round(1)
    (array([[0.67, 0.33]]), array([[-3.3, -0.7]]))
    >>> model.predict([[0.0]])
    array([ True])

    """

    _rules: ClassVar[Mapping[str, Rule]] = {
        "abstain": none_or(number("a finite number", math.isfinite)),
        "objective": choice(ObjectiveName),
        "tau": auto_or(lambda name, value: check_tau(value)),
        "alpha": auto_or(not_negative),
        "hidden": auto_or(_layers),
        "solver": choice(Solver),
        "learning_rate": positive,
        "momentum": number("a number of at least 0 and below 1", lambda value: 0.0 <= value < 1.0),
        "batch_size": auto_or(count),
        "max_epochs": count,
        "validation_fraction": number(
            "a number above 0 and below 1", lambda value: 0.0 < value < 1.0
        ),
        "patience": count,
        "device": device,
    }

    def __init__(
        self,
        *,
        reward: Any = None,
        cost: Any = None,
        abstain: float | None = None,
        objective: ObjectiveName = "sqdml",
        tau: float | Literal["auto"] = "auto",
        temperature_scaled: bool = True,
        alpha: float | Literal["auto"] = "auto",
        hidden: tuple[int, ...] | Literal["auto"] = "auto",
        solver: Solver = "auto",
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        batch_size: int | Literal["auto"] = "auto",
        max_epochs: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        device: str = "cpu",
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        # scikit-learn's convention: keep what was given, check it in fit.
        self.__dict__.update(
            reward=reward,
            cost=cost,
            abstain=abstain,
            objective=objective,
            tau=tau,
            temperature_scaled=temperature_scaled,
            alpha=alpha,
            hidden=hidden,
            solver=solver,
            learning_rate=learning_rate,
            momentum=momentum,
            batch_size=batch_size,
            max_epochs=max_epochs,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None, rewards: Any = None) -> Self:
        """Train on inputs ``X [n, D]`` and labels ``y``.

        ``y`` is one label per row ``[n]``, or several ``[n, m]`` from several annotators or
        samples. A label may be missing (NaN among numbers, None or NaN among objects), but not all
        of a row. scikit-learn cannot stratify by such a y: where labels are missing, give
        `GridSearchCV` and its like a splitter such as ``cv=KFold(5)`` instead of a number. Floats
        ``[n, K]`` with a fraction among them are soft labels: probabilities of the classes 0 to
        K - 1.

        Args:
            X: ``[n, D]``.
            y: labels.
            sample_weight: ``[n]``, not negative: how much each row counts.
            rewards: ``[n, K, K]``, a table of rewards for each row instead of the classifier's own;
                of costs, give the negative.

        """
        objective, tau, alpha, hidden, _ = map(
            self._option, ("objective", "tau", "alpha", "hidden", "abstain")
        )
        random = check_random_state(self.random_state)
        X = validate_data(self, X, dtype=np.float64)
        classes, patterns = learn_labels(y, len(X))
        weights = _row_weights(sample_weight, X)
        shares, of_row = patterns.shares, patterns.of_row
        if rewards is None:
            table = self._table(classes)
        elif self.reward is None and self.cost is None:
            table = _checked("rewards", rewards, (len(X), len(classes), len(classes)), classes)
            shares, of_row = shares[of_row], np.arange(len(X), dtype=np.int32)
        else:
            raise EstimatorError(
                "rewards, a table for each row, take the place of reward and cost: "
                "set those to None"
            )
        _warn_of_costs(table, classes)
        schedule = self._schedule(len(X))
        there = weights > 0.0
        mean, scale = _standardisation(X[there], weights[there])
        rows = LabelledRows((X - mean) / scale, of_row, weights).at(there)
        training, validation = self._split(rows, random)
        task = PatternTask(
            _solved_as(objective, patterns.labels_per_row),
            tau or 1.0,
            shares,
            table,
            bool(self.temperature_scaled),
        )
        if objective == "ml" and tau is None:
            tau = 1.0
        sizes, alpha, tau = choose(
            (hidden, alpha, tau),
            training,
            task,
            schedule=schedule,
            random=random,
            tell=self._tell,
        )
        task = task._replace(tau=tau)
        trained = train(
            sizes, training, validation, task=task, alpha=alpha, schedule=schedule, random=random
        )
        self.classes_, self.reward_ = classes, table if rewards is None else None
        given = [name for name in ("reward", "cost") if getattr(self, name) is not None]
        self._given = given[0] if given else None
        if isinstance(self.reward, str):
            self._given = self.reward
        self.objective_, self.tau_, self.alpha_ = objective, tau, alpha
        self.mean_, self.scale_ = mean, scale
        self.coefs_, self.intercepts_ = trained.layers
        self.loss_curve_, self.validation_rewards_ = trained.loss_curve, trained.validation_rewards
        self.n_iter_ = len(trained.loss_curve)
        self._tell(f"cross-entropy {trained.loss_curve[-1]:.6g} after {self.n_iter_} iterations")
        self.labels_per_row_, self.temperature_ = patterns.labels_per_row, 1.0
        return self

    def calibrate(self, X: Any, y: Any) -> Self:
        """Fit one temperature to rows that were not trained on, with one label each.

        It is the one that gives the labels the highest likelihood
        (`softq.calibration.fit_temperature`), and is saved with the model. `predict_proba` uses it
        and so do the decisions of a model of ``"ml"``, whose probabilities are P(y|x). Those of
        ``"raml"`` and ``"sqdml"`` stay the same: their expected rewards are solved from the
        distribution that was trained. Rows with a label unseen in `fit` are left out with a
        `DataWarning`.
        """
        model = Categorical(torch.from_numpy(self._scores(X)))
        right = torch.from_numpy(self.output_ids(X, y))
        self.temperature_ = fit_temperature([model], [right])
        return self

    def output_ids(self, X: Any, y: Any) -> Array:
        """The labels ``[n]`` as places in ``classes_``, for `softq.conformal`; -1 of one unseen."""
        patterns = match_labels(y, len(X), self.classes_)
        shares = patterns.shares[patterns.of_row]
        if (shares.max(1) < 1.0).any():
            row = int(np.flatnonzero(shares.max(1) < 1.0)[0])
            raise DataError(
                f"expected one label for each row, the right one: row {row} has several"
            )
        right = shares.argmax(1)
        return np.where(right == len(self.classes_), UNKNOWN, right)

    def output_probabilities(self, X: Any) -> Array:
        """The same as `predict_proba`: what `softq.conformal` asks of every estimator."""
        return self.predict_proba(X)

    def predict(self, X: Any, rewards: Any = None) -> Array:
        """The class of the highest expected reward for each row, ``[n]``; None to abstain.

        ``rewards`` is as in `expected_reward`: other rewards than those of training, which need no
        new training. After a `fit` with a table for each row it may be
        left out with ``"raml"`` and ``"sqdml"``: then the prediction is the most probable class of
        the model's distribution, which has learned from the rewards of rows like these.
        """
        decided = self._decide(X, rewards)
        if self._option("abstain") is None:
            return np.asarray(self.classes_[decided])
        found = self.classes_.astype(object)[decided]
        found[decided == _ABSTAINED] = None
        return np.asarray(found)

    def predict_proba(self, X: Any) -> Array:
        """The model's distribution over ``classes_``, ``[n, K]``.

        It estimates the target of the objective: P(y|x) with ``"ml"``, Q' with ``"raml"``, the
        softmax Q-distribution with ``"sqdml"``.
        """
        return np.asarray(torch.from_numpy(self._scores(X) / self.temperature_).softmax(1))

    def predict_log_proba(self, X: Any) -> Array:
        """Log of `predict_proba`, ``[n, K]``; finite also where that rounds to 0."""
        return np.asarray(torch.from_numpy(self._scores(X) / self.temperature_).log_softmax(1))

    def expected_reward(self, X: Any, rewards: Any = None) -> Array:
        """E[r(k, Y)|x], the expected reward of each decision, ``[n, K]`` in ``classes_``' order.

        With ``rewards``, by another table ``[K, K]``, or one for each row, ``[n, K, K]``; a model
        that was fitted with a table for each row needs them.

        The model's distribution is solved for P(y|x) by the equation of its objective. ML's is
        P(y|x), RAML's is Q' (eq. 16), and SQDML's satisfies τ log Q(k|x) = E[r(k, Y)|x] - c(x)
        (eq. 12) if rows have many labels; with few it lies between Q and Q', and the estimate with
        it; with one it is Q', and is solved as such. The solution is unique unless two right
        classes, or mixtures of right classes, are rewarded alike (by SQDML: alike up to a
        constant); then P(y|x) is the solution nearest to uniform. No solution is forced into 0..1,
        so the estimate may leave the range of the rewards. RAML's equation is ill-conditioned at a
        τ far below the rewards' differences: Q' hardly tells right classes with one best answer
        apart.

        >>> from softq.theory import four_class_problem
        >>> inputs, p, rewards = four_class_problem(grid=40)
        >>> generator = torch.Generator().manual_seed(0)
        >>> labels = torch.multinomial(p, 10, replacement=True, generator=generator)
        >>> model = RewardClassifier(reward=rewards, tau=1.1, max_epochs=60, random_state=0)
        >>> estimate = torch.from_numpy(model.fit(inputs, labels).expected_reward(inputs))
        >>> bool((estimate - p @ rewards.T).abs().mean() < 0.15)  # of rewards up to 7.4
        True
        """
        return self._expected(self._scores(X), rewards)

    def score(self, X: Any, y: Any, sample_weight: Any = None, rewards: Any = None) -> float:
        """Mean reward of the predictions over rows and labels; the accuracy without a reward table.

        Rows without a decision earn what it earns to abstain.

        The arguments are as in `fit`. A label that `fit` never saw counts as a miss without a
        reward table, and is an error with one.
        """
        decided = self._decide(X, rewards)
        patterns = match_labels(y, len(decided), self.classes_)
        classes = len(self.classes_)
        shares = patterns.shares[patterns.of_row]
        if (self._given or rewards is not None) and shares[:, classes].any():
            row = int(np.flatnonzero(shares[:, classes])[0])
            raise OutputError(
                f"the reward table is for the classes {_listed(self.classes_)}, "
                f"row {row} of y has another label"
            )
        table, _ = self._tables(rewards, len(decided))
        earned = mean_rewards(
            table, shares[:, :classes]
        )  # nothing against a label that is none of the classes
        weights = None if sample_weight is None else _row_weights(sample_weight, earned)
        by_row = earned[np.arange(len(decided)), decided]
        by_row = np.where(decided == _ABSTAINED, self._abstaining(), by_row)
        return float(np.average(by_row, weights=weights))

    def _decide(self, X: Any, rewards: Any) -> Array:
        """Places of the decided classes in ``classes_``, ``[n]``; -1 where it abstains."""
        scores, abstain = self._scores(X), self._option("abstain")
        if self.reward_ is None and rewards is None and self.objective_ != "ml" and abstain is None:
            return np.asarray(scores.argmax(1))
        expected = self._expected(scores, rewards)
        return np.where(expected.max(1) < self._abstaining(), _ABSTAINED, expected.argmax(1))

    def _abstaining(self) -> float:
        """What it earns to abstain; -inf where it is not allowed."""
        price = self._option("abstain")
        if price is None:
            return -math.inf
        return float(-price if self._given == "cost" else price)

    def _tell(self, text: str) -> None:
        if self.verbose:
            print(text, flush=True)  # noqa: T201 -- what verbose asks for

    def _expected(self, scores: Array, rewards: Any) -> Array:
        earned, learned = self._tables(rewards, len(scores))
        if self.objective_ == "ml":  # else the equation is of the distribution that was trained
            scores = scores / self.temperature_
        return expected_rewards(
            _solved_as(self.objective_, self.labels_per_row_), scores, learned, self.tau_, earned
        )

    def _tables(self, rewards: Any, rows: int) -> tuple[Array, Array]:
        """The table, or the table for each row, of the decisions and of training."""
        if rewards is not None:
            shape: tuple[int, ...] = rows, len(self.classes_), len(self.classes_)
            shape = shape[1:] if _is_flat(rewards) else shape
            earned = _checked("rewards", rewards, shape, self.classes_)
            return earned, earned if self.reward_ is None else self.reward_
        if self.reward_ is None:
            raise RewardError(
                "the model was fitted with a reward table for each row: "
                "give rewards, [n, K, K], for the rows of X"
            )
        return self.reward_, self.reward_

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one safetensors file; nothing is pickled.

        The file appears whole or not at all, and replaces an older one. Options are kept as they
        are now, but ``reward`` and ``cost`` as in `fit`, and a ``random_state`` that is neither
        None nor a seed not at all.
        """
        arrays, notes = self.contents()
        metadata = {"format": _FORMAT, "softq": json.dumps(notes, default=plain)}
        write_atomically(Path(path), to_safetensors(arrays, metadata))

    def contents(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The arrays of a file, and the rest of it as JSON can hold it."""
        check_is_fitted(self)
        tensors = {name: getattr(self, f"{name}_") for name in _ARRAYS}
        for layer, (weight, bias) in enumerate(zip(self.coefs_, self.intercepts_, strict=True)):
            tensors |= {f"coefs.{layer}": weight, f"intercepts.{layer}": bias}
        if self.reward_ is not None:
            tensors["reward"] = self.reward_
        named = self.classes_.dtype.kind == "U"
        if not named:
            tensors["classes"] = self.classes_
        parameters = {**self.get_params(), "reward": None, "cost": None}  # see "given"
        if not isinstance(self.random_state, numbers.Integral):
            parameters["random_state"] = None
        names = getattr(self, "feature_names_in_", None)
        notes = {
            "parameters": parameters,
            "classes": self.classes_.tolist() if named else None,
            "feature_names": None if names is None else names.tolist(),
            "labels_per_row": self.labels_per_row_,
            "given": self._given,
            "objective": self.objective_,
            "tau": self.tau_,
            "alpha": self.alpha_,
            "temperature": self.temperature_,
        }
        arrays = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        return arrays, json.loads(json.dumps(notes, default=plain))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The model that `save` wrote; it predicts the same to the last bit."""
        try:
            tensors, metadata = read_tensors(path, "numpy")
        except DataError as error:
            raise DataError(f"{path} cannot be read as a safetensors file: {error}") from None
        if metadata.get("format") != _FORMAT:
            raise DataError(
                f"{path} must be a file of {_FORMAT!r}, as RewardClassifier.save writes, "
                f"got {metadata.get('format')!r}"
            )
        with refusing(f"{path} is damaged or was not written by RewardClassifier.save"):
            return cls.from_contents(tensors, read_object(metadata["softq"], "its notes"))

    @classmethod
    def from_contents(cls, tensors: dict[str, Array], notes: dict[str, Any]) -> Self:
        """The model of `contents`."""
        return cls()._restore(notes, tensors)

    def _restore(self, notes: dict[str, Any], tensors: dict[str, Array]) -> Self:
        parameters = mapping("parameters", notes["parameters"])
        self._given = one_of("given", notes["given"], (None, "reward", "cost", *_NAMED))
        if self._given in _NAMED:
            parameters["reward"] = self._given
        elif self._given:
            sign = 1.0 if self._given == "reward" else -1.0
            parameters[self._given] = sign * tensors["reward"] + 0.0  # no minus zeros
        if isinstance(parameters["hidden"], list):
            parameters["hidden"] = tuple(parameters["hidden"])
        self.set_params(**parameters)
        self.classes_ = read_classes(notes["classes"], tensors.pop("classes", None))
        layers = range(sum(name.startswith("intercepts.") for name in tensors))
        hidden = [len(tensors[f"intercepts.{layer}"]) for layer in layers[:-1]]
        sizes = (len(tensors["mean"]), *hidden, len(self.classes_))
        shapes: dict[str, tuple[int, ...]] = {name: (tensors[name].size,) for name in _ARRAYS}
        shapes |= {"scale": (sizes[0],), "reward": (sizes[-1], sizes[-1])}
        for layer, (before, after) in enumerate(pairwise(sizes)):
            shapes |= {f"coefs.{layer}": (before, after), f"intercepts.{layer}": (after,)}
        for name, shape in shapes.items():
            if name == "reward" and name not in tensors:
                continue  # there was a table for each row
            tensor = tensors[name]
            if tensor.dtype not in (np.float32, np.float64):
                raise DataError(f"{name} must be of float32 or float64, got {tensor.dtype}")
            if tensor.shape != shape:
                raise ShapeError(f"{name} must have shape {list(shape)}, got {list(tensor.shape)}")
            if not np.isfinite(tensor).all():
                raise DataError(f"{name} must be finite, got NaN or inf")
        if not (tensors["scale"] > 0).all():
            raise DataError(f"scale must be positive, got {tensors['scale'].min()}")
        for name in _ARRAYS:
            setattr(self, f"{name}_", tensors[name])
        self.reward_ = tensors.get("reward")
        self.coefs_ = [tensors[f"coefs.{layer}"] for layer in layers]
        self.intercepts_ = [tensors[f"intercepts.{layer}"] for layer in layers]
        self.n_iter_, self.n_features_in_ = len(self.loss_curve_), sizes[0]
        self.labels_per_row_ = number("a number of at least 1", lambda value: value >= 1.0)(
            "labels_per_row", notes["labels_per_row"]
        )
        self.objective_ = self._rules["objective"]("objective", notes["objective"])
        self.tau_, self.alpha_ = check_tau(notes["tau"]), not_negative("alpha", notes["alpha"])
        self.temperature_ = read_temperature(notes)
        if notes["feature_names"] is not None:
            names = string_list("feature_names", notes["feature_names"])
            if len(names) != sizes[0]:
                raise DataError(f"expected names of {sizes[0]} features, got {len(names)}")
            self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coefs_")

    def _scores(self, X: Any) -> Array:
        """Log of the model's distribution up to a constant per row, ``[n, K]`` float64."""
        check_is_fitted(self)
        values = validate_data(self, X, dtype=np.float64, reset=False)
        with np.errstate(over="ignore", invalid="ignore"):
            values = forward((self.coefs_, self.intercepts_), (values - self.mean_) / self.scale_)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).all(1))[0])
            raise ScoreError(
                f"the scores of row {row} of X are not finite: "
                "it lies too far from the training rows"
            )
        return np.asarray(values)

    def _schedule(self, rows: int) -> Schedule:
        """Options of training on this many rows."""
        schedule = Schedule(**self._options_of(Schedule._fields))
        if schedule.solver == "auto":
            on_cpu = schedule.device.type == "cpu"
            small = rows <= _MOST_ROWS_FOR_LBFGS and on_cpu and not self.early_stopping
            return schedule._replace(solver="lbfgs" if small else "sgd")
        if schedule.solver == "lbfgs" and self.early_stopping:
            raise EstimatorError(
                "early_stopping is for gradient descent: set solver='sgd', "
                "or turn early_stopping off"
            )
        return schedule

    def _table(self, classes: Array) -> Array:
        """The rewards as float64 ``[K, K]``; exact match if none are given."""
        shape = len(classes), len(classes)
        if self.cost is None:
            if self.reward is None:
                return np.eye(len(classes))
            if isinstance(self.reward, str):
                return _named_reward(self.reward, classes)
            return _checked("reward", self.reward, shape, classes)
        if self.reward is not None:
            raise EstimatorError(
                "reward and cost say the same with opposite signs: give one of them"
            )
        return 0.0 - _checked("cost", self.cost, shape, classes)

    def _split(
        self, examples: LabelledRows, random: np.random.RandomState
    ) -> tuple[LabelledRows, LabelledRows | None]:
        """Training rows, and those that early stopping holds out."""
        if not self.early_stopping:
            return examples, None
        rows = len(examples.inputs)
        held_out = math.ceil(self._option("validation_fraction") * rows)
        if held_out >= rows:
            raise DataError(
                f"early stopping would hold out {held_out} of n_samples = {rows} and leave none to "
                "train on; give more rows, lower validation_fraction or turn early_stopping off"
            )
        order = random.permutation(rows)
        return examples.at(order[held_out:]), examples.at(order[:held_out])


def _solved_as(objective: ObjectiveName, labels_per_row: float) -> ObjectiveName:
    """The objective by whose equation a model is read: from one label per row, SQDML learns Q'."""
    return "raml" if objective == "sqdml" and labels_per_row == 1.0 else objective


_NAMED = ("absolute", "squared", "quadratic-kappa")
"""Rewards of classes that have an order."""


def _named_reward(name: str, classes: Array) -> Array:
    """The table ``[K, K]`` of a reward by name.

    >>> _named_reward("squared", np.array([1, 2, 4]))
    array([[-0., -1., -9.],
           [-1., -0., -4.],
           [-9., -4., -0.]])
    """
    if name not in _NAMED:
        near = difflib.get_close_matches(name, _NAMED, 1, cutoff=0.0)
        raise RewardError(
            f"reward must be a table or one of {', '.join(_NAMED)}, got {name!r}; did you mean"
            f" {near[0]!r}?"
        )
    if classes.dtype.kind == "U":
        raise RewardError(
            f"reward={name!r} is for classes that are numbers, got {_listed(classes)}, which would"
            " be in alphabetical order; number them in their order, or give a table"
        )
    if name == "quadratic-kappa":
        places = np.arange(len(classes)) / max(len(classes) - 1, 1)
        return np.asarray(1.0 - (places[:, None] - places) ** 2)
    values = classes.astype(np.float64)
    away = np.abs(values[:, None] - values)
    return np.asarray(-away if name == "absolute" else -(away**2))


def _is_flat(rewards: Any) -> bool:
    """Whether rewards are one table for all rows, by their first entry."""
    if hasattr(rewards, "ndim"):
        return bool(rewards.ndim == 2)
    first = next(iter(rewards), None) if isinstance(rewards, Iterable) else None
    return isinstance(first, Iterable) and not isinstance(next(iter(first), ()), Iterable)


def _what_is_wrong(values: Any) -> str:
    """Why values are no table of numbers, for an error."""
    rows = list(values) if isinstance(values, Iterable) else []
    if not rows or any(isinstance(row, str) or not hasattr(row, "__len__") for row in rows):
        return type(values).__name__
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        number = next(i for i, row in enumerate(rows) if len(row) != len(rows[0]))
        return f"rows of different lengths: {len(rows[0])} in row 0, {len(rows[number])} in row {number}"
    return f"a {type(values).__name__} with other values among them"


def _checked(name: str, values: Any, shape: tuple[int, ...], classes: Array) -> Array:
    """A table of rewards or costs as float64, or one for each row."""
    try:
        table = np.asarray(values, dtype=np.float64).copy()
    except (TypeError, ValueError):
        raise RewardError(
            f"{name} must be a table of numbers, {list(shape)}, got {_what_is_wrong(values)}"
        ) from None
    if table.shape != shape:
        axes = "(predicted, right)" if len(shape) == 2 else "(row, predicted, right)"
        raise ShapeError(
            f"{name} must be {list(shape)} {axes} for the classes that occur in y, "
            f"{_listed(classes)}; got {list(table.shape)}"
        )
    if not np.isfinite(table).all():
        place = tuple(np.argwhere(~np.isfinite(table))[0].tolist())
        what = "a large cost" if name == "cost" else "a large negative reward"
        raise RewardError(
            f"every {name.removesuffix('s')} must be finite, got {table[place]} at {place}; "
            f"{what} forbids a decision"
        )
    return table


def _warn_of_costs(table: Array, classes: Array) -> None:
    """Where the right class does not earn most, rewards may be costs by mistake."""
    own = np.diagonal(table, axis1=-2, axis2=-1)
    worse = np.argwhere(own < table.max(-2))
    if len(worse):
        *row, right = worse[0].tolist()
        column = table[(*row, slice(None), right)]
        where = f" (row {row[0]})" if row else ""
        warnings.warn(
            f"where {classes[right].item()!r} is right{where}, predicting it earns "
            f"{column[right]:g} and predicting {classes[column.argmax()].item()!r} earns "
            f"{column.max():g}; if these are costs, give them as cost, or rewards=-costs to fit",
            RewardWarning,
            stacklevel=3,
        )


def _row_weights(sample_weight: Any, X: Array) -> Array:
    """How much each row counts, ``[n]`` float64."""
    return np.asarray(
        _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    )


def _standardisation(X: Array, weights: Array) -> tuple[Array, Array]:
    """Mean and deviation of each feature, ``[D]``; a deviation of 1 for a constant one."""
    with np.errstate(over="ignore", invalid="ignore"):
        standard = StandardScaler().fit(X, sample_weight=weights if np.ptp(weights) else None)
    bad = ~(np.isfinite(standard.mean_) & np.isfinite(standard.scale_))
    if bad.any():
        raise ScoreError(
            f"the deviation of feature {int(np.flatnonzero(bad)[0])} of X is beyond float64; "
            "rescale it"
        )
    return standard.mean_, standard.scale_


def _listed(classes: Array) -> str:
    """The first few classes, for an error."""
    shown = ", ".join(repr(label) for label in classes[:5].tolist())
    return shown if len(classes) <= 5 else f"{shown}, … ({len(classes)} in all)"
