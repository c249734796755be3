"""Have systemd run the daemon, from now on and after each start of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from site_client.commands import WORK
from site_client.configuration import read_configuration
from site_client.installation import install, unit_name, unit_text


@click.command(help=__doc__)
@WORK
@click.option("--user", help="Who runs the daemon; else the owner of WORK, or in /var/lib a user of systemd's making.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
    help="What systemd hands the password from; readable by root alone. Default: the file in WORK.",
)
@click.option("--print", "only_print", is_flag=True, help="Show the unit; change nothing.")
def command(work: Path, user: str | None, password_file: Path | None, only_print: bool) -> None:
    configuration = read_configuration(work)
    unit, text = unit_name(configuration), unit_text(work, configuration, user=user, password_file=password_file)
    if only_print:
        say(text, nl=False)
        return
    say(f"the daemon runs, and is started with this machine: {install(unit, text)}; `systemctl status {unit}`")
