"""The time line of a report: when each site was asked, when it answered, when the round was settled, and who waited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.patches import Patch

from aggregator.report.figures import BLUE, BROWN, ORANGE, SOFT, Figure, label, picture
from aggregator.report.tables import Cell, Table
from aggregator.run_view import Part, RunView
from shared.plurals import pluralize

_KINDS = {
    "answering": ("asked to answered", BLUE, ""),
    "waiting": ("answered to settled: waits for the others and the aggregator", BROWN, "///"),
    "silent": ("asked, no answer", "#b9c0c8", "..."),
    "late": ("asked to settled; its update came after the round had closed", "#8a939e", "ooo"),
    "clocks": ("asked to settled; its clock disagrees with the aggregator's", ORANGE, "xx"),
}
"""What a bar says, its colour and its hatch."""

_MOST_NUMBERED = 40
"""Of more rounds than this, no number stands above their beginning."""

_MOST_SHAPES = 2000
"""More bars than this become pixels, or the page would be slow to scroll."""

Bars = dict[tuple[str, str], list[tuple[float, float]]]
"""By site and kind: where each bar begins, in seconds since the first round was signed, and how long it is."""


def timeline(view: RunView) -> Figure:
    """Return when each site was asked, when it answered, and when the round was settled."""
    name, title = "timeline", "Time line"
    begun = {each.round: began for each in view.rounds if (began := each.began)}
    if not begun:
        return Figure(name, title, why_none="no site was asked yet", is_wide=True)
    sites, first = view.configuration.sites, min(begun.values())
    patience = 3600 * view.configuration.round_deadline_hours
    span = max(max(_ends(part, patience) for *_, part in view.parts()) - first, 1.0)
    bars: Bars = {}
    for _, site, part in view.parts():
        for kind, start, end in _parts(part, first + span):
            bars.setdefault((site, kind), []).append((start - first, max(end - start, span / 200)))
    unit, seconds = _unit(span)
    beginnings = {number: when - first for number, when in begun.items()}
    svg, png = picture(
        lambda sheet: _draw(sheet, sites, beginnings, bars, _unit(span)), width=9.2, height=1.9 + 0.34 * len(sites)
    )
    caption = (
        "Above: where each round begins. From asked to answered a site receives, scores, trains and sends; no site "
        "tells how long training took by itself. Answered is by the site's clock, all else by the aggregator's."
    )
    what = f"{pluralize(len(begun), 'round')} of {pluralize(len(sites), 'site')}"
    alt = f"{what} over {span / seconds:.1f} {unit}; the table has every time."
    return Figure(name, title, caption, alt, _table(view), svg, png, is_wide=True)


def _draw(
    sheet: Sheet, sites: Sequence[str], beginnings: Mapping[int, float], bars: Bars, unit: tuple[str, float]
) -> None:
    axes, (unit_name, seconds) = sheet.subplots(), unit
    for number, place in beginnings.items():
        _round_begins(axes, place / seconds, str(number) if len(beginnings) <= _MOST_NUMBERED else "")
    are_many = sum(map(len, bars.values())) > _MOST_SHAPES
    for (site, kind), of_site in bars.items():
        _, colour, hatch = _KINDS[kind]
        places = [(start / seconds, length / seconds) for start, length in of_site]
        line = sites.index(site) - 0.31, 0.62
        shape = axes.broken_barh(places, line, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.4)
        shape.set_rasterized(are_many)
    axes.set(xlabel=f"since the first round was signed ({unit_name})", ylim=(len(sites) - 0.5, -0.5), xlim=(0, None))
    axes.set_yticks(range(len(sites)), [label(site) for site in sites])
    axes.grid(visible=False)
    marks = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=what)
        for kind, (what, colour, hatch) in _KINDS.items()
        if any(kind == drawn for _, drawn in bars)
    ]
    sheet.legend(handles=marks, loc="outside lower center", ncols=2)


def _round_begins(axes: Axes, place: float, text: str) -> None:
    axes.axvline(place, color="#c3c9d0", linewidth=0.8, zorder=0)
    above = ("data", "axes fraction")
    axes.annotate(text, (place, 1.0), xycoords=above, xytext=(2, 2), textcoords="offset points", size=8, color=SOFT)


def _ends(part: Part, patience: float) -> float:
    """Return the latest time of a part; a site's clock counts while the round is open, and not beyond its deadline."""
    asked, answered, settled = part.times
    if asked is None:
        return 0.0
    if settled is None and answered is not None and answered <= asked + patience:
        return max(asked, answered)
    return settled or asked


def _parts(part: Part, now: float) -> list[tuple[str, float, float]]:
    """Return a site's bars in a round: kind, beginning and end in seconds since 1970; ``now`` ends what goes on."""
    asked, answered, settled = part.times
    if asked is None:
        return []
    end = settled or now
    if answered is None:
        return [("silent", asked, end)]
    if _came_after(part):
        return [("late", asked, end)]
    if not asked <= answered <= end:
        return [("clocks", asked, end)]
    return [("answering", asked, answered), ("waiting", answered, end)]


def _came_after(part: Part) -> bool:
    """Return whether a late update was signed once its round was settled, as by right clocks most are."""
    _, answered, settled = part.times
    return part.status == "late" and answered is not None and settled is not None and answered > settled


def _table(view: RunView) -> Table:
    """Return every time and every byte, and for whom a site waited: who has not answered, or answered last."""
    rows: list[list[Cell]] = []
    for each in view.rounds:
        answers = {site: part.answered for site, part in each.sites.items() if part.answered}
        latest = max(answers.values(), default=None)
        awaited = [site for site in each.sites if answers.get(site, latest) == latest]
        silent = [site for site in awaited if site not in answers]
        for site, part in each.sites.items():
            asked, answered, settled = part.times
            waited_for = silent or awaited if site in answers and (silent or site not in awaited) else []
            rows.append(
                [
                    *(each.round, site, part.asked, part.answered, part.settled),
                    int(answered - asked) if answered and asked else None,
                    int(settled - answered) if settled and answered and not _came_after(part) else None,
                    ", ".join(waited_for) or None,
                    *(part.bytes.down, part.bytes.up),
                ]
            )
    header = (
        *("round", "site", "asked", "answered", "settled", "seconds to answer", "seconds until settled"),
        *("waited for", "bytes to it", "bytes from it"),
    )
    return Table("timeline", "Each site in each round: when, how long, how much", header, rows)


def _unit(seconds: float) -> tuple[str, float]:
    units = (("seconds", 1.0), ("minutes", 60.0), ("hours", 3600.0), ("days", 86400.0))
    return next((here for here, longer in pairwise(units) if seconds < 3 * longer[1]), units[-1])
