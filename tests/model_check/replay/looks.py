"""The looks of the model that a folder-sync worker can have."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model_check import folder_sync
from tests.model_check.folder_sync import Look
from tests.model_check.rules import Rules
from tests.model_check.state import Desk, Folder


def ways(before: Folder, after: Desk, rules: Rules) -> Iterator[Look]:
    """The looks that lead to a state of the aggregator's end, and that a folder-sync worker can have."""
    for look in folder_sync.looks(before, rules):
        looked = folder_sync.looked(before, look)
        if looked.desk == after and not _is_kept_back_in_vain(before, look):
            has_accepted = looked.desk.accepted > before.desk.accepted
            if not (looked.met_gap and has_accepted):
                yield look


def gap(before: Folder, look: Look) -> frozenset[int]:
    """The messages that a look meets beyond a gap, by their numbers."""
    if not folder_sync.looked(before, look).met_gap:
        return frozenset()
    first = before.desk.accepted + before.desk.refused + 1
    return frozenset(number for number in look.visible if not look.visible >= set(range(first, number)))


def _is_kept_back_in_vain(before: Folder, look: Look) -> bool:
    """Whether the withdrawal is refused before its own files are read, for the message before it was."""
    desk, hospital = before
    sees_poison = any(hospital.sent[number - 1].says == "poison" for number in look.visible)
    return look.keeps_back and (desk.refused > 0 or sees_poison)
