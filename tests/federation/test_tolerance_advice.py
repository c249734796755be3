"""The PI's guide about the tolerance, followed word for word: honest sites stay in, a spoilt model is left out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save

from aggregator.cli import main
from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import BelowLast
from shared.exchange.records.verdicts import Verdict
from shared.exchange.trust import open_record
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.learning.answers import limit_below
from tests.audit.replaying import not_same, replayed
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.scripted import ScriptedSite, metrics

GUIDE = Path(__file__).parents[2] / "docs" / "for-pis.md"
ADVICE = "If `validate` warns about `tolerance`, put the line that it proposes into `RUN.yaml`"
HONEST = ("north", "south")


def negated(model: Path) -> bytes:
    """The model with all that training moves negated: a variance that is negative would be noticed by itself."""
    tensors = load_file(model)
    return save({name: tensor if "running" in name else -tensor for name, tensor in tensors.items()})


def validate(federation: Federation) -> str:
    arguments = ["validate", str(federation.aggregator / "RUN.yaml"), "--work", str(federation.aggregator)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def verdicts(federation: Federation, site: str) -> list[Verdict]:
    """On a site's answers to all rounds that train."""
    refs = [MessageRef("verdict", RUN, number) for number in range(1, federation.run.rounds + 1)]
    files = [federation.folder(site) / ref.path / names.VERDICT for ref in refs]
    return [open_record(file.read_bytes(), Verdict, str(file)) for file in files]


@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_guides_advice_keeps_honest_sites_and_omits_a_spoilt_one(rounds: int, tmp_path: Path) -> None:
    """Two real sites train; the third answers with the received model negated. The first idea of the PI was 0.89."""
    assert ADVICE in " ".join(GUIDE.read_text().split())
    run = run_configuration(
        sites=[*HONEST, "liar"],
        quorum=3,
        rounds=rounds,
        epochs=4,
        tolerance=0.89,
        task_options={"image_size": 32, "widths": [8, 16], "dropout": 0.0},
    )
    with Federation(tmp_path, run) as federation:
        said = validate(federation)
        assert "so 0.89 omits every site that one round does not take above it" in said
        (proposed,) = set(re.findall(r"take `(tolerance: \{below_last: [0-9.]+\})`", said))
        text = dump_yaml(run).decode().replace("tolerance: 0.89", proposed)
        write_file(federation.aggregator / "RUN.yaml", text.encode())
        assert "warning  tolerance" not in validate(federation)

        aggregator = federation.start_aggregator()
        for site in HONEST:
            federation.start_site(site)
        liar = ScriptedSite(federation, "liar")
        liar.consent()
        for number in range(1, rounds + 1):
            model = negated(liar.receive_round(number))
            liar.answer(number, {names.SITE_MODEL: model, names.METRICS: metrics(number)})
            liar.verdict(number)
        liar.receive_round(rounds + 1)
        liar.answer(rounds + 1, {names.METRICS: metrics(rounds + 1)})
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)

        found = {site: verdicts(federation, site) for site in run.sites}
        for site in HONEST:
            assert [verdict.status for verdict in found[site]] == ["accepted"] * rounds, found[site]
        assert [verdict.status for verdict in found["liar"]][1:] == ["omitted"] * (rounds - 1), found["liar"]
        limits = [{found[site][number].tolerance for site in run.sites} for number in range(rounds)]
        assert all(len(of_round) == 1 for of_round in limits), "one limit for all answers of a round"
        proposal = BelowLast(below_last=float(re.findall(r"[0-9.]+", proposed)[0]))
        untrained = float(re.findall(r"the model that training begins with scores (0\.\d+)", said)[0])
        (first,) = limits[0]
        assert first is not None and np.isclose(float(first), limit_below(untrained, proposal), atol=1e-4)
        for site in HONEST:
            assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
        steps = replayed(tmp_path / "folders", RUN, heldout=tmp_path / "data" / "heldout")
        assert not_same(steps) == []
        assert sum(step.what == "tolerance" for step in steps) == rounds
