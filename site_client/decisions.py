"""What a person here decides about a run, and when the daemon acts on it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from shared.commands import say
from shared.errors import ConfigurationError
from shared.escaping import quoted
from shared.folder.lock import is_at_work
from site_client import surveys
from site_client.configuration import FILE
from site_client.offer import read_offer, standing, why_over, why_refused
from site_client.store import Decision, deciding, decision, is_paused, write_decision


def decide(work: Path, run: str, answer: Literal["yes", "no"]) -> None:
    """Write a person's answer to an offer down, for the daemon to send.

    Raises:
        ConfigurationError: no such run was offered, what was does not hold, it is over or agreed to already, or the
            daemon would decline it.
        ActionRequiredError: the offer is not as it was accepted.
    """
    if surveys.is_survey_name(run):
        surveys.decide(work, run, answer, when_sent(work))
        return
    _require_open(work, run)
    read_offer(work, run)
    before = decision(work, run)
    if answer == "yes" and (refused := why_refused(work, run)) is not None:
        remedy = (
            f"see policy: in {work / FILE} and the images; a change there holds once the daemon is started anew, then "
            f"approve again, or `dropfed-site decline {run} --work {quoted(work)}`"
        )
        raise ConfigurationError([f"{run}: cannot be agreed to, for the daemon would decline it: {refused}; {remedy}"])
    with deciding(work):
        # Reading the images may have taken long, and others decide here too.
        _require_open(work, run)
        if decision(work, run) != before:
            others = f"others here have decided meanwhile; see `dropfed-site status --work {quoted(work)}`"
            raise ConfigurationError([f"{run}: {others}, and decide again if that is not to stand"])
        write_decision(work, run, Decision(answer))
    instead = f", instead of the {before.answer} of before" if before and before.answer != answer else ""
    say(f"{run}: {answer}{instead}; the daemon says so in the folder {when_sent(work)}")


def _require_open(work: Path, run: str) -> None:
    now = standing(work, run)  # nobody agrees to what was not offered, now or under that name later
    if (over := why_over(work, run)) is not None:
        raise ConfigurationError([f"{run}: {over}"])
    if now == "agreed":
        leave = f"`dropfed-site withdraw {run} --work {quoted(work)}` leaves it"
        raise ConfigurationError([f"{run}: this site has agreed to it already; {leave}"])


def when_sent(work: Path) -> str:
    """Return when the daemon acts on what a person decided, as the end of a sentence."""
    if is_paused(work):
        return "once it is resumed: it is paused now"
    return (
        "at its next look" if is_at_work(work) else f"once it runs: `dropfed-site run --work {quoted(work)}` starts it"
    )
