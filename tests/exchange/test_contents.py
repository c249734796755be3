"""Payloads: YAML records, tensor files, tables. Hostile until checked."""

from __future__ import annotations

import json
import pickle
import re
import struct
from dataclasses import replace
from itertools import islice, permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.numpy import load_file, save

from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.exchange.encoding import max_file_bytes
from shared.exchange.names import is_name
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.exchange.records.values import fewest
from shared.exchange.signing import SigningKey
from shared.exchange.tables import MetricsRow, in_order, read_metrics, write_metrics
from shared.exchange.trust import open_yaml
from shared.exchange.weights import TensorFile, check_tensors, layout_of, write_tensors
from shared.folder.durable import hash_file
from tests.federation.running import run_configuration
from tests.learning.fixtures_file import cases

# --- YAML -------------------------------------------------------------------------------------------------------

RUN = dump_yaml(run_configuration()).decode()


def test_a_run_reads_back() -> None:
    assert parse_yaml(RUN.encode(), RunConfiguration, "RUN.yaml") == run_configuration()


@given(
    rounds=st.integers(1, 9998),
    seed=st.integers(0, 2**63 - 1),
    tolerance=st.floats(0, 0.999),
    hours=st.floats(1e-6, 87600),
    run=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True).filter(is_name),
)
@example(rounds=1, seed=0, tolerance=0.0, hours=1.0, run="1e3")  # no number
def test_any_run_reads_back(rounds: int, seed: int, tolerance: float, hours: float, run: str) -> None:
    changes = {"rounds": rounds, "seed": seed, "tolerance": tolerance, "round_deadline_hours": hours, "run": run}
    configuration = run_configuration(**changes)
    assert parse_yaml(dump_yaml(configuration), RunConfiguration, "RUN.yaml") == configuration


@given(
    tolerance=st.none() | st.floats(0, 0.999) | st.builds(BelowLast, below_last=st.floats(0, 0.999)),
    score=st.sampled_from([None, "macro_dice", "accuracy"]),
)
def test_any_tolerance_reads_back(tolerance: float | BelowLast | None, score: str | None) -> None:
    configuration = run_configuration(tolerance=tolerance, tolerance_score=score)
    text = dump_yaml(configuration)
    assert open_yaml(text, RunConfiguration, "run.yaml") == configuration
    assert (b"tolerance_score" in text) == (score is not None)
    assert RunConfiguration.model_validate_json(configuration.model_dump_json()) == configuration


def test_a_score_that_a_run_does_not_say_is_left_out() -> None:
    """As it was in runs that are older than the choice; there is one text of a run."""
    text = RUN.replace("sites_per_round:", "tolerance_score: null\nsites_per_round:")
    assert parse_yaml(text.encode(), RunConfiguration, "run.yaml").tolerance_score is None
    with pytest.raises(RejectedError, match="not written as the protocol writes"):
        open_yaml(text.encode(), RunConfiguration, "run.yaml")


