"""What the folders of one federation show only together; it becomes a finding in the folder that it is about.

offers      every hospital of a run was offered the same
cards       and was told the same of the final model, also where that is the hospital's own
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.audit.reading import HiddenError, Reading
from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.names import Kind, MessageRef

_ALIKE: Mapping[Kind, tuple[tuple[str, ...], str]] = {
    "offer": ((names.RUN_CONFIGURATION, names.TENSORS, names.START), "all hospitals of a run are offered the same"),
    "final": ((names.CARD,), "all hospitals of a run are told the same of its final model"),
}
"""By kind of message, the files that are the same in each folder, and why."""


def find_together(readings: Mapping[str, Reading]) -> None:
    """Note what does not hold between folders.

    Args:
        readings: by site.
    """
    for run in sorted({run for reading in readings.values() for run in reading.runs}):
        for kind, (files, why) in _ALIKE.items():
            for name in files:
                _find_unlike(readings, MessageRef(kind, run), name, why)


def _find_unlike(readings: Mapping[str, Reading], ref: MessageRef, name: str, why: str) -> None:
    """Note each folder in which a file says something else than in the first one, as far as it is known what it says.

    Args:
        why: the files must be the same.
    """
    said = {site: digest for site, reading in sorted(readings.items()) if (digest := _digest(reading, ref, name))}
    for site, digest in said.items():
        first, due = next(iter(said.items()))
        if digest != due:
            readings[site].find(f"{ref.path}/{name}", f"is not what {first} was sent, and {why}")


def _digest(reading: Reading, ref: MessageRef, name: str) -> str | None:
    """Return the SHA-256 of what a file says; None where that is not known, and in protocol 1, which promised none."""
    message = reading.message(ref)
    if message is None or name not in message.manifest.files or reading.opened.protocol == 1:
        return None
    try:
        return reading.digest(message, name)
    except (HiddenError, RejectedError):
        return None
