"""What ``check`` says about the hospital's images: how a run would divide them, copies, and what names people.

Everything here stays here: the lines are for the people of the hospital alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from shared.check import (
    Finding,
    labels_of,
    look_at_levels,
    look_at_masks,
    look_at_whole,
    open_labelled,
    options_by,
    require_task,
    seen_whole,
    usual_options,
)
from shared.errors import ConfigurationError, DataError, told_of
from shared.escaping import escape
from shared.exchange.reading import check_record
from shared.exchange.records.run import RunConfiguration
from shared.learning.apart import Progress, Question
from shared.learning.data.division import deal
from shared.learning.data.graded_images import GRADED_EXTENSIONS
from shared.learning.data.headers import BURNT_IN, SOUND, fields_that_may_name
from shared.learning.data.images import files_within, short_name
from shared.learning.data.labelled_photographs import meant_class
from shared.learning.data.sets import Members, sets_of
from shared.learning.data.splits import SPLITS, SplitPlan, unit_of
from shared.learning.plugins import plugins_of
from shared.learning.seeds import split_seed
from shared.learning.targets import classes_text, target_counts
from shared.learning.tasks import task_named, words_of
from shared.learning.tasks.contract import Dataset, Sample, Task, divided
from shared.plurals import pluralize
from site_client.apart import answered
from site_client.configuration import FILE, SiteConfiguration
from site_client.disclosure import withheld
from site_client.division import division_here
from site_client.folders import (
    UNDEALT,
    are_ungrouped,
    find,
    is_dealt,
    is_used,
    told_ungrouped,
    unit_and_table,
    units_in,
)
from site_client.policy import labels_named_by
from site_client.store import SCRATCH

SHOWN = 5
"""So many files are named in one line."""
_UNTIL = f"; do so {UNDEALT}"
_TOO_LATE = (
    "; but these images are dealt: changed files are used by no run until `accept-division`, so keep the files as they "
    "are"
)
"""Until when files may be changed, which is said behind each remedy that changes some."""
Parts = dict[str, Sequence[Sample]]


def look_at_own_images(
    task_name: str, work: Path, configuration: SiteConfiguration, run: RunConfiguration | None
) -> Iterator[Finding]:
    """Read every image and label for a task, as the daemon does, and say what is there. Nothing is dealt for good.

    Args:
        run: the newest run that was offered; if it is of this task, blocks are dealt out to sets as it asks.

    Raises:
        DataError: some cannot be read, or do not make the sets.
        ActionRequiredError: the division that is kept here cannot be read.
    """
    require_task(f"{FILE}: data", task_name)
    root, plugins = work / configuration.data[task_name], plugins_of([("tasks", task_name)])
    run = run if run is not None and run.task == task_name else None
    by = f"run {run.run}" if run else "a run with the usual settings"
    division = division_here(work)
    until = _TOO_LATE if is_dealt(task_name, division.blocks) else _UNTIL
    least = configuration.policy.minimum_count
    asked = LookAtOwn(task=task_name, root=root, run=run, by=by, least=least, until=until)
    try:
        here = units_in(work, configuration, [task_name])
    except DataError:
        with told_of(task_name):
            answered(asked, configuration, plugins, scratch=work / SCRATCH)  # tells what is wrong with the images, too
        raise
    blocks = deal(division.blocks, here, least, division.key)
    with told_of(task_name):
        found = find(task_name, here, blocks, least, division.key)
        sets = sets_of(found.own.blocks, _plan(run), split_seed(run.seed if run else 0, configuration.site))
        members = found.members(sets)
        units = here[task_name]
        asked = asked.model_copy(update={"members": members, "count": len(units), "labels": labels_of(units)})
        yield from answered(asked, configuration, plugins, scratch=work / SCRATCH)
    if are_ungrouped(units) and not is_dealt(task_name, division.blocks):
        yield Finding("warning", f"{task_name}: {told_ungrouped(task_name)}")
    if (few := found.told_of_few(sets, least)) is not None:
        yield Finding("warning", f"{task_name}: {few}")
    for sentence in found.told():
        yield Finding("note", f"{task_name}: {sentence}")
    labels = labels_named_by(run) if run is not None else None
    unused = {unit.id: unit.kind or "" for unit in units if not is_used(unit, labels)}
    if unused:
        yield Finding("note", f"{task_name}: {by} names no class of some folders, and {_told_unused(unused)}")
        dealt = is_dealt(task_name, division.blocks)
        yield from _nearly(task_name, by, sorted(set(unused.values())), labels or (), dealt=dealt)
    wanted, unit = configuration.policy.minimum_training_images, words_of(task_name).unit
    torn = {member.block for unit, member in members["train"].items() if unit in unused}
    if (trained := sum(member.block not in torn for member in members["train"].values())) < wanted:
        yield Finding(
            "warning",
            f"{task_name}: {by} would train on {pluralize(trained, unit)} here, and "
            f"minimum_training_images in {FILE} (policy:) is {wanted}: this site will decline it, and every run that "
            f"trains on fewer than {wanted}; add {unit}s, or lower that number and start the daemon anew",
        )
    yield from _named(task_name, image_files(root), until)


class LookAtOwn(Question[list[Finding]]):
    """How would a run divide the images of a task, and what do they show?

    Args:
        run: whose options they are read by, if it asks for what this software knows.
        by: what people call it.
        members: of each set; None: they make none, and are read to see what is wrong with them.
        count: how many labelled images there are.
        labels: what they call their classes.
        least: images in a block.
        until: when files may be changed, said behind each remedy.
    """

    task: str
    root: Path
    run: RunConfiguration | None
    by: str
    members: Members | None = None
    count: int = 0
    labels: list[str] = []
    least: int = 1
    until: str = ""

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"looking at the images of {self.task}"

    def answer(self, on_progress: Progress) -> list[Finding]:
        """See ``Question``."""
        return list(self._findings())

    def _findings(self) -> Iterator[Finding]:
        task = task_named(self.task)
        options = options_by(task, self.run)
        if self.members is None:
            open_labelled(task, self.root, options, self.labels)
            return
        cutting = seen_whole(task, options)
        whole = cutting.open_whole(self.root) if cutting is not None else None
        if whole is not None:
            dataset: Dataset = divided(whole, self.members)
        else:
            dataset = task.open_dataset(self.root, options or usual_options(task, self.labels), self.members)
        parts: Parts = {name: getattr(dataset, name) for name in SPLITS}
        counted = pluralize(self.count, f"labelled {words_of(self.task).unit}")
        classes = f"; classes: {', '.join(dataset.classes)}" if dataset.classes else ""
        yield Finding("ok", f"{self.task}: {counted} in {self.root}{classes}")
        if task.labels_pixels:
            yield from look_at_masks(task, self.root, dataset.classes, self.until)
        yield from look_at_levels(task, self.root, self.until)
        divides = f"{self.by} {'divides them' if self.run else 'would divide them, for example,'}"
        yield from _divided(task, dataset, parts, divides)
        if self.least > 1 and task.selection_score in withheld(dataset.validation, dataset.blocks):
            yield Finding(
                "warning",
                f"{self.task}: validation {task.selection_score} stays here, and no run chooses its model by this "
                "site's: a block of its validation images holds several classes; only groups of one class each, with "
                f"enough images of each class for three blocks, would change that{self.until}",
            )
        yield _copies(self.task, parts)
        if whole is not None:
            yield from look_at_whole(task, whole.samples)


def _told_unused(unused: Mapping[str, str]) -> str:
    """Return how many images a run leaves out.

    Args:
        unused: their classes, by their ids.
    """
    of_each = Counter(unused.values()).most_common()
    named = ", ".join(f"{escape(kind)} {number}" for kind, number in of_each[:SHOWN])
    more = ", …" if len(of_each) > SHOWN else ""
    return f"uses none of the {pluralize(len(unused), 'image')} in them, nor others of their blocks: {named}{more}"


def _nearly(task_name: str, by: str, kinds: Sequence[str], labels: Sequence[str], *, dealt: bool) -> Iterator[Finding]:
    """Warn about folders that are left out, though a class of the run's is called almost so.

    Args:
        kinds: the folders' names.
        dealt: whether images here are dealt: a folder that is renamed would take its images out of their blocks.
    """
    remedy = "have the run name it as your folder does, whose images are dealt" if dealt else "rename the folder"
    for kind in kinds:
        if (meant := meant_class(kind, labels)) is not None:
            yield Finding("warning", f"{task_name}: {escape(kind)}: {by} calls a class {meant}; {remedy}")


def image_files(root: Path) -> list[Path]:
    """Return every image and sound of a data folder, whatever the task makes of it."""
    return files_within(root, (*GRADED_EXTENSIONS, SOUND))


def _plan(run: RunConfiguration | None) -> SplitPlan:
    """Return how a run divides its images, or the usual way where it asks for what is not known here."""
    with suppress(ConfigurationError):
        if run is not None:
            return check_record(run.split, SplitPlan, "split")
    return SplitPlan()


def _divided(task: Task, dataset: Dataset, parts: Parts, divides: str) -> Iterator[Finding]:
    """Yield how many images are in each set; of each class, if classes are named."""
    told, lacking = [], []
    for name, samples in parts.items():
        if not dataset.classes:  # those of ``external`` are named by a run alone
            told.append(f"{name} {_counted(task.name, samples)}")
            continue
        of_each = target_counts(task, samples, len(dataset.classes))
        told.append(f"{name} {_counted(task.name, samples)} ({classes_text(of_each, dataset.classes)})")
        if absent := [
            called for called, count in zip(dataset.classes, of_each.sum(0).tolist(), strict=True) if count == 0
        ]:
            lacking.append(f"{name} has none of {', '.join(absent)}")
    yield Finding("ok", f"{task.name}: {divides} into {'; '.join(told)}")
    if lacking:
        yield Finding(
            "warning", f"{task.name}: {'; '.join(lacking)}: what is absent there is not learnt, or not measured"
        )


def _counted(task_name: str, samples: Sequence[Sample]) -> str:
    """Return how many images there are; of recordings, and of what a run cuts from them, both."""
    words, units = words_of(task_name), {unit_of(sample.id) for sample in samples}
    if not words.cuts:
        return str(len(samples))
    whole = pluralize(len(units), words.unit)
    return whole if {sample.id for sample in samples} == units else f"{whole}, {pluralize(len(samples), words.input)}"


def _copies(task_name: str, parts: Parts) -> Finding:
    """Check whether the same image, pixel by pixel as it is trained on, lies in two splits under two names.

    Of recordings each piece is compared in which a channel changes with time: in many the same silence lies.
    """
    what, table = unit_and_table(task_name)
    same: dict[bytes, dict[tuple[str, str], None]] = defaultdict(dict)  # by content, the units and their splits
    for name, samples in parts.items():
        for sample in samples:
            unit, values = unit_of(sample.id), np.ascontiguousarray(sample.image)
            if unit != sample.id and (values == values[:, :1]).all():  # (C, W), or a picture of (H, W, C)
                continue
            digest = hashlib.sha256(f"{values.dtype}{values.shape}".encode())
            digest.update(values.tobytes())
            same[digest.digest()][unit, name] = None
    torn = [*dict.fromkeys(tuple(units) for units in same.values() if len({name for _, name in units}) > 1)]
    if not torn:
        return Finding("ok", f"{task_name}: no {what} lies in two splits under two names")
    shown = "; ".join(" = ".join(f"{unit} ({name})" for unit, name in units[:SHOWN]) for units in torn[:SHOWN])
    more = f"; and {len(torn) - SHOWN} more" if len(torn) > SHOWN else ""
    return Finding(
        "warning",
        f"{task_name}: {pluralize(len(torn), f'{what} lies', f'{what}s lie')} in two splits under two names, and "
        f"scores over them mean nothing: {escape(shown)}{more}; remove the copies, or put them into one group of "
        f"{table}",
    )


def _named(task_name: str, files: Sequence[Path], until: str) -> Iterator[Finding]:
    """Report what the files say beside their pixels, or sounds.

    Args:
        until: when files may be changed.
    """
    if not files:
        yield Finding(
            "note", f"{task_name}: its files are no images or sounds, and are not looked through for what names people"
        )
        return
    found = {path: fields for path in files if (fields := fields_that_may_name(path))}
    naming = {path: [field for field in fields if field != BURNT_IN] for path, fields in found.items()}
    naming = {path: fields for path, fields in naming.items() if fields}
    looked = pluralize(len(files), "file")
    burnt = [path for path, fields in found.items() if BURNT_IN in fields]
    if naming:
        fields = sorted({field for each in naming.values() for field in each})
        listed = escape(", ".join(field[:40] for field in fields[:SHOWN])) + (", …" if len(fields) > SHOWN else "")
        yield Finding(
            "warning",
            f"{task_name}: {len(naming)} of {looked} hold text beside their pixels that may name people "
            f"({listed}), as {_some(list(naming))}: it is never read for training and never leaves, but it is there; "
            f"export them without it{until}",
        )
    if burnt:
        yield Finding(
            "warning",
            f"{task_name}: {len(burnt)} of {looked} say that text is burnt into their pixels ({BURNT_IN}), "
            f"as {_some(burnt)}: no pixel ever leaves, but what is trained sees it; export them without it{until}",
        )
    if not found:
        yield Finding(
            "ok", f"{task_name}: the files name nobody beside their pixels; text within the pixels is not looked for"
        )


def _some(files: Sequence[Path]) -> str:
    return escape(", ".join(short_name(path) for path in files[:SHOWN]) + (", …" if len(files) > SHOWN else ""))
