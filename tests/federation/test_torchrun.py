"""A site whose training torchrun starts: real processes, which die, rest and end as the daemon's own training does."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from click.testing import CliRunner

from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.tables import read_metrics
from shared.exchange.weights import TensorFile
from shared.folder.durable import hash_file, write_file
from shared.learning.apart import PERCENT
from site_client.cli import main
from site_client.configuration import read_configuration
from site_client.torchrun import job_folder
from tests.federation.forked import Forked
from tests.federation.hospital import Hospital
from tests.federation.running import RUN, TASK, WAIT_S, run_configuration, write_data
from tests.ports import free_port

UPDATE = MessageRef("update", RUN, 1)
TWO = {"launcher": "torchrun", "processes": 2}


def settle(work: Path, **settings: object) -> None:
    values = yaml.safe_load((work / "site.yaml").read_bytes())
    write_file(work / "site.yaml", yaml.safe_dump(values | settings).encode())


def torchrun_of(process: psutil.Process) -> list[psutil.Process]:
    """What of torchrun runs below a process: torchrun itself first, then the processes that train."""
    found: list[psutil.Process] = []
    for child in process.children(recursive=True):
        try:
            if {"shared.lifeline", "site_client.worker"} & set(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def trains(process: psutil.Process, rank: int) -> bool:
    try:
        return process.environ().get("RANK") == str(rank) and "shared.lifeline" not in process.cmdline()
    except psutil.Error:
        return False


def assert_all_end(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=WAIT_S)
    assert alive == []


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_data(TASK, folder, 0, 20, seed=1)
    return folder


class Clinic(Hospital):
    """A hospital whose hours for training the test says."""

    def __init__(self, home: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(home, data)
        self.may_train = True
        monkeypatch.setattr("site_client.heartbeat.EVERY_S", 0.0)
        monkeypatch.setattr("site_client.heartbeat.NOTED_EVERY_S", 0.0)
        monkeypatch.setattr("site_client.round_work.seconds_until", lambda *_: 0.0 if self.may_train else 1.0)
        monkeypatch.setattr("site_client.round_work.REST_S", 0.1)

    def ask(self, privacy: dict[str, float] | None = None, batch_size: int = 4, **settings: object) -> None:
        """Have the site agree to a run, ask it for a round, and change its settings."""
        wanted: dict[str, object] = {"epochs": 2, "batch_size": batch_size, "task_options": NO_DROPOUT}
        if privacy is not None:
            wanted |= {"method": "fedavg", "privacy": privacy, "augmentation": {"copies": 1, "originals": False}}
        run = run_configuration(sites=["north"], quorum=1, rounds=9, **wanted)
        self.offer(run)
        self.live()
        assert self.receive(MessageRef("consent", RUN))
        self.send_round(run, 1)
        settle(self.work, **settings)

    def rest_at_first_batch(self) -> None:
        """Close the hours once a training has begun."""

        def on_heartbeat(status: dict[str, object]) -> None:
            if status["phase"] == "training":
                self.may_train = False
                self.folder.on_heartbeat = lambda _: None

        self.folder.on_heartbeat = on_heartbeat

    def is_at_rest(self) -> bool:
        return self.folder.phases[-1:] == ["outside hours"] and (job_folder(self.work) / PERCENT).exists()

    def trouble(self) -> str:
        return str(json.loads((self.work / "status.json").read_bytes())["body"]["trouble"])

    @property
    def answer(self) -> Path:
        return self.work / "mirror" / UPDATE.path


NO_DROPOUT = {"image_size": 32, "widths": [4, 8], "dropout": 0.0}


@pytest.fixture
def clinic(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> Clinic:
    return Clinic(tmp_path, images, monkeypatch)


@dataclass
class Rested:
    """What a site's training in two processes came to that rested outside the hours.

    Args:
        processes: how many there were of torchrun's.
        listening: the addresses that these listened at meanwhile.
        trouble: what the heartbeat told of in the end.
    """

    answer: Path
    processes: int
    listening: set[str]
    trouble: str


@pytest.fixture(scope="module")
def rested(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Rested:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clinic = Clinic(tmp_path_factory.mktemp("two"), images, monkeypatch)
        hostile = tmp_path_factory.mktemp("hostile")  # whence no process takes any code
        (hostile / "shared").mkdir()
        (hostile / "shared" / "__init__.py").write_text("raise SystemExit('code of the folder')\n")
        monkeypatch.chdir(hostile)
        clinic.ask(**TWO)
        clinic.rest_at_first_batch()
        with clinic.living():
            clinic.wait_until(clinic.is_at_rest)
            resting = torchrun_of(psutil.Process())
            sockets = [socket for process in resting for socket in process.net_connections()]
            clinic.may_train = True
            clinic.wait_until(lambda: clinic.is_published(UPDATE))
            assert_all_end(resting)
        assert clinic.receive(UPDATE)
        listening = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
        return Rested(clinic.answer, len(resting), listening, clinic.trouble())


def test_two_processes_answer_as_one_does(rested: Rested, clinic: Clinic) -> None:
    clinic.ask()
    clinic.live()
    assert clinic.receive(UPDATE)
    one, two = (answer / names.SITE_MODEL for answer in (clinic.answer, rested.answer))
    assert TensorFile(one).names == TensorFile(two).names
    for name in TensorFile(one).names:
        assert TensorFile(two).tensor(name) == pytest.approx(TensorFile(one).tensor(name), rel=1e-2, abs=1e-3), name
    rows = [
        read_metrics((answer / names.METRICS).read_bytes(), names.METRICS) for answer in (clinic.answer, rested.answer)
    ]
    for alone, together in zip(*rows, strict=True):
        assert (alone.epoch, alone.split, alone.images) == (together.epoch, together.split, together.images)
        assert together.loss == pytest.approx(alone.loss, rel=1e-2)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_process_that_is_killed_is_trouble_that_passes(clinic: Clinic, rested: Rested) -> None:
    clinic.ask(**TWO)
    clinic.rest_at_first_batch()
    with clinic.living():
        clinic.wait_until(clinic.is_at_rest)
        first = torchrun_of(psutil.Process())
        (victim,) = (process for process in first if trains(process, 1))
        victim.kill()
        clinic.wait_until(lambda: "a training process ended before its round did" in clinic.trouble())
        assert str(clinic.work / "torchrun.log") in clinic.trouble()
        assert "SIGKILL" in (clinic.work / "torchrun.log").read_text()
        assert_all_end(first)
        clinic.may_train = True
        clinic.wait_until(lambda: clinic.is_published(UPDATE))
        clinic.wait_until(lambda: clinic.trouble() == "None")
    assert clinic.receive(UPDATE)
    assert hash_file(clinic.answer / names.SITE_MODEL) == hash_file(rested.answer / names.SITE_MODEL)
    assert not job_folder(clinic.work).exists()


def test_outside_the_hours_all_rest_and_nothing_is_lost(rested: Rested) -> None:
    """Their answer is that of several machines, which do not rest; see below."""
    assert rested.processes == 3
    assert rested.listening == {"127.0.0.1"}
    assert rested.trouble == "None"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whoever_ends_the_training_ends_every_process(clinic: Clinic) -> None:
    clinic.ask(**TWO)
    clinic.rest_at_first_batch()
    with clinic.living():
        clinic.wait_until(clinic.is_at_rest)
        paused = torchrun_of(psutil.Process())
        assert len(paused) == 3
        person(clinic, "pause")
        assert_all_end(paused)
        clinic.wait_until(lambda: not job_folder(clinic.work).exists())
        clinic.may_train = True
        clinic.rest_at_first_batch()
        person(clinic, "resume")
        clinic.wait_until(clinic.is_at_rest)
        stopped = torchrun_of(psutil.Process())
        assert len(stopped) == 3
    assert_all_end(stopped)
    assert clinic.trouble() == "None"
    assert not clinic.is_signed(UPDATE)


def person(clinic: Clinic, command: str) -> None:
    assert CliRunner().invoke(main, [command, "--work", str(clinic.work)]).exit_code == 0


@pytest.mark.long
def test_several_machines_train_together(
    clinic: Clinic, rested: Rested, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    clinic.ask(launcher="torchrun", nodes=2, rendezvous=f"127.0.0.1:{free_port()}")
    other, beyond = (
        Forked(["site_client.cli", "assist", node, "--work", str(clinic.work)], tmp_path / f"{node}.txt")
        for node in ("1", "2")
    )
    try:
        clinic.live()
        other.send_signal(signal.SIGTERM)
        assert other.wait(WAIT_S) == 0
        assert beyond.wait(WAIT_S) == 2
    finally:
        other.kill()
        beyond.kill()
    assert "nodes: 2 has no node 2" in (tmp_path / "2.txt").read_text()
    assert hash_file(clinic.answer / names.SITE_MODEL) == hash_file(rested.answer / names.SITE_MODEL)
    assert torchrun_of(psutil.Process()) == []


@pytest.mark.long
def test_a_private_run_is_trained_by_the_daemon_alone(clinic: Clinic) -> None:
    clinic.ask({"max_grad_norm": 1.0, "delta": 0.01, "target_epsilon": 6.0}, **TWO)
    clinic.live()
    assert clinic.receive(UPDATE)
    assert not (clinic.work / "torchrun.log").exists()


@pytest.mark.long
def test_what_stands_in_the_way_of_a_process_is_told_as_it_is(clinic: Clinic) -> None:
    clinic.ask(batch_size=2, launcher="torchrun", processes=3)
    with pytest.raises(ActionRequiredError, match=r"processes: a batch of [12] images cannot be shared by 3"):
        clinic.live()
    assert torchrun_of(psutil.Process()) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"processes": 2}, "only torchrun starts more than one"),
        ({"launcher": "torchrun", "device": "cuda:1"}, "torchrun gives each process its own"),
        ({"launcher": "torchrun", "nodes": 2}, "rendezvous: of more than one node"),
        ({"launcher": "torchrun", "rendezvous": "10.0.0.5:29500"}, "rendezvous: of more than one node"),
        ({"launcher": "torchrun", "nodes": 2, "rendezvous": "10.0.0.5"}, "a machine's address and a port"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], said: str, clinic: Clinic) -> None:
    settle(clinic.work, **settings)
    with pytest.raises(ConfigurationError, match=said):
        read_configuration(clinic.work)
