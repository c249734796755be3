"""A run of plug-ins computed again in a process of its own, which is given neither a password nor anybody's key."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.audit.archive import Archive, MirroredFolder
from shared.audit.reading import Reading
from shared.audit.replay.run import replay
from shared.audit.replay.steps import Step
from shared.audit.sites import by_site, read_folders
from shared.errors import ConfigurationError
from shared.exchange.encryption import RunKey
from shared.exchange.names import Name
from shared.exchange.records.run import Plugin
from shared.exchange.records.values import Digest, Record
from shared.folder.local import LocalFolder
from shared.learning.apart import Bounds, Progress, Question, answered
from shared.learning.compute import EXACT, prepare_compute


class Opened(Record):
    """A folder on this disk.

    Args:
        is_mirror: whether it is an aggregator's copy.
        site: whose it is, and of which federation.
        run_key: 64 hex digits that open the files of one run in it; None: they are not encrypted, or nobody has them.
    """

    root: Path
    is_mirror: bool
    federation: str
    site: str
    run_key: Digest | None

    def folder(self) -> LocalFolder:
        """Return the folder, opened as this process reads it."""
        return (MirroredFolder if self.is_mirror else LocalFolder)(self.root)


class Replay(Question[list[Step]]):
    """What comes of a run that is computed again? Arguments as for ``replay_apart``."""

    run: Name
    folders: dict[str, Opened]
    aggregator_key: str | None
    heldout: Path | None
    weights: Path | None
    threads: int

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"computing run {self.run} again"

    def answer(self, on_progress: Progress) -> list[Step]:
        """See ``Question``."""
        folders = {name: opened.folder() for name, opened in self.folders.items()}
        keys = {
            name: RunKey(opened.federation, opened.site, self.run, bytes.fromhex(opened.run_key))
            for name, opened in self.folders.items()
            if opened.run_key is not None
        }
        readings = by_site(read_folders(Archive({**folders}, run_keys=keys), self.aggregator_key))
        prepare_compute(EXACT, self.threads)
        with tempfile.TemporaryDirectory(prefix="dropfed-replay-") as scratch:
            scratch_folder = Path(scratch)
            return replay(readings, self.run, scratch=scratch_folder, heldout=self.heldout, weights=self.weights)


def replay_apart(
    folders: Mapping[str, Reading],
    run: str,
    plugins: Sequence[Plugin],
    bounds: Bounds,
    *,
    aggregator_key: str | None,
    heldout: Path | None,
    weights: Path | None,
    threads: int,
) -> list[Step]:
    """Return every step of a run that needs plug-ins, computed again by a child process.

    Args:
        folders: by the name to show them under.
        heldout, weights: as for ``replay``.
        bounds: of the plug-ins.

    Raises:
        ConfigurationError: a folder is on a server, or a plug-in is not installed as the run names it.
        PluginError: a plug-in does what it must not.
    """
    question = Replay(
        run=run,
        folders={name: _opened(name, reading, run) for name, reading in folders.items()},
        aggregator_key=aggregator_key,
        heldout=heldout,
        weights=weights,
        threads=threads,
    )
    return answered(question, bounds, plugins)


def _opened(name: str, reading: Reading, run: str) -> Opened:
    """Return a folder as a child process opens it.

    Raises:
        ConfigurationError: it is on a server, whose password a child is not given.
    """
    if not isinstance(reading.folder, LocalFolder):
        raise ConfigurationError(
            [f"{name}: is on a server, and the process of a plug-in is given no password; name a copy on this disk"]
        )
    key = reading.key_of_run(run) if reading.federation is not None else None
    return Opened(
        root=reading.folder.root,
        is_mirror=isinstance(reading.folder, MirroredFolder),
        federation=key.federation if key else "",
        site=key.site if key else "",
        run_key=key.key.hex() if key else None,
    )
