"""`.venv` is made for this clone and this Python, can be run by whoever runs a daemon, and is made anew elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local import bootstrap


def test_whatever_the_umask_others_can_run_what_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "set_up", (tmp_path / "made").mkdir)
    before = os.umask(0o077)
    try:
        assert bootstrap.main() == 0
    finally:
        os.umask(before)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o755


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose set-up only tells whether it makes `.venv` anew, with a `.venv` that is ready."""
    home = tmp_path / "clone"
    (home / "deploy" / "local").mkdir(parents=True)
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "requirements.lock"):
        shutil.copyfile(bootstrap.ROOT / name, home / name)
    tells = "from pathlib import Path\nready = Path('.venv/ready')\nprint('update' if ready.exists() else 'anew')\n"
    (home / "deploy" / "local" / "bootstrap.py").write_text(f"{tells}ready.touch()\n")
    (home / ".venv" / "bin").mkdir(parents=True)
    write_program(home / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    (home / ".venv" / "pyvenv.cfg").write_text(f"command = python3 -m venv --clear {home / '.venv'}\n")
    (home / ".venv" / "ready").touch()
    return home


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def said(clone: Path, *arguments: str) -> str:
    return subprocess.check_output(["make", "-s", "setup", *arguments], cwd=clone, text=True)


def test_an_environment_is_made_anew_where_the_clone_was_moved_or_another_python_is_asked_for(clone: Path) -> None:
    assert said(clone) == said(clone, f"PYTHON={sys.executable}") == ""
    os.utime(clone / "setup.cfg")
    assert said(clone) == "update\n"
    other = clone.parent / "other"
    write_program(other, f'[ "$1" = -c ] && echo another || exec {sys.executable} "$@"')
    assert said(clone, f"PYTHON={other}") == "anew\n"
    with pytest.raises(subprocess.CalledProcessError):
        said(clone, f"PYTHON={clone / 'none'}")
    assert (clone / ".venv" / "ready").exists(), "what is there is kept until the Python asked for is found"
    assert said(clone.rename(clone.with_name("moved"))) == "anew\n"
