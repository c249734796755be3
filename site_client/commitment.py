"""What a yes commits this site to: which of its images a run uses, and what it may take of them.

All of it is settled, and on the disk, before the yes is signed, and each round finds it there. When the run is over,
what it did not take is given back, where that is safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.order import consent_of, ending_of
from shared.exchange.reading import check_record
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import decimal_text
from shared.learning.data.division import Block, deal
from shared.learning.data.sets import Members, SetName, images_in, sets_of
from shared.learning.data.splits import SPLITS, SplitName, SplitPlan
from shared.learning.privacy import epsilon, mechanism
from shared.learning.private_gradients import Secret
from shared.learning.requirements import Requirements, requirements, rows_bound
from shared.learning.seeds import split_seed
from shared.learning.tasks import words_of
from shared.plurals import pluralize
from site_client import store
from site_client.configuration import Policy, SiteConfiguration
from site_client.disclosure import Counts
from site_client.division import BUDGET, Agreed, Budget, Kept, Spending, budget_here, keep, kept, renew
from site_client.folders import Found, all_units, are_ungrouped, count_used, find, is_dealt, units_in
from site_client.policy import excesses, labels_named_by
from site_client.train import requirements_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settled:
    """What a yes to a run would commit to, as far as that is known before an image is read.

    Args:
        task: the run's.
        before: what is kept, once what the runs that are over did not take is given back.
        blocks: with those that would be dealt for it.
        sets: the blocks of each set of the run.
        labels: what the run calls the classes; None: as the site does.
        rows: of scores over each set, at most.
        required: what the run demands.
    """

    task: str
    before: Kept
    blocks: list[Block]
    found: Found
    sets: dict[SetName, tuple[int, ...]]
    labels: tuple[str, ...] | None
    rows: dict[SetName, int]
    required: Requirements

    def images(self, name: SplitName) -> int:
        """Return how many images of a set the run uses: of the blocks of which it reads all."""
        return count_used([self.found.own.blocks[number] for number in self.sets[name]], self.labels)

    @property
    def memory_bytes(self) -> int:
        """About what the run takes here, with all of its images in memory; not recordings, before they are read."""
        if words_of(self.task).cuts:
            return self.required.memory_bytes
        foreign = images_in(self.sets["foreign"], self.found.ood.blocks) if self.found.ood is not None else 0
        images = foreign + sum(self.images(name) for name in SPLITS)
        return self.required.memory_bytes + images * self.required.image_bytes

    @property
    def are_ungrouped(self) -> bool:
        """Whether nobody has said whose each image is, and a yes would have them dealt so."""
        units = [unit for found in self.found.own.blocks.values() for unit in found]
        return are_ungrouped(units) and not is_dealt(self.task, self.before.division.blocks)

    def require_allowed(self, run: str, policy: Policy) -> None:
        """Check that the hospital's policy allows these images.

        Raises:
            ConfigurationError: it does not.
        """
        # Other classes than the run's count here: only reading tells whether they are left out, or a table's mistakes.
        _require_images(images_in(self.sets["train"], self.found.own.blocks), policy)
        if self.memory_bytes > policy.max_memory_gb * 1e9:
            most = f"{policy.max_memory_gb:g} GB of memory"
            raise ConfigurationError([f"training and all images at once would take more than this hospital's {most}"])
        _require_rows(self.before.budget, run, {name: (self.sets[name], self.rows[name]) for name in self.sets}, policy)


def settle(
    work: Path, ledger: Mirror, site: SiteConfiguration, run: RunConfiguration, required: Requirements
) -> Settled:
    """Return which images a run would use. Nothing is written; the files' bytes are hashed, and no pixel is looked at.

    Raises:
        DataError: the folders cannot be read, or do not make the run's sets.
        ActionRequiredError: what is kept of earlier runs is missing or old.
    """
    before = _after_those_over(work, ledger, run.run)
    here, least = all_units(work, site), site.policy.minimum_count
    blocks = deal(before.division.blocks, here, least, before.division.key)
    found = find(run.task, here, blocks, least, before.division.key)
    sets = sets_of(found.own.blocks, check_record(run.split, SplitPlan, "split"), split_seed(run.seed, site.site))
    if found.ood is not None:
        sets["foreign"] = tuple(found.ood.blocks)
    return Settled(run.task, before, blocks, found, sets, labels_named_by(run), _rows(required.most_rows), required)


def commit(
    work: Path,
    ledger: Mirror,
    site: SiteConfiguration,
    run: RunConfiguration,
    required: Requirements,
    *,
    count: Callable[[Members], Counts],
) -> Counts:
    """Settle which images a run uses, and reserve what it may take of them. Done twice, it comes to the same.

    Args:
        count: reads the images of these units, in the run's sets.

    Raises:
        ConfigurationError: the run asks for more than this hospital allows.
        DataError: its images cannot be read, or do not make the run's sets.
        ActionRequiredError: what it kept of earlier runs is missing or old, or this run may have been answered before.
    """
    policy = site.policy
    _release_those_over(work, ledger, run.run)
    _require_unanswered(work, kept(work, agreed_runs(ledger)).budget, run)
    settled = settle(work, ledger, site, run, required)
    before, sets = settled.before, settled.sets
    settled.require_allowed(run.run, policy)  # what can be known without reading an image is asked first
    images = count(settled.found.members(sets))
    _require_images(images.train, policy)
    if problems := excesses(policy, required, images.repeats):
        raise ConfigurationError(problems)
    spending = _spending(run, required, images.train)
    if spending is not None:
        _require_privacy(before.budget, run.run, spending, policy)
        # The secret of a run's noise is made here and nowhere else. If it is lost, no round is answered any more: other
        # noise over the same sums would show, together with the first, what they are.
        Secret.made_at(store.noise_path(work, run.run))
    agreed = Agreed(sets={name: list(numbers) for name, numbers in sets.items()}, rows=settled.rows, private=spending)
    division = before.division.model_copy(update={"blocks": settled.blocks})
    keep(work, Kept(division, before.budget.with_run(run.run, agreed)))
    for sentence in settled.found.told():
        logger.info("run %s: %s", run.run, sentence)
    return images


def committed(work: Path, ledger: Mirror, site: SiteConfiguration, run: RunConfiguration) -> Members:
    """Return the units of each set of a run that this site agreed to, as far as their blocks are whole now.

    Raises:
        DataError: the images cannot be read.
        ActionRequiredError: too little of what was agreed to is left, or it was of an earlier division.
    """
    found = kept(work, agreed_runs(ledger))
    agreed = found.budget.runs.get(run.run)
    if agreed is None or agreed.sets is None:
        raise ActionRequiredError(
            f"run {run.run} was agreed to with an earlier division of the images, and is not answered with this one: "
            "withdraw from it"
        )
    units = units_in(work, site, [run.task])
    here = find(run.task, units, found.division.blocks, site.policy.minimum_count, found.division.key)
    lost = sum(number not in here.own.blocks for name in SPLITS for number in agreed.sets[name])
    if lost:
        what = pluralize(lost, "block of images", "blocks of images")
        logger.warning("run %s goes on without %s, in which one is lost or changed", run.run, what)
    members = here.members(agreed.sets)
    whole = [here.own.blocks[number] for number in agreed.sets["train"] if number in here.own.blocks]
    enough = count_used(whole, labels_named_by(run)) >= site.policy.minimum_training_images
    if not (enough and members["validation"] and members["test"]):
        raise ActionRequiredError(
            f"run {run.run}: too few of the blocks of images that it uses are whole: put back what was lost or changed "
            "since this site agreed, or withdraw from the run"
        )
    return members


def release(work: Path, ledger: Mirror, run: str) -> None:
    """Give back what a run that is over did not take, and forget the secret of its noise: who had it and the models
    could take the noise off.
    """
    try:
        found = kept(work, agreed_runs(ledger))
        budget = _without_rest(work, ledger, found.budget, run)
        if budget != found.budget:
            keep(work, Kept(found.division, budget))
    except ActionRequiredError as error:
        logger.warning("run %s: what it did not take is not given back: %s", run, error)
    store.noise_path(work, run).unlink(missing_ok=True)


def agreed_runs(ledger: Mirror) -> list[str]:
    """Return the runs that this site has agreed to, by its own messages."""
    runs = [message.ref.run for message in ledger.own_messages() if message.ref.kind == "consent"]
    return [run for run in runs if (consent := consent_of(ledger, run)) is not None and consent.agrees]


def is_nothing_lost(work: Path, ledger: Mirror) -> bool:
    """Return whether the images are divided here as this site last agreed to."""
    try:
        return bool(kept(work, agreed_runs(ledger)).division.blocks) and not store.is_restored(work)
    except ActionRequiredError:
        return False


def divide_anew(work: Path, ledger: Mirror, site: SiteConfiguration) -> None:
    """Begin a new division, as a person wants it. A run of which no budget is left counts with all it may have taken.

    Raises:
        ActionRequiredError: what such a run offered is not here.
    """
    budget = budget_here(work)
    known = budget.runs if budget is not None else {}
    renew(work, {**known, **{run: _worst_case(ledger, site, run) for run in agreed_runs(ledger) if run not in known}})
    store.accept_restored(work)


def _worst_case(ledger: Mirror, site: SiteConfiguration, run: str) -> Agreed:
    """Return all that a run may have taken. Plug-ins are not asked, for they may be gone; no private run has any."""
    configuration, _ = store.offer(ledger, run)
    if configuration.plugins:
        most = rows_bound(configuration, max(configuration.epochs, site.policy.max_epochs))
        return Agreed(sets=None, rows={"foreign": most, **dict.fromkeys(SPLITS, most)})
    consent, required = consent_of(ledger, run), requirements_of(site, configuration)
    spending = _spending(configuration, required, consent.training_images) if consent is not None else None
    return Agreed(sets=None, rows=_rows(required.most_rows), private=spending)


# --- what is asked of a run ------------------------------------------------------------------------------------


def _require_unanswered(work: Path, budget: Budget, run: RunConfiguration) -> None:
    """Raise if this run may have been answered before, whatever the folder holds of that: others can remove it there.

    What a yes that was cut off before it was signed has left is open, of this division, and has its secret beside it.
    """
    agreed = budget.runs.get(run.run)
    if agreed is not None:
        has_noise = agreed.private is None or store.noise_path(work, run.run).exists()
        if agreed.is_over or agreed.sets is None or not has_noise or store.is_restored(work):
            raise ActionRequiredError(
                f"run {run.run} was agreed to before, by {BUDGET}, and that yes is not in the folder any more: a "
                "second answer would give away what the first has hidden, so decline it"
            )
    elif run.privacy is not None and store.is_restored(work):
        raise ActionRequiredError(
            f"run {run.run} is private, and this site lost its disk: only a person knows whether {BUDGET} is the "
            "newest, for what the folder holds others can remove; decline the run, or see what "
            f"`dropfed-site accept-division --work {quoted(work)}` would mean"
        )


def _require_images(images: int, policy: Policy) -> None:
    least = policy.minimum_training_images
    if images < least:
        raise ConfigurationError([f"it would train on fewer images than this hospital's minimum of {least}"])


def _require_rows(budget: Budget, run: str, asked: dict[SetName, tuple[tuple[int, ...], int]], policy: Policy) -> None:
    """Raise unless what is left of the rows over each set suffices."""
    for name, (blocks, rows) in asked.items():
        left = policy.rows_per_set - budget.rows_of(blocks, but=run)
        if rows > left:
            raise ConfigurationError(
                [f"{rows:,} rows of scores over its {name} set are more than the {max(left, 0):,} that are left here"]
            )


def _require_privacy(budget: Budget, run: str, spending: Spending, policy: Policy) -> None:
    total = epsilon([*budget.spent(but=run), spending.as_spent()], policy.total_delta)
    if total > policy.total_epsilon:
        raise ConfigurationError(
            [
                f"with the private runs before it, it comes to ε = {total:.2f} at δ = {policy.total_delta:g}, more "
                f"than this hospital's {policy.total_epsilon:g}"
            ]
        )


def _spending(run: RunConfiguration, required: Requirements, images: int) -> Spending | None:
    """Return what a run spends of the privacy of so many training images; None if it is not private.

    Raises:
        ConfigurationError: they are too few, or no noise keeps so small an ε.
    """
    if run.privacy is None:
        return None
    epochs = required.epochs * run.rounds
    spent = mechanism(run.privacy, images=images, batch_size=run.batch_size, epochs=epochs).spent(epochs)
    return Spending(
        noise_multiplier=decimal_text(spent.noise_multiplier),
        sampling_rate=decimal_text(spent.sampling_rate),
        steps=spent.steps,
    )


def _rows(of_sets: dict[SplitName, int]) -> dict[SetName, int]:
    """Return the rows by set; out-of-distribution images are looked at whenever the test set is."""
    rows: dict[SetName, int] = {"foreign": of_sets["test"]}
    return rows | {name: of_sets[name] for name in SPLITS}


# --- what is given back ----------------------------------------------------------------------------------------


def _after_those_over(work: Path, ledger: Mirror, run: str) -> Kept:
    """Return what is kept once all other runs that are over have given back what they did not take.

    A run that this site has agreed to and that is not over, because it goes on or waits for its turn, counts with all
    that it may take. So whatever is agreed to meanwhile, together they never take more than the policy has.

    Raises:
        ActionRequiredError: as ``kept``.
    """
    found = kept(work, agreed_runs(ledger))
    budget = found.budget
    for other in _over_besides(ledger, budget, run):
        budget = _without_rest(work, ledger, budget, other)
    return Kept(found.division, budget)


def _release_those_over(work: Path, ledger: Mirror, run: str) -> None:
    for other in _over_besides(ledger, kept(work, agreed_runs(ledger)).budget, run):
        release(work, ledger, other)


def _over_besides(ledger: Mirror, budget: Budget, run: str) -> list[str]:
    """Return the runs that are over here, of which the budget does not say so yet."""
    open_here = [other for other, agreed in budget.runs.items() if other != run and not agreed.is_over]
    return [other for other in open_here if ending_of(ledger, other) is not None]


def _without_rest(work: Path, ledger: Mirror, budget: Budget, run: str) -> Budget:
    """Return the budget in which a run that is over has what its answers took.

    An answer that is signed counts as sent. A run with plug-ins gives no rows back: only they tell what a round took,
    and they may be gone. A private run gives nothing back if the secret of its noise is gone: then a disk was lost
    since this site agreed, and with it, perhaps, an answer that had left in part.
    """
    agreed = budget.runs.get(run)
    if agreed is None or agreed.is_over or (agreed.private and not store.noise_path(work, run).exists()):
        return budget
    if ledger.message(MessageRef("consent", run)) is None:
        return budget
    configuration, _ = store.offer(ledger, run)
    answers = [ledger.message(MessageRef("update", run, number)) for number in range(1, configuration.rounds + 2)]
    trained = sum(answer is not None and names.SITE_MODEL in answer.manifest.files for answer in answers)
    validated = sum(answer is not None for answer in answers) - trained
    spending = agreed.private
    if spending is not None:
        steps = spending.steps // configuration.rounds * trained  # each round takes as many
        spending = spending.model_copy(update={"steps": steps})
    rows = agreed.rows if configuration.plugins else _rows(requirements(configuration).rows(trained, validated))
    return budget.with_run(run, Agreed(sets=agreed.sets, rows=rows, private=spending, is_over=True))
