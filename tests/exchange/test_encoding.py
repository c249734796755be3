"""Weights on the wire: nothing but the stated rounding is lost, and hostile files are refused in bounded memory."""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file, save
from safetensors.torch import load_file as load_torch

from shared.doors import Refusal
from shared.doors.zstd_frame import compress, expand
from shared.errors import RejectedError
from shared.exchange.encoding import check_encoded, decode, encode, max_file_bytes, rounded, weights_bytes
from shared.exchange.names import Kind
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.exchange.records.wire import PLAIN, Wire
from shared.exchange.weights import check_tensors, write_tensors
from shared.folder.durable import hash_file
from tests.memory import peak_memory

NUMBERS = ("float32", "bfloat16", "float16")
TORCH = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WIRES = [
    Wire(numbers=numbers, difference=difference, compression=compression)
    for numbers, difference, compression in itertools.product(NUMBERS, (False, True), ("none", "zstd"))
]
SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (3, 4), "b": (), "c": (0, 2), "d": (5,)}
TENSORS = TensorList(tensors={name: TensorShape(dtype="F32", shape=list(shape)) for name, shape in SHAPES.items()})
SHOWN = "runs/r/rounds/0001/from_site/model.safetensors"
Arrays = dict[str, np.ndarray]

# Any bit pattern of a finite float32: both zeros, subnormal numbers, the greatest.
finite = arrays(np.uint32, st.just((18,)), elements=st.integers(0, 2**32 - 1)).map(
    lambda bits: np.where((bits >> 23) & 0xFF == 0xFF, bits & 0x007FFFFF, bits).astype(np.uint32).view(np.float32)
)
EDGES = np.array(
    [
        0.0,
        -0.0,
        1.1754942e-38,
        2.0**-149,
        -(2.0**-149),
        2.0**-14,
        2.0**-24,
        2.0**-25,
        3 * 2.0**-25,
        1,
        1.00390625,
        1.01171875,
        65504,
        65519.996,
        3.4028235e38,
        -3.4028235e38,
    ],
    dtype=np.float32,
)


def filled(values: np.ndarray) -> Arrays:
    """The tensors of ``SHAPES``, filled from 18 values."""
    found, begin = {}, 0
    for name, shape in SHAPES.items():
        count = int(np.prod(shape))
        found[name] = values[begin : begin + count].reshape(shape).copy()
        begin += count
    return found


def written(path: Path, model: Arrays) -> Path:
    write_tensors(path, TENSORS, model.__getitem__)
    return path


def same_bits(left: Arrays, right: Arrays) -> bool:
    return left.keys() == right.keys() and all(
        np.array_equal(left[name].view(np.uint32), right[name].view(np.uint32)) for name in left
    )


def by_torch(values: np.ndarray, numbers: str) -> np.ndarray:
    return torch.from_numpy(values.copy()).to(TORCH[numbers]).to(torch.float32).numpy()


