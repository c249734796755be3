"""An offer in words: what a run asks of this site, what would leave it and what would stay."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from pathlib import Path

from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.names import Place, is_name
from shared.exchange.reading import parse_yaml
from shared.exchange.records import RunConfiguration, Sharing, TensorShape
from shared.learning.methods import method_named


def offer_folder(work: Path, run: str) -> Path:
    """Where an accepted offer lies.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    place = work / "mirror" / Place("offer", run).path
    if not is_name(run) or not (place / names.MANIFEST).exists():
        raise ConfigurationError([f"{run}: no such run was offered to {work}; the log names the runs that were"])
    return place


def describe(work: Path, run: str) -> str:
    """Several lines for a person who has to decide.

    Raises:
        ConfigurationError: no such run was offered here.
    """
    place = offer_folder(work, run)
    configuration = parse_yaml((place / names.RUN_CONFIGURATION).read_bytes(), RunConfiguration, str(place))
    sharing = parse_yaml((place / names.TENSORS).read_bytes(), Sharing, str(place))
    sends = [names.METRICS]
    if method_named(configuration.method).sends_reliability:
        sends.append(f"{names.RELIABILITY} (with θ: the uncertainty of one image or pixel, not which)")
    lines = [
        f"run {run}: {configuration.task} by {configuration.method}, {configuration.rounds} rounds of "
        f"{configuration.epochs} local epoch(s), with {', '.join(configuration.sites)}",
        f"leaves each round:  {names.SITE_MODEL}, {_size(sharing.tensors.values())}; {', '.join(sends)}",
        f"comes each round:   {names.GLOBAL_MODEL}, the same tensors",
    ]
    if sharing.start:
        lines.append(f"comes once, stays:  {names.START}, {_size(sharing.start.values())}")
    if sharing.personal:
        lines.append(f"never leaves:       {len(sharing.personal)} tensors: {', '.join(sharing.personal)}")
    lines.append("never leaves:       images, labels, names, paths, or which image a number is of")
    lines.append(f"every tensor and every setting: {place}")
    return "\n".join(lines)


def _size(shapes: Iterable[TensorShape]) -> str:
    counts = [prod(shape.shape) for shape in shapes]
    return f"{len(counts)} tensors, {sum(counts):,} numbers, {sum(counts) * 4 / 1e3:,.0f} kB"
