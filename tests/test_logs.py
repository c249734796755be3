"""One event is one line, in either form, in the file as on standard error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shared.errors import ActionRequiredError
from shared.logs import LogForm, log_to

PROGRAM = """
import logging, sys, warnings
from pathlib import Path
from shared.logs import log_to

log_to(Path(sys.argv[1]), sys.argv[2])
logger = logging.getLogger("site_client.daemon")
logger.info("θ is %s", 0.5)
logger.error("first\\nsecond\\r\\x1b[31mthird\\u2028fourth\\udc80")
try:
    1 / 0
except ZeroDivisionError:
    logger.exception("caught")
warnings.warn("old\\nways")
raise KeyError("nobody\\nexpected this")
"""
ODD = "first\nsecond\r\x1b[31mthird\u2028fourth\udc80"
TEXT_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+09:00 (INFO|WARNING|ERROR|CRITICAL) +\S.*")


def output_of(path: Path, form: LogForm) -> list[str]:
    """Run the program, which ends by an error, and return what it wrote on standard error."""
    environment = os.environ | {"PYTHONUTF8": "1", "TZ": "Asia/Tokyo"}
    command = [sys.executable, "-c", PROGRAM, str(path), form]
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 1
    assert ended.stdout == b""
    return ended.stderr.decode().splitlines()


def test_text(tmp_path: Path) -> None:
    path = tmp_path / "work" / "log.txt"
    lines = output_of(path, "text")
    assert path.read_text(encoding="utf-8").splitlines() == lines
    assert all(TEXT_LINE.fullmatch(line) for line in lines), lines
    said = [line.split(maxsplit=3)[2:] for line in lines]
    assert [level for level, _ in said] == ["INFO", "ERROR", "ERROR", "WARNING", "CRITICAL"]
    messages = [message for _, message in said]
    assert messages[0] == "θ is 0.5"
    assert messages[1] == r"first\nsecond\r\x1b[31mthird\u2028fourth\udc80"
    assert re.match(r"caught\\nTraceback .*\\nZeroDivisionError: division by zero$", messages[2])
    assert r"UserWarning: old\nways" in messages[3]
    assert re.match(r"ended by .*\\nTraceback .*\\nKeyError: 'nobody\\n", messages[4])


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "work" / "log.txt"
    lines = output_of(path, "json")
    assert path.read_text(encoding="utf-8").splitlines() == lines
    records = [json.loads(line) for line in lines]
    assert all(list(record) == ["time", "level", "logger", "message"] for record in records)
    assert [(record["level"], record["logger"]) for record in records] == [
        ("INFO", "site_client.daemon"),
        ("ERROR", "site_client.daemon"),
        ("ERROR", "site_client.daemon"),
        ("WARNING", "py.warnings"),
        ("CRITICAL", "shared.logs"),
    ]
    messages = [record["message"] for record in records]
    assert messages[:2] == ["θ is 0.5", ODD]
    assert re.match(r"caught\nTraceback (.|\n)*\nZeroDivisionError: division by zero$", messages[2])
    assert "UserWarning: old\nways" in messages[3]
    assert re.match(r"ended by .*\nTraceback (.|\n)*\nKeyError: ", messages[4])
    for record in records:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
        assert abs(datetime.fromisoformat(record["time"]) - datetime.now(UTC)) < timedelta(hours=1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_full_disk_costs_lines_of_the_file_and_none_of_standard_error() -> None:
    lines = output_of(Path("/dev/full"), "text")
    assert len(lines) == 5
    assert all(TEXT_LINE.fullmatch(line) for line in lines), lines


def test_a_folder_in_the_logs_place_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.mkdir()
    with pytest.raises(ActionRequiredError, match=rf"{path} cannot be used \(Is a directory\): check the path\."):
        log_to(path)
