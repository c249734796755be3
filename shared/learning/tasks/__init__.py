"""The tasks by name: a folder each. To add one is to add a folder; nothing else in the code names it.

    NAME/terms.py   what a run may say about it: a class with this ``name``, derived from ``terms.Terms``. Whoever only
                    verifies imports this, and so it must do without PyTorch
    NAME/task.py    the task: a class with this ``name``, which keeps ``contract.Task``. It is imported, and PyTorch
                    with it, only when the task is asked for

Tasks of others come from their wheels (``shared/learning/plugins.py``), and pass the same check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, cast

from shared.errors import ConfigurationError
from shared.learning import plugins
from shared.learning.tasks.terms import EXTERNAL, Terms

if TYPE_CHECKING:
    from shared.learning.tasks.contract import Task


def _defined_in(name: str, part: str) -> type:
    """Return the class of a task of this package that ``terms`` or ``task`` of its folder defines.

    Raises:
        ConfigurationError: there is none.
    """
    defined = vars(import_module(f"{__name__}.{name}.{part}")).values()
    found = (each for each in defined if isinstance(each, type) and getattr(each, "name", None) == name)
    if (kind := next(found, None)) is None:
        raise ConfigurationError([f"task: shared/learning/tasks/{name}/{part}.py has no class with name = {name!r}"])
    return kind


TERMS: Mapping[str, type[Terms[Any]]] = {
    name: cast(type[Terms[Any]], _defined_in(name, "terms"))
    for name in sorted(module.name for module in iter_modules(__path__) if module.ispkg)
}
"""By name, the terms of each task of this package."""

TASK_NAMES = tuple(name for name in TERMS if name != EXTERNAL)
"""This package's whose networks are known here."""

SELECTION_SCORES = {name: terms.selection_score for name, terms in TERMS.items()}
"""By task, the validation score by which the best aggregate is chosen."""


@dataclass(frozen=True)
class Words:
    """What people call one thing in a folder of a task, and one input of its model."""

    unit: str
    input: str

    @property
    def cuts(self) -> bool:
        """Whether a unit may give several inputs."""
        return self.unit != self.input


def words_of(task: str) -> Words:
    """Return the words of a task; a plug-in's is of images."""
    terms = TERMS.get(task, Terms)
    return Words(terms.unit_name, terms.input_name)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks: this package's, and those of installed wheels."""
    return tuple(sorted({*TERMS, *plugins.provided("tasks")}))


def task_named(name: str) -> Task:
    """Return the task that a configuration calls by this name.

    Raises:
        ConfigurationError: there is no such task, and the message lists those there are; or it is of a wheel that is
            not permitted here, or that holds no task.
    """
    kind = _defined_in(name, "task") if name in TERMS else plugins.load("tasks", name)
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
