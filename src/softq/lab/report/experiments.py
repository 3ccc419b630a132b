"""The paper's experiments, each declared once.

Scores, what is tuned, the paper's numbers and settings, and parts of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softq.lab.report import annotators, classification, galleries
from softq.lab.report.content import Column, Part, Table, Value, bare
from softq.lab.report.experiment import Experiment, PaperTable, Score, Setting
from softq.lab.report.results import Results
from softq.linear.features import FINKEL
from softq.metrics import ATTACHMENT_STATISTICS, mean_interval

NOT_STATED = "not stated"


def _rows(
    ml: Sequence[float], **objectives: Mapping[float, Sequence[float | None]]
) -> dict[tuple[str, float | None], Sequence[float | None]]:
    """Rows of a table of the paper: ML, then each temperature of other objectives."""
    rows: dict[tuple[str, float | None], Sequence[float | None]] = {("ML", None): ml}
    for name, tuned in objectives.items():
        rows |= {(name, tau): row for tau, row in tuned.items()}
    return rows


# --- cost-sensitive classification ----------------------------------------------------------------------

CLASSIFICATION = Experiment(
    title="Cost-sensitive classification in four classes",
    about=(
        "An input is a point of a square, and each corner stands for a class: the nearer the"
        " corner, the likelier the class. A right answer earns 7.39, 4.95, 3.32 or 3.00 by its"
        " class, a wrong one nothing (§4.1.1 of the paper). Maximum likelihood (ML) ignores these"
        " rewards, the Bayes rule earns the most that any decision can, and RAML and SQDML aim at"
        " it with a temperature τ. The paper’s Figure 1 has temperatures up to 3, its Figure 2 up"
        " to 10,000."
    ),
    scores=[Score("reward", "reward", percent=False, digits=4, dev=True, plotted=True)],
    by_grid=True,
    spread=mean_interval,
    spread_note="95 % intervals over seeds (Student’s t)",
    paper={
        "": PaperTable("Appendix B", ("test_reward",), {}, {"RAML": 2.4, "SQDML": 1.1}),
    },
    paper_examples={"train": 1_000_000, "dev": 100_000, "test": 100_000},
    settings=[
        Setting("data.outputs", 10),
        Setting("model.hidden", (8, 8)),
        Setting("optimizer.learning_rate", 0.1),
        Setting("optimizer.momentum", 0.9),
        Setting("training.epochs", 100),
        Setting("training.batch_size", NOT_STATED),
        Setting("hidden units", NOT_STATED, lambda recipe: "rectified"),
        Setting(
            "data", "its own draw, not published", lambda recipe: "drawn anew from the same law"
        ),
        Setting("optimizer.average", NOT_STATED),
        Setting("training.burn_in", NOT_STATED),
        Setting("training.patience", NOT_STATED),
        Setting("repetitions differ in", NOT_STATED, lambda recipe: "the initial weights"),
    ],
    exact=classification.exact_curves,
    extras=classification.extras,
)

# --- named entities -------------------------------------------------------------------------------------

_NER_RAML: dict[float, Sequence[float | None]] = {  # Table 2; exact match: Table 6
    0.1: (98.3, 90.5, 97.0, 85.0),
    0.2: (98.4, 91.2, 97.3, 86.0, 80.1),
    0.3: (98.3, 90.2, 97.1, 84.7),
    0.4: (98.3, 89.6, 97.1, 84.0),
    0.5: (98.3, 89.4, 97.1, 83.3),
    0.6: (98.3, 88.9, 97.0, 82.8),
    0.7: (98.3, 88.6, 97.0, 82.2),
    0.8: (98.2, 88.5, 96.9, 81.9),
    0.9: (98.2, 88.5, 97.0, 82.1),
}
_NER_KEYS = ("dev_token_accuracy", "dev_f1", "test_token_accuracy", "test_f1", "test_exact_match")

NER = Experiment(
    title="Named entities",
    about=(
        "A tagger of named entities, a conditional random field, trained by ML, RAML and SQDML; the"
        " objectives are computed exactly, over all label sequences (§4.2 of the paper). The paper"
        " has one annotator; with several, RAML takes each as a reference of its own, and SQDML"
        " averages their rewards before it exponentiates (eq. 15)."
    ),
    scores=[
        Score("f1", "F1", dev=True, plotted=True),
        Score("token_accuracy", "token accuracy", dev=True, plotted=True),
        Score("exact_match", "exact match"),
        Score("precision", "precision"),
        Score("recall", "recall"),
    ],
    notes=(
        "F1, precision and recall are of entities; exact match is the share of sentences with every"
        " label right."
    ),
    unit="sentence",
    tuned=("c2", "entity_weight", "tagger_weight"),
    spread=mean_interval,
    spread_note="95 % intervals over seeds (Student’s t)",
    measures={
        "iterations": Column("Iterations", ",.0f"),
        "cross_entropy": Column("Cross-entropy", ".4f"),
        "kl": Column("KL to the target", ".4f"),
        "gradient_norm": Column("Gradient norm, relative", ".1e"),
        "parameters": Column("Weights", ",.0f"),
        "converged": Column("Converged", ".0f"),
    },
    corpus="CoNLL-2003",
    known_by=r"(^|/)eng\.(train|testa|testb)|conll[-_]?(20)?03[^/]*$",
    paper_examples={"train": 14_987, "dev": 3_466, "test": 3_684},
    paper={
        "": PaperTable(
            "Tables 2 and 6",
            _NER_KEYS,
            _rows((98.2, 90.4, 97.0, 84.9, 78.8), RAML=_NER_RAML),
            {"RAML": 0.2},
        )
    },
    method=lambda recipe: "annotators" if annotators.label(recipe) else "",
    settings=[
        Setting(
            "features",
            "Finkel et al. (2005)",
            lambda recipe: recipe.model.by_kind(
                "Finkel et al. (2005)"
                if recipe.features.templates == FINKEL
                else f"{len(recipe.features.templates)} templates of the recipe",
                "a BiLSTM over words and characters",
            ),
        ),
        Setting(
            "features.pos",
            "parts of speech",
            lambda recipe: (
                "parts of speech"
                if recipe.features.pos or recipe.features.templates != FINKEL
                else "no parts of speech"
            ),
        ),
        Setting(
            "penalty",
            NOT_STATED,
            lambda recipe: recipe.model.by_kind(
                "c2 · ‖weights‖²",
                f"dropout {recipe.network.dropout:g}",
                f"weight decay {recipe.encoder.weight_decay:g}",
            ),
        ),
        Setting("model.constraints", NOT_STATED),
        Setting("model.decoding", "viterbi"),
        Setting("data.folds", 0),
        Setting(
            "annotators", "one", lambda recipe: "several" if annotators.label(recipe) else "one"
        ),
    ],
    curves=("entity_weight",),
    label=annotators.label,
    baseline=annotators.baseline,
    fixed=(2, 4),  # entities and tokens
    extras=annotators.extras,
)

# --- dependency parsing ---------------------------------------------------------------------------------

_PARSING_RAML: dict[float, Sequence[float | None]] = {  # Table 3; exact match: Table 6
    0.1: (91.0, 90.6),
    0.2: (91.5, 91.0),
    0.3: (91.7, 91.1, 39.4),
    0.4: (91.4, 90.8),
    0.5: (91.2, 90.7),
    0.6: (91.0, 90.6),
    0.7: (90.8, 90.4),
    0.8: (90.8, 90.3),
    0.9: (90.7, 90.1),
}

PARSING = Experiment(
    title="Dependency parsing",
    about=(
        "A dependency parser that scores each arc on its own, trained by ML, RAML and SQDML with"
        " the number of right heads as the reward; the objectives are computed exactly, over all"
        " trees (§4.2 of the paper)."
    ),
    scores=[
        Score("uas", "UAS", dev=True, plotted=True),
        Score("las", "LAS"),
        Score("exact_match", "exact match", plotted=True),
    ],
    notes=(
        "UAS is the share of words with the right head, punctuation included; exact match is the"
        " share of sentences with every head right."
    ),
    unit="sentence",
    tuned=("c2", "learning_rate", "relation_learning_rate"),
    measures={
        "epoch": Column("Best epoch", ",g"),
        "iterations": Column("Iterations", ",g"),
        "cross_entropy": Column("Cross-entropy", ".4f"),
        "kl": Column("KL to the target", ".4f"),
        "relation_loss": Column("Loss of relations", ".4f"),
        "sentences": Column("Sentences", ",g"),
        "lifted": Column("Trees lifted", ",g"),
        "skipped": Column("Sentences left out", ",g"),
        "parameters": Column("Weights", ",.0f"),
    },
    corpus="PTB, the Penn Treebank with basic Stanford dependencies",
    known_by=r"(^|[^a-z])(ptb|wsj|penn)[^/]*$",
    paper_examples={"train": 39_832, "dev": 1_700, "test": 2_416},
    paper={
        "": PaperTable(
            "Tables 3 and 6",
            ("dev_uas", "test_uas", "test_exact_match"),
            _rows((91.3, 90.7, 39.9), RAML=_PARSING_RAML),
            {"RAML": 0.3},
        )
    },
    settings=[
        Setting(
            "features",
            "Ma and Zhao (2015)",
            lambda recipe: recipe.model.by_kind(
                f"{len(recipe.features.templates)} templates of the recipe, hashed"
                if recipe.features.templates
                else "softq’s own, hashed",
                "a BiLSTM over words, characters and tags",
            ),
        ),
        Setting(
            "trees per sentence",
            "one",
            lambda recipe: (
                "several"
                if recipe.data.references or (not recipe.data.train and recipe.data.annotators > 1)
                else "one"
            ),
        ),
        Setting("model.spanning", False),
        Setting(
            "crossing arcs in training",
            NOT_STATED,
            lambda recipe: "kept" if recipe.model.spanning else recipe.data.nonprojective,
        ),
        Setting("model.decoding", "mode"),
        Setting(
            "optimizer.method",
            NOT_STATED,
            lambda recipe: recipe.model.by_kind(recipe.optimizer.method, "AdamW", "AdamW"),
        ),
        Setting("punctuation", NOT_STATED, lambda recipe: "counts"),
    ],
    fixed=(ATTACHMENT_STATISTICS.index("words"),),
)

# --- translation ----------------------------------------------------------------------------------------

_TRANSLATION_ML = (29.15, 27.66, 3.79)  # Table 6
_BLEU_KEYS = ("test_sentence_bleu", "test_corpus_bleu", "test_exact_match")
_NGRAM: dict[float, Sequence[float | None]] = {  # Table 4; exact match: Table 6
    0.1: (28.67, 27.42),
    0.2: (29.44, 28.38),
    0.3: (29.59, 28.40),
    0.4: (29.80, 28.77, 3.35),
    0.5: (29.55, 28.45),
    0.6: (29.37, 28.49),
    0.7: (29.52, 28.59),
    0.8: (29.54, 28.63),
    0.9: (29.48, 28.58),
    1.0: (29.34, 28.40),
}
_IMPORTANCE = {  # Table 8, corpus BLEU alone
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
_HAMMING = {  # Table 9, corpus BLEU alone
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
_EARLIER_WORK = (  # Table 5, corpus BLEU of ML and of what each proposes
    ("Ranzato et al., MIXER", 20.10, 21.81),
    ("Wiseman and Rush, beam-search optimisation", 24.03, 26.36),
    ("Li et al., learning to decode", 27.90, 28.30),
    ("Bahdanau et al., actor–critic", 27.56, 28.53),
    ("The paper", 27.66, 28.77),
)


def _translation_method(recipe: Any) -> str:
    """Where candidates come from and what they are weighed by, if the paper has a table of it."""
    chosen = recipe.candidates
    if chosen.reward == "hamming":
        return "hamming"
    if chosen.sampler == "ngram":
        return "ngram"
    weighed = chosen.estimator in ("importance", "printed")
    return "importance" if chosen.sampler == "hamming" and weighed else "other"


def _previous_work(results: Results) -> list[Part | None]:
    """The paper's Table 5, with ours as its last row."""
    rows: list[Sequence[Value]] = [
        (name, ml, proposed, round(proposed - ml, 2)) for name, ml, proposed in _EARLIER_WORK
    ]
    score = results.experiment.gain_score
    pairs = [
        (variant.ml, one)
        for variant, one in results.chosen
        if one.objective == "RAML" and variant.ml
    ]
    if pairs:
        ml, best = max(pairs, key=lambda pair: pair[1].dev)
        ours = [score.shown(one.scores.get("test_corpus_bleu")) for one in (ml, best)]
        gain = results.gain(best, ml, score)
        rows.append((f"Here, {results.name_of(best)}", *map(bare, ours), bare(gain)))
    columns = [Column("Work"), *(Column(name, ".2f") for name in ("ML", "Proposed"))]
    return [
        Table(
            name="previous-work",
            caption=(
                "Corpus BLEU of ML and of what is proposed instead, by the paper and those"
                " before it"
            ),
            columns=[*columns, Column("Gain", "+.2f")],
            rows=rows,
            note=(
                "The paper’s Table 5, on IWSLT 2014 German–English; all but the paper begin with a"
                " model trained by ML. The last row is ours; on another corpus only gains compare."
            ),
        )
    ]


