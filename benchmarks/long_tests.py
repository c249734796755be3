"""How the tests end that `make test` leaves out or skips, recorded.

    .venv/bin/python -m benchmarks.long_tests          what takes long: ``make test-long``
    .venv/bin/python -m benchmarks.long_tests monai    those that need MONAI (``.venv/bin/pip install --no-deps monai``)

Writes benchmarks/results/long-tests.json or monai-tests.json. Fails, and writes nothing, where a test fails. One test
is of both kinds; where MONAI is missing, the first records it as skipped.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from importlib.metadata import PackageNotFoundError, version

import pytest


class _Outcomes:
    """What became of each test, and how long it took with all that it needs."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = self.tests.get(report.nodeid, {}).get("seconds", 0.0)
        assert isinstance(seconds, float)
        said = {"outcome": report.outcome} if report.when == "call" or report.skipped else {}
        found = self.tests.setdefault(report.nodeid, {})
        found |= {"seconds": round(seconds + report.duration, 1), **said}


def main() -> None:
    """Play them, and record how they ended."""
    options = ArgumentParser(prog="python -m benchmarks.long_tests")
    options.add_argument("mark", nargs="?", choices=("long", "monai"), default="long", help="which (default: long)")
    mark: str = options.parse_args().mark
    outcomes = _Outcomes()
    with_monai: dict[str, object] = {}
    if mark == "monai":
        try:
            with_monai = {"monai": version("monai")}
        except PackageNotFoundError:
            sys.exit("MONAI is not installed: run `.venv/bin/pip install --no-deps monai`")
    if failed := pytest.main(["-m", mark, "-q"], plugins=[outcomes]):
        sys.exit(failed)
    # Imported now: it asks git, and processes that tests fork import this module, wherever they work.
    from benchmarks.record import record  # noqa: PLC0415

    command = f".venv/bin/python -m benchmarks.long_tests{' monai' if with_monai else ''}"
    record(f"{mark}-tests", command, {**with_monai, "tests": outcomes.tests})


if __name__ == "__main__":
    main()
