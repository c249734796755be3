"""The content check: every file is what its name says, whole, and nothing else.

A manifest proves who sent a file, not that it may leave a hospital: a malicious site signs whatever it likes. So each
file has to be of its declared kind from its first byte to its last, with no room for anything beside:

    records     exactly the keys of their schema, texts bounded; canonical JSON, or YAML without comments or text blocks
    run.yaml    besides, exactly the options of its task and method
    config.yaml exactly what follows from the run that was offered
    metrics.csv the declared columns, one row for each epoch and split of its round, and nothing but numbers
    tensors     exactly the arrays that the offer lists, whose bytes fill the file, without ``__metadata__``

What is not says so, and what it looks like by its first or last bytes. What is in the numbers of a model cannot be
judged by looking: it is as many numbers as were agreed to, no more. Whether they are finite is the verdict's to say.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from shared.audit import protocol_1
from shared.audit.reading import Reading
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.encoding import check_encoded
from shared.exchange.names import MessageRef
from shared.exchange.reading import check_record
from shared.exchange.records.answers import Reliability
from shared.exchange.records.files import RECORDS
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.values import Payload
from shared.exchange.records.wire import PLAIN
from shared.exchange.tables import read_metrics, require_of_round
from shared.exchange.trust import Message
from shared.exchange.weights import layout_of
from shared.learning.answers import epochs_of
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import REFERENCES, method_names, open_terms
from shared.learning.methods.terms import Terms
from shared.learning.schedules import round_configuration
from shared.learning.tasks import TASK_NAMES, terms_of

_BEGINNINGS = {
    b"\x89PNG\r\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"II*\x00": "a TIFF image",
    b"MM\x00*": "a TIFF image",
    b"BM": "a BMP image",
    b"%PDF": "a PDF document",
    b"PK\x03\x04": "a zip archive, which a PyTorch file is too",
    b"\x1f\x8b": "a gzip archive",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"Rar!": "a RAR archive",
    b"\x7fELF": "an executable (ELF)",
    b"MZ": "an executable (Windows)",
    b"\xcf\xfa\xed\xfe": "an executable (macOS)",
    b"#!": "a script",
    b"\x89HDF": "an HDF5 file",
    b"SQLite": "a database",
    b"\x93NUMPY": "a NumPy file",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
}
_DICOM_AT, _TAR_AT = 128, 257
_ZIP_END, _ZIP_DIRECTORY, _ZIP64_LOCATOR = b"PK\x05\x06", b"PK\x01\x02", b"PK\x06\x07"
_ZIP_END_FORM = struct.Struct("<4s 8s I I H")
"""Signature, disks and entries, the directory's size and place, the comment's size."""
_ZIP_END_WITHIN = _ZIP_END_FORM.size + 0xFFFF  # bytes from the end of a file, where readers look for it
_ZIP64_LOCATOR_BYTES = 20
_MAX_TEXT = 1000  # of any text in a run's configuration
_MAX_DEPTH = 8


def check_contents(reading: Reading, message: Message, name: str, path: Path) -> None:
    """Check that one file of a message, on this disk at ``path``, is what its name says.

    Raises:
        RejectedError: saying what is wrong with it.
    """
    shown_as = f"{message.ref.path}/{name}"
    try:
        if names.is_weights(name):
            _check_arrays(reading, message, name, path)
        elif name == names.METRICS:
            _check_metrics(reading, message.ref, path.read_bytes(), shown_as)
        else:
            _check_record(reading, message.ref, name, path.read_bytes(), shown_as)
    except RejectedError as error:
        kind = looks_like(path)
        raise RejectedError(error.file, f"{error.reason}; it looks like {kind}" if kind else error.reason) from None
    if (kind := _hidden_kind(path)) is not None:
        raise RejectedError(shown_as, f"can be read as {kind} as well")


def looks_like(path: Path) -> str | None:
    """Return what a file may be by its first or last bytes, in words; None if they say nothing."""
    with path.open("rb") as file:
        head = file.read(8)
    known = (kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning))
    return next(known, None) or _hidden_kind(path)


def _hidden_kind(path: Path) -> str | None:
    """Return what a file can be read as though its first bytes are those of another kind."""
    with path.open("rb") as file:
        head = file.read(_TAR_AT + 5)
        if head[_DICOM_AT : _DICOM_AT + 4] == b"DICM":
            return "a DICOM image"
        if head[_TAR_AT:] == b"ustar":
            return "a tar archive"
        return "a zip archive" if _ends_as_zip(file, path.stat().st_size) else None


def _ends_as_zip(file: BinaryIO, size: int) -> bool:
    """Return whether a reader finds a zip's directory by an end record, behind which anything may stand."""
    begin = max(0, size - _ZIP_END_WITHIN)
    tail = _bytes_at(file, begin, _ZIP_END_WITHIN)
    at = tail.find(_ZIP_END)
    while 0 <= at <= len(tail) - _ZIP_END_FORM.size:
        _, entries, directory_bytes, offset, _ = _ZIP_END_FORM.unpack_from(tail, at)
        # Of random numbers, one file in some ten thousand holds the signature; none has the directory where it says.
        is_empty = not any(entries) and directory_bytes == offset == 0
        directory = (_bytes_at(file, place, 4) for place in (begin + at - directory_bytes, offset))
        locator = _bytes_at(file, begin + at - _ZIP64_LOCATOR_BYTES, 4)
        if is_empty or _ZIP_DIRECTORY in directory or locator == _ZIP64_LOCATOR:
            return True
        at = tail.find(_ZIP_END, at + 1)
    return False


