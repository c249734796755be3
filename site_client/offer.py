"""An offer in words: what a run asks of this site, what would leave it and what would stay."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shared.errors import ActionRequiredError, ConfigurationError, DataError, DropfedError, RejectedError
from shared.escaping import escape, quoted
from shared.exchange import names
from shared.exchange.encoding import most_bytes, tensor_bytes
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef, is_name
from shared.exchange.order import Ending, consent_of, ending_of
from shared.exchange.records.run import Range, RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.exchange.records.wire import PLAIN, Wire
from shared.learning.data.splits import SPLITS
from shared.learning.methods import method_names, open_terms
from shared.learning.models.options import published_weights
from shared.learning.tasks import Words, words_of
from shared.plurals import pluralize
from shared.sizes import size_text
from site_client import store
from site_client.configuration import FILE, SiteConfiguration, configuration_in_force, require_here
from site_client.division import DIVISION, budget_here, division_here
from site_client.machine import memory_bytes
from site_client.policy import judge, other_truth
from site_client.programs import own_places, program_for, told
from site_client.rotation import read_ledger

if TYPE_CHECKING:
    from shared.learning.requirements import Requirements
    from site_client.commitment import Settled

_READABLE = {
    "none": "everything; nothing is encrypted (encrypt: none)",
    "weights": "manifests, tables and settings; weights are encrypted (encrypt: weights)",
    "all": "manifests alone: names, sizes and times; all else is encrypted (encrypt: all)",
}
"""What whoever runs the server of the folder learns of a run."""

_SOME_INPUTS = 1000  # for which steps are told, where it is not known how many there are

Standing = Literal["offered", "agreed"] | Ending


def offer_folder(work: Path, run: str) -> Path:
    """Return where an accepted offer lies.

    Raises:
        ConfigurationError: there is no such directory, or no such run was offered here.
    """
    require_here(work)
    ref = work / names.MIRROR / MessageRef("offer", run).path
    if not is_name(run) or not (ref / names.MANIFEST).exists():
        offered = sorted(
            path.parent.parent.name for path in (work / names.MIRROR / names.RUNS).glob(f"*/offer/{names.MANIFEST}")
        )
        if not offered:
            remedy = (
                f"the daemon fetches what is offered: `dropfed-site status --work {quoted(work)}` says whether it runs"
            )
            raise ConfigurationError([f"{run}: no such run was offered to {work}, nor any other yet; {remedy}"])
        waiting = [other for other in offered if standing(work, other) == "offered"]
        none = "none waits for an answer; of one that was launched just now the daemon learns at its next look"
        told = f"waiting for an answer: {', '.join(waiting)}" if waiting else none
        here = f"the runs here are {', '.join(offered)}"
        raise ConfigurationError([f"{run}: no such run was offered to {work}; {here}; {told}"])
    return ref


def read_offer(work: Path, run: str) -> tuple[RunConfiguration, Sharing]:
    """Return what was offered, as the daemon reads it.

    Raises:
        ConfigurationError: no such run was offered here, or what was does not hold.
        ActionRequiredError: it is not as it was accepted, or not here any more.
    """
    offer_folder(work, run)
    try:
        return store.offer(read_ledger(work), run)
    except RejectedError as error:
        undecidable = "nothing of it can be decided; tell the aggregator's people, who can abort the run"
        remedy = why_over(work, run) or undecidable
        raise ConfigurationError([f"{run}: {error}: {remedy}"]) from None


def newest_offer(work: Path) -> tuple[RunConfiguration, Sharing] | None:
    """Return the run that was offered last; None if there is none that can be read."""
    try:
        ledger = read_ledger(work)
        offers = store.offers(ledger)
        return store.offer(ledger, offers[-1].ref.run) if offers else None
    except (DropfedError, OSError):  # what is wrong is told by those who need it
        return None


def standing(work: Path, run: str) -> Standing:
    """Return how far this site is with a run, by the messages in its work directory.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    offer_folder(work, run)
    ledger = read_ledger(work)
    if (ended := ending_of(ledger, run)) is not None:
        return ended
    return "agreed" if consent_of(ledger, run) else "offered"


