"""Look at every site's folder, its server, the invites and the held-out images; say what is wrong.

In each folder a scratch folder, check-…, is made and removed again; nothing else is changed.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import read_configuration
from aggregator.doctor import examine
from shared.check import report
from shared.commands import AS_JSON


@click.command(help=__doc__)
@WORK
@AS_JSON
def command(work: Path, as_json: bool) -> None:
    report(examine(work, read_configuration(work)), as_json=as_json)
