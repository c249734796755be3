"""Writes docs/commands.md: the help of every command, as ``--help`` prints it. `make docs` runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import click

from shared.folder.durable import write_file

PROGRAMS: Mapping[str, str] = {
    "dropfed-site": "site_client.cli",
    "dropfed-aggregator": "aggregator.cli",
    "dropfed-audit": "shared.audit.cli",
    "dropfed-study": "studies.cli",
}
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
COLUMNS = 120


def program(name: str) -> click.Group:
    """Return the group of commands that ``name`` starts."""
    found = import_module(PROGRAMS[name]).main
    if not isinstance(found, click.Group):
        raise TypeError(f"{name} is no group of commands")
    return found


def commands(name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command of a program by what people type, in the order of its help."""
    group = program(name)
    context = click.Context(group, info_name=name)
    for command in group.list_commands(context):
        found = group.get_command(context, command)
        if found is not None:
            yield f"{name} {command}", found


def page() -> str:
    """Return the whole page."""
    parts = ["# Every command and option", "As `--help` prints it. `make docs` writes this page anew."]
    for name in PROGRAMS:
        parts += [f"## {name}", _help(name, program(name))]
        for typed, command in commands(name):
            parts += [f"### {typed}", _help(typed, command)]
    return "\n\n".join(parts) + "\n"


def _help(typed: str, command: click.Command) -> str:
    context = click.Context(command, info_name=typed, terminal_width=COLUMNS, max_content_width=COLUMNS)
    return "\n".join(f"    {line}".rstrip() for line in command.get_help(context).splitlines())


if __name__ == "__main__":
    write_file(PAGE, page().encode())
    click.echo(f"wrote {PAGE}")
