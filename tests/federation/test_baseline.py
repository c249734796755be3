"""``baseline: local``: each site trains a model alone beside the federation's, and only its scores leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aggregator.report.before_after import gained
from aggregator.report.text import report_text
from aggregator.run_view import view_run
from aggregator.store import RunStore
from shared.audit.verify import lines, verify
from shared.errors import ConfigurationError, RejectedError
from shared.exchange.names import METRICS, STATUS, MessageRef
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.tables import MetricsRow, is_support, read_metrics, require_of_round, write_metrics
from shared.folder.local import LocalFolder
from shared.learning.gain import gains
from shared.learning.model_files import save_tensors
from shared.learning.requirements import requirements
from shared.learning.run_checks import check_together
from shared.learning.schedules import round_configuration
from site_client.offer import describe
from site_client.store import alone_path
from site_client.train import Files
from studies.simulation import open_sites, run_rounds
from tests.audit.replaying import not_same, replayed
from tests.federation.in_turns import as_before, in_turns
from tests.federation.running import WAIT_S, Federation, Setting, make_data, run_configuration, staging_run
from tests.federation.upgraded import another_version

ROUNDS = 2
ALL_ROUNDS = range(1, ROUNDS + 2)
WITH = run_configuration(rounds=ROUNDS, baseline="local")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return in_turns(tmp_path_factory.mktemp("with"), WITH)


def table_of(setting: Setting, site: str, round_no: int) -> list[MetricsRow]:
    ref = MessageRef("update", setting.run.run, round_no)
    return read_metrics((setting.folder(site) / ref.path / METRICS).read_bytes(), METRICS)


def alone_rows(table: list[MetricsRow]) -> list[MetricsRow]:
    return [row for row in table if row.split.endswith("_alone")]


def known(row: MetricsRow) -> dict[str, float]:
    """Its scores, without the support that the closing round tells of the federation's own alone."""
    return {name: value for name, value in row.scores.items() if value is not None and not is_support(name)}


def test_the_federation_comes_to_the_same_bytes(ended: Setting, tmp_path: Path) -> None:
    without = in_turns(tmp_path, WITH.model_copy(update={"baseline": None}))
    assert ended.final_sha256() == without.final_sha256()
    for site in WITH.sites:
        for round_no in range(1, ROUNDS + 2):
            table = table_of(ended, site, round_no)
            assert [row for row in table if row not in alone_rows(table)] == table_of(without, site, round_no)


def test_what_is_told_is_what_a_site_alone_comes_to(ended: Setting, tmp_path: Path) -> None:
    alone = WITH.model_copy(update={"method": "single_site", "method_options": {}, "baseline": None})
    with as_before():
        torch.set_num_threads(1)  # as the daemons: sums are rounded otherwise with more
        played = run_rounds(alone, {site: ended.data_of(site) for site in WITH.sites}, tmp_path)
    for site in WITH.sites:
        assert alone_rows(table_of(ended, site, 1)) == [], "both begin with the same model"
        for round_no in range(2, ROUNDS + 2):
            told = {row.over: known(row) for row in alone_rows(table_of(ended, site, round_no))}
            due = {row.split: known(row) for row in played.tables[round_no][site] if row.epoch == 0}
            assert told.keys() == {"validation", "test"} and told == due
            assert all(row.epoch == 0 for row in alone_rows(table_of(ended, site, round_no)))


@pytest.mark.parametrize(
    "run, common",
    [
        (staging_run(), {"objective": "evidential"}),
        (
            run_configuration(method="fedprox", rounds=2, method_options={"keep_optimizer": True}, tolerance=None),
            {"keep_optimizer": True},
        ),
    ],
    ids=["a head of its own", "momenta of its own"],
)
def test_what_stays_at_a_site_and_an_optimizer_s_memory_are_its_own(
    run: RunConfiguration, common: dict[str, object], tmp_path: Path
) -> None:
    run = run.model_copy(update={"tolerance": None, "baseline": "local"})
    make_data(run, tmp_path / "data", 12)
    data = {site: tmp_path / "data" / site for site in run.sites}
    alone = run.model_copy(update={"method": "single_site", "method_options": common, "baseline": None})
    beside, by_itself = run_rounds(run, data, tmp_path / "beside"), run_rounds(alone, data, tmp_path / "alone")
    for round_no in range(2, run.rounds + 2):
        for site in run.sites:
            told = {row.over: row.scores for row in alone_rows(beside.tables[round_no][site])}
            due = {row.split: row.scores for row in by_itself.tables[round_no][site] if row.epoch == 0}
            assert told == due and told


def test_only_scores_leave_and_the_folder_verifies_and_replays(ended: Setting) -> None:
    for site in WITH.sites:
        assert list(lines(verify(LocalFolder(ended.folder(site))))) == []
        kept = list((ended.site(site) / "alone" / WITH.run).glob("*"))
        assert [path.name for path in kept] == [f"{ROUNDS:04d}.safetensors"]
        digest = kept[0].read_bytes()
        assert all(path.read_bytes() != digest for path in ended.folder(site).rglob("*.safetensors"))
    steps = not_same(replayed(ended.root / "folders", WITH.run))
    assert {step.outcome for step in steps} <= {"not replayable"}


