"""One round's work at the site: validate the received model, measure θ, train, and write what answers the round."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.reading import check_record, dump_yaml
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.records.tensors import Groups, Sharing, TensorList
from shared.exchange.records.wire import FileEntry
from shared.exchange.tables import IMAGES_OF, RECEIVED_SPLITS, Split, difference_of, error_of, is_declared
from shared.exchange.weights import TensorFile, check_tensors, write_tensors
from shared.learning.apart import AnswerT, Progress, Question
from shared.learning.compute import Computing, prepare_compute
from shared.learning.data.sets import Members
from shared.learning.data.splits import SplitPlan, unit_of
from shared.learning.measures import task_of
from shared.learning.methods import open_method
from shared.learning.methods.contract import Local, Method, Tensors
from shared.learning.metrics import Score, ood_auroc
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.objectives import Objective, Weighted, annealed, balanced_weights
from shared.learning.optimizers import new_optimizer, read_memory, remembered, restore_memory
from shared.learning.private_gradients import Secret
from shared.learning.private_training import PrivateRound
from shared.learning.reliability import MeasuredUncertainty, image_uncertainty, measure_uncertainty
from shared.learning.requirements import Requirements, requirements
from shared.learning.run_checks import check_together
from shared.learning.schedules import is_scored
from shared.learning.seeds import seed_for
from shared.learning.sharing import grouped, network_of, require_declared, staying
from shared.learning.standard_error import Jackknife
from shared.learning.targets import target_counts, trained_counts
from shared.learning.tasks.classification import balanced
from shared.learning.tasks.contract import Dataset, Evaluation, Sample, Task
from shared.learning.tasks.terms import Options
from shared.learning.training import Epoch, OnBatch, compare, evaluate, measure_statistics, train_epoch
from shared.service import alive
from site_client import store
from site_client.alone import Alone
from site_client.apart import answered
from site_client.configuration import FILE, Policy, SiteConfiguration, computing_of
from site_client.disclosure import Counts, ScoreTable, reliability, told_images
from site_client.policy import excesses

logger = logging.getLogger(__name__)

OnProgress = Callable[[int], None]
"""Called with percent done after every batch; raises ``Stopped`` to end the work."""

OPTIMIZER = "optimizer"
"""The group of what the optimizer remembers, where a run keeps it."""


@dataclass(frozen=True)
class Files:
    """Where one round's tensors lie at the site.

    Args:
        received: the round's global model, checked.
        state: what came beside it, checked, by group.
        start: what the offer had the site begin with, checked; None if nothing stays but the personal part.
        personal: what stayed at the site after its last signed round; None before the first.
        accepted: what stayed after its last round that was accepted: the groups in it count; None before the first.
        trained: where the trained model goes; nothing is written there in a round without epochs.
        sent: where what is sent beside it goes, by group.
        kept: where what stays at the site goes, before ``trained``; nothing in a round without epochs.
        alone: the model that the site has trained by itself, after its last signed round; None before the first.
        alone_kept: where the model trained by itself goes; None in a run without a baseline.
        first: round 1's global model, with which later ones are compared; None in that round, at a site that did not
            answer it, and of a run that compares none.
        lost: the site's last round that was accepted, if nothing that stayed with it is here any more.
    """

    received: Path
    state: Mapping[str, Path]
    start: Path | None
    personal: Path | None
    accepted: Path | None
    trained: Path
    sent: Mapping[str, Path]
    kept: Path
    alone: Path | None = None
    alone_kept: Path | None = None
    first: Path | None = None
    lost: int | None = None


@dataclass(frozen=True)
class Worked:
    """What a round's work came to.

    Args:
        images: how many there are to train on.
        tables: the small files of the answer by name: ``metrics.csv`` and, where the method asks for it,
            ``reliability.yaml``.
        trained: what a manifest says of the trained model; None after a round without epochs.
        sent: what it says of the groups beside it.
    """

    images: int
    tables: dict[str, bytes]
    trained: FileEntry | None
    sent: dict[str, FileEntry]


@dataclass(frozen=True)
class _Round:
    """What the steps of one round share."""

    local: Local
    dataset: Dataset
    configuration: RoundConfiguration
    objective: Objective
    table: ScoreTable


@dataclass(frozen=True)
class Trainer:
    """Everything a site needs to work on one run.

    Args:
        data: the hospital's folder for the run's task.
        ood: a folder of images unlike the hospital's own, or None.
        computing: where and how this site trains.
        secret: where the site's secret for the noise of a private run is kept, once it has agreed.
    """

    run: RunConfiguration
    sharing: Sharing
    data: Path
    policy: Policy
    computing: Computing
    secret: Path
    ood: Path | None = None

    @cached_property
    def task(self) -> Task:
        """The run's task."""
        return task_of(self.run)

    @cached_property
    def method(self) -> Method:
        """The run's method, with its options."""
        return open_method(self.run.method, self.run.method_options)

    @cached_property
    def options(self) -> Options:
        """The task's options."""
        options: Options = self.task.options(self.run.task_options)
        return options

    def open_dataset(self, members: Members) -> Dataset:
        """Read the hospital's images.

        Args:
            members: which units make up each set.

        Raises:
            DataError: every problem found.
        """
        dataset: Dataset = self.task.open_dataset(self.data, self.options, members)
        dataset = balanced(dataset, self.options, self.run.seed)
        if self.ood is None:
            return dataset
        chosen = members.get("foreign", {})
        ood = self.task.open_unlabelled(self.ood, self.options)
        return replace(dataset, ood=[sample for sample in ood if unit_of(sample.id) in chosen])

    @property
    def device(self) -> str:
        """Where this site trains."""
        return self.computing.device

    # --- what stays here -----------------------------------------------------------------------------------

    def network(self, classes: int, received: Path, start: Path | None, personal: Path | None) -> nn.Module:
        """Return the site's whole network: what it received, and what stays here; see ``Files``.

        Raises:
            ActionRequiredError: what stayed here does not fit: the site's grades are others now.
        """
        # Each part is loaded over the one before: the offer's, this site's own, and the round's (protocol 7.1).
        network = network_of(self.run, self.task, self.method, classes)
        if start is not None:
            load_tensors(network, self.sharing.beginning, start)
        if personal is not None:
            self._check_kept(network, personal)
            load_tensors(network, self.stays(network), personal)
        load_tensors(network, self.sharing.shared, received)
        return self.computing.place(network)

    def _refresh(self, network: nn.Module, dataset: Dataset) -> None:
        """Measure the BatchNorm of a network that arrived on the site's own images, where the run says so."""
        options = self.method.options
        if options.refresh_batch_norm == "on_arrival":
            most, blocks = options.refresh_images, dataset.blocks
            measure_statistics(self.task, network, dataset.train, self.computing, most=most, blocks=blocks)

    def stays(self, network: nn.Module) -> TensorList:
        """Return what of a network stays at this site."""
        return staying(self.sharing, network)

    def _groups_here(self, network: nn.Module) -> dict[str, TensorList]:
        """Return the groups of tensors that stay here beside the network's."""
        groups = dict(self.method.groups(network, self.sharing).at_site)
        if self.method.options.keep_optimizer:
            groups[OPTIMIZER] = remembered(self._optimizer(network), network, self.sharing.frozen)
        return groups

    def _all_kept(self, network: nn.Module) -> TensorList:
        """Return what the file holds of what stays here."""
        return TensorList(tensors=self.stays(network).tensors | grouped(self._groups_here(network)).tensors)

    def _check_kept(self, network: nn.Module, path: Path) -> None:
        try:
            check_tensors(path, self._all_kept(network), str(path), largest=math.inf)  # it never travels
        except RejectedError as error:
            raise ActionRequiredError(
                f"{error}: were this site's grades changed since that round? put them back"
            ) from None

    def _read_kept(self, network: nn.Module, path: Path | None) -> dict[str, Tensors]:
        """Return the groups that stayed here; zeros before any did."""
        groups = self._groups_here(network)
        if path is None:
            return {
                group: {name: torch.zeros(shape.shape, device=self.device) for name, shape in listed.tensors.items()}
                for group, listed in groups.items()
            }
        self._check_kept(network, path)
        file = TensorFile(path)
        return {
            group: {name: self._read(file, f"{group}/{name}") for name in listed.tensors}
            for group, listed in groups.items()
        }

    def _require_kept(self, network: nn.Module, lost: int | None) -> None:
        """Check that nothing was lost here that the aggregator counts: begun anew, it would be counted twice."""
        if lost is not None and self.method.groups(network, self.sharing).are_counted:
            raise ActionRequiredError(
                f"run {self.run.run}: what {self.run.method} has this site remember was lost after round {lost}, and "
                "the aggregator still counts it: no further round is trained here; withdraw from the run, and ask the "
                "aggregator's people for a new one"
            )

    def _require_measured(self, local: Local) -> None:
        """Check that the method has measured what it declares, and nothing that would be dropped."""
        hook, sharing = self._written_by("measure"), self.sharing
        require_declared(hook, "local.sent", local.sent, sharing.measured, also=sharing.trained)

    def _require_finished(self, local: Local) -> None:
        """Check the same of what training came to."""
        hook, sharing = self._written_by("finish"), self.sharing
        require_declared(hook, "local.sent", local.sent, sharing.trained, also=sharing.measured)
        here = {group: listed.tensors for group, listed in self._groups_here(local.network).items()}
        require_declared(hook, "local.kept", local.kept, here)

    def _written_by(self, hook: str) -> Callable[..., object]:
        """Return a hook, or, of a method that has none of that name, what has declared that it has."""
        is_own = getattr(type(self.method), hook) is not getattr(Method, hook)
        return getattr(self.method, hook if is_own else "groups")  # type: ignore[no-any-return]

    def _keep(self, network: nn.Module, groups: Mapping[str, Tensors], path: Path) -> None:
        """Write what stays here; what has diverged is not kept, and the next round goes on from the round before."""
        tensors = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
        state = network.state_dict() | tensors
        listed = self._all_kept(network)
        if not all(state[name].isfinite().all() for name in listed.tensors):
            logger.error("what stays at this site has diverged in training: the state of the round before is kept")
        elif listed.tensors:
            write_tensors(path, listed, lambda name: state[name].detach().cpu().numpy())

    # --- work ----------------------------------------------------------------------------------------------

    def measure_uncertainty(self, network: nn.Module, dataset: Dataset) -> MeasuredUncertainty:
        """Return what θ of a network is measured on: its uncertainty of the split that the run names."""
        samples = dataset.train if self.method.options.theta_from == "train" else dataset.validation
        # λ does not enter the uncertainty: any round's objective reads a network alike.
        objective = self.method.objective(1, self.run.rounds)
        seed = seed_for(self.run.seed, "theta")
        return measure_uncertainty(self.task, network, samples, objective, seed, computing=self.computing)

    def work(
        self,
        dataset: Dataset,
        configuration: RoundConfiguration,
        files: Files,
        on_progress: OnProgress,
        *,
        trained_before: int = 0,
    ) -> Worked:
        """Work one round through. Of several processes each does, and the one that leads writes the files.

        Args:
            trained_before: to how many earlier rounds the site has answered with a model.

        Raises:
            Stopped: by ``on_progress``.
            ConfigurationError: the run is private, and the site has too few images for that.
            ActionRequiredError: what the aggregator counts of what stays here was lost.
        """
        # 1. Receive: the model as it came, with what stayed here of the rounds before (protocol 7.1).
        this = self._receive(dataset, configuration, files)
        local, table = this.local, this.table
        network = local.network
        if configuration.epochs:
            self._require_kept(network, files.lost)
        # 2. Validate and measure the received model on this site's images before it is trained: epoch 0 (protocol 8.3).
        #    Beside it the model is scored that the site trains by itself (protocol 6.6).
        tables = self._measure(this, files)
        if (alone := self._open_alone(this, files)) is not None:
            self._score_alone(this, alone)
        # 3. Train, epoch by epoch, with noise where the run is private (protocol 7.6). The closing round has no epochs.
        optimizer = self._optimizer(network)
        if OPTIMIZER in local.kept:
            restore_memory(optimizer, network, local.kept[OPTIMIZER])
        phases = self._phases(local, configuration.epochs)
        first, second = _halves(on_progress) if alone is not None else (on_progress, on_progress)
        with self._private(network, dataset, configuration, len(phases)) as private:
            self._train(this, optimizer, phases, first, private)
            if private:
                table.spent(private.epsilon(trained_before + 1), len(dataset.train))
        # 4. Finish: what the method sends beside the model, and what it keeps for its next round (protocol 7.3).
        if phases:
            self.method.finish(local)
            if OPTIMIZER in local.kept:
                local.kept[OPTIMIZER] = read_memory(optimizer, network, self.sharing.frozen)
            self._require_finished(local)
        # 5. Train the site's own model as long; nothing of it enters what leaves but its scores of the rounds before.
        if alone is not None and phases:
            epochs = [self._epoch_of(this, number) for number in range(1, self.run.epochs + 1)]
            self._train_plainly(
                alone.network, alone.optimizer, dataset, epochs, objective=this.objective, on_progress=second
            )
        # 6. Write what leaves (protocol 6.3) and what stays: one process alone, and what stays first, so that no crash
        #    leaves a model that was sent beside a state from before it.
        tables[names.METRICS] = table.content()
        if not self.computing.processes.leads:
            return Worked(len(dataset.train), tables, None, {})
        if alone is not None and phases and files.alone_kept is not None:
            alone.keep(files.alone_kept)
        if phases:
            self._keep(network, local.kept, files.kept)
        sent = self._send(local, files, trains=bool(phases))
        model = save_tensors(network, self.sharing.shared, files.trained) if phases else None
        return Worked(len(dataset.train), tables, model, sent)

    def measured(self, dataset: Dataset, configuration: RoundConfiguration, files: Files) -> ScoreTable:
        """Return the scores of a received model, for a round that something else than this trains."""
        this = self._receive(dataset, configuration, files)
        self._measure(this, files)
        return this.table

    def _receive(self, dataset: Dataset, configuration: RoundConfiguration, files: Files) -> _Round:
        network = self.network(len(dataset.classes), files.received, files.start, files.personal)
        local = self._local(network, dataset, configuration.round, files)
        steps_before = self._epoch(configuration, dataset, 1, configuration.round).steps_before(dataset.train)
        objective = annealed(self._objective(dataset, configuration.round), steps_before)
        weighs = self.method.options.class_weights != "none"
        table = ScoreTable(configuration, self.policy, dataset, own=self.run.scores, weighs_classes=weighs)
        return _Round(local, dataset, configuration, objective, table)

    def _measure(self, this: _Round, files: Files) -> dict[str, bytes]:
        """Score the received model, in a round that is scored, and measure what the method asks for.

        Returns:
            The tables beside the metrics.
        """
        network, dataset, tables = this.local.network, this.dataset, {}
        # 1. What the method measures of the model just as it came, before BatchNorm is measured anew.
        if self.method.measures_received:
            self.method.measure(this.local)
        # 2. BatchNorm's statistics on this site's images, where the run says so (protocol 7.2).
        self._refresh(network, dataset)
        # 3. θ, before training, as in FedUAA's Algorithm 1 (protocol 8.4); and what other methods measure now.
        if self.method.sends_reliability:
            measured = self.measure_uncertainty(network, dataset)
            tables[names.RELIABILITY] = dump_yaml(reliability(measured, self.policy))
        if not self.method.measures_received:
            self.method.measure(this.local)
        self._require_measured(this.local)
        # 4. The scores of epoch 0, by which the aggregate is chosen (protocol 8.3).
        if is_scored(self.run, this.configuration.round):
            for split in RECEIVED_SPLITS:
                found = self._scored(this, network, split)
                if split == "test":
                    found = self._compared(this, files, self._with_ood(network, dataset, found))
                this.table.add(0, split, found)
        return tables

    def _compared(self, this: _Round, files: Files, tested: Evaluation) -> Evaluation:
        """Return how the received model did on the test images, and how much better than the one that the run began
        with, where this site has that; both with what of the model comes but once, which never changes.
        """
        score = self.task.selection_score
        if files.first is None or not is_declared(difference_of(score)):
            return tested
        first = self.network(len(this.dataset.classes), files.first, files.start, None)
        self._refresh(first, this.dataset)
        samples, objective = this.dataset.test, this.objective
        jackknife = self._jackknife(this.dataset, samples)
        network, computing = this.local.network, self.computing
        found = compare(self.task, network, first, samples, objective, jackknife=jackknife, computing=computing)
        return replace(tested, scores=tested.scores | found)

    def _jackknife(self, dataset: Dataset, samples: Sequence[Sample]) -> Jackknife:
        """Return whom to leave out: whole groups, as patients with all their images (protocol 8.3)."""
        return Jackknife(self.task.selection_score, [dataset.group_of(sample) for sample in samples])

    def _scored(self, this: _Round, network: nn.Module, split: Split) -> Evaluation:
        """Return how a model does before training: with how many images it is over of each class, and of test images
        the main score's standard error, if the run asks for it.
        """
        samples, score = getattr(this.dataset, split), self.task.selection_score
        jackknife = None
        if self.run.support and split == "test" and is_declared(error_of(score)):
            jackknife = self._jackknife(this.dataset, samples)
        found = evaluate(self.task, network, samples, this.objective, self.computing, jackknife=jackknife)
        if not self.run.support or self.task.labels_pixels:
            return found
        counts = target_counts(self.task, samples, len(this.dataset.classes)).sum(0).tolist()
        classes = {f"{IMAGES_OF}{number}": Score(float(count), int(count)) for number, count in enumerate(counts)}
        return replace(found, scores=found.scores | classes)

    def _evaluate(self, this: _Round, samples: Sequence[Sample]) -> Evaluation:
        return evaluate(self.task, this.local.network, samples, this.objective, self.computing)

    def _open_alone(self, this: _Round, files: Files) -> Alone | None:
        """Return the model that this site trains by itself, as its last round left it; None in a run without a
        baseline, and where this site has not begun one in the first round.
        """
        dataset = this.dataset
        if self.run.baseline is None or (this.configuration.round > 1 and files.alone is None):
            return None
        network = self.network(len(dataset.classes), files.received, files.start, None)
        alone = Alone.begun(self, network)
        if files.alone is not None:
            alone.restore(files.alone)
        self._refresh(network, dataset)
        return alone

    def _score_alone(self, this: _Round, alone: Alone) -> None:
        """Score the model trained alone as the received one is scored; in round 1 they are the same, so nothing is
        scored.
        """
        round_no = this.configuration.round
        if round_no > 1 and is_scored(self.run, round_no):
            for split in RECEIVED_SPLITS:
                this.table.add(0, split, self._scored(this, alone.network, split), alone=True)

    def _epoch_of(self, this: _Round, number: int) -> Epoch:
        return self._epoch(this.configuration, this.dataset, number, this.configuration.round)

    def _phases(self, local: Local, epochs: int) -> list[list[nn.Parameter]]:
        """Return the parameters that each epoch moves; a task's frozen layers stay as they are."""
        if not epochs:
            return []
        self.method.begin(local)
        learning = {parameter for parameter in local.network.parameters() if parameter.requires_grad}
        return [
            [parameter for parameter in moving if parameter in learning]
            for moving in self.method.phases(local.network, epochs)
        ]

    def _train(
        self,
        this: _Round,
        optimizer: torch.optim.Optimizer,
        phases: Sequence[Sequence[nn.Parameter]],
        on_progress: OnProgress,
        private: PrivateRound | None,
    ) -> None:
        """Train one epoch for each phase, and validate after each, in a round that is scored."""
        train = private.train_epoch if private else train_epoch
        divided = self.computing.micro_batch if self.computing.divides(this.configuration.batch_size) else None
        for number, moving in enumerate(phases, 1):
            _let_move(this.local.network, moving)
            trained = train(
                self.task,
                self.method,
                this.local,
                optimizer,
                this.dataset.train,
                epoch=self._epoch_of(this, number),
                objective=this.objective,
                on_batch=_of_epoch(on_progress, number, len(phases)),
                computing=self.computing,
            )
            if trained is not None:
                this.table.add(number, "train", trained, micro_batch=divided)
            if is_scored(self.run, this.configuration.round):
                this.table.add(number, "validation", self._evaluate(this, this.dataset.validation))

    def _train_plainly(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Dataset,
        epochs: Sequence[Epoch],
        *,
        objective: Objective,
        on_progress: OnProgress,
    ) -> None:
        """Train a network without the steps of the run's method."""
        for number, epoch in enumerate(epochs, 1):
            train_epoch(
                self.task,
                Method(self.method.options),
                Local(network),
                optimizer,
                dataset.train,
                epoch=epoch,
                objective=objective,
                on_batch=_of_epoch(on_progress, number, len(epochs)),
                computing=self.computing,
            )

    def final_network(
        self,
        dataset: Dataset,
        configuration: RoundConfiguration,
        *,
        received: Path,
        state: Mapping[str, Path],
        start: Path | None,
        personal: Path | None,
        on_progress: OnProgress = lambda percent: None,
    ) -> nn.Module:
        """Return the chosen model with this site's own parts, fine-tuned where the run says so, ready for use.

        Args:
            configuration: of the run's last training round at this site.
            received: the chosen model.
            state: what came with it.
        """
        network = self.network(len(dataset.classes), received, start, personal)
        self._refresh(network, dataset)
        objective = self._objective(dataset, self.run.rounds)
        epochs = [
            self._epoch(configuration, dataset, number, self.run.rounds + 1, "fine-tuning")
            for number in range(1, self.method.options.fine_tuning_epochs + 1)
        ]
        self._train_plainly(
            network, self._optimizer(network), dataset, epochs, objective=objective, on_progress=on_progress
        )
        self.method.ready(network, self._read_state(state, self.sharing.with_final))
        return network.eval()

    def _private(
        self, network: nn.Module, dataset: Dataset, configuration: RoundConfiguration, epochs: int
    ) -> AbstractContextManager[PrivateRound | None]:
        """Return what trains a round of so many epochs, if the run is private."""
        if self.run.privacy is None or not epochs:
            return nullcontext()
        return PrivateRound(
            self.run.privacy,
            network,
            images=len(dataset.train),
            batch_size=configuration.batch_size,
            epochs=epochs,
            rounds=self.run.rounds,
            secret=Secret.at(self.secret).of(self.run.run, "round", configuration.round),
        )

    def _with_ood(self, network: nn.Module, dataset: Dataset, tested: Evaluation) -> Evaluation:
        """Return how the network did on the test images, and whether it is less sure of out-of-distribution ones."""
        if not dataset.ood:
            return tested
        objective = self.method.objective(1, self.run.rounds)  # any round's reads a network alike
        inside, outside = (
            image_uncertainty(self.task, network, samples, objective, self.computing)
            for samples in (dataset.test, dataset.ood)
        )
        return replace(tested, scores=tested.scores | {"ood_auroc": ood_auroc(inside, outside)})

    def _objective(self, dataset: Dataset, round_no: int) -> Objective:
        """Return what training makes small at this site."""
        objective = self.method.objective(round_no, self.run.rounds)
        if self.method.options.class_weights == "none":
            return objective
        return Weighted(objective, balanced_weights(trained_counts(self.task, dataset)))

    def _optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return new_optimizer(network, self.options, self.run.learning_rate.initial)

    def _epoch(
        self, configuration: RoundConfiguration, dataset: Dataset, number: int, round_no: int, *purpose: str
    ) -> Epoch:
        """Return an epoch, by its number from 1 in a round; fine-tuning comes after the last one."""
        return Epoch(
            learning_rate=configuration.learning_rate,
            batch_size=configuration.batch_size,
            seed=seed_for(configuration.seed, *purpose, number),
            augmentation=self.task.augmentation(configuration.augmentation).for_images(len(dataset.train)),
            repeats=dataset.repeats,
            max_grad_norm=self.options.max_grad_norm,
            refreshes=self.method.options.refresh_batch_norm != "never",
            refresh_images=self.method.options.refresh_images,
            blocks=dataset.blocks,
            epochs_before=(round_no - 1) * self.method.epochs(self.run.epochs) + number - 1,
        )

    def _local(self, network: nn.Module, dataset: Dataset, round_no: int, files: Files) -> Local:
        def batches(split: Literal["train", "validation"]) -> Iterator[tuple[Tensor, Tensor]]:
            for batch in self.task.batches(getattr(dataset, split)):
                alive()
                inputs, targets = self.task.collate(batch)
                yield inputs.to(self.device), targets.to(self.device)

        return Local(
            network,
            shared=self.sharing.parameters.tensors,
            state=self._read_state(files.state, self.sharing.to_site),
            kept=self._read_kept(network, files.accepted),
            is_first=files.accepted is None,
            round_no=round_no,
            batches=batches,
            minimum_count=self.policy.minimum_count,
            images=told_images(len(dataset.train), self.policy),
            numbers=self.run.wire.numbers,
        )

    def _read_state(self, files: Mapping[str, Path], groups: Groups) -> dict[str, Tensors]:
        opened = {group: TensorFile(files[group]) for group in groups}
        return {group: {name: self._read(opened[group], name) for name in listed} for group, listed in groups.items()}

    def _read(self, file: TensorFile, name: str) -> torch.Tensor:
        return torch.from_numpy(file.tensor(name)).to(self.device)

    def _send(self, local: Local, files: Files, *, trains: bool) -> dict[str, FileEntry]:
        """Write what is sent beside the model."""
        entries = {}
        for group, listed in self.sharing.groups("update", trains=trains).items():
            tensors = local.sent[group]
            entries[group] = write_tensors(
                files.sent[group],
                TensorList(tensors=listed),
                lambda name, tensors=tensors: tensors[name].detach().float().cpu().numpy(),  # type: ignore[misc]
            )
        return entries


