"""Figures of what the sites told and of what the aggregator decided: all from the report's document."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from aggregator.report.document import RECEIVED_SPLITS, Document
from aggregator.report.figures import (
    BLUE,
    COLOURS,
    GREEN,
    HEIGHT,
    MARKERS,
    ORANGE,
    SAND,
    SOFT,
    Figure,
    label,
    legend_below,
    lines,
    picture,
)
from aggregator.report.tables import NOT_ASKED, Cell, Table, Untold, by_aggregate, number, of_rounds, told
from shared.learning.metrics import DROPPED_PERCENTS, OF_CLASS

_AGGREGATE = "aggregate of round (0: the first model)"


def curves(document: Document) -> list[Figure]:
    """The main score and the loss of each aggregate, on the sites' validation and test images."""
    score = document["score"]
    figures = []
    for name, title, limits in ((score, score, (0.0, 1.0)), ("loss", "loss", None)):
        for split in RECEIVED_SPLITS:
            table = by_aggregate(document, split, name, title)
            heading = f"{title.removesuffix('_mean')} on {split} images"
            caption = f"Each site's {split} images; black: the mean over the sites that told it. A gap is a number that was not told."
            up = f"{title.removesuffix('_mean')} (share, 1 is best)" if limits else "loss (nats)"
            figures.append(
                lines(table.name, heading, caption, table, across=_AGGREGATE, up=up, mean=True, limits=limits)
            )
    return figures


def of_classes(document: Document, aggregate: int, split: str) -> Figure:
    """The share of each class that one aggregate gets right at each site."""
    name, title = f"classes-{split}", f"Right answers of each grade, {split} images"
    found = _of_aggregate(document, aggregate)
    count = max(
        (sum(key.startswith(OF_CLASS) for key in row[split]["scores"]) for row in found.values() if row[split]),
        default=0,
    )
    if not count:
        return Figure(name, title, why_none="no site has told it for this aggregate")
    sites = [site for site in document["configuration"]["sites"] if site in found]
    rows: list[list[Cell]] = []
    for site in sites:
        row = found[site][split]
        grades = [f"{OF_CLASS}{k}" for k in range(count)]
        cells = [
            told(found[site], split, key) if row is None or key in row["scores"] else Untold("no such grade")
            for key in grades
        ]
        rows.append([site, *cells])
    caption = f"Share of the images of each grade that the aggregate of round {aggregate}, with the site's own head, grades right"
    table = Table(name, caption, ("site", *(f"grade {k}" for k in range(count))), rows)
    values = np.array([[number(cell) for cell in row[1:]] for row in rows])

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        axes.set_facecolor("#f0f1f3")
        axes.grid(visible=False)
        axes.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=1, aspect="auto")
        write_cells(axes, rows, values)
        axes.set(
            xlabel="grade", xticks=range(count), yticks=range(len(sites)), yticklabels=[label(site) for site in sites]
        )

    svg, png = picture(draw, height=1.1 + 0.38 * len(sites))
    caption += "; grey: fewer images of that grade than a site lets anything be told of, or no such grade."
    return Figure(name, title, caption, f"Shares by site and grade: {caption}", table, svg, png)


