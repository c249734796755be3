"""The folders of several sites together: whose they are, which runs they are of, and what these runs' offers say."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from shared.audit.archive import Archive, is_address
from shared.audit.reading import Reading
from shared.audit.together import find_together, took_part
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import time_text
from shared.moments import moment_text

_DAY_S = 24 * 60 * 60


def read_folders(archive: Archive, aggregator_key: str | None = None) -> dict[str, Reading]:
    """Return every folder of an archive, by the name to show it under.

    Raises:
        ConfigurationError: two folders are of one site, or of two federations.
        ActionRequiredError: a folder cannot be read.
    """
    readings = {
        name: Reading(folder, aggregator_key, archive.run_keys.get(name, archive.secret_key))
        for name, folder in archive.folders.items()
    }
    whose = _by_federation(readings)
    if len(whose) > 1:
        told = "; ".join(
            f"{', '.join(found)} of {readings[found[0]].opened.federation} under key "
            f"{readings[found[0]].aggregator.newest_key}"
            for found in whose
        )
        remedy = "name those of one, or the key that you know of as the aggregator's with --key"
        raise ConfigurationError([f"these folders are of several federations ({told}); {remedy}"])
    of_site: dict[str, str] = {}
    for name, reading in readings.items():
        if (federation := reading.federation) is not None:
            other = of_site.setdefault(federation.site, name)
            if other != name:
                raise ConfigurationError([f"{name}: is a second folder of {federation.site}, as {other} is; name one"])
    find_together(_opened(readings))
    return readings


def _by_federation(readings: Mapping[str, Reading]) -> list[list[str]]:
    """Return the folders that say whose they are, those of one federation together: its aggregator may have changed its
    key since some of them were last written to, and before others were begun.
    """
    found: list[tuple[str, set[str], set[tuple[str, str]], list[str]]] = []
    for name, reading in readings.items():
        if reading.federation is None:
            continue
        federation, chain, folders = reading.federation.federation, reading.aggregator.keys, [name]
        keys, handed_over = set(chain), set(pairwise(chain))
        for others in list(found):
            both = handed_over | others[2]
            # A key that handed over to two, or that two handed over to, is in use by somebody else; so is a circle.
            is_one_chain = len({old for old, _ in both}) == len({new for _, new in both}) == len(both)
            is_one_chain &= len(both) < len(keys | others[1])
            if others[0] == federation and others[1] & keys and is_one_chain:
                found.remove(others)
                keys, handed_over, folders = keys | others[1], both, [*others[3], *folders]
        found.append((federation, keys, handed_over, folders))
    return [folders for *_, folders in found]


def one_chain(chains: Iterable[Sequence[str]]) -> list[str]:
    """Return all the aggregator's keys, each after the one that handed over to it.

    Args:
        chains: the keys that each folder shows, in their order: a site that joined later shows later ones alone.
    """
    shown = [*chains]
    handed_over = {old: new for keys in shown for old, new in pairwise(keys)}
    chain = [key for keys in shown for key in keys if key not in handed_over.values()][:1]
    while chain and (key := handed_over.get(chain[-1])) is not None:
        chain.append(key)
    return chain


def by_site(folders: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the folders that say whose they are, by the site of their signed record.

    Raises:
        RejectedError: none does.
    """
    readings = _opened(folders)
    for name, reading in folders.items() if not readings else ():
        try:
            reading.opened  # noqa: B018  (raises)
        except RejectedError as error:
            raise RejectedError(
                f"{name}/{error.file}",
                f"{error.reason}; nothing of this folder can be told: see what `dropfed-audit verify` says of it, or "
                "have it copied anew, whole",
            ) from None
    return readings


def _opened(folders: Mapping[str, Reading]) -> dict[str, Reading]:
    """Return the folders that say whose they are by their sites, in the order of these."""
    opened = [reading for reading in folders.values() if reading.federation is not None]
    return {reading.opened.site: reading for reading in sorted(opened, key=lambda reading: reading.opened.site)}


def titles(folders: Mapping[str, Reading]) -> dict[str, str]:
    """Return what to call each folder: by its name, after the site of its signed record where the name says another."""
    return {
        name: name
        if reading.federation is None or reading.federation.site == _last_of(name)
        else f"{reading.federation.site} (in {name})"
        for name, reading in folders.items()
    }


def unnamed(folders: Mapping[str, Reading]) -> dict[str, str]:
    """Return, for each folder that does not say whose it is, why not: nothing in it can be read."""
    return {
        name: next(finding.what for finding in reading.findings if finding.file == names.FEDERATION)
        for name, reading in folders.items()
        if reading.federation is None
    }


