"""Figures of what one aggregate says of the aggregator's own held-out images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import Patch
from numpy.typing import NDArray

from aggregator.report.figures import (
    BLUE,
    HEIGHT,
    ORANGE,
    SOFT,
    Figure,
    label,
    legend_below,
    line_style,
    picture,
    thinned,
)
from aggregator.report.heldout import Measured
from aggregator.report.site_figures import write_cells
from aggregator.report.tables import NOT_TOLD, Cell, Table
from shared.learning.metrics import (
    CALIBRATION_BINS,
    REFERRAL_GOALS,
    Ranking,
    calibration_bins,
    calibration_error,
    left_by_referral,
    ranking,
)

_HISTOGRAM_BINS = 20
_TITLES = {
    "confusion": "Confusion matrix",
    "roc": "ROC curves",
    "precision-recall": "Precision and recall",
    "risk-coverage": "Risk and coverage",
    "referral": "Referral",
    "reliability": "Reliability",
    "uncertainty": "u of right and wrong answers",
    "examples": "Examples",
}


def heldout_figures(measured: Measured | str) -> list[Figure]:
    """All of them.

    Args:
        measured: or why nothing could be measured.
    """
    if isinstance(measured, str):
        return [Figure(name, title, why_none=measured) for name, title in _TITLES.items()]
    right = measured.probabilities.argmax(axis=1) == measured.truth
    return [
        _confusion(measured),
        *_separation(measured),
        *_referral(measured, right),
        _reliability(measured, right),
        _uncertainty(measured, right),
        _examples(measured),
    ]


def _confusion(measured: Measured) -> Figure:
    classes = len(measured.classes)
    predicted = measured.probabilities.argmax(axis=1)
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (measured.truth, predicted), 1)
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    names = [_class(measured, k) for k in range(classes)]
    rows: list[list[Cell]] = [[names[k], *map(int, counts[k])] for k in range(classes)]
    shown: list[list[Cell]] = [
        [names[k], *(float(share) if share == share else NOT_TOLD for share in shares[k])] for k in range(classes)
    ]

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        axes.set_facecolor("#f0f1f3")
        axes.grid(visible=False)
        axes.imshow(np.ma.masked_invalid(shares), cmap="Blues", vmin=0, vmax=1)
        write_cells(axes, shown, shares)
        axes.set_xticks(
            range(classes),
            names,
            rotation=0 if max(map(len, names)) < 9 else 30,
            ha="center" if max(map(len, names)) < 9 else "right",
        )
        axes.set_yticks(range(classes), names)
        axes.set(xlabel="answer", ylabel="truth")

    caption = f"Of each true class, the share that was answered as each class; {_what(measured)}."
    alt = "; ".join(
        f"{names[k]}: {shares[k, k]:.2f} right of {int(totals[k, 0])}" for k in range(classes) if totals[k, 0]
    )
    table = Table(
        "confusion",
        "Counts: truth in rows, answers in columns",
        ("truth", *(f"answered {name}" for name in names)),
        rows,
    )
    return Figure(
        "confusion", _TITLES["confusion"], caption, f"Confusion matrix. {alt}.", table, *picture(draw, height=4.1)
    )


def _separation(measured: Measured) -> list[Figure]:
    """ROC and precision–recall, of each class against the rest; of two classes of the second alone."""
    classes = range(1, 2) if len(measured.classes) == 2 else range(len(measured.classes))
    ranked = {
        k: ranking(measured.probabilities[:, k], measured.truth == k)
        for k in classes
        if 0 < np.count_nonzero(measured.truth == k) < len(measured.truth)
    }

    def roc(found: Ranking) -> tuple[NDArray[Any], NDArray[Any], float | None]:
        false_alarms, hits = np.append(0, found.negatives), np.append(0, found.positives)
        return false_alarms / false_alarms[-1], hits / hits[-1], found.auroc()

    def precision_recall(found: Ranking) -> tuple[NDArray[Any], NDArray[Any], float | None]:
        all_found = found.positives + found.negatives
        return found.positives / found.positives[-1], found.positives / all_found, found.average_precision()

    return [
        _class_curves(measured, ranked, "roc", roc, ("false positive rate", "true positive rate"), "AUROC"),
        _class_curves(
            measured, ranked, "precision-recall", precision_recall, ("recall", "precision"), "average precision"
        ),
    ]


def _class_curves(
    measured: Measured,
    ranked: dict[int, Ranking],
    name: str,
    curve: Callable[[Ranking], tuple[NDArray[Any], NDArray[Any], float | None]],
    axis_names: tuple[str, str],
    area: str,
) -> Figure:
    if not ranked:
        return Figure(name, _TITLES[name], why_none="the held-out images hold one class only")
    rows: list[list[Cell]] = []
    curves = {}
    for k, found in ranked.items():
        across, up, value = curve(found)
        places = thinned(len(across))
        curves[k] = (across[places], up[places], value)
        rows += [[_class(measured, k), float(across[place]), float(up[place])] for place in places]
    legend = {k: f"{_class(measured, k)}: {value:.3f}" for k, (_, _, value) in curves.items() if value is not None}

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        if name == "roc":
            axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
        for index, (k, (across, up, _)) in enumerate(curves.items()):
            axes.plot(across, up, label=legend[k], **{**line_style(index), "marker": ""})  # type: ignore[arg-type]
        axes.set(
            xlabel=f"{axis_names[0]} (share)", ylabel=f"{axis_names[1]} (share)", xlim=(-0.01, 1.01), ylim=(-0.01, 1.02)
        )
        legend_below(sheet, axes)

    caption = f"Each class against the rest; beside its name: {area}; {_what(measured)}."
    alt = f"{_TITLES[name]}. {area}: {', '.join(legend.values())}."
    table = Table(name, f"{caption[:-1]}; at most 101 points of each curve", ("class", *axis_names), rows)
    return Figure(name, _TITLES[name], caption, alt, table, *picture(draw, height=HEIGHT + 0.2 * (len(curves) // 3)))


def _referral(measured: Measured, right: NDArray[np.bool_]) -> list[Figure]:
    """The same counts twice: what is wrong among those kept, and what is right when so many are referred."""
    kept, kept_right = left_by_referral(ranking(measured.uncertainty, ~right))
    kept, kept_right = kept[:-1], kept_right[:-1]  # where nothing is kept, nothing is right or wrong
    places = list(thinned(len(kept)))
    coverage, accuracy = (kept / kept[0])[places], (kept_right / kept)[places]
    doubt = f"u: {measured.uncertainty_is}"
    figures = []
    for name, across, up, axis_names, goals in (
        ("risk-coverage", coverage, 1 - accuracy, ("coverage", "risk"), ()),
        ("referral", 1 - coverage, accuracy, ("referred", "right among the others"), REFERRAL_GOALS),
    ):

        def draw(sheet: Sheet, across: Any = across, up: Any = up, names: Any = axis_names, goals: Any = goals) -> None:
            axes = sheet.subplots()
            for goal in goals:
                axes.axhline(goal / 100, color=SOFT, linestyle=":", linewidth=1)
                axes.annotate(
                    f"{goal} %",
                    (1, goal / 100),
                    xycoords=("axes fraction", "data"),
                    size=8,
                    color=SOFT,
                    ha="right",
                    va="bottom",
                )
            axes.plot(
                across,
                up,
                color=BLUE,
                drawstyle="steps-post" if len(across) < 40 else "default",
                marker="o" if len(across) < 3 else "",
            )
            axes.set(xlabel=f"{names[0]} (share of answers)", ylabel=f"{names[1]} (share)", xlim=(-0.01, 1.01))

        caption = (
            "Share of wrong answers among those kept, when only the most certain are kept"
            if name == "risk-coverage"
            else "Share of right answers among the others, when the most uncertain are referred to a person"
        )
        caption = f"{caption}; {doubt}; {_what(measured)}."
        rows = [[float(first), float(second)] for first, second in zip(across, up, strict=True)]
        table = Table(name, f"{caption[:-1]}; at most 101 points", axis_names, rows)
        alt = f"{_TITLES[name]}: {axis_names[1]} is {up[0]:.3f} with all answers and {up[len(up) // 2]:.3f} where {axis_names[0]} is {across[len(up) // 2]:.2f}."
        figures.append(Figure(name, _TITLES[name], caption, alt, table, *picture(draw)))
    return figures


def _reliability(measured: Measured, right: NDArray[np.bool_]) -> Figure:
    confidence = measured.probabilities.max(axis=1)
    of_bin = calibration_bins(confidence)
    rows: list[list[Cell]] = []
    for place in np.unique(of_bin):
        inside = of_bin == place
        rows.append(
            [float(place / CALIBRATION_BINS), float((place + 1) / CALIBRATION_BINS), int(inside.sum()),
             float(confidence[inside].mean()), float(right[inside].mean())]
        )  # fmt: skip
    error = calibration_error(confidence, right)
    sure, true, sizes = (np.array([row[index] for row in rows], dtype=np.float64) for index in (3, 4, 2))

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
        axes.vlines(sure, np.minimum(sure, true), np.maximum(sure, true), color=ORANGE, linewidth=2, label="gap")
        axes.plot(sure, true, color=BLUE, linewidth=1)
        axes.scatter(
            sure, true, s=12 + 160 * sizes / sizes.max(), color=BLUE, label="answers of a bin; area: how many", zorder=3
        )
        axes.set(
            xlabel="confidence (probability of the answer)", ylabel="right (share)", xlim=(0, 1.02), ylim=(-0.02, 1.04)
        )
        legend_below(sheet, axes)

    caption = f"On the dotted line the model is as sure as it is right. Calibration error {error:.3f} over {CALIBRATION_BINS} bins; {_what(measured)}."
    table = Table(
        "reliability",
        "Bins of confidence that hold answers",
        ("from", "to", "answers", "mean confidence", "right"),
        rows,
    )
    return Figure(
        "reliability", _TITLES["reliability"], caption, f"Reliability diagram. {caption}", table, *picture(draw)
    )


def _uncertainty(measured: Measured, right: NDArray[np.bool_]) -> Figure:
    edges = np.linspace(0, 1, _HISTOGRAM_BINS + 1)
    counts = {
        which: np.histogram(measured.uncertainty[chosen], edges)[0]
        for which, chosen in (("right", right), ("wrong", ~right))
    }
    totals = {which: int(of_bins.sum()) for which, of_bins in counts.items()}
    rows = [
        [float(edges[place]), float(edges[place + 1]), int(counts["right"][place]), int(counts["wrong"][place])]
        for place in range(_HISTOGRAM_BINS)
    ]

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        for which, colour, hatch in (("right", BLUE, ""), ("wrong", ORANGE, "///")):
            if totals[which]:
                shares = counts[which] / totals[which]
                axes.stairs(
                    shares,
                    edges,
                    fill=True,
                    color=colour,
                    alpha=0.35,
                    hatch=hatch,
                    label=f"{which} ({totals[which]:,})",
                )
                axes.stairs(shares, edges, color=colour, linewidth=1.6)
        axes.set(xlabel="u (0: certain, 1: knows nothing)", ylabel="share of these answers", xlim=(0, 1))
        legend_below(sheet, axes)

    doubt = ranking(measured.uncertainty, ~right).auroc()
    separates = "undefined, for all are right or all are wrong" if doubt is None else f"{doubt:.3f}"
    caption = f"u is {measured.uncertainty_is}; AUROC of u for wrong answers: {separates}; {_what(measured)}."
    table = Table("uncertainty", "Answers by u", ("u from", "u to", "right", "wrong"), rows)
    return Figure("uncertainty", _TITLES["uncertainty"], caption, f"Histograms of u. {caption}", table, *picture(draw))


def _examples(measured: Measured) -> Figure:
    examples = measured.examples
    if not examples:
        why = (
            "part of the model stays at the sites, so the aggregator has no model that could segment an image"
            if measured.about_pixels
            else "the task grades images and segments none"
        )
        return Figure("examples", _TITLES["examples"], why_none=why, is_wide=True)
    rows: list[list[Cell]] = [
        [each.number, each.dice, float((each.predicted != each.truth).mean()), float(each.uncertainty.mean())]
        for each in examples
    ]

    def draw(sheet: Sheet) -> None:
        grid = sheet.subplots(len(examples), 4, squeeze=False)
        shown = None
        for row, each in zip(grid, examples, strict=True):
            for axes in row:
                axes.set(xticks=[], yticks=[])
                axes.grid(visible=False)
                for spine in axes.spines.values():
                    spine.set_visible(False)
            row[0].imshow(each.image, cmap="gray")
            row[0].set_ylabel(f"image {each.number}\nDice {each.dice:.3f}")
            row[1].imshow(each.truth > 0, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            kinds = (each.truth > 0) + 2 * (each.predicted > 0)  # 0 neither, 1 missed, 2 too much, 3 found
            row[2].imshow(
                kinds,
                cmap=ListedColormap(["#000000", ORANGE, "#56B4E9", "#ffffff"]),
                vmin=0,
                vmax=3,
                interpolation="nearest",
            )
            shown = row[3].imshow(each.uncertainty, cmap="cividis", vmin=0, vmax=1)
        for axes, title in zip(grid[0], ("image", "truth", "answer", "u"), strict=True):
            axes.set_title(title, size=10)
        if shown is not None:
            sheet.colorbar(shown, ax=list(grid[:, 3]), shrink=0.8, label="u (0: certain, 1: knows nothing)")
        marks = [
            Patch(facecolor=colour, edgecolor=SOFT, label=what)
            for what, colour in (
                ("found", "#ffffff"),
                ("missed", ORANGE),
                ("too much", "#56B4E9"),
                ("rightly left out", "#000000"),
            )
        ]
        sheet.legend(handles=marks, loc="outside lower center", ncols=4)

    caption = (
        "Of the aggregator's own held-out images those with the lowest, the median and the highest Dice; images are numbered by "
        f"their names. u is {measured.uncertainty_is}. No site's image is here: none ever leaves a site."
    )
    table = Table("examples", "The images shown", ("image", "Dice", "wrong pixels (share)", "mean u"), rows)
    alt = "; ".join(f"image {each.number}: Dice {each.dice:.3f}" for each in examples)
    svg, png = picture(draw, width=9.2, height=0.8 + 2.1 * len(examples))
    return Figure(
        "examples",
        _TITLES["examples"],
        caption,
        f"Image, truth, answer and u side by side. {alt}.",
        table,
        svg,
        png,
        is_wide=True,
    )


def _what(measured: Measured) -> str:
    number = len(measured.truth)
    if measured.about_pixels:
        return f"{number:,} pixels drawn from {measured.images} images"
    return f"{number:,} images"


def _class(measured: Measured, k: int) -> str:
    return label(measured.classes[k], 14)
