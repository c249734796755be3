"""What training came to at each site: the first model and the chosen one, and a site alone where that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from aggregator.report.tables import (
    NARROW,
    NOT_REPORTED,
    UNDEFINED,
    Cell,
    Missing,
    Table,
    images_cell,
    interval_text,
    told,
)
from aggregator.run_view import INTERVAL, Part, RunView, signed_range
from shared.learning.gain import PLACES
from shared.plurals import pluralize

CHOSEN_INTERVAL = f"chosen model {INTERVAL}"
OTHER_CLASSES = Missing("other classes")
SAME_IMAGES = {"the same": "the same", "others": "others", "new": "no part", None: "not known"}
"""What is said of a site's test images in the earlier run whose model a run began with."""
WHY_NOT_REPORTED = (
    "Not reported: the site has too few such images for a score to leave it (minimum_count in its policy), or the "
    "score is undefined there"
)


@dataclass(frozen=True)
class Alone:
    """What a site comes to by itself: as many rounds, on its own training images.

    Args:
        tests: one score of its model on the test images of each site with its classes; None where it is undefined.
    """

    site: str
    rounds: int
    tests: Mapping[str, float | None]

    def at(self, site: str) -> Cell:
        """Return the score at a site."""
        if site not in self.tests:
            return OTHER_CLASSES
        score = self.tests[site]
        return UNDEFINED if score is None else score


def gain_and_worst(view: RunView, chosen: int, score: str, title: str) -> list[str]:
    """Return two sentences: what the sites gain over the first model, and where the chosen model does worst.

    With a baseline only the second: what the sites gain over training alone, the outcome says.

    Args:
        chosen, score, title: as for ``before_and_after``.
    """
    first, last = (_reported(view, number, score) for number in (0, chosen))
    both = sorted(first.keys() & last.keys())
    if view.configuration.baseline is not None:
        return [_worst(view, first, last, chosen, title)]
    if not view.configuration.rounds:
        gain = _scored(last, title)
    elif both:
        rose = sum(round(last[site], PLACES) > round(first[site], PLACES) for site in both)
        before, after = (fmean(of[site] for site in both) for of in (first, last))
        gain = (
            f"on the sites' own test images {title} rose at {rose} of {pluralize(len(both), 'site')}, in the mean from "
            f"{before:.{PLACES}f} to {after:.{PLACES}f}"
        )
    else:
        gain = f"no site reported {title} on its test images both before and after training"
    return [gain, _worst(view, first, last, chosen, title)]


def _worst(view: RunView, first: Mapping[str, float], last: Mapping[str, float], chosen: int, title: str) -> str:
    if not last:
        return f"no site reported {title} of the chosen model on its test images"
    worst = min(sorted(last), key=last.__getitem__)
    since = f", after {first[worst]:.{PLACES}f} before training" if worst in first and chosen else ""
    images = images_cell(view.receivers(chosen)[worst], "test")
    return f"{title} is lowest at {worst}: {last[worst]:.{PLACES}f} over {images} images{since}"


def _scored(told: Mapping[str, float], title: str) -> str:
    """Return what the sites reported of a model that was not trained."""
    if not told:
        return f"no site reported {title} on its test images"
    mean = f"{fmean(told.values()):.{PLACES}f}"
    return f"on the sites' own test images {title} is {mean} in the mean over {pluralize(len(told), 'site')}"


def _reported(view: RunView, aggregate: int, score: str) -> dict[str, float]:
    """Return a score of an aggregate on the test images of each site that reported it."""
    cells = {site: told(part, "test", score) for site, part in view.receivers(aggregate).items()}
    return {site: cell for site, cell in cells.items() if isinstance(cell, float)}


