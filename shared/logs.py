"""Where the daemons' log goes: standard error, and a file in the work directory. One event is one line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Literal

from shared.errors import PLEASE_REPORT
from shared.escaping import escape
from shared.folder.durable import disk_trouble
from shared.folder.ownership import give_file, make_folder
from shared.moments import moment_text

MAX_BYTES = 5_000_000  # of one log file; five old ones are kept
LogForm = Literal["text", "json"]

logger = logging.getLogger(__name__)


class _TextLine(logging.Formatter):
    """Time, level, message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  (logging's name)
        return moment_text(record.created)

    def format(self, record: logging.LogRecord) -> str:
        return escape(super().format(record))


class _JsonLine(logging.Formatter):
    """One JSON object: time (UTC, ISO 8601), level, logger, message; a traceback ends its message."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps(
            {
                "time": time.replace("+00:00", "Z"),
                "level": record.levelname,
                "logger": record.name,
                "message": super().format(record),
            }
        )


class _LogFile(RotatingFileHandler):
    """A log file; on a full disk it lacks lines, and standard error has them all the same."""

    def _open(self) -> TextIOWrapper:
        file = super()._open()
        give_file(Path(self.baseFilename))
        return file

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Stay silent: a traceback about each line would bury the lines."""


def log_to(path: Path, form: LogForm = "text") -> None:
    """Send all that this process has to say to standard error and to ``path``, warnings and its own death included.

    Raises:
        ActionRequiredError: nothing can be written there.
    """
    try:
        make_folder(path.parent)
        file = _LogFile(path, maxBytes=MAX_BYTES, backupCount=5, encoding="utf-8")
    except OSError as error:
        raise disk_trouble(error, path) from error
    handlers: list[logging.Handler] = [logging.StreamHandler(), file]
    for handler in handlers:
        handler.setFormatter(_JsonLine() if form == "json" else _TextLine())
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_death
    for noisy in ("urllib3", "webdav3", "imgaug"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what goes wrong below us, we say ourselves, in a sentence


def _log_death(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Log what no code expected, in place of the interpreter's many lines on standard error."""
    logger.critical("ended by an error that nobody expected; %s", PLEASE_REPORT, exc_info=(kind, error, trace))
