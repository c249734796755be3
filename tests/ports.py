"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port on loopback outside the range that outgoing connections take theirs from.

    Inside it a client that keeps connecting to a dead server may be given that very port, connect to itself, and keep
    the server from coming back. A port that somebody holds without listening on it is not free.
    """
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")
