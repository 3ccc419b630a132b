"""Numbers as HTML tables, SVG pictures and options of charts. Everything that people typed is escaped here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from softq.explorer.classes import ClassPoint, ClassStudy, Region, Rule
from softq.explorer.sentences import CandidateRow, Objective, Piece
from softq.temperature import TemperaturePoint
from softq.theory import TheoryRow

NAMES: Mapping[str, str] = {"raml": "RAML", "sqdml": "SQDML"}
RULES: Mapping[Rule, str] = {"ml": "ML", "raml": "RAML", "bayes": "Bayes rule = SQDML"}

_FACTS = (
    ("reference_mass", "mass on references", ".4f"),
    ("entropy", "entropy, nats", ".4f"),
    ("expected_reward", "E[r]", ".4f"),
    ("expected_edits", "E[edits]", ".3f"),
    ("effective_sample_size", "effective size", ".1f"),
)
_SIDE, _HEIGHT, _MARGIN = 300.0, 260.0, 26.0  # of a triangle, and around it
_STILL: tuple[Rule, Rule] = ("ml", "bayes")  # rules that no temperature changes
_ROOM = 900.0  # of a region that has room for a name
_COLOURS = 8  # fills of classes in the style sheet
BOUNDS = (
    ("kl", "KL(Q‖Q′), exact"),
    ("mean_kl", "mean of KL(Q‖q(·|Y))"),
    ("hoeffding", "min(R/τ, R²/8τ²)"),
    ("closed_form", "min(R/τ, R²/2τ²)"),
    ("theorem1", "Theorem 1, 2R/τ"),
)


def show(value: float, format_: str = ".4g") -> str:
    """A number for people, with a true minus sign.

    >>> show(-1.5), show(0.25, ".3f"), show(float("inf"))
    ('−1.5', '0.250', '∞')
    """
    return format(value, format_).replace("-", "−").replace("inf", "∞")


def facts_table(points: Mapping[Objective, TemperaturePoint]) -> str:
    """What both objectives are at one temperature."""
    head = "".join(f'<th scope="col">{title}</th>' for _, title, _ in _FACTS)
    body = "".join(
        f'<tr><th scope="row"><span class="key {name}"></span>{NAMES[name]}</th>'
        + "".join(
            f'<td data-fact="{name}-{field}">{show(getattr(point, field), format_)}</td>'
            for field, _, format_ in _FACTS
        )
        + "</tr>"
        for name, point in points.items()
    )
    return f'<table class="numbers"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'


def candidate_table(
    rows: Sequence[CandidateRow], pieces: Sequence[Sequence[Piece]], left: int
) -> str:
    """Candidates with rewards and weights, as many as are given; ``left`` are not shown."""
    widest = max((max(row.raml, row.sqdml) for row in rows), default=0.0)
    body = "".join(_candidate(row, words, widest) for row, words in zip(rows, pieces, strict=True))
    if left:
        raml, sqdml = (
            1.0 - math.fsum(getattr(row, name) for row in rows) for name in ("raml", "sqdml")
        )
        rest = "".join(
            f'<td class="weight {name}">{show(max(value, 0.0), ".4f")}</td>'
            for name, value in (("raml", raml), ("sqdml", sqdml))
        )
        body += f'<tr class="rest"><th scope="row">and {left} more</th><td></td>{rest}</tr>'
    return (
        '<table class="candidates"><thead><tr><th scope="col">candidate</th><th scope="col">mean reward</th>'
        f'<th scope="col">RAML</th><th scope="col">SQDML</th></tr></thead><tbody>{body}</tbody></table>'
    )


def _candidate(row: CandidateRow, pieces: Sequence[Piece], widest: float) -> str:
    tags = {"same": "span", "new": "ins", "gone": "del"}
    words = " ".join(
        f"<{tags[kind]}>{escape(word)}</{tags[kind]}>" if kind != "same" else escape(word)
        for word, kind in pieces
    )
    badge = ' <small class="badge">reference</small>' if row.is_reference else ""
    weights = "".join(
        f'<td class="weight {name}">{_bar(value, widest)}</td>'
        for name, value in (("raml", row.raml), ("sqdml", row.sqdml))
    )
    return (
        f'<tr><th scope="row">{words}{badge}</th><td>{show(row.reward, ".4f")}</td>{weights}</tr>'
    )


def _bar(value: float, widest: float) -> str:
    """A number over a bar; the widest of the table is as wide as its cell."""
    share = 100.0 * value / widest if widest > 0.0 else 0.0
    return f'<span>{show(value, ".4f")}</span><i style="width:{share:.2f}%"></i>'


def class_table(study: ClassStudy, point: ClassPoint) -> str:
    """Each class at the input: its probability, what deciding for it earns, and what both targets give to it."""
    deciders: dict[str, list[str]] = {}
    for rule, decision in point.decisions.items():
        deciders.setdefault(decision.label, []).append(RULES[rule])
    body = ""
    for number, label in enumerate(study.table.labels):
        badges = "".join(
            f' <small class="badge">{name}</small>' for name in deciders.get(label, [])
        )
        cells = (
            (study.p[number], "p"),
            (point.q_prime[number], "raml"),
            (point.q[number], "sqdml"),
        )
        p, raml, sqdml = (
            f'<td class="weight {kind}" data-fact="{kind}-{number}">{_bar(float(value), 1.0)}</td>'
            for value, kind in cells
        )
        earned = f"<td>{show(float(study.expected_rewards[number]))}</td>"
        body += f'<tr><th scope="row">{_swatch(number)}{escape(label)}{badges}</th>{p}{earned}{raml}{sqdml}</tr>'
    return (
        '<table class="candidates"><thead><tr><th scope="col">class, and who decides for it</th><th scope="col">P(y|x)</th>'
        f'<th scope="col">E[r]</th><th scope="col">RAML’s Q′</th><th scope="col">SQDML’s Q</th></tr></thead><tbody>{body}</tbody></table>'
    )


def bounds_table(study: ClassStudy, point: ClassPoint) -> str:
    """The gap between the targets at the input beside its bounds, and its limit as τ → 0 beside Theorem 2's."""
    rows = [
        (
            f'<span class="key bound-{field}"></span>{name}',
            show(getattr(point.row, field), ".4g"),
            field,
        )
        for field, name in BOUNDS
    ]
    rows.append(("limit of KL(Q‖Q′) as τ → 0, exact", show(study.theorem2.limit, ".4g"), "limit"))
    if study.theorem2.bounds is not None:
        of_limit = (
            ("sharp", "−log(1 − e^−cb)"),
            ("corrected", "Theorem 2, corrected"),
            ("printed", "Theorem 2 as printed (false)"),
        )
        rows += [
            (name, show(getattr(study.theorem2.bounds, field), ".4g"), field)
            for field, name in of_limit
        ]
    body = "".join(
        f'<tr><th scope="row">{name}</th><td data-fact="{field}">{value}</td></tr>'
        for name, value, field in rows
    )
    note = (
        ""
        if study.theorem2.bounds is not None
        else f'<p class="note">Theorem 2 promises nothing here: {escape(study.theorem2.reason)}.</p>'
    )
    return f'<table class="numbers"><tbody>{body}</tbody></table>{note}'


