"""From RUN.yaml to a daemon that is ready to run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

from aggregator.configuration import FILE, open_folder, read_configuration
from aggregator.daemon import Daemon, tell_not_offered
from aggregator.folder_sync import FolderSync
from aggregator.model_work import begin_work
from aggregator.overview import is_owed
from aggregator.preparation import Begun, as_begun, ended_already, prepare, read_run
from aggregator.run_view import OpenedRun, open_run_files, view_of
from aggregator.setup import encryption_key
from aggregator.site import read_needed_invite
from aggregator.store import RunStore, queued_runs, take_turn
from aggregator.tracking import tracker
from shared.errors import ConfigurationError, DropfedError
from shared.escaping import quoted
from shared.exchange.signing import KEY_FILE, SigningKey
from shared.folder.copies import Copies
from shared.folder.lock import locked
from shared.folder.meter import TRANSFER, Meter
from shared.learning.outcome import Outcome
from shared.logs import log_to

logger = logging.getLogger(__name__)

BEGINNING = "begin.lock"
"""Name of the file in the work directory that is locked while a run is begun."""


def prepare_daemon(
    work: Path, run_yaml: Path, stop: threading.Event, waiting: Mapping[str, Path] | None = None
) -> Daemon:
    """Check everything that can be known before the run, begin it, and build the daemon.

    Args:
        waiting: the RUN.yaml of runs that come later, by their names; those that can be begun already are offered
            meanwhile, and none waits for a folder that a person has to see to.

    Raises:
        ConfigurationError: every problem; see ``prepare``.
    """
    prepared = prepare(work, run_yaml, remark_again=False)
    configuration, begun = prepared.configuration, prepared.begun
    run = begun.run
    log_to(work / "log.txt", configuration.log)
    store = RunStore(work, run.run)
    with locked(work / BEGINNING):  # `queue` may begin the same run meanwhile
        store.begin(run, begun.division, begun.told)
        model_work = begin_work(prepared, store, stop)
    take_turn(work, run.run)
    come_later = [each for name, path in (waiting or {}).items() if (each := _begun_early(work, name, path, stop))]
    news = threading.Event()
    open_sites = partial(_open_sites, work, stop=stop, news=news)
    if begun.is_new:
        if begun.weights_sha256:
            logger.info("training begins from published weights, SHA-256 %s", begun.weights_sha256)
        for remark in begun.remarks:
            logger.log(logging.WARNING if remark.grade == "warning" else logging.INFO, "%s", remark.text)
    if store.is_over:
        logger.warning("%s; what is due to its sites is still sent", ended_already(run.run))
    logger.info("run %s: %s by %s over %s", run.run, run.task, run.method, ", ".join(run.sites))
    if store.paused:
        resume = f"`dropfed-aggregator resume {run.run} --work {quoted(work)}`"
        logger.warning("run %s is paused; go on with %s", run.run, resume)
    return Daemon(
        store,
        open_sites(run.sites),
        work=model_work,
        in_turn=begun.told.in_turn,
        score_name=begun.told.score_name,
        stop=stop,
        news=news,
        beside=tracker(work, store, configuration.track, configuration.federation),
        waiting=lambda: [*come_later, *queued_runs(work)],
        open_sites=open_sites,
        others_wait=lambda: bool(waiting) or any(each.run != run.run for each in queued_runs(work)),
    )


def ended_before(work: Path, run_yaml: Path) -> Outcome | None:
    """Return what a run came to that has ended, and whose every site has been told; None of any other.

    Raises:
        ConfigurationError: it was begun with another configuration.
    """
    written = read_run(run_yaml)
    store = RunStore(work, written.run)
    if not store.is_over:
        return None
    opened = open_run_files(work, store)
    if not _is_told(opened):
        return None
    if not store.was_begun_as(written):
        if store.configuration().plugins:  # they alone can write it out
            prepare(work, run_yaml, waits=True)
        else:
            store.require_same(as_begun(store, written), store.sharing())
    return view_of(opened, with_open_round=False).outcome


def is_told(work: Path, store: RunStore) -> bool:
    """Return whether every site's folder has the end of a run.

    Raises:
        DropfedError: what is kept of the run is damaged.
    """
    return store.is_over and _is_told(open_run_files(work, store))


def _is_told(opened: OpenedRun) -> bool:
    homes = {site: opened.work / "sites" / site for site in opened.ledgers}
    return not any(is_owed(homes[site], ledger, opened.store) for site, ledger in opened.ledgers.items())


def track_ended(work: Path, store: RunStore) -> None:
    """Give what tracks runs, if the PI wants that, what it lacks of a run that has ended.

    Raises:
        ConfigurationError: ``aggregator.yaml`` is not right.
    """
    configuration = read_configuration(work)
    lacking = tracker(work, store, configuration.track, configuration.federation)
    if lacking is not None:
        log_to(work / "log.txt", configuration.log)
        with lacking:
            pass


def begin_early(work: Path, run_yaml: Path, stop: threading.Event) -> Begun:
    """Begin a run that waits for its turn, so that it can be offered.

    Raises:
        ConfigurationError, PluginError: as ``prepare``.
    """
    with locked(work / BEGINNING):  # `queue` may be called twice, and beside a daemon that does the same
        prepared = prepare(work, run_yaml, waits=True)
        begun = prepared.begun
        store = RunStore(work, begun.run.run)
        store.begin(begun.run, begun.division, begun.told)
        begin_work(prepared, store, stop)
    return begun


def require_named(run_yaml: Path, run: str) -> None:
    """Check that a file still describes the run that it described when it was named.

    Raises:
        ConfigurationError: it is of another by now.
    """
    if (now := read_run(run_yaml).run) != run:
        raise ConfigurationError([f"{run_yaml}: run: is {now} by now, and was {run}; launch it by itself"])


def _begun_early(work: Path, run: str, run_yaml: Path, stop: threading.Event) -> RunStore | None:
    """Begin a run that waits for its turn; return None if that cannot be done yet, or is of no use any more."""
    try:
        require_named(run_yaml, run)
        store = RunStore(work, run)
        if not store.aggregate_path(0).exists():
            begin_early(work, run_yaml, stop)
    except DropfedError as error:
        tell_not_offered(run_yaml, error)
        return None
    return None if store.is_over else store


def _open_sites(
    work: Path, sites: Collection[str], *, stop: threading.Event, news: threading.Event
) -> list[FolderSync]:
    """Return sites, by their names.

    Raises:
        ConfigurationError, ActionRequiredError: something is missing here to reach one of them.
    """
    configuration = read_configuration(work)
    if missing := sorted(set(sites) - configuration.sites.keys()):
        raise ConfigurationError([f"sites: {', '.join(missing)}: not in {work / FILE}; add what is missing there"])
    key, own_encryption_key, copies = SigningKey.at(work / KEY_FILE), encryption_key(work), Copies()
    return [
        FolderSync(
            work / "sites" / name,
            open_folder(work, configuration.sites[name], meter=Meter(work / "sites" / name / TRANSFER), copies=copies),
            invite=read_needed_invite(work, name),
            key=key,
            encryption_key=own_encryption_key,
            stop=stop,
            longest_interval_s=configuration.poll_seconds,
            on_news=news.set,
        )
        for name in sorted(sites)
    ]
