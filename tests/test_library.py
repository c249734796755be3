"""``import dropfed``, by its public names alone: what docs/library.md says of each, on runs that are really played."""

from __future__ import annotations

import ast
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from pandas.testing import assert_frame_equal

import dropfed
from aggregator.cli import main as aggregator_command
from shared.software import installing
from studies.daemons import run_exchange
from tests.federation.running import RUN, make_data, run_configuration, staging_run
from tests.played import Played

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
CODE = ROOT / "dropfed" / "__init__.py"
CONFIGURATION = run_configuration(rounds=2, tolerance={"below_last": 0.2}, method_options={"objective": "evidential"})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is on the machines of a run that daemons have played: data, folders, work directories, and an export."""
    root = tmp_path_factory.mktemp("library")
    make_data(CONFIGURATION, root / "data", 20)
    before = logging.getLogger().handlers[:], sys.excepthook, torch.get_num_threads()
    data = {site: root / "data" / site for site in CONFIGURATION.sites}
    run_exchange(CONFIGURATION, data, root, heldout=root / "data" / "heldout")
    work = str(root / "aggregator")
    exported = ["export", RUN, "--work", work, "--output", str(root / "exported")]
    assert CliRunner().invoke(aggregator_command, exported).exit_code == 0
    yield root
    logging.getLogger().handlers, sys.excepthook = before[:2]
    logging.captureWarnings(False)
    torch.set_num_threads(before[2])


def data_of(home: Path) -> dict[str, Path]:
    return {site: home / "data" / site for site in CONFIGURATION.sites}


# --- names --------------------------------------------------------------------------------------------------


def test_importing_it_loads_neither_pytorch_nor_pandas() -> None:
    heavy = "{'torch', 'pandas', 'numpy', 'pydantic', 'matplotlib'}"
    told = f"import sys, dropfed; dir(dropfed), dropfed.__version__; print({heavy} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", told], text=True) == "set()\n"


def test_every_name_is_there_and_on_the_page() -> None:
    listed = re.findall(r"`(\w+)`", PAGE[PAGE.index("## All names") : PAGE.index("## What stays")])
    assert sorted(listed) == sorted(dropfed.__all__)
    assert all(getattr(dropfed, name) is not None for name in dropfed.__all__)
    assert set(dropfed.__all__) <= set(dir(dropfed))
    with pytest.raises(AttributeError, match="'dropfed' has no attribute 'simulat'"):
        dropfed.simulat  # noqa: B018


def test_type_checkers_see_what_is_loaded() -> None:
    (typed,) = (node for node in ast.parse(CODE.read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == dropfed._PLACES
    assert sorted(dropfed.__all__) == sorted([*seen, "__version__"])


def test_what_is_not_installed_is_said_in_a_sentence() -> None:
    told = """
import sys
sys.modules["torch"] = None
import dropfed
try:
    dropfed.simulate
except dropfed.DropfedError as error:
    print(error)
