"""YAML and parsed values become records here, or sentences about what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from shared.doors import Refusal, schema, yaml_text
from shared.doors.schema import AnyRecord
from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.exchange.names import MAX_RECORD_BYTES

_WHOLE, _NUMBER, _LIST = "must be a whole number", "must be a number", "must be a list, as in [one, two]"
_PAIRS = "must hold `key: value` pairs"

PLAIN_WORDS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must hold `name: value` pairs, as in {{name: value}}",
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "must be a smaller number",
    "int_type": _WHOLE,
    "invalid_key": "must be text; put it in quotes, or YAML misreads it",
    "json_invalid": "is not JSON ({error}); get the file anew",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "list_type": _LIST,
    "literal_error": "must be {expected}",
    "model_attributes_type": _PAIRS,
    "model_type": _PAIRS,
    "string_pattern_mismatch": "must be of the form {pattern}",
    "string_too_long": "must have {max_length} characters or fewer",
    "string_type": "must be text; put it in quotes, or YAML misreads it",
    "too_long": "must hold {max_length} or fewer",
    "too_short": "must hold {min_length} or more",
    "tuple_type": _LIST,
}
"""What people are told in place of pydantic's words, by its name for what is wrong."""
OTHERWISE = "cannot be this"

_SHOWN = 100  # characters of a key
_UNWRITTEN = ("[key]", "[absolute]", "[relative]", "[words]", "[block]")  # of a problem's place, what stands in no file
KEPT_BYTES = 1 << 16  # of a text whose values are kept for the next time


def parse_yaml(content: bytes, kind: type[AnyRecord], file: str) -> AnyRecord:
    """Read a YAML record, as people write it: with comments, and in any of YAML's ways.

    Raises:
        ConfigurationError: every problem, each with file, key and what is expected.
    """
    try:
        return fill_yaml(content, kind)
    except Refusal as refusal:
        raise ConfigurationError(problems_in(refusal, kind, file)) from None


def fill_yaml(content: bytes, kind: type[AnyRecord]) -> AnyRecord:
    """Read a YAML record.

    Raises:
        Refusal: it is not plain YAML, or not this record.
    """
    values = _values(content)
    if not isinstance(values, dict):
        raise Refusal("must hold `key: value` lines; see configs/ for examples")
    return schema.fill(kind, values)


def _values(content: bytes) -> Any:
    return _kept_values(content) if len(content) <= KEPT_BYTES else yaml_text.parse(content, MAX_RECORD_BYTES)


@lru_cache(maxsize=16)  # the same records lie in every site's folder, and an audit comes by each more than once
def _kept_values(content: bytes) -> Any:
    return yaml_text.parse(content, MAX_RECORD_BYTES)


def parse_json(content: bytes, kind: type[AnyRecord], file: str) -> AnyRecord:
    """Read a JSON record that people hand on.

    Raises:
        ConfigurationError: every problem, each with file, key and what is expected.
    """
    try:
        return schema.fill_json(kind, content, MAX_RECORD_BYTES)
    except Refusal as refusal:
        raise ConfigurationError(problems_in(refusal, kind, file)) from None


def check_record(values: Mapping[str, Any], kind: type[AnyRecord], file: str) -> AnyRecord:
    """Check parsed values against a record.

    Raises:
        ConfigurationError: every problem, each with file, key and what is expected.
    """
    try:
        return schema.fill(kind, values)
    except Refusal as refusal:
        raise ConfigurationError(problems_in(refusal, kind, file)) from None


def problems_in(refusal: Refusal, kind: type[BaseModel], file: str) -> list[str]:
    """Return one sentence for each problem of a record: file, key, what is wrong, what to do."""
    if not isinstance(refusal, schema.Faults):
        return [f"{file}: {refusal}"]
    told = (_fault_and_remedy(problem, kind) for problem in refusal.found)
    return [f"{file}: {'; '.join(filter(None, parts))}" for parts in told]


def fault_in(refusal: Refusal, kind: type[BaseModel]) -> str:
    """Return the first problem of a record, in at most 200 characters; without a remedy, for what others signed."""
    if not isinstance(refusal, schema.Faults):
        return str(refusal)
    return _fault_and_remedy(refusal.found[0], kind)[0][:200]


def _fault_and_remedy(problem: ErrorDetails, kind: type[BaseModel]) -> tuple[str, str]:
    """Return the key and what is wrong with it; and what to do."""
    key = escape(".".join(str(part)[:_SHOWN] for part in problem["loc"] if part not in _UNWRITTEN))
    message = _message(problem)
    if problem["type"] == "extra_forbidden":
        known = _known_keys(kind, problem["loc"])
        return f"{key}: is not a known key", f"remove it{f' or use one of {known}' if known else ''}"
    if problem["type"] == "missing":
        return f"{key}: is missing", "add it"
    if problem["type"] == "union_tag_not_found":
        return f"{key}.{_tag_of(problem)}: is missing", "add it"
    if problem["type"] == "union_tag_invalid":
        known = problem["ctx"]["expected_tags"].replace("'", "")
        return f"{key}.{_tag_of(problem)}: there is no {problem['ctx']['tag'][:_SHOWN]!r}", f"use one of {known}"
    if problem["type"] == "model_type":
        known = _known_keys(kind, (*problem["loc"], ""))
        return f"{key}: {message}{_found(key, problem['input'])}", f"its keys are {known}" if known else ""
    if key:
        return f"{key}: {message}{_found(key, problem['input'])}", "correct it"
    return message, ""


def _message(problem: ErrorDetails) -> str:
    """Return what is wrong with a value: in our own words where we refused it, else by the table."""
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return PLAIN_WORDS.get(problem["type"], OTHERWISE).format(**problem.get("ctx", {}))


def dump_yaml(record: BaseModel) -> bytes:
    """Return the one YAML text of a record: its own keys in the order of their declaration, all others in theirs."""
    return dump_values(_plain(record))


def dump_values(values: Mapping[str, Any]) -> bytes:
    """Return the YAML bytes of plain values, as ``parse_yaml`` reads them back."""
    return yaml_text.write(values)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in value.model_dump()}
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value, key=str)}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _known_keys(kind: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return the keys that may stand where an unknown one was found, or ""."""
    inner: Any = kind
    for part in location[:-1]:
        if isinstance(inner, UnionType):  # records told apart by a tag, which stands in the location
            inner = next((each for each in get_args(inner) if _is_tagged(each, part)), None)
        else:
            field = inner.model_fields.get(str(part))
            inner = field.annotation if field else None
            if isinstance(inner, UnionType):
                continue
        if not isinstance(inner, type) or not issubclass(inner, BaseModel):
            return ""
    return "" if isinstance(inner, UnionType) else ", ".join(inner.model_fields)


def _tag_of(problem: ErrorDetails) -> str:
    """Return the key that tells the records of a union apart."""
    tag: str = problem["ctx"]["discriminator"].strip("'")
    return tag


def _is_tagged(kind: Any, tag: int | str) -> bool:
    fields = getattr(kind, "model_fields", {}).values()
    return any(get_origin(field.annotation) is Literal and tag in get_args(field.annotation) for field in fields)


def _found(key: str, value: object) -> str:
    """Return what stands there, unless a secret may be part of it: addresses are written with passwords in them."""
    told = {True: "true, which YAML also reads in yes and on", False: "false, which YAML also reads in no and off"}
    text = told[value] if isinstance(value, bool) else repr(value)
    if any(secret in key for secret in ("secret", "password", "url")) or "@" in text:
        return ""
    return f" (found {text if len(text) <= 60 else text[:57] + '...'})"
