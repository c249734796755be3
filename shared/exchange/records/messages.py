"""The envelope: manifests, who takes part under which keys, invites and heartbeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.exchange.forms import text_that
from shared.exchange.names import MAX_ROUND, Kind, Name
from shared.exchange.records.values import (
    IF_SAID,
    PROTOCOL,
    Count,
    Digest,
    Protocol,
    PublicKey,
    Record,
    Sentence,
    Software,
    Time,
)
from shared.exchange.records.wire import FileEntry
from shared.folder.address import checked_url
from shared.moments import moment_text


class Head(Record):
    """The last message of one sender in one folder: its number (0: none yet) and its manifest's SHA-256."""

    seq: Count = 0
    digest: Digest | None = None

    @model_validator(mode="after")
    def _names_one_or_none(self) -> Head:
        if (self.seq == 0) != (self.digest is None):
            raise ValueError("digest: is null where seq is 0, and nowhere else")
        return self


class Manifest(Record):
    """What one message holds, what it answers, what came before it from the same sender."""

    protocol: Protocol = PROTOCOL
    kind: Kind
    federation: Name
    site: Name
    sender: Name
    run: Name
    round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    seq: Annotated[int, Field(ge=1)]
    previous: Digest | None
    in_reply_to: Digest | None
    created: Time
    files: dict[str, FileEntry]


class Federation(Record):
    """``federation.json``: who takes part here, under which keys; written once the site's card was accepted.

    The aggregator's encryption key is there where the site's card shows one.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["federation"] = "federation"
    federation: Name
    site: Name
    aggregator_key: PublicKey
    aggregator_encryption_key: Digest | None = None
    site_key: PublicKey
    created: Time
    files: dict[str, FileEntry]


class SiteCard(Record):
    """``site.json``: the site's key, authenticated by the invite's one-time secret (HMAC-SHA-256).

    The encryption key is authenticated by the card's signature. Cards of early versions show none.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["site"] = "site"
    federation: Name
    site: Name
    key: PublicKey
    encryption_key: Digest | None = None
    software: Sentence
    enrolment: Digest
    created: Time


class Handover(Record):
    """``keys/0002.json``: a site's key of that number, signed by the one before it; ``aggregator_keys/0002.json``: the
    aggregator's.

    Args:
        site: whose folder it lies in.
        after: the sender's last message there that an earlier key signed; all that follow are signed by ``key``.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["handover"] = "handover"
    federation: Name
    site: Name
    number: Annotated[int, Field(ge=2, le=9999)]
    key: PublicKey
    after: Head
    created: Time


Phase = Literal[
    "asked for consent",
    "receiving",
    "training",
    "outside hours",
    "sending",
    "waiting",
    "paused",
    "trouble",
    "stopped",
]


class Status(Record):
    """``status.json``: the site's heartbeat, and the last message it knows of either side.

    ``software`` is which program the site works with, where that is no longer what its card says, and else not written.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["status"] = "status"
    federation: Name
    site: Name
    time: Time
    phase: Phase
    run: Name | None
    round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    progress_percent: Annotated[int, Field(ge=0, le=100)]
    trouble: Sentence | None
    software: Annotated[Software | None, IF_SAID] = None
    own_head: Head
    aggregator_head: Head


class Invite(Record):
    """The file with which IT joins: where, who, the aggregator's key, a one-time enrolment secret.

    Args:
        url: of a WebDAV server, by https (by http on this machine itself); never a folder of the machine or of its
            network, which IT alone names. None: IT names it.
        password: the folder's, if the aggregator's people want it to travel in this file.
    """

    protocol: Literal[2] = 2
    federation: Name
    site: Name
    url: Annotated[Sentence, text_that(checked_url)] | None = None
    user: Sentence
    password: Annotated[str | None, Field(repr=False)] = None
    aggregator_key: PublicKey
    enrolment_secret: Digest


def status_text(status: Mapping[str, Any]) -> str:
    """Return the fields of a ``Status`` in words, without its trouble."""
    percent = f" ({status['progress_percent']} %)" if status["phase"] == "training" else ""
    run = f", run {status['run']}" if status["run"] else ""
    round_no = f", round {status['round']}" if status["round"] else ""
    return f"{status['phase']}{percent}{run}{round_no}, at {moment_text(status['time'])}"
