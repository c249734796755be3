"""From RUN.yaml to a daemon that is ready to run: every mistake is found here, before anything is offered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

from torch import nn

from aggregator.configuration import FILE, AggregatorConfiguration, open_folder, read_configuration
from aggregator.daemon import Daemon
from aggregator.setup import KEY_FILE
from aggregator.site import Site, read_invite
from aggregator.store import RunStore, runs_in
from shared.errors import ConfigurationError, DataError
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records import RunConfiguration
from shared.exchange.signing import SigningKey
from shared.folder.copies import Copies
from shared.folder.meter import TRANSFER, Meter
from shared.learning.aggregation import Aggregation
from shared.learning.compute import EXACT, prepare_compute
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import open_method
from shared.learning.model_files import load_tensors, round_tensors
from shared.learning.run_checks import check_together
from shared.learning.seeds import seed_for
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import TASK_NAMES, task_named
from shared.learning.tolerance import HeldOutSet
from shared.logs import log_to

logger = logging.getLogger(__name__)

PUBLISHED_WEIGHTS = "weights"
"""Where in the work directory published weights, such as ImageNet's, are looked for first."""


def prepare_daemon(work: Path, run_yaml: Path, stop: threading.Event) -> Daemon:
    """Check everything that can be known before the run, make the first global model, and build the daemon.

    Raises:
        ConfigurationError: every problem of RUN.yaml and aggregator.yaml.
        DataError: every problem of the held-out images.
        StandingError: a password or invite is missing.
    """
    configuration = read_configuration(work)
    run = parse_yaml(run_yaml.read_bytes(), RunConfiguration, str(run_yaml))
    _check_run(work, run, configuration, run_yaml)
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options = task.options(run.task_options)
    run = _in_full(run)
    heldout_folder = work / configuration.heldout[run.task]
    try:
        images = task.open_images(heldout_folder, options)
    except DataError as error:
        raise DataError([f"held-out set {heldout_folder}: {problem}" for problem in error.problems]) from None
    log_to(work / "log.txt", configuration.log)
    prepare_compute(EXACT, configuration.threads)

    key = SigningKey.at(work / KEY_FILE)
    news, copies = threading.Event(), Copies()
    sites = [
        Site(
            work / "sites" / name,
            open_folder(work, configuration.sites[name], meter=Meter(work / "sites" / name / TRANSFER), copies=copies),
            invite=read_invite(work, name),
            key=key,
            stop=stop,
            longest_pause_s=configuration.poll_seconds,
            on_news=news.set,
        )
        for name in sorted(run.sites)
    ]
    store = RunStore(work, run.run)
    is_new = not store.aggregate_path(0).exists()

    def begin(model: nn.Module) -> None:
        sha256 = task.load_initial_weights(model, options, [work / PUBLISHED_WEIGHTS]) if is_new else None
        if sha256 is not None:
            logger.info("training begins from published weights, SHA-256 %s", sha256)

    model = build_network(
        task, method, options, len(images.classes), run_seed=run.seed, is_private=run.privacy is not None, prepare=begin
    )
    division = sharing(task, method, model)
    if is_new:
        try:
            round_tensors(model, division.shared, run.wire.numbers)
        except ValueError as error:
            problem = f"{run_yaml}: wire: numbers: {run.wire.numbers} cannot hold {error} of the initial model"
            raise ConfigurationError([f"{problem}; take bfloat16 or float32"]) from None
    elif division.start:
        load_tensors(model, division.beginning, store.start)
    objective = method.objective(run.rounds, run.rounds)
    scored = deepcopy(model)  # scoring measures BatchNorm's statistics anew: those of our images are not the run's
    heldout = HeldOutSet(task, scored, images, division, objective=objective, seed=seed_for(run.seed, "held-out set"))
    try:
        score = heldout.score_as_it_is()
    except ValueError as error:
        raise DataError([f"held-out set {heldout_folder}: {error}; add images"]) from None
    store.begin(run, division)
    aggregation = Aggregation(store, method, method.groups(model, division))
    if is_new:
        aggregation.begin(model)
        logger.info("the initial model scores %.4f on the held-out set; the tolerance is %g", score, run.tolerance)
        if score > run.tolerance:
            logger.warning("so even an untrained model passes the tolerance check: a higher tolerance would say more")
    logger.info("run %s: %s by %s over %s", run.run, run.task, run.method, ", ".join(run.sites))
    if store.paused:
        logger.warning("run %s is paused; go on with `dropfed-aggregator resume %s --work %s`", run.run, run.run, work)
    return Daemon(
        store,
        sites,
        heldout=heldout,
        method=method,
        aggregation=aggregation,
        score_name=task.selection_score,
        stop=stop,
        news=news,
    )


def _in_full(run: RunConfiguration) -> RunConfiguration:
    """The run with every default written out: who agrees to it can read all that decides the result."""
    task = task_named(run.task)
    in_full = {
        "task_options": task.options(run.task_options),
        "method_options": open_method(run.method, run.method_options).options,
        "augmentation": task.augmentation(run.augmentation),
        "split": check_record(run.split, SplitPlan, "split"),
    }
    return run.model_copy(update={name: options.model_dump(mode="json") for name, options in in_full.items()})


def _check_run(work: Path, run: RunConfiguration, configuration: AggregatorConfiguration, run_yaml: Path) -> None:
    """What RUN.yaml cannot know alone.

    Raises:
        ConfigurationError: every problem: sites, task, method, their options, how they fit, held-out images, open runs.
    """
    problems = [
        f"{run_yaml}: sites: {site} is not in {work / FILE}; add it there or correct the name"
        for site in run.sites
        if site not in configuration.sites
    ]
    checks: tuple[Callable[[], object], ...] = (
        lambda: task_named(run.task).options(run.task_options),
        lambda: open_method(run.method, run.method_options),
        lambda: task_named(run.task).augmentation(run.augmentation),
        lambda: check_record(run.split, SplitPlan, "split"),
        lambda: check_together(run),
    )
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            problems += [f"{run_yaml}: {problem}" for problem in error.problems]
    if run.task in TASK_NAMES and run.task not in configuration.heldout:
        problems.append(
            f"{work / FILE}: heldout: has no folder for {run.task}; add `heldout: {{{run.task}: DIR}}`, "
            "DIR holding labelled images, laid out like a site's, for the tolerance check"
        )
    problems += [
        f"{run_yaml}: run {store.run} is still open in {work}; finish it, or "
        f"`dropfed-aggregator stop {store.run} --work {work}`"
        for store in runs_in(work)
        if store.run != run.run and store.card() is None and store.given_up() is None
    ]
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))
