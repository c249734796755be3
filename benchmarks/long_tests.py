"""How the tests that take over a minute each end: ``make test-long``, recorded.

    .venv/bin/python -m benchmarks.long_tests

One of them needs MONAI (``.venv/bin/pip install --no-deps monai``) and is recorded as skipped where that is missing.
Writes benchmarks/results/long-tests.json. Fails, and writes nothing, where a test fails.
"""

from __future__ import annotations

import sys

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
    outcomes = _Outcomes()
    if failed := pytest.main(["-m", "long", "-q"], plugins=[outcomes]):
        sys.exit(failed)
    # Imported now: it asks git, and processes that tests fork import this module, wherever they work.
    from benchmarks.record import record  # noqa: PLC0415

    record("long-tests", ".venv/bin/python -m benchmarks.long_tests", {"tests": outcomes.tests})


if __name__ == "__main__":
    main()
