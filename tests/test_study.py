"""Studies: a matrix is expanded, played in processes, resumed without repeating anything, and tabled."""

import csv
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from io import StringIO
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from click.testing import CliRunner
from rich.console import Console

from deploy.local import synthetic_fundus
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.reading import check_record
from shared.exchange.records.run import Range, RunConfiguration
from shared.folder.durable import write_file
from shared.folder.lock import work_lock
from shared.learning import methods
from shared.learning.models.encoders import IMAGENET_FILES, build_encoder
from shared.software import own_program
from studies import running
from studies.cell import main as play_cell
from studies.cell import with_as_many_images
from studies.cli import main
from studies.configuration import read_study
from studies.matrix import _methods, contents_of, expand
from studies.play import _Told, play_study
from studies.results import result_of
from studies.running import finished_of
from studies.simulation import open_sites, run_rounds
from studies.table import read_results, write_table
from tests.drawn import draw_once
from tests.installed_wheel import install_wheel

SITES = ("north", "south")
STUDY = {
    "study": "small",
    "task": "dr_staging",
    "data": {site: f"data/{site}" for site in SITES},
    "run": {
        "rounds": 1,
        "batch_size": 8,
        "learning_rate": {"initial": 0.05, "period": 1},
        "task_options": {"encoder": "small", "weights": "random", "image_size": 48},
    },
    "arms": {
        "internal": {"method": "single_site"},
        "FedAvg": {"method": "fedavg"},
        "combined, equal": {"method": "centralised", "images_per_site": 10},
    },
    "noise": [0.01],
}
EQUAL = {"images": 60, "pooled_epochs": 2, "steps_per_round": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    for number, site in enumerate(SITES):
        draw = partial(
            synthetic_fundus.write_graded_site,
            style=synthetic_fundus.STYLES[number],
            images=40,
            size=48,
            seed=number,
            grades=4,
            label_noise=0.0,
        )
        draw_once(f"study-{number}-40-48", draw, root / "data" / site)
    return root


def written(root, name="small", **changes):
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False))
    return path


def command(path, *options):
    return [sys.executable, "-m", "studies.cli", "run", str(path), "--at-a-time", "2", *options]


