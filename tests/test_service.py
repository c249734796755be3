"""What a service manager is told, by real datagrams, and the unit that systemd is given."""

from __future__ import annotations

import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from shared import service
from shared.errors import ActionRequiredError, ConfigurationError, PluginError
from shared.learning.apart import attended
from shared.learning.data.images import read_pairs
from shared.learning.loading import prepared
from site_client import installation, machine
from site_client.cli import main
from site_client.configuration import SiteConfiguration, read_configuration
from site_client.installation import (
    MARK,
    UNITS,
    drafted_unit,
    install,
    outdated_settings,
    password_file_of,
    uninstall,
    unit_name,
    unit_text,
)
from site_client.machine import look_at_daemon, unit_of
from tests import SOME_KEY
from tests.federation.running import TASK, WAIT_S, Federation, write_data

needs_fifo = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze") or not shutil.which("systemctl"), reason="systemd is not installed"
)
MOST_EXPOSED = 25  # tenths, as systemd-analyze counts; its "OK" ends at 49


class Listening:
    """A service manager's socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(WAIT_S)
        self.heard: list[str] = []

    def next(self) -> str:
        """The next message; waits for it."""
        self.heard.append(self._socket.recv(1 << 16).decode())
        return self.heard[-1]

    def until(self, message: str) -> None:
        """Listen until a message comes."""
        deadline = time.monotonic() + WAIT_S
        while self.next() != message:
            assert time.monotonic() < deadline, f"waited in vain for {message}: {self.heard[-10:]}"

    def all(self, within_s: float = 0.0) -> list[str]:
        """What comes within a time, and is there already."""
        found, deadline = [], time.monotonic() + within_s
        while select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
            found.append(self.next())
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listening]:
    """A manager, named in the environment; who asked for it is forgotten afterwards."""
    monkeypatch.setattr(service, "_manager", None)
    listening = Listening(tmp_path / "notify")
    monkeypatch.setenv(service.SOCKET, str(tmp_path / "notify"))
    yield listening
    listening.close()


# --- what is told ------------------------------------------------------------------------------------------


def test_without_a_manager_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_manager", None)
    monkeypatch.delenv(service.SOCKET, raising=False)
    service.find_manager()
    service.ready()
    service.alive()
    service.show("waiting")
    service.stopping()
    assert service.wait(threading.Event(), 0.0) is False


def test_a_manager_without_watchdog_hears_no_sign_of_life(manager: Listening) -> None:
    service.find_manager()
    service.ready()
    service.alive()
    service.show("waiting")
    service.show("waiting")
    service.show("first\nREADY=1")
    service.stopping()
    assert manager.all() == ["READY=1", "STATUS=waiting", "STATUS=first\\nREADY=1", "STOPPING=1"]
    assert service.SOCKET not in os.environ


def test_a_watchdog_over_another_process_is_not_ours(manager: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(service.WATCHDOG, "1000")
    monkeypatch.setenv(service.WATCHED_PROCESS, str(os.getpid() + 1))
    service.find_manager()
    service.alive()
    assert manager.all() == []


def test_signs_of_life_are_few(manager: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(service.WATCHDOG, str(3600 * 1_000_000))
    monkeypatch.setenv(service.WATCHED_PROCESS, str(os.getpid()))
    service.find_manager()
    for _ in range(1000):
        service.alive()
    assert manager.all() == ["WATCHDOG=1"]


def test_a_long_wait_is_divided_under_a_watchdog(manager: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            self.waits: list[float] = []

        def wait(self, timeout: float | None = None) -> bool:
            self.waits.append(timeout or 0.0)
            return self.is_set()

    clock = Clock()
    assert service.wait(clock, 100.0) is False
    monkeypatch.setenv(service.WATCHDOG, str(120 * 1_000_000))
    service.find_manager()
    assert service.wait(clock, 100.0) is False
    clock.set()
    assert service.wait(clock, 100.0) is True
    assert clock.waits == [100.0, 30.0, 30.0, 30.0, 10.0, 30.0]


def test_a_manager_that_is_gone_holds_nothing_up(manager: Listening, tmp_path: Path) -> None:
    service.find_manager()
    (tmp_path / "notify").unlink()
    service.ready()
    service.stopping()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sockets without a file")
def test_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"dropfed-test-{os.getpid()}"
    monkeypatch.setattr(service, "_manager", None)
    monkeypatch.setenv(service.SOCKET, f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(WAIT_S)
        service.find_manager()
        service.ready()
        assert listening.recv(100) == b"READY=1"


def test_work_that_moves_is_a_sign_of_life(manager: Listening, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_data(TASK, tmp_path / "data", 0, images=3, seed=1)
    monkeypatch.setenv(service.WATCHDOG, "1")  # so impatient that each sign is sent
    service.find_manager()
    read_pairs(tmp_path / "data", 2)
    assert manager.all() == ["WATCHDOG=1"] * 6, "one for each image and mask"
    batch = torch.zeros(1), torch.zeros(1)
    with prepared(lambda _: batch, [1, 2, 3], 0, torch.device("cpu")) as coming:
        assert len(list(coming)) == 3
    assert manager.all() == ["WATCHDOG=1"] * 3


def test_waiting_for_a_process_is_a_sign_of_life_for_its_time_is_bounded(
    manager: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(service.WATCHDOG, "1")
    service.find_manager()
    left = iter([None, None, 0])
    assert attended(lambda: next(left), 1.0, lambda: True, PluginError("took too long")) == 0
    assert manager.all() == ["WATCHDOG=1"] * 2


# --- a real daemon -----------------------------------------------------------------------------------------


@needs_fifo
def test_a_daemon_that_hangs_is_silent(manager: Listening, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patience_s, pipe = 1.0, tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv(service.WATCHDOG, str(int(patience_s * 1e6)))
    runner = ("tests.federation.hanging", str(pipe))
    with Federation(tmp_path / "federation", runner=runner) as federation:
        daemon = federation.start_site("north")
        manager.until("READY=1")
        with pipe.open("wb"):  # returns once the daemon hangs
            manager.all()
            assert manager.all(within_s=2 * patience_s) == []
            assert daemon.poll() is None
        for _ in range(5):
            manager.until("WATCHDOG=1")
        assert any(message.startswith("STATUS=waiting, at ") for message in manager.heard)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(WAIT_S) == 0
        manager.until("STOPPING=1")
        assert [message for message in manager.all() if not message.startswith("STATUS=stopped")] == []
        assert manager.heard.count("READY=1") == 1


# --- the unit ----------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The work directory of a site, as if it did not lie in /tmp."""
    monkeypatch.setattr(installation, "_TEMPORARY", ())
    path = tmp_path / "a site"
    path.mkdir()
    (path / "password").write_text("secret")
    if os.geteuid() == 0:
        for each in (path, path / "password"):
            os.chown(each, 4711, 4711)
    return path


