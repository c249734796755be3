"""What is done with an input at each door; and what may come of it.

A record of the folder has the very bytes that are written of what was read, or is refused; anything else becomes a
value, or is refused. A refusal is one sentence. All else that is raised is a finding.
"""

from __future__ import annotations

import io
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from unittest.mock import patch

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import (
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
)
from pydantic import BaseModel
from urllib3.connection import HTTPConnection

from aggregator.owncloud import OwnCloud, product_of
from shared.audit.closing import Closing, check
from shared.doors import Refusal, certificates, ciphertext, keys, patterns, yaml_text, zstd_frame
from shared.doors.multistatus import Reader
from shared.errors import ConfigurationError, DropfedError, RejectedError
from shared.exchange import names
from shared.exchange.names import MAX_RECORD_BYTES, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Abort, Consent, Reliability, Withdrawal
from shared.exchange.records.messages import Handover
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.records.surveys import Survey
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.signing import SigningKey, canonical, digest_of, open_signed
from shared.exchange.tables import read_metrics, write_metrics
from shared.exchange.trust import Peer, open_federation, open_record, open_site_card, open_yaml
from shared.exchange.weights import (
    TensorFile,
    check_arrays,
    check_tensors,
    layout_of,
    rewrite_tensors,
    shapes_of,
    write_tensors,
)
from shared.folder.contract import MAX_ENTRIES
from shared.folder.multistatus import listing_of
from shared.folder.webdav import WebDavFolder
from site_client.configuration import FILE, read_configuration
from site_client.setup import read_invite

KEY, _PRIVATE = SigningKey(b"\x07" * 32), Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
CONTENT_KEY = b"\x08" * 32
PLACE = MessageRef("update", "octa-1", 1)
SITE = Peer("retina", "north", "north", KEY.public)
SURVEY = Survey(
    federation="retina", site="north", number=1, task="dr_staging", classes=["0"], created="2026-11-21T09:30:00Z"
)
TENSORS = TensorList(tensors={"a": TensorShape(dtype="F32", shape=[3, 2]), "b": TensorShape(dtype="F32", shape=[1])})
CLOSING = Closing(
    federation="retina",
    run="octa-1",
    sites={"north": Closing.OfSite(manifests=1, root=digest_of(b""))},
    manifests=1,
    root=digest_of(b""),
    created="2026-11-21T09:30:00Z",
)
IN_JSON: Sequence[type[BaseModel]] = (Consent, Withdrawal, Verdict, FinalCard, Abort)
IN_YAML: Sequence[type[BaseModel]] = (RunConfiguration, Sharing, RoundConfiguration, Reliability)
MOST_BLOCKS = 16  # of a payload that is encrypted here
_PIPE_HOLDS = 1 << 16  # bytes that a pair of sockets takes, though nobody reads

_home = tempfile.TemporaryDirectory(prefix="dropfed-fuzz-")
HOME = Path(_home.name)


class BrokenError(AssertionError):
    """What came of an input is none of what may."""


def judge(door: str, content: bytes) -> None:
    """Bring an input to a door.

    Raises:
        BrokenError: a record has another text, or a refusal is no sentence.
        Exception: whatever no code expected.
    """
    try:
        DOORS[door](content)
    except (DropfedError, Refusal) as refusal:
        said = refusal.problems if isinstance(refusal, ConfigurationError) else [str(refusal)]
        for sentence in said:
            _require(sentence.isprintable() and bool(sentence), f"{sentence!r} is no sentence")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenError(what)


def _require_same(written: bytes, content: bytes) -> None:
    _require(written == content, f"{content[:200]!r} was taken, and is written as {written[:200]!r}")


# --- what lies in a folder --------------------------------------------------------------------------------------


def name(content: bytes) -> None:
    """A path as a listing tells it."""
    path = content.decode("utf-8", "surrogateescape")
    ref = names.ref_at(path)
    _require(ref is None or ref.path == path, f"{path!r} is the place {ref}")
    if names.is_lasting_record(path):
        _require(path.isprintable() and path.isascii(), f"{path!r} is a record that lasts")
    if names.is_name(path) or names.is_scratch(path) or names.may_hold("update", path):
        _require(path.isprintable() and path.isascii() and "/" not in path, f"{path!r} is a name")


def signed(body: bytes) -> bytes:
    """A signed record, whatever its body; nothing else lies behind a signature."""
    key, signature = KEY.public.encode(), _PRIVATE.sign(body).hex().encode()
    return b'{"body":' + body + b',"key":"' + key + b'","signature":"' + signature + b'"}'


