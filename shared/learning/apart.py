"""What needs the code of a plug-in is done in a process of its own, which has neither our keys nor a password.

A ``Question`` is one piece of such work. Without plug-ins it is answered here. With them another process answers it
(``standby.py``, ``plugged.py``), which compares run, settings and installed files once more before it imports anything.
It works under limits of time and memory. What it answers is read back as JSON, by the question's own form.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from shared.doors import Refusal
from shared.doors.schema import fill_form, fill_json
from shared.errors import (
    ActionRequiredError,
    ConfigurationError,
    DataError,
    DoubtfulError,
    DropfedError,
    PluginError,
    RejectedError,
    TransientError,
)
from shared.escaping import escape
from shared.exchange.records.run import DistributionName, Plugin
from shared.exchange.records.values import Digest, Record
from shared.folder.durable import put_in_place, write_file
from shared.folder.lock import is_locked, locked
from shared.folder.ownership import make_folder
from shared.folder.removal import remove_tree
from shared.learning.plugins import require_agreement
from shared.learning.standby import standing_by
from shared.service import alive

QUESTION, ANSWER, OBSTACLE, OUTPUT = "question.json", "answer.json", "obstacle.json", "output.txt"
PERCENT, REST = "percent", "rest"
_PREFIX, _ASKED = "dropfed-question-", "asked.lock"  # the latter is locked while an answer is waited for
WITH_PLUGINS = "--with-plugins"
"""By what people have a command run the plug-ins that a model or a run names."""

LOOK_S = 0.05  # between two looks whether it has answered
REST_S = 1.0  # between two looks of one that rests whether it is to go on
_ROOM_BYTES = 4_000_000_000  # that PyTorch itself takes, and what prepares images, beside what a run says it takes
_LARGEST_ANSWER = 100_000_000  # bytes: the units of a large folder
_SECRET = re.compile("PASS|SECRET|TOKEN|CREDENTIAL|KEY|PROXY", re.IGNORECASE)
"""In the name of a variable that may lead to a password; a proxy's address may hold one."""

AnswerT = TypeVar("AnswerT")
Progress = Callable[[int], None]
"""Called with percent done, over and over."""
IsTime = Callable[[int], bool]
"""Told percent done, says whether to go on or to rest; raises ``Stopped`` to end the work."""


class Bounds(Record):
    """What the code of plug-ins may do on a machine.

    Args:
        said_in: where the machine's people say all this, as in "site.yaml".
        allowed: SHA-256 by name.
        allowed_in: where they say that, as in "site.yaml, policy: plugins,".
        minutes: that one piece of work may take.
        minutes_key: by what they say that, as in "policy: plugin_minutes".
        memory_gb: that it may take besides PyTorch itself; None: nothing bounds it.
        if_full: what to do where the memory is full, as in "lower batch_size".
    """

    said_in: str
    allowed: dict[DistributionName, Digest]
    allowed_in: str
    minutes: float
    minutes_key: str
    memory_gb: float | None
    if_full: str
    threads: int

    @property
    def too_long(self) -> str:
        """What is said of work that takes longer."""
        return (
            f"took more than the {self.minutes:g} minutes that {self.said_in} allows one piece of its work "
            f"({self.minutes_key}): see what it does, or allow more"
        )

    @property
    def too_large(self) -> str:
        """What is said of work that takes more memory."""
        return f"the memory is full; see what it does, or {self.if_full}"


class Question(Record, Generic[AnswerT]):
    """A piece of work with a task or a method, which may be a plug-in's; the argument of its class is its answer.

    Attributes:
        loaded_late: modules that others import in the midst of it; whoever answers often imports them once, before.
    """

    loaded_late: ClassVar[Sequence[str]] = ()

    @classmethod
    def form(cls) -> TypeAdapter[Any]:
        """Return the form of its answer."""
        arguments = (base.__pydantic_generic_metadata__["args"] for base in cls.__mro__ if issubclass(base, Question))
        return TypeAdapter(next(found[0] for found in arguments if found))

    @property
    def step(self) -> str:
        """What people call the work; empty if the caller names it."""
        return ""

    @abstractmethod
    def answer(self, on_progress: Progress) -> AnswerT:
        """Do the work in this process; return the answer."""