def random_model(seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {name: np.asarray(generator.standard_normal(shape), dtype=np.float32) for name, shape in SHAPES.items()}


# --- what is lost, and what is not ------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", NUMBERS)
@given(values=finite)
def test_rounding_is_to_the_nearest_ties_to_even(numbers: Any, values: np.ndarray) -> None:
    assert np.array_equal(rounded(values, numbers).view(np.uint32), by_torch(values, numbers).view(np.uint32))


@pytest.mark.parametrize("numbers", NUMBERS)
def test_rounding_of_the_edges_and_of_every_tie(numbers: Any) -> None:
    halves = (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000  # between two neighbours of bfloat16
    every_half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (every_half[:-1] + every_half[1:]) / 2  # exact in float32
    bfloat16 = halves.view(np.float32)
    for values in (EDGES, bfloat16[np.isfinite(bfloat16)], between, -between):
        assert np.array_equal(rounded(values, numbers).view(np.uint32), by_torch(values, numbers).view(np.uint32))


def test_rounding_keeps_what_is_not_finite_and_passes_its_end_to_infinity() -> None:
    strange = np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    quiet = np.array([0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF], dtype=np.uint32).view(np.float32)
    for numbers in ("bfloat16", "float16"):
        assert np.array_equal(rounded(strange, numbers), strange, equal_nan=True)
        assert np.isnan(rounded(quiet, numbers)).all()
    assert np.isinf(rounded(np.array([3.4028235e38], dtype=np.float32), "bfloat16")).all()
    assert np.isinf(rounded(np.array([65520], dtype=np.float32), "float16")).all()


@pytest.mark.parametrize("wire", WIRES, ids=str)
@settings(max_examples=25, deadline=None)  # each writes four files to the disk, to stay
@given(trained=finite, received=finite)
def test_decoding_gives_exactly_the_rounded_model(
    wire: Wire, trained: np.ndarray, received: np.ndarray, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trained, received = (np.where(np.abs(values) > 65504, 65504, values) for values in (trained, received))
    home = tmp_path_factory.getbasetemp()
    model, reference = filled(trained), filled(rounded(received, wire.numbers))
    plain, before = written(home / "plain", model), written(home / "before", reference)
    entry = encode(plain, home / "encoded", TENSORS, wire, before)
    assert (entry.size, entry.sha256) == hash_file(home / "encoded")
    decode(home / "encoded", home / "decoded", TENSORS, wire, before, shown_as=SHOWN)
    assert (home / "encoded").stat().st_size <= max_file_bytes(TENSORS, wire)
    check_tensors(home / "decoded", TENSORS, "decoded")
    expected = {name: by_torch(array, wire.numbers) for name, array in model.items()}
    assert same_bits(load_file(home / "decoded"), expected)


@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_the_same_model_gives_the_same_bytes(wire: Wire, tmp_path: Path) -> None:
    plain, before = written(tmp_path / "plain", random_model(1)), written(tmp_path / "before", random_model(2))
    for name in ("first", "second"):
        encode(plain, tmp_path / name, TENSORS, wire, before)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "first", "plain", "second"]


def test_the_plain_form_is_the_plain_file(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", random_model(1))
    encode(plain, tmp_path / "encoded", TENSORS, PLAIN)
    assert (tmp_path / "encoded").read_bytes() == plain.read_bytes()
    assert max_file_bytes(TENSORS) == max_file_bytes(TENSORS, PLAIN)


# --- what others find in the file -------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", ["bfloat16", "float16"])
def test_reduced_numbers_open_with_any_tool(tmp_path: Path, numbers: Any) -> None:
    model = random_model(1)
    encode(written(tmp_path / "plain", model), tmp_path / "encoded", TENSORS, Wire(numbers=numbers))
    found = load_torch(tmp_path / "encoded")
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys(SHAPES, TORCH[numbers])
    assert all(torch.equal(found[name], torch.from_numpy(model[name]).to(TORCH[numbers])) for name in SHAPES)


def test_a_difference_is_what_the_document_says(tmp_path: Path) -> None:
    """By plain integers: 2·d where d ≥ 0, −2·d − 1 elsewhere."""
    trained, received = random_model(1), random_model(2)
    plain, before = written(tmp_path / "plain", trained), written(tmp_path / "before", received)
    encode(plain, tmp_path / "encoded", TENSORS, Wire(difference=True), before)
    for name, array in load_file(tmp_path / "encoded").items():
        assert (array.dtype, array.shape) == (np.uint32, SHAPES[name])
        bits = zip(trained[name].view(np.uint32).flat, received[name].view(np.uint32).flat, strict=True)
        wrapped = [(int(after) - int(before) + 2**31) % 2**32 - 2**31 for after, before in bits]
        assert array.ravel().tolist() == [2 * d if d >= 0 else -2 * d - 1 for d in wrapped]


def test_zstd_opens_with_any_zstd(tmp_path: Path) -> None:
    model = random_model(1)
    encode(written(tmp_path / "plain", model), tmp_path / "encoded", TENSORS, Wire(compression="zstd"))
    for name, frame in load_file(tmp_path / "encoded").items():
        assert (frame.dtype, frame.ndim) == (np.uint8, 1)
        content = zstandard.ZstdDecompressor().decompress(frame.tobytes())
        assert content == b"".join(model[name].tobytes()[byte::4] for byte in range(4))


def test_small_steps_become_small(tmp_path: Path) -> None:
    """Where a site has trained a little, zstd makes less of the difference than of the numbers."""
    tensors = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[200, 200])})
    generator = np.random.default_rng(1)
    before = generator.standard_normal((200, 200)).astype(np.float32)
    after = before + 1e-5 * generator.standard_normal((200, 200)).astype(np.float32)
    for name, array in (("before", before), ("after", after)):
        write_tensors(tmp_path / name, tensors, lambda _, array=array: array)
    sizes = {}
    for wire in WIRES:
        encode(tmp_path / "after", tmp_path / "encoded", tensors, wire, tmp_path / "before")
        sizes[wire] = (tmp_path / "encoded").stat().st_size
    for numbers in NUMBERS:
        form = Wire.model_validate({"numbers": numbers})
        as_zstd = form.model_copy(update={"compression": "zstd"})
        assert sizes[form.model_copy(update={"difference": True})] == pytest.approx(sizes[form], abs=100)
        assert sizes[as_zstd.model_copy(update={"difference": True})] < 0.6 * sizes[as_zstd] < 0.6 * sizes[form]
        assert sizes[form] == pytest.approx(sizes[PLAIN] * (1.0 if numbers == "float32" else 0.5), abs=100)


