"""What travels beside a model is checked like the model: SCAFFOLD's control variates, wrong in every way, both ways."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load as load_bytes
from safetensors.numpy import load_file, save

from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.folder.local import LocalFolder
from tests.federation.hospital import Hospital
from tests.federation.running import RUN, TASK, WAIT_S, Federation, run_configuration, write_data
from tests.federation.scripted import ScriptedSite, metrics
from tests.federation.test_verdicts import (
    changed,
    shifted,
    with_infinity,
    with_nan,
    with_other_shape,
    with_other_type,
    without_one,
)

CONTROL = names.state_file("control")
Tensors = dict[str, np.ndarray]
Files = dict[str, bytes]


def with_one_more(tensors: Tensors) -> None:
    tensors["one-more"] = np.zeros(3, dtype=np.float32)


def with_statistics(tensors: Tensors) -> None:
    """A control variate is of parameters alone."""
    name = next(iter(tensors))
    tensors[f"{name}.running_mean"] = tensors.pop(name)


def with_the_greatest(tensors: Tensors) -> None:
    """Finite, and what any sum with it is spoilt by."""
    for tensor in tensors.values():
        tensor[...] = np.finfo(np.float32).max


def with_made_up(tensors: Tensors) -> None:
    """What no training that moves the model so far can come to."""
    next(iter(tensors.values())).flat[0] = 1e5


def named_by_half_a_character(control: Path) -> Files:
    content = control.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + size].replace(b'{"', b'{"\\ud800', 1)
    return {CONTROL: struct.pack("<Q", len(header)) + header + content[8 + size :]}


def only(change: Callable[[Tensors], None]) -> Callable[[Path], Files]:
    return lambda control: {CONTROL: changed(control, change)}


HOSTILE: dict[str, tuple[Callable[[Path], Files], str]] = {
    "missing": (lambda _: {}, f"{CONTROL}: is missing"),
    "nan": (only(with_nan), "not finite"),
    "infinity": (only(with_infinity), "not finite"),
    "shape": (only(with_other_shape), "not F32"),
    "type": (only(with_other_type), "not F32"),
    "incomplete": (only(without_one), "does not hold the run's tensors"),
    "one-more": (only(with_one_more), "does not hold the run's tensors"),
    "statistics": (only(with_statistics), "does not hold the run's tensors"),
    "greatest": (only(with_the_greatest), "holds 3.4e+38, and no number may be beyond 16777216"),
    "half-a-character": (named_by_half_a_character, "carries free text beside its tensors"),
    "garbage": (lambda _: {CONTROL: b"\x80\x04\x95pickled" * 20}, "is not a safetensors file"),
    "unasked": (
        lambda control: {CONTROL: control.read_bytes(), names.state_file("patients"): control.read_bytes()},
        f"{names.state_file('patients')}: ",
    ),
    "oversized": (lambda control: {CONTROL: control.read_bytes() + bytes(2 << 20)}, "bytes, at most"),
}
"""What is sent instead of a control variate, and what is said of it."""
MADE_UP = {"made-up": (only(with_made_up), "cannot follow from how far training has moved the model")}
"""What only whoever has the model that it came with can tell."""


def test_an_answer_with_wrong_state_is_omitted_with_the_reason(tmp_path: Path) -> None:
    """Each site but one sends another kind of poison beside a sound model; w and c are of that one alone."""
    hostile = HOSTILE | MADE_UP
    run = run_configuration(method="scaffold", sites=["good", *hostile], quorum=1)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        sites = {name: ScriptedSite(federation, name) for name in run.sites}
        for site in sites.values():
            site.consent()
        models = {name: site.receive_round(1) for name, site in sites.items()}
        controls = {name: model.with_name(CONTROL) for name, model in models.items()}
        w = load_file(models["good"])
        x = load_bytes(changed(models["good"], shifted))
        change = {name: (w[name] - x[name]) / np.float32(4 * 0.1) for name in load_file(controls["good"])}  # in 4 steps
        for name, site in sites.items():
            sound = {names.SITE_MODEL: changed(models[name], shifted), names.METRICS: metrics(1)}
            site.answer(1, sound | ({CONTROL: save(change)} if name == "good" else hostile[name][0](controls[name])))
        assert (sites["good"].verdict(1).status, sites["good"].verdict(1).weight) == ("accepted", "1.0")
        for name, (_, reason) in hostile.items():
            verdict = sites[name].verdict(1)
            assert (verdict.status, verdict.weight, verdict.score) == ("omitted", None, None)
            assert reason in verdict.reason, (name, verdict.reason)
        received = sites["good"].receive_round(2)
        sent = load_file(federation.folder("good") / MessageRef("update", RUN, 1).path / names.SITE_MODEL)
        assert all(np.array_equal(tensor, sent[name]) for name, tensor in load_file(received).items())
        for name, tensor in load_file(received.with_name(CONTROL)).items():  # c is of all that have agreed
            assert np.array_equal(tensor, (change[name].astype(np.float64) / len(run.sites)).astype(np.float32))
        for name, site in sites.items():
            if name != "good":
                site.receive_round(2)
            site.answer(2, {names.METRICS: metrics(2)})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_data(TASK, folder, 0, 8, seed=1)
    return folder


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_round_with_wrong_state_is_not_followed_and_the_trouble_told(kind: str, images: Path, tmp_path: Path) -> None:
    hospital = Hospital(tmp_path, images)
    run = hospital.offer(run_configuration(method="scaffold", sites=["north"], quorum=1, rounds=2))
    hospital.live()
    assert hospital.receive(MessageRef("consent", RUN))
    zeros = {name: np.zeros_like(tensor) for name, tensor in load_file(hospital.home / names.GLOBAL_MODEL).items()}
    control = tmp_path / CONTROL
    control.write_bytes(save({name: tensor for name, tensor in zeros.items() if "running" not in name}))
    files, reason = HOSTILE[kind]
    hospital.send_round(run, 1, files(control))
    with hospital.living():
        hospital.wait_until(lambda: reason in (told(hospital) or ""))
    assert "tell the aggregator's people" in (told(hospital) or "")
    assert not hospital.is_signed(MessageRef("update", RUN, 1))
    assert not list((hospital.work / "personal").rglob("*"))


def told(hospital: Hospital) -> str | None:
    """The trouble that the site's heartbeat tells."""
    status = hospital.drop / names.STATUS
    trouble: str | None = json.loads(status.read_bytes())["body"]["trouble"] if status.exists() else None
    return trouble


def test_a_round_with_sound_state_is_followed(images: Path, tmp_path: Path) -> None:
    """So the refusals above are of what is wrong."""
    hospital = Hospital(tmp_path, images)
    run = hospital.offer(run_configuration(method="scaffold", sites=["north"], quorum=1, rounds=2))
    hospital.live()
    assert hospital.receive(MessageRef("consent", RUN))
    model = load_file(hospital.home / names.GLOBAL_MODEL)
    control = save({name: np.zeros_like(tensor) for name, tensor in model.items() if "running" not in name})
    hospital.send_round(run, 1, {CONTROL: control})
    hospital.live()
    assert hospital.receive(update := MessageRef("update", RUN, 1))
    assert set(load_file(hospital.drop / update.path / CONTROL)) == set(model) - {n for n in model if "running" in n}
    assert list(lines(verify(LocalFolder(hospital.drop)))) == []
