"""The page of an annotation project: agreement, reliability of annotators, and what to look at again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

from softq.annotators.agreement import MEASURES, Agreement, Pair
from softq.annotators.review import Review
from softq.lab.report.annotators import MODELS, annotators_figure, annotators_table
from softq.lab.report.content import Column, Figure, Section, Table, Value, show
from softq.lab.report.drawing import Canvas, plain
from softq.metrics import Interval

_MOST_IN_MAP = 60  # annotators whose names can still be read
_MOST_TABLES = 100  # annotators who get a confusion table of their own
_MOST_OTHERS = 5  # labels that are named as given in the place of another
_LEAST_SHARE = 0.0005  # of the tokens of that label


def crowd_sections(
    title: str, agreed: Agreement, review: Review, settings: Table | None = None
) -> list[Section]:
    """One file as two sections: all annotators together, and the confusion table of each.

    Args:
        title: names the file.
        agreed: agreement of its annotators.
        review: its sentences beside an estimate of the truth.
        settings: that were compared, if any were.

    """
    found, sentences = review.found, review.sentences
    rows = sorted(found.annotators, key=lambda row: (-row.weight, row.name))
    parts = (
        agreement_table(agreed),
        suspicions_table(review),
        annotators_table(rows, MODELS[found.model]),
        annotators_figure(rows, MODELS[found.model]),
        agreement_map(agreed.pairs) or pairs_table(agreed.pairs),
        labels_table(review),
        disputes_table(review),
        doubts_table(review),
        settings,
    )
    together = Section(
        title=title,
        intro=[
            f"{len(rows)} annotators gave {sum(row.tokens for row in rows):,} labels to"
            f" {sum(len(one.tokens) for one in sentences):,} tokens of {len(sentences):,}"
            " sentences. The right labels are estimated from these labels alone."
        ],
        parts=[part for part in parts if isinstance(part, Figure) or (part and part.rows)],
    )
    tables = confusion_tables(review)
    left_out = len(rows) - len(tables)
    without = (
        f" The {left_out} annotators with the fewest tokens have no table." if left_out else ""
    )
    each = Section(
        title="Each annotator",
        intro=[
            "What an annotator gives (columns) where a label is right (rows): expected shares of"
            " the tokens in percent, with Wilson’s 95 % intervals, which leave out that the truth is"
            " estimated." + without
        ],
        parts=tables,
    )
    return [together, each]


def crowd_tables(agreed: Agreement, review: Review, ends: int) -> list[Table]:
    """What a console shows of it: all annotators, and ``ends`` pairs that agree most, and least."""
    rows = sorted(review.found.annotators, key=lambda row: (-row.weight, row.name))
    pairs = sorted(agreed.pairs, key=lambda pair: -pair.tokens)
    pairs = pairs[: max(len(pairs) // 2, 2 * ends)]  # kappa of few tokens says little
    pairs.sort(key=lambda pair: 2.0 if pair.kappa is None else -pair.kappa)
    return [
        agreement_table(agreed),
        annotators_table(rows, review.found.model, most=len(rows)),
        pairs_table([*pairs[:ends], *pairs[ends:][-ends:]]),
        labels_table(review),
        suspicions_table(review),
    ]


def agreement_table(agreed: Agreement) -> Table:
    """Measures of agreement, without and with a correction for chance."""
    values = {title.replace("'", "’"): getattr(agreed, name) for name, title in MEASURES.items()}
    return Table(
        name="agreement",
        caption="Agreement",
        columns=[Column("Measure"), Column("Value", ".3f")],
        rows=[(title.capitalize(), value) for title, value in values.items() if value is not None],
        note=(
            f"On {agreed.tokens:,} tokens with two labels or more. Kappa and alpha are corrected for"
            " chance: 1 is perfect, 0 is chance. The kappa of entities compares whole entities, with"
            " type and ends."
        ),
    )


def suspicions_table(review: Review) -> Table:
    """Annotators to look at."""
    return Table(
        name="suspicious",
        caption="Annotators to look at",
        columns=[Column("Annotator"), Column("Why"), Column("Evidence")],
        rows=review.suspicions(),
        note=(
            "“one label”: the same label on every token. “silent”: finds less than half as much as"
            " the median annotator, but is right as often. “copy”: makes the same errors as another."
        ),
    )


def labels_table(review: Review) -> Table:
    """Each label: how often it is right, how often found, and what is given in its place."""
    given: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in review.confusions():
        given[row.right][row.given] += row.tokens * row.share
    rows: list[Sequence[Value]] = []
    for share, label in zip(review.found.prior.tolist(), review.found.labels, strict=True):
        total = sum(given[label].values()) or 1.0
        shares = sorted(
            ((given[label][other] / total, other) for other in given[label] if other != label),
            reverse=True,
        )
        others = ", ".join(
            f"{other} {100 * part:.1f} %"
            for part, other in shares[:_MOST_OTHERS]
            if part >= _LEAST_SHARE
        )
        rows.append((label, 100 * share, 100 * given[label][label] / total, others or None))
    return Table(
        name="labels",
        caption="Labels",
        columns=[
            Column("Label"),
            Column("Tokens, %", ".2f"),
            Column("Found, %", ".1f"),
            Column("Given instead"),
        ],
        rows=rows,
        note="Of all annotators together: expected values under the estimated truth.",
    )


def disputes_table(review: Review) -> Table:
    """Sentences on which annotators disagree, the most disputed first."""
    of = review.sentences
    return Table(
        name="disputed",
        caption="Most disputed sentences",
        columns=[
            Column("Place"),
            Column("Differing tokens", ".2f"),
            Column("Disputed tokens", "d"),
            Column("Tokens", "d"),
            Column("Sentence"),
        ],
        rows=[
            (
                of[number].where(),
                differing,
                tokens,
                len(of[number].tokens),
                " ".join(of[number].tokens),
            )
            for number, differing, tokens in review.disputes()
        ],
        note=(
            "Differing tokens are those that two annotators of the sentence label differently, on"
            " average over all pairs of them."
        ),
        folded=True,
    )


def doubts_table(review: Review) -> Table:
    """Labels that are probably wrong, the most doubtful first."""
    rows: list[Sequence[Value]] = []
    for number, token, annotator, given, likely, probability in review.doubts():
        one = review.sentences[number]
        context = " ".join(one.tokens[max(token - 3, 0) : token + 4])
        label = annotator, given, likely, probability
        rows.append((one.where(token), one.tokens[token], *label, context))
    titles = ("Place", "Token", "Annotator", "Given", "Likely")
    return Table(
        name="doubtful",
        caption="Labels that are probably wrong",
        columns=[*map(Column, titles), Column("Probability", ".3f"), Column("Context")],
        rows=rows,
        note=(
            "Labels that are right with a probability below 0.1, as far as the labels of all"
            " annotators tell."
        ),
        folded=True,
    )


def confusion_tables(review: Review) -> list[Table]:
    """A table for each annotator: right labels by labels given."""
    most = sorted(review.found.annotators, key=lambda row: -row.tokens)[:_MOST_TABLES]
    kept = {row.name for row in most}
    given = [Column(label, ".1f") for label in review.found.labels]
    columns = [Column("Right label"), Column("Tokens", ",.0f"), *given]
    cells = [row for row in review.confusions() if row.annotator in kept and row.tokens >= 1]
    tables = []
    for name, of_annotator in groupby(cells, key=lambda row: row.annotator):
        rows = []
        for right, group in groupby(of_annotator, key=lambda row: row.right):
            shares = list(group)
            intervals = [Interval(100 * one.share, 100 * one.low, 100 * one.high) for one in shares]
            rows.append((right, shares[0].tokens, *intervals))
        tables.append(Table(f"confusion-{name}", name, columns, rows, folded=True))
    return tables


def pairs_table(pairs: Sequence[Pair]) -> Table:
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
            for one in pairs
        ],
        folded=True,
    )


def agreement_map(pairs: Sequence[Pair]) -> Figure | None:
    """Who agrees with whom; None for fewer than three people with a kappa."""
    tokens: dict[str, int] = defaultdict(int)
    kappas: dict[str, dict[str, float]] = defaultdict(dict)
    for pair in pairs:
        for name, other in ((pair.first, pair.second), (pair.second, pair.first)):
            tokens[name] += pair.tokens
            if pair.kappa is not None:
                kappas[name][other] = pair.kappa
    mean = {name: sum(row.values()) / len(row) for name, row in kappas.items()}
    names = sorted(sorted(mean), key=tokens.__getitem__, reverse=True)[:_MOST_IN_MAP]
    names.sort(key=mean.__getitem__, reverse=True)
    if len(names) < 3:
        return None
    cells = [
        (i, j, kappas[first][second])
        for i, first in enumerate(names)
        for j, second in enumerate(names)
        if second in kappas[first]
    ]
    rows, columns, found = zip(*cells, strict=True)
    low, high = min(found), max(found)
    strength = [1 - 0.9 * (high - kappa) / max(high - low, 1e-9) for kappa in found]

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=3.4 if canvas.phone else 6.4, columns=1, head=0.1)
        inches = (2.6 if canvas.phone else 5.4) / len(names)
        panel.scatter(
            columns,
            rows,
            s=(72 * 0.94 * inches) ** 2,
            marker="s",
            color=canvas.colour("blue"),
            alpha=strength,  # type: ignore[arg-type]  # of each mark
            linewidth=0,
        )
        size = min(8.0, 72 * inches * 0.9)
        shown = [plain(name) for name in names]
        panel.set_xticks(range(len(names)), shown, rotation=90, size=size)
        panel.set_yticks(range(len(names)), shown, size=size)
        panel.set(xlim=(-0.6, len(names) - 0.4), ylim=(len(names) - 0.4, -0.6), aspect="equal")
        panel.grid(visible=False)

    left_out = len(tokens) - len(names)
    without = f" The {left_out} with the fewest tokens are left out." if left_out else ""
    return Figure(
        name="who-agrees",
        title="Who agrees with whom",
        caption=(
            "Cohen’s kappa of every two annotators who labelled the same tokens, from"
            f" {show(low, '.2f')} (faint) to {show(high, '.2f')} (strong); blank where they have no"
            " tokens in common. Annotators who agree most with the others come first." + without
        ),
        alt=(
            f"A map of the agreement of {len(names)} annotators. {names[0]} agrees most with the"
            f" others, with a mean kappa of {mean[names[0]]:.2f}; {names[-1]} least, with"
            f" {mean[names[-1]]:.2f}."
        ),
        draw=draw,
        numbers=pairs_table(pairs),
    )
