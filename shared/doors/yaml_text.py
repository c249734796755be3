"""YAML: whatever people type, within bounds; and the one text that a record has.

Values are text, numbers, true and false, null, lists, and mappings whose keys are text. There is one way to write them,
which ``write`` has:

    mapping   a line ``KEY: VALUE`` for each key; what does not fit on that line stands below it, two spaces further in
    list      of plain values ``[ONE, TWO]`` on one line; of others one below the other, each behind ``- ``
    empty     ``{}`` and ``[]``
    text      as it is, if it is a word of ASCII letters, digits and ``_./-`` that begins with a letter and that YAML
              does not take for something else; otherwise in double quotes, with ``\\`` before ``"`` and ``\\``, and all
              but U+0020 to U+007E, U+00A1 to U+1FFF and U+2070 to U+D7FF as ``\\uXXXX`` or ``\\UXXXXXXXX``
    number    the shortest text that reads back the same; with ``.0`` before an exponent that has no point before it
    other     ``true``, ``false``, ``null``

Every line ends with a line feed, and nothing else stands there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from shared.doors import Refusal, door, require_size

MOST_EVENTS = 200_000  # beginnings and ends of lists and mappings, and what stands in them
DEEPEST = 20  # levels, of which records have five
LONGEST_TEXT = 10_000  # characters
LONGEST_NUMBER = 64  # characters

_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_MISTAKES = {
    "mapping values are not allowed": "has a second colon; put the value in quotes, or begin the line further left",
    "found a tab character": "has a tab; write blanks",
    "cannot start any token": "has a character that begins no value, such as a tab; write blanks, or use quotes",
}
"""What people are told, by what either of PyYAML's parsers says."""
_BEGUN_BEFORE = {
    "could not find expected ':'": "is no `key: value`, with a blank behind the colon",
    "found unexpected end of stream": "has a quotation mark that is not closed",
    "expected ',' or ']'": "has a bracket [ that is not closed, or lacks a comma behind it",
    "expected ',' or '}'": "has a brace { that is not closed, or lacks a comma behind it",
}
"""The same of what the parsers notice later than where it begins, sometimes by lines."""
_NO_TEXT = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Words, in whatever case, that some version of YAML does not take for text."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ESCAPED = re.compile(r'["\\]|[^ -~\u00a1-\u1fff\u2070-\ud7ff]')


# --- reading -----------------------------------------------------------------------------------------------


def parse(content: bytes, max_bytes: int) -> Any:
    """Parse one YAML document without aliases, tags, directives and repeated keys.

    Raises:
        Refusal: saying where, as far as that is known.
    """
    return _Values(_events(content, max_bytes)).document()


def refs(content: bytes, max_bytes: int) -> Iterator[tuple[int, int, bool]]:
    """Yield where in a YAML text each value, and each beginning and end of a list or mapping, begins and ends; and
    whether it is a text block.

    Raises:
        Refusal: as for ``parse``, but for keys and numbers.
    """
    for event in _events(content, max_bytes):
        begin, end = event.start_mark, event.end_mark
        is_block = isinstance(event, yaml.ScalarEvent) and event.style in ("|", ">")
        yield begin.index if begin else 0, end.index if end else 0, is_block


def _events(content: bytes, max_bytes: int) -> Iterator[yaml.Event]:
    """Yield what a text consists of, one after another, as PyYAML calls it."""
    with door("is not plain YAML"):
        require_size(content, max_bytes)
        text = _decoded(content)
        if text.startswith("%") or "\n%" in text:
            raise _refused("holds a directive (%); remove it", None)
        depth = 0
        for count, event in enumerate(_parsed(text)):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            _require_plain(event, count, depth)
            yield event


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _refused(f"holds bytes that are not UTF-8 (the first at {error.start}); save it as UTF-8", None) from None


def _parsed(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=_PARSER)
    except yaml.MarkedYAMLError as error:
        raise _unreadable(error) from None
    except yaml.YAMLError as error:
        raise _refused(str(error).partition("\n")[0][:300], None) from None


def _unreadable(error: yaml.MarkedYAMLError) -> Refusal:
    problem, here, before = error.problem or "cannot be read", error.problem_mark, error.context_mark
    for mistakes, mark in ((_MISTAKES, here), (_BEGUN_BEFORE, before or here)):
        for met, said in mistakes.items():
            if met in problem:
                return _refused(said, mark)
    return _refused(problem, here)


