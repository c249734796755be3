"""``dropfed-aggregator``: what the PI types.

Exit codes: 0 done, 1 a run or command failed, 2 wrong usage or input, 3 a run ended and its model did not improve.
"""

from __future__ import annotations

import shared.interrupts  # noqa: F401  (before all that takes time)

# isort: split
import click

from shared.commands import Commands


@click.group(cls=Commands, package="aggregator.commands", extra="aggregator")
@click.version_option(package_name="dropfed")
def main() -> None:
    """Launch and watch federated-learning runs over drop folders."""


if __name__ == "__main__":
    main()
