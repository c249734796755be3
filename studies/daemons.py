"""A run on this machine as hospitals have it: the aggregator's daemon and each site's, on drop folders of this machine.

Keys, invites, consent, signed messages, transfer, the checks of every answer: all is the daemons' own. They share one
process, so that a run needs one core and loads its libraries once. The sites work one after the other in the thread
that asks for the run, since a process has one random generator of PyTorch's; the aggregator works beside them, and
draws nothing once its first model is made. Whoever has put something into a folder has the other look there at once.

Below ``home`` lies what daemons of their own would have: ``aggregator/``, ``sites/SITE/``, and ``folders/SITE/``. A run
that was cut off goes on from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import torch

from aggregator.configuration import PUBLISHED_WEIGHTS
from aggregator.daemon import Daemon as AggregatorDaemon
from aggregator.launch import prepare_daemon
from aggregator.site import open_ledger
from aggregator.store import RunStore
from shared.errors import ActionRequiredError, PluginError
from shared.exchange.mirror import Mirror
from shared.exchange.names import MANIFEST, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.verdicts import Verdict
from shared.exchange.tables import MetricsRow
from shared.folder.durable import link_file
from shared.learning.compute import EXACT, Computing, prepare_compute
from shared.learning.kept_model import open_model
from shared.learning.measures import task_of
from shared.learning.methods import open_method
from shared.learning.run_checks import check_together
from site_client.configuration import open_folder, read_configuration
from site_client.daemon import Daemon as SiteDaemon
from site_client.store import final_home
from studies.federation import RUN_FILE, aggregator_work, set_up, site_work
from studies.simulation import EVERYONE, Final, Outcome

FEDERATION = "study"
FOLDERS = "folders"
PARTS = ("aggregator", "sites", FOLDERS)
"""All that a run leaves."""
POLICY = EVERYONE.model_copy(update={"consent": "auto"})
NO_DEADLINE_HOURS = 87_600.0  # all answer, be it late: nothing of a result may depend on how fast a machine is
LONGEST_POLL_S = 1.0  # of the aggregator, which is told where to look
PAUSE_S = 0.02  # until the sites look again, when none of them found anything


def run_exchange(
    run: RunConfiguration,
    data: Mapping[str, Path],
    home: Path,
    *,
    heldout: Path | None = None,
    weights: Path | None = None,
    computing: Computing = EXACT,
    on_turn: Callable[[], None] = lambda: None,
) -> Outcome:
    """Play a federated run to its end, or go on with it.

    Args:
        data: each site's data folder.
        home: a folder for all that the aggregator and the sites keep.
        heldout: labelled images for the tolerance check, where the run has one.
        weights: where published weights lie, if the run begins with some.
        on_turn: called whenever sites have done something, such as training a round.

    Raises:
        ConfigurationError: settings that do not fit together, images that cannot be read, or published weights that are
            not there.
        ActionRequiredError: a site does not agree to the run, or it cannot start.
        DropfedError: what else stands in a site's way.
    """
    check_together(run)
    deadlines = {"consent_deadline_hours": NO_DEADLINE_HOURS, "round_deadline_hours": NO_DEADLINE_HOURS}
    run = run.model_copy(update=deadlines)
    urls = {}
    for site in data:
        folder = (home / FOLDERS / site).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        urls[site] = folder.as_uri()
    set_up(
        home,
        run,
        data,
        urls,
        federation=FEDERATION,
        heldout=heldout,
        poll_s=LONGEST_POLL_S,
        policy=POLICY,
        computing={name: getattr(computing, name) for name in ("device", "workers", "precision", "micro_batch")},
    )
    if weights is not None and weights.is_dir():
        _lay_out(weights, aggregator_work(home) / PUBLISHED_WEIGHTS)
    try:
        sites = _federate(home, run, computing, on_turn)
    finally:
        logging.shutdown()  # its file is one of those that may be removed now
    return _outcome(home, run, sites, computing)


def _lay_out(weights: Path, target: Path) -> None:
    """Have the published weights lie where the aggregator looks for them."""
    if target.exists():
        return
    try:
        target.symlink_to(weights.absolute(), target_is_directory=True)
    except OSError:  # Windows wants a privilege for that
        for file in weights.iterdir():
            link_file(file, target / file.name)


# --- playing ------------------------------------------------------------------------------------------------------


def _federate(
    home: Path, run: RunConfiguration, computing: Computing, on_turn: Callable[[], None]
) -> dict[str, SiteDaemon]:
    """Have the daemons work until every site has the final model."""
    work, stop = aggregator_work(home), threading.Event()
    aggregator = prepare_daemon(work, work / RUN_FILE, stop)
    prepare_compute(computing, threads=1)
    sites = {site: _site(site_work(home, site)) for site in run.sites}
    with ThreadPoolExecutor(1, "aggregator", prepare_compute, (computing, 1)) as pool:  # some is each thread's own
        running = pool.submit(aggregator.run)
        try:
            _take_turns(aggregator, running, sites, run.run, on_turn)
        finally:
            stop.set()
    running.result()
    if (outcome := aggregator.outcome) is not None and outcome.name == "aborted":
        raise ActionRequiredError(f"the run was {outcome.text}")
    return sites


def _site(work: Path) -> SiteDaemon:
    configuration = read_configuration(work)
    folder = open_folder(work, configuration)
    return SiteDaemon(work, configuration, folder, stop=threading.Event(), give_up_after_s=0.0)


def _take_turns(
    aggregator: AggregatorDaemon,
    running: Future[None],
    sites: Mapping[str, SiteDaemon],
    run: str,
    on_turn: Callable[[], None],
) -> None:
    """Have each site in turn do what there is to do, until nothing is left after the aggregator's end."""
    goes_on = True
    while goes_on:
        is_last = running.done()  # what it sent last is there to be found
        acted = [name for name, site in sites.items() if _step(name, site)]
        for name in acted:
            aggregator.look_soon(name)
            consent = sites[name].consent(run)
            if consent is not None and not consent.agrees:
                raise ActionRequiredError(f"{name} does not take part: {consent.reason}")
        if trouble := aggregator.trouble:  # of a plug-in, which no waiting cures
            raise PluginError(trouble)
        if acted:
            on_turn()
        else:
            wait([running], timeout=PAUSE_S)
        goes_on = not is_last or bool(acted)
    for site in sites.values():
        site.run(once=True)  # says that it has stopped


