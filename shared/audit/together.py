"""What the folders of one federation show only together; it becomes a finding in the folder that it is about.

    offers      every hospital of a run was offered the same
    cards       and was told the same of the final model, also where that is the hospital's own
    keys        no two sides sign with one key
    runs        a hospital that a card says took part has something of the run in its folder

What is encrypted, and no key opens, is compared with nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.audit.reading import HiddenError, Reading
from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.verdicts import FinalCard

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
    _find_shared_keys(readings)
    for run in sorted({run for reading in readings.values() for run in reading.runs}):
        for kind, (files, why) in _ALIKE.items():
            for name in files:
                _find_unlike(readings, MessageRef(kind, run), name, why)
        for site, told_in in took_part(readings, run).items():
            if site in readings and not readings[site].has_any_of(run):
                what = f"is missing, as is all else of the run: the final card in the folder of {told_in} says that "
                readings[site].find(MessageRef("offer", run).manifest, f"{what}{site} took part")


def _find_shared_keys(readings: Mapping[str, Reading]) -> None:
    """Note each site's key that the aggregator, or another site, signs with too."""
    whose = {key: "the aggregator" for reading in readings.values() for key in reading.aggregator.keys}
    for site, reading in sorted(readings.items()):
        for number, key in enumerate(reading.site.keys, 1):
            if (other := whose.setdefault(key, site)) != site:
                path = names.SITE_CARD if number == 1 else names.handover_path(number, site)
                reading.find(path, f"shows a key that {other} signs with too: whoever has it can sign for both")


def took_part(readings: Mapping[str, Reading], run: str) -> dict[str, str]:
    """Return the sites that signed cards of the final model say took part in a run, and in whose folder one says so."""
    return {
        named: site
        for site, reading in readings.items()
        if (card := reading.record_or_none(MessageRef("final", run), FinalCard)) is not None
        for sites in card.took_part.values()
        for named in sites
    }


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
