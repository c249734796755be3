"""One drop folder as an auditor reads it: what lies there, whose keys hold, and every message that passes ``trust.py``.

What does not hold becomes a finding on the way; what follows from all messages together is ``verify.py``'s.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path

from shared.audit import protocol_1
from shared.audit.archive import MirroredFolder
from shared.audit.listing import Listing, blamed
from shared.doors.numbers import whole
from shared.errors import ActionRequiredError, ConfigurationError, NotFoundError, RejectedError
from shared.exchange import names
from shared.exchange.encoding import max_weights_bytes
from shared.exchange.encryption import (
    ENCRYPTION_KEY_FILE,
    Content,
    EncryptionKey,
    RunKey,
    decrypt,
    decrypted,
    max_ciphertext_bytes,
    run_key,
)
from shared.exchange.ledger import Ledger
from shared.exchange.names import AGGREGATOR, MANIFEST, MAX_RECORD_BYTES, MessageRef
from shared.exchange.order import Ending, ending
from shared.exchange.readme import KNOWN_TEXTS
from shared.exchange.records.answers import Consent
from shared.exchange.records.messages import Federation, Handover, Head, SiteCard, Status
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.surveys import SignedSheet, Survey
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import AnyPayload, Payload
from shared.exchange.signing import digest_of, open_signed
from shared.exchange.trust import (
    Message,
    Peer,
    check_file,
    check_sizes,
    open_federation,
    open_record,
    open_site_card,
    open_yaml,
)
from shared.folder.contract import Folder, finished_name
from shared.folder.local import LocalFolder
from shared.trouble import held_against

UNKNOWN = "unknown"
NOT_OPENED = "encrypted, not opened"


@dataclass(frozen=True, order=True)
class Finding:
    """What does not hold: path inside the folder, what is wrong, and since when (UTC) it may be so."""

    file: str
    what: str
    since: str


class HiddenError(NotFoundError):
    """It is there, but encrypted, and no key opens it."""


class Reading(Ledger):
    """Reads at once all that is small; tensor files only when they are asked for.

    Args:
        aggregator_key: the aggregator's public key if known from elsewhere (64 hex digits).
        secret_key: the site's or the aggregator's private encryption key, which opens what is encrypted; or what opens
            one run.

    Raises:
        ActionRequiredError: the folder cannot be read.
    """

    def __init__(
        self, folder: Folder, aggregator_key: str | None = None, secret_key: EncryptionKey | RunKey | None = None
    ) -> None:
        super().__init__()
        self.folder = folder
        self._secret_key = secret_key
        self.findings: list[Finding] = []
        listing = Listing(folder)
        self.sizes, self.by_ref, self.scratch = listing.sizes, listing.by_ref, listing.scratch
        self.odd = listing.odd
        for path, what in self.odd.items():
            self.find(path, what)
        self.card: bytes | None = None
        self.site_card: SiteCard | None = None
        self.status: Status | None = None
        self.handovers: dict[str, Handover] = {}
        """Records by which either side changed its key, by path."""
        self.surveys: dict[str, Survey | SignedSheet] = {}
        """What was asked about the site's images and what it answered, by path, each answer after its survey."""
        self.keys_of_surveys: dict[str, str] = {}
        """The public key that signed each of these, by path."""
        self._records: dict[tuple[MessageRef, type[Payload]], Payload | None] = {}
        self.federation = self._read_federation(aggregator_key)
        self._check_names_of_scratch()
        if self.federation is not None:
            self.card = self._read_card(self.federation)
            self.site = self._followed(_peer(self.federation, self.federation.site, self.federation.site_key))
            self.aggregator = self._followed(_peer(self.federation, AGGREGATOR, self.federation.aggregator_key))
            self._read_surveys()
            self._read_status()
            self._leave_out_later_kinds(self.federation)
            listing.strangers -= self._unfinished()
            self._read_messages()
        for path in listing.strangers:
            self.find(path, "is a file that does not belong here")

    def _check_names_of_scratch(self) -> None:
        is_old = self.federation is not None and self.federation.protocol == 1
        for path in self.scratch:
            if not (protocol_1 if is_old else names).is_scratch(path):
                self.find(path, "is a folder that does not belong here")

    # --- what was read -------------------------------------------------------------------------------------

    def find(self, file: str, what: str, since: str = UNKNOWN) -> None:
        """Note what does not hold."""
        self.findings.append(Finding(file, what, since))

    @contextmanager
    def looking_at(self, path: str, since: str = UNKNOWN) -> Iterator[None]:
        """Note what does not hold of what is looked at inside, whatever is raised for it."""
        try:
            with held_against(path):
                yield
        except RejectedError as error:
            self.find(error.file, error.reason, since)

    @cached_property
    def runs(self) -> dict[str, str]:
        """The runs that there are messages of, and when the first of each was signed, which only informs."""
        first: dict[str, str] = {}
        for message in self.messages.values():
            created = message.manifest.created
            first[message.ref.run] = min(created, first.get(message.ref.run, created))
        return first

    def has_any_of(self, run: str) -> bool:
        """Return whether there is a message of a run here, or a file or folder in the place of one."""
        return any(ref.run == run for ref in self.by_ref)

    def key_of(self, message: Message) -> str:
        """Return the public key that signed a message."""
        return (self.site if message.ref.is_from_site else self.aggregator).key_of(message.manifest.seq)

    def reported_heads(self) -> Iterator[tuple[str, str, Head]]:
        """Yield the messages that records speak of as the newest: where that is said, and their sender."""
        for path, handover in self.handovers.items():
            is_sites = names.is_handover(path, self.opened.site)
            yield path, self.opened.site if is_sites else AGGREGATOR, handover.after
        for path, record in self.surveys.items():
            if isinstance(record, SignedSheet):
                yield path, self.opened.site, record.own_head
        if self.status is not None:
            yield names.STATUS, self.opened.site, self.status.own_head
            yield names.STATUS, AGGREGATOR, self.status.aggregator_head

    @property
    def opened(self) -> Federation:
        """Who takes part here.

        Raises:
            RejectedError: ``federation.json`` does not hold.
        """
        if self.federation is None:
            found = next(finding for finding in self.findings if finding.file == names.FEDERATION)
            raise RejectedError(found.file, found.what)
        return self.federation

    @cached_property
    def refs(self) -> dict[str, MessageRef]:
        """Where each message lies, by its digest."""
        return {message.digest: ref for ref, message in self.messages.items()}

    @cached_property
    def answers(self) -> dict[str, list[MessageRef]]:
        """Where the messages lie that answer a message, by its digest."""
        found: dict[str, list[MessageRef]] = defaultdict(list)
        for ref, message in self.messages.items():
            if message.manifest.in_reply_to is not None:
                found[message.manifest.in_reply_to].append(ref)
        return found

    def read(self, path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
        """Return a small file as it lies in the folder.

        Raises:
            NotFoundError: there is no such file.
            RejectedError: it is larger, or cannot be read though the folder can.
        """
        with blamed(self.folder, path):
            return self.folder.read(path, max_bytes=max_bytes)

    def manifest(self, message: Message) -> bytes:
        """Return a message's manifest as it was when the folder was read.

        Raises:
            NotFoundError: it is not there any more.
            RejectedError: it is another by now, or cannot be read.
        """
        content = self.read(message.ref.manifest)
        if digest_of(content) != message.digest:
            raise RejectedError(message.ref.manifest, "was changed while the folder was read: begin anew")
        return content

    def has(self, ref: MessageRef, name: str) -> bool:
        """Return whether a file that a message names is there."""
        return f"{ref.path}/{name}" in self.sizes

    def content(self, ref: MessageRef, name: str) -> bytes:
        """Return what a small file of a message says, decrypted if it is encrypted.

        Raises:
            NotFoundError: there is no such message or file.
            HiddenError: it is encrypted, and no key opens it.
            RejectedError: it is another than its manifest says, too large, or cannot be read.
        """
        path, message = f"{ref.path}/{name}", self.messages.get(ref)
        if message is None or name not in message.manifest.files:
            raise NotFoundError(f"{path} is not there")
        said = self._said(message, name)
        content = self.read(path, max_bytes=max_ciphertext_bytes(MAX_RECORD_BYTES) if said else MAX_RECORD_BYTES)
        if said is None:
            check_file(message, name, len(content), digest_of(content))
            return content
        if isinstance(self.folder, MirroredFolder):
            _check_said(said, digest_of(content), path)
            return content
        check_file(message, name, len(content), digest_of(content))
        return b"".join(decrypted(BytesIO(content), said, path))

    @property
    def is_early(self) -> bool:
        return self.opened.protocol == 1

    def parsed(self, content: bytes, kind: type[AnyPayload], path: str) -> AnyPayload:
        """Return a record by what its file says, in the protocol of the folder.

        Raises:
            RejectedError: it is not well-formed.
        """
        in_json, in_yaml = open_record, open_yaml
        if self.is_early:
            in_json, in_yaml = protocol_1.open_record, protocol_1.open_yaml
        return (in_yaml if path.endswith(".yaml") else in_json)(content, kind, path)

    @contextmanager
    def file(self, message: Message, name: str) -> Iterator[Path]:
        """Yield a local path of a message's file, decrypted; a temporary copy is removed afterwards.

        Raises:
            NotFoundError: it is not there.
            HiddenError: it is encrypted, and no key opens it.
            RejectedError: it is another than its manifest says, or cannot be read.
        """
        path = f"{message.ref.path}/{name}"
        if path not in self.sizes:
            raise NotFoundError(f"{path} is not there")
        said = self._said(message, name)
        if said is None:
            with self.as_it_lies(message, name) as local:
                yield local
        elif isinstance(self.folder, MirroredFolder):
            self._check_sizes(message)
            with blamed(self.folder, path):
                _check_said(said, self.folder.hash(path)[1], path)
            yield self.folder.locate(path)
        else:
            with (
                self.as_it_lies(message, name) as ciphertext,
                tempfile.TemporaryDirectory(prefix="dropfed-audit-") as scratch,
            ):
                decrypt(ciphertext, Path(scratch) / name, said, path)
                yield Path(scratch) / name

    @contextmanager
    def as_it_lies(self, message: Message, name: str) -> Iterator[Path]:
        """Yield a local path of a message's file, checked against its manifest; an encrypted file stays encrypted.

        Raises:
            NotFoundError: it is not there.
            RejectedError: it is another, or cannot be read; or it is encrypted, and this copy has only what it says.
        """
        path = f"{message.ref.path}/{name}"
        if message.manifest.files[name].encrypted is not None and isinstance(self.folder, MirroredFolder):
            raise RejectedError(path, f"was encrypted, and without {ENCRYPTION_KEY_FILE} nobody can compare it")
        size = self.sizes.get(path)
        if size is None:
            raise NotFoundError(f"{path} is not there")
        check_file(message, name, size, message.manifest.files[name].sha256)
        self._check_sizes(message)
        if isinstance(self.folder, LocalFolder):
            with blamed(self.folder, path):
                check_file(message, name, *self.folder.hash(path))
            yield self.folder.locate(path)
            return
        with tempfile.TemporaryDirectory(prefix="dropfed-audit-") as scratch:
            target = Path(scratch) / name
            with blamed(self.folder, path):
                sha256 = self.folder.download(path, target, size=size)
            check_file(message, name, size, sha256)
            yield target

    def _check_sizes(self, message: Message) -> None:
        """Check that no file of a message is larger than it can be, before one is looked into (protocol 10.1, step 13).

        Raises:
            RejectedError: one is, by the manifest.
        """
        ref, most = message.ref, names.MAX_START_BYTES
        run, sharing = self.configuration(ref.run), self.sharing(ref.run)
        if ref.kind != "offer" and run is not None and sharing is not None:
            most = max_weights_bytes(sharing, ref.kind, run.wire)
        check_sizes(message, most)

    def _said(self, message: Message, name: str) -> Content | None:
        """Return what decrypts a file of a message; None if it is not encrypted.

        Raises:
            HiddenError: it is, and no key opens it.
            RejectedError: it is encrypted under another key than its run's.
        """
        wrapped, ref = message.manifest.files[name].encrypted, message.ref
        if wrapped is None:
            return None
        if (key := self.key_of_run(ref.run)) is None:
            raise HiddenError(f"{ref.path}/{name} is encrypted: name the key that opens it with --secret-key")
        return key.unwrap(wrapped, ref, name)

    def key_of_run(self, run: str) -> RunKey | None:
        """Return what opens the files of a run here, as far as we have been given it."""
        if isinstance(self._secret_key, RunKey):
            return self._secret_key if self._secret_key.run == run else None
        if self._secret_key is None or self.site_card is None:
            return None
        try:
            return run_key(self._secret_key, self.opened, self.site_card, run)
        except (ConfigurationError, ActionRequiredError):  # it is the key of another folder, or none was shown here
            return None

    def digest(self, message: Message, name: str) -> str:
        """Return the SHA-256 of the decrypted content of a message's file, by its manifest alone: the file may be gone.

        Raises:
            HiddenError: it is encrypted, and no key opens it.
            RejectedError: it is encrypted under another key than its run's.
        """
        said = self._said(message, name)
        return message.manifest.files[name].sha256 if said is None else said.sha256

    def is_hidden(self, ref: MessageRef, name: str) -> bool:
        """Return whether a file that a message names is encrypted, and no key opens it."""
        message = self.messages.get(ref)
        entry = message.manifest.files.get(name) if message else None
        return entry is not None and entry.encrypted is not None and self.key_of_run(ref.run) is None

    def consent(self, run: str) -> Consent | None:
        """Return what the site answered to the offer of a run; None where there is no answer that holds."""
        return self._once(MessageRef("consent", run), Consent)

    def ending(self, run: str) -> Ending | None:
        """Return how a run ended in this folder; None while it goes on, as far as can be read."""
        return ending(run, self.messages.values(), agreed=self._agreed(run))

    def _agreed(self, run: str) -> bool | None:
        """Return whether the site agreed to a run; None if nobody can tell."""
        if (consent := self.consent(run)) is not None:
            return consent.agrees
        try:
            self.content(MessageRef("consent", run), names.CONSENT)
        except (NotFoundError, RejectedError):
            return None
        return False  # what was signed does not hold, which counts as a no (protocol 10.1)

    def hides(self, run: str) -> bool:
        """Return whether some file of a run is encrypted, and no key opens it."""
        return any(
            self.is_hidden(ref, name)
            for ref, message in self.messages.items()
            if ref.run == run
            for name in message.manifest.files
        )

    def hides_settings(self, run: str) -> bool:
        """Return whether the run's configuration is, and with it all that is said in the run."""
        return self.is_hidden(MessageRef("offer", run), names.RUN_CONFIGURATION)

    def hides_rules(self, run: str) -> bool:
        """Return whether the run's configuration is encrypted, so that without a key nobody knows what it prunes."""
        offer = self.messages.get(MessageRef("offer", run))
        is_encrypted = offer is not None and offer.manifest.files[names.RUN_CONFIGURATION].encrypted is not None
        return is_encrypted and self.configuration(run) is None

    def configuration(self, run: str) -> RunConfiguration | None:
        """Return the run's configuration, as signed with the offer; None if it is invalid, which becomes a finding."""
        found = self._once(MessageRef("offer", run), RunConfiguration)
        if found is None or not self.is_early:
            return found
        try:
            return protocol_1.as_today(found)
        except ConfigurationError:
            return None

    def sharing(self, run: str) -> Sharing | None:
        """Return what travels in the run, as signed with the offer; None if it is invalid."""
        return self._once(MessageRef("offer", run), Sharing)

    def was_pruned(self, ref: MessageRef, name: str) -> bool:
        """Return whether a missing file may have been removed by the rule of the run, as signed with the offer."""
        is_gone = names.is_weights(name) and not self.has(ref, name)
        return is_gone and self.may_be_pruned(ref, settled=self._settled[ref.run])

    @cached_property
    def _settled(self) -> dict[str, set[int]]:
        """The rounds that there are verdicts of, by run."""
        found: dict[str, set[int]] = defaultdict(set)
        for ref in self.messages:
            if ref.kind == "verdict":
                found[ref.run].add(ref.round_no)
        return found

    def _once(self, ref: MessageRef, kind: type[AnyPayload]) -> AnyPayload | None:
        """Return the record of a message as ``record_or_none`` does, but read it only once."""
        if (ref, kind) not in self._records:
            self._records[ref, kind] = self.record_or_none(ref, kind)
        found = self._records[ref, kind]
        return found if isinstance(found, kind) else None

    # --- keys ----------------------------------------------------------------------------------------------

    def _read_federation(self, aggregator_key: str | None) -> Federation | None:
        content = self._read(names.FEDERATION)
        if content is None:
            return None
        try:
            with held_against(names.FEDERATION):
                federation = open_federation(content, aggregator_key=None, protocol=None)
        except RejectedError as error:
            self.find(error.file, f"{error.reason}; without it nothing else can be checked")
            return None
        if aggregator_key is not None and federation.aggregator_key != aggregator_key:
            self.find(
                names.FEDERATION,
                f"is signed by the key {federation.aggregator_key}, and --key names {aggregator_key}: compare the two "
                "by telephone; without it nothing else can be checked",
            )
            return None
        readme = self._read(names.README)
        entry = federation.files.get(names.README)
        if readme is not None and (entry is None or digest_of(readme) != entry.sha256):
            self.find(names.README, "is not the text that the aggregator wrote", federation.created)
        elif readme is not None and readme not in KNOWN_TEXTS[federation.protocol]:
            self.find(names.README, f"is not the text that protocol {federation.protocol} has there")
        return federation

    def _read_card(self, federation: Federation) -> bytes | None:
        content = self._read(names.SITE_CARD, federation.created)
        if content is not None:
            with self.looking_at(names.SITE_CARD, federation.created):
                name, site = federation.federation, federation.site
                card = open_site_card(content, federation=name, site=site, secret=None, protocol=federation.protocol)
                self.site_card = card
                if card.key != federation.site_key:
                    self.find(names.SITE_CARD, "shows another key than federation.json", federation.created)
        return content

    def _followed(self, side: Peer) -> Peer:
        """Return a side with all its keys."""
        for path in sorted(path for path in self.sizes if names.is_handover(path, side.sender)):
            if path != names.handover_path(side.next_key_number, side.sender):
                self.find(path, "hands a key over, and the hand-over before it is missing or does not hold")
                continue
            if (content := self._read(path)) is None:
                continue
            with self.looking_at(path):
                side = side.hand_over(content)
                self.handovers[path] = side.handovers[-1]
        return side

    def _read_surveys(self) -> None:
        """Take each survey, in the order of their numbers, and the site's answer to it."""
        for path in sorted(path for path in self.sizes if names.is_survey(path) or names.is_sheet(path)):
            if self.is_early:
                self.find(path, "is a file that does not belong here")
        for path in sorted(filter(names.is_survey, () if self.is_early else self.sizes)):
            number = whole(path[-9:-5].lstrip("0"))
            if number > 1 and names.survey_path(number - 1) not in self.sizes:
                self.find(names.survey_path(number - 1), "is missing, and a later survey is there")
            if (content := self._read(path)) is None:
                continue
            with self.looking_at(path):
                self.surveys[path] = survey = self.aggregator.open_survey(content, number)
                self.keys_of_surveys[path] = open_signed(content)[1]
                self._read_sheet(survey, digest_of(content))
        for path in sorted(filter(names.is_sheet, () if self.is_early else self.sizes)):
            if path not in self.surveys and names.survey_path(whole(path[-9:-5].lstrip("0"))) not in self.surveys:
                self.find(path, "answers a survey that is missing or does not hold")

    def _read_sheet(self, survey: Survey, digest: str) -> None:
        path = names.sheet_path(survey.number)
        if path in self.sizes and (content := self._read(path)) is not None:
            with self.looking_at(path):
                self.surveys[path] = self.site.open_sheet(content, survey, digest)
                self.keys_of_surveys[path] = open_signed(content)[1]

    def _read_status(self) -> None:
        if isinstance(self.folder, MirroredFolder) and names.STATUS not in self.sizes:
            return  # the aggregator never needed it
        content = self._read(names.STATUS)
        if content is not None:
            with self.looking_at(names.STATUS):
                self.status = self.site.open_status(content)

    def _unfinished(self) -> set[str]:
        """Return the files of writes that were cut off before their MOVE, or are going on now: the audit ignores them.

        Each is the file that it was to become, or the beginning of it (protocol 2.2), so that nothing can hide there.
        One of a heartbeat, which is overwritten, may be another heartbeat that the site signed.
        """
        found = set()
        refs = {ref.manifest: ref for ref in self.by_ref}
        for path in sorted(self.sizes):
            name = finished_name(path)
            is_record = name in names.ROOT_FILES or names.is_lasting_record(name)
            if name == path or not (name in refs or is_record) or not self._is_being_written(path, name):
                continue
            found.add(path)
            if name in refs:
                self.by_ref[refs[name]].discard(f"{MANIFEST}{path.removeprefix(name)}")
        return found

    def _is_being_written(self, path: str, name: str) -> bool:
        try:
            content = self.read(path)
        except NotFoundError:  # it was moved to its own name just now
            return True
        except RejectedError:
            return False
        with suppress(NotFoundError, RejectedError):
            if self.read(name).startswith(content):
                return True
        if name != names.STATUS:
            return False
        try:
            self.site.open_status(content)
        except RejectedError:
            return False
        return True

    # --- messages ------------------------------------------------------------------------------------------

    def _read_messages(self) -> None:
        for ref, found in sorted(self.by_ref.items(), key=lambda item: item[0].path):
            if MANIFEST not in found or (content := self._read(ref.manifest)) is None:
                continue
            with self.looking_at(ref.manifest):
                sender = self.site if ref.is_from_site else self.aggregator
                message = sender.open_out_of_order(content, ref)
                self.messages[ref] = message
                for name in found - message.manifest.files.keys() - {MANIFEST}:
                    self.find(f"{ref.path}/{name}", "is not named by its manifest")

    def _leave_out_later_kinds(self, federation: Federation) -> None:
        """Take what the folder's protocol has no message for as what it is there: a stranger."""
        for ref in [*self.by_ref] if federation.protocol == 1 else ():
            if ref.kind in protocol_1.WITHOUT:
                del self.by_ref[ref]
                self.find(ref.path, "is a folder that does not belong here")

    def _read(self, path: str, since: str = UNKNOWN) -> bytes | None:
        """Return a record's bytes; if it is missing, oversized or unreadable, add a finding (once) and return None."""
        if path in self.odd:
            return None
        try:
            return self.read(path)
        except NotFoundError:
            self.find(path, "is missing", since)
        except RejectedError as error:
            self.find(path, error.reason, since)
        return None


def _peer(federation: Federation, sender: str, key: str) -> Peer:
    """Return one side of a folder under its first key."""
    return Peer(federation.federation, federation.site, sender, key, protocol=federation.protocol)


def _check_said(said: Content, sha256: str, path: str) -> None:
    if sha256 != said.sha256:
        raise RejectedError(path, "is not what its sender encrypted (SHA-256 differs)")
