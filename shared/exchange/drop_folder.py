"""Which drop folder a file of this machine lies in: what is put there, others read, and an audit finds."""

from __future__ import annotations

import os
from pathlib import Path

from shared.errors import ConfigurationError
from shared.exchange.names import FEDERATION


def drop_folder_around(path: Path) -> Path | None:
    """Return the drop folder, or the copy of one, that a path is or lies in, also by a link; None if it is in none."""
    place = Path(os.path.realpath(path))
    return next((each for each in (place, *place.parents) if os.path.lexists(each / FEDERATION)), None)


def require_no_drop_folder_around(path: Path) -> None:
    """Check that a path is none of those that lie in a drop folder, where others read what is put.

    Raises:
        ConfigurationError: it is.
    """
    if (place := drop_folder_around(path)) is not None:
        raise ConfigurationError([f"{path}: lies in the drop folder {place}, where others read it; name another place"])
