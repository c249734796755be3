"""A federation's rounds in one process: the daemons' own training, weights and mean, without folders in between.

For references, which exchange nothing: each site as a federation of its own, or all sites' images as those of one site;
and for what asks about methods alone. Who takes part, what a site trains, sends and keeps, and how the aggregator
checks and combines it, is the code that the daemons run, on the same files; what the run's form of weights rounds is
rounded. Left out are transfer, signatures and consent. ``studies/daemons.py`` plays a run with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from aggregator.model_work import Made, try_still_if_none_counts
from aggregator.rounds import OpenRound, RunFacts, SiteFacts, decide
from aggregator.store import RunStore
from shared.errors import ConfigurationError, RejectedError, told_of
from shared.exchange.encoding import decode, encode
from shared.exchange.names import MAX_ROUND, METRICS, RELIABILITY
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import Mean, RunConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.records.wire import PLAIN, Wire
from shared.exchange.tables import MetricsRow, Split, epsilon_in, read_metrics
from shared.learning.aggregation import Aggregation, Update
from shared.learning.answers import ClosedRound, limit_of
from shared.learning.apart import names_of
from shared.learning.blame import blaming
from shared.learning.choice import choose, ends_early
from shared.learning.combine import checked_groups
from shared.learning.compute import EXACT, Computing
from shared.learning.data.sets import Members
from shared.learning.data.splits import SPLITS, SplitPlan, block_of
from shared.learning.gain import Gain, gains
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL
from shared.learning.model_files import round_tensors
from shared.learning.objectives import Objective
from shared.learning.private_gradients import Secret
from shared.learning.round_engine import RoundEngine, given_weights, log_omitted
from shared.learning.run_checks import check_reference, check_together
from shared.learning.run_files import Scored
from shared.learning.schedules import round_configuration
from shared.learning.seeds import no_secret, split_seed
from shared.learning.sharing import network_of, published, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.classification import balanced
from shared.learning.tasks.contract import Dataset, Evaluation, Task, members_anew
from shared.learning.tolerance import HeldOutSet
from shared.learning.training import evaluate
from site_client.configuration import Policy
from site_client.final import write_final
from site_client.round_work import as_promised
from site_client.train import Files, Trainer
from studies.configuration import POOLED

Said = TypeVar("Said")
"""What a site said or was told in a round."""

EVERYONE = Policy(
    minimum_count=1,
    minimum_training_images=1,
    max_rounds=MAX_ROUND,
    max_epochs=1000,
    max_views=10**9,
    max_parameters=10**10,
    max_memory_gb=1e6,
    max_delta=0.01,
    total_epsilon=1e9,
    rows_per_set=10**9,
)
"""The policy of sites whose images are public: each is a block of its own, and nothing is counted."""


@dataclass
class Site:
    """A site: its trainer, its images, and where what stays there lies, newest last.

    Args:
        tests: test images by the site that they are of.
        alone: where the model lies that it has trained by itself, in a run with a baseline.
        accepted: where what stayed there with its newest answer that counted lies.
        trained: the rounds that it has answered with a model.
    """

    trainer: Trainer
    dataset: Dataset
    tests: Mapping[str, Sequence[Any]]
    kept: list[Path] = field(default_factory=list)
    alone: Path | None = None
    accepted: Path | None = None
    trained: int = 0

    @property
    def newest(self) -> Path | None:
        """What stayed after its last round."""
        return self.kept[-1] if self.kept else None


@dataclass(frozen=True)
class Final:
    """The chosen model as a site uses it.

    Args:
        network: makes it, with the site's own parts, while the run's folder is there.
        task, objective: read its answers.
        dataset: the images that it was trained, and chosen, on.
        tests: its test images by the site that they are of.
        keep: writes it into a folder as a site keeps it, ``card.yaml`` last, while the run's folder is there.
    """

    network: Callable[[], torch.nn.Module]
    task: Task
    objective: Objective
    dataset: Dataset
    tests: Mapping[str, Sequence[Any]]
    keep: Callable[[Path], None]


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Args:
        run: as it was played.
        card: of the choice; of sites that are each trained alone, the first one's.
        chosen: by site, the aggregate with the best mean validation score; the newest where sites are asked in turn.
        tables: by round and site, the table of its answer; of pooled sites, ``POOLED``'s.
        verdicts: by round and site, what became of the answer.
        finals: the chosen model at each site; of pooled sites, ``POOLED``'s.
        sent_bytes: of one site's answer to a training round: here the last one's tensor files; 0 of a reference.
        received_bytes: of that round at that site, in the plain form; 0 of a reference.
    """

    run: RunConfiguration
    card: FinalCard
    chosen: dict[str, int]
    tables: dict[int, dict[str, list[MetricsRow]]]
    verdicts: dict[int, dict[str, Verdict]]
    finals: dict[str, Final]
    sent_bytes: int
    received_bytes: int

    @cached_property
    def rows(self) -> dict[int, dict[str, list[MetricsRow]]]:
        """By aggregate and site, what the received model scored: the rows of epoch 0."""
        return {
            round_no - 1: {site: [row for row in table if row.epoch == 0] for site, table in of_round.items()}
            for round_no, of_round in self.tables.items()
        }

    @cached_property
    def gains(self) -> dict[str, Gain]:
        """What each site gains over training alone, in a run with a baseline."""
        return gains(self.tables, self.card.chosen_round, self.card.score_name)

    @cached_property
    def thetas(self) -> dict[int, dict[str, float]]:
        """By round and site, where the method has θ sent."""
        told = {
            round_no: {site: float(verdict.theta) for site, verdict in of_round.items() if verdict.theta is not None}
            for round_no, of_round in self.verdicts.items()
        }
        return {round_no: of_round for round_no, of_round in told.items() if of_round}

    @cached_property
    def weights(self) -> dict[int, dict[str, float]]:
        """By training round and site; 0 of a model that was left out."""
        return {
            round_no: {site: verdict.share for site, verdict in of_round.items()}
            for round_no, of_round in self.verdicts.items()
            if round_no <= self.run.rounds
        }

    @cached_property
    def spent(self) -> dict[str, float | None]:
        """By site, ε in the end; None where the run is not private."""
        return {
            site: epsilon_in(table)
            for round_no, of_round in sorted(self.tables.items())
            if round_no <= self.run.rounds
            for site, table in of_round.items()
        }

    @cached_property
    def tests(self) -> dict[str, Evaluation]:
        """Each site's scores on its test images of the chosen model, while the run's folder is there."""
        found: dict[str, Evaluation] = {}
        for final in self.finals.values():
            network = final.network()
            found |= {of: evaluate(final.task, network, images, final.objective) for of, images in final.tests.items()}
        return found


