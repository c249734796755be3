"""What a person reads before deciding."""

from __future__ import annotations

import pytest

from shared.exchange import names
from shared.exchange.reading import dump_yaml
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.exchange.records.wire import PLAIN, Wire
from site_client import offer
from site_client.offer import describe
from tests.played import RUN, Played

A = {"a": TensorShape(dtype="F32", shape=[3])}


def described(run: Played) -> list[str]:
    return describe(run.drop.parent / "north", RUN).splitlines()


@pytest.mark.parametrize(
    ("wire", "shown"), [(PLAIN, []), (Wire(numbers="float16", compression="zstd"), ["float16, zstd"])], ids=str
)
def test_an_offer_tells_another_form_of_weights(wire: Wire, shown: list[str], run: Played) -> None:
    run.offer(wire=wire)
    prefix = "both travel as:"
    assert [line.removeprefix(prefix).strip() for line in described(run) if prefix in line] == shown


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("mean", "metrics.csv"),
        ("feduaa", "metrics.csv, reliability.yaml (with θ: the uncertainty of one image or pixel, not which)"),
        (
            "faulty",
            "metrics.csv, perhaps reliability.yaml (with θ: the uncertainty of one image or pixel, not which; whether "
            "faulty sends it is known once its plug-in is allowed here)",
        ),
    ],
)
def test_an_offer_tells_whether_theta_leaves(method: str, shown: str, run: Played) -> None:
    run.offer(method=method)
    (line,) = [line for line in described(run) if line.startswith("leaves each round:")]
    assert line == f"leaves each round:  model.safetensors, 2 tensors, 7 numbers, 0 kB; {shown}"


@pytest.mark.parametrize("support", [False, True])
def test_an_offer_tells_which_counts_and_errors_leave(support: bool, run: Played) -> None:
    run.offer(support=support)
    shown = described(run)
    assert "leaves with a yes:  consent.json, with how many images each set has" in shown
    assert any(line.startswith("beside the scores:  in metrics.csv how many images") for line in shown) == support


def test_an_offer_tells_what_a_form_of_fewer_bits_weighs(run: Played) -> None:
    shared = {"a": TensorShape(dtype="F32", shape=[1000, 3])}
    files = run.to_offer(wire=Wire(numbers="float16", compression="zstd"))
    sharing = Sharing(tensors=shared, start={}, personal=[], to_site={"control": shared})
    run.send("offer", 0, files | {names.TENSORS: dump_yaml(sharing)}, None)
    assert described(run)[2].startswith("leaves each round:  model.safetensors, 1 tensor, 3,000 numbers, 6 kB before ")
    assert "comes each round:   state-control.safetensors, 1 tensor, 3,000 numbers, 12 kB" in described(run)


def test_an_offer_tells_what_size_of_images_its_memory_is_for(run: Played) -> None:
    run.offer(task_options={"widths": [4, 8]})
    (line,) = [line for line in described(run) if line.startswith("takes:")]
    guessed = "if images have 512 × 512 pixels, for the run does not scale them"
    assert line.endswith(f" GB of memory beside the images, {guessed} (at most 16)")


@pytest.mark.parametrize(("has_bytes", "is_told"), [(1000, True), (10**12, False), (None, False)])
def test_an_offer_tells_that_this_machine_is_too_small_for_it(
    has_bytes: int | None, is_told: bool, run: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "memory_bytes", lambda: has_bytes)
    run.offer()
    told = "too much here:      more memory than the 0.0 GB of this machine, so training will probably fail; "
    assert any(line.startswith(told) for line in described(run)) == is_told


def test_an_offer_tells_what_travels_beside_the_model(run: Played) -> None:
    both = {"control": A, "other": A | {"b": TensorShape(dtype="F32", shape=[1000, 2])}}
    run.offer(groups={"to_site": both, "measured": both, "with_final": {"last": A}})
    for line in (
        "leaves each round:  state-control.safetensors, 1 tensor, 3 numbers, 0 kB",
        "leaves each round:  state-other.safetensors, 2 tensors, 2,003 numbers, 8 kB",
        "comes each round:   state-other.safetensors, 2 tensors, 2,003 numbers, 8 kB",
        "comes at the end:   state-last.safetensors, 1 tensor, 3 numbers, 0 kB",
    ):
        assert line in described(run)
