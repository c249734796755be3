"""What a cluster does at a site without a network: jobs one after the other, each a process of its own, some killed.

    python -m tests.federation.jobs SEAMS_FILE ARGUMENTS... WORK

Each job calls ``dropfed-site ARGUMENTS... WORK``, and kills itself as ``dying.py`` says. All ends once the final model
is ready for use, or with the first job that fails.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from site_client.store import has_final
from tests.federation.forked import Forked
from tests.federation.running import RUN

PAUSE_S = 1.0  # between two jobs, or two looks at the server


def submit(seams: str, *arguments: str) -> None:
    work = Path(arguments[-1])
    while not has_final(work, RUN):
        job = Forked(["tests.federation.dying", seams, "site_client.cli", *arguments], work / "output.txt")
        if (code := job.wait()) not in (0, -signal.SIGKILL):
            sys.exit(f"a job ended with {code}")
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    submit(*sys.argv[1:])
