"""Which file is new, which file is meant, and whether it is whole."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from shared.errors import DropfedError, RejectedError, TransientError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MANIFEST, MessageRef, ref_at
from shared.exchange.records.messages import Head
from shared.exchange.signing import open_signed
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.folder.webdav import WebDavFolder
from tests.canary import password_of
from tests.exchange.test_channel import FILES, OFFER, OFFERED, channel, receive
from tests.faults.exchange import Exchange, Fault
from tests.faults.faults import HTML, PAGE
from tests.folder.faulty import FaultyServer, cuts_answer, does_it_and_hangs_up, hangs_up, says
from tests.played import Played

MODEL = (bytes(range(251)) * (2 << 13))[: (2 << 20) + 5]


def round_files(round_no: int) -> dict[str, bytes | Path]:
    return {names.ROUND_CONFIGURATION: b"round: %d\n" % round_no, names.GLOBAL_MODEL: MODEL}


def keeps(share: float) -> Fault:
    """Report success, and store the first part of what was sent."""

    def fault(exchange: Exchange) -> None:
        exchange.read_body()
        exchange.body = exchange.body[: int(share * len(exchange.body))]
        exchange.reply(exchange.perform())

    return fault


@pytest.fixture
def drop(tmp_path: Path) -> LocalFolder:
    (tmp_path / "drop").mkdir()
    return LocalFolder(tmp_path / "drop")


@pytest.fixture
def ends(drop: LocalFolder, tmp_path: Path) -> tuple[Channel, Channel]:
    """The aggregator and the site north, at one folder."""
    return channel(tmp_path, AGGREGATOR, drop), channel(tmp_path, "north", drop)


def over(server: FaultyServer, home: Path, me: str) -> Channel:
    """One end of the folder on a server."""
    return channel(home, me, WebDavFolder(server.url, me, password_of(me)))


def offered_before(aggregator: Channel) -> None:
    """The aggregator has the run's configuration: without it nobody can tell what is to be encrypted."""
    write_file(aggregator.ledger.path(OFFER, names.RUN_CONFIGURATION), OFFERED)


def set_times(folder: LocalFolder, second: int) -> None:
    for path in folder.root.rglob("*"):
        os.utime(path, (second, second))


def test_newness_by_modification_second(ends: tuple[Channel, Channel], drop: LocalFolder) -> None:
    """A file was new if its modification second was later than the last one's; here content decides, and no date."""
    aggregator, north = ends
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    payload = drop.root / OFFER.path / names.TENSORS
    whole = payload.read_bytes()
    payload.write_bytes(bytes(len(whole)))
    set_times(drop, 1_700_000_000)
    assert receive(north, OFFER) is None  # as long as it should be, but not what the manifest names
    payload.write_bytes(whole)
    set_times(drop, 1_700_000_000)
    assert receive(north, OFFER) is not None  # mended within the same second
    for run, second in (("same-second", 1_700_000_000), ("long-ago", 0)):
        aggregator.outbox.sign(MessageRef("offer", run), FILES, in_reply_to=None)
        aggregator.outbox.publish()
        set_times(drop, second)
        assert receive(north, MessageRef("offer", run)) is not None


def test_the_last_of_several_matching_names(ends: tuple[Channel, Channel], drop: LocalFolder) -> None:
    """Of several matching names the last in the listing was taken; here one name is right, all others are nothing."""
    aggregator, north = ends
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    for name in (*FILES, MANIFEST):
        stem, suffix = name.split(".")
        for other in (f"{stem} (conflicted copy).{suffix}", f"{name}.1", f"{name}.new", f"z-{name}"):
            (drop.root / OFFER.path / other).write_bytes(b"other")
    shutil.copytree(drop.root / OFFER.path, drop.root / f"{OFFER.path} (2)")
    message = receive(north, OFFER)
    assert message == aggregator.ledger.message(OFFER)
    assert {path.name for path in (north.ledger.root / OFFER.path).iterdir()} == {*FILES, MANIFEST}
    assert all(north.ledger.path(OFFER, name).read_bytes() == content for name, content in FILES.items())


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (MessageRef("offer", "octa-10"), MessageRef("offer", "octa-1")),
        (MessageRef("round", "r", 10), MessageRef("round", "r", 1)),
        (MessageRef("round", "r", 1), MessageRef("round", "r", 1000)),
    ],
)
def test_substring_matching_that_takes_files_of_another_run(
    ends: tuple[Channel, Channel], drop: LocalFolder, theirs: MessageRef, ours: MessageRef
) -> None:
    """An id anywhere in a name was a match, so octa-1 got what was octa-10's; here run and round must be equal."""
    aggregator, north = ends
    offered_before(aggregator)
    aggregator.outbox.sign(theirs, FILES if theirs.kind == "offer" else round_files(theirs.round_no), in_reply_to=None)
    aggregator.outbox.publish()
    assert north.inbox.notice(ours) is None
    shutil.copytree(drop.root / theirs.path, drop.root / ours.path)  # nor does it pass under our name
    assert receive(north, ours) is None
    with pytest.raises(
        RejectedError, match=re.escape(f"{ours.manifest}: ") + "(belongs to run|is of kind round and round)"
    ):
        receive(north, ours)


