"""The lock of a work directory on disks that lock no files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT_LOCKS = """
#include <errno.h>
int flock(int file, int operation) { (void)file; (void)operation; errno = REASON; return -1; }
"""
BEGINS_TWICE = """
import sys
from pathlib import Path
from shared.errors import ActionRequiredError
from shared.folder.lock import is_at_work, work_lock
work = Path(sys.argv[1])
(work / "daemon.lock").touch()
for _ in range(2):  # nor does what the first has left mean that another works there
    try:
        with work_lock(work):
            print("begun")
    except ActionRequiredError as error:
        print(error)
    print(is_at_work(work))
"""


pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs a C compiler on Linux")


@pytest.mark.parametrize(("reason", "told"), [("ENOLCK", "No locks available"), ("ENOSYS", "Function not implemented")])
def test_no_daemon_begins_there_and_none_is_said_to_work(tmp_path: Path, reason: str, told: str) -> None:
    """As some disks of networks and clusters answer."""
    said, work = begins_twice(tmp_path, reason), tmp_path / "work"
    assert said[0].startswith(f"{work} lies on a disk that cannot lock files ({told}), so that two programs")
    assert said == [said[0], "False"] * 2


def test_what_a_windows_share_answers_means_that_another_has_the_lock(tmp_path: Path) -> None:
    assert (
        begins_twice(tmp_path, "EACCES")
        == [f"{tmp_path / 'work'}: another daemon works in this directory; stop it first", "True"] * 2
    )


def begins_twice(home: Path, reason: str) -> list[str]:
    """What is said where each wish for a lock is answered by an error."""
    work, library = home / "work", home / "without_locks.so"
    work.mkdir()
    compiler = ["cc", "-shared", "-fPIC", f"-DREASON={reason}", "-x", "c", "-o", str(library), "-"]
    subprocess.run(compiler, input=WITHOUT_LOCKS, text=True, check=True)
    command = [sys.executable, "-c", BEGINS_TWICE, str(work)]
    return subprocess.check_output(command, env=os.environ | {"LD_PRELOAD": str(library)}, text=True).splitlines()
