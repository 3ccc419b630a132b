"""Evaluation: span metrics from statistics of each sentence, and how sure a number is."""

from softq.evaluate.intervals import Interval, mean_interval, mean_of_first, paired_bootstrap, student_t
from softq.evaluate.spans import (
    SPAN_METRICS,
    SPAN_STATISTICS,
    KindScores,
    SpanScores,
    SpanStatistics,
    exact_match,
    span_f1,
    span_precision,
    span_recall,
    span_statistics,
    token_accuracy,
)

__all__ = [
    "SPAN_METRICS",
    "SPAN_STATISTICS",
    "Interval",
    "KindScores",
    "SpanScores",
    "SpanStatistics",
    "exact_match",
    "mean_interval",
    "mean_of_first",
    "paired_bootstrap",
    "span_f1",
    "span_precision",
    "span_recall",
    "span_statistics",
    "student_t",
    "token_accuracy",
]
