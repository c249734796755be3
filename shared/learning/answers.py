"""What an aggregator demands of a site's answer, and what it decides about it: by the files and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from shared.doors.schema import fill
from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import decimal_text
from shared.exchange.records.verdicts import CameLate, Verdict
from shared.exchange.tables import EPSILON, epsilon_in, read_metrics, require_learning_rate, require_of_round
from shared.exchange.trust import Message, check_form, open_yaml
from shared.learning.methods.terms import Terms
from shared.learning.run_files import Late, Scored
from shared.learning.schedules import learning_rate
from shared.learning.spoilers import spoilers

if TYPE_CHECKING:
    from shared.learning.aggregation import Aggregation, Update
    from shared.learning.methods.contract import Method

UNANSWERED = ("late", "withdrawn")
"""What the verdict on a site is that did not answer."""

SOUND = ("accepted", "validated")
"""What it is on one whose answer passed every check."""

REASONS = {
    "late": "no answer came before the round closed",
    "withdrawn": "the site withdrew from the run before it answered",
    "validated": "the closing round trains nothing",
}
"""Why a verdict is what it is, where no answer was scored."""

MAY_COUNT_NEXT = "; one that comes before the next round closes counts there, unless that is answered too"
"""What a verdict that says late goes on with, where the run has ``late: next``."""


LIMIT_DECIMALS = 4
"""Of a tolerance that follows from a score: as many as reasons tell of scores."""


@dataclass(frozen=True)
class ClosedRound:
    """What came of a round, before it is decided.

    Args:
        checked: what the check of each asked site's answer gave; None where none came.
        limit: what a score must exceed; see ``passes``.
        update: returns a site's update, or the late one that stands in for it; only of sites whose update passed its
            check.
        withdrawn: the sites that have left the run.
        late: what the check of an answer to the round before gave, which came once that was closed. It counts here
            where the site has not answered this round by now, and has not left the run.
    """

    round_no: int
    checked: Mapping[str, Scored | None]
    limit: float | None
    update: Callable[[str], Update]
    withdrawn: Collection[str] = ()
    late: Mapping[str, Late] = field(default_factory=dict)

    def updates(self, sites: Iterable[str]) -> dict[str, Update]:
        """Return the answers of sites, by site."""
        return {site: self.update(site) for site in sites}


def limit_below(last: float, tolerance: BelowLast) -> float:
    """Return what a score must exceed, in [0, 1], where the model that the sites had received scores ``last``."""
    return max(0.0, round(last - tolerance.below_last, LIMIT_DECIMALS))


def limit_of(run: RunConfiguration, round_no: int, measured: Callable[[BelowLast], float]) -> float | None:
    """Return what a score must exceed in a round; None where there is no such thing.

    Args:
        measured: gives it where it follows from the last aggregate; not asked in the closing round, where none counts.
    """
    if not isinstance(run.tolerance, BelowLast):
        return run.tolerance
    return measured(run.tolerance) if round_no <= run.rounds else None


def comparison(score: str | None, tolerance: float | None, *, exceeds: bool) -> str:
    """Return why a verdict is what it is, where an answer was scored.

    Args:
        tolerance: what the score had to exceed.
    """
    return f"score {float(score or 0):.4f} {'exceeds' if exceeds else 'does not exceed'} the tolerance {tolerance}"


def check_update(
    message: Message,
    file: Callable[[str], Path],
    run: RunConfiguration,
    sharing: Sharing,
    method: Method,
    *,
    form: type[Reliability] = Reliability,
) -> tuple[float | None, float | None]:
    """Check that an answer holds what its round and its method ask for, and nothing more; no tensors are looked into.

    Args:
        file: where a file of the answer lies, by name.
        form: of ``reliability.yaml``.

    Returns:
        θ in (0, 1], where the method has it sent, and ε, where the run is private and the site says it.

    Raises:
        RejectedError: naming the file.
    """
    # 1. It brings exactly the files that its round asks for (protocol 6.3), in the run's form (protocol 9.2).
    ref, trains, is_private = message.ref, message.ref.round_no <= run.rounds, run.privacy is not None
    _check_files(message, sharing, method, trains=trains)
    check_form(message, run.wire)
    # 2. The table has no rows but this round's, no columns that nobody described, and the round's learning rate
    #    (protocol 8.3).
    metrics = f"{ref.path}/{names.METRICS}"
    table = read_metrics(file(names.METRICS).read_bytes(), metrics, is_early=message.manifest.protocol == 1)
    epochs = epochs_of(run, ref.round_no, method)
    require_of_round(
        table, metrics, round_no=ref.round_no, epochs=epochs, own=run.scores, has_baseline=run.baseline is not None
    )
    require_learning_rate(table, metrics, learning_rate(run.learning_rate, ref.round_no - 1))
    # 3. In a private run an answer to a round that trains says what ε was spent (protocol 7.6).
    spent = epsilon_in(table) if is_private else None
    if spent is None and trains and is_private:
        raise RejectedError(metrics, f"does not say what {EPSILON} was spent")
    # 4. θ comes where the method has it sent (protocol 8.4).
    if not method.sends_reliability:
        return None, spent
    reliability = file(names.RELIABILITY).read_bytes()
    return open_yaml(reliability, form, f"{ref.path}/{names.RELIABILITY}").theta, spent


def epochs_of(run: RunConfiguration, round_no: int, terms: Terms) -> int:
    """Return how many epochs a round trains, as its tables count them; the closing one trains none."""
    return terms.epochs(run.epochs) if round_no <= run.rounds else 0


def _check_files(message: Message, sharing: Sharing, method: Method, *, trains: bool) -> None:
    ref, found = message.ref, set(message.manifest.files)
    for name, is_due in ((names.SITE_MODEL, trains), (names.RELIABILITY, method.sends_reliability)):
        if is_due and name not in found:
            raise RejectedError(f"{ref.path}/{name}", "is missing from the answer")
        if not is_due and name in found:
            raise RejectedError(f"{ref.path}/{name}", "was not asked for")
    groups = sharing.groups(ref.kind, trains=trains)
    for name in sorted(filter(names.is_state, found)):
        if name not in map(names.state_file, groups):
            raise RejectedError(f"{ref.path}/{name}", "was not asked for")
    for name in map(names.state_file, groups):
        if name not in found:
            raise RejectedError(f"{ref.path}/{name}", "is missing from the answer")


def without_spoilers(run: RunConfiguration, closed: ClosedRound, aggregation: Aggregation) -> ClosedRound:
    """Return the round with a reason for each answer that cannot be worked on together with the others, so that it
    does not count.

    Written on the way is what goes with the aggregate that the answers were measured with.
    """
    round_no, scored, updates = closed.round_no, closed.checked, closed.updates
    # 1. Of all sound answers: what goes with the aggregate that they were measured with (protocol 7.3), which the last
    #    try writes: it is of those that are left.
    sound = sorted(site for site, each in scored.items() if each and not each.reason)
    spoilt = spoilers(sound, run.method, lambda tried: aggregation.settle(round_no, updates(tried)))
    # 2. Of those that also pass the tolerance check: the next aggregate, which is only tried here.
    accepted = sorted(
        site
        for site, each in scored.items()
        if each and site not in spoilt and passes(each, run, round_no, closed.limit)
    )
    spoilt |= spoilers(accepted, run.method, lambda tried: aggregation.try_out(round_no, updates(tried)))
    checked = {
        site: each.model_copy(update={"reason": spoilt[site]}) if each and site in spoilt else each
        for site, each in scored.items()
    }
    return replace(closed, checked=checked)


def decide(run: RunConfiguration, closed: ClosedRound, aggregation: Aggregation | None) -> dict[str, Verdict]:
    """Return the verdict on each site that a round asked.

    Args:
        aggregation: None where no answer can have passed.
    """
    round_no, scored, limit = closed.round_no, closed.checked, closed.limit
    # 1. A late answer to the round before stands in for one that did not come (protocol 6.10).
    late = {site: each for site, each in closed.late.items() if scored[site] is None and site not in closed.withdrawn}
    found = {site: late[site].scored if site in late else each for site, each in scored.items()}
    # 2. The tolerance check says whose model counts (protocol 7.9).
    accepted = sorted(site for site, each in found.items() if each and passes(each, run, round_no, limit))
    # 3. The method and the run's rule weigh those: a_k (protocol 7.2 and 7.5).
    weights, why_left_out = {}, ""
    if accepted and aggregation:
        weights = aggregation.weights(closed.updates(accepted))
        why_left_out = aggregation.why_left_out(len(accepted))
    # 4. Each site that was asked has its verdict (protocol 6.3), also who sent nothing.
    return {
        site: _verdict(run, closed, site, late=late.get(site), weight=weights.get(site), why_left_out=why_left_out)
        for site in scored
    }


def passes(scored: Scored, run: RunConfiguration, round_no: int, limit: float | None) -> bool:
    """Return whether a site's answer to a training round counts: its score is strictly above the limit.

    This is the tolerance check of Lo et al. 2021. In a run without one, every answer counts in which nothing is wrong.

    Args:
        limit: what a score must exceed: the run's tolerance, or what follows from it and the last aggregate's score.
    """
    # Something is wrong with it; or it answers the closing round, after which nothing is combined.
    if scored.reason or round_no > run.rounds:
        return False
    if run.tolerance is None:
        return True
    return scored.score is not None and limit is not None and float(scored.score) > limit


def _verdict(
    run: RunConfiguration, closed: ClosedRound, site: str, *, late: Late | None, weight: float | None, why_left_out: str
) -> Verdict:
    round_no, scored, limit = closed.round_no, closed.checked[site], closed.limit
    # Where a late answer stands in, the weight is that answer's, and told under ``late``.
    own = None if late else weight
    # No answer came: the site has left, or it is late. An answer that came holds something wrong, or is one to the
    # closing round, or was compared with the tolerance and weighed.
    if scored is None and site in closed.withdrawn:
        status, reason = "withdrawn", REASONS["withdrawn"]
    elif scored is None:
        status, reason = "late", why_late(run, round_no)
    elif scored.reason:
        status, reason = "omitted", scored.reason
    elif round_no > run.rounds:
        status, reason = "validated", REASONS["validated"]
    else:
        status = "omitted" if own is None else "accepted"
        reason = _why_scored(run, scored, limit, own, why_left_out)
    return fill(
        Verdict,
        {
            "run": run.run,
            "round": round_no,
            "site": site,
            "status": status,
            "score": scored.score if scored else None,
            "tolerance": None if limit is None else decimal_text(limit),
            "theta": scored.theta if scored else None,
            "weight": None if own is None else decimal_text(own),
            "epsilon": scored.epsilon if scored else None,
            "reason": reason,
            "late": _of_late(run, late, limit, weight, why_left_out) if late else None,
        },
    )


def why_late(run: RunConfiguration, round_no: int) -> str:
    """Return why a verdict says late, and what becomes of an answer that still comes."""
    return REASONS["late"] + (MAY_COUNT_NEXT if run.late and round_no < run.rounds else "")


def _of_late(
    run: RunConfiguration, late: Late, limit: float | None, weight: float | None, why_left_out: str
) -> CameLate:
    """Return what became of an answer to the round before; arguments as for ``decide``."""
    reason = late.scored.reason or _why_scored(run, late.scored, limit, weight, why_left_out)
    share = None if weight is None else decimal_text(weight)
    return CameLate(update=late.update, score=late.scored.score, weight=share, reason=reason)


def _why_scored(
    run: RunConfiguration, scored: Scored, limit: float | None, weight: float | None, why_left_out: str
) -> str:
    """Return why an answer that nothing is wrong with by itself has this weight, or none."""
    if weight is None:
        return comparison(scored.score, limit, exceeds=False)
    exceeds = comparison(scored.score, limit, exceeds=True)
    reason = "models are not scored in this run" if run.tolerance is None else exceeds
    return reason if weight else f"{reason}, but {why_left_out}"