def test_daemons_that_are_killed_and_come_back_as_another_version_come_to_the_same_bytes(
    ended: Setting, tmp_path: Path
) -> None:
    """North dies in every round, the aggregator in the first: what they say of their version changes, and no result."""
    with Federation(tmp_path, WITH) as federation:
        federation.start_site("south")
        aggregator, killed = federation.start_aggregator(), federation.start_site("north")
        for round_no, number in enumerate(("0.2.0", "1.0.0"), 1):
            made = alone_path(federation.site("north"), WITH.run, round_no)
            federation.wait_until(made.exists, f"the model trained alone in round {round_no}")
            federation.runner = ("tests.federation.upgraded", str(another_version(tmp_path, number)))
            for daemon in (killed, aggregator)[: 3 - round_no]:
                daemon.kill()
                daemon.wait()
            killed = federation.start_site("north")
            aggregator = federation.start_aggregator() if round_no == 1 else aggregator
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.stop_all()
        assert federation.final_sha256() == ended.final_sha256()
        assert b'"software":"dropfed 1.0.0"' in (federation.folder("north") / STATUS).read_bytes()
        assert b"software" not in (federation.folder("south") / STATUS).read_bytes()
        assert list(lines(verify(LocalFolder(federation.folder("north"))))) == []
        for site in WITH.sites:
            assert [table_of(federation, site, n) for n in ALL_ROUNDS] == [table_of(ended, site, n) for n in ALL_ROUNDS]
            last = [alone_path(each.site(site), WITH.run, ROUNDS).read_bytes() for each in (federation, ended)]
            assert last[0] == last[1]


def test_a_site_that_was_not_there_in_the_first_round_scores_none(tmp_path: Path) -> None:
    make_data(WITH, tmp_path / "data", 12)
    network, sites = open_sites(WITH, {site: tmp_path / "data" / site for site in WITH.sites}, tmp_path / "home")
    trainer, dataset = sites["north"].trainer, sites["north"].dataset
    received, start = tmp_path / "received.safetensors", tmp_path / "kept.safetensors"
    save_tensors(network, trainer.sharing.shared, received)
    files = Files(received, {}, None, None, None, tmp_path / "trained", {}, tmp_path / "kept", None, start)
    worked = trainer.work(dataset, round_configuration(WITH, 2, "north"), files, lambda percent: None)
    assert alone_rows(read_metrics(worked.tables[METRICS], METRICS)) == [] and not start.exists()


def test_the_report_begins_with_what_each_hospital_gains(ended: Setting) -> None:
    view = view_run(ended.aggregator, RunStore(ended.aggregator, WITH.run))
    assert view.card is not None and view.outcome is not None and set(view.gains) == set(WITH.sites)
    tables = {n: {site: table_of(ended, site, n) for site in WITH.sites} for n in range(1, ROUNDS + 2)}
    for site, gain in gains(tables, view.card.chosen_round, "dice_mean").items():
        assert gain == view.gains[site]
        rows = {row.split: row.scores["dice_mean"] for row in tables[gain.alone_round + 1][site] if row.epoch == 0}
        others = [row.scores["dice_mean"] for n in tables for row in tables[n][site] if row.split == "validation_alone"]
        assert rows["test_alone"] == gain.alone and rows["validation_alone"] == max(filter(None, others))
    better = sum(gain.difference > 0 for gain in view.gains.values())
    assert f"with the federation {better} of 2 sites do" in view.outcome.text
    shown = gained(view, "dice_mean", "Dice")
    assert shown is not None and [row[0] for row in shown.rows] == list(WITH.sites)
    text = report_text(view, "not measured", "dice_mean", "Dice").splitlines()
    assert f"with the federation {better} of 2 sites do" in text[2] and text[4].startswith("Dice is lowest at ")
    assert text[6].startswith("What each hospital gains: Dice on its own test images:")


def test_a_site_sees_it_before_it_agrees(ended: Setting) -> None:
    told = describe(ended.site("north"), WITH.run)
    assert "trains alone too:   a model on this site's images only" in told and "never leaves" in told
    required, plain = requirements(WITH), requirements(WITH.model_copy(update={"baseline": None}))
    for split in ("validation", "test"):
        assert required.most_rows[split] == plain.most_rows[split] + ROUNDS
    assert required.memory_bytes > plain.memory_bytes


def test_the_key_is_written_only_where_it_is_set() -> None:
    for run, is_there in ((run_configuration(), False), (WITH, True)):
        content = dump_yaml(run)
        assert (b"baseline: local\n" in content, b"baseline" in content) == (is_there, is_there)
        assert parse_yaml(content, RunConfiguration, "run.yaml") == run


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"method": "single_site"}, "baseline: single_site exchanges nothing, so there is no federation to compare"),
        ({"method": "sequential"}, "baseline: a site alone trains in as many rounds as the federation, and not all"),
        ({"sites_per_round": 1}, "baseline: a site alone trains in as many rounds as the federation, and not all"),
        (
            {"privacy": {"noise_multiplier": 1.0, "delta": 1e-3, "max_grad_norm": 1.0}},
            "baseline: a model trained alone has no noise, so its scores would tell more",
        ),
        ({"trainer": {"name": "nnunet"}}, "baseline: dropfed cannot train what a program trains"),
    ],
)
def test_where_it_cannot_be_had(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check_together(run_configuration(quorum=1, baseline="local", **settings))


def test_the_simulator_refuses_it_beside_a_reference(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="baseline: single_site exchanges nothing"):
        run_rounds(run_configuration(method="single_site", baseline="local"), {}, tmp_path)


def test_tables_with_scores_alone_where_there_can_be_none_are_refused() -> None:
    row = MetricsRow(2, 0, "test_alone", "20", 0.1, 0.5, {"dice_mean": 0.5})

    def check(row: MetricsRow, *, has_baseline: bool = True) -> None:
        rows = read_metrics(write_metrics([row]), METRICS)
        require_of_round(rows, METRICS, round_no=row.round_no, epochs=1, own={}, has_baseline=has_baseline)

    check(row)
    with pytest.raises(RejectedError, match="the run has no baseline"):
        check(row, has_baseline=False)
    with pytest.raises(RejectedError, match="trained alone where there is none"):
        check(replace(row, round_no=1))
