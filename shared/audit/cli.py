"""``dropfed-audit``: what an auditor types. Read-only. Exit codes: 0 all holds, 1 findings, 2 not to be checked."""

from __future__ import annotations

import shared.interrupts  # noqa: F401  (before all that takes time)

# isort: split
import click

from shared.commands import Commands
from shared.errors import DropfedError, RejectedError


class _Audit(Commands):
    """Exit codes: 0 all holds, 1 something does not, 2 wrong usage or input, or what hinders that it is looked at."""

    def code_of(self, trouble: DropfedError) -> int:
        return 1 if isinstance(trouble, RejectedError) else 2


@click.group(cls=_Audit, package="shared.audit.commands", extra="aggregator")
@click.version_option(package_name="dropfed")
def main() -> None:
    """Check what left which hospital, when, under whose key, and what became of it.

    A FOLDER is a site's drop folder, as a copy or by its WebDAV address; a directory of such copies; or the work
    directory of the aggregator, which has a copy of each. Nothing is ever changed there, and copies need no network.
    """


if __name__ == "__main__":
    main()