def test_a_number_with_an_exponent_is_a_number() -> None:
    text = RUN.replace("tolerance: 0.01", "tolerance: 1e-4")
    assert parse_yaml(text.encode(), RunConfiguration, "RUN.yaml").tolerance == 1e-4


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x [1]\nb: *x\n", "alias"),
        ("run: a\nrun: b\n", "twice"),
        ("run: !!python/object/apply:os.system [ls]\n", "plain YAML"),
        ("- 1\n", "key: value"),
        ("run: [", "RUN.yaml: line 2, column 1: is not plain YAML: did not find expected node content"),
        ("run: a\nseed: 1\nrun: b\n", "RUN.yaml: line 3, column 1: is not plain YAML: says run twice; keep one"),
        (
            "run: a\n  b: c\n",
            "RUN.yaml: line 2, column 4: is not plain YAML: has a second colon; put the value in quotes, or begin the "
            "line further left",
        ),
        ("\x00", "plain YAML"),
        (
            f"run: a\nseed: {'1' * 5000}",
            "RUN.yaml: line 2, column 7: is not plain YAML: the number there is too long (5,000",
        ),
        (f"seed: 0x{'f' * 5000}", "the number there is too long (5,002 characters); write a shorter one"),
        (f"tolerance: 1{':20' * 300}.5", "the number there is too long"),
        (f"{'1' * 100}: 1", "the number there is too long"),
        ("run: " + "[" * 5000, "is nested too deeply; write it flat"),
        (RUN + "colour: blue\n", "colour: is not a known key"),
        (RUN.replace("tolerance: 0.01", "tolerance: .nan"), "tolerance"),
        (RUN.replace("tolerance: 0.01", "tolerance: .inf"), "tolerance"),
        (RUN.replace("tolerance: 0.01", "tolerance: {below_last: 1}"), "tolerance.below_last: must be less than 1.0"),
        (RUN.replace("tolerance: 0.01", "tolerance: {below: 0.1}"), "tolerance.below: is not a known key"),
        (RUN.replace("tolerance: 0.01", "tolerance: high"), "RUN.yaml: tolerance: must be a number (found 'high')"),
        (RUN.replace("rounds: 1", "rounds: '1'"), "rounds"),
        (RUN.replace("[north, south]", "[north, north]"), "named twice"),
        (RUN.replace("quorum: 2", "quorum: 3"), "quorum"),
        (RUN.replace("sites_per_round: null", "sites_per_round: 1"), "must be between the quorum, 2, and the 2 sites"),
        (RUN.replace("sites_per_round: null", "sites_per_round: 3"), "must be between the quorum, 2, and the 2 sites"),
        (RUN.replace("sites_per_round: null", "sites_per_round: all"), "sites_per_round"),
        (RUN.replace("run: test-run", "run: Octa 1"), "run: must be lower-case letters, digits, "),
        (RUN.replace("run: test-run", "run: 2026"), "put it in quotes, or YAML misreads it (found 2026)"),
        (RUN.replace("keep: all", "keep: last"), "keep: must be all, best, or last and a number, as in last 3 (found"),
        (RUN.replace("[north, south]", "[north, South]"), "sites.1: must be lower-case letters"),
        (
            RUN.replace("sites: [north, south]", "sites: north"),
            "sites: must be a list, as in [one, two] (found 'north')",
        ),
        ("wire: float16\n", "wire: must hold `key: value` pairs (found 'float16'); its keys are numbers, difference, "),
        ("task_options: 5\n", "task_options: must hold `name: value` pairs, as in {name: value} (found 5)"),
    ],
)
def test_bad_yaml_is_refused_with_file_and_reason(text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_yaml(text.encode(), RunConfiguration, "RUN.yaml")
    assert all(problem.startswith("RUN.yaml: ") for problem in caught.value.problems)
    assert reason in str(caught.value)
    assert not any(technical in str(caught.value) for technical in ("pattern", "<byte string>", "dictionary", "4300"))
    with pytest.raises(RejectedError):
        open_yaml(text.encode(), RunConfiguration, "run.yaml")


DEEP = 1_000_000  # bytes, of which a parser that reads them all makes minutes


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * DEEP,
        "a: " + "[" * (DEEP // 2) + "]" * (DEEP // 2),
        "{a: " * (DEEP // 4),
        "- " * (DEEP // 2),
        "\n".join(" " * depth + "a:" for depth in range(1400)),
    ],
    ids=lambda text: text[:6],
)
def test_a_file_that_is_nested_without_end_is_refused_before_all_of_it_is_read(text: str) -> None:
    with pytest.raises(RejectedError, match="is nested too deeply"):
        open_yaml(text.encode(), RunConfiguration, "run.yaml")


# --- tensors ----------------------------------------------------------------------------------------------------

TENSORS = TensorList(
    tensors={"a.weight": TensorShape(dtype="F32", shape=[3, 4]), "b": TensorShape(dtype="F32", shape=[])}
)
GOOD = {"a.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array(7, dtype=np.float32)}


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    check_tensors(path, TENSORS, "model.safetensors")


def test_tensors_read_back_in_the_common_format(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for path in (first, second):
        entry = write_tensors(path, TENSORS, GOOD.__getitem__)
        assert (entry.size, entry.sha256) == hash_file(path)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size <= max_file_bytes(TENSORS)
    check_tensors(first, TENSORS, "model.safetensors")
    found = load_file(first)
    assert all(np.array_equal(found[name], GOOD[name]) for name in GOOD)
    assert np.array_equal(TensorFile(first).tensor("a.weight"), GOOD["a.weight"])
    check(tmp_path / "3", save(GOOD))


def test_one_tensor_is_asked_for_at_a_time(tmp_path: Path) -> None:
    sizes = []

    def tensor(name: str) -> np.ndarray:
        sizes.append((tmp_path / ".x.writing").stat().st_size)
        return np.zeros((1000, 1000), dtype=np.float32)

    many = TensorList(tensors={f"t{n}": TensorShape(dtype="F32", shape=[1000, 1000]) for n in range(4)})
    write_tensors(tmp_path / "x", many, tensor)
    assert sizes == sorted(sizes)
    assert sizes[-1] >= 3 * 4_000_000  # the three before it are on disk already


def test_a_wrong_array_is_never_written(tmp_path: Path) -> None:
    for wrong in (np.zeros((4, 3), dtype=np.float32), np.zeros((3, 4))):
        with pytest.raises(ValueError, match="weight"):
            write_tensors(tmp_path / "x", TENSORS, lambda name, wrong=wrong: wrong)
    assert list(tmp_path.iterdir()) == []


def header_of(content: dict[str, object], data: bytes = b"\x00" * 52) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRIES: dict[str, object] = {
    "a.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
    "b": {"dtype": "F32", "shape": [], "data_offsets": [48, 52]},
}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (save({"a.weight": GOOD["a.weight"]}), "does not hold the run's tensors"),
        (save(GOOD | {"c": GOOD["b"]}), "does not hold the run's tensors"),
        (save(GOOD | {"a.weight": GOOD["a.weight"].T.copy()}), "a.weight is F32[4, 3]"),
        (save(GOOD | {"b": GOOD["b"].astype(np.float64)}), "b is F64"),
        (save(GOOD | {"b": np.array(7)}), "b is I64"),
        (save(GOOD, metadata={"patient": "x"}), "free text"),
        (save(GOOD, metadata={"dtype": "Jane", "shape": "Doe", "data_offsets": "glaucoma"}), "free text"),
        (save(GOOD)[:-1], "not a safetensors file"),
        (save(GOOD) + b"\x00", "not a safetensors file"),
        (b"", "not a safetensors file"),
        (pickle.dumps(GOOD), "not a safetensors file"),
        (struct.pack("<Q", 2**63) + b"{}", "no header of a reasonable size"),
        (header_of({"a.weight": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 48]}}), "safetensors"),
        (header_of({"a.weight": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 2**60]}}), "safetensors"),
    ],
)
def test_a_bad_tensor_file_is_poison(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(RejectedError) as caught:
        check(tmp_path / "x", content)
    assert caught.value.file == "model.safetensors"
    assert reason in caught.value.reason


def test_free_text_cannot_hide_behind_an_escape(tmp_path: Path) -> None:
    """``__metadata__`` may be spelt with JSON escapes; it is still free text."""
    text = json.dumps(ENTRIES | {"__metadata__": {"patient": "x"}}).replace("__metadata__", "\\u005f_metadata__")
    content = struct.pack("<Q", len(text)) + text.encode() + b"\x00" * 52
    with pytest.raises(RejectedError, match="free text"):
        check(tmp_path / "x", content)


def test_free_text_cannot_hide_in_a_tensors_entry_or_behind_a_repeated_key(tmp_path: Path) -> None:
    noted = ENTRIES | {"b": {"dtype": "F32", "shape": [], "data_offsets": [48, 52], "patient": "x"}}
    with pytest.raises(RejectedError):
        check(tmp_path / "x", header_of(noted))
    text = json.dumps(ENTRIES).replace('"b":', '"b": {"patient": "x"}, "b":')
    with pytest.raises(RejectedError):
        check(tmp_path / "x", struct.pack("<Q", len(text)) + text.encode() + b"\x00" * 52)


@pytest.mark.parametrize(
    "name", ["\\ud800", "\\udfff\\ud800", "\\u0000", "a\\nb", "é", "x" * 201, "", " ", "__metadata__"], ids=ascii
)
def test_a_tensor_named_with_half_a_character_or_worse_is_poison(tmp_path: Path, name: str) -> None:
    """Half a character cannot be written down again: whoever tries to is ended by that."""
    text = json.dumps(ENTRIES, separators=(",", ":")).replace('"a.weight"', f'"{name}"').encode()
    content = struct.pack("<Q", len(text)) + text + b"\x00" * 52
    with pytest.raises(RejectedError, match="carries free text beside its tensors") as caught:
        check(tmp_path / "x", content)
    assert str(caught.value).isprintable()
    with pytest.raises(RejectedError):
        layout_of(tmp_path / "x", "model.safetensors")


def test_a_header_is_not_a_megabyte_of_blanks(tmp_path: Path) -> None:
    """Nor has it any blank more than it needs: how many there are would tell something."""
    text = json.dumps(ENTRIES, separators=(",", ":")).encode()
    for room in (1 << 20, len(text) + 8, -(-len(text) // 8) * 8):
        (tmp_path / "x").write_bytes(struct.pack("<Q", room) + text.ljust(room) + b"\x00" * 52)
        if room % 8 == 0 and room < len(text) + 8:
            check_tensors(tmp_path / "x", TENSORS, "model.safetensors")
        else:
            with pytest.raises(RejectedError):
                check_tensors(tmp_path / "x", TENSORS, "model.safetensors")
    with pytest.raises(RejectedError, match="is blank for the most part"):
        (tmp_path / "x").write_bytes(struct.pack("<Q", 1 << 20) + text.ljust(1 << 20) + b"\x00" * 52)
        layout_of(tmp_path / "x", "model.safetensors")


SHAPES = [[2**31], [2**16, 2**16], [2**30, 2], [2] * 9, [-1], [2**64], [True], [1.5], "3", None, {"a": 1}, [[3]]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_of_more_numbers_than_any_layer_has_is_refused(tmp_path: Path, shape: object) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 48]}
    with pytest.raises(RejectedError, match="is not a safetensors file"):
        check(tmp_path / "x", header_of({"a.weight": entry}, b"\x00" * 48))
    with pytest.raises(ValidationError):
        TensorShape.model_validate({"dtype": "F32", "shape": shape})


def test_tensors_of_a_run_have_a_bound_together() -> None:
    layer = TensorShape(dtype="F32", shape=[2**15, 2**15])
    Sharing(tensors={f"a{number}": layer for number in range(4)}, start={}, personal=[])
    with pytest.raises(ValidationError, match="more than 4294967296 numbers in all"):
        Sharing(tensors={f"a{number}": layer for number in range(4)}, start={"b": layer}, personal=[])


@given(position=st.integers(0, 11), value=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_value_that_is_not_finite_is_poison(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: float
) -> None:
    spoilt = {name: array.copy() for name, array in GOOD.items()}
    spoilt["a.weight"].flat[position] = value
    with pytest.raises(RejectedError, match="not finite"):
        check(tmp_path_factory.getbasetemp() / "spoilt", save(spoilt))


# --- tables -----------------------------------------------------------------------------------------------------


def tables(losses: st.SearchStrategy[float], shares: st.SearchStrategy[float]) -> st.SearchStrategy[list[MetricsRow]]:
    """Tables with these losses and shares, or none, whose rows are in no order."""
    return st.lists(
        st.builds(
            MetricsRow,
            round_no=st.integers(1, 9999),
            epoch=st.integers(0, 1000),
            split=st.sampled_from(["train", "validation", "test"]),
            images=st.integers(0, 10**9 - 1).map(str) | st.just("fewer than 5"),
            learning_rate=st.floats(1e-9, 10),
            loss=st.none() | losses,
            scores=st.fixed_dictionaries({"dice_mean": st.none() | shares, "dice_std": st.none() | shares}),
        ),
        min_size=1,
        max_size=6,
        unique_by=lambda row: (row.round_no, row.epoch, row.split),
    )


def as_told(row: MetricsRow) -> MetricsRow:
    """The row of a split that its epoch has, without scores of too few images."""
    row = replace(row, split="test" if row.epoch == 0 and row.split == "train" else row.split)
    row = replace(row, split="train" if row.epoch and row.split == "test" else row.split)
    return row if fewest(row.images) else replace(row, loss=None, scores=dict.fromkeys(row.scores))


@given(tables(st.integers(-100_000, 100_000).map(lambda n: n / 10**4), st.integers(0, 10_000).map(lambda n: n / 10**4)))
def test_a_table_reads_back_in_one_order_of_its_rows(table: list[MetricsRow]) -> None:
    told = {(row.epoch, row.split): replace(row, round_no=1) for row in map(as_told, table)}
    ordered = in_order(told.values())
    assert read_metrics(write_metrics(ordered), "metrics.csv") == ordered
    for other in islice(permutations(ordered), 1, 24):
        with pytest.raises(RejectedError, match="its rows are not in their order"):
            read_metrics(write_metrics([*other]), "metrics.csv")


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("1,0,train,10,0.1,0.5,0.5,0.1", "a row is of a split that its epoch does not have"),
        ("1,1,test,10,0.1,0.5,0.5,0.1", "a row is of a split that its epoch does not have"),
        ("1,1,test_alone,10,0.1,0.5,0.5,0.1", "a row is of a split that its epoch does not have"),
        ("1,0,test,fewer than 5,0.1,0.5,,", "a row of fewer than 5 images tells a loss"),
        ("1,0,test,fewer than 5,0.1,,,0.1", "a row of fewer than 5 images tells dice_std"),
        ("1,0,test,0,0.1,,0.5,", "a row of 0 images tells dice_mean"),
    ],
)
def test_a_row_that_no_table_has_is_refused(row: str, wrong: str) -> None:
    with pytest.raises(RejectedError, match=re.escape(wrong)):
        read_metrics(f"{HEADER}{row}\n".encode(), "metrics.csv")


@given(tables(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1)))
def test_a_table_of_protocol_1_reads_back(table: list[MetricsRow]) -> None:
    assert read_metrics(write_metrics(table), "metrics.csv", is_early=True) == table


