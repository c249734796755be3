"""The tasks by name. A task's module, and torch with it, is imported only when the task is asked for.

Its terms need neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigurationError
from shared.learning.tasks.terms import TERMS, Terms

if TYPE_CHECKING:
    from shared.learning.tasks.contract import Task

_CLASSES = {
    "dr_staging": ("shared.learning.tasks.dr_staging", "DrStaging"),
    "fundus_disease": ("shared.learning.tasks.fundus_disease", "FundusDisease"),
    "octa_segmentation": ("shared.learning.tasks.octa_segmentation", "OctaSegmentation"),
    "rdr_classification": ("shared.learning.tasks.rdr_classification", "RdrClassification"),
    "spectrograms": ("shared.learning.tasks.spectrograms", "Spectrograms"),
    "time_series": ("shared.learning.tasks.time_series", "TimeSeries"),
}

SELECTION_SCORES = {name: terms.selection_score for name, terms in TERMS.items()}
"""By task, the validation score by which the best aggregate is chosen."""

TASK_NAMES = tuple(sorted(_CLASSES))


def task_named(name: str) -> Task:
    """Return the task that a configuration calls by this name.

    Raises:
        ConfigurationError: there is no such task; the message lists those there are.
    """
    if name not in _CLASSES:
        raise ConfigurationError([f"task: there is no '{name}'; the tasks are: {', '.join(TASK_NAMES)}."])
    module, class_name = _CLASSES[name]
    task: Task = getattr(importlib.import_module(module), class_name)()
    return task


def terms_of(name: str) -> Terms[Any] | Task:
    """Return what a run may say about that task, without torch where it is one of this package.

    Raises:
        ConfigurationError: as for ``task_named``.
    """
    return TERMS[name]() if name in TERMS else task_named(name)
