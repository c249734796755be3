"""A listing of a folder of this machine while somebody writes into it."""

from __future__ import annotations

import threading
from pathlib import Path

from shared.folder.local import LocalFolder


def test_what_is_renamed_meanwhile_does_not_spoil_a_listing(tmp_path: Path) -> None:
    folder, is_over = LocalFolder(tmp_path), threading.Event()
    folder.create("there", b"content")

    def write() -> None:
        while not is_over.is_set():
            folder.overwrite("status.json", b"content")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for _ in range(2000):
            assert "there" in {entry.name for entry in folder.list("")}
    finally:
        is_over.set()
        writing.join()