def why_over(work: Path, run: str) -> str | None:
    """Return what to tell a person of a run that is over for this site, as a clause; None while it goes on.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    now = standing(work, run)
    if now == "aborted":
        return f"it was aborted: {store.why_aborted(read_ledger(work), run)}"
    said = {
        "declined": "this site has declined it already",
        "withdrawn": "this site has withdrawn from it already, for good",
        "finished": "it is over, and its final model is here",
    }
    return said.get(now)


def why_refused(work: Path, run: str) -> str | None:
    """Return why the daemon would decline a run although a person agrees to it, or None.

    It is None too if only reading the images would show the reason, or if the settings cannot be read now.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    offer_folder(work, run)
    ledger = read_ledger(work)
    try:
        site, (configuration, sharing) = configuration_in_force(work), store.offer(ledger, run)
    except (ConfigurationError, ActionRequiredError, RejectedError):
        return None
    _, refusals = _weighed(work, ledger, site, configuration, sharing)
    return "; ".join(refusals) or None


def _weighed(
    work: Path, ledger: Mirror, site: SiteConfiguration, run: RunConfiguration, listed: Sharing
) -> tuple[Settled | str, list[str]]:
    """Return which images a run would use here, or why that cannot be told; and why the daemon would decline the run.

    The daemon decides by the same function. Unfit images are no reason to decline: it waits until they are mended.
    """
    from site_client.commitment import settle  # noqa: PLC0415  (PyTorch)
    from site_client.train import check_offer  # noqa: PLC0415  (PyTorch)

    judgement = judge(site.policy, run, decision=True, site=site.site, places=own_places(work, site))
    refusals = [judgement.reason] if judgement.answer == "no" else []
    settled: Settled | str = ""
    try:
        required = check_offer(site, run, listed)
        settled = settle(work, ledger, site, run, required)
        settled.require_allowed(run.run, site.policy)
    except ConfigurationError as error:
        return settled, list(dict.fromkeys([*refusals, *error.problems]))
    except (DataError, ActionRequiredError, OSError) as error:  # who decides may perhaps not read the images
        return " ".join(str(error).splitlines()), refusals
    return settled, refusals


def describe(work: Path, run: str) -> str:
    """Return several lines about a run for a person who has to decide.

    Raises:
        ConfigurationError, ActionRequiredError: as for ``read_offer``.
    """
    configuration, sharing = read_offer(work, run)
    required = _required_of(work, configuration)
    sends = [names.METRICS, *_reliability(configuration, required)]
    over = why_over(work, run)
    lines = [
        *([f"run {run} is not to be decided any more: {over}"] if over else []),
        f"run {run}: {configuration.task} by {configuration.method}, {pluralize(configuration.rounds, 'round')} of "
        f"{pluralize(configuration.epochs, 'local epoch')}, with {', '.join(configuration.sites)}"
        f"{f', {configuration.sites_per_round} of them in each' if configuration.sites_per_round else ''}",
        f"leaves with a yes:  {names.CONSENT}, with how many images each set has",
        *_crosses(configuration, sharing, sends),
    ]
    if configuration.support:
        lines.append(
            f"beside the scores:  in {names.METRICS} how many images are of each class, where images have one, and the "
            "main score's standard error, each only if it covers enough images and patients (support: true)"
        )
    if configuration.wire != PLAIN:
        lines.append(f"both travel as:     {configuration.wire}")
    lines.append(f"server can read:    {_READABLE[configuration.encrypt]}")
    for way, groups in (
        ("leaves each round:", sharing.groups("update")),
        ("comes each round:", sharing.groups("round")),
        ("comes at the end:", sharing.groups("final")),
    ):
        lines += [f"{way:<19} {names.state_file(group)}, {_size(listed)}" for group, listed in groups.items()]
    if (privacy := configuration.privacy) is not None:
        promise = (
            f"ε at most {privacy.target_epsilon:g}"
            if privacy.target_epsilon is not None
            else f"noise multiplier {privacy.noise_multiplier:g}"
        )
        lines.append(f"private:            {promise}, δ {privacy.delta:g}, for each training image, in the whole run")
    if configuration.baseline is not None:
        lines.append(
            "trains alone too:   a model on this site's images only, as long as the shared one (baseline: local); it "
            f"never leaves, and its scores leave in {names.METRICS}"
        )
    if configuration.paired:
        lines.append(
            "compares:           each model with the one that training began with, on this site's test images; the "
            f"difference of the main score and its standard error leave in {names.METRICS}"
        )
    if (difference := other_truth(configuration, store.answered(read_ledger(work)))) is not None:
        lines.append(f"other truths:       {difference}; scores of both tell of the images whose class differs")
    lines += _plugins(configuration)
    lines += _trainer(work, configuration)
    lines += _required(work, configuration, sharing, required, is_open=standing(work, run) == "offered")
    lines += _origins(work, configuration)
    compressed = ", before compression" if configuration.wire.compression != "none" else ""
    lines.append(
        f"takes in folder:    up to {size_text(most_bytes(configuration, sharing))} at a time{compressed} "
        f"(keep: {configuration.keep})"
    )
    if offered := sharing.offered.tensors:
        lines.append(f"comes once, stays:  {names.START}, {_size(offered)}")
    if sharing.personal:
        lines.append(f"never leaves:       {pluralize(len(sharing.personal), 'tensor')}: {', '.join(sharing.personal)}")
    lines.append("never leaves:       images, labels, names, paths, or which image a number is of")
    lines.append(f"every tensor and every setting: {offer_folder(work, run)}")
    return "\n".join(lines)


