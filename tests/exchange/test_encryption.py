"""Encrypted files: what went in comes out, and whatever is changed on the way is refused before anybody uses it."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange.encryption import (
    BLOCK_BYTES,
    Content,
    EncryptionKey,
    RunKey,
    content_bytes,
    decrypt,
    encrypt,
    max_ciphertext_bytes,
    run_key,
)
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import Federation, SiteCard
from shared.exchange.records.wire import FileEntry
from tests import SOME_KEY

SHOWN = "runs/r/rounds/0001/from_site/model.safetensors"
SITE, AGGREGATOR, STRANGER = (EncryptionKey(bytes([number]) * 32) for number in (1, 2, 3))
PLACE = MessageRef("update", "r", 1)
SEALED_BLOCK = BLOCK_BYTES + 17
sizes = st.one_of(
    st.integers(0, 100),
    st.builds(lambda blocks, more: blocks * BLOCK_BYTES + more, st.integers(1, 3), st.integers(-2, 2)),
)
per_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def card(site_key: str | None = SITE.public, site: str = "north") -> SiteCard:
    return SiteCard(
        federation="retina",
        site=site,
        key=SOME_KEY,
        encryption_key=site_key,
        software="dropfed",
        enrolment="bb" * 32,
        created="2026-11-21T09:30:00Z",
    )


def federation(aggregator_key: str | None = AGGREGATOR.public) -> Federation:
    return Federation(
        federation="retina",
        site="north",
        aggregator_key=SOME_KEY,
        aggregator_encryption_key=aggregator_key,
        site_key=SOME_KEY,
        created="2026-11-21T09:30:00Z",
        files={},
    )


def content_of(size: int) -> bytes:
    return bytes(number % 251 for number in range(size))


def refused(ciphertext: Path, content: Content, target: Path) -> str:
    with pytest.raises(RejectedError) as refusal:
        decrypt(ciphertext, target, content, SHOWN)
    assert list(target.parent.iterdir()) == [], "what is refused was written"
    assert refusal.value.file == SHOWN
    return refusal.value.reason


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "decrypted").mkdir()
    return tmp_path / "decrypted" / "model.safetensors"


@per_example
@given(sizes, st.integers(0, 2**32))
def test_what_goes_in_comes_out(tmp_path: Path, size: int, seed: int) -> None:
    plain, again = tmp_path / "plain", tmp_path / "again"
    plain.write_bytes(random.Random(seed).randbytes(size))
    made = encrypt(plain, tmp_path / "ciphertext")
    entry = made.entry.model_copy(update={"encrypted": "00" * 104})
    assert made.path.stat().st_size == entry.size <= max_ciphertext_bytes(size)
    assert (content_bytes(entry), content_bytes(made.entry)) == (size, entry.size)
    decrypt(made.path, again, made.content, SHOWN)
    assert again.read_bytes() == plain.read_bytes()
    if size >= 16:
        assert plain.read_bytes()[:16] not in made.path.read_bytes()


def test_no_two_ciphertexts_of_a_file_are_alike(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(content_of(1000))
    first, second = (encrypt(tmp_path / "plain", tmp_path / name) for name in ("first", "second"))
    assert first.content != second.content
    assert first.entry != second.entry


@per_example
@given(sizes, st.data())
def test_a_flipped_bit_is_refused(tmp_path: Path, size: int, data: st.DataObject) -> None:
    (tmp_path / "plain").write_bytes(content_of(size))
    made = encrypt(tmp_path / "plain", tmp_path / "ciphertext")
    content = bytearray(made.path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    made.path.write_bytes(content)
    (tmp_path / "decrypted").mkdir(exist_ok=True)
    assert "does not decrypt" in refused(made.path, made.content, tmp_path / "decrypted" / "model")


def test_every_bit_of_a_short_file_counts(tmp_path: Path, target: Path) -> None:
    """Not a sample: header, block and mark, each single bit."""
    (tmp_path / "plain").write_bytes(b"weights")
    made = encrypt(tmp_path / "plain", tmp_path / "ciphertext")
    content = made.path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        made.path.write_bytes(changed)
        assert "does not decrypt" in refused(made.path, made.content, target)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "only the header": lambda content: content[:24],
    "half a header": lambda content: content[:10],
    "cut within a block": lambda content: content[:-1],
    "cut after a block": lambda content: content[: 24 + SEALED_BLOCK],
    "cut before the last, empty block": lambda content: content[: 24 + 2 * SEALED_BLOCK],
    "the header cut off": lambda content: content[24:],
    "first block missing": lambda content: content[:24] + content[24 + SEALED_BLOCK :],
    "two blocks swapped": lambda content: (
        content[:24]
        + content[24 + SEALED_BLOCK : 24 + 2 * SEALED_BLOCK]
        + content[24 : 24 + SEALED_BLOCK]
        + content[24 + 2 * SEALED_BLOCK :]
    ),
    "a block twice": lambda content: content[: 24 + SEALED_BLOCK] + content[24:],
    "a byte more": lambda content: content + b"\0",
    "a block more": lambda content: content + content[-17:],
    "the whole twice": lambda content: content + content,
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_cut_reordered_or_prolonged_is_refused(tmp_path: Path, target: Path, change: str) -> None:
    (tmp_path / "plain").write_bytes(content_of(2 * BLOCK_BYTES + 5))
    made = encrypt(tmp_path / "plain", tmp_path / "ciphertext")
    made.path.write_bytes(CHANGES[change](made.path.read_bytes()))
    assert "does not decrypt" in refused(made.path, made.content, target)


def test_another_key_opens_nothing(tmp_path: Path, target: Path) -> None:
    (tmp_path / "plain").write_bytes(b"weights")
    made = encrypt(tmp_path / "plain", tmp_path / "ciphertext")
    assert "another key" in refused(made.path, replace(made.content, key=b"\x05" * 32), target)


def test_a_sender_that_says_another_hash_is_refused(tmp_path: Path, target: Path) -> None:
    (tmp_path / "plain").write_bytes(b"weights")
    made = encrypt(tmp_path / "plain", tmp_path / "ciphertext")
    assert "something else" in refused(made.path, replace(made.content, sha256="ab" * 32), target)


def test_memory_is_bounded(tmp_path: Path) -> None:
    size = 24 << 20
    (tmp_path / "plain").write_bytes(bytes(size))
    tracemalloc.start()
    made = encrypt(tmp_path / "plain", tmp_path / "ciphertext")
    decrypt(made.path, tmp_path / "again", made.content, SHOWN)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
    assert (tmp_path / "again").stat().st_size == size


# --- keys ------------------------------------------------------------------------------------------------------


def test_either_side_has_the_same_key_of_a_run() -> None:
    assert run_key(SITE, federation(), card(), "r") == run_key(AGGREGATOR, federation(), card(), "r")


def test_each_run_site_and_pair_of_keys_has_its_own_key() -> None:
    found = [
        run_key(AGGREGATOR, federation(), card(), "r"),
        run_key(AGGREGATOR, federation(), card(), "s"),
        run_key(AGGREGATOR, federation(), card(site="south"), "r"),
        run_key(AGGREGATOR, federation(), card(STRANGER.public), "r"),
    ]
    assert len({key.key for key in found}) == len(found)


def test_a_wrapped_key_is_good_for_one_payload_alone() -> None:
    key = run_key(SITE, federation(), card(), "r")
    content = Content(b"\x07" * 32, "ab" * 32)
    wrapped = key.wrap(content, PLACE, "model.safetensors")
    assert key.unwrap(wrapped, PLACE, "model.safetensors") == content
    others: list[tuple[RunKey, MessageRef, str]] = [
        (key, PLACE, "state-a.safetensors"),
        (key, MessageRef("update", "r", 2), "model.safetensors"),
        (key, MessageRef("final", "r"), "model.safetensors"),
        (RunKey("retina", "south", "r", key.key), PLACE, "model.safetensors"),
        (RunKey("retina", "north", "s", key.key), PLACE, "model.safetensors"),
        (RunKey("other", "north", "r", key.key), PLACE, "model.safetensors"),
        (run_key(SITE, federation(), card(), "s"), PLACE, "model.safetensors"),
    ]
    for other, ref, name in others:
        with pytest.raises(RejectedError, match="another key"):
            other.unwrap(wrapped, ref, name)
    flipped = f"{int(wrapped[0], 16) ^ 1:x}{wrapped[1:]}"
    with pytest.raises(RejectedError, match="another key"):
        key.unwrap(flipped, PLACE, "model.safetensors")


@pytest.mark.parametrize(
    ("shown", "error", "why"),
    [
        ((None, card()), ConfigurationError, "joined with an earlier version"),
        ((AGGREGATOR.public, card(None)), ConfigurationError, "joined with an earlier version"),
        ((AGGREGATOR.public, card("00" * 32)), ConfigurationError, "is no key"),
        ((STRANGER.public, card()), ActionRequiredError, "put the very encryption.key back"),
    ],
)
def test_why_there_is_no_key(shown: tuple[str | None, SiteCard], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        run_key(AGGREGATOR, federation(shown[0]), shown[1], "r")


def test_a_lost_key_is_told() -> None:
    with pytest.raises(ActionRequiredError, match=r"put the very encryption\.key back"):
        run_key(None, federation(), card(), "r")


def test_a_manifest_says_nothing_of_keys_where_nothing_is_encrypted() -> None:
    entry = FileEntry(size=1, sha256="aa" * 32)
    assert entry.model_dump() == {"size": 1, "sha256": "aa" * 32}
    for wrong in (None, "", "00" * 103, "AB" * 104):
        with pytest.raises(ValidationError):
            FileEntry.model_validate(entry.model_dump() | {"encrypted": wrong})