def _require_plain(event: yaml.Event, count: int, depth: int) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise _refused("uses an alias (*name); write the value out", event.start_mark)
    if getattr(event, "tag", None) is not None:
        raise _refused("uses a tag (!name); write the plain value", event.start_mark)
    if depth > DEEPEST:
        raise _refused("is nested too deeply; write it flat", event.start_mark)
    if count > MOST_EVENTS:
        raise _refused(f"holds more than {MOST_EVENTS} values", event.start_mark)
    if isinstance(event, yaml.ScalarEvent):
        if len(event.value) > LONGEST_TEXT:
            raise _refused(f"holds a text of {len(event.value):,} characters; write a shorter one", event.start_mark)
        if _SURROGATE.search(event.value):
            raise _refused("holds half a character", event.start_mark)


class _Values:
    """Makes values of events."""

    def __init__(self, source: Iterator[yaml.Event]) -> None:
        self._events = source
        self._scalars = _Scalars()

    def document(self) -> Any:
        """Return the value of the only document."""
        _, first = next(self._events), next(self._events)
        if isinstance(first, yaml.StreamEndEvent):
            return None
        value = self._value(next(self._events))
        end, following = next(self._events), next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise _refused("holds a second document; write one", end.start_mark)
        return value

    def _value(self, event: yaml.Event) -> Any:
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list()
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping()
        return self._scalars.value(event)

    def _list(self) -> list[Any]:
        values = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            values.append(self._value(event))
        return values

    def _mapping(self) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise _refused("has a list or pairs where a key must be", event.start_mark)
            key = self._scalars.value(event)
            if key in values:
                raise _refused(f"says {event.value} twice; keep one", event.start_mark)
            values[key] = self._value(next(self._events))
        return values


class _Scalars(SafeConstructor, Resolver):
    """What YAML 1.1 takes a plain text for."""

    def __init__(self) -> None:
        SafeConstructor.__init__(self)
        Resolver.__init__(self)

    def value(self, event: yaml.Event) -> Any:
        """Return the value of a scalar: text, a number, true, false or null."""
        assert isinstance(event, yaml.ScalarEvent)
        tag = self.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
        if (made := self.yaml_constructors.get(tag)) is None or tag == _TEXT:
            return event.value
        if len(event.value) > LONGEST_NUMBER:
            what = f"the number there is too long ({len(event.value):,} characters); write a shorter one"
            raise _refused(what, event.start_mark)
        with door(_where(event.start_mark) + "is not plain YAML: cannot be read"):
            return made(self, yaml.ScalarNode(tag, event.value))


# YAML 1.1 reads 1e-4 as text; people who write it mean the number.
_Scalars.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _refused(problem: str, mark: Any) -> Refusal:
    return Refusal(f"{_where(mark)}is not plain YAML: {problem}")


def _where(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


# --- writing -----------------------------------------------------------------------------------------------


def write(values: Mapping[str, Any]) -> bytes:
    """Write a mapping in the one way that this module states, its keys in their order.

    Raises:
        Refusal: it holds something that has no such text.
    """
    with door("holds a value that has no text in YAML"):
        lines = _block(values) if values else ["{}"]
        return "".join(f"{line}\n" for line in lines).encode()


def _block(value: Mapping[str, Any] | list[Any]) -> list[str]:
    """Return the lines of a mapping, or of a list that does not fit on one."""
    if not isinstance(value, Mapping):
        return [line for item in value for line in _behind("- ", _lines(item))]
    lines = []
    for key, inner in value.items():
        if (line := _on_one_line(inner)) is not None:
            lines.append(f"{_text(key)}: {line}")
        else:
            lines += [f"{_text(key)}:", *_behind("  ", _block(inner))]
    return lines


def _lines(value: Any) -> list[str]:
    line = _on_one_line(value)
    return _block(value) if line is None else [line]


def _behind(first: str, lines: list[str]) -> list[str]:
    """Indent lines by two spaces, and put the first of them behind something."""
    return [f"{'  ' if at else first}{line}" for at, line in enumerate(lines)]


def _on_one_line(value: Any) -> str | None:
    """Return what stands behind a key or ``- ``, unless it has to stand below."""
    if isinstance(value, Mapping):
        return None if value else "{}"
    if isinstance(value, list):
        if any(isinstance(item, Mapping | list) for item in value):
            return None
        return f"[{', '.join(map(_scalar, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    return _text(value)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise Refusal("holds a number that is not finite")
    digits = repr(value)
    return digits if "." in digits else digits.replace("e", ".0e")


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise Refusal(f"holds {type(text).__name__} where text must be")
    if _WORD.fullmatch(text) and text.lower() not in _NO_TEXT:
        return text
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in '"\\':
        return f"\\{char}"
    return f"\\u{ord(char):04x}" if ord(char) < 1 << 16 else f"\\U{ord(char):08x}"
