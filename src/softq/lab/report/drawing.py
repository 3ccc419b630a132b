"""How figures look.

Lines with confidence bands, points with intervals, maps of regions, in a wide and a phone size.

A figure is drawn by a function that receives a `Canvas`, once for each size, so it asks the canvas
for panels and never fixes a size. Colours are the light ones; in the SVG they become CSS variables,
so that one drawing serves light and dark pages. Matplotlib (the extra ``plot``) is imported when
something is drawn, and its global state is left alone.

The hues are those of Okabe and Ito, which people with any colour vision can tell apart; series
differ in marker and dash as well.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softq.errors import DependencyError
from softq.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHONE_WIDTH = 720  # CSS pixels: on narrower pages the phone size of a figure is shown

COLOURS = {  # light and dark, by the name of the CSS variable; no two light ones are alike
    "background": ("#fdfdfb", "#15181b"),
    "panel": ("#f4f4f0", "#1d2125"),
    "ink": ("#1c2126", "#e5e8ea"),
    "muted": ("#5b636c", "#a3abb3"),
    "rule": ("#e2e2dc", "#31373d"),
    "accent": ("#0b5c94", "#83c0ee"),
    "blue": ("#0072b2", "#5fb8ee"),
    "orange": ("#c75000", "#f0a03c"),
    "green": ("#00795a", "#3fc79f"),
    "purple": ("#a3487f", "#e193c0"),
    "brown": ("#806000", "#d9c95a"),
    "class0": ("#a6d3f2", "#1f5d85"),
    "class1": ("#f8d48c", "#85580a"),
    "class2": ("#8fd0b6", "#0d6a50"),
    "class3": ("#e9bfd6", "#84466a"),
}
_UNLABELLED = "_"  # what matplotlib leaves out of legends


@dataclass(frozen=True)
class Look:
    """How a series is drawn: a colour, a marker and a dash, each enough to know it by.

    Where two series may coincide, give the one that is drawn first more ``weight``, so that it
    shows on both sides of the other.
    """

    colour: str
    marker: str = ""
    dash: str | tuple[float, tuple[float, ...]] = "-"
    weight: float = 1.6


@dataclass(frozen=True)
class Series:
    """A labelled line.

    ``points`` are (x, y) with y a number or an interval, which becomes a band.
    """

    label: str
    look: Look
    points: Sequence[tuple[float, float | Interval]]
    name: str = ""  # where several series share a label
    exact: bool = False  # computed, not measured: thin dashed lines with one legend entry


@dataclass(frozen=True)
class Canvas:
    """A fresh matplotlib figure, and whether it is for a phone."""

    figure: Figure
    phone: bool

    @staticmethod
    def colour(name: str) -> str:
        """The colour of this name."""
        return COLOURS[name][0]

    def panels(
        self, count: int, *, height: float, columns: int, phone_columns: int = 1, head: float = 0.4
    ) -> list[Axes]:
        """Make ``count`` panels, each ``height`` inches high.

        ``head`` is room above them for a legend.
        """
        columns = min(count, phone_columns if self.phone else columns)
        rows = math.ceil(count / columns)
        width = 3.42 if self.phone else 8.6  # 96 CSS pixels to the inch: text has its nominal size
        self.figure.set_size_inches(width, rows * height + head)
        axes = list(self.figure.subplots(rows, columns, squeeze=False).flat)
        for unused in axes[count:]:
            unused.remove()
        return axes[:count]

    def lines(self, axes: Axes, series: Sequence[Series]) -> None:
        """Draw series with their bands.

        On a logarithmic axis, points more than a decade apart are not joined.
        """
        for one in series:
            points: Sequence[tuple[float, ...]] = [
                (x, *y) if isinstance(y, Interval) else (x, y, math.nan, math.nan)
                for x, y in one.points
            ]
            if one.look.marker and axes.get_xscale() == "log":
                points = _without_leaps(points)
            x, middle, low, high = zip(*points, strict=True)
            colour = self.colour(one.look.colour)
            axes.plot(
                x,
                middle,
                color=colour,
                linestyle="--" if one.exact else one.look.dash,
                linewidth=0.9 if one.exact else one.look.weight,
                marker=one.look.marker or None,
                markersize=one.look.weight + (2.6 if len(x) <= 20 else 1.7),
                markeredgewidth=0,
                label=_UNLABELLED if one.exact else plain(one.label),
            )
            if np.isfinite(low).any():
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)

    def legend(self, *panels: Axes, columns: int, phone_columns: int = 2) -> None:
        """Put the labels of these panels above all of them, each once, and one entry for all exact lines."""
        from matplotlib.lines import Line2D

        entries: dict[str, Any] = {}
        for axes in panels:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        if any(line.get_label() == _UNLABELLED for axes in panels for line in axes.lines):
            entries["exact"] = Line2D(
                [], [], color=self.colour("muted"), linewidth=0.9, linestyle="--"
            )
        self.figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside upper left",
            ncols=phone_columns if self.phone else columns,
            handlelength=2.6,
            columnspacing=1.4,
            borderaxespad=0.2,
        )

    def dots(
        self, axes: Axes, labels: Sequence[str], points: Sequence[Interval | None], *, named: bool
    ) -> None:
        """Draw a point with its interval in each row, and above it the row's label."""
        colour = self.colour("blue")
        for row, (label, point) in enumerate(zip(labels, points, strict=True)):
            if point is not None:
                axes.plot([point.low, point.high], [row, row], color=colour, linewidth=1.8)
                axes.plot([point.value], [row], color=colour, marker="o", markersize=5)
            if named:
                place = axes.get_yaxis_transform()
                name = axes.text(0.01, row - 0.28, plain(label), transform=place, va="bottom")
                name.set(size=8.0, in_layout=False)  # a long name is no reason for small panels
        axes.set_ylim(len(labels) - 0.4, -0.95)
        axes.set_yticks([])

    def region_map(self, axes: Axes, classes: NDArray[np.integer[Any]], title: str) -> None:
        """Paint the classes decided over [-1, 1]²: ``classes[i, j]`` at the i-th x₀ and j-th x₁.

        The origin is below left.
        """
        size = len(classes)
        # a ring of the nearest class around the square, so that regions reach its edge
        padded = np.pad(classes.T, 1, mode="edge")
        places = 2 * (np.arange(-1, size + 1) + 0.5) / size - 1
        for label in np.unique(classes):
            areas = axes.contourf(
                places,
                places,
                (padded == label).astype(float),
                levels=[0.5, 2],
                colors=[self.colour(f"class{label % 4}")],
            )
            areas.set_paths([_simplified(path) for path in areas.get_paths()])
            cells = np.argwhere(classes == label)
            # the cell of the region nearest to its centroid: inside even where the region is bent
            i, j = cells[((cells - cells.mean(0)) ** 2).sum(1).argmin()]
            if len(cells) >= size * size / 200:
                spot = (2 * (i + 0.5) / size - 1, 2 * (j + 0.5) / size - 1)
                axes.text(*spot, str(label), ha="center", va="center", weight="bold")
        axes.set_title(plain(title), weight="normal")
        axes.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlim=(-1, 1), ylim=(-1, 1), aspect="equal")
        axes.grid(visible=False)


