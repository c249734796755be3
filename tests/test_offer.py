"""What a person reads before deciding."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.exchange import names
from shared.exchange.names import Place
from shared.exchange.reading import dump_yaml
from shared.exchange.records import PLAIN, Sharing, TensorShape, Wire
from site_client.offer import describe
from tests.federation.running import RUN, run_configuration

A = {"a": TensorShape(dtype="F32", shape=[3])}


def offered(work: Path, sharing: Sharing, wire: Wire = PLAIN) -> None:
    """Put an offer where the site keeps it."""
    offer = work / "mirror" / Place("offer", RUN).path
    offer.mkdir(parents=True)
    (offer / names.MANIFEST).write_bytes(b"")
    (offer / names.RUN_CONFIGURATION).write_bytes(dump_yaml(run_configuration(wire=wire)))
    (offer / names.TENSORS).write_bytes(dump_yaml(sharing))


@pytest.mark.parametrize(
    ("wire", "shown"), [(PLAIN, []), (Wire(numbers="float16", compression="zstd"), ["float16, zstd"])], ids=str
)
def test_an_offer_tells_another_form_of_weights(wire: Wire, shown: list[str], tmp_path: Path) -> None:
    offered(tmp_path, Sharing(tensors=A, start={}, personal=[]), wire)
    prefix = "both travel as:"
    found = [line.removeprefix(prefix).strip() for line in describe(tmp_path, RUN).splitlines() if prefix in line]
    assert found == shown


def test_an_offer_tells_what_travels_beside_the_model(tmp_path: Path) -> None:
    both = {"control": A, "other": A | {"b": TensorShape(dtype="F32", shape=[1000, 2])}}
    offered(tmp_path, Sharing(tensors=A, start={}, personal=[], to_site=both, measured=both, with_final={"last": A}))
    for line in (
        "leaves each round:  state-control.safetensors, 1 tensor, 3 numbers, 0 kB",
        "leaves each round:  state-other.safetensors, 2 tensors, 2,003 numbers, 8 kB",
        "comes each round:   state-other.safetensors, 2 tensors, 2,003 numbers, 8 kB",
        "comes at the end:   state-last.safetensors, 1 tensor, 3 numbers, 0 kB",
    ):
        assert line in describe(tmp_path, RUN).splitlines()
