"""Processes that stand by to answer questions: one process answers each, and none is left of what was cut short."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from shared.errors import Stopped
from shared.learning.apart import ANSWER, OUTPUT, QUESTION, Asked, Bounds, Progress, Question, environment_of
from shared.learning.standby import Standby, interrupt, standing_by

WAIT_S = 600.0  # what stands by imports this file, and should import little
TOLD = re.compile(rb"told-once-[0-9a-f]{32}")
BOUNDS = Bounds(
    said_in="a test",
    allowed={},
    allowed_in="a test",
    minutes=1,
    minutes_key="minutes",
    memory_gb=None,
    if_full="give it less",
    threads=1,
)


class WhoAnswers(Question[list[int]]):
    """The process that answers and the one that it was forked from.

    Args:
        told: what nobody else is to know.
    """

    told: str = ""

    def answer(self, on_progress: Progress) -> list[int]:
        print("said by who answers")
        return [os.getpid(), os.getppid()]


class LooksForWave(WhoAnswers):
    """Whether a module that nothing else needs is there, as 1 or 0, and the process that it was forked from."""

    def answer(self, on_progress: Progress) -> list[int]:
        return [int("wave" in sys.modules), os.getppid()]


class NeedsWave(LooksForWave):
    loaded_late = ("wave",)


class Hangs(WhoAnswers):
    def answer(self, on_progress: Progress) -> list[int]:
        on_progress(os.getpid())
        time.sleep(600)
        return []


class Searches(WhoAnswers):
    """How often something of ``TOLD``'s form is in the memory of the process that answers."""

    def answer(self, on_progress: Progress) -> list[int]:
        found = 0
        with Path("/proc/self/maps").open() as regions, Path("/proc/self/mem").open("rb", 0) as memory:
            for first, last in re.findall(r"^(\w+)-(\w+) rw-p", regions.read(), re.MULTILINE):
                memory.seek(int(first, 16))
                with suppress(OSError):
                    found += len(TOLD.findall(memory.read(int(last, 16) - int(first, 16))))
        return [found, os.getppid()]


def kind_of(question: WhoAnswers) -> str:
    return f"{__name__}:{type(question).__qualname__}"


def asked_in(folder: Path, question: WhoAnswers) -> Path:
    folder.mkdir()
    asked = Asked(
        kind=kind_of(question),
        question=question.model_dump_json(),
        plugins=[],
        bounds=BOUNDS,
        whose="a test",
    )
    (folder / QUESTION).write_text(asked.model_dump_json())
    return folder


def answer_of(folder: Path, question: WhoAnswers | None = None, **environment: str) -> tuple[int, int]:
    question = question or WhoAnswers()
    asked_in(folder, question)
    with (
        (folder / OUTPUT).open("wb") as output,
        standing_by(kind_of(question), folder, environment_of(1) | environment, output) as standby,
    ):
        wait_until(lambda: ended(standby))
    answered, forked_from = WhoAnswers.form().validate_json((folder / ANSWER).read_bytes())
    return answered, forked_from


def cut_short(folder: Path, cut: Callable[[], None], raised: type[BaseException], **environment: str) -> int:
    """Ask what hangs, and cut it short; return the process that was to answer, of which nothing is left."""
    asked_in(folder, Hangs())
    with (
        pytest.raises(raised),
        (folder / OUTPUT).open("wb") as output,
        standing_by(kind_of(Hangs()), folder, environment_of(1) | environment, output) as standby,
    ):
        wait_until((folder / "percent").exists)
        assert standby.poll() is None
        cut()
        wait_until(lambda: standby.poll() is not None)
    answers = int((folder / "percent").read_text())
    wait_until(lambda: not is_there(answers))
    assert not standby.lives
    return answers


def press_ctrl_c() -> None:
    raise KeyboardInterrupt


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended(standby: Standby) -> bool:
    code = standby.poll()
    assert code in (None, 0)
    return code == 0


def is_there(process: int) -> bool:
    """Whether it is, and is more than the number of one that ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_stands_by_and_each_question_has_a_process_of_its_own(tmp_path: Path) -> None:
    (first, one), (second, other) = (answer_of(tmp_path / name) for name in ("a", "b"))
    assert one == other
    assert (tmp_path / "a" / OUTPUT).read_text() == (tmp_path / "b" / OUTPUT).read_text() == "said by who answers\n"
    assert len({first, second, one}) == 3
    assert not is_there(first) and not is_there(second) and is_there(one)
    # With other settings another one takes its place.
    _, another = answer_of(tmp_path / "c", OMP_NUM_THREADS="2")
    assert another != one and not is_there(one)
    # Where it was killed, nobody notices.
    os.kill(another, 9)
    wait_until(lambda: not is_there(another))
    assert answer_of(tmp_path / "d", OMP_NUM_THREADS="2")[1] != another


@pytest.mark.parametrize(("cut", "raised"), [(press_ctrl_c, KeyboardInterrupt), (interrupt, Stopped)])
def test_of_a_question_that_is_cut_short_nothing_is_left(
    cut: Callable[[], None], raised: type[BaseException], tmp_path: Path
) -> None:
    answers = cut_short(tmp_path / "a", cut, raised)
    assert answer_of(tmp_path / "b")[1] != answers


def test_who_answers_knows_nothing_of_the_questions_before(tmp_path: Path) -> None:
    told = f"told-once-{secrets.token_hex(16)}"
    found, itself = answer_of(tmp_path / "a", Searches(told=told))
    assert found  # its own
    assert answer_of(tmp_path / "b", Searches()) == (0, itself)


def test_what_an_answer_imports_late_is_imported_once_before(tmp_path: Path) -> None:
    loaded, itself = answer_of(tmp_path / "a", LooksForWave())
    assert not loaded
    assert answer_of(tmp_path / "b", NeedsWave()) == (1, itself)
    assert answer_of(tmp_path / "c", LooksForWave()) == (1, itself)  # so it was who stands by, not who answered


def test_no_code_comes_from_the_folder_that_it_is_asked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Auditors and sites type commands in folders that others fill."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("raise SystemExit('code of the folder')\n")
    monkeypatch.chdir(tmp_path)
    answer_of(tmp_path / "a", OMP_NUM_THREADS="3")  # by none that stands by already


def test_where_nothing_can_fork_the_time_that_it_takes_is_bounded_too(tmp_path: Path) -> None:
    """The process that stands by then answers itself; that it has closed its output is no end."""
    (tmp_path / "sitecustomize.py").write_text("import os\n\ndel os.memfd_create\n")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    cut_short(tmp_path / "a", press_ctrl_c, KeyboardInterrupt, PYTHONPATH=path)
    answered, forked_from = answer_of(tmp_path / "b", PYTHONPATH=path)
    assert forked_from == os.getpid() and not is_there(answered)