def write_cells(
    axes: Axes, rows: Sequence[Sequence[Cell]], values: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> None:
    """Each cell's number, or why there is none, in the colour that can be read on it."""
    for (row, column), value in np.ndenumerate(values):
        cell = rows[row][column + 1]
        text = f"{value:.2f}" if value == value else cell.why if isinstance(cell, Untold) else ""
        size = 10 if value == value else 7
        axes.text(column, row, text, ha="center", va="center", size=size, color="white" if value > 0.55 else "#1b1f24")


def selective(document: Document, aggregate: int, split: str) -> Figure:
    """Each site's own accuracy without its most uncertain answers."""
    found = _of_aggregate(document, aggregate)
    sites = document["configuration"]["sites"]
    ending = "_mean" if document["score"].endswith("_mean") else ""
    names = {0: f"accuracy{ending}"} | {
        percent: f"selective_accuracy_{percent}{ending}" for percent in DROPPED_PERCENTS
    }
    rows = [[percent, *(told(found.get(site), split, name) for site in sites)] for percent, name in names.items()]
    caption = "Share of right answers among the others when the most uncertain are left to a person; by each site's own model and u"
    table = Table(f"referral-sites-{split}", caption, ("% referred", *sites), rows)
    return lines(
        table.name,
        f"Referral at the sites, {split} images",
        f"{caption}. A line that rises says that u finds what is wrong.",
        table,
        across="most uncertain referred (%)",
        up="right among the others (share)",
    )


def doubts(document: Document, aggregate: int, split: str) -> Figure:
    """Each site's mean uncertainty of right and of wrong answers."""
    name, title = f"uncertainty-sites-{split}", f"Mean u at the sites, {split} images"
    found = _of_aggregate(document, aggregate)
    ending = "_mean" if document["score"].endswith("_mean") else ""
    sites = [site for site in document["configuration"]["sites"] if site in found]
    rows: list[list[Cell]] = [
        [site, *(told(found[site], split, f"uncertainty_{which}{ending}") for which in ("right", "wrong"))]
        for site in sites
    ]
    if not any(number(cell) == number(cell) for row in rows for cell in row[1:]):
        return Figure(name, title, why_none="no site has told it for this aggregate")
    caption = "Mean uncertainty of right and of wrong answers; the further apart, the more u says"
    table = Table(name, caption, ("site", "right", "wrong"), rows)

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        for place, row in enumerate(rows):
            axes.plot([number(row[1]), number(row[2])], [place, place], color=SOFT, linewidth=1)
        for index, (which, colour, marker) in enumerate((("right", BLUE, "o"), ("wrong", ORANGE, "X")), 1):
            axes.plot(
                [number(row[index]) for row in rows], range(len(rows)), marker, color=colour, label=which, markersize=8
            )
        axes.set(xlabel="mean u (0: certain, 1: knows nothing)", yticks=range(len(sites)), xlim=(0, 1))
        axes.set_yticks(range(len(sites)), [label(site) for site in sites])
        axes.set_ylim(len(sites) - 0.5, -0.5)
        legend_below(sheet, axes)

    svg, png = picture(draw, height=1.5 + 0.35 * len(sites))
    alt = "; ".join(f"{row[0]}: right {_said(row[1])}, wrong {_said(row[2])}" for row in rows)
    return Figure(name, title, f"{caption}.", f"Mean u by site. {alt}.", table, svg, png)


# --- what the aggregator decided ---------------------------------------------------------------------------


_STATUS = {"accepted": (BLUE, "o"), "omitted": (ORANGE, "X"), "validated": (GREEN, "s"), "late": (SAND, "v")}


def tolerance(document: Document) -> Figure:
    """The score of each site's model on the held-out set, round by round, beside the tolerance."""
    name, title = "tolerance", "Tolerance check"
    table = of_rounds(
        document, "score", "Score of each site's model on the aggregator's held-out images; a word: there is none"
    )
    table = Table(name, table.caption, table.header, table.rows)
    if not table.rows:
        return Figure(name, title, why_none="no model was scored yet")
    sites = document["configuration"]["sites"]
    level = document["configuration"]["tolerance"]

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        axes.axhline(level, color="#000000", linestyle="--", linewidth=1.2)
        shown = set()
        for of_round in document["rounds"]:
            for site, found in of_round["sites"].items():
                if found["score"] is None:
                    continue
                colour, _ = _STATUS.get(found["status"], (SOFT, "."))
                shown.add(found["status"])
                kind = "X" if found["status"] == "omitted" else MARKERS[sites.index(site) % 5]
                fill = colour if found["status"] != "omitted" else ORANGE
                shift = (sites.index(site) - (len(sites) - 1) / 2) * min(0.08, 0.5 / len(sites))
                axes.plot(of_round["round"] + shift, found["score"], kind, color=fill, markersize=6)
        marks = [
            Line2D(
                [],
                [],
                color=_STATUS.get(each, (SOFT, "."))[0],
                marker="X" if each == "omitted" else "o",
                linestyle="",
                label=each,
            )
            for each in sorted(shown)
        ]
        marks.append(Line2D([], [], color="#000000", linestyle="--", linewidth=1.2, label="tolerance"))
        axes.set(xlabel="round", ylabel="score on held-out images (share)", ylim=(0, 1.02))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        sheet.legend(handles=marks, loc="outside lower center", ncols=3)

    svg, png = picture(draw)
    left_out = sum(found["status"] == "omitted" for each in document["rounds"] for found in each["sites"].values())
    caption = "Each mark is one site's model in one round, sites side by side. A model enters the mean only above the dashed line."
    alt = f"{len(table.rows)} rounds of scores beside the tolerance of {level}; {left_out} answers were omitted."
    return Figure(name, title, caption, alt, table, svg, png)


def thetas_and_weights(document: Document) -> list[Figure]:
    """θ and each site's share of the mean, round by round."""
    figures = []
    for name, title, up, caption, why in (
        ("theta", "θ", "θ (uncertainty)", "From which uncertainty on a site's predictions are best held to be wrong",
         f"the method {document['configuration']['method']} asks no site for its θ, or no round is closed yet"),
        ("weight", "Weights", "weight (share of the mean)", "Each site's share of the round's mean", "no round is closed yet"),
    ):  # fmt: skip
        table = of_rounds(document, name, f"{caption}; a word: there is none")
        figures.append(
            lines(
                name,
                title,
                f"{caption}. A gap: the site had none in that round.",
                table,
                across="round",
                up=up,
                why_none=why,
            )
        )
    return figures


# --- when --------------------------------------------------------------------------------------------------


def timeline(document: Document) -> Figure:
    """When each site was asked, when it answered, and when the round was settled."""
    name, title = "timeline", "Time line"
    table = _times(document)
    asked = [when for each in document["rounds"] for found in each["sites"].values() if (when := _time(found["asked"]))]
    if not asked:
        return Figure(name, title, why_none="no site was asked yet", is_wide=True)
    sites = document["configuration"]["sites"]
    first = min(asked)
    last = max(when for each in document["rounds"] for found in each["sites"].values() for what in ("asked", "settled", "answered")
               if (when := _time(found[what])))  # fmt: skip
    unit, seconds = _unit(last - first)

    def draw(sheet: Sheet) -> None:
        axes = sheet.subplots()
        for each in document["rounds"]:
            began = [when for found in each["sites"].values() if (when := _time(found["asked"]))]
            if began:
                axes.axvline((min(began) - first) / seconds, color="#c3c9d0", linewidth=0.8, zorder=0)
                if len(document["rounds"]) <= 40:
                    axes.annotate(
                        str(each["round"]), ((min(began) - first) / seconds, 1.0), xycoords=("data", "axes fraction"),
                        xytext=(2, 2), textcoords="offset points", size=8, color=SOFT,
                    )  # fmt: skip
            for site, found in each["sites"].items():
                _bars(axes, sites.index(site), found, first, last, seconds)
        axes.set(xlabel=f"since the first round was sealed ({unit})")
        axes.set_yticks(range(len(sites)), [label(site) for site in sites])
        axes.set_ylim(len(sites) - 0.5, -0.5)
        axes.grid(visible=False)
        marks = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=what)
            for what, colour, hatch in _KINDS.values()
        ]
        sheet.legend(handles=marks, loc="outside lower center", ncols=2)

    svg, png = picture(draw, width=9.2, height=1.9 + 0.34 * len(sites))
    caption = (
        "Grey numbers: where a round begins. From asked to answered a site receives, scores, trains and sends; training time by "
        "itself is not told by any site. Answered is by the site's clock, all else by the aggregator's."
    )
    alt = f"{len(document['rounds'])} rounds of {len(sites)} sites over {(last - first) / seconds:.1f} {unit}; the table has each time."
    return Figure(name, title, caption, alt, table, svg, png, is_wide=True)


