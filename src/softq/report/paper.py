"""What the paper reports, with the place where it stands: facts to set beside our own numbers."""

from __future__ import annotations

from typing import NamedTuple


class PaperNumber(NamedTuple):
    """A number of the paper and where it is printed."""

    value: float
    source: str


class ClassificationSetup(NamedTuple):
    """Data, model and training of the four-class experiment, the paper's or ours."""

    inputs: int
    outputs_per_input: int
    dev: int  # pairs (x, y)
    test: int
    hidden: tuple[int, ...]
    learning_rate: float
    momentum: float
    epochs: int


CLASSIFICATION_SETUP = ClassificationSetup(1_000_000, 10, 100_000, 100_000, (8, 8), 0.1, 0.9, 100)  # §4.1.1
CLASSIFICATION_REPETITIONS = 5
CLASSIFICATION_LARGEST_TAU = 10_000.0

CLASSIFICATION_BEST_TAU = {
    "raml": PaperNumber(2.4, "Appendix B and the caption of Figure 4"),
    "sqdml": PaperNumber(1.1, "Appendix B and the caption of Figure 4"),
}
