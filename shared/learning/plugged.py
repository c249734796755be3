"""The process that answers questions with a plug-in's code, which lie in the folders that it is told; see ``apart.py``
and ``standby.py``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from shared.doors.schema import fill_json
from shared.errors import DropfedError, FaultError, PluginError
from shared.folder.durable import disk_trouble, write_file
from shared.learning.apart import (
    ANSWER,
    OBSTACLE,
    OUTPUT,
    QUESTION,
    REST,
    REST_S,
    Asked,
    Obstacle,
    Question,
    confine,
    tell_percent,
)
from shared.learning.blame import told
from shared.learning.loading import can_fork
from shared.learning.plugins import permit
from shared.lifeline import end, end_with_starter

_LARGEST_QUESTION = 100_000_000  # bytes: the members of a large set


def stand_by() -> None:
    """Answer the question in each folder that standard input names, in a process of its own; say on standard output
    how that ended. Where the system cannot fork, this process answers one question and ends.

    A line names the question's class, which is our own, and the folder. The question itself is read by who answers it:
    whoever answers the next one is forked from a process that never saw it.
    """
    while line := sys.stdin.buffer.readline():
        kind, _, folder = line.rstrip(b"\n").partition(b" ")
        for module in _class_of(kind.decode()).loaded_late:
            import_module(module)
        child = os.fork() if can_fork() else 0
        if not child:
            work(Path(os.fsdecode(folder)))
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def work(folder: Path) -> None:
    """Answer, or say what stands in the way; then end this process."""
    end_with_starter()
    with (folder / OUTPUT).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    logging.basicConfig(level=logging.WARNING)
    asked = fill_json(Asked, (folder / QUESTION).read_bytes(), _LARGEST_QUESTION)
    try:
        # 1. The limits come first.
        confine(asked.bounds)
        # 2. What is installed, what is allowed and what the run asks for must be one, file by file.
        permit(asked.plugins, asked.bounds.allowed, asked.bounds.allowed_in)
        # 3. Only now a plug-in is imported: the question asks for its task or method.
        kind = _class_of(asked.kind)
        question = fill_json(kind, asked.question.encode(), _LARGEST_QUESTION)
        answer = question.answer(lambda percent: _tell_and_rest(folder, percent))
        write_file(folder / ANSWER, kind.form().dump_json(answer))
    except (MemoryError, torch.OutOfMemoryError):
        _tell(folder, PluginError(f"{asked.whose}: {asked.bounds.too_large}"))
    except FaultError as error:
        _tell(folder, told(error, asked.whose, asked.plugins))
    except DropfedError as error:
        _tell(folder, error)
    except OSError as error:
        _tell(folder, disk_trouble(error, folder))
    except Exception as error:
        _tell(folder, told(error, asked.whose, asked.plugins))
    end(0)


def _class_of(kind: str) -> type[Question[Any]]:
    module, _, name = kind.partition(":")
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def _tell(folder: Path, error: DropfedError) -> None:
    write_file(folder / OBSTACLE, Obstacle.of(error).model_dump_json().encode())


def _tell_and_rest(folder: Path, percent: int) -> None:
    tell_percent(folder, percent)
    while (folder / REST).exists():
        time.sleep(REST_S)


if __name__ == "__main__":
    stand_by()
