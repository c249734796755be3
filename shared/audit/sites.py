"""The folders of several sites together: whose they are, which runs they are of, and what these runs' offers say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from shared.audit.archive import Archive
from shared.audit.reading import Reading
from shared.errors import ConfigurationError, PoisonError
from shared.exchange.records import RunConfiguration, Sharing


def read_folders(archive: Archive, aggregator_key: str | None = None) -> dict[str, Reading]:
    """Every folder of an archive, by the name to show it under.

    Raises:
        ConfigurationError: two folders are of one site, or of two federations.
        StandingError: a folder cannot be read.
    """
    readings = {name: Reading(folder, aggregator_key, archive.secret_key) for name, folder in archive.folders.items()}
    whose: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, reading in readings.items():
        if (federation := reading.federation) is not None:
            whose[federation.federation, federation.aggregator_key].append(name)
    if len(whose) > 1:
        told = "; ".join(f"{', '.join(found)} of {name} under key {key}" for (name, key), found in whose.items())
        remedy = "name those of one, or the key that you know of as the aggregator's with --key"
        raise ConfigurationError([f"these folders are of several federations ({told}); {remedy}"])
    of_site: dict[str, str] = {}
    for name, reading in readings.items():
        if (federation := reading.federation) is not None:
            other = of_site.setdefault(federation.site, name)
            if other != name:
                raise ConfigurationError([f"{name}: is a second folder of {federation.site}, as {other} is; name one"])
    return readings


def read_sites(archive: Archive, aggregator_key: str | None = None) -> dict[str, Reading]:
    """Every folder of an archive, by its site.

    Raises:
        PoisonError: a folder's ``federation.json`` does not hold.
        ConfigurationError: two folders are of one site, or of two federations.
        StandingError: a folder cannot be read.
    """
    readings: dict[str, Reading] = {}
    for name, reading in read_folders(archive, aggregator_key).items():
        try:
            readings[reading.opened.site] = reading
        except PoisonError as error:
            raise PoisonError(f"{name}/{error.file}", error.reason) from None
    return dict(sorted(readings.items()))


def settings_of(readings: Mapping[str, Reading], run: str) -> RunConfiguration | None:
    """A run's configuration by the first folder whose offer holds; None if none does."""
    return next(filter(None, (reading.configuration(run) for reading in readings.values())), None)


def sharing_of(readings: Mapping[str, Reading], run: str) -> Sharing | None:
    """What travels in a run, likewise."""
    return next(filter(None, (reading.sharing(run) for reading in readings.values())), None)


def absent_sites(readings: Mapping[str, Reading], run: str) -> list[str]:
    """The sites of a run whose folder is not here, by its offer."""
    settings = settings_of(readings, run)
    return sorted(set(settings.sites) - readings.keys()) if settings else []


def the_run(readings: Mapping[str, Reading], run: str | None) -> str:
    """The run that is meant: the one that is named, or the only one there is.

    Raises:
        ConfigurationError: there is none of this name, or several to choose from.
    """
    known = sorted({found for reading in readings.values() for found in reading.runs})
    if run is None and len(known) == 1:
        return known[0]
    there = f"the runs here are {', '.join(known)}" if known else "there are no runs here"
    if run is None:
        raise ConfigurationError([f"name the run, as in RUN/ROUND or --run RUN; {there}"])
    if run not in known:
        raise ConfigurationError([f"there is no run {run} in these folders; {there}"])
    return run


def rounds_of(readings: Mapping[str, Reading], run: str) -> list[int]:
    """The numbers of the rounds that some folder has a message of."""
    places = {place for reading in readings.values() for place in reading.messages}
    return sorted({place.round_no for place in places if place.run == run and place.round_no})