def _crosses(run: RunConfiguration, sharing: Sharing, tables: list[str]) -> list[str]:
    """Return what leaves in each round and what comes, of model and tables."""
    model, tells = _size(sharing.tensors, run.wire), ", ".join(tables)
    if not run.rounds:
        return [
            f"leaves once:        {tells}; no model, for nothing is trained: one is scored on this site's images",
            f"comes once:         {names.GLOBAL_MODEL}, {model}",
        ]
    return [
        f"leaves each round:  {names.SITE_MODEL}, {model}; {tells}",
        f"comes each round:   {names.GLOBAL_MODEL}, the same tensors",
    ]


def _required_of(work: Path, run: RunConfiguration) -> Requirements | str:
    """Return what a run demands of this site; or why that cannot be told, as where its plug-in is not allowed here."""
    from site_client.train import requirements_of  # noqa: PLC0415  (PyTorch)

    try:
        return requirements_of(configuration_in_force(work), run)
    except (ConfigurationError, ActionRequiredError) as error:
        return " ".join(str(error).splitlines())


def _reliability(run: RunConfiguration, required: Requirements | str) -> list[str]:
    """Return the file that θ leaves in, if it leaves; what a plug-in's method does is known once that may run here."""
    what = "with θ: the uncertainty of one image or pixel, not which"
    if run.method in method_names():
        sends = open_terms(run.method, run.method_options).sends_reliability
    elif isinstance(required, str):
        unknown = f"whether {run.method} sends it is known once its plug-in is allowed here"
        return [f"perhaps {names.RELIABILITY} ({what}; {unknown})"]
    else:
        sends = required.theta_from is not None
    return [f"{names.RELIABILITY} ({what})"] if sends else []


def _plugins(run: RunConfiguration) -> list[str]:
    """Return which code of others a run needs here."""
    lines = [f"needs the plug-in:  {each.in_full}" for each in run.plugins]
    if run.scores:
        told = ", ".join(f"{name} ({_bounds(told)})" for name, told in run.scores.items())
        lines.append(f"its own scores:     {told}")
    return lines


def _trainer(work: Path, run: RunConfiguration) -> list[str]:
    """Return by which program this site trains, if it does so by one."""
    try:
        site = configuration_in_force(work)
    except ConfigurationError:
        return []
    name, program = run.program_at(site.site), program_for(site.policy, run, site.site)
    if name is None:
        return []
    what = f"{FILE} names none of this name" if program is None else told(program)
    return [f"trains by:          the program {name}: {what}; it alone knows how often it shows an image"]


