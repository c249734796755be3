"""Each arm of a study takes the learning rate that does best on validation images in shorter runs."""

import csv
import json

import pytest
import yaml

from shared.errors import ConfigurationError
from shared.folder.lock import work_lock
from studies.configuration import read_study
from studies.matrix import expand
from studies.play import play_study
from studies.results import RESULT, folder_of, result_of
from studies.tuning import Trials, trials, with_rates
from tests.learning.small_sites import write_small

RATES = [0.0001, 0.05]
STUDY = {
    "study": "tuned",
    "task": "dr_staging",
    "data": {"north": "data/north", "south": "data/south"},
    "run": {
        "rounds": 4,
        "learning_rate": {"factor": 0.5, "period": 9},
        "task_options": {"encoder": "plain", "weights": "random", "image_size": 32},
    },
    "arms": {"internal": {"method": "single_site"}, "FedAvg": {"method": "fedavg", "rounds": 2}},
    "tune": {"learning_rates": RATES},
    "seeds": [3, 4],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("tuning")
    for number, site in enumerate(STUDY["data"]):
        write_small("dr_staging", root / "data" / site, images=24, size=32, seed=number, site=number, grades=4)
    return root


def written(root, **changes):
    path = root / "tuned.yaml"
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False))
    return path


def test_short_runs_are_of_the_first_seed_and_of_a_third_of_the_rounds(root):
    study = read_study(written(root))
    found = trials(study, study.tune, root)
    assert {arm: list(by_rate) for arm, by_rate in found.cells.items()} == dict.fromkeys(STUDY["arms"], RATES)
    for arm, rounds in (("internal", 2), ("FedAvg", 1)):
        for rate, cell in found.cells[arm].items():
            run = cell.configuration.run
            assert (run.seed, run.rounds, run.learning_rate.initial) == (3, rounds, rate)
            assert (run.learning_rate.factor, run.learning_rate.period) == (0.5, 9)
    study = read_study(written(root, tune={"learning_rates": RATES, "rounds": 3}))
    assert {cell.configuration.run.rounds for cell in trials(study, study.tune, root).all} == {3}


def test_of_a_cross_validation_the_first_turn_is_tried(root):
    study = read_study(written(root, folds={"outer": 3, "inner": 1}))
    found = trials(study, study.tune, root)
    assert len(found.all) == len(STUDY["arms"]) * len(RATES)
    assert {cell.turn.outer for cell in found.all} == {0}


def test_a_study_takes_the_best_rate_of_each_arm_and_tables_all(root, capsys):
    path = written(root, seeds=[3])
    assert play_study(path, None, "local", 2)
    said = capsys.readouterr().out
    assert "tuned, choosing learning rates: 4 cells, 0 of them finished before" in said
    assert "tuned: 2 cells, 0 of them finished before" in said
    study, home = read_study(path), root / "tuned"
    tried = trials(study, study.tune, root)
    taken = {}
    for arm, by_rate in tried.cells.items():
        scores = {}
        for rate, cell in by_rate.items():
            rows = result_of(home, cell)["rows"]
            assert {row["split"] for row in rows} == {"validation"}  # no test image has a say in what is tested
            assert len(rows) == len(STUDY["data"])
            scores[rate] = sum(row["scores"]["auroc"] for row in rows) / len(rows)
        taken[arm] = max(scores, key=scores.get)
    table = {row["arm"]: row for row in csv.DictReader((home / "tables" / "tuned.csv").open())}
    assert {arm: float(row["taken"]) for arm, row in table.items()} == taken
    assert 'id="tuned"' in (home / "report.html").read_text()
    of_others = "they also test on images by which the rate was chosen"
    assert of_others not in tried.table(home).caption
    for several in ({"seeds": [3, 4]}, {"seeds": [3], "folds": {"outer": 3, "inner": 1}}):
        wider = read_study(written(root, **several))
        assert of_others in Trials(wider, tried.cells).table(home).caption
    rows = list(csv.DictReader((home / "results.csv").open()))
    final = expand(with_rates(study, taken), root)
    assert {row["configuration"] for row in rows} == {cell.digest for cell in final}
    for cell in final:
        assert cell.configuration.run.learning_rate.initial == taken[cell.arm]

    (weights,) = csv.DictReader((home / "tables" / "weights.csv").open())  # of a site alone there are none
    assert weights.pop("arm") == "FedAvg" and set(weights) == set(STUDY["data"])
    assert sum(float(weight.split(" ± ")[0]) for weight in weights.values()) == pytest.approx(1, abs=0.01)
    assert not (home / "tables" / "thetas.csv").exists()  # which FedAvg does not know

    _say_instead(home, tried.cells["FedAvg"], 0.2)  # what decides is what validation images said
    assert tried.taken(home)["FedAvg"] == RATES[0]  # of equals the lowest
    _say_instead(home, tried.cells["FedAvg"], None)
    with pytest.raises(ConfigurationError, match="tune: validation images tell nothing of FedAvg"):
        tried.taken(home)


def test_an_arm_whose_trial_fails_is_left_out_and_the_others_go_on(root, capsys):
    path = written(root, seeds=[3], arms={"FedAvg": {"method": "fedavg"}, "internal": STUDY["arms"]["internal"]})
    home, study = root / "left_out", read_study(path)
    trial = trials(study, study.tune, root).cells["FedAvg"][RATES[0]]
    folder_of(home, trial).mkdir(parents=True)
    with work_lock(folder_of(home, trial)):  # so that it cannot be played
        assert not play_study(path, home, "local", 2)
    said = capsys.readouterr().out
    assert "FedAvg is not played: a trial of its learning rates has not ended; mend the arm or take it out" in said
    assert {row["arm"] for row in csv.DictReader((home / "results.csv").open())} == {"internal"}
    assert {row["arm"] for row in csv.DictReader((home / "tables" / "tuned.csv").open())} == {"internal"}


def _say_instead(home, by_rate, score):
    for cell in by_rate.values():
        path = folder_of(home, cell) / RESULT
        result = json.loads(path.read_bytes())
        for row in result["rows"]:
            row["scores"]["auroc"] = score
        path.write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": {"rounds": 2, "learning_rate": {"initial": 0.1}}}, "decided by tune; leave initial out there"),
        ({"run": {"rounds": 2, "learning_rate": 0.1}}, "decided by tune; leave initial out there"),
        (
            {"arms": {"FedAvg": {"method": "fedavg", "learning_rate": {"initial": 0.1}}}},
            "arms.FedAvg: learning_rate is decided by tune; take it out there",
        ),
        ({"tune": {"learning_rates": [0.1, 0.1]}}, "tune: a learning rate is named twice; name each once"),
        ({"tune": {"learning_rates": [0.1]}}, "learning_rates"),
    ],
)
def test_what_goes_not_with_tuning_is_told(root, changes, problem):
    with pytest.raises(ConfigurationError, match=problem):
        play_study(written(root, **changes), None, "local", 1)
