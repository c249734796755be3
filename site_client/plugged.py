"""The process that answers a question with a plug-in's code, which lies in the folder that it is told; see
``apart.py``.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

from shared.doors.schema import fill_json
from shared.errors import ActionRequiredError, ConfigurationError, DataError, DropfedError
from shared.folder.durable import write_file
from shared.learning.plugins import permit
from site_client.apart import (
    ALLOWED_IN,
    ANSWER,
    OBSTACLE,
    PERCENT,
    QUESTION,
    REST,
    Asked,
    Obstacle,
    Question,
    confine,
    names_of,
)
from site_client.final import KeepFinal
from site_client.folders import UnitsIn
from site_client.lifeline import end, end_with_starter
from site_client.train import CountsOf, RequirementsOf, Train
from site_client.trouble import TROUBLES, as_trouble

KINDS: dict[str, type[Question[Any]]] = {
    kind.__name__: kind for kind in (CountsOf, KeepFinal, RequirementsOf, Train, UnitsIn)
}
REST_S = 1.0  # between two looks whether the rest is over
_LARGEST_QUESTION = 100_000_000  # bytes: the members of a large set


def main(folder: Path) -> None:
    """Answer, or say what stands in the way."""
    end_with_starter()
    logging.basicConfig(level=logging.WARNING)
    asked = fill_json(Asked, (folder / QUESTION).read_bytes(), _LARGEST_QUESTION)
    try:
        # 1. The limits come first.
        confine(asked.site.policy, asked.site.device)
        # 2. What is installed, what is allowed and what the run asks for must be one, file by file.
        permit(asked.plugins, asked.site.policy.plugins, ALLOWED_IN)
        # 3. Only now a plug-in is imported: the question asks for its task or method.
        kind = KINDS[asked.kind]
        question = fill_json(kind, asked.question.encode(), _LARGEST_QUESTION)
        answer = question.answer(lambda percent: _tell_and_rest(folder, percent))
        write_file(folder / ANSWER, kind.form.dump_json(answer))
    except (ConfigurationError, DataError) as error:
        _tell(folder, error)
    except TROUBLES as error:
        _tell(folder, as_trouble(error, folder))
    except Exception as error:
        logging.exception("raised by %s", names_of(asked.plugins))
        told = f"{names_of(asked.plugins)}: raised {type(error).__name__}: {error}; ask who wrote it"
        _tell(folder, ActionRequiredError(told))
    end(0)


def _tell(folder: Path, error: DropfedError) -> None:
    write_file(folder / OBSTACLE, Obstacle.of(error).model_dump_json().encode())


def _tell_and_rest(folder: Path, percent: int) -> None:
    (folder / f"{PERCENT}.new").write_text(str(percent))
    (folder / f"{PERCENT}.new").replace(folder / PERCENT)
    while (folder / REST).exists():
        time.sleep(REST_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
