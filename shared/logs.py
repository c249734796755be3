"""Where the daemons' log goes: standard error, and a file in the work directory."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_BYTES = 5_000_000  # of one log file; five old ones are kept


def log_to(path: Path) -> None:
    """Send the log of this process to standard error and to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    form = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handlers: list[logging.Handler] = [
        logging.StreamHandler(),
        RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=5),
    ]
    for handler in handlers:
        handler.setFormatter(form)
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for noisy in ("urllib3", "webdav3", "imgaug"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # what goes wrong below us, we say ourselves, in a sentence
