"""What `CRFTagger` and `DependencyParser` share: scikit-learn's base or its stand-in, and files."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from softq.calibration import UNKNOWN, batch_of, fit_temperature
from softq.errors import DataError, EstimatorError
from softq.formats.file_checks import check_format, mapping, notes_in, read_tensors, refusing
from softq.lab.run import BEST, write_atomically
from softq.linear.estimator_inputs import CheckedOptions, plain
from softq.spaces import Distribution

Array = np.ndarray[Any, Any]
_ABOUT = "about"  # the tensor that holds the notes


class Parameters:
    """What scikit-learn's ``BaseEstimator`` gives an estimator, for where it is not installed.

    Reads and sets the keywords of a constructor, which keeps each under its own name.

    >>> class Rule(Parameters):
    ...     def __init__(self, *, depth: int = 2) -> None:
    ...         self.depth = depth
    >>> Rule().set_params(depth=3), Rule().get_params()
    (Rule(depth=3), {'depth': 2})
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {
            name: keyword.default for name, keyword in inspect.signature(cls).parameters.items()
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The keywords as they are now.

        ``deep`` changes nothing, for none of them is an estimator.
        """
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **parameters: Any) -> Self:
        """Change keywords; what is fitted stays as it is until the next ``fit``."""
        known = self._defaults()
        for name, value in parameters.items():
            if name not in known:
                raise EstimatorError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        changed = (
            f"{name}={getattr(self, name)!r}"
            for name, default in self._defaults().items()
            if getattr(self, name) is not default
        )
        return f"{type(self).__name__}({', '.join(changed)})"


try:
    from sklearn.base import BaseEstimator
except ModuleNotFoundError:  # scikit-learn's searches need it; taggers and parsers do not
    BaseEstimator = Parameters


class NotFittedError(EstimatorError, AttributeError):
    """An estimator was asked for what it has after `fit` only."""


class SavedEstimator(CheckedOptions, BaseEstimator):  # type: ignore[misc]
    """An estimator whose model is one safetensors file, with its options and what `fit` measured.

    A run folder of ``softq train`` holds the same file. Subclasses name what they are, the
    attributes of a fit that are no part of the model, and that model.
    """

    _noun: ClassVar[str]
    _format: ClassVar[str]
    _model_type: ClassVar[Any]
    _model_name: ClassVar[str]  # the attribute that holds the model
    _learnt: ClassVar[tuple[str, ...]]

    def __sklearn_is_fitted__(self) -> bool:
        return self._model_name in vars(self)

    def _fitted(self) -> Any:
        """The model."""
        if not self.__sklearn_is_fitted__():
            name = type(self).__name__
            raise NotFittedError(
                f"this {name} has learnt nothing yet: call fit, or make one with {name}.load"
            )
        return getattr(self, self._model_name)

    def _keep(self, model: Any) -> None:
        """Take this for the model."""
        raise NotImplementedError

    # --- calibration ----------------------------------------------------------------------------

    @property
    def temperature_(self) -> float:
        """What scores are divided by: 1 after `fit`, or what `calibrate` has found."""
        return float(self._fitted().temperature)

    def calibrate(self, X: Any, y: Any = None) -> Self:
        """Fit one temperature to sentences that were not trained on.

        It is the one that gives the right sequences or trees the highest likelihood, exactly
        (`softq.calibration.fit_temperature`), and is saved with the model. Marginals change, and
        the decoding ``"mbr"`` that rests on them; the most probable output stays the same.
        Sentences whose output the model cannot give, at any temperature, are left out with a
        `DataWarning`.

        Args:
            X: sentences, as in `fit`.
            y: one output for each, as in `fit`.

        """
        model = replace(self._fitted(), temperature=1.0)
        outputs = self.whole_outputs(X, y)
        models, right = [], []
        for numbers, space in self._distributions(model, X):
            models.append(space)
            right.append(batch_of(outputs, numbers, space))
        self._keep(replace(model, temperature=fit_temperature(models, right)))
        return self

    def output_ids(self, X: Any, y: Any = None) -> list[Array]:
        """The outputs y of sentences as the model numbers them, for `softq.conformal`.

        Places of labels in ``classes_``, or heads; -1 where the model knows no such label.
        """
        raise NotImplementedError

    def output_probabilities(self, X: Any) -> list[Array]:
        """Probabilities ``[n, K]`` of the labels of each token, or of the heads of each word."""
        raise NotImplementedError

    def whole_outputs(self, X: Any, y: Any = None) -> list[Array]:
        """The same as the model's distribution takes them; all -1 of one that it cannot give."""
        return [
            self._as_output(ids) if self._is_possible(ids) else np.full_like(ids, UNKNOWN)
            for ids in self.output_ids(X, y)
        ]

    def named(self, output: Sequence[int]) -> list[Any]:
        """The labels or heads of an output of the model's distribution."""
        names = getattr(self, "classes_", None)
        return list(output) if names is None else [names[k] for k in output]

    def _as_output(self, ids: Array) -> Array:
        """One of `output_ids`, which is possible, as an output of the model's distribution."""
        return ids

    def output_distributions(self, X: Any) -> Iterator[tuple[Array, Distribution]]:
        """Distributions over label sequences or trees, in batches of like length: ``(numbers, p)``.

        ``numbers`` are the places in X of the sentences of ``p``.
        """
        return self._distributions(self._fitted(), X)

    def _is_possible(self, output: Array) -> bool:
        """Whether the model has such an output, if it knows all labels in it."""
        return True

    def _distributions(self, model: Any, X: Any) -> Iterator[tuple[Array, Distribution]]:
        raise NotImplementedError

    # --- on the disk ----------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        """Options as JSON can hold them; of a ``random_state`` that is no seed None is kept."""
        kept = {name: plain(value) for name, value in self.get_params().items()}
        for name, value in kept.items():
            if name.endswith("templates") and value is not None:
                kept[name] = list(value)
        if not isinstance(kept["random_state"], int):
            kept["random_state"] = None
        return kept

    def _check_learnt(self) -> None:
        """Refuse attributes from a file with which predictions would go wrong."""

    def tensors(self) -> dict[str, Tensor]:
        """All that a file holds."""
        model = self._fitted()
        notes = {
            "format": self._format,
            **model.notes(),
            "parameters": self._options(),
            "learnt": {name: getattr(self, name) for name in self._learnt},
        }
        text = np.frombuffer(json.dumps(notes, ensure_ascii=False).encode(), np.uint8)
        arrays = model.tensors() | {_ABOUT: text}
        return {
            # torch would warn of arrays that cannot be written to
            name: torch.from_numpy(array if array.flags.writeable else array.copy())
            for name, array in arrays.items()
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The estimator of `tensors`; what is none, or damaged, is a `DataError`."""
        notes = notes_in(tensors, _ABOUT, cls._noun)
        check_format(notes, cls._format)
        with refusing(f"expected the tensors and notes of {cls.__name__}.save"):
            model = cls._model_type.from_tensors(tensors, notes)
            parameters = mapping("parameters", notes["parameters"])
            learnt = mapping("learnt", notes["learnt"])
            unknown = parameters.keys() - inspect.signature(cls).parameters.keys()
            if unknown:
                raise DataError(f"this version of softq has no option {min(unknown)!r}")
            loaded = cls(**parameters)
            for name in cls._learnt:
                setattr(loaded, name, learnt[name])
            loaded._check_learnt()
        loaded._keep(model)
        return loaded

    def save(self, path: str | PathLike[str]) -> None:
        """Write what was fitted to one safetensors file; nothing is pickled.

        The file appears whole or not at all, and replaces an older one. ``softq predict`` and
        ``softq evaluate`` read it, too. Options are kept as they are now, except a
        ``random_state`` that is neither None nor a seed.
        """
        write_atomically(Path(path), to_safetensors(self.tensors()))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """What `save` wrote, or ``softq train``.

        A file, or a run folder, whose best model is taken.

        It predicts the same. Its arrays stay on the disk until they are used.
        """
        try:
            return cls.from_tensors(
                read_tensors(Path(path) / BEST if Path(path).is_dir() else path).tensors
            )
        except DataError as error:
            raise DataError(
                f"{path} is not a {cls._noun} of softq ({error}); expected a file of"
                f" {cls.__name__}.save or a run of softq train"
            ) from None
