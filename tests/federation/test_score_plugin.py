"""A score of somebody's own: a wheel provides it, a run of any task names it, and it leaves a site within its range."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from aggregator.cli import main
from aggregator.preparation import in_full
from aggregator.setup import initialise
from shared.audit.verify import verify
from shared.errors import ConfigurationError
from shared.exchange.names import AGGREGATOR, METRICS, MessageRef
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import Plugin, Range, RunConfiguration
from shared.folder.local import LocalFolder
from shared.learning import plugins
from shared.learning.measures import task_of
from shared.learning.objectives import IGNORED, CrossEntropy
from site_client.offer import describe
from site_client.policy import judge
from studies.configuration import StudyConfiguration
from studies.matrix import expand
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, own_logins, run_configuration, staging_run
from tests.installed_wheel import install_wheel

MODULE = """
import numpy as np
import dropfed

def compute(probabilities, truth):
    return float(((probabilities - np.eye(probabilities.shape[1])[truth]) ** 2).sum(axis=1).mean())

def rare(probabilities, truth):
    return None if (truth != 1).all() else 1.0

brier = dropfed.Measure(compute, dropfed.Range(lowest=0.0, highest=2.0))
too_high = dropfed.Measure(lambda probabilities, truth: 3.0, dropfed.Range(lowest=0.0, highest=2.0))
of_one_class = dropfed.Measure(rare, dropfed.Range())
"""
ENTRY_POINTS = """[dropfed.scores]
brier = brier:brier
too_high = brier:too_high
of_one_class = brier:of_one_class
no_measure = brier:compute
auroc = brier:brier
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """The wheel as it lies once it is installed, for this process and those that it starts; it is not permitted yet."""
    install_wheel(tmp_path / "installed", "brier", {"brier/__init__.py": MODULE}, ENTRY_POINTS, monkeypatch)
    yield plugins.described(plugins.distributions()["dropfed-brier"])
    sys.modules.pop("brier", None)


def permit(wheel: Plugin) -> None:
    plugins.permit([wheel], {wheel.name: wheel.sha256}, "a test")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_run_of_a_built_in_task_tells_it(wheel: Plugin, tmp_path: Path) -> None:
    asked = run_configuration(sites=["north"], quorum=1, scores={"brier": {}})
    policy = POLICY.model_copy(update={"plugins": {wheel.name: wheel.sha256}})
    with FederationInProcess(tmp_path, asked, policy=policy) as federation:
        federation.set_up(own_logins(asked.sites, f"http://127.0.0.1:{federation.server.port}"))
        federation.change(federation.aggregator / "aggregator.yaml", plugins={wheel.name: wheel.sha256})
        federation.run_to_the_end()
    folder = federation.folder("north")
    offered = parse_yaml((folder / "runs/test-run/offer/run.yaml").read_bytes(), RunConfiguration, "run.yaml")
    assert (offered.plugins, offered.scores) == ([wheel], {"brier": Range(lowest=0.0, highest=2.0)})
    assert "its own scores:     brier (from 0 to 2)" in describe(federation.site("north"), "test-run")
    header, *rows = (folder / MessageRef("update", "test-run", 1).path / METRICS).read_text().splitlines()
    at = header.split(",").index("brier")
    assert len(rows) > 2 and all(0 < float(row.split(",")[at]) < 2 for row in rows)
    assert not verify(LocalFolder(folder)).findings
    # Whoever has the model can have it measured by that score, too; nothing of the wheel is imported unasked.
    exported, images = tmp_path / "exported", federation.data_of("heldout")
    aggregator("export", "test-run", "--work", federation.aggregator, "--output", exported)
    told = aggregator("evaluate", images, "--model", exported, "--json")
    assert "warning: brier: not reported; install the plug-in's wheel, and pass --with-plugins to run it" in told.stderr
    assert "brier" not in json.loads(told.stdout) and "brier" not in sys.modules
    told = aggregator("evaluate", images, "--model", exported, "--json", "--with-plugins")
    assert 0 < json.loads(told.stdout)["brier"] < 2


def aggregator(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_a_study_whose_scores_name_it_has_its_runs_tell_it(wheel: Plugin, tmp_path: Path) -> None:
    permit(wheel)
    (tmp_path / "north").mkdir()
    settings = {"rounds": 1, "task_options": {"image_size": 32, "widths": [4, 8]}, "tolerance": None}
    values = {"study": "small", "task": "octa_segmentation", "data": {"north": "north"}, "run": settings}
    told = {"arms": {"mean": {"method": "mean"}}, "scores": ["dice_mean", "brier"]}
    (cell,) = expand(StudyConfiguration.model_validate(values | told), tmp_path)
    assert cell.configuration.run.scores == {"brier": Range()}
    with pytest.raises(ConfigurationError, match="scores: there is no nowhere"):
        expand(StudyConfiguration.model_validate(values | told | {"scores": ["nowhere"]}), tmp_path)


@pytest.fixture
def twin(wheel: Plugin, tmp_path: Path) -> Iterator[Path]:
    """The file of a method that another installed wheel brings."""
    about = tmp_path / "installed" / "dropfed_twin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: dropfed-twin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[dropfed.methods]\ntwin = twin:Twin\n")
    (about / "RECORD").write_text("twin.py,,\n")
    module = tmp_path / "installed" / "twin.py"
    module.write_text("from shared.learning.methods.mean import Mean\n\nclass Twin(Mean):\n    name = 'twin'\n")
    yield module
    sys.modules.pop("twin", None)