def test_what_cannot_be_compressed_still_fits(tmp_path: Path) -> None:
    """Random bits, as tensors of sizes around zstd's own limits."""
    counts = (1, 2, 16, 255, 4096, 32_767, 32_768, 300_000)
    tensors = TensorList(tensors={f"t{count}": TensorShape(dtype="F32", shape=[count]) for count in counts})
    generator = np.random.default_rng(1)
    noise = {
        f"t{count}": (generator.integers(0, 2**32, count, dtype=np.uint32) & 0xBFFFFFFF).view(np.float32)
        for count in counts
    }
    write_tensors(tmp_path / "plain", tensors, noise.__getitem__)
    wire = Wire(compression="zstd")
    encode(tmp_path / "plain", tmp_path / "encoded", tensors, wire)
    assert (tmp_path / "encoded").stat().st_size <= max_file_bytes(tensors, wire)
    decode(tmp_path / "encoded", tmp_path / "decoded", tensors, wire, shown_as=SHOWN)
    assert (tmp_path / "decoded").read_bytes() == (tmp_path / "plain").read_bytes()


# --- hostile files ----------------------------------------------------------------------------------------------

MODEL = {name: array for name, array in random_model(1).items() if name != "c"}
LISTED = TensorList(tensors={name: entry for name, entry in TENSORS.tensors.items() if name != "c"})


def frame_of(array: np.ndarray, **settings: Any) -> np.ndarray:
    little = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    shuffled = little.reshape(-1, array.itemsize).T.tobytes()
    return np.frombuffer(zstandard.ZstdCompressor(**settings).compress(shuffled), np.uint8)


FRAMES = {name: frame_of(array) for name, array in MODEL.items()}


