"""The page of an annotation project: how far annotators agree, how reliable each is, and what to look at again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from softq.annotators.agreement import Agreement
from softq.annotators.reliability import Reliability
from softq.annotators.review import confusions, disputes, doubts, suspicions
from softq.formats.conll import Sentence
from softq.lab.report.annotators import MODELS, annotators_figure, annotators_table
from softq.lab.report.content import Column, Figure, Part, Section, Table, Value
from softq.lab.report.drawing import Canvas, plain
from softq.metrics import Interval

_MOST_IN_MAP = 60  # annotators whose names can still be read
_SHOWN_LABELS = 5  # that an annotator gives most often in the place of another


def crowd_section(
    title: str, sentences: Sequence[Sentence], agreed: Agreement, found: Reliability
) -> Section:
    """All of it for one file.

    Args:
        title: names the file.
        sentences: with annotators.
        agreed: their agreement.
        found: an estimate of the truth.

    """
    rows = sorted(found.annotators, key=lambda row: (-row.weight, row.name))
    parts: list[Part | None] = [
        agreement_table(agreed),
        suspicions_table(sentences, found),
        annotators_table(rows, MODELS[found.model]),
        annotators_figure(rows),
        _agreement_map(agreed) or pairs_table(agreed),
        labels_table(sentences, found),
        disputed_table(sentences),
        doubtful_table(sentences, found),
        confusions_table(sentences, found),
    ]
    labels = sum(row.tokens for row in rows)
    return Section(
        title=title,
        intro=[
            f"{len(rows)} annotators gave {labels:,} labels to"
            f" {sum(len(one.tokens) for one in sentences):,} tokens of {len(sentences):,} sentences."
            " What is right is estimated from their labels alone; no true label was used."
        ],
        parts=[part for part in parts if part is not None],
    )


def agreement_table(agreed: Agreement) -> Table:
    """How far they agree, beside and beyond chance."""
    rows: list[tuple[str, float | None]] = [
        ("Equal labels of two annotators", agreed.agreement),
        ("Cohen’s kappa, mean over pairs", agreed.cohen),
        ("Cohen’s kappa of entities, mean over pairs", agreed.span_cohen),
        ("Fleiss’ kappa", agreed.fleiss),
        ("Krippendorff’s alpha", agreed.alpha),
    ]
    return Table(
        name="agreement",
        caption="Agreement",
        columns=[Column(""), Column("Value", ".3f")],
        rows=[row for row in rows if row[1] is not None],
        note=(
            f"On {agreed.tokens:,} tokens with two labels or more. The last rows are corrected for"
            " chance: 1 is perfect, 0 is chance. Kappa of entities compares whole entities, with"
            " type and ends."
        ),
    )


def suspicions_table(sentences: Sequence[Sentence], found: Reliability) -> Table | None:
    """Annotators to ask; None where nobody is."""
    rows = [tuple(row) for row in suspicions(sentences, found)]
    if not rows:
        return None
    return Table(
        name="suspicious",
        caption="Annotators to look at",
        columns=[Column("Annotator"), Column("Why"), Column("Evidence")],
        rows=rows,
        note=(
            "“one label”: the same on every token. “silent”: finds less than half of what the"
            " median annotator finds, but is right where they mark something. “copy”: the same"
            " errors as another."
        ),
    )


def labels_table(sentences: Sequence[Sentence], found: Reliability) -> Table:
    """Each label: how often it is right, how often found, and what is given in its place."""
    right: dict[str, float] = defaultdict(float)
    given: dict[tuple[str, str], float] = defaultdict(float)
    for row in confusions(sentences, found):
        given[row.right, row.given] += row.tokens * row.share
        right[row.right] += row.tokens * row.share
    rows: list[Sequence[Value]] = []
    for share, label in zip(found.prior.tolist(), found.labels, strict=True):
        total = right[label] or 1.0
        others = sorted(
            ((given[label, other] / total, other) for other in found.labels if other != label),
            reverse=True,
        )[:_SHOWN_LABELS]
        told = ", ".join(f"{other} {100 * part:.1f} %" for part, other in others if part >= 0.001)
        rows.append((label, 100 * share, 100 * given[label, label] / total, told or None))
    return Table(
        name="labels",
        caption="Labels",
        columns=[
            Column("Label"),
            Column("Share of tokens, %", ".2f"),
            Column("Found, %", ".1f"),
            Column("Given instead"),
        ],
        rows=rows,
        note="Of all annotators together, in expectation over the estimated truth.",
    )


def disputed_table(sentences: Sequence[Sentence]) -> Table:
    """Sentences on which annotators disagree, the most disputed first."""
    rows = []
    for row in disputes(sentences):
        one = sentences[row.sentence]
        rows.append((one.where(), row.differing, row.tokens, len(one.tokens), " ".join(one.tokens)))
    return Table(
        name="disputed",
        caption="Disputed sentences",
        columns=[
            Column("Place"),
            Column("Tokens two label differently", ".2f"),
            Column("Disputed tokens", "d"),
            Column("Tokens", "d"),
            Column("Sentence"),
        ],
        rows=rows,
        note="The second column is the mean over all pairs of annotators of the sentence.",
        folded=True,
    )


def doubtful_table(sentences: Sequence[Sentence], found: Reliability) -> Table:
    """Labels that are probably wrong, the most doubtful first."""
    rows = []
    for row in doubts(sentences, found):
        one = sentences[row.sentence]
        context = " ".join(one.tokens[max(row.token - 3, 0) : row.token + 4])
        token = one.tokens[row.token]
        rows.append(
            (
                one.where(row.token),
                token,
                row.annotator,
                row.given,
                row.likely,
                row.probability,
                context,
            )
        )
    return Table(
        name="doubtful",
        caption="Labels that are probably wrong",
        columns=[
            Column("Place"),
            Column("Token"),
            Column("Annotator"),
            Column("Given"),
            Column("Likely"),
            Column("Probability that it is right", ".2g"),
            Column("Context"),
        ],
        rows=rows,
        note="Those with a probability below 0.1, as far as the labels of all annotators tell.",
        folded=True,
    )


def confusions_table(sentences: Sequence[Sentence], found: Reliability) -> Table:
    """Each annotator's confusions with their intervals."""
    return Table(
        name="confusions",
        caption="What each annotator gives where a label is right",
        columns=[
            Column("Annotator"),
            Column("Right label"),
            Column("Given"),
            Column("Tokens of the right label", ".1f"),
            Column("Share, %", ".1f"),
        ],
        rows=[
            (
                row.annotator,
                row.right,
                row.given,
                row.tokens,
                Interval(100 * row.share, 100 * row.low, 100 * row.high),
            )
            for row in confusions(sentences, found)
            if row.tokens >= 1 and (row.share >= 0.005 or row.right == row.given)
        ],
        note=(
            "Expected counts, and Wilson’s 95 % intervals of the shares, which leave out that the"
            " truth is estimated. Shares below 0.5 % are left out."
        ),
        folded=True,
    )


