"""The studies that the documentation shows: each can be played as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.study_designs import DESIGNS
from studies.configuration import read_study
from studies.matrix import expand
from studies.tuning import trials
from tests.at_length import shown_by

SITES = ("aptos", "ddr", "drr", "messidor", "idrid")


@pytest.mark.parametrize("name", shown_by(["octa", "theta", "feduaa-2", "fedee-signals"], DESIGNS))
def test_every_cell_of_a_design_is_a_run(name: str, tmp_path: Path) -> None:
    settings = DESIGNS[name].settings
    for site in SITES:
        (tmp_path / site).mkdir()
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({"study": name, "data": {site: site for site in SITES}, **settings}))
    study = read_study(path)
    if study.tune is None:
        assert {cell.arm for cell in expand(study, tmp_path)} == set(study.arms)
    else:
        tried = trials(study, study.tune, tmp_path)
        assert len(tried.all) == len(study.arms) * len(study.tune.learning_rates)
