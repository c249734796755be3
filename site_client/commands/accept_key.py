"""Name the aggregator's new signing KEY, which its people have told you by telephone.

The daemon follows the present key's hand-over to that key, and to no other. It need not be stopped.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from shared.errors import ConfigurationError
from shared.exchange.handovers import name_key
from shared.exchange.signing import is_public_key
from site_client.commands import WORK
from site_client.rotation import read_ledger


@click.command(help=__doc__)
@click.argument("key")
@WORK
def command(key: str, work: Path) -> None:
    ledger = read_ledger(work)
    if not is_public_key(key):
        raise ConfigurationError(
            [f"KEY: {key} is no public key, which has 64 digits of 0-9 and a-f: one is wrong or missing; type it again"]
        )
    if key in ledger.peer.keys:
        raise ConfigurationError([f"KEY: {key[:16]}… is a key of the aggregator that this site knows already"])
    name_key(work, key)
    say(f"the daemon follows the aggregator to the key {key}, once its present key hands over to that")
