"""What curl needs for the bytes of one round: one process per transfer, four phases one after the other.

Twice: curl alone; and with what dropfed does to each file that comes, its SHA-256, and waiting until it is on the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exchange_servers import Served
from shared.folder.durable import write_file

PHASES = ("publish", "fetch", "publish back", "fetch back")
_HASHED_AND_STORED = 'file="$1"; shift; "$@" && sha256sum "$file" && sync "$file"'  # for a shell


class Curl:
    """Moves a model of random numbers through folders of its own on a server.

    Args:
        home: a directory for local files.
        folders: names of folders on the server that nobody else uses, one for each site.
        size: of the model, bytes.
        is_careful: move them a second time, as carefully as dropfed.
    """

    def __init__(
        self, home: Path, served: Served, folders: Sequence[str], size: int, *, is_careful: bool = True
    ) -> None:
        home.mkdir()
        self._is_careful = is_careful
        self._home = home
        self._served = served
        self._folders = folders
        self._model = home / "model"
        with self._model.open("wb") as file:
            for _ in range(size // 10**6):
                file.write(os.urandom(10**6))
        self._login = home / "login.txt"
        write_file(self._login, 'user = "{}:{}"\n'.format(*served.aggregator).encode(), private=True)
        self.rounds: list[dict[str, float]] = []
        self.careful_rounds: list[dict[str, float]] = []

    def play(self) -> None:
        """Move the bytes of one round, and note the seconds of its phases in ``rounds``; then as carefully as dropfed
        does, in ``careful_rounds``. What arrives goes back.
        """
        self.rounds.append(self._play(is_careful=False))
        if self._is_careful:
            self.careful_rounds.append(self._play(is_careful=True))

    def _play(self, *, is_careful: bool) -> dict[str, float]:
        os.sync()
        local = self._home / "round"
        local.mkdir()
        received = {folder: local / folder for folder in self._folders}
        returned = {folder: local / f"{folder}-back" for folder in self._folders}
        sent = dict.fromkeys(self._folders, self._model)
        seconds = {
            phase: self._move(phase, files, is_careful=is_careful and phase.startswith("fetch"))
            for phase, files in zip(PHASES, (sent, received, received, returned), strict=True)
        }
        shutil.rmtree(local)
        for folder in self._folders:
            for path in (self._served.folders / folder).iterdir():
                path.unlink()
        return seconds

    def _move(self, phase: str, files: dict[str, Path], *, is_careful: bool) -> float:
        """Move all files of one phase at once; return the seconds it took."""
        option = "-T" if phase.startswith("publish") else "-o"
        name = "answer" if phase.endswith("back") else "global"
        began = time.perf_counter()
        curl = ["curl", "-sSf", "--config", str(self._login), option]
        transfers = []
        for folder, file in files.items():
            before = ["sh", "-c", _HASHED_AND_STORED, "sh", str(file)] if is_careful else []
            command = [*before, *curl, str(file), f"{self._served.url_of(folder)}{name}"]
            transfers.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        codes = [transfer.wait() for transfer in transfers]
        if any(codes):
            raise SystemExit(f"curl failed: {phase}")
        return time.perf_counter() - began
