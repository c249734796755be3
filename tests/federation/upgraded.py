"""Run a dropfed command as another version of dropfed: by what is installed, and with the same code.

    python -m tests.federation.upgraded FOLDER MODULE ARGUMENTS...

FOLDER is what ``another_version`` has made. What the command reads of its own version is what an upgrade changes first:
``importlib.metadata`` finds it in the first folder of ``sys.path`` that names the distribution.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def another_version(home: Path, number: str) -> Path:
    """Make a folder in which dropfed is installed in a version, as far as its metadata tell."""
    folder = home / f"dropfed-{number}"
    metadata = folder / f"dropfed-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: dropfed\nVersion: {number}\n")
    return folder


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    module = sys.argv[2]
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
