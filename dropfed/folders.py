"""One exchanged folder for notebooks: verified as by ``dropfed-audit verify``, every message with its findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shared.audit.archive import open_archive
from shared.audit.on_folders import check_key
from shared.audit.reading import Finding, Reading
from shared.audit.verify import verified
from shared.errors import ConfigurationError, RejectedError
from shared.exchange.names import MessageRef
from shared.exchange.records.values import AnyPayload
from shared.exchange.trust import Message

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class FolderMessage:
    """One signed message.

    Args:
        ref: where it lies; ``ref.kind``, ``ref.run`` and ``ref.round_no`` say what it is.
        sender: ``aggregator``, or the site.
        seq: its number among the sender's messages, from 1 upwards.
        created: when it was signed, UTC, by the sender's clock.
        digest: SHA-256 of its manifest, by which others name it.
        files: size in bytes of each file, by name.
        findings: what does not hold of it; empty if all of it does.
    """

    ref: MessageRef
    sender: str
    seq: int
    created: str
    digest: str
    files: Mapping[str, int]
    findings: tuple[Finding, ...]


class DropFolder:
    """One site's folder, verified. A message that does not pass its signature is not among ``messages``; it is in
    ``findings``, as is everything else that does not hold.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.findings: tuple[Finding, ...] = tuple(verified(reading).findings)
        """All that does not hold, as ``dropfed-audit verify`` prints it."""
        told = sorted(reading.messages.values(), key=lambda each: (each.manifest.sender, each.manifest.seq))
        self.messages: tuple[FolderMessage, ...] = tuple(map(self._told, told))
        """The aggregator's messages in their order, and the site's in theirs."""

    @property
    def holds(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    @property
    def federation(self) -> str | None:
        """The federation's name; None where ``federation.json`` does not hold, and so nothing else."""
        return self._reading.federation.federation if self._reading.federation else None

    @property
    def site(self) -> str | None:
        """The site's name; None where ``federation.json`` does not hold."""
        return self._reading.federation.site if self._reading.federation else None

    def record(self, ref: MessageRef, kind: type[AnyPayload]) -> AnyPayload:
        """Return a record of a message, such as the ``Verdict`` of ``MessageRef("verdict", "octa-2026-01", 3)``.

        Raises:
            NotFoundError: there is no such message, or its file is encrypted and no key opens it.
            RejectedError: there is a finding about the message, which is told.
        """
        for finding in self._about(ref):
            raise RejectedError(finding.file, finding.what)
        return self._reading.record(ref, kind)

    def frame(self) -> DataFrame:
        """Return every row of the site's ``metrics.csv`` of every run and round, with its columns.

        ``run`` and ``site`` come first, then ``finding``: the first finding about the row's message, "" if it holds. A
        table that is not well-formed has no rows, and a finding.
        """
        from dropfed.tables import metrics_frame  # noqa: PLC0415  (whoever asks for no frame needs no pandas)

        told = []
        for message in self.messages:
            if message.ref.kind == "update":
                finding = message.findings[0].what if message.findings else ""
                before = {"run": message.ref.run, "site": self.site, "finding": finding}
                told += [(before, row) for row in self._reading.readable_table(message.ref.run, message.ref.round_no)]
        return metrics_frame(["run", "site", "finding"], told)

    def _about(self, ref: MessageRef) -> list[Finding]:
        return [each for each in self.findings if each.file == ref.path or each.file.startswith(f"{ref.path}/")]

    def _told(self, message: Message) -> FolderMessage:
        manifest = message.manifest
        return FolderMessage(
            ref=message.ref,
            sender=manifest.sender,
            seq=manifest.seq,
            created=manifest.created,
            digest=message.digest,
            files={name: entry.size for name, entry in manifest.files.items()},
            findings=tuple(self._about(message.ref)),
        )


def open_folder(path: Path | str, *, key: str | None = None, secret_key: Path | str | None = None) -> DropFolder:
    """Open and verify one drop folder, or a copy of one, on this machine's disk; nothing in it is changed.

    PyTorch is not needed. Verifying takes as long as `dropfed-audit verify` does: every file is read once.

    Args:
        key: the aggregator's public key if known from elsewhere (64 hex digits); without it the folder is only checked
            against itself.
        secret_key: the file with the private encryption key of the site or the aggregator, to open what is encrypted.

    Raises:
        ConfigurationError: it is no drop folder, or holds several; or a key is none.
        ActionRequiredError: it cannot be read.
    """
    check_key("key", key, "aggregator")
    archive = open_archive([str(path)], secret_key=Path(secret_key) if secret_key is not None else None)
    if len(archive.folders) > 1:
        raise ConfigurationError([f"{path}: holds several drop folders; open one of {', '.join(archive.folders)}"])
    (folder,) = archive.folders.values()
    return DropFolder(Reading(folder, key, archive.secret_key))
