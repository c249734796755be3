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


@pytest.mark.parametrize(
    ("wire", "shown"), [(PLAIN, []), (Wire(numbers="float16", compression="zstd"), ["float16, zstd"])], ids=str
)
def test_an_offer_tells_another_form_of_weights(wire: Wire, shown: list[str], tmp_path: Path) -> None:
    offer = tmp_path / "mirror" / Place("offer", RUN).path
    offer.mkdir(parents=True)
    (offer / names.MANIFEST).write_bytes(b"")
    (offer / names.RUN_CONFIGURATION).write_bytes(dump_yaml(run_configuration(wire=wire)))
    sharing = Sharing(tensors={"a": TensorShape(dtype="F32", shape=[3])}, start={}, personal=[])
    (offer / names.TENSORS).write_bytes(dump_yaml(sharing))
    prefix = "both travel as:"
    found = [line.removeprefix(prefix).strip() for line in describe(tmp_path, RUN).splitlines() if prefix in line]
    assert found == shown
