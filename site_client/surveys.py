"""Surveys as this hospital's people meet them: what the aggregator asks about the images, and what would leave.

A survey is called by its path in the folder, as ``surveys/0001``, which no run can be called. Beside the mirror lie

    WORK/surveys/0001.json      the answer as it would be signed, made by the daemon; it stays here until a yes
    WORK/surveys/0001.decision  what a person here decided: yes or no
    WORK/surveys/0001.sent      the folder is known to have the answer
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from shared.commands import say
from shared.doors import Refusal
from shared.doors.json_text import canonical, parse_canonical
from shared.doors.schema import fill
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.escaping import quoted
from shared.exchange.mirror import Mirror
from shared.exchange.names import MAX_RECORD_BYTES, SURVEYS, sheet_path, survey_path
from shared.exchange.records.surveys import Sheet, SignedSheet, Survey
from shared.exchange.signing import digest_of
from shared.folder.durable import write_file
from shared.learning.data.division import Block
from site_client.configuration import Policy, configuration_in_force, require_here
from site_client.division import division_here
from site_client.rotation import read_ledger
from site_client.store import deciding, is_restored

Judgement = Literal["yes", "no", "ask"]


def is_survey_name(name: str) -> bool:
    """Return whether people mean a survey by ``name``, and not a run."""
    return re.fullmatch(rf"{SURVEYS}/(?!0000)[0-9]{{4}}", name) is not None


def name_of(number: int) -> str:
    """Return what people call a survey."""
    return f"{SURVEYS}/{number:04d}"


def survey(ledger: Mirror, number: int) -> tuple[Survey, str]:
    """Return an accepted survey and its digest.

    Raises:
        ActionRequiredError: it is not as it was accepted.
    """
    path = ledger.root / survey_path(number)
    try:
        content = path.read_bytes()
        return ledger.peer.open_survey(content, number), digest_of(content)
    except (FileNotFoundError, RejectedError) as error:
        raise ActionRequiredError(f"{path} is not as it was accepted ({error}); put it back from a backup") from None


def answer(ledger: Mirror, number: int) -> SignedSheet | None:
    """Return what this site signed in answer to a survey, or None."""
    path = ledger.root / sheet_path(number)
    if not path.exists():
        return None
    try:
        return ledger.own.open_sheet(path.read_bytes(), *survey(ledger, number))
    except RejectedError as error:
        raise ActionRequiredError(f"{path} {error.reason}; put it back from the folder or a backup") from None


def write_draft(work: Path, draft: SignedSheet) -> None:
    """Keep what would be signed."""
    write_file(_draft_path(work, draft.number), canonical(draft.model_dump(mode="json")))


def draft(work: Path, number: int) -> SignedSheet | None:
    """Return what would be signed; None until the daemon has made it, or if it is damaged and is to be made anew."""
    try:
        return fill(SignedSheet, parse_canonical(_draft_path(work, number).read_bytes(), MAX_RECORD_BYTES))
    except (FileNotFoundError, Refusal):
        return None


def note_published(work: Path, number: int) -> None:
    """Remember that the folder has our answer."""
    write_file(work / SURVEYS / f"{number:04d}.sent", b"")


def is_published(work: Path, number: int) -> bool:
    """Return whether the folder is known to have our answer."""
    return (work / SURVEYS / f"{number:04d}.sent").exists()


def decision(work: Path, number: int) -> bool | None:
    """Return what a person here decided about a survey; None if nobody did."""
    path = work / SURVEYS / f"{number:04d}.decision"
    return {b"yes": True, b"no": False}.get(path.read_bytes().strip()) if path.exists() else None


def judge(policy: Policy, decided: bool | None, *, is_first: bool) -> Judgement:
    """Return yes, no or ask for a survey; a person decides about a second sheet, which could be subtracted.

    Args:
        is_first: no sheet about any of these images has left before.
    """
    if policy.statistics == "never" or decided is False:
        return "no"
    return "yes" if decided or (policy.statistics == "auto" and is_first) else "ask"


def earlier_sheets(ledger: Mirror, number: int, blocks: Iterable[Block]) -> dict[str, Sheet]:
    """Return the sheets, by their surveys' names, that left before about some of the images that a survey asks about.

    Args:
        blocks: of the site's division, which tells in which tasks' folders the same images lie.
    """
    task = survey(ledger, number)[0].task
    same = {task}.union(*(block.folders for block in blocks if task in block.folders))
    signed = [other for other in range(1, number) if (ledger.root / sheet_path(other)).exists()]
    answers = {name_of(other): answer(ledger, other) for other in signed}
    sheets = {name: each.sheet for name, each in answers.items() if each is not None and each.sheet is not None}
    return {name: sheet for name, sheet in sheets.items() if sheet.task in same}


def is_first(work: Path, ledger: Mirror, number: int) -> bool:
    """Return whether no sheet about any of the images that a survey asks about has left before. Of a site that lost its
    disk only a person can know: what the folder holds others can remove.

    Raises:
        ActionRequiredError: the division is damaged.
    """
    return not (is_restored(work) or earlier_sheets(ledger, number, division_here(work).blocks))


def asks_a_person(work: Path, policy: Policy, ledger: Mirror) -> str | None:
    """Return the name of the survey that a person here has to decide about, if there is one."""
    number = ledger.newest_survey
    if not number or (ledger.root / sheet_path(number)).exists():
        return None
    judged = judge(policy, decision(work, number), is_first=is_first(work, ledger, number))
    return name_of(number) if judged == "ask" else None


def ways_to_decide(work: Path, name: str) -> str:
    """Return the commands by which a person decides about a run or survey."""
    return " or ".join(f"`dropfed-site {way} {name} --work {quoted(work)}`" for way in ("approve", "decline"))


def describe(work: Path, name: str) -> str:
    """Return what a survey asks, and the very bytes that would leave.

    Raises:
        ConfigurationError: there is no such survey.
    """
    ledger, number = _found(work, name)
    asked, _ = survey(ledger, number)
    answered = answer(ledger, number)
    made = answered or draft(work, number)
    classes = f", by the classes {', '.join(asked.classes)}" if asked.classes else ""
    lines = [f"{name}: the aggregator asks for one sheet of figures about the images of {asked.task}{classes}"]
    if made is None:
        lines.append("the daemon has not made the sheet yet: it reads every image for it")
        return "\n".join(lines)
    if answered is not None:
        lines.append(f"this site has answered: {'yes' if answered.agrees else 'no'}: {answered.reason}")
    what = "what has left" if answered else "what would leave"
    lines += [
        f"{what}, to the byte, with this site's signature over it, as {sheet_path(number)}:",
        "",
        canonical(made.model_dump(mode="json")).decode(),
        "",
        "nothing else leaves: no image, no name of a file, no text out of one; null is withheld",
        "whoever runs the server can read it: no sheet is encrypted, whatever the policy requires of runs",
    ]
    if before := earlier_sheets(ledger, number, division_here(work).blocks):
        lines.append(
            f"{', '.join(before)} told of some of the same images: whoever sets them side by side learns what has "
            "changed between them; no count tells of a change by fewer images than the minimum"
        )
    if is_restored(work):
        lines.append(
            "this site lost its disk: a sheet that left before may have been removed from the folder, and is then not "
            "named here"
        )
    if answered is None:
        lines.append(f"decide by {ways_to_decide(work, name)}")
    return "\n".join(lines)


def decide(work: Path, name: str, said: Literal["yes", "no"], when: str) -> None:
    """Write a person's answer down, for the daemon to send.

    Args:
        when: the daemon acts on it, as the end of a sentence.

    Raises:
        ConfigurationError: there is no such survey, it is answered, or another came after it; or the policy says never.
    """
    with deciding(work):
        ledger, number = _found(work, name)
        if answer(ledger, number) is not None:
            raise ConfigurationError([f"{name}: is answered already, and an answer cannot be taken back"])
        if number != ledger.newest_survey:
            raise ConfigurationError([f"{name}: a later survey came; decide about {name_of(ledger.newest_survey)}"])
        if said == "yes" and configuration_in_force(work).policy.statistics == "never":
            never = "policy: statistics: never in site.yaml declines every survey; change that"
            raise ConfigurationError([f"{name}: {never}"])
        write_file(work / SURVEYS / f"{number:04d}.decision", said.encode())
    say(f"{name}: {said}; the daemon says so in the folder {when}")


def _found(work: Path, name: str) -> tuple[Mirror, int]:
    require_here(work)
    ledger, number = read_ledger(work), int(name.removeprefix(f"{SURVEYS}/"))
    if not (ledger.root / survey_path(number)).exists():
        known = ledger.newest_survey
        told = f"the newest here is {name_of(known)}" if known else "none has come yet"
        raise ConfigurationError([f"{name}: no such survey has come to {work}; {told}"])
    return ledger, number


def _draft_path(work: Path, number: int) -> Path:
    return work / SURVEYS / f"{number:04d}.json"
