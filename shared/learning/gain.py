"""What each site gains from the federation: the chosen model beside the one that the site has trained alone.

Both are scored on the same test images of the site, by its own software. Of the models that it has trained alone that
one counts which did best on its validation images, the earlier of equals; so either side may choose its round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from shared.exchange.tables import ALONE, MetricsRow, RowSplit
from shared.learning.choice import Tables, received_rows
from shared.plurals import pluralize

PLACES = 3
"""Of a score where two are compared; a difference that they do not show is none."""


@dataclass(frozen=True)
class Gain:
    """One score on a site's test images.

    Args:
        alone: of the model that the site has trained by itself.
        federated: of the chosen model.
        alone_round: after which that model was trained.
        images: how many they are, as count text.
    """

    alone: float
    federated: float
    alone_round: int
    images: str

    @property
    def difference(self) -> float:
        """What the federation adds to it, by the places that are shown."""
        return round(self.federated, PLACES) - round(self.alone, PLACES)


def gains(tables: Tables, chosen: int, score: str) -> dict[str, Gain]:
    """Return what each site gains that tells one score of both models.

    Args:
        tables: of all rounds.
        chosen: the number of the chosen aggregate.
        score: a column of ``metrics.csv``.
    """
    federated, found = received_rows(tables, "test").get(chosen, {}), {}
    for site in sorted({site for of_sites in tables.values() for site in of_sites}):
        told = {number: table[site] for number, table in tables.items() if site in table}
        number = _best_alone(told, score)
        row = _row(told.get(number + 1, []), number + 1, "test_alone")
        alone = row.scores.get(score) if row else None
        with_others = federated[site].scores.get(score) if site in federated else None
        if row is not None and alone is not None and with_others is not None:
            found[site] = Gain(alone, with_others, number, row.images)
    return found


def _best_alone(tables: Mapping[int, list[MetricsRow]], score: str) -> int:
    """Return after how many rounds the site's own model did best on its validation images; the last it tells of, where
    no such score leaves.
    """
    rows = {number - 1: row for number, table in tables.items() if (row := _row(table, number, ALONE["validation"]))}
    rated = {number: value for number, row in rows.items() if (value := row.scores.get(score)) is not None}
    return min(rated, key=lambda number: (-rated[number], number), default=max(rows, default=0))


def _row(table: list[MetricsRow], round_no: int, split: RowSplit) -> MetricsRow | None:
    return next((row for row in table if (row.round_no, row.epoch, row.split) == (round_no, 0, split)), None)


def gain_text(found: Mapping[str, Gain], title: str) -> str:
    """Return in words, as part of a sentence, what the sites gain.

    Args:
        found: of ``gains``.
        title: what people call the score.
    """
    if not found:
        return f"no site reported a test {title} both with the federation and alone"
    better = sum(gain.difference > 0 for gain in found.values())
    alone, federated = (fmean(getattr(gain, name) for gain in found.values()) for name in ("alone", "federated"))
    return (
        f"with the federation {better} of {pluralize(len(found), 'site')} {'does' if better == 1 else 'do'} better on "
        f"the test images than alone: mean {title} {federated:.{PLACES}f}, alone {alone:.{PLACES}f}"
    )
