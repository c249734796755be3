"""Replays a run that was played, as the command does, for tests of whatever made it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from threadpoolctl import threadpool_limits

from shared.audit.archive import open_archive
from shared.audit.replay import Step, replay
from shared.audit.sites import by_site, read_folders
from shared.learning.compute import EXACT, prepare_compute


def replayed(
    folders: Path,
    run: str,
    *,
    heldout: Path | None = None,
    weights: Path | None = None,
    secret_key: Path | None = None,
) -> list[Step]:
    """Every step, on one thread, as the aggregator computed it.

    Args:
        folders: a directory of drop folders, or an aggregator's work directory.
    """
    prepare_compute(EXACT, 1)
    with threadpool_limits(1), tempfile.TemporaryDirectory() as scratch:
        return replay(
            by_site(read_folders(open_archive([str(folders)], secret_key=secret_key))),
            run,
            scratch=Path(scratch),
            heldout=heldout,
            weights=weights,
        )


def not_same(steps: list[Step]) -> list[Step]:
    """The steps that differ, or could not be computed."""
    assert steps
    return [step for step in steps if step.outcome != "same"]
