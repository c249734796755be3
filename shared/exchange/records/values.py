"""What a record's fields may be: names, numbers, times and texts, each with its bounds."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import not_
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from shared.doors import keys
from shared.doors.numbers import finite, whole
from shared.exchange.forms import text_like

_TIME_FORM = "%Y-%m-%dT%H:%M:%SZ"


def _finite_text(text: str) -> str:
    finite(text)
    return text


def _is_share(text: str) -> str:
    if not 0 <= finite(text) <= 1:
        raise ValueError("must be in [0, 1]")
    return text


def _is_one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of characters that can be printed")
    return text


def _real_time(text: str) -> str:
    try:
        is_time = datetime.strptime(text, _TIME_FORM).replace(tzinfo=UTC).strftime(_TIME_FORM) == text
    except ValueError:
        is_time = False
    if not is_time:
        raise ValueError("must be a time in UTC, as in 2026-11-21T09:30:00Z")
    return text


def _is_public_key(digits: str) -> str:
    keys.require_public(digits)
    return digits


def sentence(text: str) -> str:
    """Return any text as a ``Sentence``: one line, nothing that cannot be printed, at most 1000 characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:1000]


Digest = Annotated[str, text_like(r"[0-9a-f]{64}", "64 hexadecimal digits, 0-9 and a-f")]
PublicKey = Annotated[Digest, AfterValidator(_is_public_key)]
Wrapped = Annotated[str, text_like(r"[0-9a-f]{208}", "208 hexadecimal digits, 0-9 and a-f")]
DecimalText = Annotated[str, AfterValidator(_finite_text)]
ShareText = Annotated[DecimalText, AfterValidator(_is_share)]
Sentence = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_is_one_line)]
Software = Annotated[
    str,
    text_like(
        r"[a-z][a-z0-9_-]{0,31} [0-9][0-9A-Za-z.+!_-]{0,63}",
        "a program and its version, as in dropfed 0.1.0, at most 32 and 64 characters",
    ),
]
Time = Annotated[str, AfterValidator(_real_time)]
FEWER_THAN = "fewer than "
COUNT_TEXT = rf"0|[1-9][0-9]{{0,8}}|{FEWER_THAN}([2-9]|[1-9][0-9]{{1,3}})"
LARGEST_COUNT = 999_999_999
CountText = Annotated[str, StringConstraints(pattern=rf"^({COUNT_TEXT})$")]
Count = Annotated[int, Field(ge=0)]
RoundText = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,3})$")]
SCORE_COLUMN = r"[a-z][a-z0-9_]{0,47}"
ScoreColumn = Annotated[str, text_like(SCORE_COLUMN, "a column's name: a-z, 0-9 and _, at most 48 characters")]
_PATH_PART = r"([A-Za-z_][A-Za-z0-9_]{0,63}|[0-9]{1,6})"
TensorName = Annotated[
    str,
    text_like(
        rf"(?=.{{1,200}}$){_PATH_PART}([./]{_PATH_PART})*",
        "a tensor's path, as in encoder.layer1.0.weight, at most 200 characters",
    ),
]


IF_SAID = Field(exclude_if=not_)
"""Of a key that is younger than some records: it is written only where it says something, so that those keep their
bytes.
"""


def most(count: str) -> int:
    """Return the most that a ``CountText`` can mean: of "fewer than 5", 4."""
    return whole(count.removeprefix(FEWER_THAN)) - count.startswith(FEWER_THAN)


def fewest(count: str) -> int:
    """Return the fewest that a ``CountText`` can mean: of "fewer than 5", none."""
    return 0 if count.startswith(FEWER_THAN) else whole(count)


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


PROTOCOL: Final = 2
PROTOCOLS: Final = (1, 2)
Protocol = Annotated[Literal[1, 2], BeforeValidator(_no_truth_value)]  # True equals 1
"""What a folder is written in. Daemons speak ``PROTOCOL`` alone; an audit reads folders of protocol 1 for ever."""


class Record(BaseModel):
    """Base: unknown keys refused, types never coerced, values never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Payload(Record):
    """Base of the records that are files of messages.

    Attributes:
        FILE: the name of the file in its message.
    """

    FILE: ClassVar[str]


AnyPayload = TypeVar("AnyPayload", bound=Payload)


def now_text() -> str:
    """Return the time now, UTC, to the second, for people; nothing is decided by it."""
    return time_text(datetime.now(UTC).timestamp())


def time_text(timestamp: float) -> str:
    """Return seconds since 1970 as UTC, to the second."""
    return datetime.fromtimestamp(timestamp, UTC).strftime(_TIME_FORM)


def decimal_text(number: float) -> str:
    """Return the shortest text that reads back as exactly ``number``."""
    return repr(float(number))