HEADER = "round,epoch,split,images,learning_rate,loss,dice_mean,dice_std\n"


@pytest.mark.parametrize(
    "content",
    [
        "",
        HEADER.replace("loss", "lost"),
        HEADER.replace("dice_mean", "=cmd_mean"),
        HEADER.replace("dice_mean,dice_std", "dice_std,dice_mean"),
        HEADER + "1,0,test,10,0.1,0.5,0.5\n",
        HEADER + "1,0,test,10,0.1,0.5,nan,0.1\n",
        HEADER + "1,0,test,10,0.1,0.5,=1+1,0.1\n",
        HEADER + "1,0,holdout,10,0.1,0.5,0.5,0.1\n",
        HEADER + "1,0,test,ten,0.1,0.5,0.5,0.1\n",
        HEADER + "1,0,test,10,,0.5,0.5,0.1\n",
        HEADER + "-1,0,test,10,0.1,0.5,0.5,0.1\n",
        HEADER + "1,0,test,10,0.1,0.5,0.5,1e999\n",
        HEADER + "1,0,test,١٠,0.1,0.5,0.5,0.1\n",
        HEADER + "1,0,test,10,0.1,0.5,0.5,0.1\n" * 40_000,
        HEADER,
    ],
)
def test_anything_else_is_not_a_table(content: str) -> None:
    with pytest.raises(RejectedError, match="is not a metrics table"):
        read_metrics(content.encode(), "metrics.csv")


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("1,0,test,10,0.1,0.5,0.5,0.12345", "is 0.12345, which is not rounded to 4 decimals"),
        ("1,0,test,10,0.1,0.50001,0.5,0.1", "loss is 0.50001, which is not rounded to 4 decimals"),
        ("1,0,test,10,0.1,10.5,0.5,0.1", "loss is 10.5, which is beyond 10"),
        ("1,0,test,10,0.1,-10.0001,0.5,0.1", "loss is -10.0001, which is beyond 10"),
    ],
)
def test_a_number_of_more_than_four_decimals_or_a_loss_beyond_10_is_refused(row: str, wrong: str) -> None:
    """The digits of a score are a channel for whoever made the model. Tables of protocol 1 hold them all."""
    content = f"{HEADER}{row}\n".encode()
    with pytest.raises(RejectedError, match=re.escape(wrong)):
        read_metrics(content, "metrics.csv")
    assert len(read_metrics(content, "metrics.csv", is_early=True)) == 1