def in_room(frames: dict[str, np.ndarray], listed: TensorList = LISTED) -> bytes:
    """A tensor file whose header leaves room for the longest frames that there may be."""
    sizes = {name: 4 * int(np.prod(tensor.shape)) for name, tensor in listed.tensors.items()}
    longest = save({name: np.zeros(size + size // 256 + 64, np.uint8) for name, size in sizes.items()})
    content, room = save(frames), struct.unpack("<Q", longest[:8])[0]
    size = struct.unpack("<Q", content[:8])[0]
    return struct.pack("<Q", room) + content[8 : 8 + size].ljust(room) + content[8 + size :]


def with_frame(frame: bytes) -> bytes:
    return in_room(FRAMES | {"a.weight": np.frombuffer(frame, np.uint8)})


def refusal(home: Path, content: bytes, wire: Wire) -> RejectedError:
    """Why ``content`` is refused; nothing may be left of the attempt."""
    home.mkdir(exist_ok=True)
    encoded, before = home / "encoded", home / "before"
    encoded.write_bytes(content)
    write_tensors(before, LISTED, MODEL.__getitem__)
    with pytest.raises(RejectedError) as caught:
        decode(encoded, home / "decoded", LISTED, wire, before, shown_as=SHOWN)
    assert caught.value.file == SHOWN
    assert sorted(path.name for path in home.iterdir()) == ["before", "encoded"]
    return caught.value


ZSTD = Wire(compression="zstd")
GOOD_FRAME = FRAMES["a.weight"].tobytes()
SKIPPABLE = b"\x50\x2a\x4d\x18" + struct.pack("<I", 7) + b"patient"
UNKNOWN_SIZE = zstandard.ZstdCompressor(write_content_size=False).compress(MODEL["a.weight"].tobytes())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (save(MODEL), "is F32"),
        (save({"a.weight": FRAMES["a.weight"], "b": FRAMES["b"]}), "does not hold the run's tensors"),
        (save(FRAMES | {"e": FRAMES["b"]}), "does not hold the run's tensors"),
        (save(FRAMES | {"a.weight": FRAMES["a.weight"].reshape(1, -1)}), "not at most U8"),
        (save(FRAMES | {"a.weight": np.zeros(48 + 65, np.uint8)}), "not at most U8[112]"),
        (save(FRAMES, {"patient": "x"}), "free text"),
        (save(FRAMES), "has another header than the protocol writes for its tensors"),
        (with_frame(b""), "one zstd frame"),
        (with_frame(b"\x80\x04\x95pickled"), "one zstd frame"),
        (with_frame(GOOD_FRAME[:-1]), "one zstd frame"),
        (with_frame(GOOD_FRAME + b"patient"), "one zstd frame"),
        (with_frame(GOOD_FRAME + SKIPPABLE), "one zstd frame"),
        (with_frame(SKIPPABLE + GOOD_FRAME), "one zstd frame"),
        (with_frame(GOOD_FRAME + frame_of(np.zeros(0, np.float32)).tobytes()), "one zstd frame"),
        (with_frame(UNKNOWN_SIZE), "one zstd frame"),
        (with_frame(frame_of(MODEL["d"]).tobytes()), "one zstd frame"),
        (with_frame(frame_of(np.zeros(13, np.float32)).tobytes()), "one zstd frame"),
        (with_frame(frame_of(np.full((3, 4), np.nan, np.float32)).tobytes()), "not finite"),
        (b"", "is not a safetensors file"),
        (struct.pack("<Q", 2**60) + b"{}", "is not a safetensors file"),
    ],
)
def test_a_bad_compressed_file_is_poison(tmp_path: Path, content: bytes, reason: str) -> None:
    assert reason in refusal(tmp_path / "x", content, ZSTD).reason


def test_a_frame_that_lies_about_its_size_is_poison(tmp_path: Path) -> None:
    """Its header says 48 bytes, as is right; its blocks hold 40."""
    shorter = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(range(40)))
    place = 5  # after the magic number and the descriptor of a frame in one segment
    assert shorter[place] == 40
    assert "one zstd frame" in refusal(tmp_path / "x", with_frame(shorter[:place] + b"\x30" + shorter[6:]), ZSTD).reason


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """A gigabyte of zeros in a frame of 32 kB, in a tensor that may have so many bytes."""
    tensors = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[10_000])})
    chunk = bytes(1 << 20)
    compressor = zstandard.ZstdCompressor().compressobj(size=1 << 30)
    bomb = b"".join([*(compressor.compress(chunk) for _ in range(1 << 10)), compressor.flush()])
    path = tmp_path / "encoded"
    path.write_bytes(in_room({"w": np.frombuffer(bomb, np.uint8)}, tensors))
    assert path.stat().st_size <= max_file_bytes(tensors, ZSTD)
    with peak_memory() as peak, pytest.raises(RejectedError, match="one zstd frame"):
        decode(path, tmp_path / "decoded", tensors, ZSTD, shown_as=SHOWN)
    assert peak() < 1_000_000
    assert not (tmp_path / "decoded").exists()


