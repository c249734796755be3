"""How a figure of the report is drawn: the same bytes for the same numbers, for every eye, no 0 for what was not
reported.

Colours are four of Okabe and Ito's, and two for those of theirs that white paper swallows: each stands out by 3 to 1. A
marker and a line's dashes tell the same as a colour does.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import MaxNLocator

from aggregator.report.tables import Missing, Table, is_number, number
from shared.escaping import escape

BLUE, ORANGE, GREEN, PINK, BROWN, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#66421F", "#2693FF"
COLOURS = (BLUE, ORANGE, GREEN, PINK, BROWN, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
INK, SOFT = "#1b1f24", "#6e7781"

WIDTH, HEIGHT = 4.6, 3.5
"""Of a figure, in inches: on a phone its letters are still large enough to read."""

_LETTERS_BELOW, _LETTERS_OF_A_HANDLE = 66, 8
"""Of the names below a figure in one row, and what the line before each takes."""

_TALLEST = 60.0

MOST_NAMED = 12
"""More lines than this are drawn alike, without their names; the table beside the figure has them."""

_STYLE: dict[Any, object] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,  # inches: a number below the end of an axis is not cut off
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#e6e9ed",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.dpi": 160,
    "svg.fonttype": "path",
    "svg.hashsalt": "dropfed",  # the names of clip paths in a file
    "text.color": INK,
    "text.parse_math": False,  # a name with two dollar signs is no formula
}


@dataclass(frozen=True)
class Figure:
    """A figure, or why there is none.

    Args:
        name: of its files, without the ending.
        caption: how to read it.
        alt: what the figure shows, for people who cannot see it.
        table: every number that is drawn.
        why_none: empty if it was drawn.
        is_wide: whether it needs a page's whole width.
        is_tabled: whether a table beside it has its numbers; a page does not show them twice.
    """

    name: str
    title: str
    caption: str = ""
    alt: str = ""
    table: Table | None = None
    svg: bytes = b""
    png: bytes = b""
    why_none: str = ""
    is_wide: bool = False
    is_tabled: bool = False

    @property
    def source(self) -> str:
        """The picture as an address that loads nothing."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"

    def _repr_png_(self) -> bytes | None:
        """Return what a notebook shows; None: it shows the text instead."""
        return self.png or None

    def __repr__(self) -> str:
        return f"{self.title}: {f'not drawn, {self.why_none}' if self.why_none else self.alt}"


