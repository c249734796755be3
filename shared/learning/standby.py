"""Processes that stand by to answer questions with the code of plug-ins; see ``apart.py`` and ``plugged.py``.

What answers take is imported once: a process that stands by forks another for each question, where the system can fork.
The code of a plug-in is imported in that other one alone, which ends with the question.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select
from typing import IO

from shared.errors import Stopped
from shared.software import own_program

PROGRAM = "shared.learning.plugged"
"""The module that a process that stands by runs."""


class Standby:
    """A process that answers one question at a time. It ends when nobody holds the other end of its standard input.

    Args:
        environment: of the process; nothing in it leads to a password.
        output: to which it says why, if it cannot begin.
    """

    def __init__(self, environment: Mapping[str, str], output: IO[bytes]) -> None:
        self.environment = environment
        self.is_interrupted = False
        self._process = subprocess.Popen(  # noqa: S603  (our own program, with nothing of others in its arguments)
            own_program(PROGRAM),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C is the daemon's to hear
        )

    @property
    def lives(self) -> bool:
        """Whether it can be asked anything more."""
        return self._process.poll() is None

    def begin(self, kind: str, folder: Path) -> None:
        """Have the process answer the question in a folder; ``poll`` tells if it cannot.

        Args:
            kind: module and name of the question's class, with a colon between them.
            folder: where the question lies.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"%s %s\n" % (kind.encode(), os.fsencode(folder)))
            self._process.stdin.flush()

    def poll(self) -> int | None:
        """Return the exit status of the process that answers; None while that works."""
        assert self._process.stdout is not None
        if sys.platform == "win32" or (self.lives and not select([self._process.stdout], [], [], 0)[0]):
            return self._process.poll()
        said = self._process.stdout.readline()
        return int(said) if said else self._process.poll()  # where nothing can fork, this very process answers

    def interrupt(self) -> None:
        """Have another thread, which waits for an answer, wait no more: end the process, and whatever it started."""
        self.is_interrupted = True
        if sys.platform == "win32":
            self._process.kill()
        else:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """End it at once, and whatever it started."""
        self.interrupt()
        self._process.communicate()


_idle: list[Standby] = []
_at_work: set[Standby] = set()


def interrupt() -> None:
    """Have whoever waits for an answer, in another thread, wait no more; what works on it is ended."""
    for standby in _at_work.copy():
        standby.interrupt()


@contextmanager
def standing_by(kind: str, folder: Path, environment: Mapping[str, str], output: IO[bytes]) -> Iterator[Standby]:
    """Have a process answer the question in a folder: one that stands by, or a new one; it stands by again afterwards.

    One whose question was cut short is gone when this returns or raises, with whatever it started.

    Raises:
        Stopped: it was interrupted.
    """
    standby = _one_that_is_idle(environment) or Standby(environment, output)
    _at_work.add(standby)
    standby.begin(kind, folder)
    try:
        yield standby
        if standby.is_interrupted:
            raise Stopped("asked to stop")
    except BaseException:
        standby.kill()
        raise
    finally:
        _at_work.discard(standby)
    _idle.append(standby)


def _one_that_is_idle(environment: Mapping[str, str]) -> Standby | None:
    """Return a process that stands by with this environment; of those with others none is left."""
    while _idle:
        standby = _idle.pop()
        if standby.lives and not standby.is_interrupted and standby.environment == environment:
            return standby
        standby.kill()
    return None