_SENTENCE_MEASURES = {
    "epoch": Column("Best epoch", ",g"),
    "cross_entropy": Column("Cross-entropy", ".4f"),
    "dev_perplexity": Column("Dev perplexity", ".3f"),
    "test_perplexity": Column("Test perplexity", ".3f"),
    "test_sacrebleu": Column("Test sacreBLEU", ".2f"),
    "test_length_ratio": Column("Length ratio", ".3f"),
    "examples": Column("Training examples", ",.0f"),
    "left_out": Column("Left out", ",.0f"),
    "parameters": Column("Weights", ",.0f"),
}


def _start(recipe: Any) -> str:
    return Path(recipe.training.start).name if recipe.training.start else "random weights"


TRANSLATION = Experiment(
    title="Translation with BLEU as the reward",
    about=(
        "An encoder–decoder trained to translate by ML, RAML and SQDML (§4.2 of the paper)."
        " Candidates by n-gram replacement are references with some of their words replaced,"
        " weighed by their sentence BLEU (Appendix C). Importance sampling draws candidates by"
        " their Hamming distance from a reference and divides their weights by the probability of"
        " being drawn; with the Hamming reward that distance is the reward itself (Appendix D.2.4)."
    ),
    scores=[
        Score("sentence_bleu", "sentence BLEU", dev=True, plotted=True),
        Score("corpus_bleu", "corpus BLEU", plotted=True),
        Score("average_reward", "average reward"),
        Score("exact_match", "exact match"),
        Score("expected_reward", "expected reward"),
    ],
    gain_in="corpus_bleu",
    notes=(
        "Sentence BLEU is the average over sentences of smoothed BLEU against all references"
        " together, corpus BLEU is multi-bleu’s. The average reward is the mean over references of"
        " smoothed BLEU against one. The expected reward is exact, over all right translations of"
        " the built-in world."
    ),
    unit="sentence",
    tuned=("learning_rate", "decay", "clip", "dropout"),
    measures=_SENTENCE_MEASURES,
    corpus="IWSLT, German–English of IWSLT 2014",
    known_by=r"iwslt[^/]*(/[^/]*)?$",
    paper_examples={"train": 153_326, "dev": 6_969, "test": 6_750},
    paper={
        "ngram": PaperTable(
            "Tables 4 and 6", _BLEU_KEYS, _rows(_TRANSLATION_ML, RAML=_NGRAM), {"RAML": 0.4}
        ),
        "importance": PaperTable(
            "Table 8",
            _BLEU_KEYS,
            _rows(_TRANSLATION_ML, RAML={tau: (None, bleu) for tau, bleu in _IMPORTANCE.items()}),
            {"RAML": 0.7},  # the text beside it has 0.8
        ),
        "hamming": PaperTable(
            "Table 9",
            _BLEU_KEYS,
            _rows(_TRANSLATION_ML, RAML={tau: (None, bleu) for tau, bleu in _HAMMING.items()}),
            {"RAML": 0.9},
        ),
    },
    method=_translation_method,
    methods={
        "ngram": "n-gram replacement",
        "importance": "importance sampling",
        "hamming": "Hamming reward",
        "other": "other candidates",
    },
    settings=[
        Setting("model.kind", "lstm"),
        Setting("model.embedding", 256),
        Setting("model.hidden", 256),
        Setting("vocabulary.kind", "words"),
        Setting("decoding.beam", 5),
        Setting("training.batch_size", {"ML": 64, "RAML": 100}),
        Setting("training.start", "random weights", _start),
        Setting("model.dropout", NOT_STATED),
        Setting("optimizer.label_smoothing", 0.0),
        Setting("candidates.size", {"RAML": 100}),
        Setting("candidates.k", {"RAML": 10}),
        Setting(
            "candidates.estimator",
            {"RAML": "paper"},
            lambda recipe: (
                recipe.candidates.estimator if _translation_method(recipe) == "ngram" else "paper"
            ),
        ),
        Setting(
            "weights of importance sampling",
            {"RAML": "a formula without the factor of the vocabulary’s size"},
            lambda recipe: (
                "divided by the probability of being drawn"
                if recipe.candidates.estimator == "importance"
                else None
            ),
        ),
    ],
    extras=_previous_work,
)