def open_sites(
    run: RunConfiguration,
    data: Mapping[str, Path],
    home: Path,
    *,
    weights: Path | None = None,
    computing: Computing = EXACT,
) -> tuple[torch.nn.Module, dict[str, Site]]:
    """Return the network that the aggregator begins with, and each site with its images.

    Args:
        home: where the sites' secrets go.
        weights: where published weights lie, if the run begins with some.

    Raises:
        ConfigurationError: those weights are not there.
        DataError: every problem of some site's images.
    """
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    network = network_of(run, task, method, prepare=published(run, task, [weights] if weights else []))
    listed = sharing(task, method, network)
    sites = {}
    for name, folder in data.items():
        trainer = Trainer(run, listed, folder, EVERYONE, computing=computing, secret=home / "noise" / name)
        with blaming(run.plugins, f"the images of {name}"):
            dataset = open_public(task, folder, run, name)
        if run.privacy is not None:
            Secret.made_at(trainer.secret)
        sites[name] = Site(trainer, dataset, {name: dataset.test})
    return network, sites


def open_public(task: Task, folder: Path, run: RunConfiguration, site: str) -> Dataset:
    """Return a site's images in the sets of a run, as its daemon would have them under ``EVERYONE``.

    Raises:
        DataError: every problem of the images, or the sets cannot be made; each begins with the site.
    """
    options = task.options(run.task_options)
    with told_of(site):
        dataset = task.open_dataset(folder, options, public_members(task, folder, run, site))
    return balanced(dataset, options, run.seed)


def public_members(task: Task, folder: Path, run: RunConfiguration, site: str) -> Members:
    """Return what lies in a site's folder, in the sets of a run; as for ``open_public``."""
    plan = check_record(run.split, SplitPlan, "split")
    return members_anew(task, folder, plan, split_seed(run.seed, site), secret=no_secret(run.seed, site))


