"""Vessels by FedUAA: the daemons, then masks and maps of the uncertainty for new images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from deploy.local import synthetic_octa
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.tables import read_metrics
from tests.federation.in_turns import in_turns
from tests.federation.running import RUN, run_configuration
from tests.federation.test_personal_parts import site_command


def test_vessels_by_feduaa_from_the_first_round_to_maps_of_doubt(tmp_path: Path) -> None:
    federation = in_turns(tmp_path, run_configuration(method="feduaa"))
    for site in federation.run.sites:
        update = federation.folder(site) / MessageRef("update", RUN, 1).path
        told = yaml.safe_load((update / names.RELIABILITY).read_bytes())
        assert told["n"] == str(10 * 256)  # pixels drawn from ten training images
        verdict = json.loads(
            (federation.folder(site) / MessageRef("verdict", RUN, 1).path / names.VERDICT).read_bytes()
        )
        assert (verdict["status"], float(verdict["theta"])) == ("accepted", told["theta"])
        rows = read_metrics((update / names.METRICS).read_bytes(), names.METRICS)
        trained = next(row for row in rows if row.split == "train")
        assert {"dice_mean", "loss_kl", "misdiagnosis_auroc_mean", "uncertainty_wrong_mean"} <= set(trained.scores)

    data, work = federation.root / "data" / "north", federation.site("north")
    result = site_command("predict", data / "images", "--work", work, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == federation.images
    for row in rows:
        mask = np.asarray(Image.open(tmp_path / "out" / "masks" / f"{row['image']}.png"))
        doubt = np.asarray(Image.open(tmp_path / "out" / "uncertainty" / f"{row['image']}.png"))
        assert mask.shape == doubt.shape == (32, 32)
        assert set(np.unique(mask)) <= {0, 255}
        assert abs(float(row["share_vessel"]) - (mask == 255).mean()) < 1e-3
        assert abs(float(row["uncertainty"]) - doubt.mean() / 255) < 1e-2

    large = tmp_path / "large"
    synthetic_octa.write_site(large, style=synthetic_octa.STYLES[0], images=1, size=80, seed=1)
    (file,) = (large / "images").iterdir()
    picture = Image.open(file)
    picture.crop((0, 0, 80, 60)).save(file)  # wider than high, and larger than the run's images
    assert site_command("predict", file, "--work", work, "--output", tmp_path / "own").exit_code == 0
    grey = np.asarray(Image.open(file).convert("L"))
    mask = np.asarray(Image.open(tmp_path / "own" / "masks" / file.name))
    overlay = np.asarray(Image.open(tmp_path / "own" / "overlays" / file.name))
    assert mask.shape == (60, 80) and overlay.shape == (60, 80, 3)
    assert (overlay[mask == 0] == grey[mask == 0][:, None]).all()
    assert (overlay[mask == 255, 0] >= overlay[mask == 255, 1]).all()  # red upon grey

    scores = json.loads(site_command("evaluate", data, "--work", work, "--json").stdout)
    assert scores["images"] == federation.images and 0 <= scores["dice_mean"] <= 1
