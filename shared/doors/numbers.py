"""Numbers in texts: a header's, a listing's, a table's."""

from __future__ import annotations

import math
import re

from shared.doors import Refusal

_WHOLE = re.compile(r"0|[1-9][0-9]*")
MOST_DIGITS = 18  # a count of bytes that no disk has
_LONGEST = 32  # characters of a number's shortest text; none has more than 24


def whole(text: str, *, digits: int = MOST_DIGITS) -> int:
    """Return a whole number, 0 or more, written in at most so many ASCII digits and without zeros before them.

    Raises:
        Refusal: the text is none.
    """
    if len(text) > digits or _WHOLE.fullmatch(text) is None:
        raise Refusal(f"{text[:20]!r} is not a whole number of at most {digits} digits")
    return int(text)


def finite(text: str) -> float:
    """Return the finite double whose shortest text is ``text``, as ``repr`` writes it.

    Raises:
        Refusal: there is none.
    """
    try:
        number = float(text) if len(text) <= _LONGEST else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or repr(number) != text:
        raise Refusal(f"{text[:20]!r} is not the shortest text of a finite number")
    return number
