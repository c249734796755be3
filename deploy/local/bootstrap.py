"""Make `.venv` with everything in `requirements.lock`: `python3 deploy/local/bootstrap.py`, or `make setup`.

Runs on a bare Python with the standard library only. Debian ships Python without `ensurepip`; there, pip itself is
fetched from PyPI, one pinned file checked against its SHA-256. Where everything else comes from is pip's own matter.

The stamp `.venv/ready` is written last. Without it the next call starts from an empty environment; with it, only what
changed in the lock is installed, unless the Python that it was made with is gone: then it is made anew, too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
READY = VENV / "ready"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
LOCK = ROOT / "requirements.lock"

OLDEST_PYTHON = (3, 11)
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_URL = f"https://files.pythonhosted.org/packages/07/25/ee8c38ae72d66b844ce8eb9711ba905dba21ca1a8a0c960057c41cd23337/{PIP_WHEEL}"
PIP_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"


class SetUpError(Exception):
    """Set-up cannot go on; the text is one sentence with what to do."""


def main() -> int:
    """Make or update `.venv`; print what happens; return the exit status."""
    os.umask(0o022)  # whoever a daemon runs as must be able to run it
    try:
        set_up()
    except SetUpError as problem:
        print(f"dropfed: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("dropfed: set-up interrupted; the next call starts it again.", file=sys.stderr)
        return 130
    return 0


def set_up() -> None:
    """Leave a complete `.venv` with its stamp, or raise `SetUpError` and leave none."""
    if sys.version_info < OLDEST_PYTHON:
        found, needed = ".".join(map(str, sys.version_info[:2])), ".".join(map(str, OLDEST_PYTHON))
        raise SetUpError(
            f"this is Python {found}, and {needed} or newer is needed: install it, then `make PYTHON=python{needed}`."
        )
    started_s = time.monotonic()
    if READY.exists() and has_packages():
        print("Updating .venv", flush=True)
        READY.unlink()
    else:
        print("Setting up .venv: once, and it takes some minutes (PyTorch is large)", flush=True)
        make_venv()
    print("  PyTorch", flush=True)
    pip_install("torch", "--constraint", str(LOCK))  # with what it needs: its CUDA builds bring their own libraries
    print("  the other packages", flush=True)
    pip_install("--no-deps", "--requirement", str(LOCK))  # without: imgaug asks for an OpenCV that needs a screen
    pip_install("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # a daemon of another user cannot keep what Python compiles
        print("  compiling it", flush=True)
        subprocess.run([str(PYTHON), "-P", "-m", "compileall", "-qq", "-j", "0", str(ROOT)], check=False)
    READY.touch()
    print(f"Ready after {time.monotonic() - started_s:.0f} s", flush=True)


def has_packages() -> bool:
    """Return whether the Python of `.venv` finds what was installed: after an upgrade of the system's it does not."""
    try:
        return subprocess.run([str(PYTHON), "-c", "import pip"], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def make_venv() -> None:
    """Make an empty `.venv` that has pip."""
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    try:
        venv.create(VENV, clear=True, symlinks=os.name != "nt", with_pip=has_ensurepip)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SetUpError(f"{VENV} could not be made ({problem}): see that the folder is writable.") from problem
    if not has_ensurepip:
        fetch_pip()


def fetch_pip() -> None:
    """Install the pinned pip into `.venv` from PyPI's file server."""
    print("  pip, which this Python comes without", flush=True)
    try:
        with urllib.request.urlopen(PIP_URL, timeout=60) as answer:
            wheel = answer.read()
    except OSError as problem:
        raise SetUpError(
            f"pip could not be fetched from PyPI ({problem}): `apt install python3-venv`, then try again."
        ) from problem
    if hashlib.sha256(wheel).hexdigest() != PIP_SHA256:
        raise SetUpError("what PyPI sent is not the pip we know: `apt install python3-venv`, then try again.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / PIP_WHEEL
        path.write_bytes(wheel)
        run_pip([str(path / "pip")], "--no-index", str(path))  # a wheel is a zip file, and Python runs those


def pip_install(*arguments: str) -> None:
    """Run `pip install` in `.venv`."""
    run_pip(["-P", "-m", "pip"], *arguments)


def run_pip(pip: list[str], *arguments: str) -> None:
    """Run `pip install` quietly, with `pip` saying which pip to run.

    Python compiles what it imports when it first does; pip would compile everything, which takes minutes.
    """
    command = [str(PYTHON), *pip, "install", "-qq", "--disable-pip-version-check", "--no-compile", *arguments]
    finished = subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
    if finished.returncode != 0:
        raise SetUpError("pip could not install that (its reason is above): put it right and try again.")


if __name__ == "__main__":
    sys.exit(main())
