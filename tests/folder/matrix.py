"""Starts each server that the tests know, and prints what it can do: ``make servers``.

The rows are a Markdown table, as in ``docs/servers.md``. Exit code 1 if a server is missing or does not work.
"""

from __future__ import annotations

import sys

from shared.errors import DropfedError
from shared.exchange.names import SCRATCH
from shared.folder.capabilities import Capabilities
from tests.folder.installed import AbsentError
from tests.folder.logins import SITE
from tests.folder.servers import NAMES, running

LOOKS = 5  # a gap while a file is replaced is not seen each time
COLUMNS = (
    "server",
    "login",
    "https",
    "MOVE",
    "never over a file unasked",
    "no gap while replacing",
    "COPY",
    "Range",
    "If-None-Match",
    "chunked upload",
    "checksums",
    "ETags",
    "of folders, for all below",
    "tells its room",
)


def cells(name: str, found: Capabilities) -> list[str]:
    """Return one row of the table."""
    can = (
        found.is_https,
        found.moves and found.replaces,
        found.keeps,
        found.replaces_at_once,
        found.copies,
        found.ranges,
        found.conditional_puts,
        found.chunked_uploads,
        found.checksums,
        found.etags,
        found.etags_propagate,
        found.room_bytes is not None,
    )
    return [name, found.login, *("yes" if one else "no" for one in can)]


def main() -> int:
    """Print the table; return the exit code."""
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n", flush=True)
    code = 0
    for name in NAMES:
        try:
            with running(name) as logins:
                folder = logins.sites[SITE].open()
                looks = [folder.capabilities(SCRATCH[0]) for _ in range(LOOKS)]
        except (AbsentError, AssertionError, DropfedError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 1
            continue
        worst = min(looks, key=lambda look: look.replaces_at_once)
        print(f"| {' | '.join(cells(name, worst))} |", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