def plain(text: str) -> str:
    """Text that matplotlib shows as it is.

    No formula between dollars, no leading underscore, which would hide a label.
    """
    return text.lstrip("_").replace("$", r"\$")


def _simplified(path: Any) -> Any:
    """An outline with few corners, on a square of about 200 pixels."""
    from matplotlib.transforms import Affine2D

    pixels = Affine2D().scale(100)
    large = pixels.transform_path(path)
    large.should_simplify, large.simplify_threshold = True, 0.5
    return pixels.inverted().transform_path(large.cleaned(simplify=True))


def _without_leaps(points: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The points with a NaN, which breaks a line, wherever x leaps by more than a decade."""
    kept = [*points[:1]]
    for before, after in pairwise(points):
        if after[0] > 10 * before[0]:
            kept.append((before[0], *(math.nan for _ in before[1:])))
        kept.append(after)
    return kept


def number_axis(axes: Axes, label: str, *, logarithmic: bool) -> None:
    """Make x an axis of plain numbers, 1, 10, 1,000 rather than powers."""
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda _value, _position: "")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel(label)


def coloured(svg: str, *, dark: bool) -> str:
    """A drawing with the colours of one scheme, to stand on its own."""
    text = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return re.sub(r"var\(--(\w+)\)", lambda name: COLOURS[name[1]][dark], text)


def draw_svg(draw: Callable[[Canvas], None], name: str, *, phone: bool) -> tuple[str, int, int]:
    """An SVG whose colours are CSS variables, and its size in CSS pixels.

    The same numbers always give the same text. ``name`` keeps its ids apart from others of a page.

    Raises DependencyError without matplotlib.
    """
    content, width, height = _render(draw, phone, "svg", name)
    return _compact(content.decode()), width, height


def draw_png(draw: Callable[[Canvas], None]) -> bytes:
    """The wide size as a picture with light colours."""
    return _render(draw, False, "png", "")[0]


def _render(
    draw: Callable[[Canvas], None], phone: bool, kind: str, name: str
) -> tuple[bytes, int, int]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "figures need matplotlib, which is not installed: pip install 'softq[plot]'"
        ) from error
    buffer = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_settings(phone, f"{name}{phone}"))
        figure = Figure(layout="constrained", dpi=200)
        draw(Canvas(figure, phone))
        # neither the date nor the version of matplotlib: they would differ where the numbers do not
        absent = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, metadata=absent)
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return buffer.getvalue(), width, height


def _settings(phone: bool, salt: str) -> dict[Any, Any]:
    """Matplotlib's parameters, on top of its own defaults, whatever the user's matplotlibrc says."""
    size = 9.0 if phone else 9.5
    colours = {name: light for name, (light, _) in COLOURS.items()}
    inks = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    return {
        **dict.fromkeys(inks, colours["ink"]),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), colours["muted"]),
        **dict.fromkeys(
            ("figure.facecolor", "axes.facecolor", "savefig.facecolor"), colours["background"]
        ),
        **dict.fromkeys(("axes.titlesize", "axes.labelsize", "legend.fontsize"), size),
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), size - 0.5),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        "font.size": size,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 7.0,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": colours["rule"],
        "grid.linewidth": 0.7,
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "axes.formatter.useoffset": False,
        "svg.fonttype": "none",  # the page's own font: a tenth of the size of drawn letters
        "svg.hashsalt": salt,
    }


def _compact(svg: str) -> str:
    """The element alone.

    No metadata, no ids but those that something refers to, two decimals, variables for colours.
    """
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg[svg.index("<svg ") :], flags=re.S)
    size = re.search(r'viewBox="[^"]*"', svg)
    svg = f"<svg {size[0] if size else ''}>" + svg[svg.index(">") + 1 :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: (\d+) ([\d.]+px) [^;\"]*", r"font-weight: \1; font-size: \2", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?|stroke-miterlimit: [^;\"]*;? ?", "", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*\)"|<defs>\s*<style.*?</style>\s*</defs>', "", svg)
    svg = re.sub(r"-?\d+\.\d{2,}(?:e-?\d+)?", _rounded, svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r"<g([^>]*)>((?:<use [^>]*/>)+)</g>", _shared_style, svg)
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--{name})")
    return re.sub(r"\s+", " ", svg).strip()


def _shared_style(match: re.Match[str]) -> str:
    """The style of all markers of a line, once."""
    styles = set(re.findall(r' style="[^"]*"', match[2]))
    if len(styles) != 1:
        return match[0]
    style = styles.pop()
    return f"<g{match[1]}{style}>{match[2].replace(style, '')}</g>"


def _rounded(match: re.Match[str]) -> str:
    """A tenth of a point is less than anyone can see.

    Markers and strokes are small, and keep another digit.
    """
    value = float(match[0])
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def describe(label: str, points: Sequence[tuple[float, float]], at: str, digits: int = 3) -> str:
    """A line in words, for those who cannot see it.

    >>> describe("RAML", [(0.1, 2.18), (1.0, 2.22), (3.0, 2.315)], "τ")
    'RAML rises from 2.180 at τ 0.1 to 2.315 at τ 3'
    >>> describe("SQDML", [(0.1, 2.315), (3.0, 2.316)], "τ", digits=2)
    'SQDML stays near 2.32'
    >>> describe("RAML", [(1, 2.2), (201, 2.3), (10001, 1.8)], "τ", digits=1)
    'RAML rises from 2.2 at τ 1 to 2.3 at τ 201, then falls to 1.8 at τ 10,001'
    """
    values = [y for _, y in points]
    first, last = values[0], values[-1]
    low, high = min(values), max(values)

    def spot(index: int) -> str:
        return f"{values[index]:.{digits}f} at {at} {points[index][0]:,g}"

    slack = 0.005 * max(abs(low), abs(high))
    if high - low <= slack:
        return f"{label} stays near {sum(values) / len(values):.{digits}f}"
    turn = next(
        (
            (name, values.index(extreme), back)
            for name, extreme, back, bump in (
                ("rises", high, "falls", high - max(first, last)),
                ("falls", low, "rises", min(first, last) - low),
            )
            if bump > slack
        ),
        None,
    )
    if turn is not None:
        return f"{label} {turn[0]} from {spot(0)} to {spot(turn[1])}, then {turn[2]} to {spot(-1)}"
    return f"{label} {'rises' if last > first else 'falls'} from {spot(0)} to {spot(-1)}"
