"""The aggregator's half of a method, on the files of a run: weights, the next global model, and what goes with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from shared.errors import ActionRequiredError, RejectedError
from shared.escaping import escape
from shared.exchange.names import MessageRef, state_file
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.wire import FileEntry
from shared.exchange.weights import LARGEST, TensorFile, magnitude_of, write_tensors, write_zeros
from shared.folder.durable import link_file
from shared.learning.combinations import open_rule
from shared.learning.combine import Combined, Weighed, distances, implausible
from shared.learning.methods.contract import MODEL, Contribution, Groups, Method
from shared.learning.model_files import save_tensors
from shared.learning.run_files import RunFiles
from shared.learning.schedules import round_configuration


@dataclass(frozen=True)
class Update:
    """What a site sent in answer to a round, in the plain form.

    Args:
        files: by group, in the plain form; ``MODEL`` too, but in the closing round.
        images: the site's training images.
        theta: the site's θ in (0, 1], where the method has it sent.
    """

    files: Mapping[str, Path]
    images: int
    theta: float | None = None

    def read(self, group: str) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Return a group of its tensors, by name."""
        file = TensorFile(self.files[group])
        return {name: file.tensor(name).astype(np.float64) for name in file.names}

    def contribution(self) -> Contribution:
        """Return what a method is told of it."""
        return Contribution(self.images, self.theta, self.read)


class Aggregation:
    """Works on a run that was begun.

    Args:
        store: where its files lie.
        groups: the tensors that the method has beside the model's.
    """

    def __init__(self, store: RunFiles, method: Method, groups: Groups) -> None:
        self._store = store
        self._method = method
        self._run = store.configuration()
        self._sharing = store.sharing()
        self._rule = open_rule(self._run.combination)
        self._made = {**groups.to_site, **groups.at_aggregator}

    def begin(self, network: nn.Module) -> None:
        """Write what a run begins with: what sites begin with and keep, zeros beside the model, and the model last."""
        if self._sharing.start:
            save_tensors(network, self._sharing.beginning, self._store.start)
        for group, listed in self._made.items():
            write_zeros(self._store.state_path(0, group), listed)
        save_tensors(network, self._sharing.shared, self._store.aggregate_path(0))

    def weights(self, accepted: Mapping[str, Update]) -> dict[str, float]:
        """Return each accepted site's weight in the aggregate: 0 for those that the run's rule leaves out.

        Raises:
            ActionRequiredError: the method gave weights that are none.
        """
        # 1. Of fewer models than the rule needs none counts (protocol 7.5).
        if len(accepted) < self._rule.fewest:
            return dict.fromkeys(accepted, 0.0)
        # 2. The rule chooses whose models count: all, or under Krum those that lie closest to the others.
        apart = {}
        if self._rule.measures_distances:
            brought = {group: TensorList(tensors=listed) for group, listed in self._sharing.trained.items()}
            files = {site: update.files for site, update in accepted.items()}
            apart = distances(files, {MODEL: self._sharing.shared, **brought})
        chosen = self._rule.choose(sorted(accepted), apart)
        # 3. Those weigh what the method says (protocol 7.2), or 1 / |S| under a rule that does not listen to the sites.
        if self._rule.weighs:
            weights = self._method.weights({site: accepted[site].contribution() for site in chosen})
            _require_weights(self._run.method, weights, chosen)
        else:
            weights = dict.fromkeys(chosen, 1 / len(chosen))
        return {site: weights.get(site, 0.0) for site in accepted}

    def why_left_out(self, accepted: int) -> str:
        """Return why an accepted site's weight is 0, where so many were accepted."""
        rule, fewest = self._run.combination.rule, self._rule.fewest
        if accepted < fewest:
            return f"{rule} needs {fewest} models and only {accepted} passed: the global model stays as it was"
        return f"{self._run.method} with {rule} left the model out"

    def aggregate(
        self, round_no: int, accepted: Mapping[str, Update], weights: Mapping[str, float]
    ) -> dict[Path, FileEntry]:
        """Make the next global model: what goes with it first, itself last.

        Args:
            weights: of the accepted sites, > 0, summing to 1.

        Returns:
            What a manifest says of each model that was made.

        Raises:
            OverflowError: something of it would not be finite; ``leave`` has the round end as it began.
        """
        # 1. What goes with the model, such as control variates, is made of the same answers (protocol 7.3).
        store = self._store
        targets = {MODEL: store.aggregate_path(round_no)}
        for group in self._made:
            targets[group] = store.state_path(round_no, group)
        # 2. A site's own model, with FedAP, is another sum of the same answers, by that site's row of weights.
        entries: dict[Path, FileEntry] = {}
        for site, row in self._rows(round_no, accepted).items():
            own = store.own_aggregate_path(round_no, site)
            entries[own] = self._combination(round_no, accepted, row).write({MODEL: own})
        # 3. w = Σ a_k · x_k, or what the method and the rule make in its place (protocol 7.2, 7.3 and 7.5). The model
        #    is written last: once it is there, so is all that goes with it.
        entries[targets[MODEL]] = self._combination(round_no, accepted, weights).write(targets)
        return entries

    def try_out(self, round_no: int, accepted: Mapping[str, Update]) -> None:
        """Check that the next global model can be made of these answers; nothing is written.

        An average cannot lead out of where the answers lie; only what a method adds to it can.

        Raises:
            OverflowError: something of it would be too great to be sent, or not finite.
        """
        weights = {site: weight for site, weight in self.weights(accepted).items() if weight > 0}
        if not weights:
            return
        counted = {site: accepted[site] for site in weights}
        self._rows(round_no, counted)
        if type(self._method).combine is not Method.combine:
            self._combination(round_no, counted, weights).try_out()

    def _rows(self, round_no: int, accepted: Mapping[str, Update]) -> dict[str, dict[str, float]]:
        rows = self._method.rows(round_no, {site: update.contribution() for site, update in accepted.items()})
        for row in rows.values():
            _require_weights(self._method.name, row, [site for site in row if site in accepted], "rows")
        return rows

    def _combination(self, round_no: int, accepted: Mapping[str, Update], weights: Mapping[str, float]) -> Combined:
        files = {site: update.files for site, update in accepted.items()}
        return Combined(
            self._method,
            {MODEL: self._sharing.shared, **self._made},
            before=self._before(round_no, self._store.aggregate_path(round_no - 1)),
            updates=Weighed(files, weights, agreed=self._store.agreed(round_no)),
            buffers=frozenset(self._sharing.buffers),
            rule=self._rule,
            numbers=self._run.wire.numbers,
            travel=frozenset({MODEL, *self._sharing.to_site}),
        )

    def _before(self, round_no: int, aggregate: Path) -> dict[str, Path]:
        """Return each group as a round began with it."""
        return {MODEL: aggregate, **{group: self._store.state_path(round_no - 1, group) for group in self._made}}

    def can_compare(self, round_no: int, site: str) -> bool:
        """Return whether what a site received in a round is here, where its answer is compared with that."""
        before = self._before(round_no, self._store.aggregate_for(round_no - 1, site))
        is_here = all(before[group].exists() for group in (MODEL, *self._sharing.to_site))
        return is_here or type(self._method).implausible is Method.implausible

    def require_plausible(self, ref: MessageRef, site: str, files: Mapping[str, Path], images: int) -> None:
        """Check that what a site sent beside its trained model can follow from that model.

        Args:
            ref: of the update.
            files: by group, in the plain form, checked.
            images: on how many the site has said that it trains.

        Raises:
            RejectedError: it cannot.
        """
        found = implausible(
            self._method,
            self._sharing.parameters,
            before=self._before(ref.round_no, self._store.aggregate_for(ref.round_no - 1, site)),
            sent=files,
            rate=round_configuration(self._run, ref.round_no, site).learning_rate,
            images=images,
            numbers=self._run.wire.numbers,
        )
        if found is not None:
            group, name = found
            what = f"{name} holds numbers that cannot follow from how far training has moved the model"
            raise RejectedError(f"{ref.path}/{state_file(group)}", what)

    def leave(self, round_no: int) -> None:
        """Have a round whose answers all were left out end as it began."""
        leave(self._store, self._run.sites, self._made, round_no)

    def settle(self, round_no: int, sound: Mapping[str, Update]) -> None:
        """Make what goes with the aggregate that a round's answers were measured with.

        Raises:
            OverflowError: something of it would be too great to be sent, or not finite.
        """
        if not self._sharing.with_final or not sound:
            return
        settled = self._method.settle({site: update.contribution() for site, update in sound.items()})
        for group, tensors in settled.items():
            for name, tensor in tensors.items():
                if not magnitude_of(tensor) <= LARGEST:
                    raise OverflowError(f"{name} of {group} would hold NaN, or what is too great to be sent")
            path = self._store.settled_path(round_no, group)
            listed = TensorList(tensors=self._sharing.with_final[group])
            write_tensors(path, listed, lambda name, tensors=tensors: tensors[name].astype(np.float32))  # type: ignore[misc]

    def choose(self, chosen: int) -> None:
        """Put the chosen aggregate in place, with what goes with it."""
        choose(self._store, self._sharing, chosen)


