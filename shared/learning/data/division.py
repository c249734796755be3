"""A site's division of its images into blocks: made once, by a secret of the site, for all tasks and runs. Pure.

Every set over which anything leaves a site is a union of whole blocks, and each block holds at least ``minimum_count``
images of each folder that it has images of. So whatever is asked, and however often, the sums over disclosed sets and
their differences are over whole blocks too, and no combination of them is about fewer images.

    deal       puts new images into blocks, for good; those that fill none wait
    present    which blocks are whole in a folder as it is now; all others are left out

What belongs together comes into one block: all images of a group, and all units that share a file, in whatever folders.
A block is of one kind as far as the images allow. All of it lies in the same folders, and in the same sets of
``split.csv``; and a class with three blocks' worth of images has blocks of its own, so that training, validation and
test can each have one. All other images come into mixed blocks. Which come together within a kind, the secret decides,
by HMAC over the hashes of the files: nobody else knows who is in a block, nor can choose it.

A block is never changed, and its images are never dealt anew: not when one of them is lost, or another file comes under
its name, nor when more images of the same person come. So a block outlives its images, and knows them by marks alone:
HMAC of their names and of the hashes of their files, by the secret. That of a label is also over the hashes of the
files, so that whoever has the secret and the blocks, but not an image, cannot find its label by trying all.
"""

from __future__ import annotations

import hmac
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from shared.errors import DataError
from shared.exchange.records.values import Digest, Record
from shared.learning.data.splits import SPLITS
from shared.learning.data.units import Unit

Folders = Mapping[str, Sequence[Unit]]
"""What lies in each of a site's folders now: ``settled`` units, by the folder's name."""

_OWN_BLOCKS = len(SPLITS)
"""From so many on a class has blocks of its own: one for each set."""


class Member(Record):
    """One unit of a block as it was dealt: the marks of its id, of each of its files and of its label; see ``Unit``.

    A block that an older version dealt has the names and hashes themselves, until they are ``marked``.
    """

    id: str
    contents: tuple[Digest, ...]
    label: str

    @classmethod
    def of(cls, unit: Unit | Member, secret: bytes) -> Member:
        """Return the marks of a unit."""

        def mark(*of: str) -> str:
            return hmac.digest(secret, "\n".join(of).encode(), "sha256").hex()

        contents = tuple(mark("file", content) for content in unit.contents)
        return cls(id=mark("name", unit.id), contents=contents, label=mark("label", *unit.contents, unit.label))


class Block(Record):
    """One block: its members in each folder that it has images of, by the folder's name."""

    folders: dict[str, tuple[Member, ...]]

    @cached_property
    def contents(self) -> frozenset[str]:
        """The mark of every file in it."""
        return frozenset(content for members in self.folders.values() for each in members for content in each.contents)

    def marked(self, secret: bytes) -> Block:
        """Return a block that an older version dealt, with marks in place of names and hashes."""
        return _block_of({name: [Member.of(each, secret) for each in of_one] for name, of_one in self.folders.items()})


@dataclass(frozen=True)
class Present:
    """The blocks of one folder as it is now, and how many of its images are in none of them.

    Args:
        blocks: the units of each whole block, by the block's number.
        waiting: new images that fill no block yet.
        left_out: images in blocks of which one is lost or changed, or which are smaller than they must be now.
        barred: images that are dealt no more: another file had their name, or others of their group are in a block, or
            they lie in a block that was dealt without this folder, of which not all lie here.
    """

    blocks: Mapping[int, tuple[Unit, ...]]
    waiting: int
    left_out: int
    barred: int


