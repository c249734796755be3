"""What needs the code of a plug-in is done in a process of its own, which has neither our keys nor our password.

A ``Question`` is one piece of such work. Without plug-ins it is answered here. With them a child process is started
(``plugged.py``), which compares run, policy and installed files once more before it imports anything. It works under
the policy's limits of time and memory. What it answers is read back as JSON, by the question's own form.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from shared.doors import Refusal
from shared.doors.schema import fill_form, fill_json
from shared.errors import (
    ActionRequiredError,
    ConfigurationError,
    DataError,
    DropfedError,
    RejectedError,
    TransientError,
)
from shared.escaping import escape
from shared.exchange.records.run import Plugin
from shared.exchange.records.values import Record
from shared.folder.durable import write_file
from shared.learning.plugins import described, distributions, wheel_behind
from site_client.configuration import CREDENTIALS_VARIABLE, FILE, PASSWORD_VARIABLE, Policy, SiteConfiguration

QUESTION, ANSWER, OBSTACLE, OUTPUT = "question.json", "answer.json", "obstacle.json", "output.txt"
PERCENT, REST = "percent", "rest"
ALLOWED_IN = f"{FILE}, policy: plugins,"
"""Where the hospital's people say which plug-ins they allow."""

LOOK_S = 0.1  # between two looks whether it has answered
_ROOM_BYTES = 4_000_000_000  # that PyTorch itself takes, and what prepares images, beside what a run says it takes
_LARGEST_ANSWER = 100_000_000  # bytes: the units of a large folder

AnswerT = TypeVar("AnswerT")
Progress = Callable[[int], None]
"""Called with percent done, over and over."""
IsTime = Callable[[int], bool]
"""Told percent done, says whether to go on or to rest; raises ``Stopped`` to end the work."""


class Question(Record, Generic[AnswerT]):
    """A piece of work with a task or a method, which may be a plug-in's.

    Attributes:
        form: of its answer.
    """

    form: ClassVar[TypeAdapter[Any]]

    @abstractmethod
    def answer(self, on_progress: Progress) -> AnswerT:
        """Do it in this process."""


class Asked(Record):
    """``question.json``: what a child process is started with. No key, no secret and no password is in it.

    Args:
        kind: the name of the question's class.
        question: its fields, as JSON.
    """

    kind: str
    question: str
    plugins: list[Plugin]
    site: SiteConfiguration


class Obstacle(Record):
    """``obstacle.json``: what stood in the way of a child, to be raised where the question was asked."""

    kind: Literal["configuration", "data", "rejected", "transient", "action required"]
    problems: list[str]

    @classmethod
    def of(cls, error: DropfedError) -> Obstacle:
        """Return an error as a child tells it."""
        match error:
            case ConfigurationError():
                return cls(kind="configuration", problems=list(error.problems))
            case DataError():
                return cls(kind="data", problems=list(error.problems))
            case RejectedError():
                return cls(kind="rejected", problems=[error.file, error.reason])
            case TransientError():
                return cls(kind="transient", problems=[str(error)])
        return cls(kind="action required", problems=[str(error)])

    def error(self) -> DropfedError:
        """Return it as the error that it was."""
        match self.kind:
            case "configuration":
                return ConfigurationError(self.problems)
            case "data":
                return DataError(self.problems)
            case "rejected":
                return RejectedError(self.problems[0], self.problems[-1])
            case "transient":
                return TransientError(self.problems[0])
        return ActionRequiredError(self.problems[0])


def plugin_of_task(task: str) -> list[Plugin]:
    """Return the plug-in that provides a task, as it is installed here; none of a task of this package.

    Raises:
        ConfigurationError: its files cannot be named.
    """
    wheel = wheel_behind("tasks", task)
    return [] if wheel is None else [described(distributions()[wheel])]


