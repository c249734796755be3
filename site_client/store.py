"""What the site remembers: files in its work directory, nothing else.

site.yaml  signing.key  password         made by ``join``; the last two readable by their owner only
mirror/                                  the folder as it was exchanged: what we sealed and what we accepted
quarantine/                              what was refused, and why
decisions/RUN                            what a person here decided about a run: yes or no
status.json                              the last heartbeat, also when it could not be sent
"""

from __future__ import annotations

from pathlib import Path

from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import Place, is_name
from shared.exchange.records import Consent, RoundConfiguration, RunConfiguration, TensorList
from shared.exchange.trust import open_record, open_yaml
from shared.folder.durable import write_file


def write_decision(work: Path, run: str, agrees: bool) -> None:
    """Record what a person at the hospital decided about a run.

    Raises:
        ValueError: that is not a run's name.
    """
    if not is_name(run):
        raise ValueError(f"{run} is not a run's name")
    write_file(work / "decisions" / run, b"yes" if agrees else b"no")


def decision(work: Path, run: str) -> bool | None:
    """What a person decided, or None."""
    path = work / "decisions" / run
    return path.read_bytes() == b"yes" if path.exists() else None


def offer(channel: Channel, run: str) -> tuple[RunConfiguration, TensorList]:
    """The contents of an accepted offer.

    Raises:
        PoisonError: they are not well-formed.
    """
    place = Place("offer", run)
    configuration = open_yaml(
        channel.path(place, names.RUN_CONFIGURATION).read_bytes(),
        RunConfiguration,
        f"{place.path}/{names.RUN_CONFIGURATION}",
    )
    tensors = open_yaml(channel.path(place, names.TENSORS).read_bytes(), TensorList, f"{place.path}/{names.TENSORS}")
    return configuration, tensors


def consent(channel: Channel, run: str) -> Consent | None:
    """What we answered to an offer, or None."""
    place = Place("consent", run)
    if channel.message(place) is None:
        return None
    return open_record(channel.path(place, names.CONSENT).read_bytes(), Consent, place.path)


def round_configuration(channel: Channel, place: Place) -> RoundConfiguration:
    """What an accepted round asks of us.

    Raises:
        PoisonError: it is not well-formed.
    """
    path = f"{place.path}/{names.ROUND_CONFIGURATION}"
    return open_yaml(channel.path(place, names.ROUND_CONFIGURATION).read_bytes(), RoundConfiguration, path)
