"""The files in configs/ are ready to copy: each is read by the code that reads a user's."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from aggregator.configuration import AggregatorConfiguration
from aggregator.new_run import Answers, filled_in, preset_names, settings
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records.run import Falling, Line, RunConfiguration
from shared.exchange.records.wire import PLAIN, Wire
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import SplitPlan
from shared.learning.measures import task_of
from shared.learning.methods import method_names, open_method
from shared.learning.new_runs import as_of_now
from shared.learning.objectives import CrossEntropy, Ensemble, Evidential
from shared.learning.tasks import TASK_NAMES, task_named
from site_client.configuration import Policy, SiteConfiguration
from site_client.policy import judge
from studies.configuration import StudyConfiguration
from studies.matrix import expand
from tests.study_smoke import TEMPLATES, small

CONFIGS = Path(__file__).parent.parent / "configs"
PAPERS = {
    "octa_segmentation": {
        "method": "mean",
        "rounds": 60,
        "batch_size": 8,
        "learning_rate": Falling(initial=0.1, factor=0.1, period=3),
        "image_size": 304,
        "objective": CrossEntropy(),
    },
    "dr_staging": {
        "method": "feduaa",
        "rounds": 100,
        "batch_size": 32,
        "learning_rate": Falling(initial=0.01, factor=1.0, period=1),
        "image_size": 256,
        "objective": Evidential(temperature=0.05, kl_weight=0.0),
    },
    "rdr_classification": {
        "method": "mean",
        "rounds": 100,
        "batch_size": 8,
        "learning_rate": Line(shape="line", initial=3e-4, final=1e-6, period=50),
        "image_size": 512,
        "objective": CrossEntropy(),
    },
    "fundus_disease": {
        "method": "dataweightedfed",
        "rounds": 100,
        "batch_size": 16,
        "learning_rate": Falling(initial=0.001, factor=1.0, period=1),
        "image_size": 224,
        "objective": CrossEntropy(),
    },
    "spectrograms": {
        "method": "fedee",
        "rounds": 100,
        "batch_size": 32,
        "learning_rate": Falling(initial=0.001, factor=1.0, period=1),
        "image_size": 128,
        "objective": Ensemble(CrossEntropy()),
    },
    "time_series": {
        "method": "fedee",
        "rounds": 100,
        "batch_size": 32,
        "learning_rate": Falling(initial=0.001, factor=1.0, period=1),
        "image_size": None,
        "objective": Ensemble(CrossEntropy()),
    },
}
"""What the papers say, beside the tasks' and methods' own defaults."""
BY_LAUNCH = {"plugins", "scores"}
"""Keys that nobody writes: ``launch`` fills them in."""
RARE = {"trainer"}
"""Keys that few runs have, and whose own guide shows them."""
OWN = ("octa_segmentation", "dr_staging", "time_series", "spectrograms")
"""Tasks whose templates suggest something else than the papers."""


def run_of(task: str) -> RunConfiguration:
    path = CONFIGS / f"run.{task}.yaml"
    return parse_yaml(path.read_bytes(), RunConfiguration, path.name)


def test_every_task_has_a_run() -> None:
    assert {path.name for path in CONFIGS.glob("run.*.yaml")} == {f"run.{task}.yaml" for task in TASK_NAMES}


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_run_is_complete(name: str) -> None:
    run = run_of(name)
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    assert (task.name, run.epochs) == (name, 1)
    assert run.model_fields_set == set(RunConfiguration.model_fields) - BY_LAUNCH - RARE
    assert run.task_options.keys() == type(task.options(run.task_options)).model_fields.keys()
    assert run.method_options.keys() == type(method.options).model_fields.keys()
    assert run.augmentation.keys() == Augmentation.model_fields.keys()
    assert check_record(run.split, SplitPlan, "split") == SplitPlan()
    assert run.wire == PLAIN
    assert run.wire.model_fields_set == set(Wire.model_fields)


@pytest.mark.parametrize("preset", preset_names("segmentation"))
def test_a_preset_for_structures_of_the_fundus_is_a_run(preset: str) -> None:
    run = parse_yaml(
        filled_in(Answers("run", "segmentation", "mean", ["north", "south"], 5, preset)).encode(),
        RunConfiguration,
        preset,
    )
    labels = task_of(run).options(run.task_options).class_names
    assert labels == tuple(settings("segmentation", preset)["task_options"]["labels"])
    assert "cup_to_disc_error" not in run.scores or labels == ("background", "disc", "cup")
    assert filled_in(Answers("run", "segmentation", "mean", ["north"], 5, preset)).count("mean.py says what it is") == 0


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_is_what_the_paper_says(name: str) -> None:
    (preset,) = preset_names(name)
    said = settings(name, preset)
    answers = Answers("run", name, said["method"], ["north", "south"], said["rounds"], preset)
    run = parse_yaml(filled_in(answers).encode(), RunConfiguration, preset)
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options = task.options(run.task_options)
    if name not in OWN:  # such a template says that by default all is as published
        assert said == settings(name, None)
    found = {
        "method": run.method,
        "rounds": run.rounds,
        "batch_size": run.batch_size,
        "learning_rate": run.learning_rate,
        "image_size": getattr(options, "image_size", None),
        "objective": method.objective(1, run.rounds),
    }
    assert found == PAPERS[name]
    new = as_of_now(run.model_copy(update={"task_options": {}, "method_options": {}, "augmentation": {}}))
    usual = task.options(new.task_options)
    assert options.model_copy(update={"image_size": None}) == usual.model_copy(update={"image_size": None})
    by_rounds = {"anneal_steps": None} if name == "dr_staging" else {}  # as the released code does
    assert method.options.model_dump() == open_method(run.method, new.method_options | by_rounds).options.model_dump()
    assert task.augmentation(run.augmentation) == task.augmentation(new.augmentation)


def test_the_settings_of_both_sides_are_read() -> None:
    aggregator = parse_yaml((CONFIGS / "aggregator.yaml").read_bytes(), AggregatorConfiguration, "aggregator.yaml")
    site = parse_yaml((CONFIGS / "site.yaml").read_bytes(), SiteConfiguration, "site.yaml")
    assert site.site in aggregator.sites
    assert site.federation == aggregator.federation
    assert set(aggregator.heldout) == set(site.data) == set(TASK_NAMES)
    assert site.policy == Policy()
    assert tuple(site.policy.methods) == method_names()


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_site_may_take_part_in_either_run(name: str) -> None:
    site = parse_yaml((CONFIGS / "site.yaml").read_bytes(), SiteConfiguration, "site.yaml")
    aggregator = parse_yaml((CONFIGS / "aggregator.yaml").read_bytes(), AggregatorConfiguration, "aggregator.yaml")
    run = run_of(name)
    assert judge(site.policy, run, None).answer == "ask"
    assert set(run.sites) <= set(aggregator.sites)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_study_is_of_runs_that_can_be_played(template: Path, tmp_path: Path) -> None:
    study = parse_yaml(template.read_bytes(), StudyConfiguration, template.name)
    assert study.study.replace("-", "_") == template.stem
    task = task_named(study.task)
    task.options(study.run["task_options"])
    task.augmentation(study.run.get("augmentation", {}))
    check_record(study.run.get("split", {}), SplitPlan, "split")
    # Its ways are checked with a network that needs no published weights.
    lowered = StudyConfiguration.model_validate(small(yaml.safe_load(template.read_text(encoding="utf-8"))))
    for folder in (*lowered.data.values(), *([lowered.out_of_distribution] if lowered.out_of_distribution else [])):
        (tmp_path / folder).mkdir(parents=True)
    turns = lowered.folds.outer * lowered.folds.inner if lowered.folds else 1
    assert len({cell.digest for cell in expand(lowered, tmp_path)}) == len(study.arms) * turns
