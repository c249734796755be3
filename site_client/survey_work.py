"""The daemon's part in surveys: it notices them, makes the sheet, and signs it once this hospital agrees.

A survey is no message of a run: it answers nothing, blocks nothing, and a false one is told and left alone.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from shared import service
from shared.errors import (
    ActionRequiredError,
    AlreadyExistsError,
    ConfigurationError,
    DataError,
    DoubtfulError,
    RejectedError,
    Stopped,
    TransientError,
)
from shared.exchange.channel import Channel
from shared.exchange.names import MAX_RECORD_BYTES, sheet_path, survey_path
from shared.exchange.records.surveys import Sheet, SignedSheet, Survey
from shared.exchange.records.values import now_text
from shared.exchange.signing import SigningKey, digest_of
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from site_client import store, surveys
from site_client.configuration import SiteConfiguration
from site_client.sheet import make_sheet
from site_client.trouble import as_trouble

logger = logging.getLogger(__name__)

LONGEST_PAUSES = 20  # of the daemon's looks, between two for a survey: nobody waits for one, and each is a request
LEFT_ALONE = "it is left alone; tell the aggregator's people"
CANNOT = "its images could not be looked through; its own log says why"


class SurveyWork:
    """Answers the newest survey.

    Args:
        folder: which raises what stands in the way at once, and does not wait for its end.

    Attributes:
        waits_for_people: whether a survey waits for a person's yes or no.
    """

    def __init__(
        self,
        work: Path,
        configuration: SiteConfiguration,
        folder: ListedFolder,
        *,
        channel: Channel,
        key: SigningKey,
        stop: threading.Event,
    ) -> None:
        self.waits_for_people = False
        self._work = work
        self._configuration = configuration
        self._folder = folder
        self._ledger, self._inbox = channel.ledger, channel.inbox
        self._key = key
        self._stop = stop
        self._looked_at = float("-inf")
        self._is_in_trouble = False
        self._sought: set[int] = set()  # surveys whose answer was looked for in the folder, since this start
        self._looked_at_answers: set[int] = set()  # since this start: each is in the folder, or something else is
        self._told: set[str] = set()  # what was wrong, once each

    def work(self) -> bool:
        """Do what can be done now; return whether anything was done. Whatever is wrong with a survey, all else goes on.

        Raises:
            Stopped: this daemon is to end, or to pause.
        """
        is_time = self._is_time()
        if self._is_in_trouble and not is_time:
            return False
        try:
            has_worked = self._work_on(is_time)
        except Stopped:
            raise
        except Exception as error:
            if self._stop.is_set():  # which cuts the line
                return False
            self._is_in_trouble = True
            trouble = as_trouble(error, self._work)
            level = logging.INFO if isinstance(trouble, TransientError) else logging.WARNING
            self._tell(str(trouble).rstrip("."), "surveys wait until that is mended, and all else goes on", level)
            if trouble.__cause__ is error:  # nobody expected it
                logger.error("%s", trouble, exc_info=error)
            return False
        self._is_in_trouble = False
        return has_worked

    def _work_on(self, is_time: bool) -> bool:
        has_noticed = is_time and self._notice()
        if is_time:
            self._take_back()
        if not (number := self._ledger.newest_survey):
            return has_noticed
        if surveys.answer(self._ledger, number) is None and (number not in self._sought or not self._answer(number)):
            return has_noticed
        self.waits_for_people = False
        answered = [each for each in range(1, number + 1) if (self._ledger.root / sheet_path(each)).exists()]
        return sum(self._publish(each) for each in answered) > 0 or has_noticed

    def _is_time(self) -> bool:
        """Return whether to look for a survey now."""
        now = time.monotonic()
        if now - self._looked_at < LONGEST_PAUSES * self._configuration.poll_seconds:
            return False
        self._looked_at = now
        self._folder.look_anew()
        return True

    def _notice(self) -> bool:
        """Take the next survey, if it is there and holds."""
        path = survey_path(number := self._ledger.newest_survey + 1)
        if self._folder.find(path) is None:
            return False
        content = self._folder.read(path, max_bytes=MAX_RECORD_BYTES)
        try:
            survey = self._inbox.open_survey(content, number)
        except RejectedError as error:
            self._tell(str(error), error.remedy if isinstance(error, DoubtfulError) else LEFT_ALONE)
            return False
        self._adopt(survey, digest_of(content))  # first: a crash must not have us answer a second time
        write_file(self._ledger.root / path, content)
        return True

    def _take_back(self) -> None:
        """Look once after each start for answers of ours that are not here: this work directory may be an old copy."""
        for number in range(1, self._ledger.newest_survey + 1):
            if number not in self._sought and surveys.answer(self._ledger, number) is None:
                self._adopt(*surveys.survey(self._ledger, number))

    def _adopt(self, survey: Survey, digest: str) -> None:
        """Take our own answer back from the folder, if a lost disk held it, or a newer state of this work directory.

        Until the folder was seen to have none, or one that holds, a survey is not answered.
        """
        if self._folder.find(path := sheet_path(survey.number)) is not None:
            content = self._folder.read(path, max_bytes=MAX_RECORD_BYTES)
            try:
                self._ledger.own.open_sheet(content, survey, digest)
            except RejectedError as error:
                self._tell(f"{error}: it stands where this site's answer belongs")
                return
            store.note_restored(self._work)
            write_file(self._ledger.root / path, content)
        self._sought.add(survey.number)

    def _answer(self, number: int) -> bool:
        """Sign the answer, if it is known; return whether it is."""
        survey, digest = surveys.survey(self._ledger, number)
        decided = surveys.decision(self._work, number)
        policy = self._configuration.policy
        if surveys.judge(policy, decided, is_first=True) == "no":
            by = "a person at the hospital" if decided is False else "the hospital's policy"
            answer = self._answer_of(survey, digest, f"{by} said no")
        else:
            answer = surveys.draft(self._work, number) or self._make(survey, digest)
        is_first = surveys.is_first(self._work, self._ledger, number)  # known once all images are dealt
        if answer.agrees and surveys.judge(policy, decided, is_first=is_first) == "ask":
            self._ask(surveys.name_of(number))
            return False
        with store.deciding(self._work):
            # Reading the images may have taken long: what people here have said meanwhile counts.
            self._go_on_or_stop()
            if is_as_decided := surveys.decision(self._work, number) == decided:
                write_file(self._ledger.root / sheet_path(number), self._key.sign(answer.model_dump(mode="json")))
        if not is_as_decided:
            return self._answer(number)
        logger.info("%s: %s: %s", surveys.name_of(number), "answered" if answer.agrees else "declined", answer.reason)
        return True

    def _make(self, survey: Survey, digest: str) -> SignedSheet:
        """Make the answer that would be signed, and keep it for ``show``."""
        if survey.task not in self._configuration.data:
            return self._answer_of(survey, digest, f"this hospital has no images of {survey.task}")
        try:
            sheet = make_sheet(self._work, self._ledger, self._configuration, survey, self._go_on_or_stop)
        except (DataError, ConfigurationError, ActionRequiredError) as error:
            if isinstance(error, ActionRequiredError) and store.is_restored(self._work):
                raise  # a person is to put the division back, or to accept a new one
            logger.warning("%s: no sheet can be made: %s", surveys.name_of(survey.number), error)
            return self._answer_of(survey, digest, CANNOT)
        made = self._answer_of(survey, digest, "this hospital agreed", sheet)
        surveys.write_draft(self._work, made)
        return made

    def _answer_of(self, survey: Survey, digest: str, reason: str, sheet: Sheet | None = None) -> SignedSheet:
        return SignedSheet(
            federation=survey.federation,
            site=survey.site,
            number=survey.number,
            in_reply_to=digest,
            agrees=sheet is not None,
            reason=reason,
            sheet=sheet,
            own_head=self._ledger.own_head,
            created=now_text(),
        )

    def _ask(self, name: str) -> None:
        if not self.waits_for_people:
            ways = surveys.ways_to_decide(self._work, name)
            logger.warning("%s asks for figures about the images, which `dropfed-site show` shows: %s", name, ways)
        self.waits_for_people = True

    def _publish(self, number: int) -> bool:
        if number in self._looked_at_answers:
            return False
        is_new, path = not surveys.is_published(self._work, number), sheet_path(number)
        try:
            self._folder.create(path, (self._ledger.root / path).read_bytes())
        except AlreadyExistsError as error:
            self._tell(f"{error}: it is not what this site signed")
            is_new = False
        else:
            surveys.note_published(self._work, number)
        self._looked_at_answers.add(number)
        return is_new

    def _go_on_or_stop(self) -> None:
        service.alive()
        if self._stop.is_set() or store.is_paused(self._work):
            raise Stopped("interrupted, and begins anew")

    def _tell(self, what: str, then: str = LEFT_ALONE, level: int = logging.WARNING) -> None:
        if what not in self._told:
            logger.log(level, "%s; %s", what, then)
        self._told.add(what)
