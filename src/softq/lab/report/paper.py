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


CLASSIFICATION_SETUP = ClassificationSetup(
    1_000_000, 10, 100_000, 100_000, (8, 8), 0.1, 0.9, 100
)  # §4.1.1
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
NER_EXACT_MATCH_ML, NER_EXACT_MATCH_RAML = (
    PaperNumber(78.8, "Table 6"),
    PaperNumber(80.1, "Table 6"),
)  # RAML at its best τ
NER_SENTENCES = {"train": 14_987, "dev": 3_466, "test": 3_684}  # the table of Appendix D.1


class ParsingScores(NamedTuple):
    """A row of Table 3: UAS in percent."""

    dev_uas: float
    test_uas: float


PARSING_ML = ParsingScores(
    91.3, 90.7
)  # Table 3, the Penn Treebank with Stanford's basic dependencies
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
PARSING_EXACT_MATCH_ML, PARSING_EXACT_MATCH_RAML = (
    PaperNumber(39.9, "Table 6"),
    PaperNumber(39.4, "Table 6"),
)  # RAML at its best τ
PARSING_SENTENCES = {"train": 39_832, "dev": 1_700, "test": 2_416}  # the table of Appendix D.1


class TranslationScores(NamedTuple):
    """A row of Table 4: mean BLEU of sentences, which was the reward, and BLEU of the corpus, both in percent."""

    sentence_bleu: float
    corpus_bleu: float


TRANSLATION_ML = TranslationScores(29.15, 27.66)  # Table 6, IWSLT 2014 German-English, test part
TRANSLATION_RAML = {  # Table 4 by τ: candidates by n-gram replacement
    0.1: TranslationScores(28.67, 27.42),
    0.2: TranslationScores(29.44, 28.38),
    0.3: TranslationScores(29.59, 28.40),
    0.4: TranslationScores(29.80, 28.77),
    0.5: TranslationScores(29.55, 28.45),
    0.6: TranslationScores(29.37, 28.49),
    0.7: TranslationScores(29.52, 28.59),
    0.8: TranslationScores(29.54, 28.63),
    0.9: TranslationScores(29.48, 28.58),
    1.0: TranslationScores(29.34, 28.40),
}
TRANSLATION_IMPORTANCE = {  # Table 8, corpus BLEU by τ: importance sampling, drawn by Hamming distance
    0.1: 28.22,
    0.2: 28.22,
    0.3: 28.22,
    0.4: 28.31,
    0.5: 28.28,
    0.6: 28.23,
    0.7: 28.61,
    0.8: 28.30,
    0.9: 28.40,
    1.0: 28.42,
}
TRANSLATION_HAMMING = {  # Table 9, corpus BLEU by τ: minus the Hamming distance as the reward
    0.60: 27.96,
    0.65: 27.94,
    0.70: 28.18,
    0.75: 27.96,
    0.80: 27.93,
    0.85: 27.97,
    0.90: 28.39,
    0.95: 28.30,
    1.00: 28.32,
    1.05: 27.92,
}
TRANSLATION_BEST_TAU = PaperNumber(0.4, "Table 4")
TRANSLATION_IMPORTANCE_BEST_TAU = PaperNumber(0.7, "Table 8; the text beside it has 0.8")
TRANSLATION_HAMMING_BEST_TAU = PaperNumber(0.9, "Table 9")
TRANSLATION_EXACT_MATCH_ML, TRANSLATION_EXACT_MATCH_RAML = (
    PaperNumber(3.79, "Table 6"),
    PaperNumber(3.35, "Table 6"),
)  # RAML at its best τ


class PreviousWork(NamedTuple):
    """A row of Table 5: corpus BLEU of others' ML and of what they propose."""

    name: str
    ml: float
    proposed: float


TRANSLATION_OTHERS = (
    PreviousWork("Ranzato et al., MIXER", 20.10, 21.81),
    PreviousWork("Wiseman and Rush, beam-search optimisation", 24.03, 26.36),
    PreviousWork("Li et al., learning to decode", 27.90, 28.30),
    PreviousWork("Bahdanau et al., actor–critic", 27.56, 28.53),
    PreviousWork("The paper", 27.66, 28.77),
)
TRANSLATION_SENTENCES = {"train": 153_326, "dev": 6_969, "test": 6_750}  # the table of Appendix D.1


class TranslationSetup(NamedTuple):
    """Model and training of the translation experiment."""

    embedding: int
    hidden: int
    source_words: int
    target_words: int
    batch_ml: int
    batch_raml: int
    candidates: int
    used: int  # of these, in a step
    beam: int


TRANSLATION_SETUP = TranslationSetup(
    256, 256, 32_008, 22_821, 64, 100, 100, 10, 5
)  # Appendices C and D.2.4


class CaptioningScores(NamedTuple):
    """Average reward, the mean of sentence BLEU over references, and BLEU of the corpus, both in percent."""

    average_reward: float
    corpus_bleu: float


CAPTIONING_ML = CaptioningScores(10.71, 26.91)  # §4.1.2, MSCOCO
CAPTIONING_RAML = {  # Table 1 by τ
    0.80: CaptioningScores(10.77, 27.02),
    0.85: CaptioningScores(10.81, 27.27),
    0.90: CaptioningScores(10.88, 27.62),
    0.95: CaptioningScores(10.82, 27.33),
    1.00: CaptioningScores(10.84, 27.26),
    1.05: CaptioningScores(10.82, 27.29),
    1.10: CaptioningScores(10.74, 26.89),
    1.15: CaptioningScores(10.77, 27.01),
}
CAPTIONING_SQDML = {  # Table 1 by τ
    0.80: CaptioningScores(10.82, 27.08),
    0.85: CaptioningScores(10.78, 26.92),
    0.90: CaptioningScores(10.91, 27.54),
    0.95: CaptioningScores(10.79, 27.02),
    1.00: CaptioningScores(10.82, 27.03),
    1.05: CaptioningScores(10.80, 27.20),
    1.10: CaptioningScores(10.78, 26.98),
    1.15: CaptioningScores(10.72, 26.66),
}
CAPTIONING_BEST_TAU = PaperNumber(0.9, "Table 1, of RAML and of SQDML")
CAPTIONING_AGREEMENT = PaperNumber(
    10.09, "§4.1.2: sentence BLEU of one reference against another, of 300 images"
)
CAPTIONING_IMAGES = {"train": 113_000, "dev": 5_000, "test": 5_000}  # §4.1.2: of 123,000


class CaptioningSetup(NamedTuple):
    """Model and training of the captioning experiment."""

    encoder: str
    embedding: int
    hidden: int
    min_freq: int
    words: int
    batch_ml: int
    batch: int  # of RAML and SQDML
    candidates: dict[str, int]  # by objective
    used: dict[str, int]  # of these, in a step
    max_n: int
    beam: int


CAPTIONING_SETUP = CaptioningSetup(  # Appendix C
    "vgg16-fc7",
    256,
    512,
    5,
    10_102,
    10,
    100,
    {"RAML": 100, "SQDML": 500},
    {"RAML": 10, "SQDML": 50},
    3,
    5,
)
