"""Figures of what the sites reported and of what the aggregator decided: all from the run's view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from aggregator.report.figures import BLUE, GREEN, ORANGE, SOFT, Figure, label, lines, panel, shares
from aggregator.report.tables import Cell, Missing, Table, by_aggregate, is_number, number, of_rounds, score_title, told
from aggregator.run_view import RunView, is_of_class
from shared.exchange.tables import RECEIVED_SPLITS, Split
from shared.learning.metrics import DROPPED_PERCENTS, OF_CLASS
from shared.plurals import pluralize

_STATUS = {"accepted": (BLUE, "o"), "omitted": (ORANGE, "X"), "validated": (GREEN, "s")}
"""How a model is marked of which this became."""


def curves(view: RunView) -> list[Figure]:
    """Return the loss of each aggregate and its main score, if known, on the sites' validation and test images."""
    main = score_title(view.score)
    figures = []
    for name, shown, up, limits in (
        *([(view.score, main, f"{main} (1 is best)", (0.0, 1.0))] if view.score else []),
        ("loss", "loss", "loss (nats)", (None, None)),
    ):
        for split in RECEIVED_SPLITS:
            table = by_aggregate(view, split, name, shown)
            reported_by = {tuple(is_number(cell) for cell in row[1:-1]) for row in table.rows if is_number(row[-1])}
            differ = ", not the same ones for each aggregate" if len(reported_by) > 1 else ""
            over = f"the mean over the sites that reported it{differ}"
            caption = f"Each site's {split} images; black: {over}. Gap: not reported."
            title, along = f"{shown} on {split} images", "aggregate of round (0: the first model)"
            figures.append(lines(title, caption, table, has_mean=True, limits=limits, xlabel=along, ylabel=up))
    return figures


def of_classes(view: RunView, aggregate: int, split: Split) -> Figure:
    """Return the share of each class that one aggregate gets right at each site."""
    name, title = f"classes-{split}", f"Right answers of each grade, {split} images"
    found = view.receivers(aggregate)
    reported = {key for part in found.values() if (row := part.row(split)) for key in row.scores}
    grades = sorted(filter(is_of_class, reported), key=_grade)
    if not grades:
        return Figure(name, title, why_none="no site has reported it for this aggregate")
    caption = (
        f"Share of each grade's images that the aggregate of round {aggregate}, with a site's own parts, gets right"
    )
    rows = [[site, *(told(found[site], split, key) for key in grades)] for site in found]
    table = Table(name, caption, ("site", *(str(_grade(key)) for key in grades)), rows)
    missing = "Not reported: fewer images than the site's minimum count. Not scored: it has no such grade."
    alt = f"Shares by site and grade; {_lowest(rows, table.header)}"
    figure = Figure(name, title, f"{caption}. {missing}", alt, table)
    return shares(figure, table, height=1.2 + 0.4 * len(rows), xlabel="grade")


def _grade(name: str) -> int:
    return int(name.removeprefix(OF_CLASS))


def _lowest(rows: Sequence[Sequence[Cell]], header: Sequence[str]) -> str:
    """Return for each site the grade that it gets wrong most often."""
    said = []
    for site, *cells in rows:
        known = [(cell, grade) for cell, grade in zip(cells, header[1:], strict=True) if isinstance(cell, float)]
        if known:
            share, grade = min(known)
            said.append(f"{site} lowest at grade {grade}: {share:.2f}")
    return f"{'; '.join(said) or 'none reported'}."


def selective(view: RunView, aggregate: int, split: Split) -> Figure:
    """Return each site's own accuracy without its most uncertain answers."""
    found, sites, ending = view.receivers(aggregate), view.configuration.sites, _ending(view)
    names = {0: f"accuracy{ending}"} | {at: f"selective_accuracy_{at}{ending}" for at in DROPPED_PERCENTS}
    rows = [[percent, *(told(found.get(site), split, name) for site in sites)] for percent, name in names.items()]
    caption = "Share of right answers among the others, when the most uncertain go to a person; by each site's own u"
    return lines(
        f"Referral at the sites, {split} images",
        f"{caption}. Where a line rises, u finds what is wrong.",
        Table(f"referral-sites-{split}", caption, ("% referred", *sites), rows),
        why_none="no site has reported it for this aggregate",
        xlabel="most uncertain referred (%)",
        ylabel="accuracy of the remaining predictions",
    )


