"""JSON as records have it: canonical bytes, and no numbers but integers."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import rfc8785

from shared.doors import Refusal, door, require_size

Json = dict[str, Any]

GREATEST = 2**53 - 1  # that RFC 8785 has, either way
MOST_VALUES = 200_000  # keys and values of one text; no record has half as many
_LONGEST_INTEGER = 17  # characters
_SHOWN = 20  # of a text that is refused


def canonical(value: Json) -> bytes:
    """Return the RFC 8785 bytes of a JSON object whose numbers are all integers (floats travel as text)."""
    return rfc8785.dumps(value)


def parse_canonical(content: bytes, max_bytes: int) -> Json:
    """Parse JSON that must be exactly canonical.

    Raises:
        Refusal: not JSON, not an object, not the canonical bytes of what it says, or too large.
    """
    with door("is not canonical JSON"):
        value = _parsed(content, max_bytes)
        if not isinstance(value, dict) or canonical(value) != content:
            raise Refusal("is not canonical JSON")
    return value


@door("is not JSON")
def parse_integers(content: bytes, max_bytes: int) -> Any:
    """Parse JSON whose numbers are all integers within ±(2^53 − 1).

    Raises:
        Refusal: it is none, too large, of too many values, or nested too deeply for its parser.
    """
    return _parsed(content, max_bytes)


def _parsed(content: bytes, max_bytes: int) -> Any:
    require_size(content, max_bytes)
    if not content:
        raise Refusal("is empty")
    if sum(map(content.count, (b",", b":", b"[", b"{"))) > MOST_VALUES:
        raise Refusal(f"holds more than {MOST_VALUES} values")
    return json.loads(content, parse_int=_integer, parse_float=_refuse, parse_constant=_refuse)


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER or abs(int(text)) > GREATEST:
        _refuse(text)
    return int(text)


def _refuse(text: str) -> NoReturn:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    raise Refusal(f"holds the number {shown}; only integers of at most 2^53 - 1 are allowed")
