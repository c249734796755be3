"""Which dropfed this is."""

from __future__ import annotations

from importlib.metadata import version


def own_software() -> str:
    """Return it as a site's card says it, as in "dropfed 0.1.0"."""
    return f"dropfed {version('dropfed')}"
