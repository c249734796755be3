"""Which blocks of a site's division make up the sets that a run asks for: whole blocks, whatever it asks.

The run's seed decides the order, so the aggregator may choose among unions of blocks, and of nothing smaller. Blocks of
a class are spread over the sets, or folds, so that each shows the class. Where two classes or more have blocks of their
own, mixed blocks are trained on: then validation and test hold whole blocks of each class that they show, and every
score over them may leave. Of cross-validation every block is tested, mixed ones too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shared.errors import DataError
from shared.learning.data.splits import SPLIT_FILE, SPLITS, Folds, SplitName, SplitPlan
from shared.learning.data.units import Unit
from shared.learning.seeds import seed_for
from shared.plurals import pluralize

Blocks = Mapping[int, Sequence[Unit]]
"""The units of each whole block of a folder, by the block's number."""

SetName = Literal["train", "validation", "test", "foreign"]
"""A set that a run looks at. ``foreign``, the word that budgets store: out-of-distribution images, looked at whenever
``test`` is.
"""


@dataclass(frozen=True)
class Member:
    """A unit that is in a set.

    Args:
        block: the number of its block.
        group: the person, or what else it belongs together with; None: it is by itself.
    """

    block: int
    group: str | None = None


Members = Mapping[SetName, Mapping[str, Member]]
"""Of each set, the units in it by their ids."""


def sets_of(blocks: Blocks, plan: SplitPlan, seed: int) -> dict[SetName, tuple[int, ...]]:
    """Return the sets of a run.

    Args:
        plan: what the run asks for.
        seed: decides what neither the plan nor ``split.csv`` does.

    Raises:
        DataError: a set, or a fold, stays empty; there are fewer images for training than are to be drawn; or
            ``split.csv`` says a set for each image where folds are asked for.
    """
    if plan.file and any(unit.split is not None for units in blocks.values() for unit in units):
        if plan.folds is not None:
            raise DataError([f"{SPLIT_FILE}: the run divides the images into folds; take the column split out of it."])
        set_of = _by_file(blocks)
    elif plan.folds is not None:
        set_of = {number: plan.folds.split_of(fold) for number, fold in _folds(blocks, plan.folds, seed).items()}
    else:
        set_of = _by_fractions(blocks, plan, seed)
    sets: dict[SetName, tuple[int, ...]] = {
        name: tuple(sorted(number for number in set_of if set_of[number] == name)) for name in SPLITS
    }
    if plan.train_images is not None:
        sets["train"] = _drawn(sets["train"], blocks, plan.train_images, seed)
    if problems := [
        f"the {name} set is empty: none of {pluralize(len(blocks), 'whole block')} of images comes into it, and "
        f"each of train, validation and test needs one (a block lies in one set of {SPLIT_FILE} and holds "
        "minimum_count images or more); add images."
        for name in SPLITS
        if not sets[name]
    ]:
        raise DataError(problems)
    return sets


def members_of(sets: Mapping[SetName, Sequence[int]], blocks: Blocks) -> Members:
    """Return the units of each set, as far as its blocks are whole now."""
    return {
        name: {unit.id: Member(number, unit.group) for number in numbers for unit in blocks.get(number, ())}
        for name, numbers in sets.items()
    }


def images_in(numbers: Sequence[int], blocks: Blocks) -> int:
    """Return how many images so many blocks hold."""
    return sum(len(blocks[number]) for number in numbers)


def _by_file(blocks: Blocks) -> dict[int, SplitName]:
    """Return the set into which the hospital's own file puts each block; a block whose images it splits has none."""
    of_units = {number: {unit.split for unit in units} for number, units in blocks.items()}
    return {number: name for number, names in of_units.items() for name in names if name and len(names) == 1}


def _by_fractions(blocks: Blocks, plan: SplitPlan, seed: int) -> dict[int, SplitName]:
    """Put each block into the set that lacks most images, and each class into all sets, if it has as many blocks."""
    of_class, mixed = _by_class(blocks, seed)
    set_of: dict[int, SplitName] = {}
    lacking = dict.fromkeys(SPLITS, 0.0)
    empty = [*SPLITS]
    for numbers in [*of_class.values(), mixed]:
        if numbers is mixed and len(of_class) > 1 and not empty:
            return set_of | dict.fromkeys(mixed, "train")
        for name in SPLITS:
            lacking[name] += getattr(plan, name) * images_in(numbers, blocks)
        lacking_class = [*SPLITS] if len(numbers) >= len(SPLITS) else []
        for place, number in enumerate(numbers):
            is_last_chance = len(blocks) - len(set_of) <= len(empty)
            is_last_of_class = len(numbers) - place <= len(lacking_class)
            candidates = empty if is_last_chance else lacking_class if is_last_of_class else SPLITS
            name = max(candidates, key=lambda candidate: lacking[candidate])
            set_of[number] = name
            lacking[name] -= len(blocks[number])
            empty, lacking_class = ([other for other in names if other != name] for names in (empty, lacking_class))
    return set_of


def _folds(blocks: Blocks, folds: Folds, seed: int) -> dict[int, int]:
    """Return the fold of each block, from 0, class by class: folds of a class differ by one block at most.

    Raises:
        DataError: there are fewer blocks than folds.
    """
    of_class, mixed = _by_class(blocks, seed)
    in_turn = [number for numbers in [*of_class.values(), mixed] for number in numbers]
    if len(in_turn) < folds.count:
        raise DataError(
            [
                f"{folds.count} folds are asked for, and there is no more than "
                f"{pluralize(len(in_turn), 'whole block')} of images here: have fewer folds, or add images."
            ]
        )
    return {number: place % folds.count for place, number in enumerate(in_turn)}


def _by_class(blocks: Blocks, seed: int) -> tuple[dict[str, list[int]], list[int]]:
    """Return the blocks of each class, and mixed ones, largest first; the seed orders those of one size."""
    of_class: dict[str, list[int]] = defaultdict(list)
    mixed: list[int] = []
    for number in sorted(blocks, key=lambda number: (-len(blocks[number]), seed_for(seed, "block", number))):
        kinds = {unit.kind or "" for unit in blocks[number]}
        (of_class[kinds.pop()] if len(kinds) == 1 else mixed).append(number)
    return dict(sorted(of_class.items())), mixed


def _drawn(numbers: Sequence[int], blocks: Blocks, images: int, seed: int) -> tuple[int, ...]:
    """Return the fewest of these blocks, in the seed's order, that hold so many images.

    Raises:
        DataError: all of them hold fewer.
    """
    drawn: list[int] = []
    for number in sorted(numbers, key=lambda number: seed_for(seed, "trained on", number)):
        if images_in(drawn, blocks) < images:
            drawn.append(number)
    if (found := images_in(drawn, blocks)) < images:
        raise DataError([f"train_images: there are {found} images for training, not {images}; lower it."])
    return tuple(sorted(drawn))
