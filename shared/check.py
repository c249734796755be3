"""What the checks look at: the way to a folder, its server, and images, alike for a site and the aggregator.

Each finding is one line. ``note``: it works, only slower. ``warning``: it works, but somebody should know.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast, runtime_checkable

from shared.commands import say
from shared.errors import ActionRequiredError, ConfigurationError, DataError, DropfedError, TransientError, told_of
from shared.escaping import escape
from shared.exchange.names import SCRATCH
from shared.exchange.records.run import RunConfiguration
from shared.folder.address import is_loopback, shown
from shared.folder.capabilities import Capabilities
from shared.folder.contract import Folder
from shared.folder.durable import disk_trouble
from shared.folder.lock import require_private
from shared.folder.way import Way, automatic_configuration, is_exempted
from shared.folder.webdav import WebDavFolder
from shared.learning.apart import Progress, Question
from shared.learning.clashes import clashes
from shared.learning.data.splits import SPLIT_FILE, read_split_file, unit_of
from shared.learning.data.units import Unit
from shared.learning.plugins import described, distributions, provided_by
from shared.learning.tasks import task_named, task_names, words_of
from shared.learning.tasks.terms import Options
from shared.learning.younger import completed
from shared.plurals import pluralize
from shared.sizes import size_text

if TYPE_CHECKING:
    from shared.learning.tasks.contract import Collection, Task
    from shared.learning.tasks.signal_classification import WholeRecording

Grade = Literal["ok", "note", "warning", "problem"]

LITTLE_ROOM_BYTES = 1_000_000_000
CLOCKS_AGREE_S = 5.0
ENDS_SOON = timedelta(days=7)  # of a certificate that nobody has renewed yet
_SHOWN_FILES = 5  # in one line
_SHOWN_CHARACTERS = 80  # of what a server says about itself
_SHOWN_CHANNELS = 20
_MOST_APART = 1.02  # times the lowest rate is the highest: a run's may differ from each by 1 %


@dataclass(frozen=True)
class Finding:
    """One line of a check."""

    grade: Grade
    text: str


def report(findings: Iterable[Finding], *, as_json: bool = False) -> None:
    """Print the findings as they come and how many are problems, or all as JSON at the end.

    Exit with 1 if there is a problem among them.
    """
    told = []
    for finding in findings:
        told.append(finding)
        if not as_json:
            say(f"{finding.grade:8} {finding.text}")
    problems, warnings = (sum(finding.grade == grade for finding in told) for grade in ("problem", "warning"))
    if as_json:
        say(json.dumps({"problems": problems, "findings": [asdict(finding) for finding in told]}, indent=2))
    else:
        say(f"in all   {pluralize(problems, 'problem')}, {pluralize(warnings, 'warning')}")
    if problems:
        raise SystemExit(1)


def with_problems(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what ``look`` finds; an error that ends it becomes a problem."""
    try:
        yield from look()
    except (ConfigurationError, DataError) as error:
        yield from (Finding("problem", problem) for problem in error.problems)
    except TransientError as error:
        yield Finding("problem", f"{error} If it stays so, ask your network people, or whoever runs the server.")
    except DropfedError as error:
        yield Finding("problem", str(error))
    except OSError as error:
        yield Finding("problem", str(disk_trouble(error, Path.cwd())))


def look_at_rights(work: Path) -> Iterator[Finding]:
    """Check that nobody but its owner can enter a work directory.

    Raises:
        ActionRequiredError: others may.
    """
    require_private(work)
    yield Finding("ok", f"rights: nobody but its owner enters {work}")