class RequirementsOf(Question[Requirements]):
    """What does a run demand of a site?"""

    run: RunConfiguration
    micro_batch: int | None = None

    def answer(self, on_progress: Progress) -> Requirements:
        check_together(self.run)
        return requirements(self.run, self.micro_batch)


def requirements_of(site: SiteConfiguration, run: RunConfiguration) -> Requirements:
    """Return what a run demands of a site. Nothing is built or read for that.

    Raises:
        ConfigurationError: unknown task, method or option, or some that do not fit together; or plug-ins that are not
            allowed here.
    """
    check_record(run.split, SplitPlan, "split")
    return answered(RequirementsOf(run=run, micro_batch=site.micro_batch), site, run.plugins)


def check_offer(site: SiteConfiguration, run: RunConfiguration, offered: Sharing) -> Requirements:
    """Check that this software computes exactly what the offer says, and no more than the hospital allows.

    Raises:
        ConfigurationError: as for ``requirements_of`` and ``as_offered``.
        ActionRequiredError: the site has no images for the run's task.
    """
    _folder_of(site, run.task)
    return as_offered(requirements_of(site, run), site.policy, offered)


def as_offered(required: Requirements, policy: Policy, offered: Sharing) -> Requirements:
    """Return a run's demands, if the hospital allows them and the offer tells them.

    Raises:
        ConfigurationError: they are more than this hospital allows, or of other tensors than offered.
    """
    if problems := excesses(policy, required):
        raise ConfigurationError(problems)
    if required.sharing != offered:
        ours, theirs = (dict(_leaves(sharing.model_dump())) for sharing in (required.sharing, offered))
        differing = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
        where = f", first in {differing[0]}" if differing else ""
        remedy = "see which of the two is older, this dropfed or the aggregator's program, and update it"
        raise ConfigurationError([f"the offered tensors are not those of this software's model{where}: {remedy}"])
    return required


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Yield what is not a mapping itself, by its keys with dots between them."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