def _bounds(told: Range) -> str:
    """Return between what a score lies."""
    ends = [f"{word} {end:g}" for word, end in (("from", told.lowest), ("to", told.highest)) if end is not None]
    return " ".join(ends) or "any number"


def _origins(work: Path, run: RunConfiguration) -> list[str]:
    """Return what training begins with, where somebody else has trained it."""
    weights, lines = run.task_options.get("weights"), []
    if isinstance(weights, dict):
        source, licence = (escape(str(weights.get(key))) for key in ("source", "licence"))
        lines.append(f"pretrained weights: {escape(str(weights.get('file')))}, from {source}; licence: {licence}")
        if weights.get("at_sites"):
            lines.append(f"needs that file:    {_own_copy(work, run)}")
    if run.start is not None:
        lines.append(f"begins with:        the model of {run.start.name}, SHA-256 {run.start.sha256}")
    return lines


def _own_copy(work: Path, run: RunConfiguration) -> str:
    """Return whether this site has the published weights that it is to take from its own copy."""
    try:
        return f"{published_weights(run.task_options).found([work / store.WEIGHTS])}, which is the one"
    except ConfigurationError as error:
        return "; ".join(error.problems)


def _required(
    work: Path, run: RunConfiguration, listed: Sharing, found: Requirements | str, *, is_open: bool
) -> list[str]:
    """Return what a run takes of this machine and of its images, beside what the hospital allows.

    Args:
        found: what it demands, or why that cannot be told.
        is_open: whether the run can still be agreed to.
    """
    if isinstance(found, str):
        return [f"what it takes:      cannot be told: {found}"]
    try:
        site = configuration_in_force(work)
        policy, division = site.policy, division_here(work)
    except (ConfigurationError, ActionRequiredError) as error:
        return [f"what it takes:      cannot be told: {' '.join(str(error).splitlines())}"]
    budget = budget_here(work)
    settled, refusals = _weighed(work, read_ledger(work), site, run, listed) if is_open else ("", [])
    blocks = [number for number, block in enumerate(division.blocks) if run.task in block.folders]
    left = policy.rows_per_set - (budget.rows_of(blocks, but=run.run) if budget else 0)
    lines = [
        f"shows each image:   up to {found.views:,} times in the whole run (at most {policy.max_views:,}), in "
        f"{pluralize(found.rounds, 'round')} (at most {policy.max_rounds:,})",
        f"trains on:          {_own_images(work, settled, policy.minimum_training_images, words_of(run.task).unit)}",
        *([] if isinstance(settled, str) else _of_images(found, settled, policy.minimum_count, words_of(run.task))),
        f"takes:              {found.parameters:,} parameters (at most {policy.max_parameters:,}), about "
        f"{_memory(found, settled, words_of(run.task))} (at most {policy.max_memory_gb:g})",
        *_beyond_machine(site, _memory_bytes(found, settled)),
        *_micro_batches(site, run, found),
        f"rows of scores:     up to {max(found.most_rows.values()):,} over one set of images; {max(left, 0):,} of "
        f"{policy.rows_per_set:,} are left for all runs together",
    ]
    if run.privacy is not None:
        from shared.learning.privacy import epsilon  # noqa: PLC0415  (Opacus)

        spent = epsilon(budget.spent(but=run.run), policy.total_delta) if budget and budget.spent(but=run.run) else 0.0
        lines.append(
            f"privacy so far:     ε {spent:.2f} of {policy.total_epsilon:g}, at δ {policy.total_delta:g}, are taken by "
            f"other private runs; of one run δ may be {policy.max_delta:g}"
        )
    if refusals:
        lines.append(f"declined:           {'; '.join(refusals)}")
    return lines