_KINDS = {
    "works": ("asked → answered", BLUE, ""),
    "waits": ("answered → settled: waits for the others", SAND, "///"),
    "open": ("asked, no answer so far", "#b9c0c8", "..."),
    "clocks": ("asked → settled, its clock disagrees", ORANGE, "xx"),
}


def _bars(axes: Axes, place: int, found: Document, first: float, last: float, seconds: float) -> None:
    asked, answered, settled = (_time(found[what]) for what in ("asked", "answered", "settled"))
    if asked is None:
        return
    end = settled or last
    if answered is None:
        parts = [(asked, end, "open")]
    elif not asked <= answered <= end:
        parts = [(asked, end, "clocks")]
    else:
        parts = [(asked, answered, "works"), (answered, end, "waits")]
    for start, stop, kind in parts:
        _, colour, hatch = _KINDS[kind]
        left, width = (start - first) / seconds, (stop - start) / seconds
        axes.barh(place, width, left=left, height=0.62, color=colour, hatch=hatch, edgecolor="white", linewidth=0.4)


def _times(document: Document) -> Table:
    """Every time and every byte, and for whom a site waited."""
    rows: list[list[Cell]] = []
    for each in document["rounds"]:
        answers = {site: when for site, found in each["sites"].items() if (when := _time(found["answered"]))}
        latest = max(answers.values(), default=None)
        last_to_answer = ", ".join(site for site, when in answers.items() if when == latest)
        silent = ", ".join(site for site in each["sites"] if site not in answers)
        for site, found in each["sites"].items():
            asked, answered, settled = (_time(found[what]) for what in ("asked", "answered", "settled"))
            took = answered - asked if answered and asked else None
            waited = settled - answered if settled and answered else None
            awaited = silent or last_to_answer
            rows.append(
                [each["round"], site, *(found[what] for what in ("asked", "answered", "settled")), took, waited,
                 None if awaited == site else awaited or None, found["bytes"]["down"], found["bytes"]["up"]]
            )  # fmt: skip
    header = (
        "round", "site", "asked", "answered", "settled", "seconds to answer", "seconds to be settled", "waited for",
        "bytes to it", "bytes from it",
    )  # fmt: skip
    return Table("timeline", "Each site in each round: when, how long, how much", header, rows)


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None


def _unit(seconds: float) -> tuple[str, float]:
    units = (("seconds", 1.0), ("minutes", 60.0), ("hours", 3600.0), ("days", 86400.0))
    return next((here for here, longer in pairwise(units) if seconds < 3 * longer[1]), units[-1])


def _of_aggregate(document: Document, aggregate: int) -> dict[str, Document]:
    """What each site told of an aggregate."""
    return next(({**each["sites"]} for each in document["rounds"] if each["received_aggregate"] == aggregate), {})


def _said(cell: Cell) -> str:
    return cell.why if isinstance(cell, Untold) else f"{number(cell):.2f}"