@pytest.mark.parametrize(
    ("wire", "change", "reason"),
    [
        (Wire(numbers="float16"), lambda a: a, "is F32[3, 4], not F16[3, 4]"),
        (Wire(numbers="float16"), lambda a: a.astype(np.float16).view(np.uint16), "is U16[3, 4], not F16[3, 4]"),
        (Wire(numbers="float16"), lambda a: a.astype(np.float16).T.copy(), "is F16[4, 3]"),
        (Wire(numbers="float16"), lambda a: np.full(a.shape, np.inf, np.float16), "above 65504"),
        (Wire(numbers="bfloat16"), lambda a: a.astype(np.float16), "is F16[3, 4], not BF16[3, 4]"),
        (Wire(difference=True), lambda a: a, "is F32[3, 4], not U32[3, 4]"),
        (Wire(difference=True), lambda a: a.view(np.int32), "is I32[3, 4], not U32[3, 4]"),
        (Wire(difference=True), lambda a: a.view(np.uint32).reshape(-1), "is U32[12], not U32[3, 4]"),
        (Wire(numbers="bfloat16", difference=True), lambda a: a.view(np.uint32), "is U32[3, 4], not U16[3, 4]"),
    ],
)
def test_another_form_than_the_runs_is_poison(
    tmp_path: Path, wire: Wire, change: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    assert reason in refusal(tmp_path / "x", save({name: change(array) for name, array in MODEL.items()}), wire).reason


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.difference], ids=str)
def test_a_difference_that_ends_at_no_finite_number_is_poison(tmp_path: Path, wire: Wire) -> None:
    """The file is well-formed; only what it adds up to is not."""
    spoilt = {name: array.copy() for name, array in MODEL.items()}
    spoilt["a.weight"][1, 2] = np.inf
    for name, model in (("spoilt", spoilt), ("before", MODEL)):
        write_tensors(tmp_path / name, LISTED, model.__getitem__)
    encode(tmp_path / "spoilt", tmp_path / "encoded", LISTED, wire, tmp_path / "before")
    error = refusal(tmp_path / "x", (tmp_path / "encoded").read_bytes(), wire)
    assert "a.weight holds a value that is not finite" in error.reason


def test_a_value_too_great_for_float16_is_named_with_the_remedy(tmp_path: Path) -> None:
    model = MODEL | {"d": np.full(5, 65520, np.float32)}
    write_tensors(tmp_path / "plain", LISTED, model.__getitem__)
    for numbers, reason in (("float16", "d holds a value that is not finite, or is above 65504"), ("bfloat16", None)):
        wire = Wire.model_validate({"numbers": numbers})
        encode(tmp_path / "plain", tmp_path / "encoded", LISTED, wire)
        if reason:
            error = refusal(tmp_path / "x", (tmp_path / "encoded").read_bytes(), wire)
            assert reason in error.reason
            assert "bfloat16" in error.reason
        else:
            decode(tmp_path / "encoded", tmp_path / "decoded", LISTED, wire, shown_as=SHOWN)


def test_a_difference_without_what_it_differs_from_is_a_mistake(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", random_model(1))
    with pytest.raises(ValueError, match="difference"):
        encode(plain, tmp_path / "encoded", TENSORS, Wire(difference=True))
    assert not (tmp_path / "encoded").exists()


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """32 tensors of 1 MB through every step: what is held never comes near the whole."""
    count = 250_000
    tensors = TensorList(tensors={f"t{n:02d}": TensorShape(dtype="F32", shape=[count]) for n in range(32)})
    array = np.random.default_rng(1).standard_normal(count).astype(np.float32)
    write_tensors(tmp_path / "plain", tensors, lambda _: array)
    for wire in WIRES:
        with peak_memory() as peak:
            encode(tmp_path / "plain", tmp_path / "encoded", tensors, wire, tmp_path / "plain")
            decode(tmp_path / "encoded", tmp_path / "decoded", tensors, wire, tmp_path / "plain", shown_as=SHOWN)
        assert peak() < 12_000_000, wire


# --- bombs ------------------------------------------------------------------------------------------------------


def bomb_of(size: int) -> bytes:
    """A frame of a few kilobytes that says that it holds ``size`` bytes, and does."""
    chunk, compressor = bytes(1 << 20), zstandard.ZstdCompressor(level=19).compressobj(size=size)
    return b"".join([*(compressor.compress(chunk) for _ in range(size >> 20)), compressor.flush()])


def test_an_audit_holds_nothing_of_what_a_small_file_becomes(tmp_path: Path) -> None:
    """Thirty-two megabytes, in a tensor that may have so many bytes, from a file of a few kilobytes."""
    tensors = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[1 << 23])})
    path = tmp_path / "encoded"
    path.write_bytes(in_room({"w": np.frombuffer(bomb_of(1 << 25), np.uint8)}, tensors))
    assert path.stat().st_size < 40_000
    with peak_memory() as peak:
        check_encoded(path, tensors, ZSTD, shown_as=SHOWN)
    assert peak() < 5_000_000


