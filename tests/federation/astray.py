"""Run a dropfed command whose clock is wrong: ``python -m tests.federation.astray CLOCKS MODULE ARGUMENTS... WORK``.

CLOCKS is NAME=SECONDS_AHEAD,...; what counts is the name of the work directory. Clocks not named are right.
"""

from __future__ import annotations

import runpy
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

from shared.exchange.records import values
from site_client import limits

AHEAD_S = float(dict(clock.split("=") for clock in sys.argv[1].split(",")).get(Path(sys.argv[-1]).name, 0))
_right_time = time.time


class WrongDate(datetime):
    """What the wrong clock shows."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + timedelta(seconds=AHEAD_S)


def main() -> None:
    time.time = lambda: _right_time() + AHEAD_S
    for module in (values, limits):  # those that ask for the date
        module.datetime = WrongDate  # type: ignore[attr-defined]
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
