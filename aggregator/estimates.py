"""When something is expected, from how long it took before: an estimate, and none where nothing was measured yet."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from aggregator.run_view import RunView
from shared.exchange.records.values import time_text


def end_is_expected(view: RunView, now: float) -> str | None:
    """Return when the run ends if each further round, the closing one too, takes the median time of the past ones."""
    began = [each.began for each in view.rounds]
    took = [later - earlier for earlier, later in pairwise(began) if earlier is not None and later is not None]
    left = view.configuration.rounds + 1 - len(began)
    if not took or began[-1] is None or left < 1:
        return None
    each = median(took)
    return time_text(max(now, began[-1] + each) + left * each)


def answer_is_expected(view: RunView, site: str, now: float) -> str | None:
    """Return when a site's answer to the open round comes if it takes as long as the median of its past ones; None
    where that is past.
    """
    parts = {each.round: part for each in view.rounds if (part := each.sites.get(site))}
    newest = parts.pop(len(view.rounds), None)
    took = [part.seconds_to_answer for part in parts.values() if part.seconds_to_answer is not None]
    asked = newest.times[0] if newest else None
    if asked is None or not took or len(view.rounds) > view.configuration.rounds:
        return None
    expected = asked + median(took)
    return time_text(expected) if expected > now else None
