"""How fast a large file moves, both ways; what moves is the same known text every time, in a scratch folder.

The file goes the way that models go, in chunks where the server offers them, so that a limit on uploads shows as well.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ActionRequiredError
from shared.folder.contract import Folder
from shared.folder.durable import hash_file, write_file

LARGE = "large"
"""The file's name in the scratch folder."""
LARGE_BYTES = 16 << 20


@dataclass(frozen=True)
class Speed:
    """Bytes per second."""

    up: float
    down: float


def large_text() -> bytes:
    """Return what is sent: ``LARGE_BYTES`` that no proxy can make smaller, always the same."""
    return hashlib.shake_256(b"dropfed: a check of how fast this way is").digest(LARGE_BYTES)


def measure_speed(folder: Folder, scratch: str) -> Speed:
    """Send the text and bring it back.

    Args:
        scratch: a name never used before, for a folder directly in the drop folder; the caller removes it.

    Raises:
        TransientError: the connection failed meanwhile.
        ActionRequiredError: such a file cannot be sent, or comes back with other bytes.
    """
    path = f"{scratch}/{LARGE}"
    with tempfile.TemporaryDirectory(prefix="dropfed-check-") as home:
        here, back = Path(home, "here"), Path(home, "back")
        write_file(here, large_text())
        sent = hash_file(here)[1]
        began = time.monotonic()
        folder.upload(path, here, sha256=sent)
        arrived = time.monotonic()
        found = folder.download(path, back, size=LARGE_BYTES)
        ended = time.monotonic()
    if found != sent:
        raise ActionRequiredError(
            f"{path} came back with other bytes: something on the way changes what passes; have it mended"
        )
    return Speed(LARGE_BYTES / max(arrived - began, 1e-6), LARGE_BYTES / max(ended - arrived, 1e-6))