def _step(name: str, site: SiteDaemon) -> bool:
    """Have a site do all there is to do; return whether there was anything.

    Raises:
        DropfedError: what stands in the way; what a person must cure, with the site's name.
    """
    try:
        return site.step()
    except ActionRequiredError as error:
        raise ActionRequiredError(f"{name}: {error}") from error


# --- what it came to ----------------------------------------------------------------------------------------------


def _outcome(home: Path, run: RunConfiguration, sites: Mapping[str, SiteDaemon], computing: Computing) -> Outcome:
    """Return what the aggregator's files, the messages and the models that the sites keep come to."""
    work, store = aggregator_work(home), RunStore(aggregator_work(home), run.run)
    card = store.card()
    if card is None:
        raise ActionRequiredError("no model was chosen: the run was stopped")
    ledgers = {site: _ledger(work / "sites" / site) for site in run.sites}
    tables: dict[int, dict[str, list[MetricsRow]]] = {}
    verdicts: dict[int, dict[str, Verdict]] = {}
    received, sent = [], []
    for round_no in range(1, store.round_no + 1):
        verdicts[round_no] = store.verdicts(round_no) or {}
        tables[round_no] = {site: ledgers[site].table(run.run, round_no) for site in verdicts[round_no]}
        for site in verdicts[round_no] if round_no <= run.rounds else ():
            received.append(_bytes(ledgers[site], MessageRef("round", run.run, round_no)))
            sent.append(_bytes(ledgers[site], MessageRef("update", run.run, round_no)))
    return Outcome(
        run=run,
        card=card,
        chosen=dict.fromkeys(run.sites, card.chosen_round),
        tables=tables,
        verdicts=verdicts,
        finals={name: _final(home, run, name, site, computing) for name, site in sites.items()},
        sent_bytes=round(sum(sent) / max(len(sent), 1)),
        received_bytes=round(sum(received) / max(len(received), 1)),
    )


def _ledger(home: Path) -> Mirror:
    """Return what was exchanged with a site."""
    if (ledger := open_ledger(home)) is None:
        raise ActionRequiredError(f"{home} has no card of its site")
    return ledger


def _bytes(ledger: Mirror, ref: MessageRef) -> int:
    """Return the bytes of a message as it lay in the folder, its manifest too; 0 of one that never came."""
    message = ledger.message(ref)
    if message is None:
        return 0
    manifest = ledger.path(ref, MANIFEST).stat().st_size
    return manifest + sum(file.size for file in message.manifest.files.values())


def _final(home: Path, run: RunConfiguration, name: str, site: SiteDaemon, computing: Computing) -> Final:
    method, images = open_method(run.method, run.method_options), site.images(run.run)
    folder = final_home(site_work(home, name), run.run)

    def network() -> torch.nn.Module:
        return computing.place(open_model(folder).model)

    def keep(target: Path) -> None:
        for path in folder.iterdir():
            link_file(path, target / path.name)

    objective = method.objective(run.rounds, run.rounds)
    return Final(network, task_of(run), objective, images, {name: images.test}, keep)
