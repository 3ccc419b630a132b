"""What the paper reports, with the place where it stands: facts to set beside our own numbers."""

from __future__ import annotations

from typing import NamedTuple


class PaperNumber(NamedTuple):
    """A number of the paper and where it is printed."""

    value: float
    source: str


class ClassificationSetup(NamedTuple):
    """Data and training of the paper's four-class experiment (§4.1.1)."""

    inputs: int
    outputs_per_input: int
    epochs: int
    repetitions: int
    largest_tau: float


CLASSIFICATION_SETUP = ClassificationSetup(inputs=1_000_000, outputs_per_input=10, epochs=100, repetitions=5, largest_tau=10_000.0)

CLASSIFICATION_BEST_TAU = {
    "raml": PaperNumber(2.4, "Appendix B and the caption of Figure 4"),
    "sqdml": PaperNumber(1.1, "Appendix B and the caption of Figure 4"),
}
