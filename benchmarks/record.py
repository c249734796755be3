"""Write a benchmark's figures with what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
CHANGES = "+changes"


def record(name: str, command: str, figures: dict[str, object]) -> Path:
    """Write ``results/NAME.json``: the command, the figures, machine, versions, date and commit."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"command": command, **measured_on(), "figures": figures}, indent=2) + "\n")
    return path


def take_no_arguments(doc: str | None) -> None:
    """End with how a benchmark is called, if it was called otherwise, as with ``--help``: to measure takes long."""
    if sys.argv[1:]:
        raise SystemExit(doc)


def given_folder(argument: str, doc: str | None) -> Path:
    """Return the folder that a benchmark was given; end with how it is called, if that is none."""
    if not Path(argument).is_dir():
        raise SystemExit(f"{argument}: no such folder\n\n{doc}")
    return Path(argument)


def measured_on() -> dict[str, object]:
    """Return the date, the commit and this machine."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": COMMIT,
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(),
            "python": sys.version.split()[0],
            "torch": version("torch"),
        },
    }


def git(*arguments: str) -> str:
    """Return what git says here."""
    result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)  # noqa: S607
    return result.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit() -> str:
    """Return the commit whose files are here, with ``CHANGES`` behind it if other files than its own are there.

    What benchmarks have recorded is no change: else of several, one after the other, only the first had a clean commit.
    """
    changed = git("status", "--porcelain", "-uno", "--", ":/", f":(exclude){RESULTS}")
    return git("rev-parse", "HEAD") + (CHANGES if changed else "")


COMMIT = commit()  # when the benchmark starts: a long one must not claim a commit that came later
