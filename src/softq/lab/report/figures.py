"""How figures look: two colour schemes, a wide and a phone size, lines with confidence bands, maps of regions.

A figure is drawn by a function that receives a `Canvas`. It is called once for each `Style`, so it asks the canvas for panels
and colours and never fixes a size. Matplotlib (the extra ``plot``) is imported when something is drawn, and its global state is left alone.

The hues are those of Okabe and Ito, which people with any colour vision can tell apart; series differ in marker and dash as well.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from softq.errors import DependencyError
from softq.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNLABELLED = "_"  # what matplotlib leaves out of legends

PHONE_WIDTH = 720  # CSS pixels: on narrower pages the phone variant of a figure is shown


@dataclass(frozen=True)
class Style:
    """Colours and sizes of one rendering of a figure; the page around it takes its colours from here too."""

    scheme: str  # "light" or "dark"
    phone: bool
    background: str
    panel: str
    ink: str
    muted: str
    rule: str
    accent: str
    hues: Mapping[str, str]  # by the name of a Look's hue
    classes: Sequence[str]  # fills of regions; ink is legible on each

    @property
    def width(self) -> float:
        """Inches; 96 CSS pixels each, so that text appears at its nominal size."""
        return 3.42 if self.phone else 8.6

    @property
    def settings(self) -> dict[Any, Any]:
        """Matplotlib's parameters, on top of its own defaults, whatever the user's matplotlibrc says."""
        size = 9.0 if self.phone else 9.5
        inks = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
        return {
            **dict.fromkeys(inks, self.ink),
            **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), self.muted),
            **dict.fromkeys(("figure.facecolor", "axes.facecolor"), self.background),
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
            "grid.color": self.rule,
            "grid.linewidth": 0.7,
            "lines.linewidth": 1.6,
            "lines.solid_capstyle": "round",
            "axes.formatter.useoffset": False,
            "svg.fonttype": "path",  # glyphs travel with the file, so that it looks the same everywhere
            "svg.hashsalt": "softq",
        }


def _style(scheme: str, phone: bool) -> Style:
    if scheme == "light":
        hues = {
            "blue": "#0072b2",
            "orange": "#c75000",
            "green": "#00795a",
            "purple": "#a3487f",
            "brown": "#806000",
            "ink": "#1c2126",
        }
        fills = ("#a6d3f2", "#f8d48c", "#8fd0b6", "#e9bfd6")
        return Style(
            scheme,
            phone,
            "#fdfdfb",
            "#f4f4f0",
            "#1c2126",
            "#5b636c",
            "#e2e2dc",
            "#0b5c94",
            hues,
            fills,
        )
    hues = {
        "blue": "#5fb8ee",
        "orange": "#f0a03c",
        "green": "#3fc79f",
        "purple": "#e193c0",
        "brown": "#d9c95a",
        "ink": "#e5e8ea",
    }
    fills = ("#1f5d85", "#85580a", "#0d6a50", "#84466a")
    return Style(
        scheme, phone, "#15181b", "#1d2125", "#e5e8ea", "#a3abb3", "#31373d", "#83c0ee", hues, fills
    )


LIGHT, LIGHT_PHONE, DARK, DARK_PHONE = (
    _style(scheme, phone) for scheme in ("light", "dark") for phone in (False, True)
)


@dataclass(frozen=True)
class Look:
    """How a series is drawn: a hue of the style, a marker and a dash, each enough to know it by.

    Where two series may coincide, give the one that is drawn first more ``weight``, so that it shows on both sides of the other.
    """

    hue: str
    marker: str = ""
    dash: str | tuple[float, tuple[float, ...]] = "-"
    weight: float = 1.6


@dataclass(frozen=True)
class Series:
    """A labelled line; ``points`` are (x, y) with y a number or an interval, which becomes a band."""

    label: str
    look: Look
    points: Sequence[tuple[float, float | Interval]]
    exact: bool = False  # computed, not measured: a thin dashed line, which takes no place of its own in the legend


@dataclass(frozen=True)
class Canvas:
    """A fresh matplotlib figure and the style to draw it in."""

    figure: Figure
    style: Style

    def panels(
        self, count: int, *, height: float, columns: int, phone_columns: int = 1, head: float = 0.4
    ) -> list[Axes]:
        """Make ``count`` panels, each ``height`` inches high; ``head`` is room above them for a legend."""
        columns = min(count, phone_columns if self.style.phone else columns)
        rows = math.ceil(count / columns)
        self.figure.set_size_inches(self.style.width, rows * height + head)
        axes = list(self.figure.subplots(rows, columns, squeeze=False).flat)
        for unused in axes[count:]:
            unused.remove()
        return axes[:count]

    def lines(self, axes: Axes, series: Sequence[Series]) -> None:
        """Draw series with their bands into one panel; on a logarithmic axis, points more than a decade apart are not joined."""
        for one in series:
            points: Sequence[tuple[float, ...]] = [
                (x, *y) if isinstance(y, Interval) else (x, y, math.nan, math.nan)
                for x, y in one.points
            ]
            if one.look.marker and axes.get_xscale() == "log":
                points = _without_leaps(points)
            x, middle, low, high = zip(*points, strict=True)
            colour = self.style.hues[one.look.hue]
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
            entries["exact"] = Line2D([], [], color=self.style.muted, linewidth=0.9, linestyle="--")
        self.figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside upper left",
            ncols=phone_columns if self.style.phone else columns,
            handlelength=2.6,
            columnspacing=1.4,
            borderaxespad=0.2,
        )

    def region_map(self, axes: Axes, classes: NDArray[np.integer[Any]], title: str) -> None:
        """Paint the classes decided over [-1, 1]²: ``classes[i, j]`` at the i-th x₀ and j-th x₁; the origin is below left."""
        from matplotlib.colors import to_rgb

        palette = np.round(np.array([to_rgb(fill) for fill in self.style.classes]) * 255).astype(
            np.uint8
        )
        # drawn as it is ("none"), so that the file holds G × G pixels and the browser enlarges them
        axes.imshow(
            palette[classes.T % len(palette)],
            origin="lower",
            extent=(-1, 1, -1, 1),
            interpolation="none",
        )
        size = len(classes)
        for label in np.unique(classes):
            cells = np.argwhere(classes == label)
            # the cell of the region that lies nearest to its centroid: inside even where the region is bent
            i, j = cells[((cells - cells.mean(0)) ** 2).sum(1).argmin()]
            if len(cells) >= size * size / 200:
                axes.text(
                    2 * (i + 0.5) / size - 1,
                    2 * (j + 0.5) / size - 1,
                    str(label),
                    ha="center",
                    va="center",
                    weight="bold",
                )
        axes.set_title(plain(title), weight="normal")
        axes.set_xticks([-1, 0, 1])
        axes.set_yticks([-1, 0, 1])
        axes.grid(visible=False)


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: no formula between dollars, no leading underscore, which would hide a label."""
    return text.lstrip("_").replace("$", r"\$")