"""
    assert subprocess.check_output([sys.executable, "-c", told], text=True) == (
        f"dropfed.simulate needs torch, which is not installed here: run {installing('study')}\n"
    )


def test_what_the_page_shows_runs(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo-run").symlink_to(home)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 8
    for block in blocks:
        exec(block, space)
    printed = capsys.readouterr().out
    assert "north True []" in printed and "no-such-folder" in printed


# --- simulate -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(home: Path) -> dropfed.Simulation:
    return dropfed.simulate(CONFIGURATION, data_of(home), heldout=home / "data" / "heldout")


def test_a_simulation_tells_what_the_daemons_tell(home: Path, simulated: dropfed.Simulation) -> None:
    """Every score, verdict, weight and tolerance, to the last digit; and the same choice."""
    view = dropfed.read_run(home / "aggregator")
    assert_frame_equal(simulated.frame(), view.frame())
    assert_frame_equal(simulated.decisions(), view.decisions())
    assert set(simulated.decisions()["status"]) == {"accepted", "validated"}
    assert simulated.decisions()["tolerance"].notna().sum() == 4
    assert simulated.view.outcome == view.outcome and simulated.chosen_round == view.chosen_round
    assert simulated.view.sites["north"].images == view.sites["north"].images


def test_what_a_simulation_cannot_know_is_none(simulated: dropfed.Simulation) -> None:
    parts = [part for *_, part in simulated.view.parts()]
    assert parts and not any((part.asked, part.settled, part.seconds, part.bytes.up) != (None,) * 4 for part in parts)
    assert simulated.view.bytes == {} and simulated.view.sites["north"].agrees is None


def test_its_tables_are_those_that_lie_in_the_folders(home: Path, simulated: dropfed.Simulation) -> None:
    metrics = simulated.metrics()
    for site in CONFIGURATION.sites:
        folder = dropfed.open_folder(home / "folders" / site)
        lying = folder.frame()
        assert set(lying["finding"]) == {""} and set(lying["run"]) == {RUN}
        of_site = metrics[metrics["site"] == site].reset_index(drop=True)
        assert_frame_equal(of_site, lying.drop(columns=["run", "finding"]))
        header = (home / "folders" / site / f"runs/{RUN}/rounds/0001/from_site/metrics.csv").read_text().partition("\n")
        assert [*of_site.columns][1:] == header[0].split(",")


def test_its_figures_are_the_reports(simulated: dropfed.Simulation) -> None:
    figures = simulated.figures()
    assert {"dice-mean-validation", "weight", "tolerance", "timeline"} <= figures.keys()
    assert figures["weight"]._repr_png_().startswith(b"\x89PNG")  # type: ignore[union-attr]
    assert figures["timeline"]._repr_png_() is None and "not drawn" in repr(figures["timeline"])


def test_what_a_notebook_shows_of_it_is_a_line(simulated: dropfed.Simulation) -> None:
    shown = f"RunView(run='{simulated.view.run}', sites={[*simulated.tests]}, rounds={len(simulated.view.rounds)})"
    assert repr(simulated) == f"Simulation(view={shown}, home={simulated.home!r})"
    shown = repr(simulated.model(next(iter(simulated.tests))))
    assert shown.startswith("Model(task=") and len(shown) < 300


def test_a_models_tests_are_its_own(home: Path, simulated: dropfed.Simulation) -> None:
    model = simulated.model("north")
    assert model.classes == ("background", "vessel") and 0 < (model.theta or 0) <= 1
    kept = dropfed.load(home / "sites" / "north" / "final")
    state = kept.network.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.network.state_dict().items())
    assert kept.theta == model.theta
    last = simulated.view.rounds[simulated.chosen_round].sites["north"].test
    assert last and simulated.tests["north"].scores["dice_mean"].value == pytest.approx(
        last.scores["dice_mean"], abs=5e-5
    )


def test_a_tolerance_that_nobody_exceeds_leaves_the_model_as_it_was(home: Path) -> None:
    run = {"task": "octa_segmentation", "method": "mean", "rounds": 1, "tolerance": 0.999, "batch_size": 4}
    small = {"task_options": {"image_size": 32, "widths": [4, 8]}, "augmentation": {"copies": 1}}
    result = dropfed.simulate(run | small, data_of(home), heldout=home / "data" / "heldout")
    assert [*result.decisions().query("round == 1")["status"]] == ["omitted", "omitted"]
    assert (result.chosen_round, result.view.run) == (0, "simulation")


def test_the_folder_goes_with_the_result_or_stays_where_it_was_wanted(home: Path, tmp_path: Path) -> None:
    run = run_configuration(tolerance=None)
    result = dropfed.simulate(run, data_of(home))
    scratch = result.home
    assert (scratch / "final" / "north" / "card.yaml").exists()
    del result
    assert not scratch.exists()
    kept = dropfed.simulate(run, data_of(home), home=tmp_path / "kept")
    with pytest.raises(dropfed.ConfigurationError, match=r"^home: .*kept is there already; name a new folder"):
        dropfed.simulate(run, data_of(home), home=tmp_path / "kept")
    assert dropfed.load(tmp_path / "kept" / "final" / "south").theta == kept.model("south").theta
    with pytest.raises(dropfed.ConfigurationError, match=r"^site: the run has no west; name one of north, south"):
        kept.model("west")


@pytest.mark.parametrize(
    ("changes", "sites", "told"),
    [
        ({"method": "centralised"}, None, "^method: centralised is a reference for comparisons on one machine"),
        ({"rounds": 0}, None, "^rounds: 0 trains nothing"),
        ({"trainer": {"name": "own"}}, None, "^trainer: a simulation trains by PyTorch; leave it out"),
        ({"colour": "red"}, None, "^run: colour: is not a known key"),
        ({"task": "teeth"}, None, "^task: there is no 'teeth'"),
        (
            {"sites": ["north", "west"]},
            None,
            "^sites: the run names north, west, and folders are given for north, south",
        ),
        ({}, {"north": "nowhere"}, "nowhere"),
        ({}, {}, "^run: sites: must hold 1 or more"),
        (
            {},
            {"north": "same", "south": "./same"},
            "^sites: north and south have the same folder; give each its own",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    home: Path, changes: dict[str, object], sites: dict[str, str] | None, told: str
) -> None:
    run = {"task": "octa_segmentation", "method": "mean", "rounds": 1, **changes}
    with pytest.raises(dropfed.DropfedError, match=told):
        dropfed.simulate(run, data_of(home) if sites is None else sites)


def test_a_site_with_too_few_images_is_named(home: Path, tmp_path: Path) -> None:
    north = data_of(home)["north"]
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
        shutil.copy(next(iter(sorted((north / kind).iterdir()))), tmp_path / kind)
    run = {"task": "octa_segmentation", "method": "mean", "rounds": 1}
    with pytest.raises(dropfed.DataError, match=r"^east: the validation set is empty: "):
        dropfed.simulate(run, {"north": north, "east": tmp_path})


@pytest.mark.parametrize(
    "ask",
    [
        lambda: dropfed.load(3),  # type: ignore[arg-type]
        lambda: dropfed.read_run(None),  # type: ignore[arg-type]
        lambda: dropfed.simulate(3, {"north": "north"}),  # type: ignore[arg-type]
        lambda: dropfed.simulate({"task": "octa_segmentation", "method": "mean", "rounds": 1}, {"north": 3}),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_path_is_said_too(ask: Callable[[], object]) -> None:
    with pytest.raises(dropfed.ConfigurationError, match=r"must be a path, and is of type \w+; give a str or a Path"):
        ask()


def test_a_run_file_that_is_not_there_is_said_too(tmp_path: Path) -> None:
    with pytest.raises(dropfed.ConfigurationError, match=r"RUN\.yaml: cannot be read"):
        dropfed.simulate(tmp_path / "RUN.yaml", {"north": tmp_path})


# --- read_run -----------------------------------------------------------------------------------------------


def test_reading_a_run_changes_nothing(home: Path) -> None:
    work = home / "aggregator"
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    view = dropfed.read_run(str(work), RUN)
    assert (view.run, view.is_over) == (RUN, True)
    assert {path: path.stat().st_mtime_ns for path in work.rglob("*")} == before


def test_a_run_that_is_not_there_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(dropfed.ConfigurationError, match="there is no run other here; the runs here are"):
        dropfed.read_run(home / "aggregator", "other")
    for strange in (tmp_path, tmp_path / "nowhere"):
        remedy = "give one that `dropfed-aggregator init` made"  # no option of a command
        with pytest.raises(dropfed.ConfigurationError, match=f"is no aggregator's work directory; {remedy}"):
            dropfed.read_run(strange)
    (tmp_path / "work" / "runs").mkdir(parents=True)
    with pytest.raises(dropfed.ConfigurationError, match="no run was launched here yet; launch one"):
        dropfed.read_run(tmp_path / "work")


# --- open_folder --------------------------------------------------------------------------------------------


def test_every_message_is_there_in_its_order(home: Path) -> None:
    folder = dropfed.open_folder(home / "folders" / "north")
    assert folder.holds and (folder.federation, folder.site) == ("study", "north")
    for sender in ("aggregator", "north"):
        numbers = [message.seq for message in folder.messages if message.sender == sender]
        assert numbers == [*range(1, len(numbers) + 1)] and numbers
    verdict = folder.record(dropfed.MessageRef("verdict", RUN, 1), dropfed.Verdict)
    assert (verdict.site, verdict.status) == ("north", "accepted")
    with pytest.raises(dropfed.NotFoundError):
        folder.record(dropfed.MessageRef("verdict", RUN, 9), dropfed.Verdict)


@pytest.fixture
def tampered(home: Path, tmp_path: Path) -> dropfed.DropFolder:
    """A verdict's file and a table of scores are other ones than were signed, and an update's manifest was changed."""
    copy = tmp_path / "north"
    shutil.copytree(home / "folders" / "north", copy)
    rounds = copy / "runs" / RUN / "rounds"
    verdict = rounds / "0001" / "verdict" / "verdict.json"
    verdict.write_bytes(verdict.read_bytes().replace(b'"accepted"', b'"omitted"'))
    manifest = rounds / "0002" / "from_site" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"north"', b'"south"'))
    model = rounds / "0001" / "from_site" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-4] + b"\0\0\0\0")
    return dropfed.open_folder(copy)


def test_nothing_that_did_not_verify_comes_without_its_finding(tampered: dropfed.DropFolder) -> None:
    assert not tampered.holds
    spoilt = {message.ref.path: message.findings for message in tampered.messages if message.findings}
    verdict, update = (dropfed.MessageRef(kind, RUN, 1) for kind in ("verdict", "update"))
    assert {verdict.path, update.path} <= spoilt.keys()
    with pytest.raises(dropfed.RejectedError, match=r"verdict\.json"):
        tampered.record(verdict, dropfed.Verdict)
    gone = dropfed.MessageRef("update", RUN, 2)
    assert gone not in {message.ref for message in tampered.messages}
    assert any(finding.file == gone.manifest for finding in tampered.findings)
    frame = tampered.frame()
    assert set(frame["round"]) == {1, 3}
    assert all(finding for finding in frame[frame["round"] == 1]["finding"])
    assert set(frame[frame["round"] == 3]["finding"]) <= {"", *(finding.what for finding in tampered.findings)}


def test_opening_a_folder_needs_no_pytorch(played: Played) -> None:
    told = """