def region_picture(
    study: ClassStudy, rule: Rule, regions: Sequence[Region], agreement: float
) -> str:
    """What a rule decides between the chosen classes, over a triangle or a line; a dot marks the input."""
    draw = _triangle if len(study.chosen) == 3 else _line
    name = RULES[rule]
    kinds = [
        study.table.labels[number] for number in sorted({region.decision for region in regions})
    ]
    spoken = escape(
        f"{name}: decides for {', '.join(kinds)}; as the Bayes rule on {agreement:.0%} of the inputs",
        quote=True,
    )
    share = f"{agreement:.1%}".replace("%", " %")
    told = (
        ""
        if rule == "bayes"
        else f'<span data-fact="agreement-{rule}">as the Bayes rule on {share}</span>'
    )
    return f"<figure><figcaption><b>{name}</b>{told}</figcaption>{draw(study, regions, spoken)}</figure>"


def _triangle(study: ClassStudy, regions: Sequence[Region], spoken: str) -> str:
    labels = study.table.labels
    shapes = names = ""
    for decision, corners in reversed(regions):  # where two are as good, the first decides
        places = [_place(corner) for corner in corners]
        shapes += f'<polygon class="class-{decision % _COLOURS}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>'
        if _area(places) > _ROOM:
            x, y = (math.fsum(each) / len(places) for each in zip(*places, strict=True))
            names += (
                f'<text class="inside" x="{x:.1f}" y="{y:.1f}">{escape(labels[decision])}</text>'
            )
    first, second, third = (escape(labels[number]) for number in study.chosen)
    x, y = _place((study.p[list(study.chosen)] / study.mass).tolist())
    bottom = _HEIGHT + 0.8 * _MARGIN
    return (
        f'<svg viewBox="{-_MARGIN:g} {-_MARGIN:g} {_SIDE + 2 * _MARGIN:g} {_HEIGHT + 2.2 * _MARGIN:g}" role="img" aria-label="{spoken}">'
        f'{shapes}<path class="edge" d="M0 {_HEIGHT:g}L{_SIDE:g} {_HEIGHT:g}L{_SIDE / 2:g} 0Z"/>{names}'
        f'<text class="corner start" x="{-_MARGIN:g}" y="{bottom:g}">{first}</text>'
        f'<text class="corner end" x="{_SIDE + _MARGIN:g}" y="{bottom:g}">{second}</text>'
        f'<text class="corner" x="{_SIDE / 2:g}" y="-9">{third}</text><circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="5"/></svg>'
    )


