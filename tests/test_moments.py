"""A moment is shown in one form: by the clock of the machine that shows it, with its zone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = "import sys; from shared.moments import moment_text; print(moment_text(sys.argv[1]), moment_text(0.9))"


@pytest.mark.parametrize(
    ("zone", "moment", "shown"),
    [
        ("Europe/Berlin", "2026-11-24T07:35:12Z", "2026-11-24 08:35:12+01:00 1970-01-01 01:00:00+01:00"),
        ("Europe/Berlin", "2026-06-24T07:35:12Z", "2026-06-24 09:35:12+02:00 1970-01-01 01:00:00+01:00"),
        ("UTC", "2026-11-24T07:35:12Z", "2026-11-24 07:35:12+00:00 1970-01-01 00:00:00+00:00"),
        ("Asia/Tokyo", "9999-12-31T23:59:59Z", "9999-12-31 23:59:59+00:00 1970-01-01 09:00:00+09:00"),
    ],
)
def test_a_moment_has_the_zone_of_who_reads_it(zone: str, moment: str, shown: str) -> None:
    command, environment = [sys.executable, "-c", SHOW, moment], os.environ | {"TZ": zone}
    said = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    assert said.strip() == shown