def run_rounds(
    run: RunConfiguration,
    data: Mapping[str, Path],
    home: Path,
    *,
    heldout: Path | None = None,
    weights: Path | None = None,
    computing: Computing = EXACT,
) -> Outcome:
    """Play a run to its end.

    Args:
        data: each site's data folder.
        home: a new folder for what the aggregator and the sites keep.
        heldout: the aggregator's labelled images for the tolerance check; without them nothing is scored. A reference
            has no such check.
        weights: see ``open_sites``.

    Raises:
        ConfigurationError: settings that do not fit together, classes that differ where images are pooled, or published
            weights that are not there.
        DataError: every problem of some site's images, or of the aggregator's.
        ActionRequiredError: a plug-in that the run names does what it must not.
    """
    reference = open_method(run.method, run.method_options).reference
    if reference:
        check_reference(run)
    else:
        check_together(run)
    network, sites = open_sites(run, data, home, weights=weights, computing=computing)
    if reference == "pooled":
        return _play(_run_of_one(run, POOLED), network, {POOLED: pooled(sites)}, home)
    if reference == "alone":
        return _beside(
            [_play(_run_of_one(run, name), network, {name: site}, home / name) for name, site in sites.items()]
        )
    return _play(run, network, sites, home, heldout)


def _play(
    run: RunConfiguration,
    network: torch.nn.Module,
    sites: Mapping[str, Site],
    home: Path,
    heldout: Path | None = None,
) -> Outcome:
    if heldout is None:
        run = run.model_copy(update={"tolerance": None})
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    store, listed = RunStore(home, run.run), next(iter(sites.values())).trainer.sharing
    round_tensors(network, listed.shared, run.wire.numbers)
    store.begin(run, listed)
    groups = checked_groups(method, method.groups(network, listed))
    aggregation = Aggregation(store, method, groups)
    aggregation.begin(network)
    engine = RoundEngine(store, method, aggregation)
    images = task.open_images(heldout, task.options(run.task_options)) if heldout else None
    # Others may begin with the network, and scoring measures its BatchNorm.
    scorer = HeldOutSet.of_run(run, task, method, deepcopy(network), images=images, sharing=listed)
    tables: dict[int, dict[str, list[MetricsRow]]] = {}
    verdicts: dict[int, dict[str, Verdict]] = {}
    ended = ""
    for round_no in range(1, run.rounds + 2):
        participants = _participants(run, method.in_turn, round_no)
        store.ask(round_no, participants, tuple(sites))
        updates: dict[str, Update] = {}
        tables[round_no] = {}
        for name in participants:
            with blaming(run.plugins, f"round {round_no} at {name}"):
                updates[name], tables[round_no][name] = update_of(run, store, sites[name], name, round_no)
        limit = limit_of(run, round_no, partial(scorer.limit, store.aggregate_path(round_no - 1)))
        checked: dict[str, Scored] = {}
        for name, update in updates.items():
            with blaming(run.plugins, f"checking {name}'s answer of round {round_no}"):
                spent = epsilon_in(tables[round_no][name]) if run.privacy else None
                try:
                    checked[name] = engine.check_tensors_of(round_no, name, update, spent, score=scorer.score)
                except RejectedError as error:
                    checked[name] = Scored.refused(str(error))
        with blaming(run.plugins, f"weighing the answers of round {round_no}"):
            closed = engine.without_spoilers(ClosedRound(round_no, checked, limit, updates.__getitem__))
            sound = {name: updates[name] for name, each in checked.items() if not each.reason}
            if run.plugins:
                with TemporaryDirectory() as beside:
                    made = Made(store, round_no, Path(beside))
                    try_still_if_none_counts(made, method, groups, closed, sound)
            verdicts[round_no] = engine.decide(closed)
            log_omitted(round_no, verdicts[round_no])
        if round_no <= run.rounds:
            with blaming(run.plugins, f"combining the models of round {round_no}"):
                engine.combine(round_no, verdicts[round_no], updates.__getitem__)
            for name in given_weights(verdicts[round_no]):
                if (kept := _files(run, store, sites[name], name, round_no).kept).exists():
                    sites[name].accepted = kept
            if ended := ends_early(run, tables, task.selection_score):
                break
    card = choose(
        run,
        tables,
        verdicts,
        kept=range(min(round_no, run.rounds) + 1),
        score_name=task.selection_score,
        ended=ended,
        in_turn=method.in_turn,
    )
    aggregation.choose(card.chosen_round)
    finals = {name: _final(store, run, site, name, card.chosen_round) for name, site in sites.items()}
    tested = [of for final in finals.values() for of in final.tests]
    chosen = dict.fromkeys(tested, card.chosen_round)
    return Outcome(run, card, chosen, tables, verdicts, finals, *_exchanged(run, store, sites))


