"""YAML and parsed values become records here, or sentences about what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shared.errors import ConfigurationError
from shared.exchange.records import Record

AnyRecord = TypeVar("AnyRecord", bound=BaseModel)

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

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_LONGEST_NUMBER = 64  # characters
_DEEPEST = 20  # levels, of which records have five; a parser's time grows with their square


_BEGINS = (
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
)
_ENDS = (yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases (they can expand without bound), tags, repeated keys, numbers that Python cannot hold and
    depths that keep a reader busy for minutes.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("uses an alias (*name); write the value out")
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.YAMLError("uses a tag (!name); write the plain value")
        if self._depth == _DEEPEST:
            raise yaml.MarkedYAMLError(problem="is nested too deeply; write it flat", problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            too_long = f"the number there is too long ({len(node.value):,} characters); write a shorter one"
            raise yaml.MarkedYAMLError(problem=too_long, problem_mark=node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"says {key.value} twice; keep one", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _PlainDumper(yaml.SafeDumper):
    """Writes what ``_PlainLoader`` reads back."""


# YAML 1.1 reads 1e-4 as text; people who write it mean the number. Text that looks so is quoted.
for _side in (_PlainLoader, _PlainDumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def parse_yaml(content: bytes, kind: type[AnyRecord], file: str) -> AnyRecord:
    """Read a YAML record.

    Raises:
        ConfigurationError: every problem, each with file, key and what is expected.
    """
    try:
        value = _plain(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError([f"{file}: {_where(error)}is not plain YAML: {_first_line(error)}"]) from None
    if not isinstance(value, dict):
        raise ConfigurationError([f"{file}: must hold `key: value` lines; see configs/ for examples"])
    return check_record(value, kind, file)


@lru_cache(maxsize=16)  # the same records lie in every site's folder, and an audit comes by each more than once
def _plain(content: bytes) -> Any:
    return yaml.load(content, _PlainLoader)  # noqa: S506  (a SafeLoader made stricter)


@lru_cache(maxsize=16)
def beside_values(content: bytes) -> str | None:
    """What a YAML text holds that is neither key nor value, where something could be hidden; None if nothing is.

    What cannot be read at all is left to ``parse_yaml``.
    """
    try:
        text = content.decode("utf-8")
        end = depth = 0
        for token in yaml.scan(text, yaml.SafeLoader):
            depth += isinstance(token, _BEGINS) - isinstance(token, _ENDS)
            if depth > _DEEPEST:
                return None
            if text[end : token.start_mark.index].strip():
                return "a comment"
            if isinstance(token, yaml.DirectiveToken):
                return "a directive"
            if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
                return "a text block"
            end = max(end, token.end_mark.index)
        return "a comment" if text[end:].strip() else None
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    except (yaml.YAMLError, RecursionError, ValueError):
        return None


def parse_json(content: bytes, kind: type[AnyRecord], file: str) -> AnyRecord:
    """Read a JSON record that people hand on.

    Raises:
        ConfigurationError: every problem, each with file, key and what is expected.
    """
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise ConfigurationError(problems_in(error, kind, file)) from None


def check_record(value: Mapping[str, Any], kind: type[AnyRecord], file: str) -> AnyRecord:
    """Check parsed values against a record.

    Raises:
        ConfigurationError: every problem, each with file, key and what is expected.
    """
    try:
        return kind.model_validate(value)
    except (ValidationError, RecursionError) as error:
        raise ConfigurationError(problems_in(error, kind, file)) from None


def problems_in(error: ValidationError | RecursionError, kind: type[BaseModel], file: str) -> list[str]:
    """One sentence for each problem pydantic found: file, key, what is wrong, what to do."""
    if isinstance(error, RecursionError):
        return [f"{file}: is nested too deeply; write it flat"]
    told = (_told(problem, kind) for problem in error.errors(include_url=False))
    return [f"{file}: {'; '.join(filter(None, parts))}" for parts in told]


def fault_in(error: ValidationError | RecursionError, kind: type[BaseModel]) -> str:
    """The first thing that pydantic found, in at most 200 characters; without a remedy, for what others signed."""
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    return _told(error.errors(include_url=False)[0], kind)[0][:200]


def _told(problem: ErrorDetails, kind: type[BaseModel]) -> tuple[str, str]:
    """The key and what is wrong with it; and what to do."""
    key = ".".join(str(part) for part in problem["loc"] if part != "[key]")
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
        return f"{key}.{_tag_of(problem)}: there is no {problem['ctx']['tag']!r}", f"use one of {known}"
    if problem["type"] == "model_type":
        known = _known_keys(kind, (*problem["loc"], ""))
        return f"{key}: {message}{_found(key, problem['input'])}", f"its keys are {known}" if known else ""
    if key:
        return f"{key}: {message}{_found(key, problem['input'])}", "correct it"
    return message, ""


def _message(problem: ErrorDetails) -> str:
    """What is wrong with a value: in our own words where we refused it, else by the table."""
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return PLAIN_WORDS.get(problem["type"], OTHERWISE).format(**problem.get("ctx", {}))


def dump_yaml(record: Record) -> bytes:
    """YAML bytes of a record, keys in the order in which the record declares them."""
    return dump_values(record.model_dump())


def dump_values(values: Mapping[str, Any]) -> bytes:
    """YAML bytes of plain values, as ``parse_yaml`` reads them back."""
    text: str = yaml.dump(values, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


def _known_keys(kind: type[BaseModel], location: Sequence[int | str]) -> str:
    """The keys that may stand where an unknown one was found, or ""."""
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
    """The key that tells the records of a union apart."""
    tag: str = problem["ctx"]["discriminator"].strip("'")
    return tag


def _is_tagged(kind: Any, tag: int | str) -> bool:
    fields = getattr(kind, "model_fields", {}).values()
    return any(get_origin(field.annotation) is Literal and tag in get_args(field.annotation) for field in fields)


def _found(key: str, value: object) -> str:
    """What stands there, unless a secret may be part of it: addresses are written with passwords in them."""
    told = {True: "true, which YAML also reads in yes and on", False: "false, which YAML also reads in no and off"}
    text = told[value] if isinstance(value, bool) else repr(value)
    if any(secret in key for secret in ("secret", "password", "url")) or "@" in text:
        return ""
    return f" (found {text if len(text) <= 60 else text[:57] + '...'})"


def _where(error: Exception) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


def _first_line(error: Exception) -> str:
    text = (error.problem if isinstance(error, yaml.MarkedYAMLError) else None) or str(error)
    return text.partition("\n")[0][:300]