@pytest.mark.parametrize("says_length", [True, False])
def test_truncated_downloads_taken_as_whole(faulty: FaultyServer, tmp_path: Path, says_length: bool) -> None:
    """What had come when the connection broke was used; here a file counts when it has its size and its hash."""
    aggregator, north = over(faulty, tmp_path, AGGREGATOR), over(faulty, tmp_path, "north")
    aggregator.outbox.sign(OFFER, FILES, in_reply_to=None)
    aggregator.outbox.publish()
    manifest = north.inbox.notice(OFFER)
    assert manifest is not None
    faulty.fail("GET", cuts_answer(3, says_length=says_length))
    with pytest.raises(TransientError):
        north.inbox.fetch(OFFER, manifest, answers=(None,), max_weights_bytes=100)
    assert north.ledger.message(OFFER) is None
    assert not any(north.ledger.path(OFFER, name).exists() for name in FILES)
    assert receive(north, OFFER) is not None
    assert all(north.ledger.path(OFFER, name).read_bytes() == content for name, content in FILES.items())


FAILED_UPLOADS: dict[str, list[Fault]] = {
    "login page": [says(200, PAGE, *HTML)],
    "full": [says(507)],
    "busy": [says(503)],
    "refused": [says(401)],
    "no answer": [hangs_up],
    "lost answer": [does_it_and_hangs_up],
    "stored in part": [keeps(1), keeps(0.5)],  # the model is the second file
    "manifest not stored": [keeps(1), keeps(1), says(507)],
}


@pytest.mark.parametrize("faults", FAILED_UPLOADS.values(), ids=FAILED_UPLOADS)
def test_upload_results_ignored(faulty: FaultyServer, tmp_path: Path, faults: list[Fault]) -> None:
    """An upload was done whatever the server said; here nothing is published before the server has confirmed it all."""
    aggregator, ref = over(faulty, tmp_path, AGGREGATOR), MessageRef("round", "r", 1)
    offered_before(aggregator)
    aggregator.outbox.sign(ref, round_files(1), in_reply_to=None)
    faulty.fail("PUT", *faults)
    with pytest.raises(DropfedError):
        aggregator.outbox.publish()
    assert aggregator.outbox.has_unpublished
    assert aggregator.outbox.published_head == Head()
    assert ref.manifest not in faulty.files
    aggregator.outbox.publish()
    assert not aggregator.outbox.has_unpublished
    for name in (*round_files(1), MANIFEST):
        assert faulty.files[f"{ref.path}/{name}"] == aggregator.ledger.path(ref, name).read_bytes()


def test_configuration_sent_before_the_model(faulty: FaultyServer, tmp_path: Path) -> None:
    """A site saw a round before its model was there; here the manifest goes last, and until then there is no round."""
    aggregator, north = over(faulty, tmp_path, AGGREGATOR), over(faulty, tmp_path, "north")
    ref = MessageRef("round", "r", 1)
    offered_before(aggregator)
    aggregator.outbox.sign(ref, round_files(1), in_reply_to=None)
    faulty.fail("PUT", keeps(1), says(503))
    with pytest.raises(TransientError):
        aggregator.outbox.publish()
    assert f"{ref.path}/{names.ROUND_CONFIGURATION}" in faulty.files
    assert north.inbox.notice(ref) is None
    aggregator.outbox.publish()
    sent = [request.removeprefix(f"PUT {ref.path}/") for request in faulty.requests if request.startswith("PUT ")]
    assert [name for name in sent if name != names.ROUND_CONFIGURATION] == [
        names.GLOBAL_MODEL,
        names.GLOBAL_MODEL,
        f"{MANIFEST}.new",
    ]
    assert north.inbox.notice(ref) is not None


def test_file_names_without_the_round(faulty: FaultyServer, tmp_path: Path, played: Played) -> None:
    """Each round's files took the names of the last round's; here every name has run and round, and is written once."""
    aggregator = over(faulty, tmp_path, AGGREGATOR)
    offered_before(aggregator)
    for round_no in (1, 2, 3):
        aggregator.outbox.sign(MessageRef("round", "r", round_no), round_files(round_no), in_reply_to=None)
        aggregator.outbox.publish()
    written = [request for request in faulty.requests if request.startswith("PUT ")]
    assert len(set(written)) == len(written) == 9
    for round_no in (1, 2, 3):
        assert faulty.files[f"runs/r/rounds/000{round_no}/to_site/config.yaml"] == b"round: %d\n" % round_no
    manifests = sorted(played.drop.glob(f"runs/**/{MANIFEST}"))  # of a whole run, both ways
    assert len(manifests) == 9
    for manifest in manifests:
        body, _ = open_signed(manifest.read_bytes())
        path = manifest.parent.relative_to(played.drop).as_posix()
        assert path.startswith(f"runs/{body['run']}/")
        assert (f"/rounds/{body['round']:04d}/" in path) == (body["kind"] in ("round", "update", "verdict"))
        assert ref_at(path) == MessageRef(body["kind"], body["run"], body["round"])
