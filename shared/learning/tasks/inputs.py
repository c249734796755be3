"""What a model takes, in words, for whoever asks it without dropfed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from shared.learning.tasks import TERMS
from shared.learning.tasks.contract import Task


@dataclass(frozen=True)
class Input:
    """One input of a model.

    Args:
        channels: what each is, in order.
        made: of a file how, as clauses.
        lowest, highest: that a value can be; None where there is no bound.
    """

    channels: Sequence[str]
    made: str
    lowest: float | None = None
    highest: float | None = None

    @property
    def bounds(self) -> list[float]:
        """The lowest and the highest value; empty where there are none."""
        return [] if self.lowest is None or self.highest is None else [self.lowest, self.highest]


def listed(numbers: Sequence[float]) -> str:
    """Return numbers in one line, as of each channel."""
    return ", ".join(f"{number:g}" for number in numbers)


@runtime_checkable
class Describing(Protocol):
    """A part of a task of this package, whose inputs dropfed makes."""

    def describe_input(self, options: Any) -> Input:
        """Return what the model takes."""


def input_of(task: Task, options: Any) -> Input:
    """Return what a task's model takes; of a plug-in's, which may read files in its own way, only the channels."""
    if task.name in TERMS and isinstance(task, Describing):
        return task.describe_input(options)
    channels = [f"channel {number}" for number in range(task.input_shape(options)[0])]
    return Input(channels, f"made as the code of {task.name} says")


def input_text(task: Task, options: Any) -> str:
    """Return in one line what a task's model takes."""
    channels, *sides = task.input_shape(options)
    free = ("height", "width") if task.labels_pixels else sides
    found = input_of(task, options)
    between = f", from {found.lowest:.3g} to {found.highest:.3g}" if found.bounds else ""
    return f"{' × '.join(map(str, (channels, *free)))}: {', '.join(found.channels)}{between}; {found.made}"