def blocks(content: bytes, count: int) -> bytes:
    """A frame of so many bytes, each block of which holds nothing, but for the last."""
    head = b"\x28\xb5\x2f\xfd\x20" + bytes([len(content)])
    return head + b"\x00\x00\x00" * count + (len(content) << 3 | 1).to_bytes(3, "little") + content


def test_a_frame_of_a_million_empty_blocks_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    shuffled = b"".join(MODEL["a.weight"].tobytes()[byte::4] for byte in range(4))
    write_tensors(tmp_path / "plain", LISTED, MODEL.__getitem__)
    (tmp_path / "few").write_bytes(with_frame(blocks(shuffled, 16)))
    decode(tmp_path / "few", tmp_path / "decoded", LISTED, ZSTD, shown_as=SHOWN)
    assert (tmp_path / "decoded").read_bytes() == (tmp_path / "plain").read_bytes()
    with pytest.raises(Refusal, match="it is cut into more blocks than it needs"):
        frame = blocks(shuffled, 1_000_000)
        list(expand(io.BytesIO(frame), len(frame), len(shuffled)))


def test_a_frame_that_wants_a_large_window_is_refused() -> None:
    size = 64 << 20
    parameters = zstandard.ZstdCompressionParameters(window_log=26, compression_level=1)
    frame = zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(size + 1))
    with pytest.raises(Refusal, match="it needs a window of more than 8388608 bytes"):
        list(expand(io.BytesIO(frame), len(frame), size + 1))


@given(data=st.binary(max_size=2000), extra=st.binary(max_size=20), cut=st.integers(0, 20))
def test_a_frame_is_one_frame_to_its_last_byte(data: bytes, extra: bytes, cut: int) -> None:
    frame = compress(data)
    assert b"".join(expand(io.BytesIO(frame + extra), len(frame), len(data))) == data
    other = (frame + extra)[: max(0, len(frame + extra) - cut)]
    if other != frame:
        with pytest.raises(Refusal):
            list(expand(io.BytesIO(other), len(other), len(data)))


def test_what_a_message_weighs_is_the_models_form_and_all_else_as_float32() -> None:
    def shapes(*names: str) -> dict[str, TensorShape]:
        return {name: TensorShape(dtype="F32", shape=[10]) for name in names}

    sharing = Sharing(
        tensors=shapes("a", "b"),
        start=shapes("first", "own"),
        frozen=["own"],
        from_file=["own"],
        personal=[],
        to_site={"control": shapes("a")},
        measured={"levels": shapes("c")},
        trained={"control": shapes("a", "b")},
        with_final={"last": shapes("d")},
    )
    kinds: tuple[Kind, ...] = ("offer", "round", "update", "final", "verdict")
    for wire, width in ((PLAIN, 4), (Wire(numbers="float16"), 2)):
        model = 20 * width
        weights = {kind: weights_bytes(sharing, kind, wire) for kind in kinds}
        assert weights == {"offer": 40, "round": model + 40, "update": model + 120, "final": 80 + 40, "verdict": 0}
        assert weights_bytes(sharing, "update", wire, trains=False) == 40