def look_at_plugins(allowed: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Report which plug-ins are installed and which are allowed; import none.

    Args:
        allowed: SHA-256 by name, as this machine's people have written them down.
        where: the file and key in which they did.
    """
    here = distributions()
    for name, distribution in here.items():
        plugin = described(distribution)
        told = f"plug-in {name} {plugin.version}, {plugin.sha256}"
        if name not in allowed:
            yield Finding("note", f"{told}: is installed and not allowed; {where} says which are")
        elif allowed[name] != plugin.sha256:
            yield Finding(
                "problem",
                f"{told}: is installed, and {where} allows the files {allowed[name][:16]}…; if you trust what is "
                "installed, write down its hash, else install the allowed wheel again",
            )
        else:
            yield Finding("ok", f"plug-in {plugin.in_full}: allowed; provides {', '.join(provided_by(distribution))}")
    yield from (Finding("problem", told) for told in clashes())
    for name in sorted(allowed.keys() - here.keys()):
        yield Finding("warning", f"plug-in {name}: {where} allows it, and it is not installed; install its wheel")


def look_at_way(url: str, ca_file: Path | None, settings: str) -> Iterator[Finding]:
    """Check that the server can be reached: proxy, name, connection, certificate. No password is sent.

    Args:
        ca_file: certificates to trust instead of the public ones.
        settings: the file that names both, as people should read it.

    Raises:
        DropfedError: it cannot.
    """
    way = Way.to(url, settings)
    if way.proxy is not None and way.proxy.startswith("https:"):
        yield Finding("note", f"proxy: {way.shown_proxy}, spoken to by TLS itself; it is not looked at alone")
        return
    if way.proxy is not None:
        yield Finding("ok", f"proxy: {way.shown_proxy}, as the environment says (HTTPS_PROXY)")
    elif is_exempted(url):
        yield Finding("ok", f"proxy: none to {way.host}, as NO_PROXY says or because it is this machine")
    else:
        yield Finding("ok", "proxy: none; HTTPS_PROXY is not set")
        if (pac := automatic_configuration()) is not None and not is_loopback(url):
            yield Finding(
                "note",
                f"proxy: {pac} sets the proxy for browsers here, which dropfed does not read; if no connection comes "
                "about, set HTTPS_PROXY=http://PROXY:PORT as that file (PAC) says",
            )
    if way.proxy is None and (addresses := way.addresses()) != [way.host]:
        yield Finding("ok", f"name: {way.host} is {', '.join(addresses[:4])}")
    if not way.is_https:
        way.connect()
        return
    certificate, version = way.greet(ca_file)
    yield Finding("ok", f"TLS: {version}, certificate by {certificate.issuer!r} until {certificate.ends:%Y-%m-%d}")
    if certificate.reads_along:
        yield Finding(
            "note",
            "TLS: that authority is called like a program of the network that reads along; it can see the password and "
            "all that passes, and a change to a message would be noticed",
        )
    if certificate.ends - datetime.now(UTC) < ENDS_SOON:
        yield Finding("warning", f"TLS: the certificate ends on {certificate.ends:%Y-%m-%d}; have it renewed in time")


def look_at_server(folder: Folder, on_measured: Callable[[Capabilities], object]) -> Iterator[Finding]:
    """Check that the folder can be entered, and what its server can do; a scratch folder there is removed again.

    Args:
        on_measured: told what its server can do.

    Raises:
        DropfedError: it cannot be used.
    """
    folder.check()
    if not isinstance(folder, WebDavFolder):
        yield Finding("ok", "the folder is there, on this machine")
        yield _room(folder.room())
        return
    yield Finding("ok", f"{shown(folder.url)} answers, and the password is right")
    found = folder.capabilities(free_scratch(folder))
    on_measured(found)
    yield Finding(
        "ok", f"server: {_shown(found.software)}, {'https' if found.is_https else 'http'}, {found.login} login"
    )
    yield Finding("ok", "create: yes, files and folders")
    yield _move(found)
    yield _or_note(found.copies, "COPY", "the same model is sent anew into each folder of this server")
    yield _or_note(found.ranges, "Range", "a download that is cut begins anew")
    yield _or_note(found.chunked_uploads, "chunked upload", "an upload that is cut begins anew")
    yield _or_note(found.conditional_puts, "conditional PUT", "nothing relies on it where MOVE works")
    yield _or_note(found.etags, "ETags", "whether a file is still the same shows only when it has come whole")
    yield _or_note(found.etags_propagate, "ETag propagation", "news are looked for in each directory where they may be")
    yield _or_note(found.checksums, "checksums", "only our own SHA-256 tells whether a file is right")
    yield _room(found.room_bytes)
    yield _clock(found.clock_ahead_s)
    if found.left_behind is None:
        yield Finding("ok", "DELETE: yes")
    else:
        yield Finding("warning", f"DELETE: no; the folder {found.left_behind} stays there, means nothing, and may go")


def free_scratch(folder: Folder) -> str:
    """Return the first name of a scratch folder that is free.

    Raises:
        ActionRequiredError: none is.
    """
    taken = {entry.name for entry in folder.list("")}
    free = [name for name in SCRATCH if name not in taken]
    if not free:
        raise ActionRequiredError(
            f"{SCRATCH[0]} to {SCRATCH[-1]} are all in the folder, left by checks that were cut off: remove them"
        )
    return free[0]


def said_in_place(key: str, task: str) -> str:
    """Return how settings that name no folder yet are to name one: a key that is there twice is refused."""
    return f"write `{key}: {{{task}: DIR}}`, in place of `{key}: {{}}`"


def names_no_folder(file: str, key: str) -> Finding:
    """Return what is said where settings name no folder of images yet."""
    tasks = " or ".join(task_names())
    return Finding("warning", f"{file}: {key}: names no folder yet; {said_in_place(key, 'TASK')}, with {tasks}")


class LookAtImages(Question[list[Finding]]):
    """Can the images of a task be read, with their labels if they have some?

    Args:
        setting: where the folder is named, as in "site.yaml: data".
        run: the newest one; if it is of this task, they are read as it reads them.
    """

    setting: str
    task: str
    root: Path
    is_labelled: bool
    run: RunConfiguration | None

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"looking at the images of {self.task}"

    def answer(self, on_progress: Progress) -> list[Finding]:
        """See ``Question``."""
        look = look_at_images if self.is_labelled else look_at_ood
        return list(look(self.setting, self.task, self.root, self.run))


def look_at_images(setting: str, task_name: str, root: Path, run: RunConfiguration | None = None) -> Iterator[Finding]:
    """Check that all images and labels for a task can be read.

    Args:
        setting: where the folder is named, as in "site.yaml: data".
        run: as of ``LookAtImages``.

    Raises:
        DropfedError: some cannot.
    """
    task = _task_of(setting, task_name)
    options = options_by(task, run)
    with told_of(_as_read(task_name, options, run)):
        found = open_labelled(task, root, options, labels_of(task.units(root)))
        if (root / SPLIT_FILE).exists():
            read_split_file(root / SPLIT_FILE, [*dict.fromkeys(unit_of(sample.id) for sample in found.samples)])
    classes, units = ", ".join(found.classes), {unit_of(sample.id) for sample in found.samples}
    counted = pluralize(len(units), f"labelled {words_of(task_name).unit}")
    yield Finding("ok", f"{task_name}: {counted} in {root}; classes: {classes}")
    if task.labels_pixels:
        yield from look_at_masks(task, root, found.classes)
    yield from look_at_levels(task, root)
    if seen_whole(task, options) is not None:
        yield from look_at_whole(task, found.samples)
    yield from _held_out(task, found)


def options_by(task: Task, run: RunConfiguration | None) -> Options | None:
    """Return the options by which a run reads files; None if it is of another task, or asks for what is not known here.

    Args:
        run: None: there is none.
    """
    with suppress(ConfigurationError):
        if run is not None and run.task == task.name:
            return cast(Options, task.options(run.task_options))
    return None


def _as_read(task_name: str, options: Options | None, run: RunConfiguration | None) -> str:
    """Return how each problem begins: the task, and the run whose options the files are read by."""
    return task_name if run is None or options is None else f"{task_name}, as run {run.run} reads it"


@runtime_checkable
class Cutting(Protocol):
    """A task that reads of each recording what a run's options name: before a run they are looked at whole."""

    def open_whole(self, root: Path) -> Collection[WholeRecording]:
        """Read each recording of a labelled folder as far as that depends on no run; each is one sample.

        Raises:
            DataError: names every problem of every file.
        """

    def open_whole_unlabelled(self, path: Path) -> Sequence[WholeRecording]:
        """Read one recording, or each of a folder, likewise.

        Raises:
            DataError: names every problem of every file.
        """


def seen_whole(task: Task, options: Options | None) -> Cutting | None:
    """Return the task if only a run's options say what is read of its files, and there are none; else None."""
    return task if options is None and isinstance(task, Cutting) else None


def open_labelled(task: Task, root: Path, options: Options | None, labels: Sequence[str]) -> Collection:
    """Read a labelled folder.

    Args:
        options: of a run; None: there is none.
        labels: of the folder, for that case.

    Raises:
        DataError: names every problem of every file.
    """
    if (cutting := seen_whole(task, options)) is not None:
        return cutting.open_whole(root)
    return task.open_images(root, options or usual_options(task, labels))


def look_at_whole(task: Task, recordings: Sequence[WholeRecording]) -> Iterator[Finding]:
    """Report what recordings have in common, of which a run asks some; warn of what no run could ask of all."""
    held = {recording.id: recording.held for recording in recordings}
    channels = [*dict.fromkeys(name for each in held.values() for name in each.channels)]
    lacking = {name: [id_ for id_, each in held.items() if name not in each.channels] for name in channels}
    common = [name for name in channels if not lacking[name]]
    shortest, rates = min(each.seconds for each in held.values()), [each.rate_hz for each in held.values()]
    slowest, fastest = min(rates), max(rates)
    rate = f"{slowest:g} Hz" if slowest == fastest else f"{slowest:g} to {fastest:g} Hz"
    yield Finding(
        "ok",
        f"{task.name}: each recording lasts {shortest:g} s or more, at {rate}"
        f"{f', with {_some(common)}' if common else ''}; what a run asks of them is looked at once there is one",
    )
    if odd := [name for name in channels if lacking[name]]:
        yield Finding(
            "warning",
            f"{task.name}: not in each recording, or not with a finite number in each row: {_some(odd)}, as of "
            f"{escape(lacking[odd[0]][0])}; a run that names them takes no such recording: fill such gaps in, or "
            "correct the header",
        )
    if channels and fastest > slowest * _MOST_APART:
        yield Finding(
            "warning", f"{task.name}: the rates differ, {rate}, and a run takes one alone; resample the others to it"
        )


def _some(names: Sequence[str]) -> str:
    """Return names in one line, not all of very many."""
    return escape(", ".join(names[:_SHOWN_CHANNELS]) + (", …" if len(names) > _SHOWN_CHANNELS else ""))


def labels_of(units: Iterable[Unit]) -> list[str]:
    """Return what a folder calls the classes of its images, in the order of the alphabet."""
    return sorted({unit.kind for unit in units if unit.kind is not None})


def usual_options(task: Task, labels: Sequence[str]) -> Options:
    """Return a task's options before a run has named any: the usual ones, with a folder's labels if these are others.

    Args:
        labels: of the folder; none, or too few: the usual ones hold.
    """
    of_now = completed({}, getattr(task, "form", Options))
    usual: Options = task.options(of_now)
    if hasattr(usual, "labels") and not set(labels) <= set(usual.class_names or labels):
        with suppress(ConfigurationError):  # no run can have such labels, which is then told of each
            return cast(Options, task.options({**of_now, "labels": labels}))
    return usual


def look_at_masks(task: Task, root: Path, classes: Sequence[str], until: str = "") -> Iterator[Finding]:
    """Report the masks, of readable images, that may mean something else than they say.

    Args:
        until: when the files may be changed, said behind each remedy.
    """
    from shared.learning.data.images import odd_masks  # noqa: PLC0415  (keeps --help instant)

    odd = odd_masks(root, len(classes))
    if odd.empty:
        count = pluralize(len(odd.empty), "mask is", "masks are")
        remedy = "; if something is to be seen there, mark it"
        yield _about(task, f"{count} empty, {classes[0]} all over", odd.empty, remedy + until)
    if odd.full:
        count = pluralize(len(odd.full), "mask has", "masks have")
        remedy = f"; what is {classes[0]} there must be 0"
        yield _about(task, f"{count} no pixel of {classes[0]}", odd.full, remedy + until)
    if odd.grey:
        count = pluralize(len(odd.grey), "mask has", "masks have")
        remedy = f": every value but 0 is taken for {classes[1]}; save what is meant as black and white"
        yield _about(task, f"{count} grey values", odd.grey, remedy + until)
    if odd.turned:
        what = pluralize(len(odd.turned), "image and its mask say", "images and their masks say")
        remedy = ": all is well if each mask fits its image as viewers show both; else save both without that mark"
        yield _about(task, f"{what} different turns in their EXIF", odd.turned, remedy + until)


def look_at_levels(task: Task, root: Path, until: str = "") -> Iterator[Finding]:
    """Report the images that a model sees almost black, as 12 bits in a file of 16.

    Args:
        until: as for ``look_at_masks``.
    """
    from shared.learning.data.images import dim_images  # noqa: PLC0415  (keeps --help instant)

    if dim := dim_images(root):
        count = pluralize(len(dim), "image reaches", "images reach")
        remedy = ", and may be seen almost black; export levels up to the file's highest (12 bits in 16: times 16)"
        yield _about(task, f"{count} less than an eighth of what the file can say", dim, remedy + until)


def _about(task: Task, what: str, files: Sequence[Path], remedy: str) -> Finding:
    """Return a warning that names some of the files that it is about."""
    from shared.learning.data.images import short_name  # noqa: PLC0415  (keeps --help instant)

    more = ", …" if len(files) > _SHOWN_FILES else ""
    some = escape(", ".join(short_name(path) for path in files[:_SHOWN_FILES]) + more)
    return Finding("warning", f"{task.name}: {what}, as {some}{remedy}")


def _held_out(task: Task, found: Collection) -> Iterator[Finding]:
    """Check that images tell a good model from a bad one."""
    from shared.learning.targets import target_counts  # noqa: PLC0415  (keeps --help instant)

    unit, piece = words_of(task.name).unit, words_of(task.name).input
    one = f"{unit} or person" if found.groups else piece
    groups = [found.group_of(sample) for sample in found.samples]
    if len(set(groups)) == 1:
        yield Finding("warning", f"{task.name}: there is one {one} alone, and its score says little; add others")
        return
    shows = target_counts(task, found.samples, len(found.classes)) > 0  # (N, K)
    of_each = [{group for group, does in zip(groups, each, strict=True) if does} for each in shows.T]
    absent, rare = ([name for name, of in zip(found.classes, of_each, strict=True) if len(of) == n] for n in (0, 1))
    if len(found.classes) - len(absent) == 1:
        (only,) = set(found.classes) - set(absent)
        yield Finding(
            "warning",
            f"{task.name}: every {unit} shows {only} alone, so that a model which always says so scores best; correct "
            f"the labels, or add {unit}s of others",
        )
    elif absent:
        yield Finding(
            "warning", f"{task.name}: no {unit} shows {', '.join(absent)}, which is not checked then; add some"
        )
    if rare:
        yield Finding(
            "warning",
            f"{task.name}: one {one} alone shows {', '.join(rare)}, which is too few for methods that leave part of "
            "the model at the sites; add a second",
        )


def look_at_ood(setting: str, task_name: str, root: Path, run: RunConfiguration | None = None) -> Iterator[Finding]:
    """Check that all of a task's out-of-distribution images can be read.

    Args:
        setting: where the folder is named.
        run: as of ``LookAtImages``.

    Raises:
        ConfigurationError: there is no such task.
        DataError: names every file that cannot be read.
    """
    task = _task_of(setting, task_name)
    options = options_by(task, run)
    with told_of(_as_read(task_name, options, run)):
        if (cutting := seen_whole(task, options)) is not None:
            found = cutting.open_whole_unlabelled(root)
        else:
            found = task.open_unlabelled(root, options or usual_options(task, ()))
    units = {unit_of(sample.id) for sample in found}
    counted = pluralize(len(units), f"out-of-distribution {words_of(task_name).unit}")
    yield Finding("ok", f"{task_name}: {counted} in {root}")
    if seen_whole(task, options) is not None:
        yield from look_at_whole(task, found)


def require_task(setting: str, task_name: str) -> None:
    """Check that there is a task of this name.

    Args:
        setting: where it is named.

    Raises:
        ConfigurationError: there is none.
    """
    if task_name not in task_names():
        raise ConfigurationError([f"{setting}: there is no task {task_name}; the tasks are {', '.join(task_names())}"])


def _task_of(setting: str, task_name: str) -> Task:
    require_task(setting, task_name)
    return task_named(task_name)


def _or_note(can: bool, what: str, otherwise: str) -> Finding:
    return Finding("ok", f"{what}: yes") if can else Finding("note", f"{what}: no; {otherwise}")


def _move(found: Capabilities) -> Finding:
    if found.moves_are_forbidden:
        return Finding("warning", "MOVE: forbidden to this user; small files are written straight to their names")
    if not found.moves or not found.replaces:
        missing = "no" if not found.moves else "not onto a file that is there, even if asked to"
        return Finding("problem", f"MOVE: {missing}; have it allowed, small files cannot be put in place without it")
    if not found.keeps:
        return Finding("warning", "MOVE: also onto a file that must be kept; two who write one name are not noticed")
    if not found.replaces_at_once:
        return Finding("note", "MOVE: yes; while it replaces a file, readers may find none and have to look again")
    return Finding("ok", "MOVE: yes, and onto another file only if asked to")


def _room(room_bytes: int | None) -> Finding:
    if room_bytes is None:
        return Finding("ok", "room: the server tells no limit")
    text = f"room: {size_text(room_bytes)} left"
    if room_bytes < LITTLE_ROOM_BYTES:
        return Finding("warning", f"{text}; free some space or have the quota raised before large models come")
    return Finding("ok", text)


def _clock(ahead_s: float | None) -> Finding:
    if ahead_s is None:
        return Finding("note", "clock: the server does not tell its time")
    if abs(ahead_s) <= CLOCKS_AGREE_S:
        return Finding("ok", f"clock: the server's and this machine's agree to within {CLOCKS_AGREE_S:g} s")
    direction = "ahead of" if ahead_s > 0 else "behind"
    return Finding(
        "warning",
        f"clock: the server's is {abs(ahead_s):.0f} s {direction} this machine's; nothing depends on it, "
        "but times in logs and messages will not fit together",
    )


def _shown(software: str) -> str:
    """Return what a server says about itself, fit for a terminal."""
    text = "".join(char for char in software if char.isprintable()).strip()
    return text[:_SHOWN_CHARACTERS] or "one that does not say its name"