import sys
sys.modules["torch"] = None
import dropfed
folder = dropfed.open_folder(sys.argv[1], key=sys.argv[2])
assert folder.messages and "pandas" not in sys.modules
print(folder.record(folder.messages[-1].ref.__class__("verdict", sys.argv[3], 1), dropfed.Verdict).site)
assert len(folder.frame())
"""
    command = [sys.executable, "-c", told, str(played.drop), played.aggregator_key, played.run]
    assert subprocess.check_output(command, text=True) == "north\n"


def test_a_folder_under_another_key_tells_nothing(played: Played) -> None:
    folder = dropfed.open_folder(played.drop, key="ab" * 32)
    assert (folder.messages, folder.site, folder.holds) == ((), None, False)
    assert folder.frame().empty


def test_what_is_no_folder_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(dropfed.ConfigurationError, match="holds several drop folders; open one of"):
        dropfed.open_folder(home / "folders")
    with pytest.raises(dropfed.ConfigurationError, match="is no drop folder"):
        dropfed.open_folder(tmp_path)
    with pytest.raises(dropfed.ConfigurationError, match=r"^key: must be the 64 hexadecimal digits"):
        dropfed.open_folder(home / "folders" / "north", key="short")


# --- load ---------------------------------------------------------------------------------------------------


def test_an_export_answers_as_the_site_does(home: Path) -> None:
    images = home / "data" / "north" / "images"
    exported, kept = dropfed.load(home / "exported"), dropfed.load(str(home / "sites" / "north" / "final" / RUN))
    assert (exported.theta, exported.classes) == (None, kept.classes)
    assert not exported.network.training and exported.task.name == "octa_segmentation"
    batch = exported.transform(images)
    assert batch.shape[:2] == (20, 1)
    for here, there in zip(exported.predict(images), kept.predict(images), strict=True):
        assert (here.image, here.probabilities.shape[0]) == (there.image, 2)
        assert (here.probabilities == there.probabilities).all() and (here.uncertainty == there.uncertainty).all()
        assert here.probabilities.sum(axis=0) == pytest.approx(1.0)
        assert 0 <= here.uncertainty.min() <= here.uncertainty.max() <= 1
    (one,) = kept.predict(sorted(images.iterdir())[0])
    assert one.image == sorted(images.iterdir())[0].stem


def test_what_is_no_model_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(dropfed.ConfigurationError, match=r"holds no card\.yaml and no run\.yaml; name WORK/final/RUN"):
        dropfed.load(tmp_path)
    with pytest.raises(dropfed.DataError, match=r"nothing\.png"):
        dropfed.load(home / "exported").predict(tmp_path / "nothing.png")


@pytest.mark.parametrize(
    ("file", "change", "told"),
    [
        ("model.safetensors", lambda content: content[:-4] + b"\0\0\xc0\x7f", "not finite"),
        ("run.yaml", lambda content: content + b"colour: red\n", "colour: is not a known key"),
        ("run.yaml", lambda content: content.replace(b"[4, 8]", b"[4, 16]"), "model.safetensors"),
    ],
)
def test_a_damaged_export_is_refused(home: Path, tmp_path: Path, file: str, change: object, told: str) -> None:
    copy = tmp_path / "exported"
    shutil.copytree(home / "exported", copy)
    path = copy / file
    changed = change(path.read_bytes())  # type: ignore[operator]
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    with pytest.raises(dropfed.DropfedError, match=f"{file}: has the SHA-256 .*, and model-card.json says"):
        dropfed.load(copy)
    (copy / "model-card.json").unlink()  # as whoever damages it on purpose would do
    with pytest.raises(dropfed.DropfedError, match=told):
        dropfed.load(copy)


def test_a_model_whose_heads_stay_at_the_sites_is_loaded_from_there(tmp_path: Path) -> None:
    run = staging_run(rounds=1, tolerance=None)
    make_data(run, tmp_path / "data", 20)
    result = dropfed.simulate(run, {site: tmp_path / "data" / site for site in run.sites}, home=tmp_path / "home")
    model = result.model("north")
    found = model.predict(sorted((tmp_path / "data" / "north").rglob("*.png"))[0])
    assert [each.probabilities.shape for each in found] == [(len(model.classes),)]
    assert set(result.decisions().query("status == 'accepted'")["theta"].between(0, 1)) == {True}
    assert len(model.classes) != len(result.model("south").classes)