def remarks(folders: Mapping[str, Reading]) -> Iterator[str]:
    """Yield what is no finding, and must be known by whoever reads that there is none; one sentence each."""
    for name, reading in folders.items():
        if reading.federation is not None and reading.federation.site != _last_of(name):
            yield f"{name}: holds the folder of {reading.federation.site}"
    readings = _opened(folders)
    runs = sorted({run for reading in readings.values() for run in reading.runs})
    broken = {_last_of(name) for name in unnamed(folders)}
    absent, empty = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for run in runs:
        for site in set(absent_sites(readings, run)) - broken:
            absent[site].append(run)
        for site in set(empty_sites(readings, run)) - took_part(readings, run).keys():
            empty[site].append(run)
    for site, its_runs in sorted(absent.items()):
        yield f"{site}: is of run {', '.join(its_runs)}, and its folder is not here: nothing of it was checked"
    for site, its_runs in sorted(empty.items()):
        why = "it was never offered, or all of it was taken away"
        yield f"{site}: is of run {', '.join(its_runs)}, and its folder has nothing of it: {why}"
    for run in runs:
        for site in open_folders(readings, run):
            yield f"{site}: run {run} has not ended in this folder"
    for site, reading in readings.items():
        yield from _odd_times(site, reading)


def _odd_times(site: str, reading: Reading) -> Iterator[str]:
    """Yield each side's first time that runs back, or is over a day ahead of this machine's clock."""
    tomorrow = time_text(time.time() + _DAY_S)
    for sender in (AGGREGATOR, site):
        told = [(message.ref.path, message.manifest.created) for message in reading.sent_by(sender)]
        for (before, earlier), (path, created) in pairwise(told):
            if created < earlier:
                told_before = f"{before}, sent before it by {sender}, {moment_text(earlier)}"
                yield f"{site}: {path} tells the time {moment_text(created)}, and {told_before}"
                break
        for path, created in told:
            if created > tomorrow:
                to_come = f"{moment_text(created)}, which is still to come by this machine's clock"
                yield f"{site}: {path} tells the time {to_come}"
                break


def _last_of(name: str) -> str:
    """Return the name of a folder itself, in which an aggregator's copy is that of its site."""
    if is_address(name):
        return name.rstrip("/").rpartition("/")[2]
    path = Path(name).absolute()
    return path.parent.name if path.name == names.MIRROR else path.name


def settings_of(readings: Mapping[str, Reading], run: str) -> RunConfiguration | None:
    """Return a run's configuration by the first folder whose offer holds; None if none does."""
    return next(filter(None, (reading.configuration(run) for reading in readings.values())), None)


def sharing_of(readings: Mapping[str, Reading], run: str) -> Sharing | None:
    """Return what travels in a run by the first folder whose offer holds; None if none does."""
    return next(filter(None, (reading.sharing(run) for reading in readings.values())), None)


def absent_sites(readings: Mapping[str, Reading], run: str) -> list[str]:
    """Return the sites of a run whose folder is not here, by its offer."""
    settings = settings_of(readings, run)
    return sorted(set(settings.sites) - readings.keys()) if settings else []


def empty_sites(readings: Mapping[str, Reading], run: str) -> list[str]:
    """Return the sites of a run whose folder is here and has nothing of it, by its offer."""
    settings = settings_of(readings, run)
    sites = settings.sites if settings else ()
    return sorted(site for site in sites if site in readings and not readings[site].has_any_of(run))


def open_folders(readings: Mapping[str, Reading], run: str) -> list[str]:
    """Return the sites in whose folders the run has no end yet."""
    return [site for site, reading in readings.items() if _is_open(reading, run)]


def _is_open(reading: Reading, run: str) -> bool:
    return MessageRef("offer", run) in reading.messages and reading.ending(run) is None


def the_run(readings: Mapping[str, Reading], run: str | None) -> str:
    """Return the run that is meant: the one that is named, or the only one there is.

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


def require_opened(readings: Mapping[str, Reading], run: str) -> None:
    """Check that the messages of a run can be read in every folder.

    Raises:
        ConfigurationError: it is encrypted, and no key opens it.
    """
    if any(reading.hides_settings(run) for reading in readings.values()):
        raise not_opened(run)


def not_opened(run: str) -> ConfigurationError:
    """Return what is said where nothing can be told of a run without a key."""
    remedy = "name a key that opens it with --secret-key; the aggregator's opens every folder"
    return ConfigurationError([f"run {run} is encrypted: {remedy}"])


def rounds_of(readings: Mapping[str, Reading], run: str) -> list[int]:
    """Return the numbers of the rounds that some folder has a message of."""
    refs = {ref for reading in readings.values() for ref in reading.messages}
    return sorted({ref.round_no for ref in refs if ref.run == run and ref.round_no})
