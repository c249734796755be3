"""An offer in words: what a run asks of this site, what would leave it and what would stay."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Literal

from shared.counted import counted
from shared.errors import ConfigurationError, DropfedError, StandingError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, Place, is_name
from shared.exchange.order import Ending
from shared.exchange.reading import parse_yaml
from shared.exchange.records import PLAIN, RunConfiguration, Sharing, TensorShape
from shared.exchange.trust import Correspondent
from shared.folder.local import LocalFolder
from shared.folder.lock import demand_work
from shared.learning.methods import open_method
from shared.visible import typed
from site_client import store
from site_client.configuration import MADE_BY, identity, read_configuration
from site_client.division import budget_here, division_here
from site_client.facts import ending_of
from site_client.policy import excesses, judge
from site_client.rotation import own_key

_READABLE = {
    "none": "everything; nothing is encrypted (encrypt: none)",
    "weights": "manifests, tables and settings; weights are encrypted (encrypt: weights)",
    "all": "manifests alone: names, sizes and times; all else is encrypted (encrypt: all)",
}
"""What whoever runs the server of the folder learns of a run."""

Standing = Literal["offered", "agreed"] | Ending


def offer_folder(work: Path, run: str) -> Path:
    """Where an accepted offer lies.

    Raises:
        ConfigurationError: there is no such directory, or no such run was offered here.
    """
    demand_work(work, MADE_BY)
    place = work / "mirror" / Place("offer", run).path
    if not is_name(run) or not (place / names.MANIFEST).exists():
        if not any((work / "mirror" / names.RUNS).glob(f"*/offer/{names.MANIFEST}")):
            remedy = (
                f"the daemon fetches what is offered: `dropfed-site status --work {typed(work)}` says whether it runs"
            )
            raise ConfigurationError([f"{run}: no such run was offered to {work}, nor any other yet; {remedy}"])
        raise ConfigurationError([f"{run}: no such run was offered to {work}; the log names the runs that were"])
    return place


def read_channel(work: Path) -> Channel:
    """The exchange as the work directory remembers it."""
    us = identity(work)
    peer = Correspondent(us.federation, us.site, AGGREGATOR, us.aggregator_key)
    return Channel(work, LocalFolder(work / "mirror"), me=us.site, key=own_key(work), peer=peer)


def newest_offer(work: Path) -> tuple[RunConfiguration, Sharing] | None:
    """The run that was offered last; None if there is none that can be read."""
    try:
        channel = read_channel(work)
        offers = [message for message in channel.peer_messages() if message.place.kind == "offer"]
        newest = max(offers, key=lambda message: message.manifest.seq, default=None)
        return store.offer(channel, newest.place.run) if newest else None
    except (DropfedError, OSError):  # what is wrong is told by those who need it
        return None


def standing(work: Path, run: str) -> Standing:
    """How far this site is with a run, by the messages in its work directory.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    offer_folder(work, run)
    channel = read_channel(work)
    if (ended := ending_of(channel, run)) is not None:
        return ended
    return "agreed" if store.consent(channel, run) else "offered"


