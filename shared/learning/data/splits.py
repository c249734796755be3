"""Which images are for training, which for validation, which for testing.

Either the site says so in a file, ``split.csv``, or seeded fractions decide, or folds for cross-validation. Images
that belong together (patches of one scan, both eyes of one person) form a group, and a group is never divided.

What is cut from one recording is called ``RECORDING/0001``, ``RECORDING/0002``, ...: lists and patterns speak of the
recording, and it is never divided either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.counted import counted
from shared.errors import DataError
from shared.learning.data.tables import read_table
from shared.learning.seeds import seed_for

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
SPLIT_FILE = "split.csv"


class Folds(BaseModel):
    """One turn of a nested cross-validation; every run of it with one seed divides the images alike.

    Fold ``outer`` is for testing, fold (outer + inner + 1) mod count for validation, the others for training.

    Source: Lo et al. 2021, referable retinopathy: 5 outer folds, 4 inner ones in each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = Field(default=5, ge=3, le=20)
    outer: int = Field(ge=0)
    inner: int = Field(ge=0)

    @model_validator(mode="after")
    def _exist(self) -> Folds:
        if self.outer >= self.count or self.inner >= self.count - 1:
            raise ValueError(
                f"outer counts from 0 to {self.count - 1} and inner from 0 to {self.count - 2}, with {self.count} folds"
            )
        return self

    def split_of(self, fold: int) -> SplitName:
        """What the images of one fold are for."""
        if fold == self.outer:
            return "test"
        return "validation" if fold == (self.outer + self.inner + 1) % self.count else "train"


def unit_of(sample_id: str) -> str:
    """What ``split.csv`` calls a sample by: an image's own id, or that of the recording it is cut from."""
    return sample_id.partition("/")[0]