def test_a_table_has_one_text() -> None:
    """In a longer number, another end of a line, a nought or a quotation mark something could be hidden."""
    sound = HEADER + "1,0,test,10,0.1,0.5,0.5,0.1\n"
    read_metrics(sound.encode(), "metrics.csv")
    for other in (
        sound.replace("\n", "\r\n"),
        sound.rstrip("\n"),
        sound + "\n",
        sound.replace("1,0,test", "01,0,test"),
        sound.replace(",10,", ",010,"),
        sound.replace(",0.5,", ',"0.5",'),
        sound.replace("0.1\n", f"0.{'1234567890' * 100}\n"),
        sound.replace("0.1\n", f"0.1{'0' * 60}\n"),
        sound.replace("0.1\n", "1e-1\n"),
        sound.replace("0.1\n", "0.10000000000000000001\n"),
        sound.replace("0.1\n", "1\n"),
    ):
        with pytest.raises(RejectedError, match="is not a metrics table"):
            read_metrics(other.encode(), "metrics.csv")


@pytest.mark.parametrize(
    ("column", "value", "holds"),
    [
        ("accuracy_mean", "7.5", False),
        ("accuracy_mean", "-0.1", False),
        ("auprc", "1.0000000000000002", True),  # which rounding makes of one
        ("auprc", "1.000001", False),
        ("accuracy_of_2", "2.0", False),
        ("ood_auroc", "2.0", False),
        ("kappa", "-1.0", True),
        ("kappa", "-1.5", False),
        ("epsilon", "40.0", True),
        ("epsilon", "-1.0", False),
        ("images_of_3", "999999999.0", True),
        ("images_of_3", "1000000000.0", False),
        ("micro_batch", "1e+300", False),
        ("loss_kl", "40.0", True),
    ],
)
def test_a_score_is_in_the_range_of_its_column(column: str, value: str, holds: bool) -> None:
    content = f"round,epoch,split,images,learning_rate,loss,{column}\n1,0,test,10,0.1,0.5,{value}\n".encode()
    if holds:
        assert read_metrics(content, "metrics.csv", is_early=True)[0].scores == {column: float(value)}
    else:
        with pytest.raises(RejectedError, match=re.escape(f"{column} is {value}, which is not in its range")):
            read_metrics(content, "metrics.csv")


