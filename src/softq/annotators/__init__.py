"""Annotators who disagree: their agreement, how reliable each is, and the labels that are right.

From the simplest to the most detailed model:

- `vote`: the label that most of them gave. `agreement`: how much more often two of them agree than
  by chance.
- `estimate`: how reliable each one is, and the truth behind their labels, by EM (one coin, Dawid
  and Skene, or ``"sequential"`` for entities); `estimate_classes` for classes, `estimate_heads` for
  trees. A `Reliability` has a row for each annotator, the probabilities of the true labels, and the
  best ones; `reference_weights` makes weights of it for `softq.raml` and `softq.sqdml`.
- With a model in the loop, by which words count as well: ``softq.CRFTagger(annotators=…)``
  (`softq.linear.truth_loop`), or `AnnotatorTables` with any distribution in PyTorch: train toward
  its ``target(model, sentences)``.
- `softq.rewards.Annotators`: tables as a reward, with which `softq.sqdml` is the E-step.

Under them: `Crowd` has the annotations as arrays. An *evidence* says what is known of the true
labels, and learns from their probabilities: `AnnotatorTables` with `TablePriors`, or `KnownLabels`,
labels that are known in part. `SequentialFit` is variational EM between evidence and a chain over
the truth (`softq.annotators.truth`).
"""

from softq.annotators.agreement import agreement
from softq.annotators.crowd import Crowd
from softq.annotators.heads import HeadReliability, estimate_heads
from softq.annotators.known import KnownLabels
from softq.annotators.reliability import (
    AnnotatorRow,
    Reliability,
    estimate,
    estimate_classes,
    reference_weights,
    vote,
)
from softq.annotators.sequential import SequentialFit
from softq.annotators.tables import AnnotatorTables, TablePriors

__all__ = [
    "AnnotatorRow",
    "AnnotatorTables",
    "Crowd",
    "HeadReliability",
    "KnownLabels",
    "Reliability",
    "SequentialFit",
    "TablePriors",
    "agreement",
    "estimate",
    "estimate_classes",
    "estimate_heads",
    "reference_weights",
    "vote",
]
