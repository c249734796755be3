"""The process that answers a question with a plug-in's code, which lies in the folder that it is told; see
``apart.py``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from shared.doors.schema import fill_json
from shared.errors import ConfigurationError, DataError, DropfedError, PluginError
from shared.folder.durable import write_file
from shared.learning.apart import ANSWER, OBSTACLE, PERCENT, QUESTION, REST, Asked, Obstacle, Question, confine
from shared.learning.plugins import permit
from shared.lifeline import end, end_with_starter

TROUBLES = (DropfedError, OSError, MemoryError, torch.OutOfMemoryError)
"""What is told, and is no mistake in a program."""

REST_S = 1.0  # between two looks whether the rest is over
_LARGEST_QUESTION = 100_000_000  # bytes: the members of a large set

logger = logging.getLogger(__name__)


def work(
    folder: Path, kinds: Mapping[str, type[Question[Any]]], as_trouble: Callable[[Exception, Path], DropfedError]
) -> None:
    """Answer, or say what stands in the way; then end this process.

    Args:
        kinds: the questions that may be asked, by their names.
        as_trouble: returns one of ``TROUBLES`` as people are told it.
    """
    end_with_starter()
    logging.basicConfig(level=logging.WARNING)
    asked = fill_json(Asked, (folder / QUESTION).read_bytes(), _LARGEST_QUESTION)
    try:
        # 1. The limits come first.
        confine(asked.bounds)
        # 2. What is installed, what is allowed and what the run asks for must be one, file by file.
        permit(asked.plugins, asked.bounds.allowed, asked.bounds.allowed_in)
        # 3. Only now a plug-in is imported: the question asks for its task or method.
        kind = kinds[asked.kind]
        question = fill_json(kind, asked.question.encode(), _LARGEST_QUESTION)
        answer = question.answer(lambda percent: _tell_and_rest(folder, percent))
        write_file(folder / ANSWER, kind.form.dump_json(answer))
    except (ConfigurationError, DataError) as error:
        _tell(folder, error)
    except (MemoryError, torch.OutOfMemoryError) as error:
        _tell(folder, PluginError(f"{asked.whose}: {as_trouble(error, folder)}"))
    except TROUBLES as error:
        _tell(folder, as_trouble(error, folder))
    except Exception as error:
        logger.exception("raised by %s", asked.whose)
        _tell(folder, PluginError(f"{asked.whose}: raised {type(error).__name__}: {error}; ask who wrote it"))
    end(0)


def _tell(folder: Path, error: DropfedError) -> None:
    write_file(folder / OBSTACLE, Obstacle.of(error).model_dump_json().encode())


def _tell_and_rest(folder: Path, percent: int) -> None:
    (folder / f"{PERCENT}.new").write_text(str(percent))
    (folder / f"{PERCENT}.new").replace(folder / PERCENT)
    while (folder / REST).exists():
        time.sleep(REST_S)
