"""Who keeps a round's answers from being worked on together, though each is sound by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from shared.errors import DropfedError, FaultError, RejectedError
from shared.exchange.records.values import sentence

TOGETHER = "the answers cannot be worked on together with this one"

logger = logging.getLogger(__name__)


def spoilers(sites: Sequence[str], method: str, work: Callable[[Sequence[str]], object]) -> dict[str, str]:
    """Return the sites without which the others' answers can be worked on, with what goes wrong with them.

    Those that cannot be worked on even alone are it; else one without whom it goes, the first by name; else all. What
    is worked on last are the answers of all others, if there are any.

    Args:
        method: by which they are worked on.
        work: works on the answers of some of the sites; raises where that cannot be done.
    """

    def fault(tried: Sequence[str]) -> str | None:
        try:
            if tried:
                work(tried)
        except Exception as error:
            is_ours = isinstance(error, DropfedError | OSError | MemoryError)
            if is_ours and not isinstance(error, RejectedError | FaultError):
                raise
            logger.warning("the answers of %s cannot be worked on together", ", ".join(tried), exc_info=error)
            what = error.what if isinstance(error, FaultError) else error or type(error).__name__
            return sentence(f"{TOGETHER} by {method}: {what}")
        return None

    if (reason := fault(sites)) is None:
        return {}
    alone = {site: why for site in sites if (why := fault([site])) is not None}
    rest = [site for site in sites if site not in alone]
    if fault(rest) is None:
        return alone
    for site in rest:
        if fault([other for other in rest if other != site]) is None:
            return alone | {site: reason}
    return dict.fromkeys(sites, reason)
