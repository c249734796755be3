"""A hostile survey or sheet is refused with a sentence, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shared.doors.json_text import canonical
from shared.errors import DoubtfulError, RejectedError
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.messages import Handover, Head
from shared.exchange.records.surveys import BINS, BIT_DEPTHS, COLOURS, FORMATS, MAKERS, SignedSheet, Survey
from shared.exchange.signing import SigningKey, digest_of
from shared.exchange.trust import Peer

OURS, THEIRS, LATER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
SITE = Peer("retina", "north", "north", THEIRS.public)
SURVEY = Survey(
    federation="retina", site="north", number=1, task="dr_staging", classes=["0", "1"], created="2026-11-24T10:00:00Z"
)
CONTENT = OURS.sign(SURVEY.model_dump(mode="json"))
NOTHING = dict.fromkeys(("p5", "p25", "p50", "p75", "p95"))


def sheet(**changes: object) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "task": "dr_staging",
        "images": "240",
        "unreadable": "0",
        "duplicates": "fewer than 10",
        "patients": None,
        "images_per_patient": NOTHING,
        "classes": {"0": "200", "1": "40", "other": "0"},
        "class_shares": {},
        "formats": dict.fromkeys(FORMATS),
        "bit_depths": dict.fromkeys(BIT_DEPTHS),
        "colours": dict.fromkeys(COLOURS),
        "makers": dict.fromkeys(MAKERS),
        **dict.fromkeys(("longer_side", "shorter_side", "field_of_view", "sharpness"), NOTHING),
        "intensity": [None] * BINS,
        "images_per_second": "12.0",
    }
    return plain | changes


def answer(of_sheet: Mapping[str, Any] | None = None, **changes: object) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "protocol": 2,
        "kind": "sheet",
        "federation": "retina",
        "site": "north",
        "number": 1,
        "in_reply_to": digest_of(CONTENT),
        "agrees": True,
        "reason": "this hospital agreed",
        "sheet": sheet() if of_sheet is None else of_sheet,
        "own_head": {"seq": 0, "digest": None},
        "created": "2026-11-24T10:01:00Z",
    }
    return plain | changes


def opened(body: dict[str, Any], key: SigningKey = THEIRS, site: Peer = SITE) -> SignedSheet:
    return site.open_sheet(key.sign(body), SURVEY, digest_of(CONTENT))


def test_what_a_site_signs_is_read() -> None:
    assert opened(answer()).sheet is not None
    assert opened(answer(sheet=None, agrees=False)).sheet is None


@pytest.mark.parametrize(
    "changes",
    [
        {"images": 240},
        {"images": "241"},
        {"images": "-3"},
        {"images": "240 patients, of whom Jane Doe"},
        {"classes": {"0": "200", "1": "40", "Jane Doe": "10"}},
        {"classes": {"0": "200"}},
        {"makers": dict.fromkeys(MAKERS) | {"a maker nobody knows": "10"}},
        {"formats": {}},
        {"intensity": ["0.5"] * (BINS + 1)},
        {"intensity": ["2.0"] + [None] * (BINS - 1)},
        {"intensity": ["nan"] + [None] * (BINS - 1)},
        {"longer_side": NOTHING | {"p50": "1e300"}},
        {"longer_side": NOTHING | {"p50": "512.0"}},
        {"longer_side": NOTHING | {"p25": "900.0", "p75": "300.0"}},
        {"field_of_view": NOTHING | {"p50": "1.5"}},
        {"images_per_second": "inf"},
        {"task": "octa_segmentation"},
        {"a key": "nobody knows"},
    ],
)
def test_a_sheet_with_anything_else_in_it_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RejectedError, match=r"^sheets/0001\.json: "):
        opened(answer(sheet(**changes)))


@pytest.mark.parametrize(
    "changes",
    [
        {"site": "south"},
        {"number": 2},
        {"in_reply_to": "0" * 64},
        {"agrees": False},
        {"agrees": True, "sheet": None},
        {"kind": "survey"},
        {"reason": "two\nlines"},
        {"protocol": 1},
    ],
)
def test_a_sheet_of_another_place_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RejectedError, match=r"^sheets/0001\.json: "):
        opened(answer(**changes))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff" * 100,
        canonical(answer()),
        OURS.sign(answer()),
        THEIRS.sign(answer()) + b"\n",
        b" " * (1 << 20) + THEIRS.sign(answer()),
        b'{"body":' + b"[" * 100_000,
    ],
)
def test_what_the_site_has_not_signed_is_doubted(content: bytes) -> None:
    with pytest.raises(DoubtfulError):
        SITE.open_sheet(content, SURVEY, digest_of(CONTENT))


def handed_over(when: str) -> Peer:
    handover = Handover(
        federation="retina",
        site="north",
        number=2,
        key=LATER.public,
        after=Head(seq=3, digest="0" * 64),
        created=when,
    )
    return SITE.hand_over(THEIRS.sign(handover.model_dump(mode="json")))


def test_a_key_that_was_handed_over_signs_no_later_sheet() -> None:
    site = handed_over("2026-11-24T10:00:00Z")
    late = answer(own_head={"seq": 5, "digest": "1" * 64})
    assert opened(late, LATER, site).agrees
    with pytest.raises(RejectedError, match="handed over before"):
        opened(late, THEIRS, site)
    with pytest.raises(RejectedError, match="handed over before"):  # though it was in use at the survey
        opened(late, THEIRS, handed_over("2026-11-24T10:30:00Z"))
    with pytest.raises(RejectedError, match="handed over before"):  # an old message named, by who holds a copy of it
        opened(answer(own_head={"seq": 2, "digest": "1" * 64}), THEIRS, handed_over("2026-11-24T09:59:59Z"))
    with_the_old = answer(own_head={"seq": 2, "digest": "1" * 64})
    assert opened(with_the_old, THEIRS, handed_over("2026-11-24T10:30:00Z")).agrees  # signed before


@pytest.mark.parametrize(
    "changes",
    [
        {"site": "south"},
        {"number": 2},
        {"classes": ["a", "a"]},
        {"classes": ["other"]},
        {"classes": ["two\nlines"]},
        {"classes": [str(number) for number in range(21)]},
        {"task": "../x"},
        {"query": "how many are called Jane?"},
    ],
)
def test_a_false_survey_is_refused(changes: dict[str, Any]) -> None:
    aggregator = Peer("retina", "north", AGGREGATOR, OURS.public)
    assert aggregator.open_survey(CONTENT, 1) == SURVEY
    with pytest.raises(RejectedError, match=r"^surveys/0001\.json: "):
        aggregator.open_survey(OURS.sign(SURVEY.model_dump(mode="json") | changes), 1)
    with pytest.raises(DoubtfulError):
        aggregator.open_survey(THEIRS.sign(SURVEY.model_dump(mode="json")), 1)
