"""Run a dropfed command that kills itself (SIGKILL) once at each seam it has not died at before.

    python -m tests.federation.dying SEAMS_FILE MODULE ARGUMENTS...

A seam is the moment before a file takes its place on disk (every prepare, sign and verify ends with that rename)
and the moment after a request that changes or reads the folder (every publish and fetch is made of those). Each seam
is written to SEAMS_FILE before the process dies there, so a supervisor that restarts it visits them all; or those
alone that match the pattern DIES_AT in the environment; of these, the share DIES_SHARE, drawn by DIES_SEED.
"""

from __future__ import annotations

import os
import random
import re
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared.folder.webdav import WebDavFolder

SEAMS = Path(sys.argv[1])
WORK = Path(sys.argv[-1]).resolve()
ONLY = re.compile(os.environ.get("DIES_AT", ""))
SHARE, SEED = float(os.environ.get("DIES_SHARE", "1")), os.environ.get("DIES_SEED", "")
# Written whenever time has passed; dying there proves nothing and would never end.
RESTLESS = re.compile(r"status\.json|waited\.json|trouble\.txt|log\.txt")


def die_once_at(seam: str) -> None:
    # The sites of a federation pass through the same seams: dying at one of them is enough.
    seam = re.sub(r"sites/[^/]+/", "sites/SITE/", seam)
    if RESTLESS.search(seam) or not ONLY.search(seam) or random.Random(f"{SEED} {seam}").random() >= SHARE:
        return
    known = SEAMS.read_text().splitlines() if SEAMS.exists() else []
    if seam not in known:
        with SEAMS.open("a") as file:
            file.write(f"{seam}\n")
            file.flush()
            os.fsync(file.fileno())
        os.kill(os.getpid(), signal.SIGKILL)


def dying_before_rename(rename: Callable[..., Any]) -> Callable[..., Any]:
    def replace(self: Path, target: Path) -> Any:
        path = Path(target).resolve()
        die_once_at(f"before {path.relative_to(WORK) if path.is_relative_to(WORK) else path.name} takes its place")
        return rename(self, target)

    return replace


def dying_after(method: str) -> None:
    request = getattr(WebDavFolder, method)

    def wrapped(self: WebDavFolder, path: str, *arguments: Any, **options: Any) -> Any:
        result = request(self, path, *arguments, **options)
        die_once_at(f"after {method} {path}")
        return result

    setattr(WebDavFolder, method, wrapped)


Path.replace = dying_before_rename(Path.replace)  # type: ignore[method-assign]
for name in ("upload", "create", "download"):
    dying_after(name)
module = sys.argv[2]
sys.argv = [module, *sys.argv[3:]]
runpy.run_module(module, run_name="__main__", alter_sys=True)