def pairs_table(agreed: Agreement) -> Table:
    """Every two annotators."""
    return Table(
        name="pairs",
        caption="Pairs of annotators",
        columns=[
            Column("First"),
            Column("Second"),
            Column("Tokens", ",d"),
            Column("Equal labels, %", ".2f"),
            Column("Kappa", ".3f"),
            Column("Kappa of entities", ".3f"),
        ],
        rows=[
            (one.first, one.second, one.tokens, 100 * one.agreement, one.kappa, one.span_kappa)
            for one in agreed.pairs
        ],
        folded=True,
    )


def _agreement_map(agreed: Agreement) -> Figure | None:
    """Who agrees with whom; None for fewer than three people."""
    tokens: dict[str, int] = defaultdict(int)
    kappas: dict[tuple[str, str], float] = {}
    for pair in agreed.pairs:
        for name in (pair.first, pair.second):
            tokens[name] += pair.tokens
        if pair.kappa is not None:
            kappas[pair.first, pair.second] = kappas[pair.second, pair.first] = pair.kappa
    names = sorted(sorted(tokens), key=tokens.__getitem__, reverse=True)[:_MOST_IN_MAP]
    if len(names) < 3:
        return None

    def mean_kappa(name: str) -> float:
        known = [kappa for (first, _), kappa in kappas.items() if first == name]
        return sum(known) / len(known) if known else 0.0

    names.sort(key=mean_kappa, reverse=True)
    cells = [
        (i, j, kappas[first, second])
        for i, first in enumerate(names)
        for j, second in enumerate(names)
        if (first, second) in kappas
    ]

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=3.4 if canvas.phone else 6.4, columns=1, head=0.1)
        inches = (3.0 if canvas.phone else 5.6) / len(names)
        panel.scatter(
            [j for _, j, _ in cells],
            [i for i, _, _ in cells],
            s=(72 * 0.94 * inches) ** 2,
            marker="s",
            color=canvas.colour("blue"),
            alpha=[min(max(kappa, 0.03), 1.0) for _, _, kappa in cells],
            linewidth=0,
        )
        size = min(8.0, 72 * inches * 0.9)
        shown = [plain(name) for name in names]
        panel.set_xticks(range(len(names)), shown, rotation=90, size=size)
        panel.set_yticks(range(len(names)), shown, size=size)
        panel.set(xlim=(-0.6, len(names) - 0.4), ylim=(len(names) - 0.4, -0.6), aspect="equal")
        panel.grid(visible=False)

    low, high = (f"{kappa:.2f}" for kappa in (min(kappas.values()), max(kappas.values())))
    left_out = len(tokens) - len(names)
    return Figure(
        name="who-agrees",
        title="Who agrees with whom",
        caption=(
            f"Cohen’s kappa of every two annotators who labelled the same tokens, from {low} (pale)"
            f" to {high} (dark); blank where they have no tokens in common. Those who agree most"
            " with the others come first."
            + (f" {left_out} annotators with the fewest tokens are left out." if left_out else "")
        ),
        alt=(
            f"A map of the agreement of {len(names)} annotators. {names[0]} agrees most with the"
            f" others, with a mean kappa of {mean_kappa(names[0]):.2f}; {names[-1]} least, with"
            f" {mean_kappa(names[-1]):.2f}."
        ),
        draw=draw,
        numbers=pairs_table(agreed),
    )

