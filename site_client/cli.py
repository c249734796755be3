"""``dropfed-site``: what IT staff type. Exit codes: 0 done, 1 something stands in the way, 2 wrong usage or input."""

from __future__ import annotations

import shared.interrupts  # noqa: F401  (before all that takes time)

# isort: split
import click

from shared.commands import Commands


@click.group(cls=Commands, package="site_client.commands", extra="site")
@click.version_option(package_name="dropfed")
def main() -> None:
    """Take part in federated-learning runs through one drop folder."""


if __name__ == "__main__":
    main()
