"""The accounts on a server that a command enters as: where their passwords come from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from aggregator.provision_plan import Login
from shared.commands import FILE_HERE, ask_password
from shared.settings import read_password

PASSWORD_VARIABLE = "DROPFED_AGGREGATOR_PASSWORD"  # noqa: S105  (the variable's name, not a password)
ADMIN_VARIABLE = "DROPFED_ADMIN_PASSWORD"


def admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options ``--admin`` and ``--admin-password-file``."""
    file = click.option(
        "--admin-password-file",
        type=FILE_HERE,
        help=f"File with its password (default: {ADMIN_VARIABLE}, or asked for). The password is never kept.",
    )(command)
    return click.option("--admin", metavar="ACCOUNT", help="An administrator of the server.")(file)


def administrator(name: str | None, file: Path | None, owner: Login | None) -> Login | None:
    """Return the administrator, if one is named; it may be the aggregator's account itself."""
    if name is None:
        return None
    if owner is not None and name == owner.user:
        return owner
    return Login(name, read_or_ask("--admin-password-file", file, ADMIN_VARIABLE, name))


def read_or_ask(option: str, file: Path | None, variable: str, user: str) -> str:
    """Return a password from a file, from the environment, or from the keyboard, without echo."""
    if file is not None:
        return read_password(file)
    return os.environ.get(variable) or ask_password(user, f"give {option} FILE, or set {variable}")
