"""A run's models as they are made again, beside those that the folders say were sent."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from shared.audit.reading import Reading
from shared.errors import NotFoundError, RejectedError
from shared.exchange import names
from shared.exchange.encoding import decode, encode
from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.wire import PLAIN
from shared.exchange.trust import Message
from shared.exchange.weights import entry_of
from shared.learning.run_files import RunFiles


class Models(RunFiles):
    """The files of a run that is computed again, below an empty folder.

    Args:
        readings: the folders of the sites that got an offer.
    """

    def __init__(self, home: Path, readings: Mapping[str, Reading], run: RunConfiguration, listed: Sharing) -> None:
        super().__init__(home, run.run)
        self._readings = readings
        self._run = run
        self._sharing = listed
        self.agreed_so_far = 0
        self.digests: dict[tuple[int, str], str] = {}
        """SHA-256 of each aggregate in the plain form, by round and site."""

    def configuration(self) -> RunConfiguration:
        """Return the run's configuration as offered."""
        return self._run

    def sharing(self) -> Sharing:
        """Return what travels in the run, as offered."""
        return self._sharing

    def agreed(self, round_no: int) -> int:
        """Return the number of sites that had agreed which is tried at present."""
        return self.agreed_so_far

    def forget(self, round_no: int) -> None:
        """Free the disk of what a round began with, once that is compared; what goes with a final model stays."""
        for path in self._round(round_no).glob("*"):
            if path.is_dir():
                shutil.rmtree(path)
            elif not path.name.startswith("settled-"):
                path.unlink()

    def note(self, number: int) -> None:
        """Keep the hash of an aggregate, so that its file can go."""
        for site in self._readings:
            path = self.aggregate_for(number, site)
            if path.exists():
                self.digests[number, site] = entry_of(path).sha256

    def brought(self, number: int) -> list[Reading]:
        """Return the folders that a round's message is in, with the model to begin it from."""
        ref = MessageRef("round", self.run, number)
        return [reading for reading in self._readings.values() if ref in reading.messages]

    def adopt(self, number: int) -> bool:
        """Take an aggregate, and what of its state travels, as the next round brought it."""
        ref, common = MessageRef("round", self.run, number + 1), ""
        for site, reading in self._readings.items():
            message = reading.messages.get(ref)
            if message is None:
                continue
            sha256 = reading.digest(message, names.GLOBAL_MODEL)
            if not common and self._decoded(reading, message, names.GLOBAL_MODEL, self.aggregate_path(number)):
                common = sha256
            elif common != sha256:
                self._decoded(reading, message, names.GLOBAL_MODEL, self.own_aggregate_path(number, site))
            for group in self._sharing.to_site:
                self.take(reading, ref, names.state_file(group), self.state_path(number, group))
        self.note(number)
        return bool(common)

    def are_what_was_sent(self, reading: Reading, number: int) -> bool:
        """Return whether a round's manifest in a folder says just the hashes of what was made here."""
        message = reading.messages[MessageRef("round", self.run, number)]
        for group in self._sharing.to_site:
            made = self.state_path(number - 1, group)
            name = names.state_file(group)
            if name not in message.manifest.files or not made.exists():
                return False
            if entry_of(made).sha256 != reading.digest(message, name):
                return False
        return self._is_model_sent(reading, message)

    def _is_model_sent(self, reading: Reading, message: Message) -> bool:
        site, number, said = reading.opened.site, message.ref.round_no, reading.digest(message, names.GLOBAL_MODEL)
        aggregate, wire = self.aggregate_for(number - 1, site), self._run.wire.of("round", names.GLOBAL_MODEL)
        if wire == PLAIN:
            return entry_of(aggregate).sha256 == said
        encoded = self.home / "encoded.safetensors"
        if encode(aggregate, encoded, self._sharing.shared, wire).sha256 == said:
            return True
        if wire.compression == "none":
            return False
        decoded = self.home / "decoded.safetensors"  # another version of zstd may compress otherwise
        is_there = self._decoded(reading, message, names.GLOBAL_MODEL, decoded)
        return is_there and entry_of(decoded) == entry_of(aggregate)

    def take(self, reading: Reading, ref: MessageRef, name: str, target: Path) -> None:
        """Write a tensor file that a message names, unless that was done before."""
        message = reading.messages.get(ref)
        if message is not None and name in message.manifest.files and not target.exists():
            self._decoded(reading, message, name, target)

    def _decoded(self, reading: Reading, message: Message, name: str, target: Path) -> bool:
        """Write a tensor file of a message in the plain form; False if it is not there, or does not hold."""
        wire, shown_as = self._run.wire.of(message.ref.kind, name), f"{message.ref.path}/{name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with reading.file(message, name) as path:
                if wire == PLAIN:
                    shutil.copyfile(path, target)  # never a link: nothing of an archive is touched
                else:
                    decode(path, target, self._sharing.shared, wire, shown_as=shown_as)
        except (NotFoundError, RejectedError):
            return False
        return True
