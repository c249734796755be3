"""What the code of a plug-in does wrong, as one sentence: whose it is, at which work, and in which file and line."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import torch

from shared.errors import DropfedError, FaultError, PluginError
from shared.exchange.records.run import Plugin, Range
from shared.learning.apart import names_of
from shared.learning.metrics import Score
from shared.learning.plugins import path_in_wheel


def require_ranges(scores: Mapping[str, Score], ranges: Mapping[str, Range]) -> None:
    """Check that each score that is reported is a number in its range.

    Raises:
        FaultError: one is not.
    """
    for name, told in ranges.items():
        value = scores[name].value if name in scores else None
        if value is not None and not (isfinite(value) and told.holds(value)):
            raise FaultError(None, f"came to the score {name} = {value}, which is none of its range")


@contextmanager
def blaming(plugins: Sequence[Plugin], step: str = "") -> Iterator[None]:
    """Raise an unexpected error as the plug-ins' own, if their code works in this process.

    Args:
        step: what the work is, as people call it.

    Raises:
        PluginError: something was raised; without plug-ins it is raised as it is.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        is_told = isinstance(error, DropfedError) and not isinstance(error, FaultError)
        is_of_disk = isinstance(error, OSError) and not _place(error, plugins)
        if not plugins or is_told or is_of_disk:
            raise
        raise told(error, names_of(plugins) + (f", {step}" if step else ""), plugins) from error


def told(error: Exception, whose: str, plugins: Sequence[Plugin]) -> PluginError:
    """Return what was raised where the code of plug-ins worked as people are told it.

    Args:
        whose: what people call the plug-ins, and the work.
    """
    what = error.what if isinstance(error, FaultError) else f"raised {type(error).__name__}: {error}"
    return PluginError(f"{whose}: {what}{_place(error, plugins)}; ask who wrote it")


def _place(error: Exception, plugins: Sequence[Plugin]) -> str:
    """Return where in a plug-in's own files an error came about; empty if nowhere in them."""
    places = [(frame.filename, frame.lineno) for frame in reversed(traceback.extract_tb(error.__traceback__))]
    if isinstance(error, FaultError) and error.place is not None:
        places.insert(0, error.place)
    for file, line in places:
        if (path := path_in_wheel(Path(file), plugins)) is not None:
            return f" ({path}, line {line})"
    return ""
