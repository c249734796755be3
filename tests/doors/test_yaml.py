"""YAML has one text for each record, and takes no reader longer than it should."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shared.doors import Refusal, yaml_text
from shared.doors.yaml_text import MOST_EVENTS, parse, write
from shared.errors import ConfigurationError, RejectedError
from shared.exchange.names import MAX_RECORD_BYTES
from shared.exchange.reading import KEPT_BYTES, _kept_values, dump_yaml, parse_yaml
from shared.exchange.records.answers import Reliability
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.exchange.trust import open_yaml
from tests.federation.running import run_configuration
from tests.memory import peak_memory

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = st.sampled_from(
    ["yes", "No", "NULL", "~", "1e3", "0x1", "1:30", "2026-11-21", "a b", "a-b", "<<", "=", ".inf", ""]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | words
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | words, inner, max_size=4),
    max_leaves=20,
)


def same(first: Any, second: Any) -> bool:
    """Equal, and of the same kinds: 1 is neither 1.0 nor true."""
    return repr(first) == repr(second)


@given(st.dictionaries(texts | words, values, max_size=5))
@example({"a": [{"b": [[], {}, [1, [2]]]}, []], "c": {}})
@example({"a": 1e-5, "b": 1e22, "c": -0.0, "d": 5e-324})
@example({"\x85\u2028\ufeff\u202e\U0001f600": "\x7f\xa0\x00"})
def test_what_is_written_is_read_back_by_any_reader(value: dict[str, Any]) -> None:
    content = write(value)
    assert same(parse(content, MAX_RECORD_BYTES), value)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert same(yaml.load(content, loader), value)
    assert write(parse(content, MAX_RECORD_BYTES)) == content


def test_the_form_is_as_the_protocol_says() -> None:
    value = {
        "word": "fundus-2/a_b.c",
        "text": 'say "é" \\ \u2028',
        "no_word": ["yes", "Null", "1st", "a b", "", "-", "octa#1"],
        "numbers": [1, -2, 0.5, 1e-05, 1e22, 3.0],
        "others": [True, False, None],
        "empty": {},
        "none": [],
        "0.weight": {"dtype": "F32", "shape": [3, 4]},
        "list": [{"a": 1, "b": {"c": [1]}}, [[1], [2, 3]], {}, "x"],
    }
    assert write(value).decode() == (
        "word: fundus-2/a_b.c\n"
        'text: "say \\"é\\" \\\\ \\u2028"\n'
        'no_word: ["yes", "Null", "1st", "a b", "", "-", "octa#1"]\n'
        "numbers: [1, -2, 0.5, 1.0e-05, 1.0e+22, 3.0]\n"
        "others: [true, false, null]\n"
        "empty: {}\n"
        "none: []\n"
        '"0.weight":\n'
        "  dtype: F32\n"
        "  shape: [3, 4]\n"
        "list:\n"
        "  - a: 1\n"
        "    b:\n"
        "      c: [1]\n"
        "  - - [1]\n"
        "    - [2, 3]\n"
        "  - {}\n"
        "  - x\n"
    )


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": float("inf")}, {1: 2}, {"a": b"x"}, {"a": object()}])
def test_what_has_no_text_is_not_written(value: dict[str, Any]) -> None:
    with pytest.raises(Refusal):
        write(value)


OTHERWISE = {
    "blank-line": lambda text: text + b"\n",
    "comment": lambda text: b"# patients\n" + text,
    "comment-behind": lambda text: text.replace(b"seed: 7", b"seed: 7 # 7"),
    "document": lambda text: b"---\n" + text,
    "document-end": lambda text: text + b"...\n",
    "byte-order-mark": lambda text: b"\xef\xbb\xbf" + text,
    "line-ends": lambda text: text.replace(b"\n", b"\r\n"),
    "no-line-end": lambda text: text[:-1],
    "trailing-blank": lambda text: text.replace(b"seed: 7", b"seed: 7 "),
    "two-blanks": lambda text: text.replace(b"seed: 7", b"seed:  7"),
    "hexadecimal": lambda text: text.replace(b"seed: 7", b"seed: 0x7"),
    "octal": lambda text: text.replace(b"seed: 7", b"seed: 07"),
    "plus": lambda text: text.replace(b"seed: 7", b"seed: +7"),
    "sexagesimal": lambda text: text.replace(b"deadline_hours: 168.0", b"deadline_hours: 2:48.0"),
    "underscore": lambda text: text.replace(b"batch_size: 4", b"batch_size: 4_"),
    "more-digits": lambda text: text.replace(b"tolerance: 0.01", b"tolerance: 0.010000000000000000208"),
    "exponent": lambda text: text.replace(b"tolerance: 0.01", b"tolerance: 1.0e-02"),
    "quotes": lambda text: text.replace(b"task: octa_segmentation", b'task: "octa_segmentation"'),
    "single-quotes": lambda text: text.replace(b"task: octa_segmentation", b"task: 'octa_segmentation'"),
    "escape": lambda text: text.replace(b"run: test-run", b'run: "test\\x2drun"'),
    "null": lambda text: text.replace(b"privacy: null", b"privacy: ~"),
    "empty": lambda text: text.replace(b"privacy: null", b"privacy:"),
    "truth": lambda text: text.replace(b"difference: false", b"difference: no"),
    "block-list": lambda text: text.replace(b"sites: [north, south]", b"sites:\n  - north\n  - south"),
    "flow-mapping": lambda text: text.replace(b"augmentation:\n  copies: 1", b"augmentation: {copies: 1}"),
    "other-order": lambda text: text.replace(b"rounds: 1\nseed: 7\n", b"seed: 7\nrounds: 1\n"),
    "order-of-options": lambda text: text.replace(b"  test: 0.25\n  train: 0.5\n", b"  train: 0.5\n  test: 0.25\n"),
    "left-out": lambda text: text.replace(b"privacy: null\n", b""),
    "anchor": lambda text: text.replace(b"seed: 7", b"seed: &patients 7"),
    "text-block": lambda text: text.replace(b"task: octa_segmentation", b"task: |-\n  octa_segmentation"),
    "folded": lambda text: text.replace(b"task: octa_segmentation", b'task: "octa_segmen\\\n  tation"'),
    "question-mark": lambda text: text.replace(b"seed: 7", b"? seed\n: 7"),
    "indented": lambda text: b"".join(b"  " + line for line in text.splitlines(keepends=True)),
}  # fmt: skip


@pytest.mark.parametrize("way", OTHERWISE)
def test_a_record_has_one_text_and_nothing_hides_in_another(way: str) -> None:
    """Every other text of the same values is refused; where people type it, most are taken."""
    content = dump_yaml(run_configuration())
    other = OTHERWISE[way](content)
    assert other != content
    assert open_yaml(content, RunConfiguration, "run.yaml") == run_configuration()
    with pytest.raises(RejectedError, match="is not written as the protocol writes this record"):
        open_yaml(other, RunConfiguration, "run.yaml")
    assert parse_yaml(other, RunConfiguration, "RUN.yaml") == run_configuration()


def test_maps_without_an_order_of_their_own_are_in_the_order_of_their_keys() -> None:
    shape = TensorShape(dtype="F32", shape=[1])
    sharing = Sharing(tensors={"b": shape, "a": shape}, start={}, personal=["z", "x"])
    lines = dump_yaml(sharing).decode().splitlines()
    assert lines.index("  a:") < lines.index("  b:")
    assert "personal: [z, x]" in lines


# --- attacks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("escape", [r"\UFFFFFFFF", r"\U00110000", r"\uD800", r"\xZZ", r"\UFFFFFFFF" * 1000])
def test_an_escape_of_no_character_in_a_reliability_is_poison(escape: str) -> None:
    content = f'theta: "{escape}"\n'.encode()
    with pytest.raises(RejectedError, match="is not plain YAML"):
        open_yaml(content, Reliability, "reliability.yaml")
    with pytest.raises(ConfigurationError, match="is not plain YAML"):
        parse_yaml(f'run: "{escape}"\n'.encode(), RunConfiguration, "RUN.yaml")


TINY = {
    "list": b"- a\n" * (MAX_RECORD_BYTES // 4),
    "flow-list": b"[" + b"a," * (MAX_RECORD_BYTES // 2 - 1),
    "numbers": b"[" + b"1," * (MAX_RECORD_BYTES // 2 - 1),
    "mappings": b"- {}\n" * (MAX_RECORD_BYTES // 5),
}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"run: a\nrounds:3\ntask: x\n", "line 2, column 1: is not plain YAML: is no `key: value`"),
        (b"sites: [a, b\nrounds: 3\n", "line 1, column 8: is not plain YAML: has a bracket"),
        (b"split: {a: 1\nrounds: 3\n", "line 1, column 8: is not plain YAML: has a brace"),
        (b"run: a: b\n", "line 1, column 7: is not plain YAML: has a second colon"),
        (b"run: 'a\nb: c\n", "line 1, column 6: is not plain YAML: has a quotation mark that is not closed"),
        (b"run:\n\tb: c\n", "line 2, column 1: is not plain YAML: has a character that begins no value"),
        (
            b"run: a\n  rounds: 3\n",
            "line 2, column 9: is not plain YAML: has a second colon; put the value in quotes, or",
        ),
        (
            b"sites: ['a' 'b']\n",
            "line 1, column 8: is not plain YAML: has a bracket [ that is not closed, or lacks a comma",
        ),
        (b"run: a\n\tb: c\n", "line 2, column 1: is not plain YAML: has a "),
        (b"a:\n  b: 1\n c: 2\n", "line 3, column 2: is not plain YAML: "),
    ],
)
@pytest.mark.parametrize("parser", [yaml.CSafeLoader, yaml.SafeLoader])
def test_what_people_mistype_is_told_where_it_begins(
    monkeypatch: pytest.MonkeyPatch, parser: type, content: bytes, said: str
) -> None:
    monkeypatch.setattr(yaml_text, "_PARSER", parser)
    with pytest.raises(Refusal) as refused:
        parse(content, MAX_RECORD_BYTES)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("kind", TINY)
def test_a_megabyte_of_tiny_tokens_is_refused_before_all_of_it_is_read(kind: str) -> None:
    with pytest.raises(Refusal, match=f"holds more than {MOST_EVENTS} values"):
        parse(TINY[kind], MAX_RECORD_BYTES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"".join(b"%%TAG !%d! tag:\n" % number for number in range(40_000)), "holds a directive"),
        (b"%YAML 1.1\n---\na: 1\n", "holds a directive"),
        (b"? " * 500_000, "has a list or pairs where a key must be"),
        (b"a: " + b"x" * 20_000, "holds a text of 20,000 characters"),
        (b"a: &b [1]\nc: *b\n", "uses an alias"),
        (b"a: 1\n---\nb: 2\n", "holds a second document"),
        (b"a: 2026-99-99", "cannot be read"),
        (b"a: \xff", "bytes that are not UTF-8"),
        (b"x" * (MAX_RECORD_BYTES + 1), "has 1048577 bytes, more than 1048576"),
    ],
)
def test_what_keeps_a_reader_busy_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        parse(content, MAX_RECORD_BYTES)


def test_without_the_library_in_c_the_same_is_read_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML comes with libyaml almost everywhere, but not quite."""
    monkeypatch.setattr(yaml_text, "_PARSER", yaml.SafeLoader)
    assert parse_yaml(dump_yaml(run_configuration()), RunConfiguration, "RUN.yaml") == run_configuration()
    for escape in (r"\UFFFFFFFF", r"\uD800", r"\xZZ"):
        with pytest.raises(Refusal):
            parse(f'run: "{escape}"\n'.encode(), MAX_RECORD_BYTES)


def test_a_record_that_is_wrong_everywhere_is_refused_without_telling_each_place() -> None:
    """To write out 60,000 faults took longer than to find them, and 236 MB."""
    names = "".join(f'  "{number:x} !":\n    dtype: F32\n    shape: []\n' for number in range(5000))
    with peak_memory() as peak, pytest.raises(ConfigurationError, match=r"is wrong in \d{4,} places"):
        parse_yaml(f"tensors:\n{names}".encode(), Sharing, "tensors.yaml")
    assert peak() < 60_000_000


def test_the_values_of_a_large_text_are_not_kept() -> None:
    """16 records of 1 MB that were refused held 186 MB for as long as the daemon lived."""
    before = _kept_values.cache_info().currsize
    with pytest.raises(ConfigurationError):
        parse_yaml(f"a: {'x' * KEPT_BYTES}\n".encode(), Sharing, "tensors.yaml")
    assert _kept_values.cache_info().currsize == before