def answered(
    question: Question[AnswerT],
    site: SiteConfiguration,
    plugins: Sequence[Plugin],
    is_time: IsTime = lambda percent: True,
) -> AnswerT:
    """Return the answer to a question: worked out here, or by a child process where it needs plug-ins.

    Raises:
        Stopped: by ``is_time``, which is asked while a child works.
        DropfedError: what stood in the way; a plug-in that raises, hangs, is too large or answers nonsense is named.
    """
    if not plugins:
        return question.answer(lambda percent: None)
    with tempfile.TemporaryDirectory(prefix="dropfed-") as scratch:
        folder = Path(scratch)
        asked = Asked(
            kind=type(question).__name__, question=question.model_dump_json(), plugins=list(plugins), site=site
        )
        write_file(folder / QUESTION, asked.model_dump_json().encode(), private=True)
        code = _worked(folder, site, is_time, names_of(plugins))
        return _outcome(question, folder, code, names_of(plugins))  # type: ignore[no-any-return]


def names_of(plugins: Sequence[Plugin]) -> str:
    """Return what people call the plug-ins of a piece of work."""
    return "plug-in " + " and ".join(f"{plugin.name} {plugin.version}" for plugin in plugins)


def environment_of(site: SiteConfiguration) -> dict[str, str]:
    """Return the environment of a process that trains: nothing in it leads to the password."""
    secret = (PASSWORD_VARIABLE, CREDENTIALS_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in secret} | {
        "OMP_NUM_THREADS": str(site.threads)
    }


def confine(policy: Policy, device: str) -> None:
    """Bound what this process may take, before it imports a plug-in. A GPU's driver maps more than it uses, so there
    nothing bounds the memory.
    """
    if sys.platform != "win32" and device == "cpu":
        import resource  # noqa: PLC0415  (Windows has none)

        most = int(policy.max_memory_gb * 1e9) + _ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def rest_or_go_on(folder: Path, is_time: IsTime) -> bool:
    """Ask whether a process that works in a folder is to rest, and have it know; return whether it goes on."""
    goes_on = is_time(_percent(folder))
    if goes_on:
        (folder / REST).unlink(missing_ok=True)
    else:
        (folder / REST).touch()
    return goes_on


def attended(child: subprocess.Popen[bytes], minutes: float, goes_on: Callable[[], bool], too_long: str) -> int:
    """Wait until a child ends; return its exit status. It is gone when this returns or raises.

    Args:
        minutes: that it may work.
        goes_on: asked over and over whether it works or rests; may raise to end it.
        too_long: what is said of one that works longer.

    Raises:
        ActionRequiredError: it did.
    """
    left_s = minutes * 60
    try:
        while child.poll() is None:
            began = time.monotonic()
            works = goes_on()
            time.sleep(LOOK_S)
            left_s -= (time.monotonic() - began) * works
            if left_s < 0:
                raise ActionRequiredError(too_long)
        return child.returncode
    finally:
        child.kill()
        child.communicate()


def _worked(folder: Path, site: SiteConfiguration, is_time: IsTime, names: str) -> int:
    """Have a child work; return its exit status. None is left when this returns or raises."""
    with (folder / OUTPUT).open("wb") as output:
        child = subprocess.Popen(  # noqa: S603  (our own program, with nothing of others in its arguments)
            [sys.executable, "-m", "site_client.plugged", str(folder)],
            stdin=subprocess.PIPE,  # it ends when nobody holds the other end
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment_of(site),
            start_new_session=True,  # Ctrl-C is the daemon's to hear
        )
    minutes = site.policy.plugin_minutes
    too_long = (
        f"{names}: took more than the {minutes:g} minutes that {FILE} allows one piece of its work (policy: "
        "plugin_minutes): see what it does, or allow more"
    )
    return attended(child, minutes, lambda: rest_or_go_on(folder, is_time), too_long)


def _outcome(question: Question[Any], folder: Path, code: int, names: str) -> Any:
    obstacle, answer = folder / OBSTACLE, folder / ANSWER
    try:
        if obstacle.exists():
            raise fill_json(Obstacle, _bounded(obstacle), _LARGEST_ANSWER).error()
        if code == 0:
            return fill_form(question.form, _bounded(answer), _LARGEST_ANSWER)
    except (OSError, Refusal):
        raise ActionRequiredError(f"{names}: what it came to cannot be read; ask who wrote it") from None
    why = last_words(folder / OUTPUT, code)
    raise ActionRequiredError(f"{names}: its process ended ({why}); ask who wrote it")


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
