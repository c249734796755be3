"""A site's later keys: who signs what, and which hand-overs are none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DoubtfulError, RejectedError
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import Handover, Head, Manifest, Status
from shared.exchange.signing import SigningKey
from shared.exchange.trust import Peer

KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, 5)]
STRANGER = SigningKey(b"\x09" * 32)
SITE = Peer("retina", "north", "north", KEYS[0].public)
PLACE = MessageRef("consent", "r")


def head(seq: int) -> Head:
    return Head(seq=seq, digest=f"{seq:064x}") if seq else Head()


def handover(number: int, after: int, /, **changes: Any) -> dict[str, Any]:
    body = Handover(
        federation="retina",
        site="north",
        number=number,
        key=KEYS[number - 1].public,
        after=head(after),
        created="2026-11-21T09:30:00Z",
    ).model_dump()
    return body | changes


def manifest(seq: int, **changes: Any) -> dict[str, Any]:
    body = Manifest(
        kind="consent",
        federation="retina",
        site="north",
        sender="north",
        run="r",
        round=0,
        seq=seq,
        previous=head(seq - 1).digest,
        in_reply_to=None,
        created="2026-11-21T09:30:00Z",
        files={"consent.json": {"size": 2, "sha256": "aa" * 32}},  # type: ignore[dict-item]
    ).model_dump()
    return body | changes


def heartbeat(seq: int) -> dict[str, Any]:
    return Status(
        federation="retina",
        site="north",
        time="2026-11-21T09:30:00Z",
        phase="waiting",
        run=None,
        round=0,
        progress_percent=0,
        trouble=None,
        own_head=head(seq),
        aggregator_head=Head(),
    ).model_dump()


def with_keys(afters: list[int]) -> Peer:
    site = SITE
    for number, after in enumerate(afters, start=2):
        site = site.hand_over(KEYS[number - 2].sign(handover(number, after)))
    return site


@given(st.lists(st.integers(0, 6), max_size=3).map(sorted), st.integers(1, 8), st.sampled_from([*KEYS, STRANGER]))
def test_of_each_message_one_key_alone_is_right(afters: list[int], seq: int, signer: SigningKey) -> None:
    site = with_keys(afters)
    right = KEYS[sum(seq > after for after in afters)]
    assert site.key_of(seq) == right.public
    content = signer.sign(manifest(seq))
    if signer is right and seq in afters:  # the hand-over names another
        with pytest.raises(DoubtfulError, match=f"handed over, and is another than north's message {seq}"):
            site.open(content, PLACE, head=head(seq - 1), answers=(None,))
    elif signer is right:
        assert site.open(content, PLACE, head=head(seq - 1), answers=(None,)).manifest.seq == seq
    else:
        with pytest.raises(RejectedError, match=r"another key of north|unknown key"):
            site.open(content, PLACE, head=head(seq - 1), answers=(None,))


@given(st.lists(st.integers(0, 6), max_size=3).map(sorted), st.integers(0, 8), st.sampled_from([*KEYS, STRANGER]))
def test_a_heartbeat_is_signed_by_the_newest_key_or_by_that_of_its_time(
    afters: list[int], seq: int, signer: SigningKey
) -> None:
    site = with_keys(afters)
    content = signer.sign(heartbeat(seq))
    if signer.public in (site.newest_key, site.key_of(seq)):
        assert site.open_status(content).own_head == head(seq)
    else:
        with pytest.raises(RejectedError, match=r"handed over before|unknown key"):
            site.open_status(content)


@pytest.mark.parametrize(
    ("signer", "changes", "reason"),
    [
        (STRANGER, {}, "unknown key"),
        (KEYS[0], {}, "unknown key"),  # it was handed over before
        (KEYS[2], {}, "unknown key"),  # by the new key itself
        (KEYS[1], {"number": 4}, "belongs elsewhere"),
        (KEYS[1], {"site": "south"}, "was written for retina/south"),
        (KEYS[1], {"federation": "other"}, "was written for other/north"),
        (KEYS[1], {"key": KEYS[0].public}, "used before"),
        (KEYS[1], {"key": KEYS[1].public}, "used before"),
        (KEYS[1], {"after": head(1).model_dump()}, "takes messages"),
        (KEYS[1], {"after": head(4).model_dump()}, "takes messages"),
        (KEYS[1], {"after": {"seq": 5, "digest": "bb" * 32}}, "does not name the sender's last message"),
        (KEYS[1], {"kind": "site"}, "not a well-formed"),
        (KEYS[1], {"more": 1}, "not a well-formed"),
    ],
)
def test_what_is_no_hand_over(signer: SigningKey, changes: dict[str, Any], reason: str) -> None:
    site = with_keys([2])
    with pytest.raises(RejectedError, match=reason) as refusal:
        site.hand_over(signer.sign(handover(3, 5, **changes)), accepted=head(5))
    assert refusal.value.file == "keys/0003.json"


def test_a_key_hands_over_no_messages_of_the_one_before_it_also_where_none_was_accepted_yet() -> None:
    with pytest.raises(RejectedError, match="takes messages from the key that signed them"):
        with_keys([2]).hand_over(KEYS[1].sign(handover(3, 1)))


def test_a_key_that_was_handed_over_signs_no_other_message_of_a_number_that_has_one() -> None:
    """Whoever holds a copy of it could."""
    with pytest.raises(DoubtfulError, match="handed over, and is another than north's message 3"):
        with_keys([5]).open_out_of_order(KEYS[0].sign(manifest(3)), PLACE, head=head(3))


def test_the_hand_over_names_the_message_that_the_next_one_follows() -> None:
    site = SITE.hand_over(KEYS[0].sign(handover(2, 5, after={"seq": 5, "digest": "bb" * 32})), accepted=head(3))
    with pytest.raises(DoubtfulError, match="handed over, and is another than north's message 5"):
        site.open(KEYS[0].sign(manifest(5)), PLACE, head=head(4), answers=(None,))
    with pytest.raises(RejectedError, match="handed over after another message"):
        site.open(KEYS[1].sign(manifest(6)), PLACE, head=head(5), answers=(None,))
