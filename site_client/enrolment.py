"""Enrolment: our card goes into the folder, and the aggregator's list of keys comes from there."""

from __future__ import annotations

import logging
from pathlib import Path

from shared.errors import ActionRequiredError, AlreadyExistsError, DoubtfulError, RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encryption import ENCRYPTION_KEY_FILE
from shared.exchange.last_heartbeat import last_told
from shared.exchange.names import MAX_RECORD_BYTES, MessageRef
from shared.exchange.order import ending_of
from shared.exchange.trust import open_federation, open_site_card
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.plurals import pluralize
from site_client import store
from site_client.arrivals import Arrivals
from site_client.commitment import release
from site_client.configuration import FILE, SiteConfiguration, no_card, other_site
from site_client.division import BUDGET, DIVISION
from site_client.rotation import first_key

logger = logging.getLogger(__name__)

TAKING_BACK = "taking-back"
"""Name of the file that is in the work directory while the answers of a lost disk come back from the folder."""


class Enrolment:
    """One hospital's enrolment in its folder.

    Attributes:
        has_published: whether our card is known to be in the folder.
    """

    def __init__(
        self, work: Path, configuration: SiteConfiguration, folder: ListedFolder, channel: Channel, arrivals: Arrivals
    ) -> None:
        self.has_published = False
        self._work = work
        self._configuration = configuration
        self._folder = folder
        self._ledger, self._inbox, self._outbox = channel.ledger, channel.inbox, channel.outbox
        self._arrivals = arrivals

    @property
    def is_accepted(self) -> bool:
        """Whether the aggregator has accepted our card."""
        return (self._ledger.root / names.FEDERATION).exists()

    def publish_card(self) -> None:
        """Put our card into the folder, or take it back from there, and with it every answer that a lost disk held, or
        that was signed since this work directory was copied.

        While ``TAKING_BACK`` is there not every answer may be: a daemon that was killed meanwhile goes on with it.
        """
        path, taking_back = self._ledger.root / names.SITE_CARD, self._work / TAKING_BACK
        if path.exists():
            try:
                self._folder.create(names.SITE_CARD, path.read_bytes())
            except AlreadyExistsError as error:
                raise ActionRequiredError(
                    f"{error} `dropfed-site check --work {quoted(self._work)}` compares the two."
                ) from None
        else:
            content = self._folder.read_or_none(names.SITE_CARD, max_bytes=MAX_RECORD_BYTES)
            if content is None:
                raise no_card(self._work)
            us = self._configuration
            try:
                open_site_card(content, federation=us.federation, site=us.site, secret=None)
            except RejectedError as error:
                raise other_site(f"{names.SITE_CARD} in the folder", error.reason, us) from None
            store.note_restored(self._work)
            write_file(taking_back, b"")
            write_file(path, content)
        self._outbox.publish_keys()
        if not self.is_accepted:
            self.read_federation()  # with keys that open what a lost disk held
        if taking_back.exists():
            self._inbox.learn_keys()  # which the lost disk knew: what an older key signs is not believed until then
        self._require_newest(self._take_back_answers(taking_back))
        if taking_back.exists():
            self._sum_up_restore()
        taking_back.unlink(missing_ok=True)
        for run in store.runs_with(self._work, "noise"):
            if ending_of(self._ledger, run) is not None:
                release(self._work, self._ledger, run)
        if (last := self._ledger.last_from_peer()) is not None:
            self._outbox.prune(last.ref.run)
        self.has_published = True

    def _take_back_answers(self, taking_back: Path) -> DoubtfulError | None:
        """Take back what this site signed in runs that are not over, and that is not in this work directory.

        Returns:
            What may have hidden some of it, if anything did.

        Raises:
            RejectedError: what lies in the folder is not ours, or not whole.
        """
        is_all_lost, before = taking_back.exists() or self._ledger.own_head.seq == 0, self._ledger.own_head
        doubtful = None
        for run in self._arrivals.runs():
            if not is_all_lost and ending_of(self._ledger, run) is not None:
                continue
            updates = [MessageRef("update", run, ref.round_no) for ref in self._arrivals.rounds_of(run)]
            try:
                self._inbox.adopt([MessageRef("consent", run), *updates, MessageRef("withdrawal", run)])
            except DoubtfulError as error:  # anybody may have put it there, and nothing that we signed need be missing
                if is_all_lost:
                    raise
                doubtful = doubtful or error
        if not is_all_lost and self._ledger.own_head != before:
            store.note_restored(self._work)
            logger.warning(
                "this work directory is older than what this site has signed: its answers are taken back from the "
                "folder; what stayed here alone is as old as the directory"
            )
        return doubtful

    def _require_newest(self, doubtful: DoubtfulError | None) -> None:
        """Sign nothing while the folder keeps back what this site signed last.

        It would have a number that was used before, and the aggregator would refuse it for good (protocol 10.1).

        Args:
            doubtful: what hid answers there.

        Raises:
            ActionRequiredError: our heartbeat there speaks of a later message than we have.
            DoubtfulError: so it does, for that reason.
        """
        told = last_told(self._folder, self._ledger.own).seq
        if told > (here := self._ledger.own_head.seq):
            if doubtful is not None:
                raise doubtful
            raise ActionRequiredError(
                f"the folder has lost messages: by {names.STATUS} there this site has signed message {told}, and the "
                f"last one there is {here}; this site signs nothing until they are back; ask the server's people to "
                "restore the newest backup of the folder, or ask the aggregator's people for an invite under a new name"
            )

    def _sum_up_restore(self) -> None:
        """Log what came back of a lost disk's work, and what did not."""
        messages = self._ledger.own_messages()
        runs = dict.fromkeys(message.ref.run for message in messages)
        said = f" in {pluralize(len(runs), 'run')} ({', '.join(runs)})" if runs else ""
        lacking = [name for name in (ENCRYPTION_KEY_FILE, DIVISION, BUDGET) if not (self._work / name).exists()]
        logger.warning(
            "restored from the folder: this site's card and %s of its%s; %s; what stayed here alone, such as heads and "
            "BatchNorm, begins anew; what the aggregator counts, as of scaffold, feddyn and feddc, does not, and this "
            "site trains no further round of such a run",
            pluralize(len(messages), "message"),
            said,
            f"not here: {', '.join(lacking)}, put them back from the backup" if lacking else "no file of it is missing",
        )

    def read_federation(self) -> bool:
        """Accept the aggregator's list of keys, if it is this folder's and names ours; return whether it is there."""
        self._folder.look_anew()
        if (content := self._folder.read_or_none(names.FEDERATION, max_bytes=MAX_RECORD_BYTES)) is None:
            return False
        federation = open_federation(content, aggregator_key=self._configuration.aggregator_key)
        us = (self._configuration.federation, self._configuration.site)
        if (federation.federation, federation.site) != us:
            raise ActionRequiredError(
                f"{names.FEDERATION} was written for {federation.federation}/{federation.site}: this is another site's "
                f"folder, or somebody put its file here; correct site or url in {FILE}, or tell the aggregator's people"
            )
        if federation.site_key != first_key(self._work):
            raise ActionRequiredError(
                f"{names.FEDERATION} names another key for this site: ask the aggregator for an invite"
            )
        write_file(self._ledger.root / names.FEDERATION, content)
        logger.info("enrolled in %s", federation.federation)
        return True
