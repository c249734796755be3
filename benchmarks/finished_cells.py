"""What the finished cells of a study came to, kept beside the results until the whole study is recorded."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import measured_on
from studies.results import RESULT


@dataclass(frozen=True)
class FinishedCells:
    """One study's.

    Args:
        played: a folder for each cell, as the study has them.
        kept: a file for each finished one: ``{"date", "commit", "machine", "result"}``.
    """

    played: Path
    kept: Path

    def put_back(self) -> None:
        """Have the study know of each cell that is kept."""
        for path in self._files():
            result = self.played / path.stem / RESULT
            if not result.exists():
                result.parent.mkdir(parents=True, exist_ok=True)
                result.write_text(json.dumps(json.loads(path.read_bytes())["result"], indent=1) + "\n")

    def keep(self) -> None:
        """Keep each cell that has been finished since."""
        for result in sorted(self.played.glob(f"*/{RESULT}")):
            path = self.kept / f"{result.parent.name}.json"
            if not path.exists():
                self.kept.mkdir(parents=True, exist_ok=True)
                content = {**measured_on(), "result": json.loads(result.read_bytes())}
                path.write_text(json.dumps(content, separators=(",", ":")) + "\n")

    def by_machine(self) -> list[dict[str, Any]]:
        """Return how many cells were played on which machine, on which day, at which commit."""
        told = Counter(json.dumps(_where(json.loads(path.read_bytes())), sort_keys=True) for path in self._files())
        return [{**json.loads(where), "cells": count} for where, count in sorted(told.items())]

    def remove(self) -> None:
        """Remove the files of the finished cells."""
        shutil.rmtree(self.kept, ignore_errors=True)

    def _files(self) -> Iterator[Path]:
        yield from sorted(self.kept.glob("*.json"))


def _where(kept: dict[str, Any]) -> dict[str, Any]:
    return {name: kept[name] for name in ("date", "commit", "machine")}
