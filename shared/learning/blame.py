"""What the code of a plug-in does wrong, as one sentence: whose it is, at which work, and in which file and line."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import torch

from shared.errors import DropfedError, PluginError
from shared.exchange.records.run import Plugin, Range
from shared.learning.apart import names_of
from shared.learning.metrics import Score
from shared.learning.plugins import path_in_wheel


class FaultError(ValueError):
    """What code of others gave, and must not; whose it is, is said by who knows that.

    Args:
        hook: the function that gave it; None where nobody knows which did.
        what: it did, as in "gave None, not a number".
    """

    def __init__(self, hook: Callable[..., object] | None, what: str) -> None:
        super().__init__(f"{getattr(hook, '__name__', 'it')}() {what}" if hook else what)
        self.hook = hook


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
        PluginError: something was raised; without plug-ins it is raised as it is, but for a ``FaultError``.
    """
    try:
        yield
    except (DropfedError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        is_of_disk = isinstance(error, OSError) and not _place(error, plugins)
        if isinstance(error, FaultError) and not plugins:
            raise PluginError(f"{error}{_defined_at(error)}; ask who wrote it") from error
        if not plugins or is_of_disk:
            raise
        raise told(error, names_of(plugins) + (f", {step}" if step else ""), plugins) from error


def told(error: Exception, whose: str, plugins: Sequence[Plugin]) -> PluginError:
    """Return what was raised where the code of plug-ins worked as people are told it.

    Args:
        whose: what people call the plug-ins, and the work.
    """
    what = str(error) if isinstance(error, FaultError) else f"raised {type(error).__name__}: {error}"
    return PluginError(f"{whose}: {what}{_place(error, plugins)}; ask who wrote it")


def _defined_at(error: FaultError) -> str:
    """Return where the function stands that gave what it must not; empty where that is not known."""
    code = getattr(error.hook, "__code__", None)
    return f" ({Path(code.co_filename).name}, line {code.co_firstlineno})" if code is not None else ""


def _place(error: Exception, plugins: Sequence[Plugin]) -> str:
    """Return where in a plug-in's own files an error came about; empty if nowhere in them."""
    places = [(frame.filename, frame.lineno) for frame in reversed(traceback.extract_tb(error.__traceback__))]
    if isinstance(error, FaultError) and (code := getattr(error.hook, "__code__", None)) is not None:
        places.insert(0, (code.co_filename, code.co_firstlineno))
    for file, line in places:
        if (path := path_in_wheel(Path(file), plugins)) is not None:
            return f" ({path}, line {line})"
    return ""
