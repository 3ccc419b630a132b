"""Options that functions, estimators, recipes and commands spell alike.

Names to choose from, and temperatures. Nothing here imports torch, which takes seconds: recipes are
made of these, and help must not wait.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Any, Literal

from softq.errors import TemperatureError

ObjectiveName = Literal["ml", "raml", "sqdml"]
Estimator = Literal["set", "paper", "importance"]
Smoothing = Literal["nltk3", "mteval", "sacrebleu", "none"]
Scheme = Literal["iob1", "bio", "bioes"]

CandidateKind = Literal["ngram", "hamming", "edit", "recombined", "model", "dataset"]
"""Where candidates come from.

Changed references; references of one row put together anew; the model's own samples; a column of
the data.
"""

PriorName = Literal["none", "base", "current"]
"""What a target is multiplied by.

Nothing, the model that training started from, or the model of this step.
"""

PresetName = Literal["raft", "best-of-n", "dpg", "rwr", "tpo"]
"""Methods of the literature that are values of a few options."""

LengthNormalization = Literal["none", "prior", "loss", "both"]
"""Which log-probabilities are divided by the number of tokens."""

GenerationMode = Literal["eager", "static", "compiled", "continuous"]
"""How a model's samples are generated."""

Ties = Literal["random", "entity", "outside", "first"]
"""Which of several labels wins that got the most votes of a token."""

Constraints = Literal["none", "decode", "target", "model"]
"""Where label sequences that break the tag scheme are forbidden.

Nowhere; in decoding; there and in the target that is trained toward; there and in the model while
it is trained.
"""

TaggerSpace = Literal["chain", "segments"]
"""What a tagger gives probabilities to: sequences of labels, or of labelled segments."""

LabelDecoding = Literal["viterbi", "mbr"]
"""The most probable sequence, or the one of the most right labels to be expected.

That is minimum Bayes risk under token accuracy.
"""

TreeDecoding = Literal["mode", "mbr"]
"""The most probable tree, or the one of the most right heads to be expected.

That is minimum Bayes risk under UAS.
"""

Pooling = Literal["first", "mean", "last"]
"""Which of its subwords stands for a word."""

LabelHead = Literal["chain", "independent"]
"""Scores of labels and of neighbouring ones, or of labels alone."""

FEWEST_BITS, MOST_BITS = 4, 30  # of tables of hashed features
COLDEST, HOTTEST = 1e-18, 1e18  # temperatures whose inverse and square float32 can hold


class RewardName(StrEnum):
    """Rewards by the names that users write."""

    bleu = "bleu"
    chrf = "chrf"
    rouge_l = "rouge-l"
    edit = "edit"
    hamming = "hamming"
    accuracy = "accuracy"
    exact = "exact"


def check_choice(name: str, value: Any, choices: Collection[str], error: type[Exception]) -> None:
    """One of several names; what is not raises ``error``."""
    if value not in choices:
        raise error(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_conflicts(conflicts: Iterable[tuple[object, str]], error: type[Exception]) -> None:
    """Of conditions that must not hold, the first that does raises ``error`` with its message."""
    for conflict, message in conflicts:
        if conflict:
            raise error(message)


def check_tau(tau: Any) -> float:
    """A temperature is a positive finite number, or a tensor that holds one."""
    if hasattr(tau, "numel") and tau.numel() == 1:
        tau = float(tau)
    if isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TemperatureError(f"tau must be a positive number, got {type(tau).__name__}")
    found = float(tau)
    if not (0.0 < found < math.inf):
        raise TemperatureError(
            f"tau must be positive and finite, got {tau}; as tau goes to 0 RAML becomes softq.ml"
        )
    if not COLDEST <= found <= HOTTEST:
        raise TemperatureError(
            f"tau must lie between {COLDEST:g} and {HOTTEST:g}, got {found:g}: "
            "beyond, rewards divided by it are no numbers"
        )
    return found
