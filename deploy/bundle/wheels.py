"""Collect the wheels of dropfed and all that it runs with, in the versions of `requirements.lock`, for this platform.

    python -m deploy.bundle.wheels FOLDER

It is run by `make bundle` and where a container is built, with the standard library alone. What only development needs
is left out. As in `make setup`, imgaug is taken without what it asks for; so what is collected is installed with
``--no-deps``, and all of it. Our own wheel is numbered by the checkout that it is made from, so that pip takes a later
one for an update and people can tell which they have.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tempfile
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
    subprocess.run([*wheel, "--no-deps", *alone, f"pip=={pip}"], check=True)
    build_own([*wheel, "--no-deps"])


def build_own(wheel: list[str]) -> None:
    """Build the wheel of this checkout.

    Args:
        wheel: the command that does so.

    Raises:
        subprocess.CalledProcessError: as for ``collect``.
    """
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # of an earlier wheel, with modules that are no more
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "setup.cfg"
        settings.write_text(f"[egg_info]\ntag_build = {_tag()}\n")
        environment = os.environ | {"DIST_EXTRA_CONFIG": str(settings)}  # which setuptools reads after our own
        subprocess.run([*wheel, str(ROOT)], check=True, env=environment)


def own_version() -> str:
    """Return the version of a wheel of this checkout, as in "0.2.0.dev1371+gabc12345"; ``.changed`` ends it if files
    were changed since that commit.
    """
    return _setup()["metadata"]["version"] + _tag()


def _tag() -> str:
    """Return what follows the number in ``setup.cfg``: while that is in development, which commit this is."""
    tag = _setup()["egg_info"]["tag_build"]
    try:
        count = _git("rev-list", "--count", "HEAD")
        return tag and f".dev{count}+g{_git('describe', '--always', '--exclude=*', '--abbrev=8', '--dirty=.changed')}"
    except (OSError, subprocess.CalledProcessError):  # no clone, as where a container is built
        return tag


def _git(*arguments: str) -> str:
    command = ["git", "--git-dir", str(ROOT / ".git"), "--work-tree", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _setup() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m deploy.bundle.wheels FOLDER")
    collect(Path(sys.argv[1]))