def gained(view: RunView, score: str, title: str) -> Table | None:
    """Return what each hospital gains from the federation: one score of the model that it has trained alone and of the
    chosen one; None of a run without a baseline, and while it goes on.

    Args:
        score, title: as for ``before_and_after``.
    """
    if view.configuration.baseline is None or view.card is None:
        return None
    last, sites = view.receivers(view.card.chosen_round), view.configuration.sites
    gains = [view.gains.get(site) for site in sites]
    columns: dict[str, list[Cell]] = {
        "site": [*sites],
        "alone": [NOT_REPORTED if gain is None else gain.alone for gain in gains],
        "with the federation": [told(last.get(site), "test", score) for site in sites],
        "difference": [NOT_REPORTED if gain is None else f"{gain.difference:+.{PLACES}f}" for gain in gains],
    }
    notes = [
        "Alone: a model that the site trained on its own images only, in the rounds that it took part in; of its "
        "rounds the best on its validation images. It never left the site"
    ]
    if NOT_REPORTED in columns["alone"]:
        notes.append(
            f"{WHY_NOT_REPORTED}; or it was not there in the first round, with which the model trained alone begins"
        )
    columns |= _support(last, sites, score)
    notes += [NARROW] if CHOSEN_INTERVAL in columns else []
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    caption = f"What each hospital gains: {title} on its own test images"
    return Table("gain", caption, tuple(columns), rows, tuple(notes))


def against_last(view: RunView, score: str, title: str) -> Table | None:
    """Return how the chosen model compares with the earlier one that a paired run began with, on the same images of
    each site; None of a run that compares none, while it goes on, and where it came to no other model.

    Args:
        score, title: as for ``before_and_after``.
    """
    start = view.configuration.start
    if not view.configuration.paired or start is None or not view.chosen_round:
        return None
    last, sites = view.receivers(view.chosen_round), view.configuration.sites
    rows = [last[site].test if site in last else None for site in sites]
    found = [row.difference(score) if row else None for row in rows]
    columns: dict[str, list[Cell]] = {
        "site": [*sites],
        "difference": [NOT_REPORTED if each is None else f"{each[0]:+.{PLACES}f}" for each in found],
        INTERVAL: [NOT_REPORTED if each is None else each[1] and signed_range(each[1]) for each in found],
        "test images": [images_cell(last.get(site), "test") for site in sites],
        f"in {start.name}": [SAME_IMAGES[view.test_images.get(site)] for site in sites],
    }
    notes = []
    if any(each and each[1] for each in found):
        notes = [
            "Both models are scored on the same images, each time without the same patients, so the interval is of the "
            "difference",
            NARROW,
        ]
    if "others" in view.test_images.values():
        notes.append(
            f"Where {start.name} tested on others, its model may have been trained on some of these, which favours it"
        )
    if NOT_REPORTED in columns["difference"]:
        notes.append(f"{WHY_NOT_REPORTED}; or it did not answer the first round")
    cells = [list(row) for row in zip(*columns.values(), strict=True)]
    return Table("against-last", f"{title} against the model of {start.name}", tuple(columns), cells, tuple(notes))


def before_and_after(view: RunView, chosen: int, score: str, title: str, alone: Alone | None = None) -> Table:
    """Return one score on each site's test images before training and after.

    Args:
        chosen: the aggregate that the run came to.
        score: a column of ``metrics.csv``, and ``title`` what people call it.
    """
    first, last = (view.receivers(number) for number in (0, chosen))
    sites = view.configuration.sites
    columns: dict[str, list[Cell]] = {
        "site": [*sites],
        "before training": [told(first.get(site), "test", score) for site in sites],
        "after": [told(last.get(site), "test", score) for site in sites],
    }
    if not view.configuration.rounds:
        columns = {"site": [*sites], title: columns["after"]}
    notes = [WHY_NOT_REPORTED] if any(NOT_REPORTED in column for column in columns.values()) else []
    if alone is not None:
        columns[f"{alone.site} alone"] = [alone.at(site) for site in sites]
        notes.append(f"{alone.site} alone: a model trained in as many rounds ({alone.rounds}) on its images only")
    columns |= _support(last, sites, score)
    notes += [NARROW] if CHOSEN_INTERVAL in columns else []
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return Table("before-after", f"{title} on each site's own test images", tuple(columns), rows, tuple(notes))


def _support(last: Mapping[str, Part], sites: Sequence[str], score: str) -> dict[str, list[Cell]]:
    """Return the columns of what the chosen model's scores are over: their intervals, where some site tells how sure
    its score is, and the images.
    """
    cells = [interval_text(last[site].test if site in last else None, score) for site in sites]
    intervals = {CHOSEN_INTERVAL: cells} if any(isinstance(cell, str) for cell in cells) else {}
    return intervals | {"test images": [images_cell(last.get(site), "test") for site in sites]}
