"""Paths that a notebook gives."""

from __future__ import annotations

from pathlib import Path

from shared.errors import ConfigurationError


def path_of(given: object, what: str) -> Path:
    """Return a path that somebody gave.

    Raises:
        ConfigurationError: it is none.
    """
    if isinstance(given, str | Path):
        return Path(given)
    raise ConfigurationError([f"{what}: must be a path, and is of type {type(given).__name__}; give a str or a Path"])