def configuration(**changes: object) -> SiteConfiguration:
    settings: dict[str, object] = {
        "federation": "retina",
        "site": "north",
        "url": "https://cloud.example.org/dav/north/",
        "user": "north",
        "aggregator_key": SOME_KEY,
        "data": {"octa_segmentation": "/data/100 %/octa", "dr_staging": "fundus"},
    }
    return SiteConfiguration.model_validate(settings | changes)


def settings_of(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_names_what_the_site_has(work: Path) -> None:
    text = unit_text(work, configuration())
    unit = settings_of(text)
    assert text.encode().startswith(MARK)
    assert unit["ExecStart"] == [f'"{sys.executable}" "-P" "-m" "site_client.cli" "run" "--work" "{work}"']
    assert "LoadCredential" not in unit  # the daemon's user could put a link to root's files into WORK
    assert unit["ReadWritePaths"] == [f'"{work}"']
    assert unit["ReadOnlyPaths"] == ['"-/data/100 %%/octa"', f'"-{work}/fundus"']
    assert unit["User"] == [str(work.stat().st_uid) if os.geteuid() == 0 else work.owner()]
    assert unit["PrivateDevices"] == ["yes"]
    assert "secret" not in text
    assert "${" not in text


def test_a_unit_of_other_settings_is_told_and_the_password_goes_on_coming_from_where_it_came(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, credential = work.parent / unit_name(configuration()), work.parent / "100 % secret"
    assert outdated_settings(unit, work, configuration()) == []  # none is there
    unit.write_text(drafted_unit(work, configuration(), password_file=credential)[0])
    assert password_file_of(unit) == credential
    assert outdated_settings(unit, work, configuration()) == []
    changed = configuration(device="cuda", data={"octa_segmentation": "/data/other"})
    assert outdated_settings(unit, work, changed) == [
        "DeviceAllow",
        "DevicePolicy",
        "PrivateDevices",
        "ReadOnlyPaths",
        "RequiresMountsFor",
    ]
    monkeypatch.setattr(machine, "unit_of", lambda _: unit)
    monkeypatch.setattr(Path, "is_dir", lambda _: True)  # as where systemd runs
    (told,) = (finding for finding in look_at_daemon(work, changed) if finding.grade == "warning")
    program = Path(sys.executable).with_name("dropfed-site")  # sudo would not find it by its name alone
    assert f"; type `sudo {program} install-service --work " in told.text
    unit.write_text(unit_text(work, configuration()))
    assert password_file_of(unit) is None
    unit.write_text("[Service]\nExecStart=/ours\nLoadCredential=password:/etc/ours\n")  # nobody's of ours
    assert outdated_settings(unit, work, changed) == [] and password_file_of(unit) is None


def test_a_gpu_is_let_in(work: Path) -> None:
    unit = settings_of(unit_text(work, configuration(device="cuda")))
    assert (unit["DevicePolicy"], unit["DeviceAllow"]) == (["closed"], ["char-nvidia* rw"])
    assert "PrivateDevices" not in unit


def test_homes_are_hidden_where_nothing_needed_lies_there(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/opt/dropfed")
    monkeypatch.setattr(sys, "executable", "/opt/dropfed/bin/python")
    at_home = str(Path(__file__).resolve()).startswith(("/home", "/root"))
    assert settings_of(unit_text(work, configuration()))["ProtectHome"] == ["read-only" if at_home else "yes"]
    images = {"dr_staging": "/home/eye/fundus"}
    assert settings_of(unit_text(work, configuration(data=images)))["ProtectHome"] == ["read-only"]


def test_a_service_sees_all_that_the_settings_name(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_HOMES", (Path("/home"),))
    program = {"name": "ours", "directory": "/home/eye/program", "command": ["./train"]}
    named: dict[str, dict[str, object]] = {
        "authority": {"ca_file": "/home/eye/ca.pem"},
        "program": {"policy": {"external_trainers": [program]}},
        "exchange": {"exchange": "/home/eye/exchange"},
    }
    assert settings_of(unit_text(work, configuration()))["ProtectHome"] == ["yes"]
    for settings in named.values():
        assert settings_of(unit_text(work, configuration(**settings)))["ProtectHome"] == ["read-only"]
    writable = settings_of(unit_text(work, configuration(**named["exchange"])))["ReadWritePaths"]
    assert writable == [f'"{work}" "-/home/eye/exchange"']


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_root_runs_no_daemon(work: Path) -> None:
    os.chown(work, 0, 0)
    with pytest.raises(ConfigurationError, match="belongs to root"):
        unit_text(work, configuration())
    with pytest.raises(ConfigurationError, match="belongs to root, not to nobody"):
        unit_text(work, configuration(), user="nobody")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_user_who_cannot_run_the_daemon_is_told_why(work: Path) -> None:
    os.chown(work, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(ConfigurationError, match=r"^--user root: .*; leave it out, and nobody, who owns "):
        unit_text(work, configuration(), user="root")
    with pytest.raises(ConfigurationError, match=r"^--user nosuch: there is no such user on this machine"):
        unit_text(work, configuration(), user="nosuch")


def test_a_directory_of_systemds_own_gets_a_user_of_its_making(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first start, when it belongs to root, and after, when systemd has moved it."""
    named, private = work.parent / "lib", work.parent / "lib" / "private"
    monkeypatch.setattr(installation, "_STATE", (named, private))
    private.mkdir(parents=True)
    work.rename(named / "site")
    monkeypatch.setattr(Path, "owner", lambda path: "root")
    before = unit_text(named / "site", configuration())
    assert {"DynamicUser=yes", 'StateDirectory="site"', f'ReadWritePaths="{named}/site"'} <= set(before.splitlines())
    assert "User=" not in before.replace("DynamicUser=", "")
    (named / "site").rename(private / "site")
    (named / "site").symlink_to(private / "site")
    assert unit_text(private / "site", configuration()) == before
    (named / unit_name(configuration())).write_text(before)
    assert unit_of(private / "site", (str(named),)) == named / unit_name(configuration())


@pytest.mark.parametrize("name", ["line\nbreak", 'quo"te', "back\\slash", "space at the end "])
def test_a_path_that_no_unit_can_name(work: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="rename it"):
        unit_text(work, configuration(data={"dr_staging": name}))


@pytest.mark.parametrize("folder", ["work", "images", "program"])
def test_what_a_service_would_not_see_is_refused(work: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    path = {"work": work, "images": work / "fundus", "program": Path(sys.prefix)}[folder]
    monkeypatch.setattr(installation, "_TEMPORARY", (path,))
    with pytest.raises(ConfigurationError, match=re.escape(f"{path}: no service sees what lies in /tmp")):
        unit_text(work, configuration())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_daemon_can_read_the_password_that_nobody_hands_it(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(work / "password", 0, 0)
    with pytest.raises(ConfigurationError, match=r"password: belongs to root, and the daemon .*: `chown 4711` it"):
        unit_text(work, configuration())
    elsewhere = work.parent / "elsewhere"
    elsewhere.write_text("secret")
    os.chown(elsewhere, 4711, 4711)
    monkeypatch.setattr(installation, "_TEMPORARY", (elsewhere,))
    with pytest.raises(ConfigurationError, match="elsewhere: no service sees what lies in /tmp"):
        unit_text(work, configuration(password_file=str(elsewhere)))


def test_without_a_password_there_is_no_service(work: Path) -> None:
    (work / "password").unlink()
    with pytest.raises(ConfigurationError, match="password: is missing"):
        unit_text(work, configuration())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files that are root's")
def test_systemd_hands_over_nothing_that_others_than_root_can_exchange(work: Path, tmp_path: Path) -> None:
    """It reads with the rights of root whatever lies there when the service starts."""
    (tmp_path / "etc").mkdir()
    password = tmp_path / "etc" / "password 100%"
    password.write_text("secret")
    unit = settings_of(unit_text(work, configuration(), password_file=password))
    assert unit["LoadCredential"] == [f"password:{tmp_path}/etc/password 100%%"]
    (work / "password").unlink()
    assert unit_text(work, configuration(), password_file=password)
    (tmp_path / "link").symlink_to(password)
    os.chown(shutil.copytree(tmp_path / "etc", tmp_path / "foreign"), 4711, 4711)
    shutil.copytree(tmp_path / "etc", tmp_path / "shared").chmod(0o777)
    for loose in (tmp_path / "link", tmp_path / "foreign", tmp_path / "shared"):
        named = loose / password.name if loose.is_dir() else loose
        with pytest.raises(ConfigurationError, match=re.escape(f"others than root can change {loose}, and systemd")):
            unit_text(work, configuration(), password_file=named)


@needs_systemd
@pytest.mark.parametrize("identity", ["User=daemon", 'DynamicUser=yes\nStateDirectory="north"'])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_systemd_accepts_the_unit_and_finds_it_hardened(work: Path, identity: str, device: str) -> None:
    text = re.sub(r"^User=.*$", identity, unit_text(work, configuration(device=device)), flags=re.MULTILINE)
    unit = work / unit_name(configuration())
    unit.write_text(text)
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={MOST_EXPOSED}", unit]
    secured = subprocess.run(command, capture_output=True, text=True, check=False)
    assert secured.returncode == 0, secured.stdout.splitlines()[-1]
    assert "Overall exposure level" in secured.stdout


@needs_systemd
def test_installing_and_uninstalling(work: Path, tmp_path: Path) -> None:
    root, unit, text = tmp_path / "disk", unit_name(configuration()), unit_text(work, configuration())
    enabled = root / UNITS / "multi-user.target.wants" / unit
    path = install(unit, text, root)
    assert path.read_text() == text
    assert enabled.is_symlink()
    assert install(unit, f"{text}# changed\n", root) == path, "installing again replaces it"
    assert path.read_text().endswith("# changed\n")
    assert uninstall(unit, root) == path
    assert not path.exists()
    assert not enabled.is_symlink()
    with pytest.raises(ActionRequiredError, match="is not there"):
        uninstall(unit, root)
    path.write_text("[Service]\n")
    for refused in (lambda: install(unit, text, root), lambda: uninstall(unit, root)):
        with pytest.raises(ActionRequiredError, match="was not written by"):
            refused()
    assert path.read_text() == "[Service]\n"


def test_the_commands(work: Path) -> None:
    settings = configuration().model_dump_json()  # JSON is YAML
    (work / "site.yaml").write_text(settings)
    shown = CliRunner().invoke(main, ["install-service", "--work", str(work), "--print"])
    assert (shown.exit_code, shown.output) == (0, unit_text(work, read_configuration(work)))
    assert not (Path("/") / UNITS / "dropfed-north.service").exists()
    gone = CliRunner().invoke(main, ["uninstall-service", "--work", str(work)])
    assert gone.exit_code == 1
    assert gone.output.count("\n") == 1


def test_the_unit_is_shown_where_it_could_not_be_installed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_TEMPORARY", (work.parent,))
    (work / "site.yaml").write_text(configuration().model_dump_json())
    (work / "password").unlink()
    shown = CliRunner().invoke(main, ["install-service", "--work", str(work), "--print", "--user", "no-such-user"])
    assert shown.exit_code == 0
    assert shown.stdout.encode().startswith(MARK) and "User=no-such-user" in shown.stdout
    told = [line.removeprefix("could not be installed as it is: ") for line in shown.stderr.splitlines()]
    assert told == [
        "--user no-such-user: there is no such user on this machine; correct the name",
        f"{work / 'password'}: is missing: put the folder's password there, readable by you alone",
        f"{work}: no service sees what lies in /tmp or /var/tmp; move it elsewhere",
        f"{work / 'fundus'}: no service sees what lies in /tmp or /var/tmp; move it elsewhere",
    ]
    with pytest.raises(ConfigurationError) as refused:
        unit_text(work, read_configuration(work), user="no-such-user")
    assert list(refused.value.problems) == told


@pytest.mark.parametrize("options", [[], ["--print"]])
def test_elsewhere_than_on_linux_no_unit_is_made(
    work: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    (work / "site.yaml").write_text(configuration().model_dump_json())
    monkeypatch.setitem(sys.modules, "pwd", None)  # without it a path has no owner
    monkeypatch.setattr(sys, "platform", "win32")
    refused = CliRunner().invoke(main, ["install-service", "--work", str(work), *options])
    told = "services are installed for systemd only; docs/service.md describes Windows and macOS\n"
    assert (refused.exit_code, refused.output) == (1, told)


def test_the_template_is_part_of_the_package() -> None:
    assert (files("deploy") / "systemd" / "dropfed-site.service").is_file()
