"""``rounds: 0``: a model is scored at every site that agrees, and nothing but tables leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from threadpoolctl import threadpool_limits

from aggregator.cli import main as aggregator
from aggregator.model_card import export
from aggregator.preparation import prepare, read_run
from aggregator.report.text import report_text
from aggregator.run_view import view_run
from aggregator.store import RunStore
from shared.audit.verify import lines, verify
from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.run import Start
from shared.exchange.tables import MetricsRow, read_metrics
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from shared.learning.requirements import requirements
from shared.learning.run_checks import check_together
from site_client.division import budget_here
from site_client.offer import describe
from studies import daemons
from tests.audit.replaying import replayed
from tests.federation.in_turns import as_before, in_turns
from tests.federation.running import Setting, run_configuration

TRAINED = run_configuration(run="trained")
SHA256 = "0" * 64


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, Setting]:
    """A run that trained, and one in which another federation scores its exported model on the same images."""
    root = tmp_path_factory.mktemp("scored")
    trained = in_turns(root / "trained", TRAINED)
    weights = root / "weights"
    export(trained.aggregator, RunStore(trained.aggregator, TRAINED.run), weights / "earlier")
    start = Start(name="earlier", sha256=hash_file(weights / "earlier" / names.FINAL_MODEL)[1])
    run = run_configuration(run="scoring", rounds=0, start=start)
    setting = Setting(root / "scoring", run, 20, trained.root / "data", trained.policy)
    of_sites = {site: setting.data_of(site) for site in run.sites}
    with as_before(), threadpool_limits(1):
        daemons.run_exchange(run, of_sites, setting.root, heldout=setting.data_of("heldout"), weights=weights)
    return trained, setting


def rows_of(setting: Setting, site: str, round_no: int) -> list[MetricsRow]:
    ref = MessageRef("update", setting.run.run, round_no)
    table = (setting.folder(site) / ref.path / names.METRICS).read_bytes()
    return [row for row in read_metrics(table, names.METRICS) if row.epoch == 0]


def test_nothing_but_a_table_leaves(scored: tuple[Setting, Setting]) -> None:
    _, setting = scored
    for site in setting.run.sites:
        left = setting.folder(site) / "runs" / "scoring" / "rounds"
        assert [path.name for path in sorted(left.iterdir())] == ["0001"]
        files = {path.name for path in (left / "0001" / "from_site").iterdir()}
        assert files == {names.METRICS, names.MANIFEST}


def test_it_tells_what_the_run_told_that_made_the_model(scored: tuple[Setting, Setting]) -> None:
    trained, setting = scored
    chosen = RunStore(trained.aggregator, "trained").card()
    assert chosen is not None
    for site in setting.run.sites:
        told = {row.split: (row.images, row.scores) for row in rows_of(setting, site, 1)}
        before = {row.split: (row.images, row.scores) for row in rows_of(trained, site, chosen.chosen_round + 1)}
        assert told.keys() == {"validation", "test"} and told == before


def test_outcome_report_and_audit_say_scored(scored: tuple[Setting, Setting]) -> None:
    _, setting = scored
    view = view_run(setting.aggregator, RunStore(setting.aggregator, "scoring"))
    assert view.outcome is not None and view.card is not None and view.outcome.name == "scored"
    assert view.outcome.text.startswith("scored: mean validation dice_mean 0.")
    assert view.outcome.text.endswith(" over 2 sites; nothing was trained")
    assert view.card.reason == "the run trains nothing: its sites score the model that it began with"
    text = report_text(view, "not measured", "dice_mean", "Dice")
    assert "On the sites' own test images Dice is 0." in text and "before training" not in text
    assert "| site  | Dice  | " in text
    for site in setting.run.sites:
        assert list(lines(verify(LocalFolder(setting.folder(site))))) == []
    steps = {step.what: step.outcome for step in replayed(setting.root / "folders", "scoring")}
    assert steps["choice of the final model"] == "same" and "differs" not in steps.values()


def test_a_site_sees_what_it_agrees_to_and_counts_it(scored: tuple[Setting, Setting]) -> None:
    _, setting = scored
    told = describe(setting.site("north"), "scoring")
    assert "leaves once:        metrics.csv; no model, for nothing is trained" in told
    assert "model.safetensors, " not in told.replace("global.safetensors", "")
    assert requirements(setting.run).most_rows == {"train": 0, "validation": 1, "test": 1}
    budget = budget_here(setting.site("north"))
    assert budget is not None
    assert {name: budget.runs["scoring"].rows[name] for name in ("validation", "test")} == {"validation": 1, "test": 1}


def test_the_site_has_the_model_ready_for_use(scored: tuple[Setting, Setting]) -> None:
    trained, setting = scored
    ours, first = (each.site("north") / "final" / each.run.run / names.FINAL_MODEL for each in (setting, trained))
    assert ours.read_bytes() == first.read_bytes()


def test_validate_says_that_nothing_is_trained(scored: tuple[Setting, Setting]) -> None:
    _, setting = scored
    with as_before():
        said = [finding.text for finding in prepare(setting.aggregator, setting.aggregator / "RUN.yaml").begun.remarks]
    assert "rounds: 0; sites score the model, and nothing is trained" in said
    assert "tolerance: rounds: 0 trains nothing, so that no model is compared with it" in said
    assert not any("in round 1" in text or "enters the aggregate" in text for text in said)
    assert any(text.startswith("start: sites score the model of earlier, SHA-256 ") for text in said)


def test_new_run_writes_one(scored: tuple[Setting, Setting], tmp_path: Path) -> None:
    trained, _ = scored
    written = tmp_path / "RUN.yaml"
    options = ("--rounds", "0", "--start", "trained", "--method", "mean", "--run", "again", "--defaults")
    asked = ["new-run", "--work", str(trained.aggregator), *options, "--output", str(written)]
    said = CliRunner().invoke(aggregator, asked)
    assert said.exit_code == 0, said.output
    run = read_run(written)
    check_together(run)
    assert (run.rounds, run.start and run.start.name, run.support) == (0, "trained", True)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"start": None}, "rounds: 0 trains nothing, and scores the model that start names; name one"),
        ({"method": "fedbn"}, "rounds: 0 scores a whole model, and with fedbn part of it stays at the sites"),
        ({"baseline": "local"}, "baseline: rounds: 0 trains nothing; leave it out"),
        ({"stop_after": {"rounds": 2}}, "stop_after: rounds: 0 trains nothing; leave it out"),
        ({"method_options": {"fine_tuning_epochs": 1}}, "rounds: 0 trains nothing; set fine_tuning_epochs to 0"),
    ],
)
def test_what_a_run_without_training_cannot_have(settings: dict[str, object], sentence: str) -> None:
    start = {"start": {"name": "earlier", "sha256": SHA256}}
    with pytest.raises(ConfigurationError, match=sentence):
        check_together(run_configuration(**{"rounds": 0} | start | settings))
