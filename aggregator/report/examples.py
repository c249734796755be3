"""Example segmentations of a report, from the aggregator's own held-out images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Sheet
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray

from aggregator.report.figures import PINK, SOFT, Figure, picture
from aggregator.report.heldout import Example, Measured
from aggregator.report.tables import Cell, Table

TITLE = "Examples"
KINDS = {"rightly left out": "#000000", "missed": "#9B3B00", "too much": "#56B4E9", "found": "#ffffff"}
"""What a pixel of an answer may be, in the order of their numbers; in grey the first three are apart by 3 to 1."""
_FOUND = 3
_OF_SEVERAL = KINDS | {"other class": PINK}
"""The same where there are several classes besides the background: one may be taken for another."""


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
    kinds = _OF_SEVERAL if len(measured.classes) > 2 else KINDS
    svg, png = picture(lambda sheet: _draw(sheet, measured.examples, kinds), 9.2, 0.9 + 1.95 * len(rows))
    return Figure("examples", TITLE, caption, alt, table, svg, png, is_wide=True)


def _why_none(measured: Measured) -> str:
    if measured.about_pixels:
        return "part of the model stays at the sites, so the aggregator has no model that could segment an image"
    return "the task grades images and segments none"


def _draw(sheet: Sheet, chosen: Sequence[Example], kinds: Mapping[str, str]) -> None:
    grid = sheet.subplots(len(chosen), 4, squeeze=False)
    shown = [_row(row, each, kinds) for row, each in zip(grid, chosen, strict=True)]
    for axes, title in zip(grid[0], ("image", "truth", "answer", "u"), strict=True):
        axes.set_title(title, size=10)
    sheet.colorbar(shown[0], ax=list(grid[:, 3]), aspect=30, fraction=0.08, label="u (0: certain, 1: knows nothing)")
    marks = [Patch(facecolor=colour, edgecolor=SOFT, label=what) for what, colour in kinds.items()]
    sheet.legend(handles=marks, loc="outside lower center", ncols=len(kinds))


def _row(row: Sequence[Axes], each: Example, kinds: Mapping[str, str]) -> AxesImage:
    for axes in row:
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
    row[0].set_ylabel(f"image {each.number}\nDice {each.dice:.3f}")
    row[0].imshow(each.image, cmap="gray")
    row[1].imshow(each.truth > 0, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    colours = ListedColormap([*kinds.values()])
    row[2].imshow(kinds_of(each), cmap=colours, vmin=0, vmax=len(kinds) - 1, interpolation="nearest")
    return row[3].imshow(each.uncertainty, cmap="cividis", vmin=0, vmax=1)


def kinds_of(each: Example) -> NDArray[np.int64]:
    """Return what each pixel of an answer is, (H, W), by its number among the kinds."""
    kinds = (each.truth > 0) + 2 * (each.predicted > 0)
    return np.where((kinds == _FOUND) & (each.predicted != each.truth), _FOUND + 1, kinds)
