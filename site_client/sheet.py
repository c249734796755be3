"""A sheet of figures about this site's images of one task: what a survey asks for, and what of it may leave.

It is over whole blocks of the site's division, which are dealt as for a run, and for good. Images are read one after
the other and forgotten; of each a few numbers stay until the sheet is made.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shared.errors import DataError
from shared.exchange.mirror import Mirror
from shared.exchange.records.surveys import (
    BINS,
    BIT_DEPTHS,
    COLOURS,
    FORMATS,
    MAKERS,
    OTHER,
    QUANTILES,
    Cells,
    Sheet,
    Spread,
    Survey,
    figure_text,
)
from shared.learning.data.division import deal
from shared.learning.data.graded_images import GRADED_EXTENSIONS
from shared.learning.data.units import Unit, count_groups, hashed
from site_client.commitment import agreed_runs
from site_client.configuration import FILE, SiteConfiguration
from site_client.division import keep, kept
from site_client.folders import all_units, find
from site_client.own_images import image_files
from site_client.pictures import Picture, class_shares, measured
from site_client.suppression import bins, cells, count, difference, rounded, spread
from site_client.surveys import earlier_sheets


@dataclass
class Measured:
    """What was seen of the images so far.

    Args:
        read: the units that could be read, in the order of ``pictures`` and ``shares``, if they are images.
        shares: of each image's pixels, by class; empty where no pixels are labelled.
        seconds: that reading and measuring took.
    """

    read: list[Unit] = field(default_factory=list)
    unreadable: int = 0
    pictures: list[Picture] = field(default_factory=list)
    shares: list[Sequence[float]] = field(default_factory=list)
    seconds: float = 0.0


def make_sheet(work: Path, ledger: Mirror, site: SiteConfiguration, survey: Survey, alive: Callable[[], None]) -> Sheet:
    """Return what this site may say of its images.

    Args:
        alive: called before each image; raises what stands against going on.

    Raises:
        DataError: the folders cannot be read, or hold images of too few persons.
        ActionRequiredError: the division is missing or old.
    """
    before = kept(work, agreed_runs(ledger))
    here, fewest = all_units(work, site), site.policy.minimum_count
    least = max(fewest, site.policy.statistics_minimum_count)
    key = before.division.key
    blocks = deal(before.division.blocks, here, fewest, key)
    units = [unit for block in find(survey.task, here, blocks, fewest, key).own.blocks.values() for unit in block]
    root = work / site.data[survey.task]
    files, copies = by_content(image_files(root))
    duplicates = sum(copies[content] for content in {content for unit in units for content in unit.contents})
    seen = measure(units, files, survey.classes, alive)
    if count_groups(seen.read) < 2 * least:
        raise DataError(
            [
                f"{root.name}: a sheet needs images of {2 * least} patients or other groups that can be read, in whole "
                f"blocks; add images of more, or lower statistics_minimum_count in {FILE} (policy:)."
            ]
        )
    earlier = earlier_sheets(ledger, survey.number, blocks)
    _require_apart(len(seen.read), earlier, least)
    keep(work, replace(before, division=before.division.model_copy(update={"blocks": blocks})))
    return told(seen, survey, duplicates, least, [*earlier.values()])


def _require_apart(images: int, earlier: Mapping[str, Sheet], least: int) -> None:
    """Check that this sheet is about the images of each earlier one, or about as many more or fewer as a figure needs.

    Raises:
        DataError: whoever subtracts them would learn of a few images.
    """
    for name, sheet in earlier.items():
        if 0 < difference(images, sheet.images) < least:
            raise DataError(
                [
                    f"{name} was about {sheet.images} images, and fewer than {least} were added or lost since; a "
                    f"second sheet would reveal those few; answer a survey once {least} or more were."
                ]
            )


def measure(
    units: Iterable[Unit], files: Mapping[str, Path], classes: Sequence[str], alive: Callable[[], None]
) -> Measured:
    """Read the first file of each unit, and its mask, if it has one; what is no image is counted, and not opened.

    Args:
        files: by the SHA-256 of each.
    """
    seen, began = Measured(), time.monotonic()
    for unit in units:
        alive()
        image, mask = files.get(unit.contents[0]), files.get(unit.label)
        try:
            picture = measured(image) if image is not None and image.suffix.lower() in GRADED_EXTENSIONS else None
            shares = class_shares(mask, len(classes)) if mask is not None else None
        except DataError:
            seen.unreadable += 1
            continue
        seen.read.append(unit)
        seen.pictures += [picture] if picture else []
        seen.shares += [shares.tolist()] if shares is not None else []
    seen.seconds = time.monotonic() - began
    return seen


def told(seen: Measured, survey: Survey, duplicates: int, least: int, earlier: Sequence[Sheet] = ()) -> Sheet:
    """Return of what was seen what may leave, beside what left before about some of the same images."""
    groups = Counter(unit.group for unit in seen.read if unit.group is not None)
    knows_patients = sum(groups.values()) == len(seen.read)
    pictures = seen.pictures if len(seen.pictures) == len(seen.read) else []  # else a total would tell of the others
    shares = np.array(seen.shares) if len(seen.shares) == len(seen.read) else None
    of_pictures: dict[str, Any] = {
        name: _counted(pictures, one, known, least, [getattr(sheet, name) for sheet in earlier])
        for name, one, known in (
            ("formats", "format", FORMATS),
            ("bit_depths", "bit_depth", BIT_DEPTHS),
            ("colours", "colour", COLOURS),
            ("makers", "maker", MAKERS),
        )
    }
    for name in ("longer_side", "shorter_side", "field_of_view", "sharpness"):
        of_pictures[name] = _spread([getattr(picture, name) for picture in pictures], least)
    return Sheet(
        task=survey.task,
        images=rounded(len(seen.read)),
        unreadable=count(seen.unreadable, least, [sheet.unreadable for sheet in earlier]),
        duplicates=count(duplicates, least, [sheet.duplicates for sheet in earlier]),
        patients=(
            count(len(groups), least, [sheet.patients for sheet in earlier if sheet.patients])
            if knows_patients
            else None
        ),
        images_per_patient=_spread(list(groups.values()) if knows_patients else [], least),
        classes=_classes(seen.read, survey.classes, least, [sheet.classes for sheet in earlier]),
        class_shares=(
            {name: spread(shares[:, place].tolist(), least) for place, name in enumerate(survey.classes)}
            if shares is not None and survey.classes
            else {}
        ),
        intensity=_intensity(pictures, least),
        images_per_second=figure_text(len(pictures) / seen.seconds) if pictures and seen.seconds > 0 else None,
        **of_pictures,
    )


def _counted(
    pictures: Sequence[Picture], name: str, known: Sequence[str], least: int, earlier: Sequence[Cells]
) -> Cells:
    found = Counter(getattr(picture, name) for picture in pictures)
    return cells({each: found[each] for each in known}, least, earlier) if pictures else dict.fromkeys(known)


def _classes(units: Sequence[Unit], asked: Sequence[str], least: int, earlier: Sequence[Cells]) -> Cells:
    """Count units by the classes that the survey names; what the site's own files call a class never leaves.

    Tables by other classes of the same images have sums in common from which what each withholds may follow. So only
    one of them tells anything: a later one is withheld, unless the earlier found no image of the classes that it named.
    """
    names = (*asked, OTHER)
    if not asked or all(unit.kind is None for unit in units):
        return {}
    telling = [table for table in earlier if any(cell != "0" for name, cell in table.items() if name != OTHER)]
    if any(set(table) != set(names) for table in telling):
        return dict.fromkeys(names)
    found = Counter(unit.kind if unit.kind in asked else OTHER for unit in units)
    return cells({name: found[name] for name in names}, least, telling)


def _spread(values: Sequence[float], least: int) -> Spread:
    return spread(values, least) if values else Spread(**dict.fromkeys(QUANTILES))


def _intensity(pictures: Sequence[Picture], least: int) -> list[Any]:
    if not pictures:
        return [None] * BINS
    of_all = np.stack([picture.intensity for picture in pictures])  # (N, BINS)
    return bins(of_all.mean(0).tolist(), (of_all > 0).sum(0).tolist(), least)


def by_content(paths: Iterable[Path]) -> tuple[dict[str, Path], Counter[str]]:
    """Return each content's first file, and of each how many copies lie in that file's own folder."""
    files: dict[str, Path] = {}
    copies: Counter[str] = Counter()
    for path in paths:
        digest = hashed(path)
        copies[digest] += digest in files and files[digest].parent == path.parent
        files.setdefault(digest, path)
    return files, copies
