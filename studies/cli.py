"""``dropfed-study``: what a researcher types. Exit codes: 0 done, 1 a cell failed, 2 wrong usage or input."""

from __future__ import annotations

import shared.interrupts  # noqa: F401  (before all that takes time)

# isort: split
import click

from shared.commands import Commands


@click.group(cls=Commands, package="studies.commands", extra="study")
@click.version_option(package_name="dropfed")
def main() -> None:
    """Compare ways of training on one machine, played by the daemons' own code."""


if __name__ == "__main__":
    main()