def deal(blocks: Sequence[Block], folders: Folders, least: int, secret: bytes) -> list[Block]:
    """Put new images into blocks.

    Args:
        blocks: those dealt before.
        least: units of each of its folders in a block, >= 1.
        secret: of the site, and of nobody else.

    Returns:
        The blocks dealt before, in their order, and the new ones. One dealt before has members in a further folder too
        if by now all of it lies there.
    """
    lots = _lots(blocks, folders, secret)
    fresh = [lot for lot in lots if not lot.is_dealt]
    established = _classes_with_own_blocks(lots)
    new: dict[_Place, list[list[_Lot]]] = defaultdict(list)
    pool: dict[_Place, list[_Lot]] = defaultdict(list)
    for (place, kinds), of_class in _grouped(fresh).items():
        has_own = (place.folders, kinds) in established
        filled, left = ([], of_class) if None in kinds else _filled(of_class, least)
        if len(filled) >= _OWN_BLOCKS or (filled and has_own):
            filled[-1] += left
            new[place] += filled
        elif not has_own:  # one that has waits until it fills another
            pool[place] += of_class
    for place, mixed in pool.items():
        filled, left = _filled(mixed, least)
        new[place] += filled
        if new[place]:
            new[place][-1] += left
    touching: dict[int, list[_Lot]] = defaultdict(list)
    for lot in lots:
        for number in lot.blocks:
            touching[number].append(lot)
    extended = [_extended(block, touching[number], least, secret) for number, block in enumerate(blocks)]
    return extended + [_block(lots, secret) for place in sorted(new) for lots in new[place]]


def present(blocks: Sequence[Block], folder: str, units: Sequence[Unit], least: int, secret: bytes) -> Present:
    """Return which blocks are whole in a folder.

    Args:
        units: what lies there now, ``settled``.
        least: units in a block, >= 1.
        secret: by which they were dealt.

    Raises:
        DataError: a group lies in two whole blocks, for it was named after they were dealt.
    """
    marks = {unit.id: Member.of(unit, secret) for unit in units}
    there = {marks[unit.id].contents: unit for unit in units}
    whole: dict[int, tuple[Unit, ...]] = {}
    members_of_any = set()
    for number, block in enumerate(blocks):
        members = block.folders.get(folder, ())
        members_of_any |= {each.contents for each in members}
        found = tuple(there[each.contents] for each in members if each.contents in there)
        is_as_dealt = [marks[unit.id].label for unit in found] == [each.label for each in members]
        if is_as_dealt and len(found) >= least:
            whole[number] = found
    _require_whole_groups(whole)
    used = {unit.id for found in whole.values() for unit in found}
    lots = _lots(blocks, {folder: units}, secret)
    idle = [(lot, unit) for lot in lots for _, unit in lot.units if unit.id not in used]
    waiting = sum(not lot.is_dealt for lot, _ in idle)
    left_out = sum(marks[unit.id].contents in members_of_any for _, unit in idle)
    return Present(whole, waiting, left_out, len(idle) - waiting - left_out)


def _require_whole_groups(whole: Mapping[int, Sequence[Unit]]) -> None:
    block_of: dict[str, int] = {}
    for number, found in whole.items():
        for unit in found:
            if unit.group is not None and block_of.setdefault(unit.group, number) != number:
                raise DataError(
                    [
                        f"the group '{unit.group}' lies in two blocks of this site's division: it was not named when "
                        "they were dealt; name the groups as they were, or have all images divided anew by "
                        "`dropfed-site accept-division`."
                    ]
                )


# --- lots: what must come into one block ---------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class _Place:
    """What all lots of a block have in common: their folders, and in each the set of ``split.csv``."""

    folders: tuple[str, ...]
    sets: tuple[str, ...]


Kinds = tuple[str | None, ...]
"""The class in each folder, "" where it says none; None where there are several."""


@dataclass(frozen=True)
class _Lot:
    """Units that must come into one block, each with its folder.

    Args:
        blocks: the numbers of those that hold a file of it.
        is_dealt: whether it has such blocks, or another file had one of its names when that was dealt.
        order: in which lots of a kind are dealt; only the secret tells it.
    """

    units: tuple[tuple[str, Unit], ...]
    blocks: frozenset[int]
    is_dealt: bool
    order: bytes

    @cached_property
    def place(self) -> _Place:
        named = sorted({(folder, unit.split or "") for folder, unit in self.units})
        return _Place(tuple(folder for folder, _ in named), tuple(split for _, split in named))

    @cached_property
    def kinds(self) -> Kinds:
        of_folder: dict[str, set[str]] = defaultdict(set)
        for folder, unit in self.units:
            of_folder[folder].add(unit.kind or "")
        return tuple(kinds.pop() if len(kinds) == 1 else None for _, kinds in sorted(of_folder.items()))


