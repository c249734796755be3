"""Two ends of one folder: sign and publish one way, fetch and verify the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import ActionRequiredError, DoubtfulError, NotFoundError, RejectedError, TransientError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import Peer
from shared.folder.local import LocalFolder

KEYS = {AGGREGATOR: SigningKey(b"\x01" * 32), "north": SigningKey(b"\x02" * 32)}
OFFER, CONSENT = MessageRef("offer", "r"), MessageRef("consent", "r")
OFFERED = dump_yaml(RunConfiguration(run="r", task="t", method="mean", sites=["north"], rounds=2))
FILES: dict[str, bytes | Path] = {names.RUN_CONFIGURATION: OFFERED, names.TENSORS: b"tensors: {}\n"}


class Flaky(LocalFolder):
    """A folder that fails once, after its n-th change was made: the answer is lost, the change is not."""

    def __init__(self, root: Path, fails_after: int) -> None:
        super().__init__(root)
        self._left = fails_after

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise TransientError("the connection broke")

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        super().upload(path, source, sha256=sha256)
        self._count()

    def create(self, path: str, content: bytes) -> None:
        super().create(path, content)
        self._count()


def channel(home: Path, me: str, folder: LocalFolder) -> Channel:
    other = "north" if me == AGGREGATOR else AGGREGATOR
    peer = Peer("retina", "north", other, KEYS[other].public)
    return Channel(home / me, folder, me=me, key=KEYS[me], peer=peer, encryption_key=None)


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    (tmp_path / "drop").mkdir()
    return LocalFolder(tmp_path / "drop")


def receive(reader: Channel, ref: MessageRef, *answers: str | None) -> object:
    manifest = reader.inbox.notice(ref)
    assert manifest is not None
    return reader.inbox.fetch(ref, manifest, answers=answers or (None,), max_weights_bytes=100)


def test_a_message_arrives_and_is_answered(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    offer = aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    assert north.inbox.notice(OFFER) is None
    aggregator.outbox.publish()
    assert receive(north, OFFER) == offer
    consent = north.outbox.sign(CONSENT, {names.CONSENT: b"{}"}, in_reply_to=offer.digest)
    north.outbox.publish()
    assert receive(aggregator, CONSENT, offer.digest) == consent
    assert (aggregator.ledger.own_head, aggregator.ledger.peer_head) == (offer.head, consent.head)
    again = channel(tmp_path, AGGREGATOR, folder)  # the mirror is the memory
    assert (again.ledger.own_head, again.ledger.peer_head) == (offer.head, consent.head)


def test_a_signed_message_stays_as_it_is(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator = channel(tmp_path, AGGREGATOR, folder)
    first = aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    changed: dict[str, bytes | Path] = dict.fromkeys(FILES, b"other")
    assert aggregator.outbox.sign(OFFER, changed, in_reply_to=None) == first
    assert aggregator.ledger.path(OFFER, names.TENSORS).read_bytes() == FILES[names.TENSORS]


@pytest.mark.parametrize("files", [{}, {names.TENSORS: b""}, FILES | {"patients.csv": b""}, FILES | {"../x": b""}])
def test_only_the_closed_list_is_ever_signed(
    tmp_path: Path, folder: LocalFolder, files: dict[str, bytes | Path]
) -> None:
    with pytest.raises(ValueError, match="is not what belongs into"):
        channel(tmp_path, AGGREGATOR, folder).outbox.sign(OFFER, files, in_reply_to=None)
    assert not (tmp_path / AGGREGATOR / "mirror").exists()


@pytest.mark.parametrize("fails_after", [1, 2, 3])
def test_an_interrupted_publish_is_repeated_to_the_same_end(
    tmp_path: Path, folder: LocalFolder, fails_after: int
) -> None:
    aggregator = channel(tmp_path, AGGREGATOR, Flaky(folder.root, fails_after))
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    with pytest.raises(TransientError):
        aggregator.outbox.publish()
    channel(tmp_path, AGGREGATOR, folder).outbox.publish()  # a new process
    for name in (*FILES, names.MANIFEST):
        sent = folder.read(f"{OFFER.path}/{name}", max_bytes=10_000)
        assert sent == aggregator.ledger.path(OFFER, name).read_bytes()
    assert [entry.name for entry in folder.list(OFFER.path)] == sorted([*FILES, names.MANIFEST])


def test_a_torn_payload_is_fetched_again(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    payload = folder.root / OFFER.path / names.TENSORS
    right = payload.read_bytes()
    payload.write_bytes(right[:-1] + b"x")
    assert receive(north, OFFER) is None
    assert north.ledger.message(OFFER) is None
    payload.write_bytes(right)
    assert receive(north, OFFER) is not None


class Lying(LocalFolder):
    """Something on the way cuts what it passes on, or hides it; the listing tells the truth."""

    def __init__(self, root: Path, cut: str, hidden: str) -> None:
        super().__init__(root)
        self.cut = cut
        self.hidden = hidden

    def read(self, path: str, *, max_bytes: int) -> bytes:
        content = super().read(path, max_bytes=max_bytes)
        return content[:-9] if path.endswith(self.cut) else content

    def download(self, path: str, target: Path, *, size: int) -> str:
        if path.endswith(self.hidden):
            raise NotFoundError(f"{path} is not there.")
        return super().download(path, target, size=size)


@pytest.mark.parametrize(("cut", "hidden"), [(names.MANIFEST, "nothing"), ("nothing", names.TENSORS)])
def test_what_does_not_come_as_it_is_listed_is_never_poison(
    tmp_path: Path, folder: LocalFolder, cut: str, hidden: str
) -> None:
    aggregator = channel(tmp_path, AGGREGATOR, folder)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    lying = Lying(folder.root, cut, hidden)
    north = channel(tmp_path, "north", lying)
    assert receive(north, OFFER) is None
    for _ in range(3):
        with pytest.raises(TransientError, match="does not come as the folder lists it"):
            receive(north, OFFER)
    lying.cut = lying.hidden = "nothing"
    assert receive(north, OFFER) is not None


@pytest.mark.parametrize("name", [names.MANIFEST, names.TENSORS])
def test_what_is_cut_or_missing_in_the_folder_is_poison(tmp_path: Path, folder: LocalFolder, name: str) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    path = folder.root / OFFER.path / name
    if name == names.MANIFEST:
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    assert receive(north, OFFER) is None
    with pytest.raises(RejectedError, match=name):
        receive(north, OFFER)


class Restless(LocalFolder):
    """Passes one file on with other bytes each time."""

    def __init__(self, root: Path, at: str) -> None:
        super().__init__(root)
        self._at = at
        self._times = 0

    def _another(self, path: str, content: bytes) -> bytes:
        if not path.endswith(self._at):
            return content
        self._times += 1
        return content[:-4] + self._times.to_bytes(4, "big")

    def read(self, path: str, *, max_bytes: int) -> bytes:
        return self._another(path, super().read(path, max_bytes=max_bytes))

    def download(self, path: str, target: Path, *, size: int) -> str:
        super().download(path, target, size=size)
        target.write_bytes(self._another(path, target.read_bytes()))
        return digest_of(target.read_bytes())


@pytest.mark.parametrize("name", [names.MANIFEST, names.TENSORS])
def test_what_comes_with_other_bytes_each_time_is_doubtful_from_the_second_time_on(
    tmp_path: Path, folder: LocalFolder, name: str
) -> None:
    """Whoever lets a message fail in another way each time would else be waited for for ever."""
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", Restless(folder.root, name))
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    assert receive(north, OFFER) is None
    for _ in range(3):
        with pytest.raises(DoubtfulError, match=name):
            receive(north, OFFER)
    assert not north.ledger.is_settled(OFFER)


def test_what_is_wrong_twice_is_rejected_and_stays_in_quarantine(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    (folder.root / OFFER.path / names.TENSORS).write_bytes(b"tensors: [] ")
    assert receive(north, OFFER) is None
    with pytest.raises(RejectedError, match="SHA-256") as caught:
        receive(north, OFFER)
    north.ledger.refuse(OFFER, caught.value, b"manifest")
    for reader in (north, channel(tmp_path, "north", folder)):
        assert "SHA-256" in str(reader.ledger.refusal(OFFER))
        assert reader.ledger.is_settled(OFFER)
        assert reader.ledger.message(OFFER) is None
    kept = tmp_path / "north" / "quarantine" / OFFER.path
    assert (kept / names.TENSORS).read_bytes() == b"tensors: [] "
    assert (kept / names.MANIFEST).read_bytes() == b"manifest"


def test_a_record_larger_than_its_bound_is_never_fetched(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    large = b" " * (names.MAX_RECORD_BYTES + 1)
    aggregator.outbox.sign(OFFER, {names.RUN_CONFIGURATION: OFFERED, names.TENSORS: large}, in_reply_to=None)
    aggregator.outbox.publish()
    with pytest.raises(RejectedError, match="at most"):
        receive(north, OFFER)
    assert not (north.ledger.root / OFFER.path / names.TENSORS).exists()


def test_an_offer_that_does_not_say_what_is_encrypted_is_not_signed(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator = channel(tmp_path, AGGREGATOR, folder)
    with pytest.raises(ActionRequiredError, match="says what is encrypted, and is missing or damaged"):
        aggregator.outbox.sign(OFFER, FILES | {names.RUN_CONFIGURATION: OFFERED[:-9]}, in_reply_to=None)
    assert aggregator.ledger.own_head.seq == 0
    assert aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)


def test_messages_that_were_skipped_are_noticed(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    second = MessageRef("offer", "s")
    aggregator.outbox.sign(second, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    manifest = north.inbox.notice(second)
    assert manifest is not None
    assert north.inbox.skips_messages(second, manifest)
    assert receive(north, second) is None
    assert receive(north, OFFER) is not None
    assert not north.inbox.skips_messages(second, manifest)
    assert receive(north, second) is not None


def test_an_accepted_message_is_never_refused(tmp_path: Path, folder: LocalFolder) -> None:
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    offer = aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    assert receive(north, OFFER) == offer
    assert receive(north, OFFER) == offer  # again: nothing changes, nothing breaks the chain
    with pytest.raises(ValueError, match="was accepted"):
        north.ledger.refuse(OFFER, RejectedError("x", "y"), b"")


def test_tensor_files_may_not_be_larger_together_than_what_a_run_sends(tmp_path: Path, folder: LocalFolder) -> None:
    """However many a manifest names: else it could name thousands, each small enough, and fill the disk."""
    aggregator, north = channel(tmp_path, AGGREGATOR, folder), channel(tmp_path, "north", folder)
    files: dict[str, bytes | Path] = {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: bytes(60)}
    more: dict[str, bytes | Path] = {names.state_file(group): bytes(30) for group in ("control", "patients")}
    ref = MessageRef("round", "r", 1)
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.sign(ref, files | more, in_reply_to=None)
    aggregator.outbox.publish()
    assert receive(north, OFFER) is not None
    with pytest.raises(RejectedError, match=r"state-patients\.safetensors: has 30 bytes, at most 10 are expected"):
        receive(north, ref)
    assert not north.ledger.path(ref, names.state_file("patients")).exists()
