"""Figures of what one aggregate says of the aggregator's own held-out images."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from aggregator.report.examples import TITLE, examples
from aggregator.report.figures import BLUE, HEIGHT, ORANGE, SOFT, Figure, label, line_style, panel, shares, thinned
from aggregator.report.heldout import Measured
from aggregator.report.tables import Cell, Missing, Table, number
from shared.learning import metrics
from shared.learning.metrics import Ranking, ranking
from shared.plurals import pluralize

_NONE_HERE = Missing("none")
"""No held-out image is of this class."""

_HISTOGRAM_BINS = 20

Numbers = NDArray[np.float64]
Curve = tuple[Numbers, Numbers, float | None]
"""Of one class: across, up, and the area below."""

TITLES = {
    "confusion": "Confusion matrix",
    "roc": "ROC curves",
    "precision-recall": "Precision and recall",
    "risk-coverage": "Risk and coverage",
    "referral": "Referral",
    "reliability": "Reliability",
    "uncertainty": "uncertainty of correct and wrong predictions",
    "examples": TITLE,
}


def heldout_figures(measured: Measured | str) -> list[Figure]:
    """Return all figures of the held-out images.

    Args:
        measured: or why nothing could be measured.
    """
    if isinstance(measured, str):
        return [Figure(name, title, why_none=measured) for name, title in TITLES.items()]
    right = measured.predicted == measured.truth
    return [
        _confusion(measured),
        *_separation(measured),
        *_referral(measured, right),
        _reliability(measured, right),
        _uncertainty(measured, right),
        examples(measured),
    ]


def _confusion(measured: Measured) -> Figure:
    classes = range(len(measured.classes))
    counts = metrics.confusion_matrix(measured.truth, measured.predicted, len(classes))
    totals = counts.sum(axis=1)
    names = measured.classes
    table = Table(
        "confusion",
        "Counts: truth in rows, answers in columns",
        ("truth", *names),
        [[names[k], *map(int, counts[k])] for k in classes],
    )
    of_truth = [[names[k], *(float(n / totals[k]) if totals[k] else _NONE_HERE for n in counts[k])] for k in classes]
    said = "; ".join(f"{names[k]}: {counts[k, k] / totals[k]:.2f} right of {totals[k]}" for k in classes if totals[k])
    caption = f"Of each true class, the share that was answered as each class; {_what(measured)}."
    figure = Figure("confusion", TITLES["confusion"], caption, f"Confusion matrix. {said}.", table)
    shown = Table("confusion", "", table.header, of_truth)
    return shares(figure, shown, height=4.0, xlabel="answer", ylabel="truth")


def _separation(measured: Measured) -> list[Figure]:
    """Return ROC and precision–recall, of each class against the rest; of two classes of the second alone."""
    classes = range(1, 2) if len(measured.classes) == 2 else range(len(measured.classes))
    ranked = {
        k: ranking(measured.probabilities[:, k], measured.truth == k)
        for k in classes
        if 0 < np.count_nonzero(measured.truth == k) < len(measured.truth)
    }
    rates = {
        k: (_from_none(found.negatives), _from_none(found.positives), found.auroc()) for k, found in ranked.items()
    }
    recalls = {k: (*_recalls(found), found.average_precision()) for k, found in ranked.items()}
    return [
        _of_classes(measured, rates, "roc", ("false positive rate", "true positive rate", "AUROC")),
        _of_classes(measured, recalls, "precision-recall", ("recall", "precision", "average precision")),
    ]


def _from_none(counts: NDArray[np.int64]) -> Numbers:
    """Return the counts as shares of the last, starting from 0."""
    shares_of_last: Numbers = np.append(0, counts) / counts[-1]
    return shares_of_last


def _recalls(found: Ranking) -> tuple[Numbers, Numbers]:
    """Return recall and precision, from the usual precision 1 where nothing is answered to the first that is found."""
    has_found = found.positives > 0
    positives, negatives = found.positives[has_found], found.negatives[has_found]
    return np.append(0.0, positives / positives[-1]), np.append(1.0, positives / (positives + negatives))


def _of_classes(measured: Measured, curves: dict[int, Curve], name: str, said: tuple[str, str, str]) -> Figure:
    if not curves:
        return Figure(name, TITLES[name], why_none="the held-out images hold one class only")
    across, up, area = said
    rows: list[list[Cell]] = []
    for k, (first, second, _) in curves.items():
        rows += [[measured.classes[k], float(first[n]), float(second[n])] for n in thinned(len(first))]
    legend = {k: f"{label(measured.classes[k])}: {value:.3f}" for k, (*_, value) in curves.items() if value is not None}

    def draw(axes: Axes) -> None:
        if name == "roc":
            axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
        for index, (k, (first, second, _)) in enumerate(curves.items()):
            places = thinned(len(first))
            axes.plot(first[places], second[places], label=legend.get(k), **{**line_style(index), "marker": ""})

    begins = "; it begins at precision 1, where nothing is answered" if name == "precision-recall" else ""
    caption = f"Each class against the rest; beside its name: {area}{begins}; {_what(measured)}"
    table = Table(name, f"{caption}; at most 101 points of each curve", ("class", across, up), rows)
    alt = f"{TITLES[name]}. {area}: {', '.join(legend.values())}."
    settings = {"xlabel": f"{across} (share)", "ylabel": f"{up} (share)", "xlim": (-0.01, 1.01), "ylim": (-0.01, 1.02)}
    figure = Figure(name, TITLES[name], f"{caption}.", alt, table)
    return panel(figure, draw, settings, height=HEIGHT + 0.2 * (len(curves) // 3))


def _referral(measured: Measured, right: NDArray[np.bool_]) -> list[Figure]:
    """Return what is wrong among those kept, and what is right when so many are referred."""
    kept, kept_right = metrics.left_by_referral(ranking(measured.uncertainty, ~right))
    places = thinned(len(kept) - 1)  # without the last, where nothing is kept
    coverage, accuracy = kept[places] / kept[0], kept_right[places] / kept[places]
    risk = "Share of wrong answers among those kept, when only the most certain are kept"
    help_of = "Share of right answers among the others, when the most uncertain are referred to a person"
    return [
        _by_uncertainty(measured, "risk-coverage", risk, ("coverage", "risk"), (coverage, 1 - accuracy)),
        _by_uncertainty(
            measured, "referral", help_of, ("referred", "accuracy of the others"), (1 - coverage, accuracy)
        ),
    ]


def _by_uncertainty(
    measured: Measured, name: str, what: str, said: tuple[str, str], curve: tuple[Numbers, Numbers]
) -> Figure:
    across, up = curve

    def draw(axes: Axes) -> None:
        axes.plot(across, up, color=BLUE, marker="o" if len(across) < 3 else "")
        for goal in metrics.REFERRAL_GOALS if name == "referral" else ():
            axes.axhline(goal / 100, color=SOFT, linestyle=":", linewidth=1)
            place = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
            axes.annotate(f"{goal} %", (1, goal / 100), size=8, color=SOFT, **place)  # type: ignore[arg-type]

    caption = f"{what}; u is {measured.uncertainty_is}; {_what(measured)}"
    half = len(up) // 2
    alt = f"{said[1]} is {up[0]:.3f} with all answers, {up[half]:.3f} where {said[0]} is {across[half]:.2f}."
    rows = [[float(first), float(second)] for first, second in zip(across, up, strict=True)]
    table = Table(name, f"{caption}; at most 101 points", said, rows)
    settings = {"xlabel": f"{said[0]} (share of answers)", "ylabel": f"{said[1]} (share)", "xlim": (-0.01, 1.01)}
    return panel(Figure(name, TITLES[name], f"{caption}.", f"{TITLES[name]}: {alt}", table), draw, settings)


def _reliability(measured: Measured, right: NDArray[np.bool_]) -> Figure:
    confidence = measured.probabilities.max(axis=1)
    of_bin = metrics.calibration_bins(confidence)
    rows: list[list[Cell]] = []
    for place in np.unique(of_bin):
        inside = of_bin == place
        ends = [float(place / metrics.CALIBRATION_BINS), float((place + 1) / metrics.CALIBRATION_BINS)]
        rows.append([*ends, int(inside.sum()), float(confidence[inside].mean()), float(right[inside].mean())])
    sizes, sure, true = (np.array([number(row[index]) for row in rows]) for index in (2, 3, 4))

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
        axes.vlines(sure, np.minimum(sure, true), np.maximum(sure, true), color=ORANGE, linewidth=2, label="gap")
        axes.plot(sure, true, color=BLUE, linewidth=1)
        areas = 12 + 160 * sizes / sizes.max()
        axes.scatter(sure, true, s=areas, color=BLUE, label="answers of a bin; area: how many", zorder=3)

    error = metrics.calibration_error(confidence, right)
    said = f"Calibration error {error:.3f} over {metrics.CALIBRATION_BINS} bins; {_what(measured)}."
    caption = f"On the dotted line the answers are as sure as they are right. {said}"
    header = ("from", "to", "answers", "mean confidence", "right")
    table = Table("reliability", "Bins of confidence that hold answers", header, rows)
    figure = Figure("reliability", TITLES["reliability"], caption, f"Reliability diagram. {said}", table)
    labels = {"xlabel": "confidence (probability of the answer)", "ylabel": "right (share)"}
    return panel(figure, draw, {**labels, "xlim": (0, 1.02), "ylim": (-0.02, 1.04)})


def _uncertainty(measured: Measured, right: NDArray[np.bool_]) -> Figure:
    edges = np.linspace(0, 1, _HISTOGRAM_BINS + 1)
    of_right, of_wrong = (np.histogram(measured.uncertainty[chosen], edges)[0] for chosen in (right, ~right))
    ends = zip(edges[:-1], edges[1:], of_right, of_wrong, strict=True)
    rows = [[float(low), float(high), int(first), int(second)] for low, high, first, second in ends]

    def draw(axes: Axes) -> None:
        for which, counts, colour, hatch in (("right", of_right, BLUE, ""), ("wrong", of_wrong, ORANGE, "///")):
            if total := int(counts.sum()):
                fill = {"fill": True, "alpha": 0.35, "hatch": hatch, "label": f"{which} ({total:,})"}
                axes.stairs(counts / total, edges, color=colour, **fill)  # type: ignore[arg-type]
                axes.stairs(counts / total, edges, color=colour, linewidth=1.6)

    found = ranking(measured.uncertainty, ~right).auroc()
    tells = "undefined, for all are right or all are wrong" if found is None else f"{found:.3f}"
    caption = f"u is {measured.uncertainty_is}. AUROC of u for wrong answers: {tells}; {_what(measured)}."
    table = Table("uncertainty", "Answers by u", ("u from", "u to", "right", "wrong"), rows)
    figure = Figure("uncertainty", TITLES["uncertainty"], caption, f"Histograms of u. {caption}", table)
    settings = {"xlabel": "u (0: certain, 1: knows nothing)", "ylabel": "share of these answers", "xlim": (0, 1)}
    return panel(figure, draw, settings)


def _what(measured: Measured) -> str:
    if not measured.about_pixels:
        return pluralize(len(measured.truth), "image")
    return f"{pluralize(len(measured.truth), 'pixel')} drawn from {pluralize(measured.images, 'image')}"