def update_of(
    run: RunConfiguration, store: RunStore, site: Site, name: str, round_no: int
) -> tuple[Update, list[MetricsRow]]:
    """Return a site's answer to a round, as the aggregator has it, and its table."""
    files, listed, trains = _files(run, store, site, name, round_no), site.trainer.sharing, round_no <= run.rounds
    configuration = round_configuration(run, round_no, name)
    worked = site.trainer.work(site.dataset, configuration, files, lambda percent: None, trained_before=site.trained)
    if run.plugins:
        worked = as_promised(worked, site.trainer, configuration, files, f"{names_of(run.plugins)}, at {name}")
    tables = worked.tables
    sent = {group: files.sent[group] for group in listed.groups("update", trains=trains)}
    if trains:
        sent[MODEL] = _as_received(files.trained, listed.shared, run.wire, files.received)
        site.kept += [files.kept] if files.kept.exists() else []
        if files.alone_kept is not None and files.alone_kept.exists():
            site.alone = files.alone_kept
        site.trained += 1
    theta = parse_yaml(tables[RELIABILITY], Reliability, RELIABILITY).theta if RELIABILITY in tables else None
    return Update(sent, len(site.dataset.train), theta), read_metrics(tables[METRICS], METRICS)


def _exchanged(run: RunConfiguration, store: RunStore, sites: Mapping[str, Site]) -> tuple[int, int]:
    """Return the bytes of tensor files from one site, and to it, in the last training round."""
    if open_method(run.method, run.method_options).reference or not run.rounds:
        return 0, 0
    trained = min(store.round_no, run.rounds)
    name = store.participants(trained)[0]
    files = _files(run, store, sites[name], name, trained)
    groups = [files.sent[group] for group in sites[name].trainer.sharing.groups("update")]
    return _size([_on_the_wire(files.trained, run.wire), *groups]), _size([files.received, *files.state.values()])


def _size(files: Iterable[Path]) -> int:
    """Return the bytes of files."""
    return sum(path.stat().st_size for path in files)


def _run_of_one(run: RunConfiguration, site: str) -> RunConfiguration:
    """Return the same run with one site, whose answer is the aggregate by any rule, though most rules want several."""
    return run.model_copy(update={"sites": [site], "quorum": 1, "sites_per_round": None, "combination": Mean()})


def pooled(sites: Mapping[str, Site]) -> Site:
    """Return one site with the images of all, each named after the site that it is of.

    Raises:
        ConfigurationError: their classes differ.
    """
    classes = {name: site.dataset.classes for name, site in sites.items()}
    if len(set(classes.values())) > 1:
        told = "; ".join(f"{name} has {', '.join(of_site)}" for name, of_site in classes.items())
        raise ConfigurationError([f"sites: images of different classes cannot be pooled ({told}); leave sites out"])

    def of_all(split: Split) -> list[Any]:
        return [
            replace(sample, id=f"{name}/{sample.id}")
            for name, site in sites.items()
            for sample in getattr(site.dataset, split)
        ]

    first = next(iter(sites.values()))
    repeats = {
        f"{name}/{image}": often for name, site in sites.items() for image, often in site.dataset.repeats.items()
    }
    images = of_all("train"), of_all("validation"), of_all("test")
    groups = {
        f"{name}/{image}": f"{name}/{group}"
        for name, site in sites.items()
        for image, group in site.dataset.groups.items()
    }
    # Two sites number their blocks alike, and an image here is no unit of either: each is named with its own block.
    numbers: dict[tuple[str, int | str], int] = {}
    blocks = {
        f"{name}/{sample.id}": numbers.setdefault((name, block_of(sample.id, site.dataset.blocks)), len(numbers))
        for name, site in sites.items()
        for split in SPLITS
        for sample in getattr(site.dataset, split)
    }
    dataset = Dataset(*images, first.dataset.classes, repeats=repeats, blocks=blocks, groups=groups)
    return Site(first.trainer, dataset, {name: site.dataset.test for name, site in sites.items()})


