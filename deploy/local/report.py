"""What the demo shows of a run: from its view, one score of each site before and after."""

from __future__ import annotations

from aggregator.run_view import Part, Row, RunView
from shared.exchange.records.verdicts import FinalCard
from shared.learning.metrics import OF_CLASS

SiteScore = dict[str, float | int | None]


def site_scores(view: RunView, card: FinalCard, score: str) -> dict[str, SiteScore]:
    """Return what each site came to; None where the site withheld a value, or the method has none.

    Args:
        card: the view's; it has ended.
        score: the column of ``metrics.csv`` that ``before`` (the first model) and ``after`` (the chosen one) show, both
            on the site's test images.
    """
    before, after = (view.receivers(aggregate) for aggregate in (0, card.chosen_round))
    last_training = next((each.sites for each in reversed(view.rounds) if each.trains), {})
    found: dict[str, SiteScore] = {}
    for site in view.sites:
        first, chosen = (parts.get(site, Part()).test for parts in (before, after))
        trained = last_training.get(site, Part())
        found[site] = {
            "classes": _classes(chosen),
            "test_images": int(chosen.images) if chosen and chosen.images.isdecimal() else None,
            "before": first.scores.get(score) if first else None,
            "after": chosen.scores.get(score) if chosen else None,
            "theta": trained.theta,
            "weight": trained.weight,
        }
    return found


def _classes(row: Row | None) -> int | None:
    """Return how many classes a site tells apart."""
    of_classes = [name for name in row.scores if name.startswith(OF_CLASS)] if row else []
    return len(of_classes) or None
