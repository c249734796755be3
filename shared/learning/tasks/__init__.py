"""The tasks by name. A task's module, and torch with it, is imported only when the task is asked for.

Its terms need neither. Tasks of others come from their wheels: ``shared/learning/plugins.py``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigurationError
from shared.learning import plugins
from shared.learning.tasks.terms import EXTERNAL, TERMS, Terms

if TYPE_CHECKING:
    from shared.learning.tasks.contract import Task

_CLASSES = {
    "dr_staging": ("shared.learning.tasks.dr_staging", "DrStaging"),
    EXTERNAL: ("shared.learning.tasks.external", "External"),
    "fundus_disease": ("shared.learning.tasks.fundus_disease", "FundusDisease"),
    "image_classification": ("shared.learning.tasks.image_classification", "ImageClassification"),
    "octa_segmentation": ("shared.learning.tasks.octa_segmentation", "OctaSegmentation"),
    "rdr_classification": ("shared.learning.tasks.rdr_classification", "RdrClassification"),
    "segmentation": ("shared.learning.tasks.segmentation", "Segmentation"),
    "spectrograms": ("shared.learning.tasks.spectrograms", "Spectrograms"),
    "time_series": ("shared.learning.tasks.time_series", "TimeSeries"),
}

SELECTION_SCORES = {name: terms.selection_score for name, terms in TERMS.items()}
"""By task, the validation score by which the best aggregate is chosen."""

TASK_NAMES = tuple(sorted(_CLASSES.keys() - {EXTERNAL}))
"""The tasks whose networks are known here."""


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks: this package's, and those of installed wheels."""
    return tuple(sorted({*_CLASSES, *plugins.provided("tasks")}))


def task_named(name: str) -> Task:
    """Return the task that a configuration calls by this name.

    Raises:
        ConfigurationError: there is no such task, and the message lists those there are; or it is of a wheel that is
            not permitted here, or that holds no task.
    """
    if name in _CLASSES:
        module, class_name = _CLASSES[name]
        task: Task = getattr(importlib.import_module(module), class_name)()
        return task
    kind = plugins.load("tasks", name)
    if kind is None:
        raise ConfigurationError([f"task: there is no '{name}'; the tasks are: {', '.join(task_names())}."])
    from shared.learning.tasks.contract import opened  # noqa: PLC0415  (PyTorch)

    return opened(kind, name)


def terms_of(name: str) -> Terms[Any]:
    """Return what a run may say about a task of this package, without PyTorch.

    Raises:
        ConfigurationError: there is no such task in this package.
    """
    if name not in TERMS:
        raise ConfigurationError([f"task: there is no '{name}'; the tasks are: {', '.join(TASK_NAMES)}."])
    return TERMS[name]()