class Asked(Record):
    """``question.json``: what such a process is asked. No password and no key of anybody's is in it; an audit
    of an encrypted run gives it what opens that run's files alone.

    Args:
        kind: module and name of the question's class, with a colon between them.
        question: its fields, as JSON.
        whose: what people call the code, and what it does.
    """

    kind: str
    question: str
    plugins: list[Plugin]
    bounds: Bounds
    whose: str


class Obstacle(Record):
    """``obstacle.json``: what stood in the way of a child, to be raised where the question was asked."""

    kind: Literal["configuration", "data", "rejected", "transient", "plug-in", "action required"]
    problems: list[str]

    @classmethod
    def of(cls, error: DropfedError) -> Obstacle:
        """Return an error as a child tells it."""
        match error:
            case ConfigurationError():
                return cls(kind="configuration", problems=list(error.problems))
            case DataError():
                return cls(kind="data", problems=list(error.problems))
            case DoubtfulError():
                return cls(kind="action required", problems=[f"{error}: {error.remedy}"])
            case RejectedError():
                return cls(kind="rejected", problems=[error.file, error.reason])
            case TransientError():
                return cls(kind="transient", problems=[str(error)])
            case PluginError():
                return cls(kind="plug-in", problems=[str(error)])
        return cls(kind="action required", problems=[str(error)])

    def error(self) -> DropfedError:
        """Return the error that the other process met."""
        match self.kind:
            case "configuration":
                return ConfigurationError(self.problems)
            case "data":
                return DataError(self.problems)
            case "rejected":
                return RejectedError(self.problems[0], self.problems[-1])
            case "transient":
                return TransientError(self.problems[0])
            case "plug-in":
                return PluginError(self.problems[0])
        return ActionRequiredError(self.problems[0])


def answered(
    question: Question[AnswerT],
    bounds: Bounds,
    plugins: Sequence[Plugin],
    is_time: IsTime = lambda percent: True,
    scratch: Path | None = None,
) -> AnswerT:
    """Return the answer to a question: worked out here, or by a child process where it needs plug-ins.

    Args:
        scratch: where question and answer lie meanwhile; None: where the system has temporary files.

    Raises:
        Stopped: by ``is_time``, which is asked while a child works, or because that was interrupted.
        ConfigurationError: a plug-in is not installed as it is asked for, or not allowed here.
        PluginError: a plug-in raises, hangs, is too large or answers nonsense; it is named.
        DropfedError: what else stood in the way.
    """
    if not plugins:
        return question.answer(lambda percent: None)
    require_agreement(plugins, bounds.allowed, bounds.allowed_in)  # as the child finds, but at once
    with _folder_in(scratch) as folder:
        whose = names_of(plugins) + (f", {question.step}" if question.step else "")
        asked = Asked(
            kind=f"{type(question).__module__}:{type(question).__qualname__}",
            question=question.model_dump_json(),
            plugins=list(plugins),
            bounds=bounds,
            whose=whose,
        )
        write_file(folder / QUESTION, asked.model_dump_json().encode(), private=True)
        too_long = PluginError(f"{whose}: {bounds.too_long}")
        environment = environment_of(bounds.threads)
        with (folder / OUTPUT).open("wb") as output, standing_by(asked.kind, folder, environment, output) as standby:
            code = attended(standby.poll, bounds.minutes, lambda: rest_or_go_on(folder, is_time), too_long)
        return _outcome(question, folder, code, whose)  # type: ignore[no-any-return]


@contextmanager
def _folder_in(scratch: Path | None) -> Iterator[Path]:
    """Make a folder for one question, and remove it; what is left of one that was killed is for ``clear_questions``.

    Where root asks, it is root's: nobody else puts a link there that root would follow.
    """
    if scratch is not None:
        make_folder(scratch)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=scratch) as folder, locked(Path(folder, _ASKED)):
        yield Path(folder)