def _own_images(work: Path, settled: Settled | str, least: int, what: str) -> str:
    """Return how many images a run would use here; with a division that is not made yet groups may fall otherwise.

    Args:
        what: people call one.
    """
    required = f"{pluralize(least, what)} or more, or this site declines"
    if isinstance(settled, str):
        return f"{required}{f'; how many there are cannot be told: {settled}' if settled else ''}"
    about = "" if (work / DIVISION).exists() else "about "
    train, validation, test = (settled.images(name) for name in SPLITS)
    return (
        f"{about}{pluralize(train, what)} of this site's, validated on {validation:,} and tested on {test:,}; "
        f"{required}"
    )


def _of_images(required: Requirements, settled: Settled, least: int, words: Words) -> list[str]:
    """Return how long training takes with so many images, and what is to be known about whose they are."""
    from site_client.folders import told_ungrouped  # noqa: PLC0415  (PyTorch)

    lines = [f"trains in:          {_steps(required, settled.images('train'), words)}"]
    whose = told_ungrouped(settled.task) if settled.are_ungrouped else settled.found.told_of_few(settled.sets, least)
    return lines if whose is None else [*lines, f"whose images:       {whose}"]


def _memory(required: Requirements, settled: Settled | str, words: Words) -> str:
    """Return about how much memory a run takes here; the images count where it is known how many these are."""
    beside = f" beside the {words.unit}s" if words.cuts or isinstance(settled, str) else ""
    side = required.guessed_side
    guessed = "" if side is None else f", if images have {side} × {side} pixels, for the run does not scale them"
    return f"{_memory_bytes(required, settled) / 1e9:.1f} GB of memory{beside}{guessed}"


def _memory_bytes(required: Requirements, settled: Settled | str) -> int:
    return required.memory_bytes if isinstance(settled, str) else settled.memory_bytes


def _beyond_machine(site: SiteConfiguration, needed: int) -> list[str]:
    """Return whether training on the CPU takes more memory than this machine has; of a GPU's own nothing is told."""
    there = memory_bytes()
    if site.device != "cpu" or there is None or needed <= there:
        return []
    told = f"more memory than the {there / 1e9:.1f} GB of this machine, so training will probably fail"
    return [f"too much here:      {told}; micro_batch in {FILE} makes it less, or decline"]


def _steps(required: Requirements, images: int, words: Words) -> str:
    """Return how long training takes; how many inputs recordings give is not known before they are read."""
    inputs = _SOME_INPUTS if words.cuts else images
    steps = required.steps(inputs)
    if not steps:
        return "nothing (rounds: 0)"
    told = f"about {pluralize(steps, 'step')} in the whole run, of {required.batch_size} views each"
    if words.cuts:
        told += f", for each {pluralize(inputs, words.input)} that these {words.unit}s give: the longer, the more"
    elif required.takes_few_steps(inputs):
        told += ", which may be too few to learn from"
    alone = "; as many again for a model of this site alone, so about twice the time" if required.trains_alone else ""
    return told + alone


def _micro_batches(site: SiteConfiguration, run: RunConfiguration, required: Requirements) -> list[str]:
    """Return how this site's micro_batch divides the batches of a run, if it does."""
    by_pytorch = run.rounds and run.privacy is None and run.program_at(site.site) is None
    if site.micro_batch is None or site.micro_batch >= run.batch_size or not by_pytorch:
        return []
    most = pluralize(site.micro_batch, words_of(run.task).input)
    told = f"divided into:       micro-batches of up to {most}, as {FILE} says"
    if required.has_batch_norm:
        return [f"{told}; BatchNorm normalises by these, and {names.METRICS} tells their size"]
    return [f"{told}; its steps are the same but for rounding and dropout, and {names.METRICS} tells their size"]


def _size(tensors: Mapping[str, TensorShape], wire: Wire = PLAIN) -> str:
    numbers = sum(prod(shape.shape) for shape in tensors.values())
    weight = f"{tensor_bytes(tensors, wire) / 1e3:,.0f} kB"
    compressed = " before compression" if wire.compression != "none" else ""
    return f"{pluralize(len(tensors), 'tensor')}, {pluralize(numbers, 'number')}, {weight}{compressed}"
