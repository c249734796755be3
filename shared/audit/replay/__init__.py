"""A run computed again from its folders."""

from __future__ import annotations

from shared.audit.replay.apart import replay_apart
from shared.audit.replay.run import offered, replay
from shared.audit.replay.steps import Step, counts, lines

__all__ = ["Step", "counts", "lines", "offered", "replay", "replay_apart"]
