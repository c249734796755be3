"""What a run came to, in one sentence, and what keeps a run that goes on from coming to anything.

An outcome is one of

    improved                  the chosen model validates better than the one that the run began with
    no better than before training  it does not, or it still is that model
    nothing was accepted      no answer of any site entered the model in any round
    cannot be told            answers did, but no site reported a score of both models
    stopped                   the run ended before its last round, and not by its own ``stop_after``; the sentence says
                              what it came to by then
    scored                    the run trains nothing (``rounds: 0``): its sites have scored the model that it began with
    aborted                   the run never started

Two models are compared over the sites that reported a score of both: a mean over other sites is another number. A rise
that the sentence does not show, by three places, is none. The same images chose the model among those of all rounds, of
which one is the best by chance alone: the sentence says so. The model that a run begins with is untrained, or has
published weights, or an earlier run's; each is what training has to better.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Literal

from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.learning.choice import (
    BY_STOP_AFTER,
    BY_VALIDATION,
    Scores,
    Tables,
    comparable_means,
    holds_answers,
    received_rows,
    reported_scores,
)
from shared.learning.gain import PLACES, Gain, gain_text, gains
from shared.plurals import pluralize

OutcomeName = Literal[
    "improved",
    "no better than before training",
    "nothing was accepted",
    "cannot be told",
    "stopped",
    "scored",
    "aborted",
]
Standstill = Literal["no model accepted", "no progress"]

ROUNDS_WITHOUT_MODEL = 2
ROUNDS_WITHOUT_PROGRESS = 5
MEANS_WITHOUT_PROGRESS = 2
"""Over the same sites as the best one before."""


@dataclass(frozen=True)
class Outcome:
    """What an ended run came to.

    Args:
        text: a sentence that begins with ``name``.
        has_improved: whether the model got better, of a stopped run too; None where that cannot be told.
        before, after: mean validation scores of the first and of the chosen model, over the sites that reported both.
        sites: how many sites that are.
    """

    name: OutcomeName
    text: str
    has_improved: bool | None
    before: float | None = None
    after: float | None = None
    sites: int = 0


def outcome_of(
    run: RunConfiguration,
    card: FinalCard | None,
    aborted: str | None,
    scores: Scores,
    gained: Mapping[str, Gain] = MappingProxyType({}),
) -> Outcome | None:
    """Return what a run came to; None while it goes on.

    Args:
        card: of the final model, if one was chosen.
        aborted: why the run never started, if so.
        scores: of the first and of the chosen aggregate at least.
        gained: what each site gains over training alone, in a run with a baseline.
    """
    if aborted is not None:
        return Outcome("aborted", f"aborted: {aborted}", has_improved=False)
    if card is None:
        return None
    learnt = _learnt(card, scores) if run.rounds else _scored(card, scores)
    if run.baseline is not None:
        learnt = replace(learnt, text=f"{learnt.text}; {gain_text(gained, card.score_name)}")
    opened = max(map(int, card.took_part), default=0)
    if opened > run.rounds:
        return learnt
    if run.stop_after is not None and (why := _why_by_stop_after(card)):
        return replace(learnt, text=f"{learnt.text}; {why}, after round {opened} of {run.rounds}")
    when = f"after round {opened} of {run.rounds}" if opened else "before its first round"
    return replace(learnt, name="stopped", text=f"stopped {when}; {learnt.text}")


def outcome_by_tables(
    run: RunConfiguration,
    card: FinalCard | None,
    aborted: str | None,
    read_tables: Callable[[Collection[int]], Tables],
) -> Outcome | None:
    """Return what a run came to; None while it goes on.

    Args:
        card, aborted: as for ``outcome_of``.
        read_tables: reads the sites' tables of some rounds.
    """
    if card is None:
        return outcome_of(run, None, aborted, {})
    # An aggregate's scores stand in the tables of the round after it.
    tables = read_tables(sorted(map(int, card.took_part)) if run.baseline is not None else (1, card.chosen_round + 1))
    scores = reported_scores(received_rows(tables, "validation"), card.score_name)
    return outcome_of(run, card, aborted, scores, gains(tables, card.chosen_round, card.score_name))


def _why_by_stop_after(card: FinalCard) -> str:
    """Return why the run's ``stop_after`` ended it, as was signed: tables that came later change nothing of it."""
    return next((part for part in card.reason.split("; ") if part.startswith(BY_STOP_AFTER)), "")


def _scored(card: FinalCard, scores: Scores) -> Outcome:
    """Return what the sites reported of a model that was not trained."""
    told, name = scores.get(0, {}), "scored"
    if not told:
        why = f"no site reported a validation {card.score_name} (too few images?)"
        return Outcome("scored", f"{name}, and {why}", None)
    mean = fmean(told.values())
    text = f"{name}: mean validation {card.score_name} {mean:.{PLACES}f} over {pluralize(len(told), 'site')}"
    return Outcome("scored", f"{text}; nothing was trained", None, mean, mean, len(told))