def _place(shares: Sequence[float]) -> tuple[float, float]:
    """Where in the triangle classes have these shares: the first lies on the left, the second on the right, the third on top."""
    return _SIDE * (shares[1] + shares[2] / 2), _HEIGHT * (1 - shares[2])


def _area(places: Sequence[tuple[float, float]]) -> float:
    """Of a polygon, by the shoelace formula."""
    return (
        abs(
            math.fsum(
                a * d - b * c
                for (a, b), (c, d) in zip(places, [*places[1:], places[0]], strict=True)
            )
        )
        / 2
    )


def _line(study: ClassStudy, regions: Sequence[Region], spoken: str) -> str:
    labels = study.table.labels
    first, second = (escape(labels[number]) for number in study.chosen)
    shapes = names = ""
    for decision, corners in reversed(regions):
        start, end = sorted(share for _, share in corners)
        shapes += f'<rect class="class-{decision % _COLOURS}" x="{_SIDE * start:.2f}" y="0" width="{_SIDE * (end - start):.2f}" height="40"/>'
        if end - start > 0.2:
            names += f'<text class="inside" x="{_SIDE * (start + end) / 2:.1f}" y="21">{escape(labels[decision])}</text>'
        if start > 0.0:  # where the decision turns
            names += f'<text class="corner" x="{_SIDE * start:.1f}" y="-8">{start:.3f}</text>'
    x = _SIDE * float(study.p[study.chosen[1]]) / study.mass
    return (
        f'<svg viewBox="{-_MARGIN:g} {-_MARGIN:g} {_SIDE + 2 * _MARGIN:g} {40 + 2.2 * _MARGIN:g}" role="img" aria-label="{spoken}">{shapes}'
        f'<rect class="edge" x="0" y="0" width="{_SIDE:g}" height="40"/>{names}'
        f'<text class="corner start" x="{-_MARGIN:g}" y="62">{first}</text>'
        f'<text class="corner end" x="{_SIDE + _MARGIN:g}" y="62">{second}</text>'
        f'<circle class="point" cx="{x:.1f}" cy="20" r="5"/></svg>'
    )


def _swatch(number: int) -> str:
    return f'<span class="swatch class-{number % _COLOURS}"></span>'


class Line(NamedTuple):
    """A curve over temperatures; ``mark`` is a temperature to draw upright in its colour, such as the one that is suggested."""

    name: str
    colour: str
    """A variable of the style sheet."""
    points: Sequence[tuple[float, float]]
    mark: float | None = None
    dashed: bool = False


