"""The benchmarks that no other file plays reach their end: here on a few images, once, and nothing is recorded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks import training, wire


@pytest.mark.long
def test_forms_of_weights_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    name, numbers = "small encoder", "bfloat16"
    monkeypatch.setattr(wire, "NUMBERS", (numbers,))
    monkeypatch.setitem(wire.MODELS, name, replace(wire.MODELS[name], rounds=1, seeds=(1,)))
    found = json.loads(json.dumps(wire.measure(name)))["numbers"][numbers]
    (scores,) = found["test_auroc_by_seed"]
    assert all(0 <= score <= 1 for score in scores.values())
    assert [form["to_sites_mb"] > 0 for form in found["forms"].values()] == [True] * 4


def test_training_is_measured_as_a_site_computes() -> None:
    """On a GPU too, where there is one."""
    assert {(case.task, case.computing.precision) for case in training.cases() if case.computing.device == "cpu"} == {
        (task, precision) for task in training.NETS for precision in ("float32", "bfloat16")
    }


@pytest.mark.long
def test_a_sites_training_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in training.cases() if case.task == "octa_segmentation")
    monkeypatch.setattr(training, "REPEATS", {"cpu": 1})
    found = training.measure(replace(case, views=1))
    assert json.loads(json.dumps(found)) == found
    assert all(float(str(found[speed])) > 0 for speed in ("images_per_s", "bare_images_per_s"))
    assert str(found["net"]) in training.markdown([found])
