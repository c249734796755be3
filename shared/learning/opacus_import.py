"""The one door to Opacus, for where privacy is wanted: its import takes seconds.

While it is imported, Opacus sets up the log of the whole process. That is undone.
"""

from __future__ import annotations

import importlib
import logging
from types import ModuleType

from shared.errors import DropfedError


def import_opacus(part: str) -> ModuleType:
    """Return a module of Opacus, as in ``opacus.accountants``.

    Raises:
        DropfedError: Opacus cannot be imported; the message says what to install.
    """
    handlers = list(logging.root.handlers)
    try:
        return importlib.import_module(part)
    except ImportError as error:
        raise DropfedError(
            f"Opacus, which private training needs, cannot be imported ({error}): run `pip install 'opacus>=1.6,<1.7'`."
        ) from error
    finally:
        logging.root.handlers[:] = handlers
