"""A site whose daemon has no network: one command moves files, another trains, and they share a directory."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.audit.verify import verify
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError, TransientError
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef, ref_at
from shared.exchange.trust import Peer
from shared.folder.durable import write_file
from shared.folder.listed import ListedFolder
from shared.folder.local import LocalFolder
from shared.folder.lock import work_lock
from site_client.configuration import read_configuration
from site_client.moving import HOME, Mover, last_look, move
from site_client.stopping import stop_event
from tests.federation.hospital import Hospital, Watched
from tests.federation.jobs import PAUSE_S
from tests.federation.running import POLICY, RUN, TASK, WAIT_S, Federation, run_configuration, write_data
from tests.federation.test_crashes import DIED
from tests.played import RUN as PLAYED_RUN
from tests.played import Played

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
NO_NETWORK = ("unshare", "--net", "--map-root-user")


def _can_be_shut_off() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False).returncode == 0


needs_no_network = pytest.mark.skipif(not _can_be_shut_off(), reason="no process can be started without a network here")


def shipped(name: str) -> list[str]:
    """What a file of deploy/slurm has ``dropfed-site`` do."""
    (arguments,) = re.findall(r"/dropfed-site (.*) --work", (SLURM / name).read_text())
    return shlex.split(arguments)


def start_jobs(work: Path, seams: Path) -> subprocess.Popen[bytes]:
    """Have a compute node do one job after the other."""
    jobs = ("-m", "tests.federation.jobs", str(seams), *shipped("train.sbatch"), "--work", str(work))
    with (work / "output.txt").open("ab") as output:
        return subprocess.Popen([*NO_NETWORK, sys.executable, *jobs], stdout=output, stderr=output)


def from_aggregator(folder: Path) -> set[Path]:
    """The manifests that the aggregator has signed there."""
    refs = {path: ref_at(path.parent.relative_to(folder).as_posix()) for path in folder.rglob("manifest.json")}
    return {path.relative_to(folder) for path, ref in refs.items() if ref is not None and not ref.is_from_site}


@needs_no_network
def test_a_site_without_a_network_takes_part_to_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deploy/slurm has it: commands that do what there is to do and end. Some are killed, and others go on."""
    seams = ("mirror/.*/0001/from_site/manifest", "after upload .*/0001/.*model", "after download .*/0001/verdict")
    monkeypatch.setenv("DIES_AT", "|".join(seams))
    run = run_configuration(rounds=2, keep="last 1", tolerance=None)
    with Federation(tmp_path, run) as federation:
        work = federation.site("north")
        server, here = federation.folder("north"), work / "exchange"
        federation.change(work / "site.yaml", exchange="exchange")
        mortal = {"job": tmp_path / "job.seams", "mover": tmp_path / "mover.seams"}
        node = start_jobs(work, mortal["job"])
        federation.processes.append(node)
        federation.start_site("south")
        federation.start_aggregator()
        while node.poll() is None:
            mover = federation.start("site_client.cli", *shipped("move.cron"), work=work, dying=mortal["mover"])
            assert mover.wait(WAIT_S) in (0, DIED), (work / "output.txt").read_text()
            time.sleep(PAUSE_S)
        assert node.returncode == 0, (work / "output.txt").read_text()
        federation.wait_for_finals()
        assert federation.start("site_client.cli", *shipped("move.cron"), work=work).wait(WAIT_S) == 0
        federation.stop_all()
        died_at = {who: path.read_text() for who, path in mortal.items()}
        answer, verdict = MessageRef("update", RUN, 1), MessageRef("verdict", RUN, 1)
        assert f"before mirror/{answer.manifest}" in died_at["job"]
        assert f"after upload {answer.path}" in died_at["mover"]
        assert f"after download {verdict.path}" in died_at["mover"]

        assert not verify(LocalFolder(server)).findings
        assert not verify(LocalFolder(here)).findings
        weights = {path.relative_to(server) for path in server.rglob("*.safetensors")}
        assert {path.relative_to(here) for path in here.rglob("*.safetensors")} == weights
        assert not list(server.rglob("rounds/0001/*/*.safetensors"))  # as its rule says

        anew, aggregator = tmp_path / "anew", peer_of(work)
        move = mover_of(anew, server, aggregator)
        assert move() and from_aggregator(anew / "here") == from_aggregator(server)
        assert len(list((anew / "here").rglob("from_site/manifest.json"))) == 3  # and what the site had signed itself
        assert not verify(LocalFolder(anew / "here")).findings
        (anew / "here" / "sheets").mkdir()
        (anew / "here" / "sheets" / "0001.json").write_bytes(b"an answer")
        assert move() and (server / "sheets" / "0001.json").read_bytes() == b"an answer"
        assert not move()

        assert_what_is_forged_waits(tmp_path / "later", server, aggregator, caplog)


