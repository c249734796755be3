"""Create a new signing key for the aggregator; the present key signs the hand-over. No launch may be at work here.

The folders show the hand-over from the next launch on. A hospital goes on once a person there has compared the new key
with yours, by telephone, and named it: `dropfed-site accept-key`.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import require_aggregator
from aggregator.rotation import require_rotatable, rotate
from shared.commands import require_yes, say
from shared.exchange.signing import KEY_FILE
from shared.folder.lock import require_private, work_lock


@click.command(help=__doc__)
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(work: Path, yes: bool) -> None:
    taken = "a daemon works in this directory; end it with Ctrl-C, rotate the key, and start it again as before"
    require_aggregator(work)
    with work_lock(work, taken):
        require_private(work)
        require_rotatable(work)
        if not yes:
            require_yes("Make a new signing key? Every hospital then waits until a person there has named it.")
        rotated = rotate(work)
    say(f"the aggregator signs with key {rotated.key}, and the folders say so from the next launch on")
    for keys in sorted({tuple(keys) for keys in rotated.unnamed.values()}, key=len):
        sites = ", ".join(site for site, unnamed in rotated.unnamed.items() if tuple(unnamed) == keys)
        naming = ", then `".join(f"dropfed-site accept-key {key}`" for key in keys)
        each = "" if len(keys) == 1 else " and the keys before it, each once the daemon has followed the one before"
        say(f"tell {sites} by telephone, to name it{each}: `{naming}")
    for site in rotated.invited:
        say(f"{site} has not joined yet: send its people invites/{site}.json anew, for the one before is void")
    for site in rotated.lost:
        left_out = f"{site} is left out of aggregator.yaml"
        say(f"{left_out}, and cannot follow this key: invite it under another name", err=True)
    say(f"put {work / KEY_FILE} into the backup in place of the old one")
