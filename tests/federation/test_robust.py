"""A rule under which some may lie, in a whole run: a real aggregator, and sites played by the test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load, load_file, save

from shared.exchange import names
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.scripted import ScriptedSite, metrics

FACTORS = {"east": 1.0, "liar": 3.0, "north": 1.0020, "south": 1.0030, "west": 1.0041}
"""What each site makes of the model that it received."""


def times(factor: float, model: Path) -> bytes:
    return save({name: tensor * np.float32(factor) for name, tensor in load_file(model).items()})


def test_krum_leaves_a_liar_out_and_combines_nobody_where_too_few_passed(tmp_path: Path) -> None:
    combination = {"rule": "krum", "hostile": 1, "keep": 2}
    run = run_configuration(sites=list(FACTORS), quorum=5, rounds=2, tolerance=0, combination=combination)
    with Federation(tmp_path, run, images=0) as federation:
        aggregator = federation.start_aggregator()
        sites = {name: ScriptedSite(federation, name) for name in FACTORS}
        for site in sites.values():
            site.consent()
        sent: dict[str, bytes] = {}
        for name, site in sites.items():
            sent[name] = times(FACTORS[name], site.receive_round(1))
            site.answer(1, {names.SITE_MODEL: sent[name], names.METRICS: metrics(1)})
        verdicts = {name: site.verdict(1) for name, site in sites.items()}
        assert {verdict.status for verdict in verdicts.values()} == {"accepted"}
        weights = {name: verdict.weight for name, verdict in verdicts.items()}
        assert weights == dict.fromkeys(FACTORS, "0.0") | {"north": "0.5", "south": "0.5"}
        assert verdicts["liar"].reason.endswith("exceeds the tolerance 0.0, but mean with krum left the model out")
        assert "krum" not in verdicts["south"].reason
        models = {name: site.receive_round(2) for name, site in sites.items()}
        for name, tensor in load_file(models["east"]).items():
            counted = [load(sent[site])[name].astype(np.float64) for site in ("north", "south")]
            assert np.array_equal(tensor, (sum(counted) / 2).astype(np.float32))

        for name, site in sites.items():
            answer = b"" if name == "liar" else models[name].read_bytes()
            site.answer(2, {names.SITE_MODEL: answer, names.METRICS: metrics(2)})
        told = {name: site.verdict(2) for name, site in sites.items()}
        assert (told["liar"].status, told["liar"].weight) == ("omitted", None)
        for name in set(FACTORS) - {"liar"}:
            assert (told[name].status, told[name].weight) == ("accepted", "0.0")
            assert told[name].reason.endswith(
                "but krum needs 5 models and only 4 passed: the global model stays as it was"
            )
        for name, site in sites.items():
            assert site.receive_round(3).read_bytes() == models[name].read_bytes()
            site.answer(3, {names.METRICS: metrics(3)})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        said = federation.output(federation.aggregator)
        assert "too few models were accepted, the global model stays as it was" in said
        card = json.loads((federation.aggregator / "runs" / RUN / "final" / names.CARD).read_bytes())
        assert card["took_part"] == {"1": ["north", "south"], "2": [], "3": []}
