"""Ctrl-C in a program's first second, while it is still imported, ends it with a sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shared.interrupts import STOPPED

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
