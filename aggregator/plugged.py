"""The process in which the aggregator has a plug-in's code work; see ``shared/learning/apart.py``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from aggregator.configuration import FILE
from aggregator.model_card import Form
from aggregator.model_work import Check, Combine, Decide, First, LimitBelow
from aggregator.preparation import Begin
from shared.errors import ActionRequiredError, DropfedError
from shared.folder.durable import disk_trouble
from shared.learning.apart import Question
from shared.learning.plugged import work
from shared.trouble import UnexpectedError

KINDS: dict[str, type[Question[Any]]] = {
    kind.__name__: kind for kind in (Begin, Check, Combine, Decide, First, Form, LimitBelow)
}


def _as_trouble(error: Exception, folder: Path) -> DropfedError:
    """Return what was raised as people are told it."""
    if isinstance(error, OSError):
        return disk_trouble(error, folder)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return ActionRequiredError(f"the memory is full; see what it does, or allow more ({FILE}: plugin_memory_gb)")
    return error if isinstance(error, DropfedError) else UnexpectedError(error)


if __name__ == "__main__":
    work(Path(sys.argv[1]), KINDS, _as_trouble)
