"""Worked numbers that lie beside the repository, not in it; tests of them are skipped where they are absent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

FILE = Path(__file__).resolve().parents[2].parent / "shared" / "fixtures" / "learning.json"


def cases(prefix: str) -> list[ParameterSet]:
    """Parameters for a test: each case whose id begins so, under its id; or one that is skipped, with the reason.

    A case has ``input``, and ``expected`` or, of what a published program prints, a field named after it.

    Raises:
        ValueError: the file is there and has no such case.
    """
    if not FILE.exists():
        absent = pytest.mark.skip(reason=f"no {'/'.join(FILE.parts[-3:])} beside the repository")
        return [pytest.param({}, id=prefix, marks=absent)]
    found: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["cases"]
    chosen = [pytest.param(case, id=case["id"]) for case in found if case["id"].startswith(prefix)]
    if not chosen:
        raise ValueError(f"{FILE} has no case {prefix}")
    return chosen
