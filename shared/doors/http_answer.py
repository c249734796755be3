"""What an HTTP answer says in its headers (RFC 9110); what is malformed counts as not said."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

from shared.doors import Refusal, door
from shared.doors.numbers import whole

LONGEST_WAIT_S = 10**9
_MOST_DIGITS = 9
_QUOTED = re.compile(r'"[^"]*"')
_KIND = re.compile(r"(?:^|,)\s*([\w-]+)(?![\w-]|\s*=)", re.ASCII)
_BEGINS = re.compile(r"bytes ([0-9]{1,18})-")


def length_of(content_length: str) -> int | None:
    """Return how many bytes follow, by Content-Length."""
    try:
        return whole(content_length)
    except Refusal:
        return None


def start_of(content_range: str) -> int | None:
    """Return the place of the first byte that follows, by Content-Range."""
    found = _BEGINS.match(content_range)
    return length_of(found[1]) if found else None


def seconds_of(date: str) -> float | None:
    """Return an HTTP date in seconds since 1970."""
    try:
        with door("none"):
            return parsedate_to_datetime(date).timestamp()
    except Refusal:
        return None


def delay_of(retry_after: str) -> float | None:
    """Return Retry-After in seconds, where it is a number of them."""
    try:
        return float(whole(retry_after.strip(), digits=_MOST_DIGITS))
    except Refusal:
        return None


def kinds_of(challenges: str) -> list[str]:
    """Return the kinds of login that WWW-Authenticate offers, as it writes them."""
    return _KIND.findall(_QUOTED.sub('""', challenges))


def offers(challenges: str, kind: str) -> bool:
    """Return whether WWW-Authenticate offers a kind of login."""
    return kind.lower() in map(str.lower, kinds_of(challenges))
