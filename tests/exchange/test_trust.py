"""The only door: one test per step of the order that trust.py states, each refusing by that step alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.doors import Refusal
from shared.doors.json_text import parse_canonical
from shared.errors import RejectedError
from shared.exchange.names import AGGREGATOR, MAX_RECORD_BYTES, NAME_PATTERN, MessageRef, ref_at
from shared.exchange.records.messages import Head, Manifest, SiteCard
from shared.exchange.records.wire import PLAIN, FileEntry, Wire
from shared.exchange.signing import SigningKey, canonical, digest_of, enrolment_code, open_signed
from shared.exchange.trust import Message, Peer, check_file, check_form, open_site_card

NORTH = SigningKey(b"\x01" * 32)
STRANGER = SigningKey(b"\x02" * 32)
REF = MessageRef("update", "octa-1", 3)
HEAD = Head(seq=4, digest="aa" * 32)
REPLY = "bb" * 32
READER = Peer("retina", "north", "north", NORTH.public)


@pytest.mark.parametrize("head", [{"seq": 0, "digest": "aa" * 32}, {"seq": 1, "digest": None}])
def test_a_head_names_a_message_or_none(head: dict[str, Any]) -> None:
    """Else a heartbeat could carry 32 bytes of anything where no message is named."""
    with pytest.raises(ValidationError, match="is null where seq is 0, and nowhere else"):
        Head.model_validate(head)


def manifest(**changes: Any) -> dict[str, Any]:
    entry = FileEntry(size=3, sha256=digest_of(b"abc"))
    body = Manifest(
        kind="update",
        federation="retina",
        site="north",
        sender="north",
        run="octa-1",
        round=3,
        seq=5,
        previous=HEAD.digest,
        in_reply_to=REPLY,
        created="2026-11-21T09:30:00Z",
        files={"metrics.csv": entry, "model.safetensors": entry},
    ).model_dump()
    return body | changes


def open_bytes(content: bytes, ref: MessageRef = REF) -> Message:
    return READER.open(content, ref, head=HEAD, answers=(REPLY,))


def test_a_right_manifest_passes() -> None:
    message = open_bytes(NORTH.sign(manifest()))
    assert message.head == Head(seq=5, digest=message.digest)


FILES = manifest()["files"]


@pytest.mark.parametrize(
    ("step", "content", "reason"),
    [
        ("size", NORTH.sign(manifest()) + b" " * MAX_RECORD_BYTES, "more than"),
        ("form", NORTH.sign(manifest()) + b"\n", "canonical"),
        ("form", NORTH.sign(manifest()).replace(b":", b": ", 1), "canonical"),
        ("signature", NORTH.sign(manifest()).replace(b'"seq":5', b'"seq":6'), "signature does not hold"),
        ("signature", STRANGER.sign(manifest()), "unknown key"),
        ("record", NORTH.sign(manifest(protocol=1)), "is of protocol 1, and protocol 2 is expected: finish the runs"),
        ("record", NORTH.sign(manifest(protocol=3)), "well-formed"),
        ("record", NORTH.sign(manifest(protocol=True)), "well-formed"),
        ("sender", NORTH.sign(manifest(federation="other")), "was written for"),
        ("sender", NORTH.sign(manifest(site="south")), "was written for"),
        ("sender", NORTH.sign(manifest(sender=AGGREGATOR)), "was written for"),
        ("run", NORTH.sign(manifest(run="octa-2")), "belongs to run"),
        ("round", NORTH.sign(manifest(round=2)), "belongs elsewhere"),
        ("round", NORTH.sign(manifest(kind="consent")), "belongs elsewhere"),
        ("reply", NORTH.sign(manifest(in_reply_to="cc" * 32)), "does not answer"),
        ("reply", NORTH.sign(manifest(in_reply_to=None)), "does not answer"),
        ("chain", NORTH.sign(manifest(seq=4)), "breaks the chain"),
        ("chain", NORTH.sign(manifest(seq=6)), "breaks the chain"),
        ("chain", NORTH.sign(manifest(previous="cc" * 32)), "breaks the chain"),
        ("files", NORTH.sign(manifest(files={})), "does not list what every update has: metrics.csv"),
        (
            "files",
            NORTH.sign(manifest(files=FILES | {"extra.py": FILES["metrics.csv"]})),
            "lists what no update has: extra.py",
        ),
        (
            "files",
            NORTH.sign(manifest(files=FILES | {"../escape": FILES["metrics.csv"]})),
            "lists what no update has: ../escape",
        ),
        (
            "record",
            NORTH.sign(manifest(note="hello")),
            "well-formed Manifest record: note: is not a known",
        ),
        (
            "record",
            NORTH.sign(manifest(created="2026-02-31T99:00:00Z")),
            "created: must be a time in UTC, as in 2026-",
        ),
        ("form", b"", "is empty"),
        (
            "form",
            b'{"a":1' + b"0" * 5000 + b"}",
            "holds the number 10000000000000000000…; only integers of at most 2^53",
        ),
        ("form", b'{"a":-9007199254740992}', "holds the number -9007199254740992; only integers of at most 2^53 - 1"),
        ("form", b'{"a":0.' + b"1" * 5000 + b"}", "holds the number 0.111111111111111111…; only integers"),
    ],
)
def test_each_step_refuses(step: str, content: bytes, reason: str) -> None:
    with pytest.raises(RejectedError) as caught:
        open_bytes(content)
    assert reason in caught.value.reason, step
    assert caught.value.file == REF.manifest


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"federation": "other"}, "was written for"),
    ({"run": "octa-2"}, "belongs to run"),
    ({"round": 2}, "belongs elsewhere"),
    ({"files": {}}, "does not list what"),
    ({"previous": "cc" * 32}, "breaks the chain"),
    ({"in_reply_to": "cc" * 32}, "does not answer"),
]
"""Steps 6 to 11, in the order that trust.py states: what each finds, and how it says so."""


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[reason for _, reason in FAULTS])
def test_of_all_that_is_wrong_the_earliest_step_is_named(first: int) -> None:
    changes = {name: value for fault, _ in FAULTS[first:] for name, value in fault.items()}
    content = NORTH.sign(manifest(**changes))
    with pytest.raises(RejectedError, match=FAULTS[first][1]):
        open_bytes(content)
    with pytest.raises(RejectedError, match="unknown key"):
        open_bytes(STRANGER.sign(manifest(**changes)))
    with pytest.raises(RejectedError, match="canonical"):
        open_bytes(STRANGER.sign(manifest(**changes)) + b"\n")
    with pytest.raises(RejectedError, match="more than"):
        open_bytes(STRANGER.sign(manifest(**changes)) + b"\n" * MAX_RECORD_BYTES)


def test_the_aggregators_places_are_not_the_sites() -> None:
    with pytest.raises(RejectedError, match="does not write"):
        open_bytes(NORTH.sign(manifest(kind="verdict")), MessageRef("verdict", "octa-1", 3))


def test_under_a_key_of_small_order_nothing_is_signed() -> None:
    """Under 32 zeros a signature of 64 zeros holds for about every fourth content."""
    for number in range(20):
        with pytest.raises(Refusal):
            open_signed(canonical({"body": {"number": number}, "key": "00" * 32, "signature": "00" * 64}))


def test_nobody_puts_an_encryption_key_of_their_own_into_a_sites_card() -> None:
    """The enrolment code covers the signing key alone, whose signature covers the rest."""
    secret = "5e" * 32
    card = SiteCard(
        federation="retina",
        site="north",
        key=NORTH.public,
        encryption_key="aa" * 32,
        software="dropfed",
        enrolment=enrolment_code(secret, "retina", "north", NORTH.public),
        created="2026-11-21T09:30:00Z",
    )
    body, another = card.model_dump(), {"encryption_key": "bb" * 32}
    assert open_site_card(NORTH.sign(body), federation="retina", site="north", secret=secret) == card
    with pytest.raises(RejectedError, match="is signed by another key than the one it shows"):
        open_site_card(STRANGER.sign(body | another), federation="retina", site="north", secret=secret)


def test_a_payload_must_have_its_size_and_hash() -> None:
    message = open_bytes(NORTH.sign(manifest()))
    check_file(message, "metrics.csv", 3, digest_of(b"abc"))
    with pytest.raises(RejectedError, match="has 4 bytes"):
        check_file(message, "metrics.csv", 4, digest_of(b"abc"))
    with pytest.raises(RejectedError, match="SHA-256"):
        check_file(message, "metrics.csv", 3, digest_of(b"abd"))


@given(st.data())
def test_no_other_bytes_than_the_signed_ones_are_accepted(data: st.DataObject) -> None:
    content = bytearray(NORTH.sign(manifest()))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RejectedError):
        open_bytes(bytes(content))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcé", max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcxyzé\U0001f600", max_size=5), json_values, max_size=5))
def test_canonical_json_reads_back_and_is_unique(value: dict[str, Any]) -> None:
    content = canonical(value)
    assert parse_canonical(content, 1 << 20) == value
    assert open_signed(NORTH.sign(value)) == (value, NORTH.public)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a":1.0}',
        b'{"a":NaN}',
        b'{"a":1,"a":2}',
        b'{"b":1,"a":2}',
        b"[1]",
        b"",
        b"\xff",
        b'{"a":1e3}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_anything_else_is_not_canonical(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"canonical|only integers|is empty"):
        parse_canonical(content, 1 << 20)


run_names = st.from_regex(NAME_PATTERN, fullmatch=True).filter(str.isascii)
refs = st.builds(
    MessageRef, st.sampled_from(["round", "update", "verdict"]), run_names, st.integers(1, 9999)
) | st.builds(MessageRef, st.sampled_from(["offer", "consent", "final"]), run_names)


@given(refs)
def test_a_place_reads_back_from_its_path(ref: MessageRef) -> None:
    assert ref_at(ref.path) == ref


@settings(max_examples=300)
@given(st.text("runsoferAZ/.0123_\\ -é\n", max_size=60))
def test_only_a_places_own_path_names_it(path: str) -> None:
    ref = ref_at(path)
    assert ref is None or ref.path == path


@pytest.mark.parametrize(
    "path",
    [
        "runs/../offer",
        "runs/Upper/offer",
        "runs/a/rounds/0000/to_site",
        "runs/a/rounds/00001/to_site",
        "runs/a/rounds/1/to_site",
        "runs/a/rounds/٠٠٠١/to_site",
        f"runs/{'a' * 65}/offer",
        "runs/a/offer/x",
        "/runs/a/offer",
        "runs/.a/offer",
        "runs/a\n/offer",
    ],
)
def test_other_paths_name_nothing(path: str) -> None:
    assert ref_at(path) is None


# --- the form of weights ----------------------------------------------------------------------------------------

FORM = {"numbers": "bfloat16", "difference": True, "compression": "zstd"}


def with_form(form: object, name: str = "model.safetensors") -> bytes:
    files = {file: dict(entry) for file, entry in manifest()["files"].items()}
    files[name]["wire"] = form
    return NORTH.sign(manifest(files=files))


def test_a_manifest_tells_the_form_of_weights_only_where_it_is_not_plain() -> None:
    assert "wire" not in manifest()["files"]["model.safetensors"]
    message = open_bytes(with_form(FORM))
    wire = Wire.model_validate(FORM)
    assert message.manifest.files["model.safetensors"].wire == wire
    assert message.manifest.files["metrics.csv"].wire == PLAIN
    assert NORTH.sign(message.manifest.model_dump()) == with_form(FORM)  # one content, one text
    check_form(message, wire)
    for other in (PLAIN, wire.model_copy(update={"difference": False}), wire.model_copy(update={"numbers": "float16"})):
        with pytest.raises(RejectedError, match="has the form"):
            check_form(message, other)
    with pytest.raises(RejectedError, match=r"has the form \(float32\), the run wants \(bfloat16, difference, zstd\)"):
        check_form(open_bytes(NORTH.sign(manifest())), wire)


@pytest.mark.parametrize(
    "content",
    [
        with_form({**FORM, "numbers": "float64"}),
        with_form({**FORM, "difference": "yes"}),
        with_form({**FORM, "note": "patient"}),
        with_form({"numbers": "bfloat16"}),
        with_form({}),
        with_form(None),
        with_form("zstd"),
        with_form({"numbers": "float32", "difference": False, "compression": "none"}),
        with_form(FORM, "metrics.csv"),
    ],
)
def test_no_other_form_can_be_told(content: bytes) -> None:
    with pytest.raises(RejectedError):
        open_bytes(content)


def test_a_global_model_is_never_a_difference() -> None:
    entries = manifest()["files"]
    for difference in (False, True):
        form = {"numbers": "float32", "difference": difference, "compression": "zstd"}
        files = {"config.yaml": entries["metrics.csv"], "global.safetensors": entries["metrics.csv"] | {"wire": form}}
        content = NORTH.sign(manifest(kind="round", sender=AGGREGATOR, files=files))
        reader = Peer("retina", "north", AGGREGATOR, NORTH.public)
        if difference:
            with pytest.raises(RejectedError, match="form that it cannot have"):
                reader.open_out_of_order(content, MessageRef("round", "octa-1", 3))
        else:
            message = reader.open_out_of_order(content, MessageRef("round", "octa-1", 3))
            check_form(message, Wire(difference=True, compression="zstd"))
