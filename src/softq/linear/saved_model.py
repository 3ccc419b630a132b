"""What `CRFTagger` and `DependencyParser` share: scikit-learn's base or its stand-in, and files of what was fitted."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Self

from softq.errors import DataError, EstimatorError

try:
    from sklearn.base import BaseEstimator
except ModuleNotFoundError:  # scikit-learn's searches need it; taggers and parsers do not
    from softq.linear.parameters import Parameters as BaseEstimator


class NotFittedError(EstimatorError, AttributeError):
    """An estimator was asked for what it has after `fit` only."""


class FiledEstimator(BaseEstimator):  # type: ignore[misc]
    """An estimator whose model is one safetensors file, with its options and what `fit` measured as notes beside it."""

    def __sklearn_is_fitted__(self) -> bool:
        raise NotImplementedError

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            name = type(self).__name__
            raise NotFittedError(
                f"this {name} has learnt nothing yet: call fit, or make one with {name}.load"
            )

    def _notes(self, parameters: Mapping[str, Any], learnt: Sequence[str]) -> dict[str, Any]:
        """What a file holds beside the model: options as JSON can hold them, and these attributes."""
        return {
            "estimator": type(self).__name__,
            "parameters": parameters,
            "learnt": {name: getattr(self, name) for name in learnt},
        }

    @classmethod
    @contextmanager
    def _reading_notes(
        cls, path: str | PathLike[str], notes: Mapping[str, Any]
    ) -> Iterator[tuple[Self, dict[str, Any]]]:
        """An estimator with the options of `_notes`, and the attributes to set; what is missing while they are set is a `DataError`."""
        if notes.get("estimator") != cls.__name__:
            raise DataError(
                f"{path} holds a model that is no {cls.__name__}'s: expected a file of {cls.__name__}.save"
            )
        try:
            parameters, learnt = dict(notes["parameters"]), dict(notes["learnt"])
            unknown = [name for name in parameters if name not in inspect.signature(cls).parameters]
            if unknown:
                raise DataError(
                    f"{path} has options that this version of softq does not know ({', '.join(map(repr, unknown))})"
                )
            yield cls(**parameters), learnt
        except DataError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(
                f"{path} is damaged, or of another version of softq: expected the notes of {cls.__name__}.save, got {what}; "
                "fit and save it again"
            ) from None
