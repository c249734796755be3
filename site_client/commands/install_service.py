"""Have systemd run the daemon, from now on and after each start of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import NamedPath, say
from site_client.commands import WORK
from site_client.configuration import read_configuration
from site_client.installation import UNITS, drafted_unit, install, password_file_of, require_linux, unit_name, unit_text


@click.command(help=__doc__)
@WORK
@click.option(
    "--user",
    help="Account that runs the daemon (default: the owner of WORK; in /var/lib, if root owns it, one from systemd).",
)
@click.option(
    "--password-file",
    type=NamedPath(exists=True, dir_okay=False, resolve_path=True),
    help="File from which systemd gives the daemon the password. Only root may change it or the folders above it. "
    "Default: the one that the installed unit names; if there is none, the daemon reads WORK/password.",
)
@click.option("--print", "only_print", is_flag=True, help="Show the unit, on any Linux machine; change nothing.")
def command(work: Path, user: str | None, password_file: Path | None, only_print: bool) -> None:
    require_linux()
    configuration = read_configuration(work)
    unit = unit_name(configuration)
    if password_file is None and (password_file := password_file_of(Path("/") / UNITS / unit)) is not None:
        say(f"the password comes from {password_file}, as the unit that is there says; it is left so", err=True)
    if only_print:
        text, problems = drafted_unit(work, configuration, user=user, password_file=password_file)
        say(text, nl=False)
        for problem in problems:
            say(f"could not be installed as it is: {problem}", err=True)
        return
    text = unit_text(work, configuration, user=user, password_file=password_file)
    say(f"the daemon runs, and is started with this machine: {install(unit, text)}; `systemctl status {unit}`")