def _lots(blocks: Sequence[Block], folders: Folders, secret: bytes) -> list[_Lot]:
    """Return all units of all folders in lots, in the order in which they are dealt."""
    number_of = {content: number for number, block in enumerate(blocks) for content in block.contents}
    named = {(folder, each.id) for block in blocks for folder, members in block.folders.items() for each in members}
    lots = []
    for bound in _together([(folder, unit) for folder, units in sorted(folders.items()) for unit in units]):
        contents = sorted({content for _, unit in bound for content in unit.contents})
        marks = [(folder, Member.of(unit, secret)) for folder, unit in bound]
        touched = frozenset(number_of[each] for _, of in marks for each in of.contents if each in number_of)
        is_dealt = bool(touched) or any((folder, of.id) in named for folder, of in marks)
        order = hmac.digest(secret, "\n".join(contents).encode(), "sha256")
        lots.append(_Lot(tuple(bound), touched, is_dealt, order))
    return sorted(lots, key=lambda lot: lot.order)


def _together(units: Sequence[tuple[str, Unit]]) -> list[list[tuple[str, Unit]]]:
    """Return the units by what binds them: a file that they share, or a group of their folder."""
    above = list(range(len(units)))

    def root_of(place: int) -> int:
        while above[place] != place:
            above[place] = above[above[place]]
            place = above[place]
        return place

    first: dict[tuple[str, ...], int] = {}
    for place, (folder, unit) in enumerate(units):
        bonds: list[tuple[str, ...]] = [("file", content) for content in unit.contents]
        bonds += [("group", folder, unit.group)] if unit.group is not None else []
        for bond in bonds:
            above[root_of(place)] = root_of(first.setdefault(bond, place))
    bound: dict[int, list[tuple[str, Unit]]] = defaultdict(list)
    for place, each in enumerate(units):
        bound[root_of(place)].append(each)
    return [*bound.values()]


def _grouped(lots: Iterable[_Lot]) -> dict[tuple[_Place, Kinds], list[_Lot]]:
    """Return the lots by place and class, in an order that does not depend on theirs."""
    grouped: dict[tuple[_Place, Kinds], list[_Lot]] = defaultdict(list)
    for lot in lots:
        grouped[lot.place, lot.kinds].append(lot)
    return dict(sorted(grouped.items(), key=lambda pair: repr(pair[0])))


def _classes_with_own_blocks(lots: Iterable[_Lot]) -> set[tuple[tuple[str, ...], Kinds]]:
    """Return, by folders, the classes that have blocks of earlier divisions, as far as these are still there."""
    of_block: dict[int, set[tuple[tuple[str, ...], Kinds]]] = defaultdict(set)
    for lot in lots:
        for number in lot.blocks:
            of_block[number].add((lot.place.folders, lot.kinds))
    return {found.pop() for found in of_block.values() if len(found) == 1}


def _filled(lots: Iterable[_Lot], least: int) -> tuple[list[list[_Lot]], list[_Lot]]:
    """Return blocks of lots of one place, each with as few as will do, and the lots that are left over."""
    filled: list[list[_Lot]] = []
    left: list[_Lot] = []
    for lot in sorted(lots, key=lambda lot: lot.order):
        left.append(lot)
        here = [folder for each in left for folder, _ in each.units]
        if all(here.count(folder) >= least for folder in lot.place.folders):
            filled.append(left)
            left = []
    return filled, left


def _block(lots: Iterable[_Lot], secret: bytes) -> Block:
    return _block_of(_members([unit for lot in lots for unit in lot.units], secret))


def _block_of(members: Mapping[str, Sequence[Member]]) -> Block:
    in_order = {name: tuple(sorted(members[name], key=lambda each: each.contents)) for name in sorted(members)}
    return Block(folders=in_order)


def _extended(block: Block, touching: Sequence[_Lot], least: int, secret: bytes) -> Block:
    """Extend an earlier block with its members in each further folder that holds all of it and no other image of them.

    Args:
        touching: the lots that hold a file of it.
    """
    further = [(folder, unit) for lot in touching for folder, unit in lot.units if folder not in block.folders]
    added = {
        folder: members
        for folder, members in _members(further, secret).items()
        if len(members) >= least and {content for each in members for content in each.contents} == block.contents
    }
    return _block_of({**block.folders, **added}) if added else block


def _members(units: Iterable[tuple[str, Unit]], secret: bytes) -> dict[str, list[Member]]:
    members: dict[str, list[Member]] = defaultdict(list)
    for folder, unit in units:
        members[folder].append(Member.of(unit, secret))
    return members
