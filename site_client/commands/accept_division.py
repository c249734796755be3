"""Have this site's images divided anew, if division.json or budget.json is lost. The daemon must be stopped for it.

Sets of the new division can differ from earlier ones by few images, or by one. Whoever compares what was reported about
both may find out about single images. So if there is a backup of the two files, put them back instead.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import require_yes, say
from site_client.commands import WORK
from site_client.commitment import divide_anew, is_nothing_lost
from site_client.configuration import read_configuration
from site_client.division import BUDGET, DIVISION
from site_client.machine import site_lock
from site_client.rotation import read_ledger


@click.command(help=__doc__)
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(work: Path, yes: bool) -> None:
    with site_lock(work):
        ledger = read_ledger(work)
        if not yes:
            found = f"{DIVISION} and {BUDGET} are whole here. " if is_nothing_lost(work, ledger) else ""
            require_yes(
                f"{found}Divide the images anew? What was told about earlier sets of images, together with what is "
                "told about new ones, can give single images away."
            )
        divide_anew(work, ledger, read_configuration(work))
    say(
        f"all images are divided anew when this site agrees to its next run; then put {DIVISION} and {BUDGET} into the "
        "backup. A run that this site has agreed to before, and that goes on, is answered no more: withdraw from it"
    )
