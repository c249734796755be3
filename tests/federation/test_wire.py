"""Federations whose weights travel in other forms than plain float32: nothing but the stated rounding differs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.encoding import decode, encode, rounded
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.tensors import TensorList, TensorShape
from shared.exchange.records.wire import Wire
from shared.exchange.weights import write_tensors
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from tests.audit.replaying import not_same, replayed
from tests.federation.in_turns import in_turns
from tests.federation.running import RUN, WAIT_S, Federation, Setting, run_configuration
from tests.federation.scripted import ScriptedSite, metrics
from tests.federation.test_crashes import run_killed_at_every_seam

LOSSLESS = Wire(difference=True, compression="zstd")
SMALLEST = Wire(numbers="bfloat16", difference=True, compression="zstd")
ROUNDS = 2


def sent(federation: Setting, site: str, kind: Kind, round_no: int) -> Path:
    """The weights that a message brought, as they lie in the folder."""
    name = names.GLOBAL_MODEL if kind == "round" else names.SITE_MODEL
    return federation.folder(site) / MessageRef(kind, RUN, round_no).path / name


def aggregate(federation: Setting, round_no: int) -> Path:
    return federation.aggregator / "runs" / RUN / "rounds" / f"{round_no:04d}" / "aggregate.safetensors"


def listed(model: Path) -> TensorList:
    shapes = {name: list(array.shape) for name, array in load_file(model).items()}
    return TensorList(tensors={name: TensorShape(dtype="F32", shape=shape) for name, shape in shapes.items()})


def assert_all_holds_and_nothing_is_left(federation: Setting) -> None:
    for site in federation.run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
        assert not (federation.site(site) / "scratch").exists()
    steps = not_same(replayed(federation.root / "folders", RUN))
    assert {step.outcome for step in steps if not step.what.startswith("score of ")} == set()
    left = {path.name for path in (federation.aggregator / "runs" / RUN / "rounds").rglob("*.safetensors")}
    assert left == {"aggregate.safetensors"}


@pytest.fixture(scope="module")
def plain_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the final model of the run in the plain form."""
    federation = in_turns(tmp_path_factory.mktemp("plain"), run_configuration(rounds=ROUNDS))
    manifest = json.loads((federation.folder("north") / MessageRef("update", RUN, 1).manifest).read_bytes())
    assert set(manifest["body"]["files"]["model.safetensors"]) == {"size", "sha256"}
    assert hash_file(sent(federation, "north", "round", 2)) == hash_file(aggregate(federation, 1))
    assert_all_holds_and_nothing_is_left(federation)
    return federation.final_sha256()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_lossless_form_changes_nothing_even_if_everybody_dies_at_every_model(
    plain_sha256: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIES_AT", r"rounds/0002/.*safetensors|scratch|rounds/0002/(from|to)_site/manifest")
    with Federation(tmp_path, run_configuration(rounds=ROUNDS, wire=LOSSLESS)) as federation:
        died_at = run_killed_at_every_seam(federation, ["aggregator", "north"])
        assert federation.final_sha256() == plain_sha256
        assert_all_holds_and_nothing_is_left(federation)
        assert sent(federation, "north", "update", 2).stat().st_size < aggregate(federation, 2).stat().st_size
    for seam in (
        "before runs/test-run/rounds/0002/sent/all.safetensors",
        "before runs/test-run/rounds/0002/answers/north/model.safetensors",
        "before runs/test-run/rounds/0002/answers/south/model.safetensors",
        "before runs/test-run/rounds/0002/aggregate.safetensors",
    ):
        assert seam in died_at["aggregator"]
    for seam in (
        "before scratch/received.safetensors",
        "before scratch/trained.safetensors",
        "before mirror/runs/test-run/rounds/0002/from_site/model.safetensors",
        "before mirror/runs/test-run/rounds/0002/from_site/manifest.json",
    ):
        assert seam in died_at["north"]


def test_all_three_at_once(tmp_path: Path) -> None:
    run = run_configuration(rounds=ROUNDS, wire=SMALLEST)
    with Federation(tmp_path, run) as federation:
        federation.run_to_the_end()
        federation.stop_all()
        assert_all_holds_and_nothing_is_left(federation)
        tensors = listed(aggregate(federation, 0))
        for round_no in (1, 2):
            before = aggregate(federation, round_no - 1)
            weights, models = {}, {}
            for site in run.sites:
                received, trained = (sent(federation, site, kind, round_no) for kind in ("round", "update"))
                assert trained.stat().st_size < received.stat().st_size < before.stat().st_size
                decode(received, tmp_path / "received", tensors, SMALLEST.of("round", received.name), shown_as="")
                assert (tmp_path / "received").read_bytes() == before.read_bytes()  # what they train from is one model
                decode(trained, tmp_path / site, tensors, SMALLEST, before, shown_as="")
                models[site] = load_file(tmp_path / site)
                verdict = json.loads(
                    (federation.folder(site) / MessageRef("verdict", RUN, round_no).path / names.VERDICT).read_bytes()
                )
                weights[site] = float(verdict["weight"])
            for name, array in load_file(aggregate(federation, round_no)).items():
                mean = sum(weights[site] * models[site][name].astype(np.float64) for site in run.sites)
                assert np.array_equal(array, rounded(np.asarray(mean, dtype=np.float32), "bfloat16"))
        manifest = json.loads((federation.folder("north") / MessageRef("update", RUN, 1).manifest).read_bytes())
        assert manifest["body"]["files"]["model.safetensors"]["wire"] == SMALLEST.model_dump()
        final = federation.folder("north") / MessageRef("final", RUN).path / names.FINAL_MODEL
        assert set(load_file(final)) == set(tensors.tensors)  # float32, for any tool
        assert hash_file(final)[1] == federation.final_sha256()


def test_answers_in_another_form_are_omitted_with_the_reason(tmp_path: Path) -> None:
    """One says that it sends what the run does not want; two say what the run wants and send something else."""
    names_of_sites = ["good", "other-form", "plain-inside", "bomb", "diverged"]
    run = run_configuration(sites=names_of_sites, quorum=1, wire=SMALLEST)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        sites = {name: ScriptedSite(federation, name) for name in run.sites}
        for site in sites.values():
            site.consent()
        received = {name: site.receive_round(1) for name, site in sites.items()}["good"]
        before = aggregate(federation, 0)
        tensors, trained = listed(before), tmp_path / "trained"
        models = {name: array * np.float32(1.5) for name, array in load_file(before).items()}
        write_tensors(trained, tensors, models.__getitem__)
        encode(trained, tmp_path / "good", tensors, SMALLEST, before)
        first = sorted(models)[0]
        models[first].flat[0] = np.nan
        write_tensors(tmp_path / "spoilt", tensors, models.__getitem__)
        encode(tmp_path / "spoilt", tmp_path / "diverged", tensors, SMALLEST, before)
        good, frame = (tmp_path / "good").read_bytes(), load_file(tmp_path / "good")[first].tobytes()
        bomb = b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\x7f".ljust(len(frame), b"\x03")  # "2 GB follow"
        answers: dict[str, tuple[bytes | Path, Wire, str]] = {
            "good": (tmp_path / "good", SMALLEST, ""),
            "other-form": (trained, Wire(), "has the form (float32), the run wants (bfloat16, difference, zstd)"),
            "plain-inside": (trained, SMALLEST, "not at most U8"),
            "bomb": (good.replace(frame, bomb), SMALLEST, "one zstd frame"),
            "diverged": (tmp_path / "diverged", SMALLEST, f"{first} holds a value that is not finite"),
        }
        for name, (model, wire, _) in answers.items():
            sites[name].answer(1, {names.SITE_MODEL: model, names.METRICS: metrics(1)}, wire)
        for name, (_, _, reason) in answers.items():
            verdict = sites[name].verdict(1)
            assert verdict.status == ("omitted" if reason else "accepted"), verdict.reason
            assert reason in verdict.reason
        for site in sites.values():
            site.receive_round(2)
            site.answer(2, {names.METRICS: metrics(2, dice=0.9)}, SMALLEST)
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        decode(tmp_path / "good", tmp_path / "alone", tensors, SMALLEST, before, shown_as="")
        assert hash_file(tmp_path / "alone")[1] == federation.final_sha256()
        assert received.stat().st_size < before.stat().st_size
