"""Ctrl-C while a program is still imported ends it with a sentence; TERM ends what waits at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shared.interrupts import STOPPED
from shared.stopping import stopped_by_signals

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
