"""Ctrl-C while a program is still imported ends it with a sentence; TERM ends what waits at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shared.errors import ConfigurationError
from shared.interrupts import STOPPED
from shared.stopping import stopped_by_signals
from site_client.stopping import stop_event

WAIT_S = 60.0

COMMANDS = {
    "aggregator.cli": ["status", "--work"],
    "site_client.cli": ["run", "--work"],
    "shared.audit.cli": ["verify"],
    "studies.cli": ["run"],
}


@pytest.mark.parametrize(
    ("program", "moment"),
    [*((program, "click.types") for program in COMMANDS), ("site_client.cli", "torch.nn")],
)
def test_ctrl_c_during_imports_is_a_sentence(program: str, moment: str, tmp_path: Path) -> None:
    """The interpreter says what it has imported, and is interrupted in the midst of it."""
    command = [sys.executable, "-X", "importtime", "-m", program, *COMMANDS[program], str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        assert any(line.rpartition("|")[2].strip() == moment for line in process.stderr), f"{moment} is not imported"
        process.send_signal(signal.SIGINT)
        said = [line for line in process.stderr.read().splitlines() if not line.startswith("import time:")]
        assert process.stdout.read() == ""
    assert said == ["", STOPPED]
    assert process.returncode != 0


class HeldInWait(threading.Event):
    """One whose ``wait`` is interrupted at the worst moment: while it holds the lock that ``set`` takes."""

    def __init__(self) -> None:
        super().__init__()
        self._held = threading.Lock()

    def wait(self, timeout: float | None = None) -> bool:
        with self._held:
            signal.raise_signal(signal.SIGTERM)
        return super().wait(timeout)

    def set(self) -> None:
        assert self._held.acquire(timeout=WAIT_S), "the handler waits for what it has interrupted"
        self._held.release()
        super().set()


def test_a_signal_in_the_midst_of_a_wait_ends_it() -> None:
    """What a daemon mostly does is wait: TERM must end it whenever it comes."""
    stop = HeldInWait()
    came: list[int] = []
    with stopped_by_signals(stop, came):
        assert stop.wait(WAIT_S)
    assert came == [signal.SIGTERM]


@pytest.mark.parametrize("duration", ["", "60", "1.5", "-3h", "1000000000000d", "9" * 400 + "s"])
def test_a_time_that_cannot_be_waited_for_is_a_sentence(duration: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--for .*: (must be a number and|this system waits for [0-9]+d)"):
        stop_event(duration)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows removes no directory that somebody is in")
def test_a_directory_that_was_removed_since_is_a_sentence(tmp_path: Path) -> None:
    """As a shell stays in it, and a command is typed there."""
    command = f'mkdir gone; cd gone; rmdir ../gone; exec "{sys.executable}" -m site_client.cli status --work other'
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    told = "the present directory cannot be used (No such file or directory): check the path.\n"
    assert (done.returncode, done.stderr) == (1, told)
