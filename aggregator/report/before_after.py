"""What training came to at each site: the first model and the chosen one, and a site alone where that was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aggregator.report.tables import UNDEFINED, WITHHELD, Cell, Missing, Table, told
from aggregator.run_view import RunView

OTHER_CLASSES = Missing("other classes")
WHY_WITHHELD = "Withheld: the site has too few such images for a score to leave it (minimum_count in its policy)"


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


def before_and_after(view: RunView, chosen: int, score: str, title: str, alone: Alone | None = None) -> Table:
    """Return one score on each site's test images before training and after.

    Args:
        chosen: the aggregate that the run came to.
        score: a column of ``metrics.csv``, and ``title`` what people call it.
    """
    first, last = (view.receivers(number) for number in (0, chosen))
    rows: list[list[Cell]] = [
        [site, told(first.get(site), "test", score), told(last.get(site), "test", score)]
        for site in view.configuration.sites
    ]
    notes = [WHY_WITHHELD] if any(WITHHELD in row for row in rows) else []
    header = ["site", "before training", "after"]
    if alone is not None:
        header.append(f"{alone.site} alone")
        rows = [[*row, alone.at(site)] for row, site in zip(rows, view.configuration.sites, strict=True)]
        notes.append(f"{alone.site} alone: a model trained in as many rounds ({alone.rounds}) on its images only")
    return Table("before-after", f"{title} on each site's own test images", tuple(header), rows, tuple(notes))
