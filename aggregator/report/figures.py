"""How a figure of the report is drawn: the same bytes for the same numbers, for every eye, never a 0 for what is not told.

Colours are those of Okabe and Ito, without their yellow, which white paper swallows; a marker and a line's dashes tell
the same as a colour does.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import MaxNLocator

from aggregator.report.tables import Cell, Table, number
from shared.visible import visible

BLUE, ORANGE, GREEN, PINK, SAND, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, ORANGE, GREEN, PINK, SAND, SKY)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")
INK, SOFT = "#1b1f24", "#6e7781"

WIDTH, HEIGHT = 4.6, 3.5
"""Of a figure, in inches: on a phone its letters are still large enough to read."""

MOST_NAMED = 12
"""More lines than this are drawn alike, without their names; the table beside the figure has them."""

_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
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
        alt: the same for who cannot see it.
        table: every number that is drawn.
        why_none: empty if it was drawn.
        is_wide: whether it needs a page's whole width.
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

    @property
    def source(self) -> str:
        """The picture as an address that loads nothing."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"


def picture(draw: Callable[[Sheet], None], width: float = WIDTH, height: float = HEIGHT) -> tuple[bytes, bytes]:
    """What ``draw`` puts on a sheet of so many inches, as SVG and as PNG."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a box stands for it
        sheet = Sheet(figsize=(width, height))
        FigureCanvasAgg(sheet)
        draw(sheet)
        svg, png = io.BytesIO(), io.BytesIO()
        sheet.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        sheet.savefig(png, format="png", metadata={"Software": None})
        return svg.getvalue(), png.getvalue()


def lines(
    name: str,
    title: str,
    caption: str,
    table: Table,
    *,
    across: str,
    up: str,
    mean: bool = False,
    limits: tuple[float, float] | None = None,
    decorate: Callable[[Axes], None] = lambda axes: None,
    why_none: str = "",
) -> Figure:
    """One line for each column of a table over its first; where there is no number the line is cut.

    Args:
        across, up: what the axes show, with the unit.
        mean: whether the last column is the mean of the others.
    """
    if not any(number(cell) == number(cell) for row in table.rows for cell in row[1:]):
        return Figure(name, title, why_none=why_none or "nobody has told a number yet")
    places = [number(row[0]) for row in table.rows]
    columns = {column: [number(row[index]) for row in table.rows] for index, column in enumerate(table.header) if index}

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        named = len(columns) <= MOST_NAMED
        for index, (column, values) in enumerate(columns.items()):
            is_mean = mean and index == len(columns) - 1
            style = {"color": "#000000", "linewidth": 2.4, "zorder": 3} if is_mean else line_style(index, named)
            axes.plot(places, values, label=label(column) if named or is_mean else None, **style)  # type: ignore[arg-type]
        axes.set(xlabel=across, ylabel=up)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if limits:
            axes.set_ylim(*limits)
        decorate(axes)
        legend_below(sheet, axes)

    svg, png = picture(draw, height=HEIGHT + 0.22 * (min(len(columns), MOST_NAMED) // 3))
    newest = ", ".join(f"{column} {text}" for column, text in _last_told(table).items())
    return Figure(name, title, caption, f"Lines over {across}: {up}. Last: {newest}.", table, svg, png)


def line_style(index: int, named: bool = True) -> Mapping[str, object]:
    """How the line of this number looks."""
    if not named:
        return {"color": SOFT, "linewidth": 0.8, "alpha": 0.6, "marker": ".", "markersize": 3}
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def legend_below(sheet: Sheet, axes: Axes) -> None:
    """Names below the axes, where they hide nothing."""
    handles, names = axes.get_legend_handles_labels()
    if handles:
        sheet.legend(handles, names, loc="outside lower center", ncols=3, handlelength=2.4, columnspacing=1.2)


def label(text: str, most: int = 24) -> str:
    """A name as a figure shows it."""
    text = visible(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def thinned(places: int, most: int = 101) -> Sequence[int]:
    """At most so many indices of so many places, evenly, the first and the last among them."""
    if places <= most:
        return range(places)
    return [index * (places - 1) // (most - 1) for index in range(most)]


def _last_told(table: Table) -> dict[str, str]:
    """Of each column its last number."""
    last: dict[str, Cell] = {}
    for row in table.rows:
        last |= {
            column: cell for column, cell in zip(table.header[1:], row[1:], strict=True) if number(cell) == number(cell)
        }
    return {column: f"{number(cell):.3f}" for column, cell in last.items()}
