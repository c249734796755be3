"""Some seconds of what ``make fuzz`` does for an hour: the same inputs each time, made without a guide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from shared.doors import Refusal
from shared.errors import DropfedError
from tests.fuzz.doors import DOORS, BrokenError, judge
from tests.fuzz.seeds import CORPUS, SEEDS, inputs

SLOW = {"http-answer", "owncloud-json"}  # a connection each
ALIEN = [b"\xff", b"\x00", b"\xed\xa0\x80", b'"\\ud800"', b"9" * 5000, b"-1", b"[" * 3000, b"\\UFFFFFFFF", b"\n", b"{}"]


def mutations(door: str, count: int) -> Iterator[bytes]:
    """So many inputs, each a few changes away from one to begin with."""
    random, known = Random(door), inputs(door)
    for _ in range(count):
        content = bytearray(random.choice(known))
        for _ in range(random.randint(1, 4)):
            at, end = sorted(random.choices(range(len(content) + 1), k=2))
            match random.randrange(4):
                case 0:
                    content[at:at] = random.choice(ALIEN)
                case 1:
                    del content[at : at + random.randint(1, 8)]
                case 2:
                    content[at : at + 1] = random.randbytes(1)
                case 3:
                    content[at:at] = random.choice(known)[:end]
        yield bytes(content)


@pytest.mark.parametrize("door", DOORS)
def test_whatever_comes_becomes_a_value_or_is_refused_in_a_sentence(door: str) -> None:
    for content in [*inputs(door), b"", *mutations(door, 20 if door in SLOW else 300)]:
        judge(door, content)


@pytest.mark.parametrize("door", DOORS)
def test_what_each_door_begins_with_passes_it(door: str) -> None:
    """Or nothing of what lies behind it would ever be reached."""
    passed = 0
    for content in SEEDS[door]:
        with suppress(DropfedError, Refusal):
            DOORS[door](content)
            passed += 1
    assert passed


def test_every_kept_input_belongs_to_a_door() -> None:
    kept = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert kept and {path.parent.name for path in kept} <= DOORS.keys()


def test_another_text_of_a_record_and_a_refusal_that_is_no_sentence_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise Refusal("")

    monkeypatch.setitem(DOORS, "table", refuse)
    with pytest.raises(BrokenError, match="is no sentence"):
        judge("table", b"")
    monkeypatch.undo()
    monkeypatch.setattr("tests.fuzz.doors.write_metrics", lambda _: b"another")
    with pytest.raises(BrokenError, match="was taken, and is written as"):
        judge("table", SEEDS["table"][0])
