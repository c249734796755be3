"""Commands as real processes that need not import PyTorch first: they are forked from a process that did.

Hundreds of daemons are started, most of them to be killed, and each would import for seconds before it does anything.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

IMPORTED = (
    "aggregator.launch",
    "site_client.daemon",
    "deploy.local.webdav_server",
    "tests.federation.imgaug_imported",
    "torch._dynamo",
    "sklearn.metrics",
    "PIL.PngImagePlugin",
    "pytest",
)
"""What daemons and servers import sooner or later, and what multiprocessing imports into each process."""

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(list(IMPORTED))
_looking = threading.Lock()  # an exit status can be read once, and a start looks at those of all others


class Forked:
    """``python -m MODULE ARGUMENTS...``, with the part of ``subprocess.Popen`` that federations and the demo use.

    Args:
        command: module and arguments.
        output: file that stdout and stderr are appended to.
    """

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._process: ForkServerProcess = _forking.Process(
            target=_run, args=(list(command), output, Path.cwd(), dict(os.environ))
        )
        with _looking:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _looking:
            return self._process.exitcode

    def wait(self, timeout: float = math.inf) -> int | None:
        """Return the exit status; None if it is not over by then."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.poll()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(command: list[str], output: Path, folder: Path, environment: dict[str, str]) -> None:
    gc.freeze()  # what was imported before the fork stays shared, and out of every collection
    os.chdir(folder)
    with output.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()  # of what the process had that all are forked from
    os.environ.update(environment)
    sys.argv = list(command)
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)