class Trains(Question[AnswerT]):
    """A question that is answered with a run's trainer and this site's images."""

    work: Path
    site: SiteConfiguration
    run: RunConfiguration
    sharing: Sharing
    members: Members

    def opened(self) -> tuple[Trainer, Dataset]:
        """Return the trainer, and the images in the sets of the run."""
        computing = computing_of(self.site)
        prepare_compute(computing, self.site.threads)
        trainer = trainer_at(self.work, self.site, self.run, self.sharing)
        return trainer, trainer.open_dataset(self.members)


class CountsOf(Trains[Counts]):
    """How many images has each set of a run?"""

    def answer(self, on_progress: Progress) -> Counts:
        return Counts.of(self.opened()[1])


class Train(Trains[Worked]):
    """Work a round through; the answer is what it came to."""

    loaded_late = ("torch._dynamo",)  # by optimizers, at their first step

    round: RoundConfiguration
    files: Files

    def answer(self, on_progress: Progress) -> Worked:
        trainer, dataset = self.opened()
        return trainer.work(dataset, self.round, self.files, on_progress)


def trainer_at(work: Path, site: SiteConfiguration, run: RunConfiguration, listed: Sharing) -> Trainer:
    """Return a site's trainer for a run.

    Raises:
        ActionRequiredError: the site has no images for the run's task.
    """
    ood = site.out_of_distribution.get(run.task)
    return Trainer(
        run,
        listed,
        work / _folder_of(site, run.task),
        site.policy,
        computing_of(site),
        store.noise_path(work, run.run),
        work / ood if ood else None,
    )


def _folder_of(site: SiteConfiguration, task: str) -> str:
    folder = site.data.get(task)
    if folder is None:
        raise ActionRequiredError(f"{FILE}: data: names no folder for {task}; add `data: {{{task}: DIR}}`")
    return folder


def _of_epoch(on_progress: OnProgress, number: int, count: int) -> OnBatch:
    """Return the progress callback of one epoch, which reports to the callback of all of them.

    Args:
        number: of the epoch, from 1.
        count: how many epochs there are.
    """
    return lambda done, total: on_progress(int(100 * (number - 1 + done / total) / count))


def _halves(on_progress: OnProgress) -> tuple[OnProgress, OnProgress]:
    """Return the progress callbacks of two trainings, one after the other, which report to the callback of both."""
    return (lambda percent: on_progress(percent // 2)), (lambda percent: on_progress(50 + percent // 2))


def _let_move(network: nn.Module, moving: Sequence[nn.Parameter]) -> None:
    """Have the next epoch move these parameters alone: what has no gradient is moved by no momentum either."""
    chosen = set(moving)
    for parameter in network.parameters():
        parameter.requires_grad_(parameter in chosen)
        parameter.grad = None
