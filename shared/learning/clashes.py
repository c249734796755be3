"""Wheels that provide something by a name of this package's own: nobody could say which of the two is meant.

What is ours is taken all the same, as it always was: such a wheel is told of where a run begins, and by ``check``.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.exchange.records.run import RunConfiguration
from shared.learning.methods import REFERENCES, method_names
from shared.learning.models import ENCODERS, WITHOUT_BATCH_NORM
from shared.learning.plugins import Group, named_by, provided, wheel_behind
from shared.learning.tasks import TERMS

SCORES = ("cup_to_disc_error", "hausdorff_95", "nested_dice")
"""Those that need no wheel (``measures.py``, which needs PyTorch)."""


def clashes() -> list[str]:
    """Return a sentence for each name of ours that an installed wheel provides something by."""
    own: dict[Group, Iterable[str]] = {
        "tasks": TERMS,
        "methods": (*method_names(), *REFERENCES),
        "encoders": (*ENCODERS, *WITHOUT_BATCH_NORM),
        "scores": SCORES,
    }
    return [_told(group, name) for group, names in own.items() for name in sorted(provided(group).keys() & {*names})]


def clashes_of(run: RunConfiguration) -> list[str]:
    """Return the same of the names that a run says."""
    if not (found := clashes()):
        return []
    told = {_told(group, name) for group, name in named_by(run)}
    return [clash for clash in found if clash in told]


def _told(group: Group, name: str) -> str:
    wheel = wheel_behind(group, name)
    return f"plug-in {wheel}: provides the {group[:-1]} {name}, which dropfed has itself; have it renamed, or remove it"
