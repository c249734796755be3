"""Example segmentations of a report, from the aggregator's own held-out images."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Sheet
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from aggregator.report.figures import ORANGE, SKY, SOFT, Figure, picture
from aggregator.report.heldout import Example, Measured
from aggregator.report.tables import Cell, Table

TITLE = "Examples"
_KINDS = {"rightly left out": "#000000", "missed": ORANGE, "too much": SKY, "found": "#ffffff"}
"""What a pixel of an answer may be, in the order of their numbers."""


def examples(measured: Measured) -> Figure:
    """Draw some images, each with its truth, its answer and u."""
    if not measured.examples:
        return Figure("examples", TITLE, why_none=_why_none(measured), is_wide=True)
    rows: list[list[Cell]] = [
        [each.number, each.dice, float((each.predicted != each.truth).mean()), float(each.uncertainty.mean())]
        for each in measured.examples
    ]
    caption = (
        "Of the aggregator's own held-out images those with the lowest, the median and the highest Dice, numbered by "
        f"their names. u is {measured.uncertainty_is}. No image of a site is here: none ever leaves it."
    )
    said = "; ".join(f"image {each.number}: Dice {each.dice:.3f}" for each in measured.examples)
    alt = f"Image, truth, answer and u side by side. {said}."
    table = Table("examples", "The images shown", ("image", "Dice", "wrong pixels (share)", "mean u"), rows)
    svg, png = picture(lambda sheet: _draw(sheet, measured.examples), 9.2, 0.9 + 1.95 * len(rows))
    return Figure("examples", TITLE, caption, alt, table, svg, png, is_wide=True)


def _why_none(measured: Measured) -> str:
    if measured.about_pixels:
        return "part of the model stays at the sites, so the aggregator has no model that could segment an image"
    return "the task grades images and segments none"


def _draw(sheet: Sheet, chosen: Sequence[Example]) -> None:
    grid = sheet.subplots(len(chosen), 4, squeeze=False)
    shown = [_row(row, each) for row, each in zip(grid, chosen, strict=True)]
    for axes, title in zip(grid[0], ("image", "truth", "answer", "u"), strict=True):
        axes.set_title(title, size=10)
    sheet.colorbar(shown[0], ax=list(grid[:, 3]), aspect=30, fraction=0.08, label="u (0: certain, 1: knows nothing)")
    marks = [Patch(facecolor=colour, edgecolor=SOFT, label=what) for what, colour in _KINDS.items()]
    sheet.legend(handles=marks, loc="outside lower center", ncols=4)


def _row(row: Sequence[Axes], each: Example) -> AxesImage:
    for axes in row:
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
    row[0].set_ylabel(f"image {each.number}\nDice {each.dice:.3f}")
    row[0].imshow(each.image, cmap="gray")
    row[1].imshow(each.truth > 0, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    kinds = (each.truth > 0) + 2 * (each.predicted > 0)  # by their numbers in _KINDS
    row[2].imshow(kinds, cmap=ListedColormap([*_KINDS.values()]), vmin=0, vmax=3, interpolation="nearest")
    return row[3].imshow(each.uncertainty, cmap="cividis", vmin=0, vmax=1)