def manifest(body: bytes) -> None:
    """A message's manifest."""
    content = signed(body)
    message = SITE.open_out_of_order(content, PLACE)
    _require_same(KEY.sign(message.manifest.model_dump()), content)


def signed_record(content: bytes) -> None:
    """Any other signed record, by the first byte; or what is none."""
    kind, body = content[:1], content[1:]
    content = body if kind == b"r" else signed(body)
    record: BaseModel
    match kind:
        case b"f":
            record = open_federation(content, aggregator_key=KEY.public)
        case b"s":
            record = open_site_card(content, federation="retina", site="north", secret=None)
        case b"h":
            record = SITE.hand_over(content).handovers[-1]
        case b"b":
            record = SITE.open_status(content)
        case b"q":
            record = SITE.open_survey(content, 1)
        case b"a":
            record = SITE.open_sheet(content, SURVEY, digest_of(b""))
        case b"c":
            check(content, CLOSING, here=["north"], shown_as="closing.json")
            return
        case _:
            _require_same(KEY.sign(open_signed(content)[0]), content)
            return
    _require_same(KEY.sign(record.model_dump()), content)


def json_record(content: bytes) -> None:
    """A payload in JSON, whose kind the first byte chooses."""
    kind, text = IN_JSON[content[0] % len(IN_JSON)] if content else Consent, content[1:]
    _require_same(canonical(open_record(text, kind, "record.json").model_dump()), text)


def yaml_record(content: bytes) -> None:
    """A payload in YAML, likewise."""
    kind, text = IN_YAML[content[0] % len(IN_YAML)] if content else Reliability, content[1:]
    _require_same(dump_yaml(open_yaml(text, kind, "record.yaml")), text)


def yaml(content: bytes) -> None:
    """YAML as people type it. What can be written reads back the same."""
    value = yaml_text.parse(content, MAX_RECORD_BYTES)
    if isinstance(value, dict):
        written = yaml_text.write(value)
        _require(yaml_text.write(yaml_text.parse(written, 8 * MAX_RECORD_BYTES)) == written, "it reads back otherwise")


def table(content: bytes) -> None:
    """A metrics table."""
    _require_same(write_metrics(read_metrics(content, names.METRICS)), content)


def tensors(content: bytes) -> None:
    """A tensor file of any arrays, and as a model of two."""
    path = HOME / "model.safetensors"
    path.write_bytes(content)
    with suppress(RejectedError):
        rewritten = HOME / "rewritten.safetensors"
        rewrite_tensors(path, rewritten, TENSORS, path.name)
        check_arrays(rewritten, "F32", shapes_of(TENSORS), rewritten.name)
    layout_of(path, path.name)
    check_tensors(path, TENSORS, path.name)
    file = TensorFile(path)
    write_tensors(HOME / "written", TENSORS, file.tensor)
    _require_same((HOME / "written").read_bytes(), content)


def frame(content: bytes) -> None:
    """A zstd frame behind three bytes that say how large it is to be."""
    size, packed = int.from_bytes(content[:3], "little"), content[3:]
    found = sum(map(len, zstd_frame.expand(io.BytesIO(packed), len(packed), size)))
    _require(found == size, f"{found} bytes came of {size}")