def sentence_lines(
    field: str,
    curves: Mapping[Objective, Sequence[TemperaturePoint]],
    marks: Mapping[Objective, float | None],
) -> list[Line]:
    """One field of both objectives' curves."""
    return [
        Line(
            NAMES[name],
            f"--{name}",
            [(point.tau, getattr(point, field)) for point in points],
            marks[name],
            dashed=name == "sqdml",
        )
        for name, points in curves.items()
    ]


def bound_lines(rows: Sequence[TheoryRow]) -> list[Line]:
    """The exact gap between the targets and each of its bounds."""
    return [
        Line(
            name,
            f"--bound-{field}",
            [(row.tau, getattr(row, field)) for row in rows],
            dashed=field != "kl",
        )
        for field, name in BOUNDS
    ]


def reward_lines(study: ClassStudy, taus: Sequence[float]) -> list[Line]:
    """What deciding by each rule earns; only RAML's depends on the temperature."""
    ml, bayes = (study.mean_reward(rule, 1.0) for rule in _STILL)
    return [
        Line(RULES["raml"], "--raml", [(tau, study.mean_reward("raml", tau)) for tau in taus]),
        Line(RULES["bayes"], "--sqdml", [(tau, bayes) for tau in taus], dashed=True),
        Line(RULES["ml"], "--muted", [(tau, ml) for tau in taus], dashed=True),
    ]


_LOWEST = 1e-6  # of a logarithmic chart: less is nothing
_POWERS = {
    "min": _LOWEST,
    "axisLabel": {
        "color": "var(--muted)",
        "fontSize": 11,
        ":formatter": "value => value < 0.01 || value > 100 ? value.toExponential(0) : value",
    },
}


def chart(
    title: str, lines: Sequence[Line], tau: float, *, logarithmic: bool = False
) -> dict[str, Any]:
    """Options of a chart of curves over temperatures, with an upright line at the present one."""
    text, rule = {"color": "var(--muted)", "fontSize": 11}, {"lineStyle": {"color": "var(--rule)"}}
    axis = {
        "axisLabel": {**text, "hideOverlap": True},
        "axisLine": rule,
        "splitLine": rule,
        "axisTick": {"show": False},
    }
    lowest, highest = lines[0].points[0][0], lines[0].points[-1][0]
    return {
        "animation": False,
        "title": {
            "text": title,
            "textStyle": {"color": "var(--ink)", "fontSize": 13, "fontWeight": 600},
            "left": 0,
            "top": 0,
        },
        "grid": {"left": 6, "right": 18, "top": 46, "bottom": 6, "containLabel": True},
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            ":valueFormatter": "value => value == null ? '' : Number(value).toPrecision(4)",
            "backgroundColor": "var(--panel)",
            "borderColor": "var(--rule)",
            "textStyle": {"color": "var(--ink)", "fontSize": 12},
        },
        "xAxis": {"type": "log", "min": lowest, "max": highest, **axis},
        "yAxis": {"type": "log" if logarithmic else "value", "scale": True, **axis}
        | (_POWERS if logarithmic else {}),
        "series": [
            _series(line, tau if number == 0 else None, logarithmic)
            for number, line in enumerate(lines)
        ],
    }


def _series(line: Line, tau: float | None, logarithmic: bool) -> dict[str, Any]:
    colour = f"var({line.colour})"
    marks = [] if line.mark is None else [_upright(line.mark, colour, "dashed", "")]
    marks += [] if tau is None else [_upright(tau, "var(--ink)", "solid", "τ")]
    return {
        "type": "line",
        "name": line.name,
        "data": [
            [tau, value]
            for tau, value in line.points
            if math.isfinite(value) and (value >= _LOWEST or not logarithmic)
        ],
        "showSymbol": False,
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour, "width": 2, "type": "dashed" if line.dashed else "solid"},
        "emphasis": {"disabled": True},
        "markLine": {"symbol": "none", "silent": True, "animation": False, "data": marks},
    }


def _upright(tau: float, colour: str, kind: str, label: str) -> dict[str, Any]:
    return {
        "xAxis": tau,
        "lineStyle": {"color": colour, "type": kind, "width": 1},
        "label": {"formatter": label, "color": colour, "fontSize": 11, "distance": 4},
    }
