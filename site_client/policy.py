"""Consent: what the hospital's policy says to an offer. Pure, but that the files of a plug-in, or of a program that
trains, are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shared.errors import ConfigurationError
from shared.exchange.records.run import RunConfiguration
from shared.learning.plugins import disagreements
from shared.learning.tasks import TERMS, terms_of
from site_client import programs
from site_client.apart import ALLOWED_IN
from site_client.configuration import Policy

if TYPE_CHECKING:
    from shared.learning.requirements import Requirements


@dataclass(frozen=True)
class Judgement:
    """``ask``: a person must decide."""

    answer: Literal["yes", "no", "ask"]
    reason: str


def judge(
    policy: Policy,
    run: RunConfiguration,
    decision: bool | None,
    site: str = "",
    places: Sequence[Path] = (),
    *,
    answered: Iterable[RunConfiguration] = (),
) -> Judgement:
    """Return yes, no or ask for a run, by its configuration alone; ``excesses`` has what follows from it.

    Args:
        site: which this is, for a run in which some sites train by a program.
        decision: what a person at the hospital decided, if anyone did. It cannot widen the policy.
        places: this hospital's own, which a program that trains must not see; ``programs.own_places``.
        answered: the runs that this site has said yes or no to.
    """
    refusals = [
        f"this hospital does not take part in {what} {found}"
        for what, found, allowed in (("task", run.task, policy.tasks), ("method", run.method, policy.methods))
        if found not in allowed
    ]
    refusals += disagreements(run.plugins, policy.plugins, ALLOWED_IN)
    refusals += programs.refusals(policy, run, site, places)
    if run.plugins and run.privacy is not None:
        refusals.append("a private run cannot use a plug-in: the secret of its noise stays with the daemon")
    if run.rounds > policy.max_rounds:
        refusals.append(f"{run.rounds} rounds are more than this hospital's {policy.max_rounds}")
    if run.epochs > policy.max_epochs:
        refusals.append(f"{run.epochs} epochs per round are more than this hospital's {policy.max_epochs}")
    if policy.encryption == "required" and run.encrypt == "none":
        refusals.append("this hospital takes part only in runs whose weights are encrypted")
    refusals += _privacy_refusals(policy, run)
    if refusals:
        return Judgement("no", "; ".join(refusals))
    if decision is False:
        return Judgement("no", "a person at the hospital said no")
    if decision is True:
        return Judgement("yes", "a person at the hospital approved")
    if policy.consent == "ask":
        return Judgement("ask", "a person at the hospital must decide")
    if (difference := other_truth(run, answered)) is not None:
        return Judgement("ask", f"a person at the hospital must decide, for {difference}")
    return Judgement("yes", "the hospital's policy allows it")


def other_truth(run: RunConfiguration, answered: Iterable[RunConfiguration]) -> str | None:
    """Return which run before this one took something else as true of the same images, as a clause; None if none did.

    Whoever subtracts the scores of one model in both learns of the images whose class differs, perhaps of a single one;
    and a no without a person's doing tells that some image, or recording, is not as the run has it.
    """
    told = _truths(run)
    for other in answered:
        before = _truths(other) if other.task == run.task else {}
        if other.run != run.run and (changed := [name for name in before.keys() & told if before[name] != told[name]]):
            return f"run {other.run} had other {', '.join(sorted(changed))} over the same images"
    return None


def labels_named_by(run: RunConfiguration) -> tuple[str, ...] | None:
    """Return what a run calls the classes; None where each site has its own, and where only a plug-in knows."""
    labels = _truths(run).get("labels")
    return labels if isinstance(labels, tuple) else None


def _truths(run: RunConfiguration) -> dict[str, object]:
    """Return the options by which a run says what is true; nothing of a plug-in's task, or where they are wrong."""
    if run.task not in TERMS:
        return {}
    terms = terms_of(run.task)
    try:
        options = terms.options(run.task_options)
    except ConfigurationError:
        return {}
    return {name: getattr(options, name, None) for name in terms.truths}


def _privacy_refusals(policy: Policy, run: RunConfiguration) -> list[str]:
    refusals = []
    if policy.max_epsilon is not None:
        epsilon = run.privacy.target_epsilon if run.privacy else None
        if epsilon is None or epsilon > policy.max_epsilon:
            named = f"one of ε = {epsilon:g}" if epsilon is not None else "one that names no target_epsilon"
            refusals.append(
                f"this hospital takes part in private runs of ε up to {policy.max_epsilon:g}, not in {named}"
            )
    if run.privacy is not None and run.privacy.delta > policy.max_delta:
        refusals.append(f"δ = {run.privacy.delta:g} is more than this hospital's {policy.max_delta:g}")
    return refusals


def excesses(policy: Policy, requirements: Requirements, repeats: int = 1) -> list[str]:
    """Return what of a run's demands is more than the hospital allows, each a sentence.

    Args:
        repeats: how often an image is taken in an epoch at most, where images of rarer classes are taken more often.
    """
    measured = (
        (requirements.epochs, policy.max_epochs, "epochs per round, with the method's own,"),
        (requirements.views, policy.max_views, "times one image may be shown in the whole run"),
        (requirements.parameters, policy.max_parameters, "parameters"),
        (requirements.memory_bytes / 1e9, policy.max_memory_gb, "GB of memory"),
    )
    found = [
        f"{_told(found)} {what} are more than this hospital's {_told(most)}"
        for found, most, what in measured
        if found > most
    ]
    if requirements.views <= policy.max_views < requirements.views * repeats:  # how often tells how rare a class is
        most_views = _told(policy.max_views)
        found.append(f"images of rarer classes would be shown more often than this hospital's {most_views} times")
    return found


def _told(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.1f}"
