"""What left a hospital: every file of its messages, with bytes, hash, tensors, and which request it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from shared.audit.reading import UNKNOWN, HiddenError, Reading
from shared.audit.timeline import event_of
from shared.doors import Refusal
from shared.errors import NotFoundError, RejectedError
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.records.surveys import SignedSheet
from shared.exchange.signing import digest_of, fingerprint, open_signed
from shared.exchange.trust import Message
from shared.exchange.weights import layout_of
from shared.moments import moment_text
from shared.plurals import pluralize


@dataclass(frozen=True)
class Tensor:
    """What a tensor file holds under one name."""

    name: str
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True)
class SentFile:
    """One file that left.

    Args:
        state: ``there``; ``removed``, as the run's rule lets it; ``missing``; or what is wrong with it.
        tensors: None where it is no tensor file, or is not there any more.
    """

    name: str
    bytes: int
    sha256: str
    state: str
    tensors: Sequence[Tensor] | None = None


@dataclass(frozen=True)
class Sent:
    """One message that left, or a record that is part of none: then ``run`` is empty."""

    path: str
    created: str
    run: str
    answers: str | None
    key: str
    digest: str
    files: tuple[SentFile, ...]


def sent(reading: Reading) -> list[Sent]:
    """Return everything that the site of this folder wrote, in its order: its card first, the newest heartbeat last."""
    card, status = reading.site_card, reading.status
    found = [
        (
            message.manifest.seq,
            Sent(message.ref.path, event.created, event.run, event.answers, event.key, event.digest, files),
        )
        for message in reading.sent_by(reading.opened.site)
        for event, files in [(event_of(reading, message), tuple(files_of(reading, message)))]
    ]
    for path, handover in reading.handovers.items():
        if names.is_handover(path, reading.opened.site):
            found += [(handover.after.seq, each) for each in _record(reading, path, handover.created)]
    for path, record in reading.surveys.items():
        if isinstance(record, SignedSheet):
            answers = names.survey_path(record.number)
            found += [
                (record.own_head.seq, replace(each, answers=answers)) for each in _record(reading, path, record.created)
            ]
    return [
        *_record(reading, names.SITE_CARD, card.created if card else UNKNOWN),
        *(each for _, each in sorted(found, key=lambda each: each[0])),
        *_record(reading, names.STATUS, status.time if status else UNKNOWN),
    ]


def lines(sent: list[Sent]) -> Iterator[str]:
    """Yield the lines for people; of a file's tensors only their number."""
    total = 0
    for each in sent:
        created = each.created if each.created == UNKNOWN else moment_text(each.created)
        answers = f", answers {each.answers}" if each.answers else ""
        key = each.key if each.key == UNKNOWN else fingerprint(each.key)
        yield escape(f"{each.path}  {created}{answers}  key {key}")
        for file in each.files:
            total += file.bytes
            state = "" if file.state == "there" else f"  ({file.state})"
            yield escape(f"  {file.name}  {file.bytes:,} bytes  sha256 {file.sha256}{state}")
            if file.tensors is not None:
                values = sum(prod(tensor.shape) for tensor in file.tensors)
                yield f"    {pluralize(len(file.tensors), 'tensor')}, {pluralize(values, 'value')}"
    messages = pluralize(len(sent), "message or record", "messages and records")
    yield f"{messages}, {pluralize(sum(len(each.files) for each in sent), 'file')}, {pluralize(total, 'byte')}"


def files_of(reading: Reading, message: Message) -> Iterator[SentFile]:
    """Yield the files of a message, held against its manifest; the manifest comes last."""
    for name, entry in sorted(message.manifest.files.items()):
        state, tensors = "there", None
        try:
            with reading.file(message, name) as path:
                if names.is_weights(name):
                    layout = layout_of(path, f"{message.ref.path}/{name}")
                    tensors = [Tensor(key, dtype, shape) for key, (dtype, shape) in layout.items()]
        except HiddenError:
            state = "encrypted"
        except NotFoundError:
            state = "removed" if reading.was_pruned(message.ref, name) else "missing"
        except RejectedError as error:
            state = error.reason
        yield SentFile(name, entry.size, entry.sha256, state, tensors)
    manifest = message.ref.manifest
    yield SentFile(names.MANIFEST, reading.sizes[manifest], message.digest, "there")


def _record(reading: Reading, path: str, created: str) -> Iterator[Sent]:
    """Yield a record that is part of no message, if it is there; ``created`` is what it says itself."""
    if path not in reading.sizes:
        return
    try:
        content = reading.read(path)
    except (NotFoundError, RejectedError):  # a finding already
        return
    digest = digest_of(content)
    try:
        _, key = open_signed(content)
    except Refusal:  # likewise
        key = UNKNOWN
    yield Sent(path, created, "", None, key, digest, (SentFile(path, len(content), digest, "there"),))