def picture(draw: Callable[[Sheet], None], width: float = WIDTH, height: float = HEIGHT) -> tuple[bytes, bytes]:
    """Return what ``draw`` puts on a sheet of so many inches, as SVG and as PNG."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands for it
        sheet = Sheet(figsize=(width, min(height, _TALLEST)))
        FigureCanvasAgg(sheet)
        draw(sheet)
        if layout := sheet.get_layout_engine():  # once for both: it takes longer than to draw
            layout.execute(sheet)
            sheet.set_layout_engine("none")
        svg, png = io.BytesIO(), io.BytesIO()
        sheet.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        sheet.savefig(png, format="png", metadata={"Software": None})
        return svg.getvalue(), png.getvalue()


def panel(
    figure: Figure, draw: Callable[[Axes], None], settings: Mapping[str, object], *, height: float = HEIGHT
) -> Figure:
    """Return a figure with its picture: one pair of axes, with the names of what ``draw`` puts into them below.

    Args:
        settings: of the axes: ``xlabel`` and ``ylabel`` with their units, limits.
    """

    def fill(sheet: Sheet) -> None:
        axes = sheet.subplots()
        axes.set(**settings)
        draw(axes)
        _legend_below(sheet, axes)

    svg, png = picture(fill, height=height)
    return replace(figure, svg=svg, png=png)


def lines(
    title: str,
    caption: str,
    table: Table,
    *,
    has_mean: bool = False,
    limits: tuple[float | None, float | None] = (None, None),
    are_names: bool = False,
    why_none: str = "no scores received",
    **labels: str,
) -> Figure:
    """Return one line for each column of a table over its first; where there is no number the line is cut.

    Args:
        has_mean: whether the last column is the mean of the others.
        are_names: whether the first column's cells are not places on the axis but names, at equal distances.
        labels: ``xlabel`` and ``ylabel``, with their units.
    """
    if not any(is_number(cell) for row in table.rows for cell in row[1:]):
        return Figure(table.name, title, why_none=why_none)
    places = [float(place) if are_names else number(row[0]) for place, row in enumerate(table.rows)]
    columns = table.header[1:]

    def draw(axes: Axes) -> None:
        for index, column in enumerate(columns):
            is_mean = has_mean and index == len(columns) - 1
            named = is_mean or len(columns) <= MOST_NAMED
            style = _OF_MEAN if is_mean else line_style(index) if named else _OF_MANY
            values = [number(row[index + 1]) for row in table.rows]
            axes.plot(places, values, label=label(column) if named else None, **style)
        if are_names:
            axes.set_xticks(places, [str(row[0]) for row in table.rows])
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_ylim(*limits)

    if len(columns) > MOST_NAMED:
        caption = f"{caption} More than {MOST_NAMED} lines are drawn without their names, which the numbers below have."
    alt = f"Lines: {labels['ylabel']} over {labels['xlabel']}. Last: {_last_told(table)}."
    named = [label(column) for column in columns] if len(columns) <= MOST_NAMED else []
    height = HEIGHT + 0.2 * (-(-len(named) // _columns_below(named)) - 1)
    return panel(Figure(table.name, title, caption, alt, table), draw, labels, height=height)


def shares(figure: Figure, shown: Table, *, height: float, **labels: str) -> Figure:
    """Return a field for each cell of a table of shares, the darker the greater, with its number or why there is none.

    Args:
        shown: what is drawn, which need not be the figure's table; its first column and header name the fields.
        labels: ``xlabel`` and ``ylabel``.
    """
    values = np.array([[number(cell) for cell in row[1:]] for row in shown.rows])
    columns, rows = [label(column, 14) for column in shown.header[1:]], [label(str(row[0])) for row in shown.rows]

    def draw(axes: Axes) -> None:
        axes.set_facecolor("#f0f1f3")
        axes.grid(visible=False)
        axes.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(values):
            cell = shown.rows[row][column + 1]
            text = cell.why if isinstance(cell, Missing) else f"{value:.2f}"
            size, colour = (7, INK) if isinstance(cell, Missing) else (10, "#ffffff" if value > 0.55 else INK)
            axes.text(column, row, text, ha="center", va="center", size=size, color=colour)
        if max(map(len, columns)) > 8:
            axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
        else:
            axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)

    return panel(figure, draw, labels, height=height)


def line_style(index: int) -> dict[str, Any]:
    """Return how the line of this number looks."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


_OF_MEAN: dict[str, Any] = {"color": "#000000", "linewidth": 2.4, "zorder": 3}
_OF_MANY: dict[str, Any] = {"color": SOFT, "linewidth": 0.8, "alpha": 0.6, "marker": ".", "markersize": 3}


def _legend_below(sheet: Sheet, axes: Axes) -> None:
    """Put the names below the axes, where they hide nothing."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        columns = _columns_below(names)
        sheet.legend(handles, names, loc="outside lower center", ncols=columns, handlelength=2.4, columnspacing=1.2)


def _columns_below(names: Sequence[str]) -> int:
    """Return how many names stand beside each other below a figure without being cut off."""
    most = _LETTERS_BELOW // (_LETTERS_OF_A_HANDLE + max(map(len, names), default=1))
    return max(1, min(most, 2 if len(names) in {2, 4} else 3))


def label(text: str, most: int = 24) -> str:
    """Return a name as a figure shows it."""
    text = escape(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def thinned(places: int, most: int = 101) -> list[int]:
    """Return at most so many indices of so many places, evenly spaced, the first and the last among them."""
    if places <= most:
        return list(range(places))
    return [index * (places - 1) // (most - 1) for index in range(most)]


def _last_told(table: Table) -> str:
    """Return the last number of each column as text."""
    last: dict[str, str] = {}
    for row in table.rows:
        cells = zip(table.header[1:], row[1:], strict=True)
        last |= {column: f"{number(cell):.3f}" for column, cell in cells if is_number(cell)}
    return ", ".join(f"{column} {value}" for column, value in last.items())
