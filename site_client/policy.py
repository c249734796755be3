"""Consent: what the hospital's policy says to an offer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shared.exchange.records import RunConfiguration
from site_client.configuration import Policy


@dataclass(frozen=True)
class Judgement:
    """``ask``: a person must decide."""

    answer: Literal["yes", "no", "ask"]
    reason: str


def judge(policy: Policy, run: RunConfiguration, decision: bool | None) -> Judgement:
    """Say yes, no or ask to a run.

    Args:
        decision: what a person at the hospital decided, if anyone did. It cannot widen the policy.
    """
    refusals = [
        f"this hospital does not take part in {what} {found}"
        for what, found, allowed in (("task", run.task, policy.tasks), ("method", run.method, policy.methods))
        if found not in allowed
    ]
    if run.epochs > policy.max_epochs:
        refusals.append(f"{run.epochs} epochs per round are more than this hospital's {policy.max_epochs}")
    if policy.encryption == "required" and run.encrypt == "none":
        refusals.append("this hospital takes part only in runs whose weights are encrypted")
    if policy.max_epsilon is not None:
        epsilon = run.privacy.target_epsilon if run.privacy else None
        if epsilon is None or epsilon > policy.max_epsilon:
            named = f"one of ε = {epsilon:g}" if epsilon is not None else "one that names no target_epsilon"
            refusals.append(
                f"this hospital takes part in private runs of ε up to {policy.max_epsilon:g}, not in {named}"
            )
    if refusals:
        return Judgement("no", "; ".join(refusals))
    if decision is False:
        return Judgement("no", "a person at the hospital declined")
    if decision is True:
        return Judgement("yes", "a person at the hospital approved")
    if policy.consent == "ask":
        return Judgement("ask", "a person at the hospital must decide")
    return Judgement("yes", "the hospital's policy allows it")
