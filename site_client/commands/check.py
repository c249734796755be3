"""Check this machine, the way to the folder, its server, the keys and the data.

It says what is wrong and what to do. In the folder a scratch folder, check-…, is made and removed again; nothing else
is changed.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.check import report
from shared.commands import AS_JSON
from site_client.commands import WORK
from site_client.configuration import read_configuration
from site_client.doctor import examine


@click.command(help=__doc__)
@WORK
@click.option("--quick", is_flag=True, help="Leave out the round trip of 16 MB and the images.")
@AS_JSON
def command(work: Path, quick: bool, as_json: bool) -> None:
    report(examine(work, read_configuration(work), quick=quick), as_json=as_json)
