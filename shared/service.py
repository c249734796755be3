"""What the service manager that started this process is told, by datagrams to $NOTIFY_SOCKET; without one, nothing.

The process says ``READY=1`` when it runs, ``STATUS=`` where it stands, ``STOPPING=1`` when it ends. A manager with a
watchdog restarts a process that gives no sign of life for too long. A sign is given where work moves, and nowhere else:
a turn of the daemon's loop, a batch, an image read, a block sent or received, a piece of a wait that is over, a look at
a process that works for it. No thread or timer gives one, so what hangs is silent, however well the rest of the process
does. Of a process that works for it the daemon cannot tell whether it hangs; what others wrote has a time of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from threading import Event

from shared.escaping import escape

logger = logging.getLogger(__name__)

SOCKET, WATCHDOG, WATCHED_PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
SIGNS_PER_PATIENCE = 4  # how often a sign of life is sent, at most, within the time after which the manager gives up


class Manager:
    """The service manager of this process.

    Args:
        address: of its datagram socket: a path, or an abstract name that begins with ``@``.
        patience_s: how long it waits for a sign of life; None: for ever.
    """

    def __init__(self, address: str, patience_s: float | None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.every_s = patience_s / SIGNS_PER_PATIENCE if patience_s else None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a manager that does not listen holds nothing up
        self._signed_at = float("-inf")
        self._status = ""

    def tell(self, message: str) -> None:
        """Send what cannot be sent another time, or not at all."""
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError as error:
            logger.debug("the service manager was not informed of %s: %s", message, error)

    def sign(self) -> None:
        """Give a sign of life, unless one was given just now."""
        now = time.monotonic()
        if self.every_s is not None and now - self._signed_at >= self.every_s:
            self._signed_at = now
            self.tell("WATCHDOG=1")

    def show(self, status: str) -> None:
        """Show a status, if it is another than before."""
        if status != self._status:
            self._status = status
            self.tell(f"STATUS={escape(status)}")


_manager: Manager | None = None


def find_manager() -> None:
    """Look in the environment who manages this process; take it out of there, for its children are none of his."""
    global _manager  # noqa: PLW0603  (there is one for a process, as there is one environment)
    address, patience, watched = (os.environ.pop(name, "") for name in (SOCKET, WATCHDOG, WATCHED_PROCESS))
    is_watched = patience.isdecimal() and watched in ("", str(os.getpid()))
    if address.startswith(("/", "@")) and hasattr(socket, "AF_UNIX"):
        _manager = Manager(address, int(patience) / 1e6 if is_watched else None)


def ready() -> None:
    """Report to systemd that this process runs."""
    if _manager is not None:
        _manager.tell("READY=1")


def stopping() -> None:
    """Report to systemd that this process ends because it was asked to."""
    if _manager is not None:
        _manager.tell("STOPPING=1")


def show(status: str) -> None:
    """Report where this process stands, to every user of this machine who asks: nothing confidential."""
    if _manager is not None:
        _manager.show(status)


def alive() -> None:
    """Give a sign of life; call it where work has moved on."""
    if _manager is not None:
        _manager.sign()


def wait(stop: Event, seconds: float) -> bool:
    """Wait as ``stop.wait`` does; under a watchdog in pieces, with a sign of life after each."""
    piece_s = _manager.every_s if _manager is not None else None
    while piece_s is not None and seconds > piece_s:
        if stop.wait(piece_s):
            return True
        seconds -= piece_s
        alive()
    is_over = stop.wait(seconds)
    alive()
    return is_over
