"""A replay tells an honest run from one whose aggregator lied, and says plainly what it could not compute."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from shared.audit.cli import main
from shared.audit.replay import Step
from shared.audit.verify import verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.run import Krum, RunConfiguration
from shared.exchange.records.verdicts import Verdict
from shared.exchange.records.wire import FileEntry, Wire
from shared.exchange.signing import digest_of
from shared.folder.local import LocalFolder
from tests.at_length import shown_by
from tests.audit.recorded import Recorded
from tests.audit.replaying import not_same, replayed
from tests.federation.running import run_configuration

RUN = "octa-1"
SITES = ["east", "north", "south"]
Run = Callable[..., RunConfiguration]


def run_of(**settings: object) -> RunConfiguration:
    return run_configuration(**({"run": RUN, "sites": SITES, "quorum": 1, "rounds": 2} | settings))


def beside_scores(steps: list[Step]) -> list[Step]:
    """What is not the same; no held-out images are here."""
    return [step for step in not_same(steps) if not step.what.startswith(("score of ", "tolerance"))]


def what_differs(run: Recorded) -> set[str]:
    return {f"{step.round}: {step.what}" for step in replayed(run.folders, RUN) if step.outcome == "differs"}


CASES: dict[str, dict[str, object]] = {
    "mean": {},
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "feddyn": {"method": "feddyn"},
    "krum": {"sites": ["a", "b", "c", "d", "e"], "quorum": 5, "combination": Krum(rule="krum", hostile=1, keep=2)},
    "below the last aggregate": {"tolerance": {"below_last": 0.1}, "tolerance_score": "macro_dice"},
    "smallest": {"wire": Wire(numbers="bfloat16", difference=True, compression="zstd")},
}


@pytest.mark.parametrize("case", shown_by(["mean", "scaffold", "smallest"], CASES))
def test_an_honest_run_comes_out_the_same(case: str, tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of(**CASES[case])).play()
    for site in run.run.sites:
        assert {finding.file for finding in verify(LocalFolder(run.folders / site)).findings} == {names.STATUS}
    assert beside_scores(replayed(run.folders, RUN)) == []


@pytest.mark.parametrize("case", ["mean", "scaffold"])
def test_a_site_that_agrees_later_changes_n_alone(case: str, tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of(**CASES[case]), agree_late=["south"]).play()
    assert beside_scores(replayed(run.folders, RUN)) == []


def in_round(number: int, site: str, **changes: object) -> Callable[[Verdict], Verdict]:
    def lie(verdict: Verdict) -> Verdict:
        is_it = (verdict.round, verdict.site) == (number, site)
        return verdict.model_copy(update=changes) if is_it else verdict

    return lie


def test_a_model_that_was_left_out_though_it_passed_is_noticed(tmp_path: Path) -> None:
    lie = in_round(1, "north", status="omitted", weight=None, reason="score 0.7500 does not exceed the tolerance 0.01")
    run = Recorded(tmp_path, run_of(), verdict=lie).play()
    found = what_differs(run)
    assert "1: verdict on north" in found
    assert not any(what.startswith("2:") for what in found)


def test_a_weight_that_no_rule_gives_is_noticed(tmp_path: Path) -> None:
    def lie(verdict: Verdict) -> Verdict:
        weights = {"east": "0.5", "north": "0.25", "south": "0.25"}
        return verdict.model_copy(update={"weight": weights[verdict.site]}) if verdict.round == 2 else verdict

    run = Recorded(tmp_path, run_of(), verdict=lie).play()
    assert what_differs(run) == {f"2: verdict on {site}" for site in SITES}


def test_a_model_that_passed_below_the_tolerance_is_noticed(tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of(), verdict=in_round(2, "east", score="0.005")).play()
    assert "2: verdict on east" in what_differs(run)


def test_a_site_that_is_held_against_another_limit_is_noticed(tmp_path: Path) -> None:
    lie = in_round(2, "north", tolerance="0.6", reason="score 0.7500 exceeds the tolerance 0.6")
    run = Recorded(tmp_path, run_of(tolerance={"below_last": 0.1}), verdict=lie).play()
    assert what_differs(run) == {"2: verdict on north"}
    told = [step.detail for step in replayed(run.folders, RUN) if step.what == "tolerance"]
    assert told == ["because the held-out images are not here (--heldout); 0.7 is taken as reported"] * 2


@pytest.mark.parametrize("case", ["mean", "scaffold", "smallest"])
def test_one_bit_of_one_number_of_an_aggregate_is_noticed(case: str, tmp_path: Path) -> None:
    def lie(path: Path) -> None:
        if path.parent.name == "0001":
            content = bytearray(path.read_bytes())
            content[-1] ^= 1  # the sign stays, bfloat16 has this bit too
            path.write_bytes(content)

    run = Recorded(tmp_path, run_of(**CASES[case]), aggregate=lie).play()
    steps = replayed(run.folders, RUN)
    differing = [(step.round, step.what) for step in steps if step.outcome == "differs"]
    assert differing == [(1, "aggregate 1")]
    if case == "scaffold":  # what the aggregator keeps for itself follows from every round before
        (told,) = [step for step in steps if step.what == "aggregate 2"]
        assert (told.outcome, "total-control" in told.detail) == ("not replayable", True)


def test_another_final_model_is_noticed(tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of()).play()
    ref = MessageRef("final", RUN)
    other = run.store.aggregate_path(0).read_bytes()
    for site in SITES:
        manifest = run.messages[site, ref].manifest
        files = manifest.files | {names.FINAL_MODEL: FileEntry(size=len(other), sha256=digest_of(other))}
        run.sign(site, ref, manifest.model_copy(update={"files": files}))
        (run.folders / site / ref.path / names.FINAL_MODEL).write_bytes(other)
    assert what_differs(run) == {f"0: final model of {site}" for site in SITES}


def test_what_was_removed_is_said_and_what_follows_goes_on(tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of(keep="last 1", rounds=3)).play()
    for ref in (MessageRef("update", RUN, 1), MessageRef("update", RUN, 2), MessageRef("round", RUN, 1)):
        for site in SITES:
            for path in (run.folders / site / ref.path).glob("*.safetensors"):
                path.unlink()
    steps = {f"{step.round}: {step.what}": step for step in beside_scores(replayed(run.folders, RUN))}
    assert {step.outcome for step in steps.values()} == {"not replayable"}
    assert {f"{number}: aggregate {number}" for number in (1, 2)} <= set(steps)
    assert "3: aggregate 3" not in steps
    assert "was removed, as `keep: last 1` lets it" in steps["1: aggregate 1"].detail


def test_a_folder_that_is_not_here_is_said(tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of()).play()
    shutil.rmtree(run.folders / "south")
    steps = {f"{step.round}: {step.what}": step for step in beside_scores(replayed(run.folders, RUN))}
    assert {step.outcome for step in steps.values()} == {"not replayable"}
    assert {"0: folders", "1: weights", "1: aggregate 1", "2: aggregate 2"} <= set(steps)
    assert "south" in steps["1: aggregate 1"].detail


DAMAGE: dict[str, str] = {
    "a table is empty": f"runs/{RUN}/rounds/0002/from_site/{names.METRICS}",
    "a table is gone": f"runs/{RUN}/rounds/0001/from_site/{names.METRICS}",
    "an answer is gone": f"runs/{RUN}/rounds/0002/from_site",
    "the last answer is gone": f"runs/{RUN}/rounds/0003/from_site",
    "a verdict is gone": f"runs/{RUN}/rounds/0001/verdict",
    "a verdict is empty": f"runs/{RUN}/rounds/0002/verdict/{names.VERDICT}",
    "a consent is empty": f"runs/{RUN}/consent/{names.CONSENT}",
    "a consent is gone": f"runs/{RUN}/consent",
}


@pytest.mark.parametrize("case", shown_by(["a table is empty", "an answer is gone", "a consent is gone"], DAMAGE))
def test_what_is_damaged_accuses_nobody(case: str, tmp_path: Path) -> None:
    """It cannot be computed, or is the same without; that it is damaged is for ``verify`` to say."""
    run = Recorded(tmp_path, run_of(method="fedavg")).play()
    damaged = run.folders / "south" / DAMAGE[case]
    assert damaged.exists()
    if case.endswith("empty"):
        damaged.write_bytes(b"")
    elif damaged.is_dir():
        shutil.rmtree(damaged)
    else:
        damaged.unlink()
    assert verify(LocalFolder(run.folders / "south")).findings
    steps = beside_scores(replayed(run.folders, RUN))
    assert [step for step in steps if step.outcome == "differs"] == []
    assert "south" in " ".join(f"{step.what} {step.detail}" for step in steps)


def test_the_command_exits_by_what_it_finds(tmp_path: Path) -> None:
    run = Recorded(tmp_path, run_of(rounds=1)).play()

    def told(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["replay", RUN, str(run.folders), *options])
        return result.exit_code, result.stdout

    before = {path: path.read_bytes() for path in run.folders.rglob("*") if path.is_file()}
    code, output = told()
    assert (code, output.splitlines()[-1].endswith("0 differs, 3 not replayable")) == (
        1,
        True,
    )  # status.json is missing
    document = json.loads(told("--json")[1])
    assert (document["differs"], document["not replayable"], document["same"]) == (0, 3, len(document["steps"]) - 3)
    assert {path: path.read_bytes() for path in run.folders.rglob("*") if path.is_file()} == before
    assert CliRunner().invoke(main, ["replay", "octa-9", str(run.folders)]).exit_code == 2
