"""Numbers in texts: a header's, a listing's, a table's."""

from __future__ import annotations

import math
import re

from shared.doors import Refusal

_WHOLE = re.compile(r"0|[1-9][0-9]*")
_DECIMAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
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


def decimal(text: str) -> float:
    """Return the finite double that is nearest to a decimal number, however it is written.

    Raises:
        Refusal: the text is none, or longer than any needs to be.
    """
    number = float(text) if len(text) <= _LONGEST and _DECIMAL.fullmatch(text) else math.nan
    if not math.isfinite(number):
        raise Refusal(f"{text[:20]!r} is not a finite decimal number of at most {_LONGEST} characters")
    return number
