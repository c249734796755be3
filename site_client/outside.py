"""One round's training by a program of the hospital's own: what it is handed, and what is taken of what it writes.

    /round    round.yaml            the round's settings, and its options
              files.csv             each file that it may learn from, by its set, and its class
              images/ masks/ …      these files, under numbers in the place of their names
              received.safetensors  the model as it came
              start.safetensors     what came with the offer, if something did
    /output   trained.safetensors   the trained model, in a round that trains
              metrics.csv           epoch,split,loss and the scores that the run lists

Nothing that a program writes leaves as it is. The model is written anew, tensor by tensor; of the table only columns
that the run lists are read, and they are reported as our own scores are. All counts are ours.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from shared.doors import Refusal, csv_text
from shared.doors.numbers import decimal, whole
from shared.errors import ActionRequiredError, RejectedError, TransientError
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.names import MAX_RECORD_BYTES
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RoundConfiguration, RunConfiguration
from shared.exchange.records.values import Record
from shared.exchange.tables import SPLITS, Split
from shared.exchange.weights import rewrite_tensors
from shared.folder.durable import link_file, write_file
from shared.folder.ownership import make_folder
from shared.folder.removal import remove_tree
from shared.learning.apart import IsTime, attended, last_words
from shared.learning.data.units import Listed
from shared.learning.metrics import Score
from shared.learning.outside import Listing
from shared.learning.tasks.contract import Dataset, Evaluation
from shared.learning.tasks.terms import EXTERNAL
from shared.sizes import size_text
from site_client import sandbox, store
from site_client.configuration import FILE, Program, SiteConfiguration
from site_client.disclosure import ScoreTable
from site_client.programs import exposed, runnable
from site_client.train import Files, Trainer, Worked

ROUND, LIST, RECEIVED, TRAINED = "round.yaml", "files.csv", "received.safetensors", "trained.safetensors"
LOG = "external-trainer.log"
_HANDED: tuple[Split, ...] = ("train", "validation")
_FIXED = ["epoch", "split", "loss"]
_HEADER_BYTES = 1 << 20  # of a file of tensors, as other programs may write it
_SAID = 500  # characters of an error that may quote what it wrote
_MOST_SAID_BYTES = 64_000_000  # that it may print in a round
_LEFT_BYTES = 1 << 30  # of the disk, which it must not fill
_AT_WORK = 16  # files that a program may have in its directory while it works, such as ones that it renames in the end


class Told(Record):
    """``round.yaml``."""

    run: str
    task: str
    round: int
    epochs: int
    learning_rate: float
    batch_size: int
    seed: int
    classes: list[str]
    options: dict[str, float]
    task_options: dict[str, Any]


def trained_outside(
    trainer: Trainer,
    dataset: Dataset,
    configuration: RoundConfiguration,
    files: Files,
    *,
    work: Path,
    site: SiteConfiguration,
    is_time: IsTime,
    are_the_same: Callable[[], bool],
) -> Worked:
    """Work a round through by a program.

    Args:
        are_the_same: whether the images in the data folder are those of the dataset, by the bytes of their files.

    Raises:
        Stopped: by ``is_time``.
        TransientError: files went or changed since the dataset was read.
        ActionRequiredError: naming the program: it is not as it was allowed, fails, takes too long, or writes something
            else than it may.
    """
    program = runnable(site.policy, trainer.run, site.site)
    for problem in exposed(program, (work, trainer.data)):
        raise ActionRequiredError(problem)
    whose = called(trainer.run, site)
    # 1. The received model is measured here, if the network is one that is known here.
    if trainer.run.task == EXTERNAL:
        table = ScoreTable(configuration, trainer.policy, dataset, own=trainer.run.scores)
    else:
        table = trainer.measured(dataset, configuration, files)
    with _scratch(work) as scratch:
        handed, written, taken = (scratch / name for name in ("round", "output", "taken"))
        for folder in (handed, written, taken):
            folder.mkdir()
        # 2. It is handed copies or links of what it may read, and works, shut in. Files are found by their names: only
        #    once they are linked is it known that under these lies what was agreed to.
        _hand_over(trainer, dataset, configuration, files, handed)
        if not are_the_same():
            raise _changed()
        largest = _largest(trainer)
        _work(program, handed, written, log=work / LOG, site=site, whose=whose, largest=largest, is_time=is_time)
        runnable(site.policy, trainer.run, site.site)  # and is still what was allowed
        # 3. Of what it wrote, exactly what was agreed is taken, by its numbers alone.
        due = [names.METRICS, *([TRAINED] if configuration.epochs else [])]
        try:
            _take(written, taken, due, whose, largest)
            for epoch, split, evaluation in _rows(taken / names.METRICS, trainer, dataset, configuration):
                table.add(epoch, split, evaluation)
            model = None
            if configuration.epochs:
                model = rewrite_tensors(taken / TRAINED, files.trained, trainer.sharing.shared, TRAINED)
        except (Refusal, RejectedError) as error:
            raise ActionRequiredError(
                f"{whose}: what it wrote in round {configuration.round} stays here ({escape(str(error))[:_SAID]}); ask "
                "who wrote it"
            ) from None
    return Worked(len(dataset.train), {names.METRICS: table.content()}, model, {})


@contextmanager
def _scratch(work: Path) -> Iterator[Path]:
    """Make a directory for one round, and remove it with the images in it, whatever a program has made of its part."""
    make_folder(work / store.SCRATCH)
    scratch = Path(tempfile.mkdtemp(prefix="program-", dir=work / store.SCRATCH))
    try:
        yield scratch
    finally:
        remove_tree(scratch)


def called(run: RunConfiguration, site: SiteConfiguration) -> str:
    """Return what people call the program that a site trains a run by."""
    return f"trainer {run.program_at(site.site)} at {site.site}"


# --- what it is handed ------------------------------------------------------------------------------------------


def _hand_over(
    trainer: Trainer, dataset: Dataset, configuration: RoundConfiguration, files: Files, handed: Path
) -> None:
    """Fill the directory that a program reads."""
    run = trainer.run
    told = Told(
        run=run.run,
        task=run.task,
        round=configuration.round,
        epochs=configuration.epochs,
        learning_rate=configuration.learning_rate,
        batch_size=configuration.batch_size,
        seed=configuration.seed,
        classes=list(dataset.classes),
        options=run.trainer.options if run.trainer else {},
        task_options=dict(run.task_options),
    )
    write_file(handed / ROUND, dump_yaml(told), durable=False)
    link_file(files.received, handed / RECEIVED, durable=False)
    if files.start is not None:
        link_file(files.start, handed / names.START, durable=False)
    assert isinstance(trainer.task, Listing)
    listed = {each.id: each for each in trainer.task.listed(trainer.data, trainer.options)}
    samples = [(split, sample.id) for split in _HANDED for sample in getattr(dataset, split)]
    if any(name not in listed for _, name in samples):
        raise _changed()
    handing = [(split, listed[name]) for split, name in samples]
    write_file(handed / LIST, csv_text.write(_listing(handing, dataset.classes, handed)), durable=False)


def _changed() -> TransientError:
    return TransientError("files of the data folder went or changed while a round began: they are listed anew")


def _listing(handing: Sequence[tuple[Split, Listed]], classes: Sequence[str], handed: Path) -> Iterator[list[str]]:
    """Yield the lines of ``files.csv``, and link each file that they name; its own name stays out."""
    folders = sorted({folder for _, each in handing for folder in each.files})
    yield ["split", "label", *folders]
    for number, (split, each) in enumerate(handing, 1):
        told = {folder: f"{folder}/{number:06d}{path.suffix.lower()}" for folder, path in each.files.items()}
        for folder, path in each.files.items():
            link_file(path.resolve(), handed / told[folder], durable=False)
        label = "" if each.label not in classes else str(classes.index(each.label))
        yield [split, label, *(told.get(folder, "") for folder in folders)]


# --- its work ---------------------------------------------------------------------------------------------------


def _largest(trainer: Trainer) -> int:
    """Return the most bytes that a file written by a program may have."""
    numbers = sum(prod(tensor.shape) for tensor in trainer.sharing.tensors.values())
    return 4 * numbers + _HEADER_BYTES + MAX_RECORD_BYTES


def _work(
    program: Program,
    handed: Path,
    written: Path,
    *,
    log: Path,
    site: SiteConfiguration,
    whose: str,
    largest: int,
    is_time: IsTime,
) -> None:
    """Have a program work until it ends well. It is not asked to rest: what it began it ends."""

    def goes_on() -> bool:
        is_time(0)
        _require_few(written, whose, largest)
        _require_quiet(log, whose)
        return True

    too_long = ActionRequiredError(
        f"{whose}: took more than the {program.minutes:g} minutes that {FILE} allows it (policy: external_trainers): "
        f"see what it does, or allow more; what it said is in {log}"
    )
    try:
        child = sandbox.start(program, handed, written, log, largest=largest, threads=site.threads)
    except OSError as error:
        raise ActionRequiredError(f"{whose}: cannot be started ({error.strerror}); install bubblewrap again") from None
    try:
        code = attended(child.poll, program.minutes, goes_on, too_long)
    finally:
        sandbox.end(child)
    _require_quiet(log, whose)
    if code:
        raise ActionRequiredError(
            f"{whose}: ended with an error ({last_words(log, code)}); what it said is in {log}; correct it, or withdraw"
        )


def _require_quiet(log: Path, whose: str) -> None:
    if log.stat().st_size > _MOST_SAID_BYTES:
        raise ActionRequiredError(
            f"{whose}: was ended, for it printed more than {size_text(_MOST_SAID_BYTES)}, which are in {log}; have it "
            "print less"
        )


def _require_few(written: Path, whose: str, largest: int) -> None:
    """Check that a program at work does not fill the disk; a file that it removed while it is open is not listed."""
    if (left := shutil.disk_usage(written).free) < _LEFT_BYTES:
        raise ActionRequiredError(
            f"{whose}: was ended, for only {size_text(left)} are left on the disk with {written}; free some there, or "
            "ask who wrote it"
        )
    found = _listed(written, whose, _AT_WORK + 1)
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in found if _is_there(entry)]
    has_folder = any(entry.is_dir(follow_symlinks=False) for entry in found)
    if len(found) > _AT_WORK or sum(sizes) > 2 * largest or has_folder:
        raise ActionRequiredError(
            f"{whose}: was ended, for it writes more than {TRAINED} and {names.METRICS} into /output; ask who wrote it"
        )


def _listed(written: Path, whose: str, most: int) -> list[os.DirEntry[str]]:
    """Return what a program wrote, or so much of it."""
    try:
        with os.scandir(written) as entries:
            return list(itertools.islice(entries, most))
    except OSError as error:  # it may change the rights
        raise ActionRequiredError(f"{whose}: /output cannot be read ({error.strerror}); ask who wrote it") from None


def _is_there(entry: os.DirEntry[str]) -> bool:
    try:
        entry.stat(follow_symlinks=False)
    except FileNotFoundError:  # renamed meanwhile
        return False
    return True


# --- what it wrote ----------------------------------------------------------------------------------------------


def _take(written: Path, taken: Path, due: Sequence[str], whose: str, largest: int) -> None:
    """Copy what a program wrote, if it is exactly what is due, so that nobody changes it any more.

    Raises:
        RejectedError: it is not.
    """
    found = sorted(entry.name for entry in _listed(written, whose, _AT_WORK))
    for name in due:
        if name not in found:
            raise RejectedError(name, "is not among what it wrote")
    for name in found:
        if name not in due:
            raise RejectedError(
                escape(name[:100]), f"was not asked for: it may write {' and '.join(due)}, and nothing else"
            )
    for name in due:
        _copy(written / name, taken / name, largest if name == TRAINED else MAX_RECORD_BYTES)


def _copy(source: Path, target: Path, largest: int) -> None:
    """Copy a plain file; what is a link, a pipe or a second name of a file is none."""
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise RejectedError(source.name, "is no file that can be read") from None
    with os.fdopen(descriptor, "rb") as reader:
        told = os.fstat(descriptor)
        if not stat.S_ISREG(told.st_mode) or told.st_nlink != 1:
            raise RejectedError(source.name, "is no file of its own")
        if told.st_size > largest:
            raise RejectedError(source.name, f"has {told.st_size} bytes, more than {largest}")
        with target.open("wb") as writer:
            shutil.copyfileobj(reader, writer)


def _rows(
    path: Path, trainer: Trainer, dataset: Dataset, configuration: RoundConfiguration
) -> Iterator[tuple[int, Split, Evaluation]]:
    """Yield what a program says of each epoch and set; columns that the run does not list are dropped.

    Raises:
        Refusal: it is no such table.
    """
    header, *lines = csv_text.parse(path.read_bytes(), MAX_RECORD_BYTES)
    if header[: len(_FIXED)] != _FIXED or len(set(header)) < len(header):
        raise Refusal(f"{path.name} does not begin with the columns {','.join(_FIXED)}, or names a column twice")
    due = _due(trainer, configuration)
    for line in lines:
        if len(line) != len(header):
            raise Refusal(f"{path.name} has a line with another number of cells than the header")
        epoch, split = whole(line[0], digits=5), next((name for name in SPLITS if name == line[1]), None)
        if split is None or (epoch, split) not in due:
            raise Refusal(f"{path.name} has a line for split {line[1]!r} of epoch {epoch}, or a second, not asked for")
        due.remove((epoch, split))
        told = {name: cell for name, cell in zip(header, line, strict=True) if name in trainer.run.scores}
        yield epoch, split, _evaluation(line[2], told, len(getattr(dataset, split)))
    if due:
        epoch, split = min(due)
        raise Refusal(f"{path.name} has no line for split {split!r} of epoch {epoch}")


def _due(trainer: Trainer, configuration: RoundConfiguration) -> set[tuple[int, Split]]:
    """Return which rows a program tells: with a known network the received model is measured here."""
    of_epochs = {(epoch, split) for epoch in range(1, configuration.epochs + 1) for split in _HANDED}
    return of_epochs | ({(0, "validation")} if trainer.run.task == EXTERNAL else set())


def _evaluation(loss: str, told: Mapping[str, str], images: int) -> Evaluation:
    """Return what a row says. Nobody here knows which images its scores are about, so they are about the whole set."""
    scores = {name: Score(decimal(cell) if cell else None, images) for name, cell in told.items()}
    return Evaluation(images, decimal(loss), scores)
