"""Run and sweep folders as one self-contained HTML page, with figures, numbers and the paper's beside ours.

A task's section is declared (`Experiment`): its scores, what is tuned, the paper's tables and settings, and parts of its own. Loading,
tables, figures and the page are written once. A task that declares nothing gets a section by its metrics.
"""

from softq.lab.report.content import Column, Example, Figure, Gallery, Section, Table
from softq.lab.report.experiment import Experiment, PaperTable, Score, Setting
from softq.lab.report.loader import Source, find_sources
from softq.lab.report.page import write_report
from softq.lab.report.sections import read_sections

__all__ = [
    "Column",
    "Example",
    "Experiment",
    "Figure",
    "Gallery",
    "PaperTable",
    "Score",
    "Section",
    "Setting",
    "Source",
    "Table",
    "find_sources",
    "read_sections",
    "write_report",
]
