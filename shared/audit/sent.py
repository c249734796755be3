"""What left a hospital: every file of its messages, with bytes, hash, tensors, and which request it answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shared.audit.reading import UNKNOWN, HiddenError, Reading
from shared.audit.timeline import event_of
from shared.errors import NotFoundError, PoisonError
from shared.exchange import names
from shared.exchange.signing import digest_of, fingerprint
from shared.exchange.trust import Message
from shared.exchange.weights import Layout, layout_of
from shared.visible import visible


@dataclass(frozen=True)
class SentFile:
    """One file that left.

    Args:
        tensors: dtype and shape by name; None where it is no tensor file, or is not there any more.
        state: ``there``; ``removed``, as the run's rule lets it; ``missing``; or what is wrong with it.
    """

    name: str
    size_bytes: int
    sha256: str
    state: str
    tensors: Layout | None = None

    def as_json(self) -> dict[str, object]:
        """Plain values, for scripts."""
        tensors = [
            {"name": name, "dtype": dtype, "shape": shape} for name, (dtype, shape) in (self.tensors or {}).items()
        ]
        return {
            "name": self.name,
            "bytes": self.size_bytes,
            "sha256": self.sha256,
            "state": self.state,
            "tensors": None if self.tensors is None else tensors,
        }


@dataclass(frozen=True)
class Sent:
    """One message that left, or a file of the folder's root: then ``run`` is empty."""

    path: str
    created: str
    run: str
    answers: str | None
    key: str
    digest: str
    files: tuple[SentFile, ...]

    def as_json(self) -> dict[str, object]:
        """Plain values, for scripts."""
        return vars(self) | {"files": [file.as_json() for file in self.files]}


def sent(reading: Reading) -> list[Sent]:
    """Everything that the site of this folder wrote, in its order: its card first, the newest heartbeat last."""
    federation = reading.opened
    found = [
        Sent(message.place.path, event.created, event.run, event.answers, event.key, event.digest, files)
        for message in reading.sent_by(federation.site)
        for event, files in [(event_of(reading, message), tuple(_files(reading, message)))]
    ]
    return [*_of_root(reading, names.SITE_CARD), *found, *_of_root(reading, names.STATUS)]


def lines(sent: list[Sent]) -> Iterator[str]:
    """For people."""
    total = 0
    for each in sent:
        answers = f", answers {each.answers}" if each.answers else ""
        yield visible(f"{each.path}  {each.created}{answers}  key {fingerprint(each.key)}")
        for file in each.files:
            total += file.size_bytes
            state = "" if file.state == "there" else f"  ({file.state})"
            yield visible(f"  {file.name}  {file.size_bytes:,} bytes  sha256 {file.sha256}{state}")
            for name, (dtype, shape) in (file.tensors or {}).items():
                yield visible(f"    {name}  {dtype} {shape}")
    yield f"{len(sent)} messages and records, {sum(len(each.files) for each in sent)} files, {total:,} bytes"


def _files(reading: Reading, message: Message) -> Iterator[SentFile]:
    for name, entry in sorted(message.manifest.files.items()):
        state, tensors = "there", None
        try:
            with reading.file(message, name) as path:
                if names.is_weights(name):
                    tensors = layout_of(path, f"{message.place.path}/{name}")
        except HiddenError:
            state = "encrypted"
        except NotFoundError:
            state = "removed" if reading.was_let_go(message.place, name) else "missing"
        except PoisonError as error:
            state = error.reason
        yield SentFile(name, entry.size, entry.sha256, state, tensors)
    manifest = message.place.manifest
    yield SentFile(names.MANIFEST, reading.sizes[manifest], message.digest, "there")


def _of_root(reading: Reading, name: str) -> Iterator[Sent]:
    """The card or the heartbeat, if it is there; its time is what it says itself."""
    if name not in reading.sizes:
        return
    content = reading.folder.read(name, max_bytes=names.MAX_RECORD_BYTES)
    digest = digest_of(content)
    says = reading.site_card.created if reading.site_card and name == names.SITE_CARD else ""
    says = reading.status.time if reading.status and name == names.STATUS else says
    file = SentFile(name, len(content), digest, "there")
    key = reading.site.newest_key if name == names.STATUS else reading.site.key
    yield Sent(name, says or UNKNOWN, "", None, key, digest, (file,))