def _bytes_at(file: BinaryIO, place: int, number: int) -> bytes:
    """Return so many bytes of a file from a place on, or fewer at its end; none before its beginning."""
    if place < 0:
        return b""
    file.seek(place)
    return file.read(number)


# --- records -----------------------------------------------------------------------------------------------


def _check_record(reading: Reading, ref: MessageRef, name: str, content: bytes, shown_as: str) -> None:
    record = reading.parsed(content, form_of(reading, name), shown_as)
    if getattr(record, "run", ref.run) != ref.run or getattr(record, "round", ref.round_no) != ref.round_no:
        raise RejectedError(shown_as, "speaks of another run or round")
    if getattr(record, "site", reading.opened.site) != reading.opened.site:
        raise RejectedError(shown_as, "speaks of another site")
    is_old = reading.opened.protocol == 1
    if isinstance(record, RunConfiguration):
        _check_options(record, shown_as, is_old=is_old)
    run = reading.configuration(ref.run)
    if run is None:
        return
    if name == names.ROUND_CONFIGURATION:
        due = protocol_1.round_configuration if is_old else round_configuration
        if record != due(run, ref.round_no, reading.opened.site):
            raise RejectedError(shown_as, "asks for something else than the run that was offered")
    if isinstance(record, Reliability) and (method := _of_method(run, shown_as)) and not method.sends_reliability:
        raise RejectedError(shown_as, f"was not asked for: {run.method} has no use for it")


def form_of(reading: Reading, name: str) -> type[Payload]:
    """Return the form of a record of this name in a folder."""
    return protocol_1.RECORDS.get(name, RECORDS[name]) if reading.opened.protocol == 1 else RECORDS[name]


def _check_options(run: RunConfiguration, shown_as: str, *, is_old: bool) -> None:
    """Check that what the schema leaves to task and method holds nothing but what these know."""
    free = (run.task_options, run.method_options, run.augmentation, run.split)
    if any(_is_unbounded(value) for value in free):
        unbounded = f"a text of more than {_MAX_TEXT} characters, a control character or values nested too deeply"
        raise RejectedError(shown_as, f"holds {unbounded}")
    try:
        if not (run.plugins and run.task not in TASK_NAMES):  # what a plug-in's task may be told, it alone knows
            task = terms_of(run.task)
            task.options((protocol_1.as_today(run) if is_old else run).task_options)
            task.augmentation(run.augmentation)
        if _of_method(run, shown_as) is None and not run.plugins:
            raise RejectedError(
                shown_as,
                f"names the method {run.method}, whose file is not here, so what depends on it was not checked; put "
                "the file where the run had it, and verify again",
            )
        check_record(run.split, SplitPlan, "split")
    except ConfigurationError as error:
        raise RejectedError(shown_as, "; ".join(error.problems)) from None


def _of_method(run: RunConfiguration, shown_as: str) -> Terms | None:
    """Return the terms of a run's method; None of a plug-in's, which is not imported for an audit, and of one whose
    file is not here.
    """
    if run.method not in (*method_names(), *REFERENCES):
        return None
    try:
        return open_terms(run.method, run.method_options)
    except ConfigurationError as error:
        raise RejectedError(shown_as, "; ".join(error.problems)) from None


def _is_unbounded(value: Any, depth: int = 0) -> bool:
    if depth > _MAX_DEPTH:
        return True
    if isinstance(value, dict):
        return any(_is_unbounded(inner, depth + 1) for pair in value.items() for inner in pair)
    if isinstance(value, list):
        return any(_is_unbounded(inner, depth + 1) for inner in value)
    return isinstance(value, str) and (len(value) > _MAX_TEXT or not value.isprintable())


# --- tables ------------------------------------------------------------------------------------------------


def _check_metrics(reading: Reading, ref: MessageRef, content: bytes, shown_as: str) -> None:
    rows = read_metrics(content, shown_as, is_early=reading.is_early)
    run = reading.configuration(ref.run)
    method = None if run is None else _of_method(run, shown_as)
    epochs = None if run is None or method is None else epochs_of(run, ref.round_no, method)
    require_of_round(
        rows,
        shown_as,
        round_no=ref.round_no,
        epochs=epochs,
        own=run.scores if run else {},
        has_baseline=run is None or run.baseline is not None,
    )


# --- tensors -----------------------------------------------------------------------------------------------


def _check_arrays(reading: Reading, message: Message, name: str, path: Path) -> None:
    ref, shown_as = message.ref, f"{message.ref.path}/{name}"
    run, sharing = reading.configuration(ref.run), reading.sharing(ref.run)
    if run is None or sharing is None:
        layout_of(path, shown_as)  # what it should hold is not known: that is found at the offer
        return
    trains = ref.round_no <= run.rounds
    groups = {names.state_file(group): listed for group, listed in sharing.groups(ref.kind, trains=trains).items()}
    if ref.kind == "update" and name == names.SITE_MODEL and not trains:
        raise RejectedError(shown_as, "was not asked for: the closing round trains nothing")
    if names.is_state(name):
        if name not in groups:
            raise RejectedError(shown_as, "is not in the run's offer")
        check_encoded(path, TensorList(tensors=groups[name]), PLAIN, shown_as=shown_as)
    elif name == names.START:
        check_encoded(path, sharing.offered, PLAIN, shown_as=shown_as)
    else:
        check_encoded(path, sharing.shared, message.manifest.files[name].wire, shown_as=shown_as)
