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


class NerScores(NamedTuple):
    """A row of Table 2: token accuracy and F1 of entities in percent."""

    dev_accuracy: float
    dev_f1: float
    test_accuracy: float
    test_f1: float


NER_ML = NerScores(98.2, 90.4, 97.0, 84.9)  # Table 2, CoNLL-2003 English
NER_RAML = {  # by τ
    0.1: NerScores(98.3, 90.5, 97.0, 85.0),
    0.2: NerScores(98.4, 91.2, 97.3, 86.0),
    0.3: NerScores(98.3, 90.2, 97.1, 84.7),
    0.4: NerScores(98.3, 89.6, 97.1, 84.0),
    0.5: NerScores(98.3, 89.4, 97.1, 83.3),
    0.6: NerScores(98.3, 88.9, 97.0, 82.8),
    0.7: NerScores(98.3, 88.6, 97.0, 82.2),
    0.8: NerScores(98.2, 88.5, 96.9, 81.9),
    0.9: NerScores(98.2, 88.5, 97.0, 82.1),
}
NER_BEST_TAU = PaperNumber(0.2, "Table 2")
NER_EXACT_MATCH_ML, NER_EXACT_MATCH_RAML = PaperNumber(78.8, "Table 6"), PaperNumber(80.1, "Table 6")  # RAML at its best τ
NER_SENTENCES = {"train": 14_987, "dev": 3_466, "test": 3_684}  # the table of Appendix D.1


class ParsingScores(NamedTuple):
    """A row of Table 3: UAS in percent."""

    dev_uas: float
    test_uas: float


PARSING_ML = ParsingScores(91.3, 90.7)  # Table 3, the Penn Treebank with Stanford's basic dependencies
PARSING_RAML = {  # by τ
    0.1: ParsingScores(91.0, 90.6),
    0.2: ParsingScores(91.5, 91.0),
    0.3: ParsingScores(91.7, 91.1),
    0.4: ParsingScores(91.4, 90.8),
    0.5: ParsingScores(91.2, 90.7),
    0.6: ParsingScores(91.0, 90.6),
    0.7: ParsingScores(90.8, 90.4),
    0.8: ParsingScores(90.8, 90.3),
    0.9: ParsingScores(90.7, 90.1),
}
PARSING_BEST_TAU = PaperNumber(0.3, "Table 3")
PARSING_EXACT_MATCH_ML, PARSING_EXACT_MATCH_RAML = PaperNumber(39.9, "Table 6"), PaperNumber(39.4, "Table 6")  # RAML at its best τ
PARSING_SENTENCES = {"train": 39_832, "dev": 1_700, "test": 2_416}  # the table of Appendix D.1
