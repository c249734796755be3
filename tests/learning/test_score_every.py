"""Rounds that no site scores: what they leave out, and that nothing else is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import ConfigurationError
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.learning.outcome import outcome_by_tables
from shared.learning.requirements import requirements, rows_bound
from shared.learning.schedules import is_scored
from studies.simulation import Outcome, run_rounds
from tests.federation.running import make_data, run_configuration

ROUNDS = 4


def run_of(**changes: object) -> RunConfiguration:
    return run_configuration(**({"rounds": ROUNDS, "tolerance": None} | changes))


def played(run: RunConfiguration, root: Path) -> Outcome:
    make_data(run, root / "data", 12)
    return run_rounds(run, {site: root / "data" / site for site in run.sites}, root / run.run)


def test_every_so_many_rounds_from_the_first_on_and_always_the_closing_one() -> None:
    run = run_of(score_every=3)
    assert [is_scored(run, round_no) for round_no in range(1, 6)] == [True, False, False, True, True]
    assert all(is_scored(run_of(), round_no) for round_no in range(1, 6))


def test_the_key_is_written_only_where_it_is_set() -> None:
    for run, is_there in ((run_of(), False), (run_of(score_every=2), True)):
        content = dump_yaml(run)
        assert (b"score_every: 2\n" in content, b"score_every" in content) == (is_there, is_there)
        assert parse_yaml(content, RunConfiguration, "run.yaml") == run
    with pytest.raises(ValueError, match="score_every"):
        run_of(score_every=0)


def test_models_are_the_same_and_one_that_was_scored_is_chosen(tmp_path: Path) -> None:
    every, all_rounds = played(run_of(run="some", score_every=3), tmp_path), played(run_of(run="all"), tmp_path)
    for round_no, of_sites in every.tables.items():
        for site, table in of_sites.items():
            whole = all_rounds.tables[round_no][site]
            due = whole if round_no in (1, 4, 5) else [row for row in whole if row.split == "train"]
            assert table == due and table
    made = [sorted((tmp_path / "some").rglob("aggregate.safetensors")), sorted((tmp_path / "all").rglob("aggregate.*"))]
    assert len(made[0]) == ROUNDS + 1
    assert [path.read_bytes() for path in made[0]] == [path.read_bytes() for path in made[1]]
    assert set(every.card.validation) == {"0", "3", "4"}
    assert every.card.validation.items() <= all_rounds.card.validation.items()
    best = max(every.card.validation, key=lambda number: (float(every.card.validation[number]), -int(number)))
    assert every.card.chosen_round == int(best)
    outcome = outcome_by_tables(every.run, every.card, None, lambda numbers: every.tables)
    assert outcome is not None and outcome.before is not None and outcome.after is not None


def test_a_private_round_without_scores_still_says_what_it_has_spent(tmp_path: Path) -> None:
    privacy = {"noise_multiplier": 1.0, "delta": 1e-3, "max_grad_norm": 1.0}
    run = run_of(privacy=privacy, score_every=9, augmentation={"copies": 0, "originals": True}, rounds=2)
    outcome = played(run, tmp_path)
    (row,) = outcome.tables[2]["north"]
    assert (row.split, row.loss, set(row.scores)) == ("train", None, {"epsilon"})
    first = next(row.scores["epsilon"] for row in outcome.tables[1]["north"] if row.scores["epsilon"])
    assert first is not None and row.scores["epsilon"] is not None and row.scores["epsilon"] > first


def test_fewer_rows_leave() -> None:
    every, all_rounds = requirements(run_of(score_every=3)), requirements(run_of())
    assert all_rounds.most_rows == {"train": 4, "validation": 9, "test": 5}
    assert max(all_rounds.most_rows.values()) <= rows_bound(run_of(), all_rounds.epochs)
    assert every.most_rows == {"train": 4, "validation": 5, "test": 3}
    assert every.rows(1, 0) == {"train": 1, "validation": 2, "test": 1}


def test_what_is_no_number_of_rounds_is_told() -> None:
    with pytest.raises(ConfigurationError, match="score_every: must be 1 or more"):
        parse_yaml(dump_yaml(run_of()) + b"score_every: 0\n", RunConfiguration, "RUN.yaml")