def _beside(outcomes: Sequence[Outcome]) -> Outcome:
    """Return what several runs came to, each of other sites; by ``stop_after`` one may end before another."""
    first = outcomes[0]
    return Outcome(
        run=first.run,
        card=first.card,
        chosen={site: chosen for outcome in outcomes for site, chosen in outcome.chosen.items()},
        tables=_joined([outcome.tables for outcome in outcomes]),
        verdicts=_joined([outcome.verdicts for outcome in outcomes]),
        finals={site: final for outcome in outcomes for site, final in outcome.finals.items()},
        sent_bytes=0,
        received_bytes=0,
    )


def _joined(parts: Iterable[Mapping[int, Mapping[str, Said]]]) -> dict[int, dict[str, Said]]:
    """Return what each round holds of the sites of all parts."""
    joined: dict[int, dict[str, Said]] = {}
    for part in parts:
        for number, of_round in part.items():
            joined.setdefault(number, {}).update(of_round)
    return joined


def _participants(run: RunConfiguration, in_turn: bool, round_no: int) -> tuple[str, ...]:
    """Return whom the daemon would ask, if all sites were there."""
    facts = RunFacts(
        rounds=run.rounds,
        quorum=run.quorum,
        consent_deadline_s=1,
        round_deadline_s=1,
        sites=tuple(SiteFacts(name, consent=True, enrolled=True, offered=True) for name in sorted(run.sites)),
        seed=run.seed,
        sites_per_round=run.sites_per_round,
        in_turn=in_turn,
        round_no=round_no - 1,
        closed=True,
        aggregated=True,
    )
    (opened,) = decide(facts)
    if not isinstance(opened, OpenRound):
        raise TypeError(f"the aggregator would {opened}")
    return opened.participants


def _own(store: RunStore, site: str) -> Path:
    """Return where a site's files lie."""
    return store.home / "sites" / site


def trained_path(store: RunStore, site: str, round_no: int) -> Path:
    """Return the model that a site has trained in a round."""
    return _own(store, site) / f"{round_no:04d}.trained.safetensors"


def _files(run: RunConfiguration, store: RunStore, site: Site, name: str, round_no: int) -> Files:
    listed, own = site.trainer.sharing, _own(store, name)
    return Files(
        received=store.aggregate_for(round_no - 1, name),
        state={group: store.state_path(round_no - 1, group) for group in listed.to_site},
        start=store.start if listed.start else None,
        personal=site.newest,
        accepted=site.accepted,
        trained=trained_path(store, name, round_no),
        sent={group: own / f"{round_no:04d}.{group}.safetensors" for group in listed.groups("update")},
        kept=own / f"{round_no:04d}.kept.safetensors",
        alone=site.alone,
        alone_kept=own / f"{round_no:04d}.alone.safetensors" if run.baseline else None,
        first=store.aggregate_path(0) if run.paired and round_no > 1 else None,
    )


def _final(store: RunStore, run: RunConfiguration, site: Site, name: str, chosen: int) -> Final:
    earlier = [path for path in site.kept if int(path.name[:4]) <= chosen]
    trainer, listed = site.trainer, site.trainer.sharing

    def network() -> torch.nn.Module:
        return trainer.final_network(
            site.dataset,
            round_configuration(run, max(run.rounds, 1), name),
            received=store.aggregate_for(chosen, name),
            state={group: store.settled_path(chosen + 1, group) for group in listed.with_final},
            start=store.start if listed.start else None,
            personal=earlier[-1] if earlier else None,
        )

    def keep(home: Path) -> None:
        personal = int(earlier[-1].name[:4]) if earlier else 0
        write_final(home, trainer, site.dataset, network(), chosen_round=chosen, personal_round=personal)

    objective = trainer.method.objective(run.rounds, run.rounds)
    return Final(network, trainer.task, objective, site.dataset, site.tests, keep)


def _as_received(trained: Path, tensors: TensorList, wire: Wire, received: Path) -> Path:
    """Return what the aggregator has of a trained model."""
    if wire == PLAIN:
        return trained
    encoded, decoded = _on_the_wire(trained, wire), trained.with_suffix(".decoded")
    encode(trained, encoded, tensors, wire, received)
    decode(encoded, decoded, tensors, wire, received, shown_as=trained.name)
    return decoded


def _on_the_wire(trained: Path, wire: Wire) -> Path:
    """Return where a trained model lies in the form in which it would travel."""
    return trained if wire == PLAIN else trained.with_suffix(".encoded")
