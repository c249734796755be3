"""Collect the wheels of dropfed and all that it runs with, in the versions of `requirements.lock`, for this platform.

    python -m deploy.bundle.wheels FOLDER

It is run by `make bundle` and where a container is built, with the standard library alone. What only development needs
is left out. As in `make setup`, imgaug is taken without what it asks for; so what is collected is installed with
``--no-deps``, and all of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from deploy.local.bootstrap import LOCK, PIP_WHEEL, ROOT
from deploy.local.lock import TAKEN_ALONE, requirements


def collect(folder: Path) -> None:
    """Fill a folder with wheels; what has none is built here.

    Raises:
        subprocess.CalledProcessError: pip could not, and has said why.
    """
    wanted = requirements("dicom", "local")
    alone = [requirement for requirement in wanted if requirement.startswith(TAKEN_ALONE)]
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(folder), "--constraint", str(LOCK)]
    subprocess.run([*wheel, *(name for name in wanted if name not in alone)], check=True)
    pip = PIP_WHEEL.split("-")[1]  # what `make setup` falls back on, and installs the bundle
    subprocess.run([*wheel, "--no-deps", *alone, f"pip=={pip}", str(ROOT)], check=True)


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
