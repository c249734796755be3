"""What a run asks about sets: which images are for training, which for validation, which for testing.

Either the site says so in a file, ``split.csv``, or seeded fractions decide, or folds for cross-validation. Whatever is
asked, each set is made of whole blocks of the site's division; ``sets.py`` deals them out.

Images that belong together (patches of one scan, both eyes of one person) form a group, which is never divided. What is
cut from one recording is called ``RECORDING/0001``, ``RECORDING/0002``, ...: lists and patterns speak of the recording.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.errors import DataError
from shared.learning.data.tables import named_rows, read_table, wrong_columns

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
SPLIT_FILE = "split.csv"


class Folds(BaseModel):
    """One turn of a nested cross-validation; every run of it with one seed deals the blocks out alike.

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
        """Return what the blocks of one fold are for."""
        if fold == self.outer:
            return "test"
        return "validation" if fold == (self.outer + self.inner + 1) % self.count else "train"


def unit_of(sample_id: str) -> str:
    """Return what ``split.csv`` calls a sample by: an image's own id, or that of the recording it is cut from."""
    return sample_id.partition("/")[0]


def block_of(sample_id: str, blocks: Mapping[str, int]) -> int | str:
    """Return the block of a sample, by its own id or its unit's; one that was never dealt is its unit's own."""
    unit = unit_of(sample_id)
    return blocks.get(sample_id, blocks.get(unit, unit))


class SplitPlan(BaseModel):
    """How a site's blocks are dealt out to sets. The fractions, of images, add up to 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: float = Field(default=0.6, gt=0, lt=1)
    validation: float = Field(default=0.2, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)
    file: bool = True
    """Whether ``split.csv`` decides where the site has one."""
    folds: Folds | None = None
    """Folds instead of the fractions."""
    train_images: int | None = Field(default=None, ge=1)
    """So many of the images for training are trained on, or the fewest more that whole blocks allow; None: all."""

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
    """Read ``split.csv``: a column ``id``, see ``unit_of``, and one or both of ``split`` and ``group``.

    Args:
        path: the file.
        ids: of all images, or recordings, that are there.

    Raises:
        DataError: names every line that is wrong, every image that is missing in the file and the reverse.
    """
    problems: list[str] = []
    columns, rows = read_table(path, problems)
    unknown = set(columns) - {"id", "split", "group"}
    if "id" not in columns or len(columns) < 2 or unknown or len(set(columns)) < len(columns):
        raise wrong_columns(path.name, "id and one or both of split and group", columns)

    split: dict[str, SplitName] = {}
    group: dict[str, str] = {}
    for image, (line, cells) in named_rows(path.name, rows, ids, "", problems):
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
    if problems:
        raise DataError(problems)
    return SplitFile(split=split, group=group)


def groups_by_pattern(ids: Sequence[str], pattern: str) -> dict[str, str]:
    """Return the group of each unit, taken from its id.

    Args:
        pattern: a regular expression of the hospital's own, searched for in each id; the group is its first
            parenthesis, or the whole match where it has none: ``^(.*)_patch\\d+$``.

    Raises:
        DataError: it finds nothing in an id.
    """
    expression = re.compile(pattern)
    groups: dict[str, str] = {}
    problems: list[str] = []
    for image in ids:
        match = expression.search(image)
        name = match[1 if expression.groups else 0] if match else None
        if name:
            groups[image] = name
        else:
            problems.append(
                f"{image}: the pattern {pattern!r} of site.yaml, groups, finds no group in this name; change either."
            )
    if problems:
        raise DataError(problems)
    return groups
