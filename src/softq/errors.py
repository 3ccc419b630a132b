"""Exceptions. Every message states what was expected, what came, and where it helps, what to do."""


class SoftqError(Exception):
    """Base of every error that softq raises on purpose."""


class ShapeError(SoftqError, ValueError):
    """A tensor has the wrong number of dimensions or the wrong sizes."""


class DtypeError(SoftqError, TypeError):
    """A tensor or argument has the wrong type."""


class ScoreError(SoftqError, ValueError):
    """Scores hold NaN or +inf (-inf is allowed: it forbids a part)."""


class LengthError(SoftqError, ValueError):
    """A length lies outside 0..n."""


class OutputError(SoftqError, ValueError):
    """An output is not in the output space.

    A label out of range, a cycle, two roots, crossing arcs.
    """


class InfeasibleError(SoftqError, ValueError):
    """The -inf scores leave no output at all, so there is none to decode or sample."""


class TemperatureError(SoftqError, ValueError):
    """The temperature tau is not a positive finite number."""


class WeightError(SoftqError, ValueError):
    """Reference weights are negative, not finite, or do not sum to a positive number."""


class RewardError(SoftqError, ValueError):
    """The reward does not split over the parts of this output space."""


class SamplerError(SoftqError, ValueError):
    """A sampler's options do not fit together, or leave nothing to draw from."""


class EstimatorError(SoftqError, ValueError):
    """Candidates lack what a base measure needs, or it is unknown or its k out of range."""


class DataError(SoftqError, ValueError):
    """A file cannot be read or does not hold what it should; the message names file and line."""


class IntractableError(SoftqError, NotImplementedError):
    """The exact value has no closed form here; the message names what can be computed instead."""


class RecipeError(SoftqError, ValueError):
    """A recipe or flag has an unknown key, a wrong type, or values that do not fit together."""


class RunError(SoftqError, RuntimeError):
    """A run cannot start, resume or be written; the message says how to continue."""


class ModelError(SoftqError, ValueError):
    """A model was asked to be, or to do, what it cannot."""


class DependencyError(SoftqError, ImportError):
    """An optional package is missing; the message says what to install."""


class StoppedError(SoftqError):
    """Training was asked to stop, and did so with a checkpoint."""


class ConvergenceWarning(UserWarning):
    """Training stopped before the gradient was small enough."""


class DataWarning(UserWarning):
    """A file was read, but not all of it as it stands; the message counts what was changed."""
