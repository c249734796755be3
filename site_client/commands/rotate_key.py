"""Create a new signing key for this site; the present key signs the hand-over. The daemon must be stopped for it.

The folder shows the hand-over from the daemon's next start on, and the aggregator follows it by itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import require_yes, say
from shared.escaping import quoted
from shared.exchange.names import handover_path
from shared.exchange.signing import KEY_FILE
from shared.folder.lock import require_private
from site_client.commands import WORK
from site_client.machine import site_lock
from site_client.rotation import require_rotatable, rotate


@click.command(help=__doc__)
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(work: Path, yes: bool) -> None:
    with site_lock(work):
        require_private(work)
        require_rotatable(work)
        if not yes:
            require_yes("Make a new signing key? The present one signs nothing any more.")
        handover = rotate(work)
    path = handover_path(handover.number, handover.site)
    say(
        f"{handover.site} signs with key {handover.key} from its message {handover.after.seq + 1} on, and says so in "
        f"{path} at the daemon's next start: `dropfed-site run --work {quoted(work)}`; then, "
        f"not before, put {work / KEY_FILE} into the backup in place of the old one"
    )