def leave(store: RunFiles, sites: Iterable[str], made: Iterable[str], round_no: int) -> None:
    """Have a round end as it began.

    Args:
        made: the groups that the aggregator has beside the model.
    """
    for group in made:
        link_file(store.state_path(round_no - 1, group), store.state_path(round_no, group))
    for site in sites:
        if (own := store.own_aggregate_path(round_no - 1, site)).exists():
            link_file(own, store.own_aggregate_path(round_no, site))
    link_file(store.aggregate_path(round_no - 1), store.aggregate_path(round_no))


def choose(store: RunFiles, sharing: Sharing, chosen: int) -> None:
    """Put the chosen aggregate in place, with what goes with it: zeros where nobody has measured it."""
    link_file(store.aggregate_path(chosen), store.final_model)
    for group, listed in sharing.with_final.items():
        if not (settled := store.settled_path(chosen + 1, group)).exists():
            write_zeros(settled, TensorList(tensors=listed))


def _require_weights(method: str, weights: Mapping[str, float], chosen: Sequence[str], hook: str = "weights") -> None:
    """Check that a method returned valid weights.

    Raises:
        ActionRequiredError: they are not those of the chosen sites, each in [0, 1], summing to 1.
    """
    values = list(weights.values())
    if set(weights) == set(chosen) and all(0 <= value <= 1 for value in values) and abs(math.fsum(values) - 1) <= 1e-6:
        return
    told = escape(", ".join(f"{site} {value}" for site, value in sorted(weights.items())) or "none")
    raise ActionRequiredError(
        f"method: {method} gave the weights {told}; correct {hook}() in its file: one of each accepted site, "
        "from 0 to 1, in all 1"
    )
