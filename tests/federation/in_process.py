"""A whole federation in this process: real daemons in threads, on real folders of a real server, over real sockets.

Processes of their own would take most of the time to start. What processes have for themselves and threads share is
kept apart here: torch's random generator, and the log.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch

from aggregator.launch import prepare_daemon
from deploy.local.webdav_server import EmbeddedServer
from shared.learning.compute import EXACT, prepare_compute
from shared.logs import log_to
from site_client.configuration import open_folder, read_configuration
from site_client.daemon import Daemon
from tests.canary import password_of
from tests.federation.running import WAIT_S, Setting
from tests.folder.logins import AGGREGATOR

SITE_THREAD = "site "


@dataclass
class FederationInProcess(Setting):
    """One federation in threads of this process, one at a time; the server runs while the block does."""

    server: EmbeddedServer = field(init=False)
    failures: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> FederationInProcess:
        users = {site: password_of(site) for site in self.run.sites}
        self.server = EmbeddedServer(self.root / "folders", users, password_of(AGGREGATOR))
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def run_to_the_end(
        self, before_stop: Callable[[], None] = lambda: None, *, sites: Sequence[str] | None = None
    ) -> None:
        """Start every daemon, wait until each site has the final model, and stop them.

        Args:
            before_stop: called in between.
            sites: those whose daemons are in this process, and which the run ends with; None: all.

        Raises:
            AssertionError: that takes too long, or a daemon does not stop.
            BaseException: what ended a daemon.
        """
        sites = self.run.sites if sites is None else sites
        stop_aggregator, stop_sites = threading.Event(), threading.Event()
        with ExitStack() as block:
            block.enter_context(_one_generator())
            with redirect_stderr(StringIO()):  # the log's, until it is divided
                daemon = prepare_daemon(self.aggregator, self.aggregator / "RUN.yaml", stop_aggregator)
            block.enter_context(self._divided_log())
            aggregator = self._thread("aggregator", daemon.run)
            threads = [
                aggregator,
                *(
                    self._thread(f"{SITE_THREAD}{site}", lambda site=site: self._run_site(site, stop_sites))  # type: ignore[misc]
                    for site in sites
                ),
            ]
            try:
                self.wait_until(lambda: not aggregator.is_alive() and all(map(self.has_final, sites)))
                before_stop()
            finally:
                stop_aggregator.set()
                stop_sites.set()
                for thread in threads:
                    thread.join(WAIT_S)
            assert not any(thread.is_alive() for thread in threads), "a daemon does not stop"

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait; a daemon that fails ends the wait."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if self.failures:
                raise self.failures[0]
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def _run_site(self, site: str, stop: threading.Event) -> None:
        work = self.site(site)
        configuration = read_configuration(work)
        Daemon(work, configuration, open_folder(work, configuration), stop=stop).run()

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                prepare_compute(EXACT, 1)  # some of it is each thread's own
                work()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    @contextmanager
    def _divided_log(self) -> Iterator[None]:
        """Send what each daemon's threads say to that daemon's own log, as ``log_to`` writes it."""
        root, hook = logging.getLogger(), sys.__excepthook__
        handlers = [_file_handler(lambda thread: not thread.startswith(SITE_THREAD))]
        for site in self.run.sites:
            log_to(self.site(site) / "log.txt")
            handlers.append(_file_handler(lambda thread, name=f"{SITE_THREAD}{site}": thread == name))  # type: ignore[misc]
        root.handlers = list(handlers)
        try:
            yield
        finally:
            root.handlers = []
            logging.captureWarnings(False)
            sys.excepthook = hook
            for handler in handlers:
                handler.close()


def _file_handler(is_of: Callable[[str], bool]) -> logging.Handler:
    """Take the file's handler from the log, before ``log_to`` closes it, and let it write what these threads say."""
    root = logging.getLogger()
    handler = next(handler for handler in root.handlers if isinstance(handler, logging.FileHandler))
    root.removeHandler(handler)
    handler.addFilter(lambda record: is_of(record.threadName or ""))
    return handler


@contextmanager
def _one_generator() -> Iterator[None]:
    """Let one thread at a time use torch's random generator, of which a process has one."""
    fork, lock = torch.random.fork_rng, threading.RLock()

    @contextmanager
    def alone(*arguments: Any, **options: Any) -> Iterator[None]:
        with lock, fork(*arguments, **options):
            yield

    torch.random.fork_rng = alone
    try:
        yield
    finally:
        torch.random.fork_rng = fork