# --- captioning -----------------------------------------------------------------------------------------

_CAPTION_KEYS = ("test_average_reward", "test_corpus_bleu")
_CAPTION_ROWS: dict[str, dict[float, Sequence[float | None]]] = {  # Table 1
    "RAML": {
        0.80: (10.77, 27.02),
        0.85: (10.81, 27.27),
        0.90: (10.88, 27.62),
        0.95: (10.82, 27.33),
        1.00: (10.84, 27.26),
        1.05: (10.82, 27.29),
        1.10: (10.74, 26.89),
        1.15: (10.77, 27.01),
    },
    "SQDML": {
        0.80: (10.82, 27.08),
        0.85: (10.78, 26.92),
        0.90: (10.91, 27.54),
        0.95: (10.79, 27.02),
        1.00: (10.82, 27.03),
        1.05: (10.80, 27.20),
        1.10: (10.78, 26.98),
        1.15: (10.72, 26.66),
    },
}
_CAPTION_PAPER = PaperTable(
    "Table 1",
    _CAPTION_KEYS,
    _rows((10.71, 26.91), **_CAPTION_ROWS),
    {"RAML": 0.9, "SQDML": 0.9},
)


CAPTIONING = Experiment(
    title="Captioning with several references",
    about=(
        "An LSTM whose memory begins with the features of an image, trained to write captions by"
        " ML, RAML and SQDML (§4.1.2 of the paper). RAML weighs candidates by their reward against"
        " one reference at a time; SQDML averages the rewards of all references of an image before"
        " it exponentiates (eq. 15)."
    ),
    scores=[
        Score("average_reward", "average reward", dev=True, plotted=True),
        Score("max_reward", "maximum reward"),
        Score("corpus_bleu", "corpus BLEU-4", plotted=True),
        Score("rouge_l", "ROUGE-L"),
        Score("cider_d", "CIDEr-D", percent=False, digits=3),
        Score("exact_match", "exact match"),
        Score("expected_reward", "expected reward", plotted=True),
    ],
    notes=(
        "The average reward of a caption is the mean over references of its smoothed sentence BLEU"
        " against one of them, the maximum reward the highest of these; corpus BLEU-4 is"
        " multi-bleu’s, against all references together; CIDEr-D goes from 0 to 10. The expected"
        " reward is exact, over all that may be said of a scene of the built-in world; its Bayes"
        " rule are the consensus captions. The row of references is the mean sentence BLEU of one"
        " against another of the same image, 10.09 % in the paper."
    ),
    unit="image",
    # the paper has other sizes of steps and candidates for RAML and for SQDML
    tuned=(
        "learning_rate",
        "decay",
        "clip",
        "dropout",
        "batch_size",
        "merge",
        "candidates.size",
        "k",
    ),
    measures=_SENTENCE_MEASURES
    | {"test_sentence_bleu": Column("Sentence BLEU, all references", ".4f")},
    corpus="MSCOCO",
    known_by=r"coco[^/]*(/[^/]*)?$",
    paper_examples={"train": 113_000, "dev": 5_000, "test": 5_000},
    paper={"": _CAPTION_PAPER},
    settings=[
        Setting(
            "data.encoder",
            "vgg16-fc7",
            lambda recipe: recipe.data.encoder or ("unnamed" if recipe.data.train else "scenes"),
        ),
        Setting("model.embedding", 256),
        Setting("model.hidden", 512),
        Setting("vocabulary.min_freq", 5),
        Setting("decoding.beam", 5),
        Setting("training.batch_size", {"ML": 10, "RAML": 100, "SQDML": 100}),
        Setting("model.dropout", NOT_STATED),
        Setting("training.start", "random weights", _start),
        Setting("candidates.sampler", {"RAML": "ngram", "SQDML": "ngram"}),
        Setting("candidates.size", {"RAML": 100, "SQDML": 500}),
        Setting("candidates.k", {"RAML": 10, "SQDML": 50}),
        Setting("candidates.max_n", {"RAML": 3, "SQDML": 3}),
        Setting("candidates.estimator", {"RAML": "paper", "SQDML": "paper"}),
    ],
    extras=galleries.extras,
)

EXPERIMENTS: dict[str, Experiment] = {
    "classification": CLASSIFICATION,
    "ner": NER,
    "parsing": PARSING,
    "translation": TRANSLATION,
    "captioning": CAPTIONING,
}
"""By the name of the task."""
