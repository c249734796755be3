"""A run that begins with an earlier one's model: each site compares the two on the same images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aggregator.cli import main as aggregator
from aggregator.model_card import export
from aggregator.preparation import prepare
from aggregator.report.before_after import against_last
from aggregator.report.document import document
from aggregator.report.text import report_text
from aggregator.run_view import Row, view_run
from aggregator.same_images import same_test_images
from aggregator.site import open_ledger
from aggregator.store import RunStore
from shared.audit.verify import lines, verify
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RunConfiguration, Start
from shared.exchange.tables import MetricsRow, is_support, read_metrics
from shared.folder.durable import hash_file, write_file
from shared.folder.local import LocalFolder
from shared.learning.metrics import Score
from shared.learning.requirements import requirements
from shared.learning.run_checks import check_together
from shared.learning.standard_error import Jackknife
from shared.learning.tasks.contract import Scoring
from site_client.offer import describe
from site_client.store import first_path
from tests.audit.replaying import not_same, replayed
from tests.federation.in_turns import in_turns
from tests.federation.running import Setting, run_configuration, staging_run
from tests.test_largest_site import enrolled

FIRST = run_configuration(run="first", support=True, method="fedavg", tolerance=None)
DIFFERENCE, ERROR = "dice_difference", "dice_difference_error"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A run that has ended, and the next one, which began with its model."""
    first = in_turns(tmp_path_factory.mktemp("paired"), FIRST)
    sha256 = hash_file(RunStore(first.aggregator, "first").final_model)[1]
    start = Start(name="first", sha256=sha256)
    run = FIRST.model_copy(update={"run": "second", "rounds": 2, "paired": True, "start": start})
    return in_turns(first.root, run, data=first.data)


def row_at(setting: Setting, site: str, round_no: int) -> MetricsRow:
    ref = MessageRef("update", setting.run.run, round_no)
    table = read_metrics((setting.folder(site) / ref.path / names.METRICS).read_bytes(), names.METRICS)
    return next(row for row in table if (row.epoch, row.split) == (0, "test"))


def test_each_round_tells_the_difference_to_the_model_that_the_run_began_with(second: Setting) -> None:
    for site in second.run.sites:
        before = row_at(second, site, 1).scores
        assert before["dice_mean"] is not None
        assert DIFFERENCE not in before, "the first round has that very model"
        for round_no in (2, 3):
            row = row_at(second, site, round_no).scores
            assert row["dice_mean"] is not None and row[DIFFERENCE] is not None and row[ERROR] is not None
            assert row[DIFFERENCE] == pytest.approx(row["dice_mean"] - before["dice_mean"], abs=2e-4)
            assert row["dice_error"] is not None and 0 < row[ERROR] < 2 * row["dice_error"]


def test_nothing_but_two_numbers_leaves_besides_and_the_folder_holds(second: Setting) -> None:
    assert all(map(is_support, (DIFFERENCE, ERROR)))
    for site in second.run.sites:
        columns = row_at(second, site, 3).scores.keys() - row_at(second, site, 1).scores.keys()
        assert columns == {DIFFERENCE, ERROR}
        assert list(lines(verify(LocalFolder(second.folder(site))))) == []
        assert "compares:           each model with the one that training began" in describe(
            second.site(site), "second"
        )
        assert first_path(second.site(site), "second").exists()
    assert not not_same(replayed(second.root / "folders", "second"))


def test_report_and_card_say_it_beside_the_images(second: Setting, tmp_path: Path) -> None:
    store = RunStore(second.aggregator, "second")
    view = view_run(second.aggregator, store)
    assert view.test_images == dict.fromkeys(second.run.sites, "the same")
    if not view.chosen_round:
        pytest.fail("the model that training began with was chosen, so nothing is compared")
    table = against_last(view, "dice_mean", "Dice")
    assert table is not None and table.header[-1] == "in first" and table.rows[0][-1] == "the same"
    found = view.receivers(view.chosen_round)["north"].test
    assert found is not None
    numbers = found.difference("dice_mean")
    assert numbers is not None and numbers[1] is not None
    interval = f"{numbers[1][0]:+.3f} to {numbers[1][1]:+.3f}"
    text = report_text(view, "not asked", "dice_mean", "Dice")
    assert "Dice against the model of first:" in text and interval in text
    assert document(view, "not asked")["test_images"]["north"] == "the same"
    export(second.aggregator, store, tmp_path / "export")
    card = (tmp_path / "export" / "model-card.md").read_text()
    assert f"; against first {numbers[0]:+.3f}, {interval} by ± 1.96 standard errors" in card


