"""How good each aggregate is, by the sites' own reports, and which one is chosen.

In round n every site first evaluates the global model it received, which is the aggregate of round n - 1
(epoch 0 of its table). So the scores of aggregate a stand in the tables of round a + 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean

from shared.exchange.records.run import RunConfiguration, StopAfter
from shared.exchange.records.values import decimal_text
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.tables import MetricsRow, Split, epsilon_in

BY_STOP_AFTER = "ended by stop_after"
"""With what the reason begins why a run's ``stop_after`` ended it, in its card too."""

BY_VALIDATION = "best mean validation"
"""With what the reason of a card begins where validation scores chose the aggregate."""

Tables = Mapping[int, Mapping[str, list[MetricsRow]]]
"""By round and site: the table of its answer, also of one that came late or was omitted."""
Scores = Mapping[int, Mapping[str, float]]
"""By aggregate and site: the validation scores that count."""


def received_rows(tables: Tables, split: Split) -> dict[int, dict[str, MetricsRow]]:
    """Return, by aggregate number and site, the row of the received model on ``split``; missing rows are left out.

    A row that says it is of another round than its answer is of none.
    """
    rows: dict[int, dict[str, MetricsRow]] = {}
    for round_no, of_sites in tables.items():
        for site, table in of_sites.items():
            for row in table:
                if (row.round_no, row.epoch, row.split) == (round_no, 0, split):
                    rows.setdefault(round_no - 1, {})[site] = row
    return rows


def validation_means(rows: Mapping[int, Mapping[str, MetricsRow]], score_name: str) -> dict[int, float]:
    """Return, by aggregate, the mean of the sites' validation scores.

    A number outside [0, 1] is no score: else one site could decide alone.

    Args:
        rows: of ``received_rows`` on "validation".
    """
    return {aggregate: fmean(scores.values()) for aggregate, scores in reported_scores(rows, score_name).items()}


def reported_scores(rows: Mapping[int, Mapping[str, MetricsRow]], score_name: str) -> dict[int, dict[str, float]]:
    """Return, by aggregate and site, the scores that count; an aggregate for which none was reported is left out.

    Args:
        rows: as for ``validation_means``.
    """
    told = {
        aggregate: {
            site: score
            for site, row in by_site.items()
            if (score := row.scores.get(score_name)) is not None and 0 <= score <= 1
        }
        for aggregate, by_site in rows.items()
    }
    return {aggregate: scores for aggregate, scores in told.items() if scores}


def comparable_means(scores: Scores) -> dict[int, float]:
    """Return, by aggregate, its mean validation score over the sites that scored the newest one, and no others."""
    newest = max(scores, default=0)
    return {
        aggregate: fmean(of_sites.values())
        for aggregate, of_sites in scores.items()
        if of_sites.keys() == scores[newest].keys()
    }


def gains_nothing(rule: StopAfter, scores: Scores) -> str:
    """Return why a run ends here by its ``stop_after``: a sentence's part; empty where it goes on.

    The best of the newest ``rounds`` aggregates is held against the best before them, over the same sites. An aggregate
    is scored in the round after it, so the one that the last round made is none of them.
    """
    means, newest = comparable_means(scores), max(scores, default=0)
    before = [mean for aggregate, mean in means.items() if aggregate <= newest - rule.rounds]
    recent = [mean for aggregate, mean in means.items() if aggregate > newest - rule.rounds]
    if not before or max(recent) - max(before) > rule.gain:
        return ""
    which = f"aggregate {newest}"
    if rule.rounds > 1:
        which = f"the best of the aggregates {newest - rule.rounds + 1} to {newest}"
    gained = f"{max(recent) - max(before):+.4f}"
    return f"{BY_STOP_AFTER}: {which} gained {gained} on the best one before, not more than {rule.gain:g}"