def _without_leaps(points: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """The points with a NaN, which breaks a line, wherever x leaps by more than a decade."""
    kept = [*points[:1]]
    for before, after in pairwise(points):
        if after[0] > 10 * before[0]:
            kept.append((before[0], *(math.nan for _ in before[1:])))
        kept.append(after)
    return kept


def temperature_axis(axes: Axes, *, logarithmic: bool) -> None:
    """Make x the axis of τ, labelled 1, 10, 1,000 rather than in powers."""
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(lambda _value, _position: "")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xlabel("τ")


class Picture(NamedTuple):
    """A figure as a file, and its size in CSS pixels."""

    content: bytes
    width: int
    height: int


def render(draw: Callable[[Canvas], None], style: Style, kind: Literal["svg", "png"]) -> Picture:
    """Draw in one style. The same numbers always give the same bytes.

    Raises DependencyError without matplotlib.
    """
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "figures need matplotlib, which is not installed: pip install 'softq[plot]'"
        ) from error
    buffer = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style.settings)
        figure = Figure(layout="constrained", dpi=200)
        draw(Canvas(figure, style))
        # neither the date nor the version of matplotlib: they would differ where the numbers do not
        canvas: Any = FigureCanvasSVG(figure) if kind == "svg" else FigureCanvasAgg(figure)
        if kind == "svg":
            canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
        else:
            canvas.print_png(buffer, metadata={"Software": None})
        width, height = (round(96 * inches) for inches in figure.get_size_inches())
    return Picture(buffer.getvalue(), width, height)


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
    if high - max(first, last) > slack:
        return (
            f"{label} rises from {spot(0)} to {spot(values.index(high))}, then falls to {spot(-1)}"
        )
    if min(first, last) - low > slack:
        return (
            f"{label} falls from {spot(0)} to {spot(values.index(low))}, then rises to {spot(-1)}"
        )
    return f"{label} {'rises' if last > first else 'falls'} from {spot(0)} to {spot(-1)}"
