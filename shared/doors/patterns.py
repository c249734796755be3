"""Regular expressions that people type."""

from __future__ import annotations

import re
import warnings

from shared.doors import Refusal, door

LONGEST = 200  # characters


@door("cannot be read as a regular expression")
def parse(text: str) -> re.Pattern[str]:
    """Compile a regular expression.

    Raises:
        Refusal: it is none, or too long.
    """
    if len(text) > LONGEST:
        raise Refusal(f"has more than {LONGEST} characters")
    try:
        with warnings.catch_warnings():  # of what another Python will read otherwise, in words for programmers
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text)
    except re.error as error:
        raise Refusal(f"is not a regular expression ({error})") from None
