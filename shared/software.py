"""Which dropfed this is."""

from __future__ import annotations

from importlib.metadata import version


def own_software() -> str:
    """Return the name and version of this software as a card says it, as in "dropfed 0.1.0"."""
    return f"dropfed {version('dropfed')}"


def release(software: str) -> str:
    """Return what both ends should have alike, of "dropfed 0.1.2" the "dropfed 0.1"."""
    return ".".join(software.split(".")[:2])
