"""A program of the hospital's own, shut in by bubblewrap (``bwrap``).

It sees the system's programs and libraries, its own directory as ``/program``, what it is handed as ``/round``, all
read-only, and ``/output``, into which it writes. It sees no network, no other file, process or variable of this
machine, and ends when the daemon does.

Bubblewrap's own process stays inside as the first, and its memory holds what it was started with: so that is nothing
but the program's own environment, and its entry in ``/proc`` is hidden.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from site_client.configuration import Program
from site_client.system_calls import call_filter

PROGRAM, ROUND, OUTPUT = "/program", "/round", "/output"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/R")
"""What the system's programs and libraries are found by; they name nobody."""
_ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"}  # noqa: S108
_IN_MEMORY = ("/tmp", "/dev/shm")  # noqa: S108  (the program's own)
_FIRST = "/proc/1"  # bubblewrap's own process
_WALLS = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    "--cap-drop",
    "ALL",
)
_BOUNDED = 'ulimit -c 0 && ulimit -d "$1" && ulimit -f "$2" && shift 2 && exec "$@"'
_BOUND_TO_US = (
    'exec 3<&0 < /dev/null; ( trap "" HUP INT TERM; { read -r _ <&3; kill -KILL -1; } 2> /dev/null & ); '
    'exec 3<&-; exec "$@"'
)
"""Inside, a shell waits for the end of a pipe that the daemon alone holds open, and then ends all processes there."""
_KIB, _BLOCK = 1024, 512  # bytes, in which a shell counts memory, and files
_TRIED = 1 << 20  # bytes, where it is only seen whether bubblewrap works
_PATIENCE_S = 30.0


def obstacle() -> str | None:
    """Return why no program can be shut in on this machine, or None."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "there is no bubblewrap here, which shuts a program in; have it installed (`apt install bubblewrap`)"
    if call_filter() is None:
        return f"no program can be shut in on a processor of this kind ({platform.machine()}); take x86-64 or ARM64"
    try:
        with _filter() as calls:
            tried = subprocess.run(  # noqa: S603  (the system's own program, with nothing of others in its arguments)
                [bwrap, *_walls(_TRIED, calls), "/bin/true"],
                capture_output=True,
                timeout=_PATIENCE_S,
                check=False,
                pass_fds=[calls.fileno()],
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot shut a program in here ({type(error).__name__}); docs/external-trainer.md says more"
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {tried.returncode}"]
    return f"bubblewrap cannot shut a program in here ({said[-1][:200]}); docs/external-trainer.md says what it needs"


def start(
    program: Program, handed: Path, written: Path, log: Path, *, largest: int, threads: int
) -> subprocess.Popen[bytes]:
    """Start a program, shut in. It works until ``end``, or until this process ends.

    Args:
        handed: the directory that it reads.
        written: the directory that it writes into.
        log: takes what it says.
        largest: bytes of the largest file that is taken of it.
        threads: how many of the processor it is told to take.
    """
    room = int(program.memory_gb * 1e9)
    limits = [str(room // _KIB), str(-(-max(room, largest) // _BLOCK))]  # files in memory are files too
    private = partial(os.open, mode=0o600)  # it may print what it knows of patients
    with open(log, "wb", opener=private) as output, _filter() as calls:
        shut_in = [
            *(shutil.which("bwrap") or "bwrap", *_walls(room, calls)),
            *("--ro-bind", program.directory, PROGRAM, "--ro-bind", str(handed), ROUND, "--bind", str(written), OUTPUT),
            *("--setenv", "OMP_NUM_THREADS", str(threads), "--remount-ro", "/"),
            *("--chdir", PROGRAM, "--", "/bin/sh", "-c", _BOUND_TO_US, "sh", *program.command),
        ]
        return subprocess.Popen(  # noqa: S603  (the command is the hospital's own)
            ["/bin/sh", "-c", _BOUNDED, "sh", *limits, *shut_in],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,  # bubblewrap clears it, and keeps what it was in its memory
            pass_fds=[calls.fileno()],
            start_new_session=True,  # Ctrl-C is the daemon's to hear
        )


def end(child: subprocess.Popen[bytes]) -> None:
    """End what was started, if it still works, however far it has come.

    It is ended from inside: of one that is killed while bubblewrap sets it up, what was set up so far would go on.
    """
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:  # a program that has ended the shell beside it
        child.kill()
        child.wait()


def shows(program: Program, place: Path) -> bool:
    """Return whether a program sees a directory of this machine although nobody hands it over."""
    seen = (*_SYSTEM, *_SETTINGS, program.directory)
    return any(place.resolve().is_relative_to(Path(path).resolve()) for path in seen)


@contextmanager
def _filter() -> Iterator[BinaryIO]:
    """Open a file of the system calls that are refused."""
    with tempfile.TemporaryFile() as file:
        file.write(call_filter() or b"")
        file.seek(0)
        yield file


def _walls(room: int, calls: BinaryIO) -> list[str]:
    """Return bubblewrap's options but for what differs from program to program.

    Args:
        room: bytes of its ``/tmp``, and of its ``/dev/shm``, which are memory.
        calls: an open file of those that are refused.
    """
    system = [part for path in map(Path, _SYSTEM) if path.exists() for part in _as_here(path)]
    settings = [part for path in _SETTINGS for part in ("--ro-bind-try", path, path)]
    environment = [part for name, value in _ENVIRONMENT.items() for part in ("--setenv", name, value)]
    memory = [part for path in _IN_MEMORY for part in ("--size", str(room), "--tmpfs", path)]
    hidden = ["--size", str(_KIB), "--tmpfs", _FIRST, "--remount-ro", _FIRST]
    own = ["--proc", "/proc", *hidden, "--dev", "/dev", *memory, "--remount-ro", "/dev"]
    return [*_WALLS, *environment, *system, *settings, *own, "--seccomp", str(calls.fileno())]


def _as_here(path: Path) -> list[str]:
    """Return what shows a directory of the system inside: itself, or the link that it is."""
    return ["--symlink", str(path.readlink()), str(path)] if path.is_symlink() else ["--ro-bind", str(path), str(path)]
