"""λ as a site's tables tell it: by its own steps, whatever a round is."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.simulation import run_rounds
from tests.federation.running import run_configuration, write_data


def told(row: object) -> float:
    """The λ that a row's loss was made with."""
    scores, loss = row.scores, row.loss  # type: ignore[attr-defined]
    return float((loss - scores["loss_ice"] - scores["loss_tce"]) / scores["loss_kl"])


@pytest.mark.parametrize(("epochs", "anneal"), [(1, {"anneal_steps": 6}), (2, {})])
def test_lambda_follows_a_sites_steps(tmp_path: Path, epochs: int, anneal: dict[str, int]) -> None:
    """A site's six training images, twice each, are three steps of four; without steps λ is of rounds alone."""
    run = run_configuration(
        sites=["north"],
        quorum=1,
        rounds=3,
        epochs=epochs,
        batch_size=4,
        method_options={"objective": "evidential", **anneal},
        augmentation={"copies": 1, "originals": True},
    )
    write_data(run.task, tmp_path / "north", 0, 10, seed=1)
    outcome = run_rounds(run, {"north": tmp_path / "north"}, tmp_path / "home")
    for round_no in range(1, 4):
        rows = [row for row in outcome.tables[round_no]["north"] if row.split == "validation"]
        due = min(1, (round_no - 1) * epochs * 3 / 6) if anneal else (round_no - 1) / 3
        assert [told(row) for row in rows] == pytest.approx([due] * (epochs + 1), abs=0.02)  # told rounded