# --- keys -------------------------------------------------------------------------------------------------------


def test_a_key_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    with pytest.raises(ActionRequiredError, match="is missing: put this very key back"):
        SigningKey.at(path)
    key = SigningKey.made_at(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.at(path).public == SigningKey.made_at(path).public == key.public
    path.chmod(0o640)
    with pytest.raises(ActionRequiredError, match="chmod 600"):
        SigningKey.at(path)
    path.chmod(0o600)
    path.write_text("not a key")
    with pytest.raises(ActionRequiredError, match="does not hold a dropfed key"):
        SigningKey.at(path)


settings.register_profile("default", deadline=None)
settings.load_profile("default")


@pytest.mark.parametrize("case", cases("oct_csv_val_loss"))
def test_a_column_is_found_by_its_name_wherever_it_stands(case):
    """Sorted columns stand elsewhere in another task: who reads by position takes one score for another."""
    refs = case["expected"]
    others = {"seg": ["accuracy"], "cls": ["accuracy", "auroc"]}
    for task, before in others.items():
        scores = dict.fromkeys([*before, "sensitivity"], 0.5) | {"kappa": 0.25 * refs[task]}
        content = write_metrics([MetricsRow(1, 0, "validation", "9", 0.1, 0.7, scores)])
        assert content.split(b"\n")[0].split(b",").index(b"kappa") == 6 + len(before)
        assert read_metrics(content, "metrics.csv")[0].scores["kappa"] == 0.25 * refs[task]