def why_over(work: Path, run: str) -> str | None:
    """What to tell a person of a run that is over for this site, as a clause; None while it goes on.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    now = standing(work, run)
    if now == "aborted":
        return f"it was aborted: {store.why_aborted(read_channel(work), run)}"
    said = {
        "declined": "this site has declined it already",
        "withdrawn": "this site has withdrawn from it already, for good",
        "finished": "it is over, and its final model is here",
    }
    return said.get(now)


def describe(work: Path, run: str) -> str:
    """Several lines for a person who has to decide.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    place = offer_folder(work, run)
    configuration = parse_yaml((place / names.RUN_CONFIGURATION).read_bytes(), RunConfiguration, str(place))
    sharing = parse_yaml((place / names.TENSORS).read_bytes(), Sharing, str(place))
    sends = [names.METRICS]
    if open_method(configuration.method, configuration.method_options).sends_reliability:
        sends.append(f"{names.RELIABILITY} (with θ: the uncertainty of one image or pixel, not which)")
    over = why_over(work, run)
    lines = [
        *([f"run {run} is not to be decided any more: {over}"] if over else []),
        f"run {run}: {configuration.task} by {configuration.method}, {counted(configuration.rounds, 'round')} of "
        f"{counted(configuration.epochs, 'local epoch')}, with {', '.join(configuration.sites)}"
        f"{f', {configuration.sites_per_round} of them in each' if configuration.sites_per_round else ''}",
        f"leaves each round:  {names.SITE_MODEL}, {_size(sharing.tensors.values())}; {', '.join(sends)}",
        f"comes each round:   {names.GLOBAL_MODEL}, the same tensors",
    ]
    if configuration.wire != PLAIN:
        lines.append(f"both travel as:     {configuration.wire}")
    lines.append(f"server can read:    {_READABLE[configuration.encrypt]}")
    for way, groups in (
        ("leaves each round:", sharing.groups("update")),
        ("comes each round:", sharing.groups("round")),
        ("comes at the end:", sharing.groups("final")),
    ):
        lines += [f"{way:<19} {names.state_file(group)}, {_size(listed.values())}" for group, listed in groups.items()]
    if (privacy := configuration.privacy) is not None:
        promise = (
            f"ε at most {privacy.target_epsilon:g}"
            if privacy.target_epsilon is not None
            else f"noise multiplier {privacy.noise_multiplier:g}"
        )
        lines.append(f"private:            {promise}, δ {privacy.delta:g}, for each training image, in the whole run")
    lines += _demanded(work, configuration)
    if sharing.start:
        lines.append(f"comes once, stays:  {names.START}, {_size(sharing.start.values())}")
    if sharing.personal:
        lines.append(f"never leaves:       {counted(len(sharing.personal), 'tensor')}: {', '.join(sharing.personal)}")
    lines.append("never leaves:       images, labels, names, paths, or which image a number is of")
    lines.append(f"every tensor and every setting: {place}")
    return "\n".join(lines)


def _demanded(work: Path, run: RunConfiguration) -> list[str]:
    """What a run takes of this machine and of its images, beside what the hospital allows."""
    from shared.learning.demands import demands  # noqa: PLC0415  (PyTorch)

    try:
        policy = read_configuration(work).policy
        found = demands(run)
        division = division_here(work)
    except (ConfigurationError, StandingError) as error:
        return [f"what it takes:      cannot be told: {' '.join(str(error).splitlines())}"]
    budget = budget_here(work)
    blocks = [number for number, block in enumerate(division.blocks) if run.task in block.folders]
    left = policy.rows_per_set - (budget.rows_of(blocks, but=run.run) if budget else 0)
    lines = [
        f"shows each image:   up to {found.views:,} times in the whole run (at most {policy.max_views:,}), in "
        f"{counted(found.rounds, 'round')} (at most {policy.max_rounds:,})",
        f"trains on:          {counted(policy.minimum_training_images, 'image')} or more, or this site declines",
        f"takes:              {found.parameters:,} parameters (at most {policy.max_parameters:,}), about "
        f"{found.memory_bytes / 1e9:.1f} GB of memory (at most {policy.max_memory_gb:g})",
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
    judgement, more = judge(policy, run, None), excesses(policy, found)
    refusals = [*([judgement.reason] if judgement.answer == "no" else []), *more]
    if refusals:
        lines.append(f"declined:           {'; '.join(dict.fromkeys(refusals))}")
    return lines


def _size(shapes: Iterable[TensorShape]) -> str:
    counts = [prod(shape.shape) for shape in shapes]
    return f"{counted(len(counts), 'tensor')}, {counted(sum(counts), 'number')}, {sum(counts) * 4 / 1e3:,.0f} kB"