def ends_early(run: RunConfiguration, tables: Tables, score_name: str) -> str:
    """Return why a run's ``stop_after`` ends it after the newest round of these tables; empty where it goes on."""
    if run.stop_after is None:
        return ""
    return gains_nothing(run.stop_after, reported_scores(received_rows(tables, "validation"), score_name))


def best_of(kept: Collection[int], means: Mapping[int, float]) -> int:
    """Return the aggregate with the best mean, of those that are kept; the newest where none has one."""
    rated = [number for number in kept if number in means]
    return min(rated, key=lambda number: (-means[number], number), default=max(kept))


def holds_answers(took_part: Mapping[str, Collection[str]], aggregate: int) -> bool:
    """Return whether an answer of some site is in an aggregate; else it is still the model that the run began with.

    Args:
        took_part: the sites whose weight is above 0, by round.
    """
    return any(sites for round_no, sites in took_part.items() if int(round_no) <= aggregate)


def choose(
    run: RunConfiguration,
    tables: Tables,
    verdicts: Mapping[int, Mapping[str, Verdict]],
    *,
    kept: Collection[int],
    score_name: str,
    ended: str,
    in_turn: bool = False,
) -> FinalCard:
    """Choose the aggregate with the best mean validation score over the sites; ties go to the earlier one.

    Without any validation score the newest aggregate is chosen, and the card says so.

    Args:
        verdicts: of every opened round.
        kept: the aggregates to choose from.
        ended: why the run ends before its last round; empty if it does not. The card says that too.
        in_turn: whether each round asked one site: then the newest is chosen, for scores of other sites do not compare.
    """
    rows = received_rows(tables, "validation")
    means = validation_means(rows, score_name)
    took_part = {
        str(round_no): sorted(site for site, verdict in of_sites.items() if verdict.share > 0)
        for round_no, of_sites in verdicts.items()
    }
    chosen = best_of(kept, {} if in_turn else means)
    if not run.rounds:
        reason = "the run trains nothing: its sites score the model that it began with"
    elif not verdicts:
        reason = "no site took part: this is the model that the run began with"
    elif not any(took_part.values()):
        reason = "no answer was accepted: this is the model that the run began with"
    else:
        sets = {frozenset(of_sites) for number, of_sites in reported_scores(rows, score_name).items() if number in kept}
        reason = _why(score_name, has_means=bool(means), is_over_others=len(sets) > 1, in_turn=in_turn)
        if not holds_answers(took_part, chosen):
            first = f"that of round {chosen}, the model that the run began with"
            reason += f": {first}; no aggregate that was validated did better"
    return FinalCard(
        run=run.run,
        task=run.task,
        method=run.method,
        chosen_round=chosen,
        score_name=score_name,
        validation={str(aggregate): decimal_text(mean) for aggregate, mean in sorted(means.items())},
        took_part=took_part,
        epsilon=_most_spent(tables) if run.privacy else {},
        reason=f"{reason}; {ended}" if ended else reason,
    )


def _why(score_name: str, *, has_means: bool, is_over_others: bool, in_turn: bool) -> str:
    """Return why one of several aggregates was chosen.

    Args:
        is_over_others: whether the means are not over the same sites for each aggregate.
    """
    if in_turn:
        return "the newest aggregate: where sites are asked in turn, each aggregate is validated by another"
    if not has_means:
        return "no site reported a validation score (too few images?), so the newest aggregate was taken"
    which = "the sites that reported it, not the same ones for each aggregate" if is_over_others else "the sites"
    return f"{BY_VALIDATION} {score_name} over {which}"


def _most_spent(tables: Tables) -> dict[str, str]:
    """Return, by site, the greatest ε that it reported to have spent, late and omitted answers included."""
    most: dict[str, float] = {}
    for of_sites in tables.values():
        for site, table in of_sites.items():
            if (spent := epsilon_in(table)) is not None:
                most[site] = max(most.get(site, 0.0), spent)
    return {site: decimal_text(spent) for site, spent in most.items()}