@pytest.fixture
def play():
    """The same command in this process, whose libraries are loaded: what it plays are processes all the same."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda path, *options: CliRunner().invoke(main, command(path, *options)[3:])
    signal.signal(signal.SIGTERM, before)


def cells_of(path):
    return expand(read_study(path), path.parent)


def test_a_study_is_played_resumed_after_a_kill_and_tabled(data, play):
    path, home = written(data), data / "small"
    cells = cells_of(path)
    process = subprocess.Popen(command(path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 240
    while not [cell for cell in cells if result_of(home, cell)] and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "stopped; the same command goes on" in said and "Traceback" not in said
    finished = [home / "cells" / cell.name / "result.json" for cell in cells if result_of(home, cell)]
    early = {result: result.stat().st_mtime_ns for result in finished}
    assert early
    assert f"{len(early)} of 3 cells are finished." in (home / "report.html").read_text()

    again = play(path)
    assert again.exit_code == 0, again.output
    assert f"3 cells, {len(early)} of them finished before" in again.stdout
    for result, written_at in early.items():
        assert result.stat().st_mtime_ns == written_at

    rows = list(csv.DictReader((home / "results.csv").open()))
    tested = {(row["arm"], row["model_of"], row["tested_on"]) for row in rows if row["split"] == "test"}
    both = {(model, site) for model in SITES for site in SITES}
    assert tested == {(arm, *pair) for arm in ("internal", "FedAvg") for pair in both} | {
        ("combined, equal", "all-sites", site) for site in SITES
    }
    by_name = {cell.digest: cell for cell in cells}
    for row in rows:
        assert by_name[row["configuration"]].arm == row["arm"]
        assert row["split"] in {"validation", "test", "noise-0.01"}
        result = result_of(home, by_name[row["configuration"]])
        (found,) = [
            each for each in result["rows"] if all(each[key] == row[key] for key in ("model_of", "tested_on", "split"))
        ]
        assert float(row["auroc"]) == found["scores"]["auroc"]
    for site in SITES:  # whoever trained, and on how many: all are tested on the same images
        tested_on = {
            tuple(row["image"] for row in csv.DictReader(predicted.open()))
            for predicted in home.glob(f"cells/*/predictions/*/{site}.test.csv")
        }
        assert len(tested_on) == 1
    predictions = home / "cells" / next(cell for cell in cells if cell.arm == "internal").name / "predictions"
    for row in csv.DictReader((predictions / "north" / "south.test.csv").open()):
        assert sum(float(row[f"probability_{grade}"]) for grade in range(4)) == pytest.approx(1)


@pytest.mark.long
def test_cells_end_with_the_study_and_none_is_played_twice(data, play, capsys):
    """Be it asked to end, or killed before it can tell them; one that was cut off begins anew if images are moved."""
    arms = {"FedAvg": {"method": "fedavg", "rounds": 6}}
    path, home = written(data, "ended", arms=arms, noise=[]), data / "ended"
    (cell,) = cells_of(path)
    work = home / "cells" / cell.name
    rounds = work / "aggregator" / "runs" / cell.configuration.run.run / "rounds"
    for number, opened in ((signal.SIGTERM, "0001"), (signal.SIGKILL, "0003")):
        process = subprocess.Popen(command(path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.monotonic() + 240
        while not (rounds / opened / "opened.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        others = psutil.Process(process.pid).children(recursive=True)
        assert others
        process.send_signal(number)
        said, _ = process.communicate(timeout=60)
        assert "Traceback" not in said
        assert ("stopped; the same command goes on" in said) == (number == signal.SIGTERM)
        _, left = psutil.wait_procs(others, timeout=60)
        assert left == []
        assert (rounds / opened / "opened.json").exists() and result_of(home, cell) is None
    before = {opened: opened.stat().st_mtime_ns for opened in rounds.glob("*/opened.json")}
    with work_lock(work):
        assert play_cell(str(work)) == 1
    assert "another process plays this cell" in capsys.readouterr().err
    assert {opened: opened.stat().st_mtime_ns for opened in before} == before

    moved = data.with_name("moved")
    data.rename(moved)
    try:
        ended = play(moved / path.name)
        assert ended.exit_code == 0, ended.output
        assert result_of(moved / "ended", cell) is not None
    finally:
        moved.rename(data)


@pytest.mark.long
def test_ctrl_c_while_libraries_are_loaded_is_told_in_a_sentence(data):
    """A terminal sends it to every process that it has started."""
    path = written(data, "early", arms={"internal": {"method": "single_site"}}, noise=[])
    output = subprocess.PIPE
    process = subprocess.Popen(
        command(path), stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        begun = [
            each
            for each in psutil.Process(process.pid).children()
            if "multiprocessing.forkserver" in str(each.cmdline())
        ]
        if begun:
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert begun and process.returncode == 1
    assert "stopped; the same command goes on" in said and "Traceback" not in said


def test_ctrl_c_in_the_instant_in_which_the_loading_process_starts_is_not_lost(monkeypatch):
    monkeypatch.setattr(running, "ensure_running", lambda: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # commands called in this process set their own
    try:
        with pytest.raises(KeyboardInterrupt):
            running.start_forkserver()
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_cells_take_no_code_from_the_folder_that_a_study_is_called_in(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setattr(running, "ensure_running", lambda: told.append(os.environ["PYTHONSAFEPATH"]))
    told: list[str] = []
    running.run_cells([], tmp_path, engine="local", at_a_time=1, on_finished=lambda _: None)
    assert told == ["1"]
    assert own_program("studies.cell")[1:] == ["-P", "-m", "studies.cell"]


TOO_PRIVATE = {"method": "fedavg", "privacy": {"max_grad_norm": 1.0, "delta": 1e-300, "target_epsilon": 0.01}}
"""What every site declines once it has reckoned."""
DECLINED = r"too private, seed 0 failed: (north|south) does not take part: privacy: target_epsilon"


def test_a_cell_that_fails_is_told_and_the_others_go_on(data, play):
    path = written(data, "failing", arms={"too private": TOO_PRIVATE, "internal": {"method": "single_site"}}, noise=[])
    found = play(path)
    assert found.exit_code == 1
    assert re.search(DECLINED, found.stdout)
    assert "Traceback" not in found.output
    assert [result_of(data / "failing", cell) is not None for cell in cells_of(path)] == [False, True]


def test_folders_that_cannot_be_read_are_told_before_any_cell(data, tmp_path):
    """All of them, by the keys that name them, and by those of a study."""
    south, empty, bare = tmp_path / "south", tmp_path / "empty", tmp_path / "bare"
    shutil.copytree(data / "data" / "south", south)
    (torn,) = list((south / "images").iterdir())[:1]
    torn.write_bytes(torn.read_bytes()[:100])
    empty.mkdir()
    bare.mkdir()
    arms = STUDY["arms"] | {"combined, equal": {"method": "centralised", "images_per_site": 1000}}
    path = written(
        tmp_path,
        data={"north": str(data / "data" / "north"), "south": str(south)},
        out_of_distribution=str(empty),
        heldout=str(bare),
        arms=arms,
    )
    with pytest.raises(ConfigurationError) as found:
        play_study(path, None, "local", 1)
    told = "\n".join(found.value.problems)
    assert f"data: south ({south}): images/{torn.name}: " in told
    assert (
        f"data: north ({data / 'data' / 'north'}): images_per_site: there are 24 images for training, not 1000" in told
    )
    assert f"out_of_distribution ({empty}): " in told and f"heldout ({bare}): " in told
    assert not list((tmp_path / "small" / "cells").iterdir())


def test_more_folds_than_a_site_can_fill_are_told_before_any_cell(data, tmp_path):
    shutil.copytree(data / "data", tmp_path / "data")
    ids = [row["id"] for row in csv.DictReader((tmp_path / "data" / "north" / "labels.csv").open())]
    lines = [f"{name},{number % 12}" for number, name in enumerate(ids)]
    (tmp_path / "data" / "north" / "split.csv").write_text("\n".join(["id,group", *lines]) + "\n")
    path = written(tmp_path, "folds", folds={"outer": 20, "inner": 1})
    told = r"data: north .*: 20 folds are asked for, and there is no more than 12 whole blocks of images here"
    with pytest.raises(ConfigurationError, match=told):
        play_study(path, None, "local", 1)


@pytest.mark.parametrize("method", ["centralised", pytest.param("fedavg", marks=pytest.mark.long)])
def test_a_site_that_is_left_out_is_tested_on_and_trains_nothing(data, tmp_path, play, method):
    south = data / "data" / "south"
    west = shutil.copytree(south, tmp_path / "west")
    folders = {"north": str(data / "data" / "north"), "south": str(south), "west": str(west)}
    arms = {"unseen": {"method": method, "leave_one_out": True, "images_per_site": 10}}
    path = written(tmp_path, "unseen", data=folders, arms=arms, noise=[])
    cells = cells_of(path)
    assert [(cell.configuration.left_out, cell.configuration.run.sites) for cell in cells] == [
        (left_out, [site for site in folders if site != left_out]) for left_out in folders
    ]
    ended = play(path)
    assert ended.exit_code == 0, ended.output
    assert "unseen without north, seed 0: " in ended.output

    results = read_results(tmp_path / "unseen", cells)
    tested = results[results["split"] == "test"].set_index(["model_of", "tested_on"])["ood_auroc"]
    trained = {site: ["other-sites"] if method == "centralised" else {*folders} - {site} for site in folders}
    assert tested.notna().all() and {*tested.index} == {(model, site) for site in folders for model in trained[site]}
    compared = csv.DictReader((tmp_path / "unseen" / "tables" / "comparison.csv").open())
    assert [line["tested on"] for line in compared] == ["external"]

    # Whoever trained, a site's test images are the same.
    (whole,) = cells_of(written(tmp_path, data=folders, arms={"all": {"method": "centralised"}}))
    _, sites = open_sites(whole.configuration.run, whole.configuration.trained_on, tmp_path)
    for site in folders:
        for predicted in (tmp_path / "unseen" / "cells").glob(f"*/predictions/*/{site}.test.csv"):
            names = [row["image"] for row in csv.DictReader(predicted.open())]
            assert names == [sample.id for sample in sites[site].dataset.test]


@pytest.mark.parametrize(
    ("sites", "wanted", "told"),
    [
        (SITES, True, "arms: FedAvg: leave_one_out: needs 3 sites or more; take it out, or add sites"),
        (SITES, "each", "arms: FedAvg: leave_one_out: must be true or false"),
        (
            ("north", "other-sites"),
            False,
            "data: other-sites is what several sites together are called; name the site otherwise",
        ),
    ],
)
def test_what_no_site_can_be_left_out_of_is_told(data, tmp_path, sites, wanted, told):
    folders = {site: str(data / "data" / folder) for site, folder in zip(sites, SITES, strict=True)}
    path = written(tmp_path, data=folders, arms={"FedAvg": {"method": "fedavg", "leave_one_out": wanted}})
    with pytest.raises(ConfigurationError) as found:
        cells_of(path)
    assert found.value.problems == (told,)
    wrong = written(tmp_path, data=folders, run={"rounds": -1}, arms={"FedAvg": {"leave_one_out": wanted}, "b": {}})
    with pytest.raises(ConfigurationError) as found:
        cells_of(wrong)
    assert told in found.value.problems and any(each.startswith("run: rounds") for each in found.value.problems)


def test_a_score_that_no_site_can_tell_chooses_the_newest_aggregate(data, tmp_path):
    """AUROC of validation images of one class is undefined."""
    for site in SITES:
        folder = tmp_path / site
        shutil.copytree(data / "data" / site, folder)
        names = [row["id"] for row in csv.DictReader((folder / "labels.csv").open()) if row["grade"] == "0"]
        rows = [
            f"{row['id']},{'validation' if row['id'] in names[:3] else 'test' if row['id'] in names[3:] else 'train'}"
            for row in csv.DictReader((folder / "labels.csv").open())
        ]
        (folder / "split.csv").write_text("\n".join(["id,split", *rows]) + "\n")
    (cell,) = cells_of(written(data, arms={"FedAvg": {"method": "fedavg"}}))
    run = cell.configuration.run.model_copy(update={"rounds": 2})
    outcome = run_rounds(run, {site: tmp_path / site for site in SITES}, tmp_path / "home")
    assert set(outcome.chosen.values()) == {2}


def test_as_many_images_of_each_site_as_the_smallest_has(data, tmp_path):
    (cell,) = cells_of(written(data, arms={"combined": {"method": "centralised", "images_per_site": "fewest"}}))
    small = tmp_path / "south"
    synthetic_fundus.write_graded_site(
        small, style=synthetic_fundus.STYLES[1], images=20, size=48, seed=1, grades=4, label_noise=0.0
    )
    folders = {"north": data / "data" / "north", "south": small}
    _, whole = open_sites(cell.configuration.run, folders, tmp_path)
    _, equal = open_sites(with_as_many_images(cell.configuration, folders), folders, tmp_path)
    fewest = len(whole["south"].dataset.train)
    assert fewest < len(whole["north"].dataset.train)
    assert [len(site.dataset.train) for site in equal.values()] == [fewest, fewest]
    for name, site in equal.items():
        ids = {sample.id for sample in whole[name].dataset.train}
        assert {sample.id for sample in site.dataset.train} <= ids
        for split in ("validation", "test"):
            kept = [[sample.id for sample in getattr(of[name].dataset, split)] for of in (whole, equal)]
            assert kept[0] == kept[1]


def test_published_weights_that_are_missing_are_told_before_any_cell(data):
    options = {"encoder": "resnet18", "weights": "imagenet", "image_size": 48}
    path = written(data, "weights", run=STUDY["run"] | {"task_options": options}, weights="nowhere")
    with pytest.raises(ConfigurationError, match=r"resnet18-f37072fd\.pth is in none of .*nowhere") as found:
        cells_of(path)
    assert len(found.value.problems) == 1


def test_a_run_begins_with_published_weights(data, tmp_path, monkeypatch):
    """Of a ResNet-18 whose file is made here."""
    encoder = build_encoder("resnet18")
    made = tmp_path / "made.pth"
    torch.save(encoder.state_dict(), made)
    name = f"resnet18-{hashlib.sha256(made.read_bytes()).hexdigest()[:8]}.pth"
    made.rename(tmp_path / name)
    monkeypatch.setitem(IMAGENET_FILES, "resnet18", name)
    options = {"encoder": "resnet18", "weights": "imagenet", "image_size": 48}
    arms = {"FedAvg": {"method": "fedavg"}}
    run = STUDY["run"] | {"task_options": options}
    (cell,) = cells_of(written(data, "begun", run=run, arms=arms, weights=str(tmp_path)))
    folders = {site: data / "data" / site for site in SITES}
    network, _ = open_sites(cell.configuration.run, folders, tmp_path, weights=Path(cell.configuration.weights))
    assert all(torch.equal(network.encoder.state_dict()[key], tensor) for key, tensor in encoder.state_dict().items())


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ray_plays_the_same_cells(data, play):
    arms = {"too private": TOO_PRIVATE, "federated": {"method": "fedavg"}}
    path = written(data, "by-ray", arms=arms, noise=[])
    # Ray's workers are the last that a machine lets work, which other tests fill.
    urgent = os.environ | {"RAY_worker_niceness": "0"}
    found = subprocess.run(command(path, "--engine", "ray"), capture_output=True, text=True, check=False, env=urgent)
    assert found.returncode == 1
    assert re.search(DECLINED, found.stdout)
    assert "Traceback" not in found.stdout + found.stderr
    by_ray = [result_of(data / "by-ray", cell) for cell in cells_of(path)]
    assert by_ray[0] is None
    # The same cell, played by processes, comes to the same figures.
    assert play(path, "--output", str(data / "by-processes")).exit_code == 1
    assert result_of(data / "by-processes", cells_of(path)[1])["rows"] == by_ray[1]["rows"]


def test_an_address_that_is_no_clusters_is_told(data, play, monkeypatch):
    path = written(data, "no-cluster", arms={"internal": {"method": "single_site"}}, noise=[])
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    found = play(path, "--engine", "ray")
    assert found.exit_code == 2
    assert "--engine ray: RAY_ADDRESS is nonsense, where no cluster answers" in found.stderr
    assert "Traceback" not in found.output


def test_without_ray_its_engine_says_what_to_do(data, play, monkeypatch):
    path = written(data, "no-ray", arms={"internal": {"method": "single_site"}}, noise=[])
    monkeypatch.setitem(sys.modules, "ray", None)
    found = play(path, "--engine", "ray")
    assert found.exit_code != 0
    assert "pip install '.[ray]'" in found.stderr
    assert "Traceback" not in found.output


def test_folds_and_seeds_multiply_and_every_cell_has_a_name_of_its_own(data):
    cells = cells_of(written(data, "folds", folds={"outer": 5, "inner": 4}, seeds=[1, 2]))
    assert len(cells) == len({cell.digest for cell in cells}) == 5 * 4 * 2 * 3
    assert {cell.configuration.run.split["folds"]["outer"] for cell in cells} == set(range(5))


def test_a_changed_file_of_a_method_makes_new_cells_of_those_that_use_it(data, monkeypatch, tmp_path):
    arms = {
        "mean": {"method": "mean"},
        "FedAvg": {"method": "fedavg"},
        "over": {"method": "fedee", "method_options": {"base": "fedprox"}},
    }
    settings = {"arms": arms, "run": STUDY["run"] | {"tolerance": None}}
    before = cells_of(written(data, **settings))
    assert [sorted(cell.configuration.methods) for cell in before] == [
        ["mean", "terms"],
        ["fedavg", "terms"],
        ["fedavg", "fedee", "fedprox", "terms"],
    ]
    changed = tmp_path / "fedavg.py"
    changed.write_bytes(methods.file_of("fedavg").read_bytes() + b"# changed\n")
    of = methods.file_of
    monkeypatch.setattr(methods, "file_of", lambda name: changed if name == "fedavg" else of(name))
    after = cells_of(written(data, **settings))
    assert [old.name == new.name for old, new in zip(before, after, strict=True)] == [True, False, False]


def test_rounds_in_which_no_model_counted_are_told(data, tmp_path):
    path, home = written(data), tmp_path / "home"
    cell = cells_of(path)[1]
    row = {"model_of": "north", "tested_on": "north", "split": "test", "scores": {}}
    weights = {"1": {"north": 0.0, "south": 0.0}, "2": {"north": 1.0, "south": 0.0}, "3": {}}
    result = {"configuration": cell.digest, "rows": [row], "cost": {}, "weights": weights}
    (home / "cells" / cell.name).mkdir(parents=True)
    (home / "cells" / cell.name / "result.json").write_text(json.dumps(result))
    text = StringIO()
    told = _Told(Console(file=text, width=1000), home, 1, 0)
    with told.progress:
        told.finished(finished_of(cell, home, 3.0))
    log = home / "cells" / cell.name / "log.txt"
    assert f"3 s, but in 2 of its rounds no site's model counted: {log} tells why" in text.getvalue()
    (found,) = csv.DictReader(write_table(home, read_results(home, [cell])).open())
    assert found["rounds_without_a_model"] == "2"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is there")
def test_a_device_that_is_not_there_is_told_before_any_cell(data, tmp_path):
    with pytest.raises(ActionRequiredError, match="device: cuda is not on this machine"):
        play_study(written(data, device="cuda"), tmp_path / "home", "local", 2)
    assert not [*(tmp_path / "home").glob("cells/*")]


def test_what_decides_a_cell_is_in_its_name(data):
    before = [cell.digest for cell in cells_of(written(data))]
    assert before == [cell.digest for cell in cells_of(written(data))]
    moved = data.with_name("moved")
    data.rename(moved)
    try:
        assert before == [cell.digest for cell in cells_of(written(moved))]
    finally:
        moved.rename(data)
    renamed = {f"{arm}!": settings for arm, settings in STUDY["arms"].items()}
    assert before == [cell.digest for cell in cells_of(written(data, arms=renamed))]
    assert not set(before) & {cell.digest for cell in cells_of(written(data, run=STUDY["run"] | {"rounds": 2}))}
    extra = data / "data" / "north" / "extra.txt"
    extra.write_text("one more file")
    try:
        assert not set(before) & {cell.digest for cell in cells_of(written(data))}
    finally:
        extra.unlink()


def test_a_cell_is_of_the_files_in_linked_folders_too(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "healthy").symlink_to(tmp_path / "store")
    (tmp_path / "store" / "again").symlink_to(tmp_path / "store")  # into itself
    before = contents_of(tmp_path / "site")
    (tmp_path / "store" / "1.png").write_bytes(b"a")
    added = contents_of(tmp_path / "site")
    (tmp_path / "store" / "1.png").write_bytes(b"ab")
    assert len({before, added, contents_of(tmp_path / "site")}) == 3


def test_a_cell_is_of_the_wheel_behind_its_score(data, tmp_path, monkeypatch):
    entry_points = "[dropfed.scores]\nsharp = sharp:sharp\n"
    install_wheel(tmp_path, "sharp", {"sharp.py": "sharp = 1\n"}, entry_points, monkeypatch)
    own = {"run": "a", "task": "dr_staging", "sites": ["n"], "seed": 1, "method": "fedavg"}
    run = check_record({**STUDY["run"], **own}, RunConfiguration, "")
    scored = run.model_copy(update={"scores": {"sharp": Range()}})
    plain, before = _methods(run), _methods(scored)
    (tmp_path / "sharp.py").write_text("sharp = 2\n")
    assert before.keys() - plain.keys() == {"dropfed-sharp"} and _methods(scored) != before
    assert _methods(run) == plain


@pytest.mark.parametrize("content", ["null", "[]", "{}", '{"configuration": ""}', "{"])
def test_a_damaged_result_is_no_result(data, tmp_path, content):
    cell = cells_of(written(data))[0]
    path = tmp_path / "cells" / cell.name / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(content.replace('""', f'"{cell.digest}"'))
    assert result_of(tmp_path, cell) is None


def test_arms_of_the_same_settings_are_played_once_and_both_tabled(data, tmp_path, play):
    arms = {"first": {"method": "single_site"}, "again": {"method": "single_site"}}
    found = play(written(data, "twice", arms=arms, noise=[]), "--output", str(tmp_path))
    assert found.exit_code == 0 and "[1/1] " in found.stdout and "1 cell, 0 of them finished before" in found.stdout
    cost = csv.DictReader((tmp_path / "tables" / "cost.csv").open())
    assert [line["arm"].split()[0] for line in cost] == [*arms]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": {"north": "nowhere"}}, "there is no folder"),
        ({"scores": ["accuracy_of_sick"]}, "^scores: there is no accuracy_of_sick; take it out, or take one of"),
        (
            {"arms": {"a": {"method": "fedavg"}, "b": {"method": "fedavgg"}}},
            "^arms: b: method: there is no method fedavgg",
        ),
        ({"run": STUDY["run"] | {"round": 1}}, "^run: round: is not a known key"),
        ({"arms": {"a": {"method": "scaffold", "task_options": {"optimizer": "adam"}}}}, "optimizer: sgd"),
        ({"arms": {"a": {"method": "fedavg", "seed": 3}}}, "seed is decided by the study"),
        ({"run": STUDY["run"] | {"split": {"folds": {"outer": 0, "inner": 0}}}}, "split.folds is decided by the study"),
        ({"folds": {"outer": 3, "inner": 3}}, "must be less than the 3 folds"),
        ({"rounds_as": EQUAL}, "run says rounds too"),
        *(
            ({"run": {"batch_size": size}, "rounds_as": EQUAL}, "run: batch_size: must be a whole number above 0")
            for size in ("abc", 0, None, [1], 1.5, True)
        ),
        ({"data": {"north": "a\0b"}}, "data.north: must be a path in UTF-8 without the character NUL"),
        ({"heldout": "a\0b"}, "heldout: must be a path in UTF-8 without the character NUL"),
        ({"seeds": [1, 1]}, "one is named twice"),
        (
            {"arms": {"a": {"method": "fedavg", "tolerance": 0.3}}},
            "tolerance: there are no images to score models with",
        ),
        (
            {"arms": {"a": {"method": "fedavg", "start": {"name": "first", "sha256": "0" * 64}}}},
            "start: a study's runs begin as their task has it",
        ),
        ({"arms": {"a": {"method": "fedavg", "trainer": {"name": "own"}}}}, "trainer: a study trains by PyTorch"),
        ({"heldout": "nowhere"}, "^heldout: there is no folder .*nowhere; correct it"),
        ({"out_of_distribution": "~/nowhere"}, "^out_of_distribution: there is no folder .*; write it without ~"),
        ({"arms": {"a": {"method": "none"}}}, "use one of .*fedavg.*, centralised, single_site$"),
        ({"task": "none"}, "^task: there is no 'none'"),
        ({"wayz": {}}, "wayz: is not a known key"),
        ({"data": {"north": "data/north", "south": "data/north"}}, "north and south have the same folder"),
        ({"out_of_distribution": "data/north"}, "north and out_of_distribution have the same folder"),
    ],
)
def test_a_wrong_study_is_explained(data, changes, sentence):
    with pytest.raises(ConfigurationError, match=sentence) as found:
        cells_of(written(data, "wrong", **changes))
    assert len(found.value.problems) == 1


def test_every_problem_of_a_study_is_told_at_once_with_its_file(data):
    path = written(
        data,
        "all-wrong",
        data={"north": "data/north", "south": "nowhere"},
        heldout="nowhere-either",
        run=STUDY["run"] | {"run": "a", "seed": 1, "sites": ["north"]},
        arms={"a": {"method": "fedavgg"}, "b": {"method": "fedavg", "split": None}},
        scores=["aurok"],
    )
    with pytest.raises(ConfigurationError) as found:
        play_study(path, None, "local", 1)
    told = [problem.removeprefix(f"{path}: ") for problem in found.value.problems]
    assert len(told) == len(found.value.problems) and all(problem not in told for problem in found.value.problems)
    for beginning in (
        *("run: run is decided", "run: seed is decided", "run: sites is decided", "data: south: there is no folder"),
        *("heldout: there is no folder", "scores: there is no aurok", "arms: a: method: there is no", "arms: b: split"),
    ):
        assert sum(problem.startswith(beginning) for problem in told) == 1, (beginning, told)
    assert not path.with_suffix("").exists()


def test_results_get_a_place_of_their_own(data, play):
    among_images = play(written(data), "--output", str(data / "data" / "north" / "out"))
    assert among_images.exit_code == 2
    said = f"{written(data)}: data: results would lie in data/north; say another place with --output"
    assert among_images.stderr.strip() == said
    assert not (data / "data" / "north" / "out").exists()
    unnamed = written(data).rename(data / "no-ending")
    with pytest.raises(ConfigurationError, match=r"call it no-ending\.yaml, or say --output"):
        play_study(unnamed, None, "local", 1)


@pytest.mark.parametrize("name", ["results.csv", "report.html", "tables", "figures"])
def test_results_take_the_place_of_nothing_that_no_study_wrote(data, tmp_path, name):
    (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).write_text("my own")
    told = f"{tmp_path / name}: is there without a study's cells, and stays; remove it, or say another place with"
    with pytest.raises(ConfigurationError, match=told):
        play_study(written(data), tmp_path, "local", 1)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_a_full_disk_took_of_a_new_task_is_not_in_the_way_of_the_next_try(tmp_path, monkeypatch):
    def write(path, content, **how):
        if path.name == "pyproject.toml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write_file(path, content, **how)

    monkeypatch.setattr("studies.commands.new_task.write_file", write)
    result = CliRunner().invoke(main, ["new-task", "corneal_ulcers", "--output", str(tmp_path / "new")])
    told = f"The disk with {tmp_path / 'new' / 'pyproject.toml'} is full: free some space there.\n"
    assert (result.exit_code, result.output) == (1, told)
    assert not (tmp_path / "new").exists()


def test_rounds_of_equal_steps(data):
    run = {key: value for key, value in STUDY["run"].items() if key != "rounds"}
    equal = {"images": 64, "pooled_epochs": 6, "steps_per_round": 4}
    cells = cells_of(written(data, "equal", run=run, rounds_as=equal))
    assert {cell.configuration.run.rounds for cell in cells} == {64 // 2 // 8 * 6 // 4}


def test_results_that_are_damaged_are_played_anew(data):
    cell = cells_of(written(data))[0]
    folder = data / "damaged" / "cells" / cell.name
    folder.mkdir(parents=True)
    for content in ("{", json.dumps({"configuration": "another"})):
        (folder / "result.json").write_text(content)
        assert result_of(data / "damaged", cell) is None
