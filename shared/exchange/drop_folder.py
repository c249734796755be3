"""Where a file of this machine lies: what is put into a drop folder, others read, and an audit finds."""

from __future__ import annotations

import os
from pathlib import Path

from shared.errors import ConfigurationError
from shared.exchange.names import FEDERATION, SITE_CARD


def lies_in(path: Path, place: Path) -> bool:
    """Return whether a path is a folder or lies in it, also by a link."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(place))


def drop_folder_around(path: Path) -> Path | None:
    """Return the drop folder, or the copy of one, that a path is or lies in, also by a link; None if it is in none.

    Both cards tell it: a single one may have been kept anywhere.
    """
    whole = Path(os.path.realpath(path))
    cards = (FEDERATION, SITE_CARD)
    return next((each for each in (whole, *whole.parents) if all(os.path.lexists(each / card) for card in cards)), None)


def require_no_drop_folder_around(path: Path) -> None:
    """Check that a path is none of those that lie in a drop folder, where others read what is put.

    Raises:
        ConfigurationError: it is.
    """
    if (place := drop_folder_around(path)) is not None:
        raise ConfigurationError([f"{path}: lies in the drop folder {place}, where others read it; name another place"])
