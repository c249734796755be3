"""Set this site up from INVITE, the file that the aggregator's people sent.

Asks for the folder's password without echo, unless --password-file, DROPFED_PASSWORD, a systemd credential called
password, or INVITE gives it. The password is kept in WORK/password, unless systemd will give it to `run` too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from shared.check import report
from shared.commands import NamedPath, ask_password, say, values_by_name
from shared.errors import ActionRequiredError, ConfigurationError
from shared.folder.address import is_public_link, shown, shown_user
from shared.learning.tasks import task_names
from shared.settings import read_password
from site_client.commands import WORK
from site_client.configuration import FILE, PASSWORD_VARIABLE, has_credential, read_configuration
from site_client.doctor import examine
from site_client.setup import join as make_site
from site_client.setup import joined, read_invite, require_unused, settings_of


@click.command(help=__doc__)
@click.argument("invite", type=NamedPath())
@WORK
@click.option("--data", metavar="TASK=DIR", multiple=True, help="This hospital's images for a task; once per task.")
@click.option("--url", help="The folder's address from here, if it is not the invite's.")
@click.option("--user", help="User name for the folder, if the invite's is wrong. For a public link: its token.")
@click.option("--ca-file", type=NamedPath(exists=True, dir_okay=False), help="Trust this certificate authority.")
@click.option("--password-file", type=NamedPath(exists=True), help="Read the password from this file.")
def command(
    invite: Path,
    *,
    work: Path,
    data: tuple[str, ...],
    url: str | None,
    user: str | None,
    ca_file: Path | None,
    password_file: Path | None,
) -> None:
    content = read_invite(invite)
    folders = values_by_name("--data", data, "TASK=DIR, as in dr_staging=/data/fundus")
    if strange := sorted(folders.keys() - set(task_names())):
        tasks = ", ".join(task_names())
        raise ConfigurationError([f"--data {task}: there is no such task; the tasks are {tasks}" for task in strange])
    folders = {task: str(Path(folder).resolve()) for task, folder in folders.items()}
    if missing := [(task, folder) for task, folder in folders.items() if not Path(folder).is_dir()]:
        raise ConfigurationError(
            [f"--data {task}: there is no folder {folder}; correct the path" for task, folder in missing]
        )
    known, asked = joined(work, content), settings_of(content, data=folders, url=url, user=user, ca_file=ca_file)
    password = None
    if password_file is not None:
        password = read_password(password_file)
        if not (password or is_public_link(asked.url)):
            raise ActionRequiredError(f"{password_file} is empty: put the folder's password there")
    elif not has_credential() and not (password := os.environ.get(PASSWORD_VARIABLE)):
        instead = f"give --password-file FILE, or set {PASSWORD_VARIABLE}"
        is_told = content.password is not None and user in (None, content.user)
        password = content.password if is_told else ask_password(shown_user(asked.url, asked.user), instead)
    if known is None:
        require_unused(work, asked, password)
    made = make_site(work, content, data=folders, url=url, password=password, user=user, ca_file=ca_file)
    if known is None:
        say(f"this is now site {content.site} of {content.federation}; its settings are in {work / FILE}")
    else:
        say(f"this was site {content.site} already: {work / FILE} and the keys stay as they are")
        asked = asked.model_copy(update={"data": {**made.data, **folders}})
        given = {"data": data, "url": url, "user": user, "ca_file": ca_file}
        for key in (key for key, value in given.items() if value and getattr(asked, key) != getattr(made, key)):
            told = {"url": shown(asked.url), "user": shown_user(asked.url, asked.user)}.get(key, getattr(asked, key))
            line = f"{key}: {json.dumps(told, ensure_ascii=False)}"
            remedy = f"write `{line}` in place of `{key}:` and all that belongs to it, and start the daemon anew"
            say(f"{work / FILE}: {key}: is not what you gave just now, and stays as it was: {remedy}")
    if password is not None:
        say(f"the password is kept in {work / made.password_file}, for its owner alone to read")
    say(f"pinned the aggregator's key {content.aggregator_key[:16]}…; no other is ever believed")
    report(examine(work, read_configuration(work)))
