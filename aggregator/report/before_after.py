"""What training came to at each site: the first model and the chosen one, and a site alone where that was measured."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.report.document import Document
from aggregator.report.tables import NOT_TOLD, WITHHELD, Cell, Table, of_aggregate, told

WHY_WITHHELD = "Withheld: the site has too few such images for a score to leave it (minimum_count in its policy)"


@dataclass(frozen=True)
class Alone:
    """What a site comes to by itself: the same rounds, on its own training images.

    Args:
        test: the score on its own test images; None if it is undefined there.
    """

    site: str
    rounds: int
    test: float | None


def before_and_after(document: Document, score: str, title: str, alone: Alone | None = None) -> Table:
    """One score on each site's test images before training and after, of a run that has chosen a model.

    Args:
        score: a column of ``metrics.csv``, and ``title`` what people call it.
    """
    first, chosen = (of_aggregate(document, number) for number in (0, document["chosen"]["aggregate"]))
    rows: list[list[Cell]] = [
        [site, told(first.get(site), "test", score), told(chosen.get(site), "test", score)]
        for site in document["configuration"]["sites"]
    ]
    notes = [WHY_WITHHELD] if any(WITHHELD in row for row in rows) else []
    if alone is not None:
        before = next(row[1] for row in rows if row[0] == alone.site)
        rows.append([f"{alone.site} alone", before, NOT_TOLD if alone.test is None else alone.test])
        notes.append(f"{alone.site} alone: trained in as many rounds ({alone.rounds}) on its own images only")
    caption = f"{title} on each site's own test images"
    return Table("before-after", caption, ("site", "before training", "after"), rows, tuple(notes))
