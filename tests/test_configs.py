"""The files in configs/ are ready to copy: each is read by the code that reads a user's."""

from __future__ import annotations

from pathlib import Path

from aggregator.configuration import AggregatorConfiguration
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records import RunConfiguration
from shared.learning.data.augmentation import Augmentation
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import method_named
from shared.learning.tasks import task_named
from site_client.configuration import SiteConfiguration

CONFIGS = Path(__file__).parent.parent / "configs"


def test_the_run_is_complete_and_has_the_papers_defaults() -> None:
    path = CONFIGS / "run.octa_segmentation.yaml"
    run = parse_yaml(path.read_bytes(), RunConfiguration, path.name)
    assert task_named(run.task).options(run.task_options).image_size == 304
    assert method_named(run.method).name == "mean"
    assert check_record(run.augmentation, Augmentation, path.name) == Augmentation()
    assert check_record(run.split, SplitPlan, path.name) == SplitPlan()
    assert run.learning_rate == RunConfiguration.model_fields["learning_rate"].default


def test_the_settings_of_both_sides_are_read() -> None:
    aggregator = parse_yaml((CONFIGS / "aggregator.yaml").read_bytes(), AggregatorConfiguration, "aggregator.yaml")
    site = parse_yaml((CONFIGS / "site.yaml").read_bytes(), SiteConfiguration, "site.yaml")
    assert site.site in aggregator.sites
    assert site.federation == aggregator.federation
