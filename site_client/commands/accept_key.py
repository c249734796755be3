"""Name the aggregator's new signing KEY, which its people have told you by telephone.

The daemon follows a hand-over from the present key to KEY, and to no other key. Until it has followed, it takes nothing
from the aggregator. The daemon need not be stopped. If the folder already shows a hand-over, KEY is first compared with
it. To take back a key that was named, name the present key.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError
from shared.exchange.handovers import name_key, shown
from shared.exchange.names import AGGREGATOR, handover_path
from shared.exchange.signing import is_public_key
from shared.exchange.trust import Peer
from site_client.commands import WORK
from site_client.configuration import open_folder, read_configuration
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
    if key in ledger.peer.keys[:-1]:
        raise ConfigurationError(
            [f"KEY: {key[:16]}… is a key that the aggregator has handed over since: type the newest"]
        )
    if key == ledger.peer.newest_key:
        name_key(work, key)
        say(f"the key {key} is the present one, as far as is known here; no other is waited for")
        return
    later = "once the aggregator's present key hands over to it, and takes nothing of the aggregator before that"
    try:
        there = _next_key(work, ledger.peer)
    except DropfedError as error:
        told = f"not compared with the folder ({error}): the daemon follows {later}"
    else:
        if there not in (None, key):
            record = handover_path(ledger.peer.next_key_number, AGGREGATOR)
            raise ActionRequiredError(
                f"{record} in the folder hands over to the key {there}, "
                f"not to {key}, which is not taken: ask the aggregator's people again, by telephone, and type their key"
            )
        told = "the folder hands over to it: the daemon follows, and goes on by itself"
        if there is None:
            told = f"the folder does not hand over to it yet: the daemon follows {later}"
    name_key(work, key)
    say(f"the key {key} is named; {told}")


def _next_key(work: Path, aggregator: Peer) -> str | None:
    """Return the key to which the folder shows that the aggregator hands over next; None: to none.

    Raises:
        DropfedError: the folder cannot be looked at, or what lies there is no hand-over by its key.
    """
    handovers = shown(aggregator, open_folder(work, read_configuration(work))).handovers
    return next((each.key for each in handovers[len(aggregator.handovers) :]), None)
