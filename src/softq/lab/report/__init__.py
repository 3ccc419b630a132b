"""Results as one self-contained HTML page, figures and numbers, with the paper's beside ours."""

from softq.lab.report.classification import Cell, ClassificationResults, Comparison
from softq.lab.report.classification import section as classification_section
from softq.lab.report.page import Column, Example, Figure, Gallery, Section, Table, write_report
from softq.lab.report.runs import RunSummary, runs_section

__all__ = [
    "Cell",
    "ClassificationResults",
    "Column",
    "Comparison",
    "Example",
    "Figure",
    "Gallery",
    "RunSummary",
    "Section",
    "Table",
    "classification_section",
    "runs_section",
    "write_report",
]
