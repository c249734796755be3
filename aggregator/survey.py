"""Surveys: what the sites say of their images before any run. Each site answers in its own folder, when it likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregator.configuration import AggregatorConfiguration, SiteAccess, open_folder
from aggregator.enrolment import enrol
from aggregator.setup import encryption_key
from aggregator.site import open_ledger, read_invite
from shared.errors import (
    ActionRequiredError,
    AlreadyExistsError,
    ConfigurationError,
    DropfedError,
)
from shared.exchange.handovers import publish, shown
from shared.exchange.mirror import Mirror
from shared.exchange.names import MAX_RECORD_BYTES, sheet_path, survey_path
from shared.exchange.reading import check_record
from shared.exchange.records.surveys import Sheet, SignedSheet, Survey
from shared.exchange.records.values import now_text
from shared.exchange.signing import KEY_FILE, SigningKey, digest_of
from shared.folder.contract import Folder
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.learning.tasks import TERMS, task_names, terms_of
from shared.trouble import held_against

GRADES = tuple(str(grade) for grade in range(10))
"""What images of a task are counted by whose sites grade by scales of their own."""


@dataclass(frozen=True)
class Asked:
    """One site's part in a survey.

    Args:
        survey: the newest that it was asked; None if there is none.
        answer: None while there is none.
        trouble: what stands in the way, in a sentence.
    """

    site: str
    survey: Survey | None = None
    answer: SignedSheet | None = None
    trouble: str | None = None


def classes_of(task: str, named: Sequence[str] | None) -> list[str]:
    """Return what a survey counts a task's images, or pixels, by.

    Args:
        named: what the PI says; None: what the task's runs have if nothing else is said.

    Raises:
        ConfigurationError: there is no such task.
    """
    if task not in task_names():
        raise ConfigurationError([f"task: there is no '{task}'; the tasks are: {', '.join(task_names())}."])
    if named is not None or task not in TERMS:
        return list(named or ())
    options = terms_of(task).options({})
    default = GRADES if task == "dr_staging" else ()
    return list(getattr(options, "severities", None) or options.class_names or default)


def ask(work: Path, configuration: AggregatorConfiguration, task: str, classes: Sequence[str]) -> list[Asked]:
    """Ask every site for a sheet of its images of a task; what stands in one's way stops no other.

    Raises:
        ConfigurationError: the classes are none.
    """
    _survey(configuration.federation, "site", 1, task, classes)
    sites = sorted(configuration.sites)
    return [_each(name, lambda name=name: _ask(work, configuration, name, task, classes)) for name in sites]


def collect(work: Path, configuration: AggregatorConfiguration) -> list[Asked]:
    """Return what every site was asked last, and its answer, which is kept here once it is in its folder and holds."""
    return [_each(name, lambda name=name: _collect(work, configuration, name)) for name in sorted(configuration.sites)]


def kept_sheet(ledger: Mirror, task: str) -> Sheet | None:
    """Return a site's last sheet of its images of a task, of those that are kept here; None if none is."""
    for number in range(ledger.newest_survey, 0, -1):
        content = (ledger.root / survey_path(number)).read_bytes()
        survey, kept = ledger.own.open_survey(content, number), ledger.root / sheet_path(number)
        if survey.task == task and kept.exists():
            sheet = ledger.peer.open_sheet(kept.read_bytes(), survey, digest_of(content)).sheet
            if sheet is not None:
                return sheet
    return None


def _each(site: str, act: Any) -> Asked:
    try:
        with held_against(site):
            found: Asked = act()
            return found
    except DropfedError as error:
        return Asked(site, trouble=str(error))


def _survey(federation: str, site: str, number: int, task: str, classes: Sequence[str]) -> Survey:
    values = {"number": number, "task": task, "classes": list(classes), "created": now_text()}
    return check_record({"federation": federation, "site": site, **values}, Survey, "survey")


def _ask(work: Path, configuration: AggregatorConfiguration, name: str, task: str, classes: Sequence[str]) -> Asked:
    _collect(work, configuration, name)  # an answer to the survey before this one is kept, too
    key, home = SigningKey.at(work / KEY_FILE), work / "sites" / name
    folder = _folder(work, configuration.sites[name])
    if open_ledger(home, key=key.public) is None and not enrol(
        home, folder, read_invite(work, name), key, encryption_key(work)
    ):
        return Asked(name, trouble="the site has not joined yet: its card is not in the folder")
    ledger = open_ledger(home, key=key.public)
    if ledger is None:
        raise ActionRequiredError(f"{home} does not show that {name} is enrolled; launch a run, or ask again")
    survey = _survey(configuration.federation, name, ledger.newest_survey + 1, task, classes)
    write_file(ledger.root / survey_path(survey.number), key.sign(survey.model_dump(mode="json")))
    for number in range(1, survey.number + 1):  # the site takes none before the one that somebody may have removed
        _publish(folder, ledger, number)
    return Asked(name, survey)


def _collect(work: Path, configuration: AggregatorConfiguration, name: str) -> Asked:
    ledger = open_ledger(work / "sites" / name)
    if ledger is None or not (number := ledger.newest_survey):
        return Asked(name)
    content = (ledger.root / survey_path(number)).read_bytes()
    survey = ledger.own.open_survey(content, number)
    try:
        with held_against(name):
            folder = _folder(work, configuration.sites[name])
            return Asked(name, survey, _answer(folder, ledger, survey, digest_of(content)))
    except DropfedError as error:
        return Asked(name, survey, trouble=str(error))


def _answer(folder: Folder, ledger: Mirror, survey: Survey, digest: str) -> SignedSheet | None:
    """Return the site's answer, from here or else from its folder.

    Raises:
        RejectedError: what is there is none.
    """
    path = sheet_path(survey.number)
    kept = ledger.root / path
    if kept.exists():
        return shown(ledger.peer, folder).open_sheet(kept.read_bytes(), survey, digest)
    _publish(folder, ledger, survey.number)  # a command that was cut off may not have
    if (content := folder.read_or_none(path, max_bytes=MAX_RECORD_BYTES)) is None:
        return None
    answer = shown(ledger.peer, folder).open_sheet(content, survey, digest)
    write_file(kept, content)
    return answer


def _publish(folder: Folder, ledger: Mirror, number: int) -> None:
    publish(ledger.own, folder, ledger.root)  # before what a later key has signed (protocol 4.4)
    path = survey_path(number)
    try:
        folder.create(path, (ledger.root / path).read_bytes())
    except AlreadyExistsError:
        raise ActionRequiredError(
            f"{path} in the folder is another than was signed here: this work directory is an old copy, or somebody "
            "put that file there; put back the newest work directory, or see who else can write in the folder"
        ) from None


def _folder(work: Path, access: SiteAccess) -> ListedFolder:
    return ListedFolder(open_folder(work, access))
