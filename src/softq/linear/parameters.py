"""What scikit-learn's ``BaseEstimator`` gives an estimator, for where scikit-learn is not installed."""

from __future__ import annotations

import inspect
from typing import Any, Self

from softq.errors import EstimatorError


class Parameters:
    """Reads and sets the keywords of a constructor, which keeps each under its own name.

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