class SplitPlan(BaseModel):
    """How a site's images are divided. The fractions, of images, add up to 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: float = Field(default=0.6, gt=0, lt=1)
    validation: float = Field(default=0.2, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)
    file: bool = True
    """Whether ``split.csv`` decides where the site has one."""
    folds: Folds | None = None
    """Folds instead of the fractions."""
    train_images: int | None = Field(default=None, ge=1)
    """So many of the images for training are trained on, drawn by the seed; None: all."""

    @model_validator(mode="after")
    def _fractions_add_up(self) -> SplitPlan:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"train, validation and test must add up to 1, they add up to {total:g}")
        return self


@dataclass(frozen=True)
class SplitFile:
    """What ``split.csv`` says.

    Args:
        split: the split of each image, or empty where the file has no such column.
        group: the group of each image, or empty where the file has no such column.
    """

    split: Mapping[str, SplitName]
    group: Mapping[str, str]


def read_split_file(path: Path, ids: Sequence[str]) -> SplitFile:
    """Reads ``split.csv``: a column ``id``, see ``unit_of``, and one or both of ``split`` and ``group``.

    Args:
        path: the file.
        ids: of all images, or recordings, that are there.

    Raises:
        DataError: names every line that is wrong, every image that is missing in the file and the reverse.
    """
    columns, rows = read_table(path)
    unknown = set(columns) - {"id", "split", "group"}
    if "id" not in columns or len(columns) < 2 or unknown or len(set(columns)) < len(columns):
        found = ", ".join(str(column) for column in columns) or "none"
        raise DataError([f"{path.name}: the columns must be id and one or both of split and group; found: {found}."])

    problems: list[str] = []
    split: dict[str, SplitName] = {}
    group: dict[str, str] = {}
    seen: set[str] = set()
    for line, row in rows:
        cells = {column: (row.get(column) or "").strip() for column in columns}
        image = cells["id"]
        if image in seen:
            problems.append(f"{path.name}, line {line}: '{image}' is there twice; keep one line.")
        seen.add(image)
        if "split" in cells:
            name = next((known for known in SPLITS if known == cells["split"]), None)
            if name is None:
                problems.append(f"{path.name}, line {line}: split must be {', '.join(SPLITS)}, not '{cells['split']}'.")
            else:
                split[image] = name
        if "group" in cells:
            if not cells["group"]:
                problems.append(f"{path.name}, line {line}: the group of '{image}' is empty; name one for each image.")
            group[image] = cells["group"]
    problems += [
        f"{path.name}: nothing here is called '{image}'; remove the line." for image in sorted(seen - set(ids))
    ]
    problems += [f"{path.name}: '{image}' has no line; add one." for image in sorted(set(ids) - seen)]
    if problems:
        raise DataError(problems)
    return SplitFile(split=split, group=group)


def groups_by_pattern(ids: Sequence[str], pattern: str | None) -> dict[str, str]:
    """The group of each image, taken from its stem.

    Args:
        ids: the stems.
        pattern: a regular expression searched for in each stem; the group is its first parenthesis, or the whole match
            where it has none: ``^(.*)_patch\\d+$``. None: each image is a group of its own.

    Raises:
        DataError: the pattern does not match a stem.
    """
    if pattern is None:
        return {image: image for image in ids}
    expression = re.compile(pattern)
    groups: dict[str, str] = {}
    problems: list[str] = []
    for image in ids:
        match = expression.search(image)
        name = match[1 if expression.groups else 0] if match else None
        if name:
            groups[image] = name
        else:
            problems.append(f"images/{image}: group_pattern {pattern!r} finds no group in this name; change either.")
    if problems:
        raise DataError(problems)
    return groups


def divide(groups: Mapping[str, str], plan: SplitPlan, seed: int) -> dict[str, SplitName]:
    """Divides images by fractions; a group stays whole.

    The largest groups are placed first, groups of one size in an order that the seed decides, each into the split that
    lacks most images. Every split gets at least one group as long as there are three.

    Args:
        groups: the group of each image.
        plan: the fractions.
        seed: decides the order.

    Returns:
        The split of each image.
    """
    members: dict[str, list[str]] = {}
    for image, group in groups.items():
        members.setdefault(group, []).append(image)
    order = sorted(members, key=lambda group: (-len(members[group]), seed_for(seed, "split", group)))
    lacking = {name: getattr(plan, name) * len(groups) for name in SPLITS}
    empty = list(SPLITS)
    result: dict[str, SplitName] = {}
    for position, group in enumerate(order):
        last_chance = len(order) - position <= len(empty)
        name = max(empty if last_chance else SPLITS, key=lambda candidate: lacking[candidate])
        lacking[name] -= len(members[group])
        if name in empty:
            empty.remove(name)
        result.update(dict.fromkeys(members[group], name))
    return result


def folds_of(groups: Mapping[str, str], classes: Mapping[str, int], count: int, seed: int) -> dict[str, int]:
    """Deals images out to folds, class by class; a group stays whole, and counts as the highest class in it.

    Of each class, in an order that the seed decides, the first group goes into fold 0, the second into fold 1, ...

    Args:
        groups: the group of each image.
        classes: the class of each image.
        count: how many folds.
        seed: decides the order.

    Returns:
        The fold of each image, from 0.
    """
    class_of: dict[str, int] = {}
    for image, group in groups.items():
        class_of[group] = max(class_of.get(group, 0), classes[image])
    fold: dict[str, int] = {}
    for wanted in sorted(set(class_of.values())):
        members = [group for group in class_of if class_of[group] == wanted]
        members.sort(key=lambda group: (seed_for(seed, "fold", group), group))
        fold.update((group, place % count) for place, group in enumerate(members))
    return {image: fold[group] for image, group in groups.items()}


def split_images(
    classes: Mapping[str, int],
    root: Path,
    plan: SplitPlan,
    seed: int,
    group_pattern: str | None = None,
    *,
    groups: Mapping[str, str] | None = None,
) -> dict[SplitName, tuple[str, ...]]:
    """The images of each split, sorted by name.

    Args:
        classes: the class of every image by its id, which folds are stratified by; all alike where there are none.
        root: the site's data folder, where ``split.csv`` may be.
        plan: the fractions, and whether the file counts.
        seed: decides the division where the file does not, and what is drawn of it.
        group_pattern: see ``groups_by_pattern``; a ``group`` column in the file goes before it.
        groups: the group of each by ``unit_of``, where the data folder says it elsewhere.

    Raises:
        DataError: the file is wrong, or says the groups a second time, a group is in two splits, a split is empty or
            has fewer images than are to be drawn of it, the file says one for each image where folds are asked for, or
            there are too few images for so many folds.
    """
    ids = list(classes)
    units = list(dict.fromkeys(map(unit_of, ids)))
    path = root / SPLIT_FILE
    listed = read_split_file(path, units) if plan.file and path.exists() else SplitFile(split={}, group={})
    if listed.group and groups:
        raise DataError([f"{SPLIT_FILE}: the groups are said elsewhere already; take the column group out of it."])
    of_unit = groups or listed.group or groups_by_pattern(units, group_pattern)
    group_of = {image: of_unit[unit_of(image)] for image in ids}
    if plan.folds is None:
        said = {image: listed.split[unit_of(image)] for image in ids} if listed.split else {}
        split = said or divide(group_of, plan, seed)
    elif listed.split:
        raise DataError([f"{SPLIT_FILE}: the run divides the images into folds; take the column split out of it."])
    else:
        dealt = folds_of(group_of, classes, plan.folds.count, seed)
        if (filled := len(set(dealt.values()))) < plan.folds.count:
            raise DataError(
                [
                    f"{plan.folds.count} folds are asked for, and only {filled} get images, for no class has more than "
                    f"{counted(filled, 'group')}: have fewer folds, or add images."
                ]
            )
        split = {image: plan.folds.split_of(fold) for image, fold in dealt.items()}

    problems: list[str] = []
    splits_of_group: dict[str, set[str]] = {}
    for image, group in group_of.items():
        splits_of_group.setdefault(group, set()).add(split[image])
    for group, names in sorted(splits_of_group.items()):
        if len(names) > 1:
            problems.append(f"{SPLIT_FILE}: group '{group}' is in {' and '.join(sorted(names))}; put it into one.")
    result: dict[SplitName, tuple[str, ...]] = {
        name: tuple(sorted(image for image in ids if split[image] == name)) for name in SPLITS
    }
    if plan.train_images is not None:
        drawn = sorted(result["train"], key=lambda image: seed_for(seed, "trained on", image))[: plan.train_images]
        if len(drawn) < plan.train_images:
            problems.append(
                f"train_images: there are {len(drawn)} images for training, not {plan.train_images}; lower it."
            )
        result["train"] = tuple(sorted(drawn))
    problems += [
        f"the {name} split is empty: there is no more than {counted(len(ids), 'image')} in "
        f"{counted(len(splits_of_group), 'group')}, and at least one group is needed for each of train, validation and "
        "test; add images."
        for name in SPLITS
        if not result[name]
    ]
    if problems:
        raise DataError(problems)
    return result