def uncertainty_of_predictions(view: RunView, aggregate: int, split: Split) -> Figure:
    """Return each site's mean uncertainty of right and of wrong answers."""
    name, title = f"uncertainty-sites-{split}", f"Mean u at the sites, {split} images"
    found = view.receivers(aggregate)
    keys = [f"uncertainty_{which}{_ending(view)}" for which in ("right", "wrong")]
    rows: list[list[Cell]] = [[site, *(told(found[site], split, key) for key in keys)] for site in found]
    if not any(is_number(cell) for row in rows for cell in row[1:]):
        return Figure(name, title, why_none="no site has reported it for this aggregate")
    caption = "Mean uncertainty of right and of wrong answers; the further apart, the more u says"

    def draw(axes: Axes) -> None:
        for place, row in enumerate(rows):
            axes.plot([number(row[1]), number(row[2])], [place, place], color=SOFT, linewidth=1)
        for index, which, colour, marker in ((1, "right", BLUE, "o"), (2, "wrong", ORANGE, "X")):
            values = [number(row[index]) for row in rows]
            axes.plot(values, range(len(rows)), marker, color=colour, label=which, markersize=8)
        axes.set_yticks(range(len(rows)), [label(str(row[0])) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)

    said = "; ".join(f"{row[0]}: right {_said(row[1])}, wrong {_said(row[2])}" for row in rows)
    table = Table(name, caption, ("site", "right", "wrong"), rows)
    figure = Figure(name, title, f"{caption}.", f"Mean u by site. {said}.", table)
    settings = {"xlabel": "mean u (0: certain, 1: knows nothing)", "xlim": (0, 1)}
    return panel(figure, draw, settings, height=1.5 + 0.35 * len(rows))


# --- what the aggregator decided ---------------------------------------------------------------------------


def tolerance(view: RunView) -> Figure:
    """Return the score of each site's model on the held-out set, round by round, beside the tolerance."""
    name, title = "tolerance", "Tolerance check"
    caption = "Score of each site's model on the aggregator's held-out images; a word: there is none"
    table = of_rounds(view, "score", name, caption)
    if view.configuration.tolerance is None:
        return Figure(name, title, why_none="models are not scored in this run")
    if not table.rows:
        return Figure(name, title, why_none="no model was scored yet")
    sites = view.configuration.sites
    levels = {of_round.round: part.tolerance for of_round, _, part in view.parts() if part.tolerance is not None}
    marks: dict[str, list[tuple[float, float]]] = {}
    for of_round, site, part in view.parts():
        if part.status is not None and part.score is not None:
            aside = (sites.index(site) - (len(sites) - 1) / 2) * min(0.08, 0.5 / len(sites))
            marks.setdefault(part.status, []).append((of_round.round + aside, part.score))

    def draw(axes: Axes) -> None:
        edges = [*levels, max(levels) + 1]
        style: dict[str, Any] = {"baseline": None, "color": "#000000", "linestyle": "--", "linewidth": 1.2}
        axes.stairs([*levels.values()], [edge - 0.5 for edge in edges], label="tolerance", **style)
        for status, places in sorted(marks.items()):
            colour, marker = _STATUS.get(status, (SOFT, "v"))
            axes.plot(*zip(*places, strict=True), marker, color=colour, markersize=6, label=status)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

    shown = "Each mark is one site's model in one round, the sites side by side in their order"
    omitted = len(marks.get("omitted", []))
    level = " to ".join(f"{each:g}" for each in sorted({min(levels.values()), max(levels.values())}))
    rounds = pluralize(len(table.rows), "round")
    alt = f"Scores of {rounds} beside the tolerance of {level}; models left out: {omitted}."
    figure = Figure(name, title, f"{shown}. Only a model above the dashed line enters the mean.", alt, table)
    settings = {"xlabel": "round", "ylabel": "score on held-out images (share)", "ylim": (0, 1.02)}
    return panel(figure, draw, settings)


def thetas_and_weights(view: RunView) -> list[Figure]:
    """Draw θ and each site's share of the mean, round by round."""
    no_theta = f"the method {view.configuration.method} asks for no θ, or no round is closed yet"
    theta = "From which uncertainty on a site's predictions are best held to be wrong"
    weight = "Each site's share of the round's mean"
    figures = []
    for name, title, up, caption, why in (
        ("theta", "θ", "θ (uncertainty)", theta, no_theta),
        ("weight", "Weights", "weight (share)", weight, "no round is closed yet"),
    ):
        table = of_rounds(view, name, name, f"{caption}; a word: there is none")
        caption_below = f"{caption}. A gap: the site had none in that round."
        figures.append(lines(title, caption_below, table, limits=(0, None), why_none=why, xlabel="round", ylabel=up))
    return figures


def _ending(view: RunView) -> str:
    """Return what the names of scores end in: a segmentation's are means over images."""
    return "_mean" if view.score.endswith("_mean") else ""


def _said(cell: Cell) -> str:
    return cell.why if isinstance(cell, Missing) else f"{number(cell):.2f}"