def assert_what_is_forged_waits(root: Path, server: Path, aggregator: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """Until it is put right, and what follows it too; what was planted elsewhere holds up nothing."""
    (server / "runs" / "planted" / "offer").mkdir(parents=True)
    (server / "runs" / "planted" / "offer" / "manifest.json").write_bytes(b"{}")
    verdict = server / MessageRef("verdict", RUN, 1).path / "verdict.json"
    as_it_was = verdict.read_bytes()
    verdict.write_bytes(as_it_was.replace(b"accepted", b"omitted!"))
    move, here = mover_of(root, server, aggregator), root / "here"
    assert move() and not move()
    come = {path.parent.as_posix().removeprefix(f"runs/{RUN}/") for path in from_aggregator(here)}
    assert come == {"offer", "rounds/0001/to_site"}  # what follows the verdict waits for it
    said = [record.getMessage() for record in caplog.records if "is left on the server" in record.getMessage()]
    assert len(said) == 2  # each once, however often it is looked at
    verdict.write_bytes(as_it_was)
    assert move() and not move()
    left = {path.parent.as_posix() for path in from_aggregator(server) - from_aggregator(here)}
    assert left == {"runs/planted/offer"}


def peer_of(work: Path) -> Peer:
    configuration = read_configuration(work)
    return Peer(configuration.federation, configuration.site, AGGREGATOR, configuration.aggregator_key)


def mover_of(root: Path, server: Path, aggregator: Peer) -> Callable[[], bool]:
    here = root / "here"
    here.mkdir(parents=True)
    return Mover(root, ListedFolder(LocalFolder(server)), LocalFolder(here), aggregator).move


@pytest.mark.parametrize("large", [names.ROUND_CONFIGURATION, names.GLOBAL_MODEL])
def test_a_payload_that_is_larger_than_it_can_be_is_left_on_the_server(
    tmp_path: Path, large: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever signed it: nobody fills a hospital's disk."""
    run = Played(tmp_path / "played")
    run.offer_and_consent()
    files = run.to_site(1)
    run.sign_and_publish("round", 1, files | {large: b" " * (2 << 20)})
    move, here = (
        mover_of(tmp_path, run.drop, Peer("retina", "north", AGGREGATOR, run.aggregator_key)),
        tmp_path / "here",
    )
    while move():
        pass
    ref = MessageRef("round", PLAYED_RUN, 1)
    assert (here / MessageRef("offer", PLAYED_RUN).manifest).exists()
    assert not (here / ref.manifest).exists() and not (here / ref.path / large).exists()
    assert f"{ref.path}/{large}: has {2 << 20} bytes, at most " in caplog.text


def test_what_stands_in_the_way_of_moving_is_told(tmp_path: Path) -> None:
    with Federation(tmp_path, run_configuration()) as federation:
        work = federation.site("north")
        with pytest.raises(ConfigurationError, match="exchange: names no directory to move to and from"):
            move(work, read_configuration(work), stop_event(None), once=True)
        federation.change(work / "site.yaml", exchange="exchange")
        move(work, read_configuration(work), stop_event(None), once=True)  # there is nothing yet, on either side
        assert (met := last_look(work)) is not None and not met.trouble
        with (
            work_lock(work / HOME, "another"),
            pytest.raises(ActionRequiredError, match="another `dropfed-site move` works here"),
        ):
            move(work, read_configuration(work), stop_event(None), once=True)


# --- what is put back ---------------------------------------------------------------------------------------------


class Apart(Hospital):
    """A hospital whose daemon sees ``exchange`` alone; ``move`` is the test's to call."""

    def __init__(self, home: Path, data: Path) -> None:
        self.exchange = home / "exchange"
        self.exchange.mkdir(mode=0o700, parents=True)
        super().__init__(home, data)

    def live(self) -> None:
        self.move()
        self.folder = Watched(self.exchange)
        super().live()
        self.move()

    def move(self) -> None:
        """As ``dropfed-site move --once`` does."""
        home = self.home / "move"
        home.mkdir(exist_ok=True)
        mover = Mover(home, ListedFolder(LocalFolder(self.drop)), LocalFolder(self.exchange), peer_of(self.work))
        while mover.move():
            pass

    def lose_the_disk(self) -> None:
        """All but the six files."""
        backup = ("site.yaml", "signing.key", "encryption.key", "password", "division.json", "budget.json")
        kept = {name: (self.work / name).read_bytes() for name in backup if (self.work / name).exists()}
        for lost in (self.work, self.exchange, self.home / "move"):
            shutil.rmtree(lost)
        for made in (self.work, self.exchange):
            made.mkdir(mode=0o700)
        for name, content in kept.items():
            write_file(self.work / name, content, private=True)


@pytest.fixture
def hospital(tmp_path: Path) -> Apart:
    """It has answered the first round."""
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    site = Apart(tmp_path / "hospital", tmp_path / "data")
    run = site.offer(run_configuration(sites=["north"], quorum=1, rounds=2, tolerance=None))
    site.live()
    assert site.receive(MessageRef("consent", RUN))
    site.send_round(run, 1)
    site.live()
    assert site.receive(MessageRef("update", RUN, 1))
    return site


def test_a_site_that_lost_its_disk_gets_back_what_it_had_signed(
    hospital: Apart, caplog: pytest.LogCaptureFixture
) -> None:
    whole = {path: path.read_bytes() for path in hospital.drop.rglob("*.*") if path.name != names.STATUS}
    hospital.lose_the_disk()
    hospital.live()
    assert "brought this site's card, and 2 messages that it had signed, from the server" in caplog.text
    assert f"restored from the folder: this site's card and 2 messages of its in 1 run ({RUN})" in caplog.text
    assert {path: path.read_bytes() for path in hospital.drop.rglob("*.*") if path.name != names.STATUS} == whole
    for folder in (hospital.drop, hospital.exchange):
        assert not verify(LocalFolder(folder)).findings


def test_what_its_heartbeat_on_the_server_speaks_of_must_be_there_before_it_signs(
    hospital: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, last = hospital.drop.with_name("kept"), hospital.drop / MessageRef("update", RUN, 1).path
    last.rename(kept)
    hospital.lose_the_disk()
    (home := hospital.home / "move").mkdir()
    server, here = ListedFolder(LocalFolder(hospital.drop)), LocalFolder(hospital.exchange)
    mover = Mover(home, server, here, peer_of(hospital.work))

    def move() -> None:
        while mover.move():
            pass

    monkeypatch.setattr(hospital, "move", move)  # it works on
    for _ in range(2):
        with pytest.raises(ActionRequiredError, match="has signed message 2, and the last one there is 1"):
            hospital.live()
    kept.rename(last)
    hospital.live()
    assert not verify(LocalFolder(hospital.drop)).findings


def test_until_all_is_here_that_it_had_signed_its_card_is_not_and_it_signs_nothing(hospital: Apart) -> None:
    consent = hospital.drop / MessageRef("consent", RUN).manifest
    as_it_was = consent.read_bytes()
    hospital.lose_the_disk()
    consent.write_bytes(as_it_was.replace(b"consent", b"consens"))
    with pytest.raises(RejectedError, match=f"{MessageRef('consent', RUN).path}"):
        hospital.live()
    assert not (hospital.exchange / names.SITE_CARD).exists()
    consent.write_bytes(as_it_was)
    hospital.live()
    assert (hospital.exchange / MessageRef("update", RUN, 1).manifest).exists()


@pytest.mark.parametrize("has_heartbeat", [True, False])
def test_an_old_copy_that_answers_otherwise_replaces_nothing_on_the_server(tmp_path: Path, has_heartbeat: bool) -> None:
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    site = Apart(tmp_path / "hospital", tmp_path / "data")
    site.offer(run_configuration(sites=["north"], quorum=1, rounds=2, tolerance=None))
    site.move()
    places = (site.work, site.exchange, site.home / "move")
    for place in places:
        shutil.copytree(place, tmp_path / "old" / place.name)
    site.live()
    answered = MessageRef("consent", RUN)
    signed = {path: path.read_bytes() for path in (site.drop / answered.path).iterdir()}
    for place in places:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "old" / place.name, place)
    site.set_policy(POLICY.model_copy(update={"tasks": ["segmentation"]}))
    site.folder = Watched(site.exchange)
    Hospital.live(site)  # before anybody has moved
    heartbeat = site.drop / names.STATUS
    before = heartbeat.read_bytes()
    if not has_heartbeat:
        heartbeat.unlink()
    told = "tells of message 1, and that is not from" if has_heartbeat else "on the server is another than the one here"
    with pytest.raises(ActionRequiredError, match=told):
        site.move()
    assert heartbeat.read_bytes() == before if has_heartbeat else not heartbeat.exists()
    assert {path: path.read_bytes() for path in (site.drop / answered.path).iterdir()} == signed


def test_what_a_run_keeps_no_longer_goes_from_the_server_also_after_a_crash_or_a_lost_disk(tmp_path: Path) -> None:
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    for case in ("nothing", "dies before it notes", "loses its disk"):
        site = Apart(tmp_path / case, tmp_path / "data")
        run = site.offer(run_configuration(sites=["north"], quorum=1, rounds=2, tolerance=None, keep="last 1"))
        site.live()
        assert site.receive(MessageRef("consent", RUN))
        site.send_round(run, 1)
        site.live()
        update = MessageRef("update", RUN, 1)
        assert site.receive(update)
        weights = site.drop / update.path / names.SITE_MODEL
        assert weights.exists()
        moved = site.home / "move" / "moved.txt"
        if case == "dies before it notes":
            moved.write_text("".join(line for line in moved.open() if update.manifest not in line))
        elif case == "loses its disk":
            site.lose_the_disk()
            site.live()
        site.send_verdict(run, 1)
        site.send_round(run, 2)
        site.live()
        site.send_verdict(run, 2)
        site.live()
        assert not (site.exchange / update.path / names.SITE_MODEL).exists()
        assert not weights.exists(), case


def test_a_card_comes_only_with_all_that_was_signed_however_late_the_server_shows_it(
    hospital: Apart, tmp_path: Path
) -> None:
    hospital.lose_the_disk()
    consent, elsewhere = hospital.drop / MessageRef("consent", RUN).path, tmp_path / "elsewhere"
    consent.rename(elsewhere)
    mover = Mover(
        hospital.home, ListedFolder(LocalFolder(hospital.drop)), LocalFolder(hospital.exchange), peer_of(hospital.work)
    )
    with pytest.raises(TransientError, match="the server does not show all that this site has signed"):
        mover.move()
    assert not (hospital.exchange / names.SITE_CARD).exists()
    elsewhere.rename(consent)
    while mover.move():
        pass
    assert (hospital.exchange / names.SITE_CARD).exists()
    assert (hospital.exchange / MessageRef("consent", RUN).manifest).exists()


def test_junk_beside_what_the_site_signed_stays_on_the_server(hospital: Apart) -> None:
    (hospital.drop / "sheets").mkdir()
    (hospital.drop / "sheets" / "0001.json").write_bytes(b"{}")
    damaged = hospital.drop / MessageRef("update", RUN, 1).path / names.METRICS
    damaged.write_bytes(b"another")
    for lost in (hospital.exchange / MessageRef("update", RUN, 1).path, hospital.home / "move"):
        shutil.rmtree(lost)
    hospital.move()
    assert not list(hospital.exchange.glob("sheets/*"))
    assert not (hospital.exchange / MessageRef("update", RUN, 1).manifest).exists()