def test_other_test_images_are_told_and_warned_of(second: Setting, tmp_path: Path) -> None:
    run = second.run.model_copy(update={"run": "third", "seed": 8})
    ledgers = {"north": open_ledger(second.aggregator / "sites" / "north")}
    enrolled(tmp_path, "east")
    ledgers["east"] = open_ledger(tmp_path / "sites" / "east")
    found = {site: ledger for site, ledger in ledgers.items() if ledger is not None}
    renamed = second.run.model_copy(update={"seed": 8})
    assert same_test_images(second.aggregator, renamed, found) == {"north": "others", "east": "new"}
    elsewhere = run.model_copy(update={"start": Start(name="export", sha256="0" * 64)})
    assert same_test_images(second.aggregator, elsewhere, found) == {}
    path = second.root / "RUN.yaml"
    write_file(path, dump_yaml(run))
    told = [finding.text for finding in prepare(second.aggregator, path).begun.remarks if finding.grade == "warning"]
    assert any(
        text.startswith("paired: seed or split is not that of first, whose model may so have been") for text in told
    )
    view = view_run(second.aggregator, RunStore(second.aggregator, "second"))
    others = view.__class__(**{**vars(view), "test_images": {"north": "others"}})
    table = against_last(others, "dice_mean", "Dice")
    assert table is not None and [row[-1] for row in table.rows] == ["others", "not known"]
    assert any("may have been trained on some of these, which favours it" in note for note in table.notes)


def test_new_run_tests_on_the_same_images_and_compares(second: Setting, tmp_path: Path) -> None:
    output = tmp_path / "RUN.yaml"
    flags = ["--work", second.aggregator, "--start", "first", "--method", "fedavg", "--rounds", 3, "--run", "next"]
    flags += ["--defaults", "--output", output]
    result = CliRunner().invoke(aggregator, ["new-run", *map(str, flags)])
    assert result.exit_code == 0, result.output
    run = parse_yaml(output.read_bytes(), RunConfiguration, output.name)
    assert (run.seed, run.paired) == (FIRST.seed, True)
    assert {name: run.split[name] for name in FIRST.split} == FIRST.split


def test_a_run_without_it_says_nothing_of_it() -> None:
    assert b"paired" not in dump_yaml(FIRST)
    paired = requirements(FIRST.model_copy(update={"paired": True})).most_rows["test"]
    assert paired == requirements(FIRST).most_rows["test"] + FIRST.rounds


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (FIRST, "paired: compares what training comes to with the model of start"),
        (staging_run(method="fedavg"), "here not all receive them whole"),
        (run_configuration(method="fedbn"), "here not all receive them whole"),
        (run_configuration(quorum=1, sites_per_round=1), "here not all receive them whole"),
    ],
)
def test_what_cannot_be_compared_is_refused(run: RunConfiguration, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        check_together(run.model_copy(update={"paired": True}))


class Shares(Scoring[int]):
    """Scores by the share of looks that are 1."""

    def look(self, logits: object, targets: object) -> int:
        raise NotImplementedError

    def scores(self, looks: Sequence[int]) -> dict[str, Score]:
        return {"accuracy": Score(float(np.mean(looks)), len(looks))}


def test_the_error_is_of_the_difference_on_the_same_images() -> None:
    jackknife = Jackknife("accuracy", [f"p{number}" for number in range(200)])
    right = [int(number % 2 == 0) for number in range(200)]
    better = [1 if number < 20 else look for number, look in enumerate(right)]  # 10 more are right
    same, found = (jackknife.error_of_difference(Shares(), of, right) for of in (right, better))
    assert same == 0
    assert found == pytest.approx((0.05 * 0.95 / 200) ** 0.5, rel=0.25), "of the 10 images alone"
    assert found < 0.6 * (jackknife.error(Shares(), right) or 0)


def test_an_interval_is_told_where_both_numbers_are() -> None:
    found = Row("10", 1.0, {DIFFERENCE: 0.02, ERROR: 0.01}).difference("dice_mean")
    assert found is not None and (found[0], found[1]) == (0.02, pytest.approx((0.0004, 0.0396)))
    assert Row("10", 1.0, {DIFFERENCE: 0.0, ERROR: 0.0}).difference("dice_mean") == (0.0, None)
    assert Row("10", 1.0, {DIFFERENCE: 0.02, ERROR: None}).difference("dice_mean") is None


@pytest.mark.parametrize("cells", ["1.5,0.1", "0.5,-0.1"])
def test_a_difference_of_scores_is_one(cells: str) -> None:
    head = f"round,epoch,split,images,learning_rate,loss,{DIFFERENCE},{ERROR}\n"
    with pytest.raises(RejectedError, match="range"):
        read_metrics(f"{head}2,0,test,10,0.1,0.5,{cells}\n".encode(), names.METRICS)
