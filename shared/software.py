"""Which dropfed this is, and how its programs are started."""

from __future__ import annotations

import sys
from importlib.metadata import version


def own_software() -> str:
    """Return the name and version of this software as a card says it, as in "dropfed 0.2.0.dev1371+gabc12345"."""
    return f"dropfed {version('dropfed')}"


def release(software: str) -> str:
    """Return what both ends should have alike, of "dropfed 0.1.2" the "dropfed 0.1"."""
    return ".".join(software.split(".")[:2])


def own_program(module: str) -> list[str]:
    """Return the command that runs a module of ours, and never a file of the folder in which it is started.

    People type our commands in folders that others fill; without ``-P`` Python looks there first.
    """
    return [sys.executable, "-P", "-m", module]


def installing(extra: str) -> str:
    """Return how people install what one of our extras needs.

    From a clone: nobody owns our name on PyPI, where strangers could offer anything under it. No path is in it, because
    the aggregator may be told what stands in the way of a site.
    """
    return f"`python -m pip install '.[{extra}]'` in a clone of dropfed, with the Python of this environment"
