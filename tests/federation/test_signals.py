"""Early exits on time series and on sounds, through the real daemons, up to predictions."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from shared.audit.verify import lines, verify
from shared.errors import ConfigurationError
from shared.exchange.names import MessageRef
from shared.exchange.tables import read_metrics
from shared.folder.local import LocalFolder
from shared.learning.kept_model import open_model
from shared.learning.predictions import evaluate_labelled, predict
from site_client.configuration import read_configuration
from site_client.own_images import look_at_own_images
from studies.simulation import EVERYONE
from tests.federation.in_turns import in_turns
from tests.federation.running import RUN, run_configuration
from tests.learning.small_sites import SIGNALS, write_small

POLICY = EVERYONE.model_copy(update={"consent": "auto"})
CASES = {"time_series": ("fedbn", 96, 5), "spectrograms": ("fedavg", 64, 2)}
"""By task: FedEE's base (with FedBN the aggregator asks a probe), a recording's size and its excerpts."""


@pytest.mark.parametrize("task", CASES)
def test_signals_from_the_first_round_to_predictions(task: str, tmp_path: Path) -> None:
    base, size, excerpts = CASES[task]
    run = run_configuration(
        task=task,
        method="fedee",
        method_options={"base": base},
        task_options=SIGNALS[task],
        augmentation={},
        split={},
        learning_rate={"initial": 0.003, "period": 1},
    )
    data = tmp_path / "data"
    for number, name in enumerate(("heldout", *run.sites)):
        write_small(task, data / name, images=24, size=size, seed=number, site=number)
    federation = in_turns(tmp_path, run, data=data, policy=POLICY)
    for site in run.sites:
        folder = federation.folder(site)
        assert list(lines(verify(LocalFolder(folder)))) == []
        table = read_metrics((folder / MessageRef("update", RUN, 1).path / "metrics.csv").read_bytes(), "metrics.csv")
        counts = {row.split: int(row.images) for row in table}
        assert sum(counts.values()) == 24 * excerpts
        assert all("auroc" in row.scores for row in table)

    kept = open_model(federation.site("north") / "final")
    path, count, problems = predict(kept, data / "north" / "recordings", tmp_path / "out")
    assert (count, problems) == (24 * excerpts, [])
    rows = list(csv.DictReader(path.open()))
    assert rows[1]["image"].endswith("-001/0002")
    assert {row["advice"] for row in rows} <= {"", "have a person decide"}
    assert {row["grade_name"] for row in rows} <= set(kept.card.classes)
    assert evaluate_labelled(kept, data / "north").images == 24 * excerpts

    with pytest.raises(ConfigurationError, match=r"recordings\.csv"):
        evaluate_labelled(kept, data / "north" / "recordings")

    north = federation.site("north")
    configuration = read_configuration(north)
    found = {finding.text: finding.grade for finding in look_at_own_images(task, north, configuration, run)}
    assert any(text.startswith(f"{task}: 24 labelled recordings") for text in found)
    named = next(text for text in found if "name" in text and "images in" not in text and "two names" not in text)
    assert found[named] == ("note" if task == "time_series" else "ok")