def clear_questions(scratch: Path) -> None:
    """Remove the questions and answers that nobody waits for any more, with what they hold of a site's images."""
    for lock in scratch.glob(f"{_PREFIX}*/{_ASKED}"):
        if not is_locked(lock):
            remove_tree(lock.parent)


def names_of(plugins: Sequence[Plugin]) -> str:
    """Return what people call the plug-ins of a piece of work."""
    return "plug-in " + " and ".join(f"{plugin.name} {plugin.version}" for plugin in plugins)


def environment_of(threads: int) -> dict[str, str]:
    """Return the environment of a process that computes: nothing in it leads to a password."""
    plain = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return plain | {"OMP_NUM_THREADS": str(threads)}


def confine(bounds: Bounds) -> None:
    """Bound what this process may take, before it imports a plug-in. A GPU's driver maps more than it uses, so there
    nothing bounds the memory.
    """
    if sys.platform != "win32" and bounds.memory_gb is not None:
        import resource  # noqa: PLC0415  (Windows has none)

        most = int(bounds.memory_gb * 1e9) + _ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def tell_percent(folder: Path, percent: int) -> None:
    """Write, in a folder in which a process works, how far it is."""
    new = folder / f"{PERCENT}.new"
    new.write_text(str(percent))
    with suppress(PermissionError):  # Windows replaces no file that is looked into; the next percent comes soon
        put_in_place(new, folder / PERCENT)


def rest_or_go_on(folder: Path, is_time: IsTime) -> bool:
    """Ask whether a process that works in a folder is to rest, and have it know; return whether it goes on."""
    goes_on = is_time(_percent(folder))
    if goes_on:
        (folder / REST).unlink(missing_ok=True)
    else:
        (folder / REST).touch()
    return goes_on


def attended(
    poll: Callable[[], int | None], minutes: float, goes_on: Callable[[], bool], too_long: DropfedError
) -> int:
    """Wait until a process ends; return its exit status.

    Args:
        poll: returns that exit status, and None while it works.
        minutes: that it may work.
        goes_on: asked over and over whether it works or rests; may raise to end it.
        too_long: what is raised of one that works longer.
    """
    left_s = minutes * 60
    while (code := poll()) is None:
        alive()  # its time is bounded here: a service manager need not bound it too
        began = time.monotonic()
        works = goes_on()
        time.sleep(LOOK_S)
        left_s -= (time.monotonic() - began) * works
        if left_s < 0:
            raise too_long
    return code


def _outcome(question: Question[Any], folder: Path, code: int, whose: str) -> Any:
    obstacle, answer = folder / OBSTACLE, folder / ANSWER
    try:
        if obstacle.exists():
            raise fill_json(Obstacle, _bounded(obstacle), _LARGEST_ANSWER).error()
        if code == 0:
            return fill_form(question.form(), _bounded(answer), _LARGEST_ANSWER)
    except (OSError, Refusal):
        raise PluginError(f"{whose}: what it came to cannot be read; ask who wrote it") from None
    why = last_words(folder / OUTPUT, code)
    raise PluginError(f"{whose}: its process ended ({why}); ask who wrote it")


def _bounded(path: Path) -> bytes:
    """Return a file's bytes, and no more than make it too large."""
    with path.open("rb") as file:
        return file.read(_LARGEST_ANSWER + 1)


def last_words(output: Path, code: int) -> str:
    """Return why a child ended, as far as it said so in the file of its output."""
    with output.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        said = file.read(2000).decode(errors="replace").split("\n")
    lines = [line.strip() for line in said if line.strip()]
    return escape(lines[-1][:300]) if lines else f"signal {-code}" if code < 0 else f"exit status {code}"


def _percent(folder: Path) -> int:
    try:
        return int((folder / PERCENT).read_text())
    except (OSError, ValueError):
        return 0
