"""From RUN.yaml to a daemon that is ready to run."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from aggregator.configuration import AggregatorConfiguration, open_folder
from aggregator.daemon import Daemon
from aggregator.folder_sync import FolderSync
from aggregator.model_work import begin_work
from aggregator.preparation import ended_already, prepare
from aggregator.setup import KEY_FILE, encryption_key
from aggregator.site import read_invite
from aggregator.store import RunStore
from aggregator.tracking import tracker
from shared.escaping import quoted
from shared.exchange.records.run import RunConfiguration
from shared.exchange.signing import SigningKey
from shared.folder.copies import Copies
from shared.folder.meter import TRANSFER, Meter
from shared.logs import log_to

logger = logging.getLogger(__name__)


def prepare_daemon(work: Path, run_yaml: Path, stop: threading.Event) -> Daemon:
    """Check everything that can be known before the run, begin it, and build the daemon.

    Raises:
        ConfigurationError: every problem; see ``prepare``.
    """
    prepared = prepare(work, run_yaml)
    configuration, begun = prepared.configuration, prepared.begun
    run = begun.run
    log_to(work / "log.txt", configuration.log)
    news = threading.Event()
    sites = _open_sites(work, run, configuration, stop=stop, news=news)
    store = RunStore(work, run.run)
    store.begin(run, begun.division)
    model_work = begin_work(prepared, store, stop)
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
        sites,
        work=model_work,
        in_turn=begun.in_turn,
        score_name=begun.selection_score,
        stop=stop,
        news=news,
        beside=tracker(work, store, configuration.track, configuration.federation),
    )


def _open_sites(
    work: Path,
    run: RunConfiguration,
    configuration: AggregatorConfiguration,
    *,
    stop: threading.Event,
    news: threading.Event,
) -> list[FolderSync]:
    """Return the run's sites, by their names."""
    key, own_encryption_key, copies = SigningKey.at(work / KEY_FILE), encryption_key(work), Copies()
    return [
        FolderSync(
            work / "sites" / name,
            open_folder(work, configuration.sites[name], meter=Meter(work / "sites" / name / TRANSFER), copies=copies),
            invite=read_invite(work, name),
            key=key,
            encryption_key=own_encryption_key,
            stop=stop,
            longest_interval_s=configuration.poll_seconds,
            on_news=news.set,
        )
        for name in sorted(run.sites)
    ]
