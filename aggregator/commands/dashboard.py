"""Show where the newest run stands as a web page, live and read-only, until Ctrl-C."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.dashboard.server import TOKEN_FILE, serving
from shared.commands import say
from shared.errors import ConfigurationError
from shared.folder.address import is_loopback_host
from shared.stopping import set_by_signals, wait_for


@click.command(help=__doc__)
@WORK
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; if it is not loopback, the page asks for a token.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8642,
    show_default=True,
    help="Port to listen on; 0: any that is free.",
)
def command(work: Path, host: str, port: int) -> None:
    if not host:
        raise ConfigurationError(["--host: is empty; name an address of this machine, as in 127.0.0.1"])
    stop = set_by_signals(threading.Event())
    with serving(work, host, port) as address:
        say(f"the dashboard is at {address} (Ctrl-C ends it)")
        if not is_loopback_host(host):
            say(f"it asks for the token in {work / TOKEN_FILE}")
            say("the connection is not encrypted: on a network that you do not trust, use an ssh tunnel")
        wait_for(stop)
