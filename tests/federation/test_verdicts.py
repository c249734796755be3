"""What the aggregator makes of answers, good and bad: a real aggregator process, sites played by the test."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.signing import SigningKey
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.scripted import ScriptedSite, metrics
from tests.yaml_texts import in_yaml

Files = dict[str, bytes | Path]


def changed(model: Path, change: Callable[[dict[str, np.ndarray]], None]) -> bytes:
    tensors = load_file(model)
    change(tensors)
    return save(tensors)


def with_nan(tensors: dict[str, np.ndarray]) -> None:
    next(iter(tensors.values())).flat[0] = np.nan


def with_infinity(tensors: dict[str, np.ndarray]) -> None:
    list(tensors.values())[-1].flat[-1] = np.inf


def with_other_shape(tensors: dict[str, np.ndarray]) -> None:
    name = next(iter(tensors))
    tensors[name] = np.zeros((3, 3), dtype=np.float32)


def with_other_type(tensors: dict[str, np.ndarray]) -> None:
    name = next(iter(tensors))
    tensors[name] = tensors[name].astype(np.float64)


def without_one(tensors: dict[str, np.ndarray]) -> None:
    tensors.pop(next(iter(tensors)))


def shifted(tensors: dict[str, np.ndarray]) -> None:
    for name, tensor in tensors.items():
        tensors[name] = tensor * np.float32(1.5)


BAD: dict[str, tuple[Callable[[Path], Files], str]] = {
    "nan": (lambda model: {names.SITE_MODEL: changed(model, with_nan)}, "not finite"),
    "infinity": (lambda model: {names.SITE_MODEL: changed(model, with_infinity)}, "not finite"),
    "shape": (lambda model: {names.SITE_MODEL: changed(model, with_other_shape)}, "not F32"),
    "type": (lambda model: {names.SITE_MODEL: changed(model, with_other_type)}, "not F32"),
    "incomplete": (lambda model: {names.SITE_MODEL: changed(model, without_one)}, "does not hold the run's tensors"),
    "garbage": (lambda _: {names.SITE_MODEL: b"\x80\x04\x95pickled" * 20}, "is not a safetensors file"),
    "header": (lambda _: {names.SITE_MODEL: struct.pack("<Q", 2**60) + b"{}"}, "is not a safetensors file"),
    "empty": (lambda _: {}, "is missing from the answer"),
    "table": (
        lambda model: {names.SITE_MODEL: model.read_bytes(), names.METRICS: b"=cmd()\n"},
        "is not a metrics table",
    ),
}


def test_bad_answers_are_omitted_with_the_reason_and_never_reach_the_mean(tmp_path: Path) -> None:
    """Nine sites each send another kind of poison; the tenth alone makes the aggregate."""
    run = run_configuration(sites=["good", *BAD], quorum=1)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        sites = {name: ScriptedSite(federation, name) for name in run.sites}
        for site in sites.values():
            site.consent()
        models = {name: site.receive_round(1) for name, site in sites.items()}
        good = changed(models["good"], shifted)
        sites["good"].answer(1, {names.SITE_MODEL: good, names.METRICS: metrics(1)})
        for name, (files, _) in BAD.items():
            sites[name].answer(1, {names.METRICS: metrics(1)} | files(models[name]))
        verdict = sites["good"].verdict(1)
        assert (verdict.status, verdict.weight) == ("accepted", "1.0")
        for name, (_, reason) in BAD.items():
            verdict = sites[name].verdict(1)
            assert (verdict.status, verdict.weight, verdict.score) == ("omitted", None, None)
            assert reason in verdict.reason, (name, verdict.reason)
        aggregate = load_file(sites["good"].receive_round(2))
        sent = load_file(federation.folder("good") / MessageRef("update", RUN, 1).path / names.SITE_MODEL)
        assert all(np.array_equal(aggregate[name], sent[name]) for name in sent)
        for site in sites.values():
            if site.name != "good":
                site.receive_round(2)
            site.answer(2, {names.METRICS: metrics(2, dice=0.9)})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        for name in run.sites:
            found = [line for line in lines(verify(sites[name].folder)) if "status.json" not in line]
            is_of_its_kind = name in ("good", "nan", "infinity", "empty")  # status.json is missing: no daemon ran
            assert len(found) == (0 if is_of_its_kind else 1), found


def doubt(**changes: object) -> bytes:
    """A ``reliability.yaml``."""
    sound = {"theta": 0.8, "status": "measured", "n": "40", "n_wrong": "9", "auroc": 0.7, "quantiles": None}
    return in_yaml(sound | changes)


BAD_DOUBT: dict[str, tuple[Files, str]] = {
    "missing": ({}, "reliability.yaml: is missing from the answer"),
    "zero": ({names.RELIABILITY: doubt(theta=0.0)}, "theta"),
    "above-one": ({names.RELIABILITY: doubt(theta=1.01)}, "theta"),
    "nan": ({names.RELIABILITY: doubt(theta=float("nan"))}, "theta"),
    "infinite": ({names.RELIABILITY: doubt(theta=float("inf"))}, "theta"),
    "text": ({names.RELIABILITY: doubt(theta="0.5")}, "theta"),
    "none": ({names.RELIABILITY: doubt(theta=None)}, "theta"),
    "fallback": ({names.RELIABILITY: doubt(status="all right")}, "theta: must be 0.5"),
    "unknown-key": ({names.RELIABILITY: doubt(images=["eye-1.png"])}, "images"),
}


def test_a_theta_that_is_missing_or_out_of_range_is_poison_and_never_one_half(tmp_path: Path) -> None:
    """Nine sites send a wrong θ; the two others share the aggregate by softmax(θ)."""
    run = run_configuration(method="feduaa", sites=["calm", "wary", *BAD_DOUBT], quorum=1)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        sites = {name: ScriptedSite(federation, name) for name in run.sites}
        for site in sites.values():
            site.consent()
        models = {name: site.receive_round(1) for name, site in sites.items()}
        good = {"calm": doubt(theta=0.2), "wary": doubt(theta=0.9)}
        for name, site in sites.items():
            own: Files = {names.RELIABILITY: good[name]} if name in good else BAD_DOUBT[name][0]
            site.answer(1, {names.METRICS: metrics(1), names.SITE_MODEL: changed(models[name], shifted)} | own)
        weights = {}
        for name in good:
            verdict = sites[name].verdict(1)
            assert verdict.status == "accepted" and verdict.weight is not None and verdict.theta is not None
            weights[name] = float(verdict.weight)
        assert weights["wary"] / weights["calm"] == pytest.approx(np.exp(0.7))
        assert sum(weights.values()) == pytest.approx(1)
        for name, (_, reason) in BAD_DOUBT.items():
            verdict = sites[name].verdict(1)
            assert (verdict.status, verdict.weight, verdict.theta) == ("omitted", None, None)
            assert reason in verdict.reason, (name, verdict.reason)
        for site in sites.values():
            site.receive_round(2)
            site.answer(2, {names.METRICS: metrics(2), names.RELIABILITY: doubt()})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)


def test_what_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    run = run_configuration(sites=["north"], quorum=1)
    with Federation(tmp_path, run, images=0) as federation:
        federation.start_aggregator()
        site = ScriptedSite(federation, "north")
        site.consent()
        model = site.receive_round(1).read_bytes()
        site.answer(1, {names.METRICS: metrics(1), names.SITE_MODEL: model, names.RELIABILITY: doubt()})
        verdict = site.verdict(1)
        assert verdict.status == "omitted" and "reliability.yaml: was not asked for" in verdict.reason


def test_all_omitted_sends_the_previous_model_again_and_says_so(tmp_path: Path) -> None:
    run = run_configuration(sites=["north"], quorum=1, tolerance=0.9999)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        site = ScriptedSite(federation, "north")
        site.consent()
        first = site.receive_round(1)
        site.answer(1, {names.SITE_MODEL: first.read_bytes(), names.METRICS: metrics(1)})
        verdict = site.verdict(1)
        assert verdict.status == "omitted"
        assert verdict.score is not None and "does not exceed the tolerance 0.9999" in verdict.reason
        assert site.receive_round(2).read_bytes() == first.read_bytes()
        site.answer(2, {names.METRICS: metrics(2)})
        assert aggregator.wait(WAIT_S) == 0
        assert "no model was accepted" in federation.output(federation.aggregator)


def test_a_forged_answer_is_held_against_nobody_and_the_sites_own_counts(tmp_path: Path) -> None:
    """A forger has the folder and not the key: while his manifest lies there, it is trouble and the site is awaited."""
    run = run_configuration(sites=["north", "south"], quorum=2)
    with Federation(tmp_path, run, images=0) as federation:
        federation.start_aggregator()
        north, south = ScriptedSite(federation, "north"), ScriptedSite(federation, "south")
        for site in (north, south):
            site.consent()
        models = {site.name: site.receive_round(1).read_bytes() for site in (north, south)}
        forged = federation.folder("north") / MessageRef("update", RUN, 1).manifest
        forged.parent.mkdir()
        forged.write_bytes(SigningKey(b"\x07" * 32).sign({"kind": "update"}))
        trouble = federation.aggregator / "sites" / "north" / "trouble.txt"
        federation.wait_until(trouble.exists, "trouble")
        assert "manifest.json: is signed by an unknown key: it is not taken, nor held against" in trouble.read_text()
        forged.unlink()
        for site in (north, south):
            site.answer(1, {names.SITE_MODEL: models[site.name], names.METRICS: metrics(1)})
        assert [site.verdict(1).status for site in (north, south)] == ["accepted", "accepted"]
        assert not (federation.aggregator / "sites" / "north" / "quarantine").exists()


def test_a_late_site_is_told_so_recorded_and_takes_part_in_the_next_round(tmp_path: Path) -> None:
    run = run_configuration(sites=["north", "south"], quorum=1, rounds=2, round_deadline_hours=3 / 3600)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        north, south = ScriptedSite(federation, "north"), ScriptedSite(federation, "south")
        for site in (north, south):
            site.consent()
        model = north.receive_round(1).read_bytes()
        south.receive_round(1)
        answer: Files = {names.SITE_MODEL: model, names.METRICS: metrics(1)}
        north.answer(1, answer)
        assert north.verdict(1).status == "accepted"
        south.answer(1, answer)  # the round has closed without it
        assert south.verdict(1).status == "late"
        for site in (north, south):
            site.receive_round(2)
            site.answer(2, {names.SITE_MODEL: model, names.METRICS: metrics(2)})
        assert [site.verdict(2).status for site in (north, south)] == ["accepted", "accepted"]
        assert (
            federation.aggregator / "sites/south/mirror" / MessageRef("update", RUN, 1).path / names.MANIFEST
        ).exists()
        for site in (north, south):
            site.receive_round(3)
            site.answer(3, {names.METRICS: metrics(3)})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)


def test_the_best_aggregate_is_chosen_not_the_last(tmp_path: Path) -> None:
    run = run_configuration(sites=["north"], quorum=1, rounds=2)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        site = ScriptedSite(federation, "north")
        site.consent()
        models = []
        for round_no, dice in ((1, 0.1), (2, 0.8), (3, 0.6)):  # of the aggregates 0, 1 and 2
            models.append(received := site.receive_round(round_no))
            files: Files = {names.METRICS: metrics(round_no, dice)}
            if round_no < 3:
                files[names.SITE_MODEL] = changed(received, shifted)
            site.answer(round_no, files)
            site.verdict(round_no)
        assert aggregator.wait(WAIT_S) == 0
        newest = site.channel.ledger.message(MessageRef("update", RUN, 3))
        assert newest is not None
        site.receive(final := MessageRef("final", RUN), newest.digest)
        assert site.channel.ledger.path(final, names.FINAL_MODEL).read_bytes() == models[1].read_bytes()


@pytest.mark.parametrize("agrees", [True, False])
def test_consent_is_needed(tmp_path: Path, agrees: bool) -> None:
    """A site that declines gets nothing more; without a quorum of yes the run is aborted, with the reason."""
    run = run_configuration(sites=["north", "south"], quorum=1, rounds=1)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        north, south = ScriptedSite(federation, "north"), ScriptedSite(federation, "south")
        south.consent(False)
        north.consent(agrees)
        if agrees:
            model = north.receive_round(1).read_bytes()
            north.answer(1, {names.SITE_MODEL: model, names.METRICS: metrics(1)})
            north.verdict(1)
            north.receive_round(2)
            north.answer(2, {names.METRICS: metrics(2)})
            assert aggregator.wait(WAIT_S) == 0
        else:
            assert aggregator.wait(WAIT_S) == 0
            assert "aborted: only 0 of 2 sites agreed" in federation.output(federation.aggregator)
        assert {entry.name for entry in south.folder.list(f"runs/{RUN}")} == {"offer", "consent"}


def test_stop_closes_the_run_with_the_best_so_far(tmp_path: Path) -> None:
    run = run_configuration(sites=["north", "south"], quorum=2, rounds=3)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        north, south = ScriptedSite(federation, "north"), ScriptedSite(federation, "south")
        for site in (north, south):
            site.consent()
        model = north.receive_round(1)
        north.answer(1, {names.SITE_MODEL: model, names.METRICS: metrics(1)})
        stop = federation.start("aggregator.cli", "stop", RUN, "--yes", work=federation.aggregator)
        assert stop.wait(WAIT_S) == 0
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        assert south.receive_round(1) and south.verdict(1).status == "late"
        assert (federation.aggregator / "runs" / RUN / "final" / names.FINAL_MODEL).read_bytes() == model.read_bytes()


def test_a_stop_before_anybody_has_answered_is_no_error(tmp_path: Path) -> None:
    with Federation(tmp_path, run_configuration(sites=["north"], quorum=1), images=0) as federation:
        aggregator = federation.start_aggregator()
        north = ScriptedSite(federation, "north")
        north.consent()
        north.receive_round(1)
        assert federation.start("aggregator.cli", "stop", RUN, "--yes", work=federation.aggregator).wait(WAIT_S) == 0
        assert aggregator.wait(WAIT_S) == 0
        said = federation.output(federation.aggregator)
        assert "round 1 was stopped before anybody had answered" in said and "ERROR" not in said


def test_a_run_goes_on_until_the_final_model_is_in_every_folder(tmp_path: Path) -> None:
    with Federation(tmp_path, run_configuration(sites=["north"], quorum=1), images=0) as federation:
        in_the_way = federation.folder("north") / MessageRef("final", RUN).path

        def says() -> str:
            process = federation.start("aggregator.cli", "status", work=federation.aggregator)
            assert process.wait(WAIT_S) == 0
            return federation.output(federation.aggregator).rpartition("run test-run: ")[2]

        aggregator = federation.start_aggregator()
        north = ScriptedSite(federation, "north")
        north.consent()
        north.receive_round(1)
        in_the_way.write_bytes(b"a file where a folder must be")
        assert federation.start("aggregator.cli", "stop", RUN, "--yes", work=federation.aggregator).wait(WAIT_S) == 0
        trouble = federation.aggregator / "sites" / "north" / "trouble.txt"
        federation.wait_until(trouble.exists, "the trouble")
        said = says()
        assert said.startswith("ending") and "waits for: north, " in said and "is a file where a folder must be" in said
        aggregator.send_signal(signal.SIGTERM)
        assert aggregator.wait(WAIT_S) == 0
        assert federation.output(federation.aggregator).rstrip().endswith(f"(work directory {federation.aggregator})")
        assert "the chosen model is" not in federation.output(federation.aggregator)
        in_the_way.unlink()
        assert federation.start_aggregator().wait(WAIT_S) == 0
        assert "was accepted: no answer entered the model, which is as it was before training; the chosen model is" in (
            federation.output(federation.aggregator)
        )
        said = says()
        assert said.startswith("ended") and "north: finished" in said and "waits for" not in said