def _learnt(card: FinalCard, scores: Scores) -> Outcome:
    """Return what training came to, however the run ended."""
    name: OutcomeName
    if not any(card.took_part.values()):
        name = "nothing was accepted"
        return Outcome(name, f"{name}: no answer entered the model, which is as it was before training", False)
    first, last = scores.get(0, {}), scores.get(card.chosen_round, {})
    both = sorted(first.keys() & last.keys())
    before, after = (fmean(of[site] for site in both) if both else None for of in (first, last))
    over = f"over {pluralize(len(both), 'site')}"
    if holds_no_answer(card):
        name = "no better than before training"
        told = "" if before is None else f", with a mean validation {card.score_name} of {before:.{PLACES}f} {over}"
        text = f"{name}: the chosen model is still the one that the run began with{told}"
        return Outcome(name, text, False, before, after, len(both))
    if before is None or after is None:
        name = "cannot be told"
        why = f"no site reported a validation {card.score_name} both before and after training (too few images?)"
        return Outcome(name, f"{name} whether the model improved: {why}", None)
    change = f"mean validation {card.score_name} {before:.{PLACES}f} before training, {after:.{PLACES}f} after, {over}"
    has_improved = round(after, PLACES) > round(before, PLACES)
    if has_improved and card.reason.startswith(BY_VALIDATION):
        change += ", by the validation images that chose it"
    name = "improved" if has_improved else "no better than before training"
    return Outcome(name, f"{name}: {change}", has_improved, before, after, len(both))


def holds_no_answer(card: FinalCard) -> bool:
    """Return whether no answer is in the chosen aggregate: it is still the model that the run began with."""
    return not holds_answers(card.took_part, card.chosen_round)


def chosen_text(card: FinalCard) -> str:
    """Return what the chosen model is, in words."""
    if not holds_no_answer(card):
        return f"the aggregate of round {card.chosen_round}"
    return "the model that the run began with, for no answer is in the chosen aggregate"


def reason_text(card: FinalCard, outcome: Outcome | None) -> str:
    """Return why this aggregate was chosen, as the card says it, without what the outcome has said."""
    return "; ".join(part for part in card.reason.split("; ") if outcome is None or part not in outcome.text)


def final_text(card: FinalCard) -> str:
    """Return what the chosen model is and how it validates, as its card alone tells: not whose scores the means are.

    Where the outcome itself cannot be told for want of the sites' tables.
    """
    before, after = (card.validation.get(str(aggregate)) for aggregate in (0, card.chosen_round))
    if holds_no_answer(card) or before is None or after is None:
        return chosen_text(card)
    means = f"{float(before):.{PLACES}f} before training, {float(after):.{PLACES}f} with it"
    return f"{chosen_text(card)}: mean validation {card.score_name} {means}"


def standstills(
    run: RunConfiguration, verdicts: Mapping[int, Mapping[str, Verdict]], scores: Scores, score_name: str
) -> dict[Standstill, str]:
    """Return what keeps a run from coming to anything, a sentence each, with what to do.

    Args:
        verdicts: of every round that is closed.
        scores: of every aggregate.
    """
    found: dict[Standstill, str | None] = {
        "no model accepted": _without_model(run, verdicts),
        "no progress": _without_progress(run, scores, score_name),
    }
    return {kind: text for kind, text in found.items() if text is not None}


def _without_model(run: RunConfiguration, verdicts: Mapping[int, Mapping[str, Verdict]]) -> str | None:
    """Return the newest rounds that left the model as it was."""
    trained = [round_no for round_no in sorted(verdicts, reverse=True) if round_no <= run.rounds]
    with_model = (n for n in trained if any(verdict.share > 0 for verdict in verdicts[n].values()))
    last, newest = next(with_model, 0), max(trained, default=0)
    if newest - last < ROUNDS_WITHOUT_MODEL:
        return None
    return (
        f"no model was accepted in {newest - last} rounds in a row, {last + 1} to {newest}: "
        f"`dropfed-aggregator report {run.run}` tells why; if the tolerance check omits sound answers, stop the run "
        "and launch a new one with a milder tolerance"
    )


def _without_progress(run: RunConfiguration, scores: Scores, score_name: str) -> str | None:
    """Return the newest aggregates that validate no better than one before them, at the same sites."""
    newest, means = max(scores, default=0), comparable_means(scores)
    best = min(means, key=lambda aggregate: (-means[aggregate], aggregate), default=newest)
    # Not every round need be scored, nor each by the same sites; one lower mean alone says little.
    since_best = sum(aggregate > best for aggregate in scores)
    if since_best < ROUNDS_WITHOUT_PROGRESS or sum(aggregate > best for aggregate in means) < MEANS_WITHOUT_PROGRESS:
        return None
    since = f"the aggregate of round {best}" if best else "the model that the run began with"
    return (
        f"no progress in {newest - best} rounds: the mean validation {score_name} was {means[best]:.{PLACES}f} "
        f"with {since}, and no higher since; if that suffices, `dropfed-aggregator stop {run.run}` ends the run with "
        "that model, else launch a new one with another learning rate, loss or optimizer"
    )