def encrypted(content: bytes) -> None:
    """An encrypted payload: as it comes; or of blocks with tags and lengths by the input, under the right key."""
    if content[:1] != b"k":
        ciphertext.unwrapped(content, b"octa-1", CONTENT_KEY)
        signed = content
    else:
        state = crypto_secretstream_xchacha20poly1305_state()
        signed = crypto_secretstream_xchacha20poly1305_init_push(state, CONTENT_KEY)
        for tag, length in islice(zip(content[1::2], content[2::2], strict=False), MOST_BLOCKS):
            block = bytes(length * ciphertext.BLOCK_BYTES // 255)
            signed += crypto_secretstream_xchacha20poly1305_push(state, block, tag=tag % 4)
    for block in ciphertext.opened(io.BytesIO(signed), CONTENT_KEY):
        _require(len(block) <= ciphertext.BLOCK_BYTES, "a block is too long")


def public_key(content: bytes) -> None:
    """A public key, and a signature behind it."""
    key, signature = content[:64].decode("latin-1"), content[64:].decode("latin-1")
    for look in (
        lambda: keys.require_public(key),
        lambda: keys.require_signed(b"", key, signature),
        lambda: SITE.hand_over(KEY.sign(_handover(key))),
    ):
        try:
            look()
        except (Refusal, DropfedError) as refusal:
            _require(str(refusal).isprintable(), "a refusal is no sentence")


def _handover(key: str) -> dict[str, object]:
    sound = Handover(
        federation="retina",
        site="north",
        number=2,
        key=KEY.public,
        after={"seq": 1, "digest": digest_of(b"")},
        created="2026-11-21T09:30:00Z",
    )
    return sound.model_dump() | {"key": key}


# --- what a server says -----------------------------------------------------------------------------------------


def _answering(content: bytes) -> Callable[[HTTPConnection], socket.socket]:
    def connected(_: HTTPConnection) -> socket.socket:
        ours, theirs = socket.socketpair()
        _open[:] = [theirs]  # the one before has been read
        theirs.sendall(content[:_PIPE_HOLDS])
        theirs.shutdown(socket.SHUT_WR)
        return ours

    return connected


_open: list[socket.socket] = []


def answer(content: bytes) -> None:
    """A server's whole answer, to what the first byte chooses of all that daemons ask."""
    (HOME / "source").write_bytes(b"hello")
    folder = WebDavFolder("http://127.0.0.1/drop", "north", "secret-word", stall_s=30)
    asked: Sequence[Callable[[], object]] = (
        lambda: folder.list(""),
        lambda: folder.read("f", max_bytes=100),
        lambda: folder.download("f", HOME / "target", size=5),
        lambda: folder.create("f", b"hello"),
        lambda: folder.upload("f", HOME / "source"),
        folder.room,
    )
    is_asked = patch("shared.folder.login.LEFT_ALONE_S", (0.0,))
    with patch.object(HTTPConnection, "_new_conn", _answering(content[1:])), is_asked:
        asked[content[0] % len(asked) if content else 0]()


def listing(content: bytes) -> None:
    """A multistatus document, in pieces of a size that its first byte says."""
    reader, size = Reader(MAX_ENTRIES), (content[0] if content else 0) + 1
    for start in range(1, len(content), size):
        reader.feed(content[start : start + size])
    found = listing_of(reader.close(), "/drop", "http://127.0.0.1/drop")
    for entry in (found.itself, *found.entries):
        _require(entry.size is None or 0 <= entry.size < 10**18, f"{entry.name!r} has {entry.size} bytes")


def cloud(content: bytes) -> None:
    """ownCloud's JSON, to what the first byte chooses of all that is asked of its interface."""
    server = "http://127.0.0.1"
    body = content[1:]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    owncloud = OwnCloud(server, "admin", "secret-word", ca_file=None)
    asked: Sequence[Callable[[], object]] = (
        lambda: product_of(server, None),
        lambda: owncloud.account("north"),
        lambda: [str(share) for share in owncloud.shares("drop")],
        lambda: str(owncloud.share("drop", "north")),
        lambda: owncloud.permit_everything("1"),
    )
    with patch.object(HTTPConnection, "_new_conn", _answering(head + body)):
        asked[content[0] % len(asked) if content else 0]()


def certificate(content: bytes) -> None:
    """What a server shows of itself (DER)."""
    certificates.parse(content)


# --- what people hand on, or type -------------------------------------------------------------------------------


def invite(content: bytes) -> None:
    """The file with which a hospital joins."""
    (HOME / "invite.json").write_bytes(content)
    read_invite(HOME / "invite.json")


def site_settings(content: bytes) -> None:
    """``site.yaml``."""
    (HOME / FILE).write_bytes(content)
    read_configuration(HOME)


def pattern(content: bytes) -> None:
    """A regular expression."""
    patterns.parse(content.decode("latin-1"))


DOORS: dict[str, Callable[[bytes], None]] = {
    "name": name,
    "manifest": manifest,
    "signed-record": signed_record,
    "json-record": json_record,
    "yaml-record": yaml_record,
    "yaml": yaml,
    "table": table,
    "tensor-file": tensors,
    "zstd-frame": frame,
    "encrypted-payload": encrypted,
    "public-key": public_key,
    "http-answer": answer,
    "multistatus": listing,
    "owncloud-json": cloud,
    "certificate": certificate,
    "invite": invite,
    "site-settings": site_settings,
    "pattern": pattern,
}
