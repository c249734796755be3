"""What lies in this site's folders now, and which blocks of its division are whole there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ActionRequiredError, told_of
from shared.exchange.records.run import Plugin
from shared.learning.apart import Progress, Question
from shared.learning.data.division import Block, Folders, Present, present
from shared.learning.data.recordings import RECORDINGS_FILE
from shared.learning.data.sets import Members, SetName, members_of
from shared.learning.data.splits import SPLIT_FILE
from shared.learning.data.units import Unit, count_groups, settled
from shared.learning.plugins import plugins_of
from shared.learning.tasks import task_named, task_names, words_of
from shared.plurals import pluralize
from site_client.apart import answered
from site_client.configuration import FILE, SiteConfiguration
from site_client.disclosure import FEWEST_GROUPS
from site_client.store import SCRATCH

UNDEALT = "before the first run is agreed to or the first survey arrives"
"""Until when groups, files and ``minimum_count`` may change at no price: the images are dealt then, for good."""


def unit_and_table(task: str) -> tuple[str, str]:
    """Return what a task's units are called, and the table in which a hospital writes their groups."""
    words = words_of(task)
    return words.unit, RECORDINGS_FILE if words.cuts else SPLIT_FILE


def told_ungrouped(task: str) -> str:
    """Return what people should know of a task's images of which none has a group, as long as none is dealt."""
    what, table = unit_and_table(task)
    torn = "two recordings" if what == "recording" else "both eyes"
    return (
        f"nobody has said whose each {what} is: {torn} of a person may be trained on and tested on; name `groups` in "
        f"{FILE}, or a column group in {table}, {UNDEALT}"
    )


def are_ungrouped(units: Iterable[Unit]) -> bool:
    """Return whether nobody has said of any unit what it belongs together with."""
    return all(unit.group is None for unit in units)


def is_dealt(task: str, blocks: Iterable[Block]) -> bool:
    """Return whether images of a task are in blocks: then changed files and newly named groups have a price."""
    return any(task in block.folders for block in blocks)


@dataclass(frozen=True)
class Found:
    """The blocks of a task's images, and of those out of its distribution, if the site names some."""

    own: Present
    ood: Present | None

    def members(self, sets: Mapping[SetName, Sequence[int]]) -> Members:
        """Return the units of each set, as far as its blocks are whole now."""
        of_own = members_of({name: numbers for name, numbers in sets.items() if name != "foreign"}, self.own.blocks)
        if self.ood is None:
            return of_own
        return {**of_own, **members_of({"foreign": sets.get("foreign", ())}, self.ood.blocks)}

    def told_of_few(self, sets: Mapping[SetName, Sequence[int]], least: int) -> str | None:
        """Return what people should know of blocks that are scored and hold images of one or two persons.

        Args:
            least: units in a block; where it is 1, the site says that its images are public.
        """
        blocks = [self.own.blocks[number] for name in ("validation", "test") for number in sets[name]]
        few = sum(count_groups(block) < FEWEST_GROUPS for block in blocks)
        if not few or least == 1:
            return None
        return (
            f"{pluralize(few, 'block')} of validation and test {'is' if few == 1 else 'are'} of fewer than "
            f"{FEWEST_GROUPS} patients or other groups, so scores of one or two people leave; a larger minimum_count "
            f"in {FILE} makes blocks of more, {UNDEALT}"
        )

    def told(self) -> list[str]:
        """Return what people should know of images that are in no set, a sentence for each reason."""
        reasons = (
            ("waiting", "wait until they fill a block: minimum_count new ones of one kind"),
            ("left_out", "are left out with their blocks: one of each is lost or changed, or it is too small"),
            ("barred", "are dealt no more: of their group, their name or their block something was dealt before"),
        )
        return [
            f"{pluralize(number, f'{kind}image')} {why}"
            for kind, found in (("", self.own), ("out_of_distribution ", self.ood))
            if found is not None
            for reason, why in reasons
            if (number := getattr(found, reason))
        ]


def is_used(unit: Unit, labels: Sequence[str] | None) -> bool:
    """Return whether a run uses a unit of its blocks: not at one in a folder of a class that it does not name.

    Args:
        labels: what the run calls the classes; None: as the site does.
    """
    return labels is None or unit.kind is None or unit.kind in labels


def count_used(blocks: Iterable[Sequence[Unit]], labels: Sequence[str] | None) -> int:
    """Return how many images of blocks a run uses: of those of which it reads all."""
    return sum(len(block) for block in blocks if all(is_used(unit, labels) for unit in block))


class UnitsIn(Question[Sequence[Unit]]):
    """What lies in a folder?"""

    task: str
    root: Path
    is_labelled: bool

    def answer(self, on_progress: Progress) -> Sequence[Unit]:
        task = task_named(self.task)
        return task.units(self.root) if self.is_labelled else task.unlabelled_units(self.root)


def units_in(work: Path, site: SiteConfiguration, tasks: Iterable[str]) -> dict[str, tuple[Unit, ...]]:
    """Return what lies in the folders of these tasks, those of out-of-distribution images too.

    Raises:
        DataError: what is wrong in one of them.
        ActionRequiredError: a task is a plug-in's that is not allowed here.
    """
    found: dict[str, tuple[Unit, ...]] = {}
    known = task_names()
    for task in (task for task in tasks if task in known):
        plugins = plugins_of([("tasks", task)])
        _require_allowed(task, plugins, site)
        for name, folders, pattern in (
            (task, site.data, site.groups.get(task)),
            (_ood_of(task), site.out_of_distribution, None),
        ):
            if (folder := folders.get(task)) is not None:
                question = UnitsIn(task=task, root=work / folder, is_labelled=name == task)
                with told_of(name):
                    units = answered(question, site, plugins, scratch=work / SCRATCH)
                    found[name] = settled(units, question.root, pattern)
    return found


def _require_allowed(task: str, plugins: Iterable[Plugin], site: SiteConfiguration) -> None:
    """Check that the wheel which reads a folder may be imported here; no run asks for it, so no run is declined for it.

    Raises:
        ActionRequiredError: it may not.
    """
    for plugin in plugins:
        if site.policy.plugins.get(plugin.name) != plugin.sha256:
            told = f"{FILE}: data: {task} is of the plug-in {plugin.name} {plugin.version}, {plugin.sha256}"
            raise ActionRequiredError(
                f"{told}, which `policy: plugins:` does not allow; write that hash down there if you trust what is "
                f"installed, or take {task} out of `data`"
            )


def all_units(work: Path, site: SiteConfiguration) -> dict[str, tuple[Unit, ...]]:
    """Return what lies in the folders of all tasks: an image that lies in two folders must come into one block."""
    return units_in(work, site, sorted({*site.data, *site.out_of_distribution}))


def find(task: str, here: Folders, blocks: Sequence[Block], least: int, secret: bytes) -> Found:
    """Return which blocks are whole in a task's folder, and in that of out-of-distribution images, if there is one.

    Args:
        least: images in a block.
        secret: of the division.

    Raises:
        DataError: a group lies in two blocks.
    """
    ood = here.get(_ood_of(task))
    return Found(
        present(blocks, task, here[task], least, secret),
        None if ood is None else present(blocks, _ood_of(task), ood, least, secret),
    )


def _ood_of(task: str) -> str:
    """Return what a division calls the folder of images out of the task's distribution."""
    return f"foreign to {task}"