def test_a_method_of_a_wheel_is_an_arm_of_a_study(twin: Path, tmp_path: Path) -> None:
    """Its cells are others once the wheel has changed."""
    (tmp_path / "north").mkdir()
    settings = {"rounds": 1, "task_options": {"image_size": 32, "widths": [4, 8]}, "tolerance": None}
    values = {"study": "small", "task": "octa_segmentation", "data": {"north": "north"}, "run": settings}
    study = StudyConfiguration.model_validate(values | {"arms": {"twin": {"method": "twin"}}, "scores": ["dice_mean"]})
    plugins.permit_installed()
    (cell,) = expand(study, tmp_path)
    installed = plugins.described(plugins.distributions()["dropfed-twin"])
    assert cell.configuration.methods["dropfed-twin"] == installed.sha256
    twin.write_text(twin.read_text() + "# another\n")
    assert expand(study, tmp_path)[0].digest != cell.digest


def test_of_a_file_that_is_no_run_nothing_is_said_of_a_wheel(twin: Path, tmp_path: Path) -> None:
    """Whether its method is allowed, and takes its options, is told once the file can be read."""
    work, run = tmp_path / "aggregator", tmp_path / "RUN.yaml"
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    run.write_text("run: r\ntask: octa_segmentation\nmethod: twin\nsites: [north]\nrounds: 1\nquorun: 1\n")
    result = CliRunner().invoke(main, ["validate", str(run), "--work", str(work)])
    assert result.exit_code != 0 and "quorun: is not a known key" in result.output and "twin" not in result.output


def test_a_wheel_that_comes_changes_or_goes_is_noticed_at_once(wheel: Plugin, tmp_path: Path) -> None:
    """Though the lists of installed wheels are read once, as long as they stay the same."""
    assert plugins.provided("scores").keys() == {"brier", "too_high", "of_one_class", "no_measure", "auroc"}
    assert plugins.distributions().keys() == {"dropfed-brier"}
    other = tmp_path / "installed" / "dropfed_other-1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: dropfed-other\nVersion: 1\n")
    assert plugins.distributions().keys() == {"dropfed-brier"}
    (other / "entry_points.txt").write_text("[dropfed.methods]\nother = other:method\n")
    assert plugins.distributions().keys() == {"dropfed-brier", "dropfed-other"}
    assert plugins.wheel_behind("methods", "other") == "dropfed-other"
    shutil.rmtree(other)
    assert plugins.distributions().keys() == {"dropfed-brier"}
    assert plugins.provided("methods") == {}


def test_a_site_agrees_to_it_only_if_its_people_allow_the_wheel(wheel: Plugin) -> None:
    run = run_configuration(scores={"brier": {"lowest": 0.0, "highest": 2.0}}, plugins=[wheel])
    allowing = POLICY.model_copy(update={"plugins": {wheel.name: wheel.sha256}})
    assert judge(allowing, run, decision=True).answer == "yes"
    declined = judge(POLICY, run, decision=True)
    assert declined.answer == "no" and "policy: plugins, does not name it" in declined.reason
    assert "brier" not in sys.modules


@pytest.mark.parametrize(
    ("scores", "is_permitted", "said"),
    [
        ({"brier": {}}, False, "score: brier is of the plug-in dropfed-brier, which is not allowed here"),
        ({"brier": {"lowest": 0.5}}, True, "scores: brier lies elsewhere, as its wheel says; write `brier: {}`"),
        ({"nowhere": {}}, True, "scores: there is no nowhere, here or in an installed wheel; there are: auroc, brier"),
        ({"no_measure": {}}, True, r"scores: what its wheel provides as no_measure is no dropfed\.Measure"),
        ({"auroc": {}}, True, "scores: auroc is a score of dropfed's own"),
    ],
)
def test_what_is_no_score_is_refused_in_a_sentence(
    wheel: Plugin, scores: dict[str, object], is_permitted: bool, said: str
) -> None:
    if is_permitted:
        permit(wheel)
    with pytest.raises(ConfigurationError, match=said):
        task_of(run_configuration(scores=scores))


@pytest.mark.parametrize("name", ["images", "loss", "epoch"])
def test_no_score_is_called_as_a_column_that_every_table_has(name: str) -> None:
    content = dump_yaml(run_configuration()) + f"scores: {{{name}: {{}}}}\n".encode()
    with pytest.raises(ConfigurationError, match=f"scores: {name} is a column that every table has"):
        parse_yaml(content, RunConfiguration, "RUN.yaml")


def test_an_offer_tells_its_range(wheel: Plugin) -> None:
    permit(wheel)
    told = in_full(run_configuration(scores={"brier": {}, "of_one_class": {}})).scores
    assert told == {"brier": Range(lowest=0.0, highest=2.0), "of_one_class": Range()}


def test_what_some_images_lack_is_told_as_over_one(wheel: Plugin) -> None:
    permit(wheel)
    scoring = task_of(run_configuration(scores={"brier": {}, "of_one_class": {}})).scoring(CrossEntropy())
    logits, masks = torch.zeros(3, 2, 4, 4), torch.zeros(3, 4, 4, dtype=torch.int64)
    masks[0, 0, 0] = 1
    masks[1, 1:] = IGNORED
    found = scoring.scores([scoring.look(logits, masks)])
    assert (found["brier"].value, found["brier"].images) == (0.5, 3)
    assert (found["of_one_class"].value, found["of_one_class"].images) == (1.0, 1)


def test_of_whole_images_it_is_over_all_of_them_at_once(wheel: Plugin) -> None:
    permit(wheel)
    scoring = task_of(staging_run(scores={"brier": {}})).scoring(CrossEntropy())
    sure, unsure = torch.tensor([[40.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    looks = [scoring.look(logits, torch.tensor([1])) for logits in (sure, unsure)]
    score = scoring.scores(looks)["brier"]
    assert np.isclose(score.value or 0.0, (2 + 0.5) / 2) and score.images == 2
