"""The report's page, figures and tables: what was told and measured is on them, what was not is said, nothing loads."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.colors import to_rgb
from PIL import Image

from aggregator.cli import main
from aggregator.report.examples import KINDS, examples, kinds_of
from aggregator.report.figures import COLOURS, Figure, picture
from aggregator.report.heldout import PIXELS_PER_IMAGE, Example, measure, open_heldout
from aggregator.report.heldout_figures import TITLES, heldout_figures
from aggregator.report.meanings import meanings
from aggregator.report.site_figures import curves, of_classes
from aggregator.report.tables import SHOWN_ROWS, Missing, Table, as_in_papers, of_heldout
from aggregator.report.timeline import timeline
from aggregator.run_view import Bytes, Part
from aggregator.setup import initialise
from aggregator.store import RunStore, ToldByCode
from shared.errors import DataError
from shared.exchange import names
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import decimal_text
from shared.exchange.records.verdicts import Verdict
from shared.exchange.signing import canonical
from shared.exchange.tables import MetricsRow, write_metrics
from shared.learning.aggregation import Aggregation
from shared.learning.metrics import grading_scores, left_by_referral, ranking
from shared.learning.model_files import load_tensors
from shared.learning.probe import probe_score
from shared.learning.sharing import sharing
from shared.learning.tolerance import probe_seed
from shared.learning.training import evaluate
from tests import views
from tests.federation.running import run_configuration, staging_run, write_data
from tests.learning.small_sites import write_labelled_vessels
from tests.played import RUN, TENSORS, Played, begun, ended_run
from tests.test_report import report
from tests.views import view_of_rounds

SECTIONS = ("curves", "scores", "sites-uncertainty", "heldout", "decisions", "time", "sites", "configuration")
ALWAYS = {"scores", "all-scores-test", "all-scores-validation", "verdicts", "bytes", "sites"}
HOSTILE = "=HYPERLINK(1) <script>alert('x')</script> <img src=http://evil.example/x onerror=alert(1)>"
NOON = "2026-01-01T12:00:"


@pytest.mark.long
def test_figures_are_drawn_in_silence_where_there_is_no_home() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL"))}
    command = [sys.executable, "-c", "import studies.pages"]  # and with it the report's
    ended = subprocess.run(command, env=environment | {"HOME": "/dev/null"}, capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")


def pages(run: Played, name: str = "pages") -> Path:
    folder = run.drop.parent / name
    result = report(run, "--pages", str(folder))
    assert (result.exit_code, result.output) == (0, f"wrote {folder / 'report.html'}\n")
    return folder


def test_a_column_that_no_class_has_ends_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old records may hold tables that would be omitted today."""
    as_asked = Played.from_site

    def with_a_column(run: Played, round_no: int, *rest: Any) -> dict[str, bytes | Path]:
        files = as_asked(run, round_no, *rest)
        row = MetricsRow(round_no, 0, "validation", "10", 0.1, 0.5, {"accuracy_of_x": 0.5, "dice_mean": 0.5})
        return files | {names.METRICS: write_metrics([row])}

    monkeypatch.setattr(Played, "from_site", with_a_column)
    run, _ = ended_run(tmp_path)
    page = page_of(pages(run))
    assert "accuracy_of_x" in page and "no site has reported it for this aggregate" in page


def page_of(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def rows_of(folder: Path, table: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def answered(run: Played, store: RunStore, rows: Sequence[MetricsRow], reason: str = "ok", score: str = "0.9") -> None:
    """Round 1 is opened, sent, answered with these rows and closed."""
    store.ask(1, ("north",), ("north",))
    run.send("round", 1, {names.ROUND_CONFIGURATION: b"round: 1\n", names.GLOBAL_MODEL: run.model(0.5)}, "consent")
    files: dict[str, bytes | Path] = {names.METRICS: write_metrics(list(rows)), names.SITE_MODEL: run.model(0.25)}
    run.send("update", 1, files, "round")
    verdict = Verdict(
        run=RUN,
        round=1,
        site="north",
        status="accepted",
        score=score,
        tolerance="0.3",
        theta="0.5",
        weight="1.0",
        reason=reason,
    )
    store.close_round(1, {"north": verdict})
    run.send("verdict", 1, {names.VERDICT: canonical(verdict.model_dump())}, "update")


def row(split: Any, scores: dict[str, float | None], images: str = "10", loss: float | None = 0.5) -> MetricsRow:
    return MetricsRow(1, 0, split, images, 0.1, loss, scores)


TOLD = {
    "dice_mean": 0.25, "dice_std": 0.125, "accuracy_mean": 0.75, "accuracy_std": 0.0, "selective_accuracy_10_mean": 0.8,
    "uncertainty_right_mean": 0.25, "uncertainty_wrong_mean": 0.5,
}  # fmt: skip


def addresses(text: str) -> list[str]:
    return re.findall(r"""(?:src|href|url|data|action)\s*[=(]\s*["']?([^"'\s>)]+)""", text)


def assert_loads_nothing(page: str) -> None:
    assert all(address.startswith(("#", "data:image/svg+xml;base64,")) for address in addresses(page))
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    for tag in ("<script", "<link", "<iframe", "<object", "@import"):
        assert tag not in page.lower()


def assert_is_drawn(folder: Path, name: str) -> None:
    """The PNG shows something, and the SVG loads nothing."""
    pixels = np.asarray(Image.open(folder / "figures" / f"{name}.png").convert("RGB"))
    assert (pixels != 255).any(axis=2).mean() > 0.01
    svg = (folder / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in re.findall(r'href="([^"]*)"', svg))
    assert "<script" not in svg


# --- the whole page ----------------------------------------------------------------------------------------


def test_nothing_yet(run: Played, store: RunStore) -> None:
    folder = pages(run)
    page = page_of(folder)
    assert all(f'<section id="{section}"' in page for section in SECTIONS)
    assert_loads_nothing(page)
    assert "<img" not in page
    assert "No round was opened yet." in page
    assert "<dt>Federation</dt><dd>retina</dd>" in page
    assert "Not drawn: no scores received." in page
    assert "Not drawn: aggregator.yaml names no held-out images of octa_segmentation." in page
    assert not (folder / "figures").exists()
    assert {path.stem for path in (folder / "tables").iterdir()} == ALWAYS
    assert rows_of(folder, "scores") == []


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, Path]:
    """A run with one round that is over, and its pages."""
    run = Played(tmp_path_factory.mktemp("one-round"))
    run.offer_and_consent()
    answered(run, begun(run), [row(split, TOLD) for split in ("validation", "test")])
    return run, pages(run)


def test_one_round(one_round: tuple[Played, Path]) -> None:
    _, folder = one_round
    page = page_of(folder)
    assert all(f'<section id="{section}"' in page for section in SECTIONS)
    assert_loads_nothing(page)
    drawn = {path.stem for path in (folder / "figures").glob("*.svg")}
    assert drawn == {path.stem for path in (folder / "figures").glob("*.png")}
    assert drawn == {
        *(f"{name}-{split}" for name in ("dice-mean", "loss") for split in ("validation", "test")),
        *("referral-sites-test", "uncertainty-sites-test", "tolerance", "theta", "weight", "timeline"),
    }
    for name in drawn:
        assert_is_drawn(folder, name)
        assert (folder / "tables" / f"{name}.csv").exists()
    assert page.count("<img") == page.count('alt="') == len(drawn)
    assert 'alt=""' not in page
    assert "0.250 ± 0.125" in page
    assert re.search(r"<dt>Ran</dt><dd>\d{4}-\d\d-\d\d [\d:]{8}[+-]\d\d:\d\d to now</dd>", page)
    assert "Verdicts: 1 accepted." in page


def test_the_main_score_of_a_plugins_task_is_known_while_its_run_goes_on(tmp_path: Path) -> None:
    run, store = Played(tmp_path), RunStore(tmp_path / "aggregator", RUN)
    configuration = run_configuration(run=RUN, sites=["north", "south"], quorum=1, rounds=1, task="of_ours")
    sharing_of_run = Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    store.begin(configuration, sharing_of_run)  # by an older version
    run.offer_and_consent()
    answered(run, store, [row(split, TOLD) for split in ("validation", "test")])
    page = page_of(pages(run, "older"))
    assert "the newest aggregate, that of round 0" in page and "is the main score" not in page
    store.begin(configuration, sharing_of_run, ToldByCode(score_name="dice_mean", in_turn=False, at_aggregator={}))
    page = page_of(pages(run, "newer"))
    assert "the best aggregate so far, that of round 0" in page and "dice is the main score" in page
    assert_is_drawn(tmp_path / "newer", "dice-mean-validation")


def test_csv_says_what_the_document_says(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    scores = TOLD | {"dice_mean": 0.1235, "auroc_mean": None}
    rows = [row("validation", scores), row("test", TOLD | {"auroc_mean": 0.5})]
    answered(run, store, rows, score="0.7000000000000001")
    document = json.loads(report(run, "--json").output)
    folder = pages(run)
    north = document["rounds"][0]["sites"]["north"]
    expected = {
        (split, name): value
        for split in ("validation", "test")
        for name, value in {"loss": north[split]["loss"], **north[split]["scores"]}.items()
    }
    told = {(each["split"], each["score"]): each for each in rows_of(folder, "scores")}
    assert told.keys() == expected.keys()
    for key, value in expected.items():
        assert told[key]["value"] == ("" if value is None else decimal_text(value))
        assert told[key]["why_empty"] == ("not reported" if value is None else "")
    assert rows_of(folder, "dice-mean-validation") == [
        {"aggregate": "0", "north": "0.1235", "south": "", "mean over sites": "0.1235"}
    ]
    (verdict,) = rows_of(folder, "verdicts")
    assert {name: verdict[name] for name in ("score", "theta", "weight")} == {
        "score": "0.7000000000000001", "theta": "0.5", "weight": "1.0"
    }  # fmt: skip
    (times,) = rows_of(folder, "timeline")
    assert [times[what] for what in ("asked", "answered", "settled")] == [
        north[what] for what in ("asked", "answered", "settled")
    ]
    assert int(times["bytes from it"]) == north["bytes"]["up"]
    total = document["cost"]["bytes"]["north"]
    assert rows_of(folder, "bytes") == [
        {"site": "north", "bytes to it": str(total["down"]), "bytes from it": str(total["up"])}
    ]


def test_who_agreed_and_left_is_counted_among_the_sites(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    assert "2 invited, 1 agreed</dd>" in page_of(pages(run))
    withdrawal = Withdrawal(run=RUN, reason="a change of plans")
    run.send("withdrawal", 0, {names.WITHDRAWAL: canonical(withdrawal.model_dump())}, "consent")
    assert "2 invited, 1 agreed, 1 of them withdrew</dd>" in page_of(pages(run))


def test_what_is_withheld_is_said_and_not_drawn(run: Played, store: RunStore) -> None:
    run.offer_and_consent()
    withheld = dict.fromkeys(TOLD)
    answered(run, store, [row("validation", TOLD), row("test", withheld, "fewer than 5", None)])
    folder = pages(run)
    assert not (folder / "figures" / "dice-mean-test.svg").exists()
    assert (folder / "figures" / "dice-mean-validation.svg").exists()
    page = page_of(folder)
    assert '<td class="soft">not reported</td>' in page
    assert "fewer than 5" in page
    of_test = [each for each in rows_of(folder, "scores") if each["split"] == "test"]
    assert of_test
    assert {(each["value"], each["why_empty"]) for each in of_test} == {("", "not reported")}


def test_hostile_text_is_text(run: Played, store: RunStore) -> None:
    run.send("offer", 0, {name: store.home / name for name in (names.RUN_CONFIGURATION, names.TENSORS)}, None)
    consent = Consent(run=RUN, agrees=True, reason=HOSTILE, images={"train": "12"})
    run.send("consent", 0, {names.CONSENT: canonical(consent.model_dump())}, "offer")
    answered(run, store, [row("test", TOLD)], reason=HOSTILE)
    folder = pages(run)
    page = page_of(folder)
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<img src=http" not in page
    assert rows_of(folder, "sites")[0]["reason"] == f"'{HOSTILE}"  # no spreadsheet computes it
    assert rows_of(folder, "verdicts")[0]["reason"] == f"'{HOSTILE}"


def test_the_same_run_gives_the_same_bytes(one_round: tuple[Played, Path]) -> None:
    run, before = one_round
    made = re.compile(rb"<dt>Page made</dt><dd>\d{4}-\d\d-\d\d [\d:]{8}[+-]\d\d:\d\d</dd>")
    first, second = (
        {path.relative_to(folder): made.sub(b"", path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
        for folder in (before, pages(run, "again"))
    )
    assert first == second
    assert made.search((before / "report.html").read_bytes())


def test_pages_show_images_and_are_not_written_where_others_read(run: Played, store: RunStore) -> None:
    result = report(run, "--pages", str(run.drop / "pages"))
    said = f"{run.drop}/pages: lies in the drop folder {run.drop}, where others read it; name another place\n"
    assert (result.exit_code, result.output) == (2, said)
    assert not (run.drop / "pages").exists()


def test_pages_are_not_mixed_with_the_other_forms(run: Played, store: RunStore) -> None:
    result = report(run, "--pages", str(run.drop.parent / "pages"), "--json")
    assert result.exit_code == 2
    assert "--pages writes files of its own" in result.output
    assert not (run.drop.parent / "pages").exists()


# --- measured on held-out images ---------------------------------------------------------------------------


def launched(work: Path, run: RunConfiguration, images: int | None) -> RunStore:
    """A work directory with held-out images and the first, untrained model.

    Args:
        images: held-out; None: they are there already.
    """
    initialise(work, "retina", {site: f"http://127.0.0.1/{site}/" for site in run.sites}, "aggregator")
    if images is not None:
        write_data(run.task, work / "heldout", 0, images, seed=3)
    file = work / "aggregator.yaml"
    file.write_text(re.sub(r"(?m)^heldout:.*$", f"heldout: {{{run.task}: heldout}}", file.read_text()))
    heldout = open_heldout(work, run)
    model = heldout.untrained()
    division = sharing(heldout.task, heldout.method, model)
    store = RunStore(work, run.run)
    store.begin(run, division)
    Aggregation(store, heldout.method, heldout.method.groups(model, division)).begin(model)
    return store


@pytest.fixture(scope="module")
def segmenting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunStore]:
    work = tmp_path_factory.mktemp("segmenting")
    return work, launched(work, run_configuration(task_options={"image_size": None, "widths": [4, 8]}), 4)


@pytest.fixture(scope="module")
def grading(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunStore]:
    work = tmp_path_factory.mktemp("grading")
    return work, launched(work, staging_run(), 40)


def test_a_whole_model_is_measured_as_everywhere(segmenting: tuple[Path, RunStore]) -> None:
    work, store = segmenting
    heldout = open_heldout(work, store.configuration())
    measured = measure(heldout, store, 0)
    model = heldout.untrained()
    load_tensors(model, store.sharing().shared, store.aggregate_path(0))
    expected = evaluate(heldout.task, model, heldout.images.samples, heldout.objective).scores
    assert measured.scores == {name: expected[name].value for name in measured.scores}
    assert (measured.by_probe, measured.about_pixels, measured.images) == (False, True, 4)
    assert len(measured.truth) == 4 * min(32 * 32, PIXELS_PER_IMAGE)
    assert [example.dice for example in measured.examples] == sorted(example.dice for example in measured.examples)
    for example in measured.examples:
        sample = heldout.images.samples[example.number - 1]
        assert np.array_equal(example.truth, sample.mask)
        assert np.allclose(example.image, sample.image)
        assert example.uncertainty.shape == example.predicted.shape == sample.mask.shape


def test_the_dice_of_examples_is_the_mean_over_labels_as_the_score_beside_it(tmp_path: Path) -> None:
    options = {"labels": ["none", "artery", "vein"], "image_size": None, "widths": [4, 8]}
    write_labelled_vessels(tmp_path / "heldout", images=3)
    run = run_configuration(task="segmentation", method="mean", task_options=options)
    store = launched(tmp_path, run, images=None)
    measured = measure(open_heldout(tmp_path, run), store, 0)
    assert fmean(each.dice for each in measured.examples) == pytest.approx(measured.scores["dice_mean"])
    assert "other class" in examples(measured).svg.decode()
    two = replace(measured, classes=measured.classes[:2])
    assert "other class" not in examples(two).svg.decode()


def light(colour: str) -> float:
    """Its relative luminance, as WCAG has it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def test_every_colour_stands_out_from_white_paper_and_a_missed_pixel_also_in_grey() -> None:
    assert all((1 + 0.05) / (light(colour) + 0.05) >= 3 for colour in COLOURS)
    left_out, missed, too_much, _ = map(light, KINDS.values())
    assert (missed + 0.05) / (left_out + 0.05) >= 3 and (too_much + 0.05) / (missed + 0.05) >= 3


def test_a_pixel_of_a_wrong_class_is_not_found() -> None:
    truth, predicted = np.array([[0, 1, 0, 1, 2]]), np.array([[0, 0, 1, 1, 1]])
    example = Example(1, np.zeros((1, 5), np.float32), truth, predicted, np.zeros((1, 5)), 0.5)
    assert kinds_of(example).tolist() == [[0, 1, 2, 3, 4]]


def test_a_head_at_the_sites_leaves_the_probe(grading: tuple[Path, RunStore]) -> None:
    work, store = grading
    heldout = open_heldout(work, store.configuration())
    measured = measure(heldout, store, 0)
    model = heldout.untrained()
    load_tensors(model, store.sharing().beginning, store.start)
    load_tensors(model, store.sharing().shared, store.aggregate_path(0))
    seed = probe_seed(store.configuration())
    assert measured.scores["balanced_accuracy"] == pytest.approx(probe_score(heldout.task, model, heldout.images, seed))
    assert (measured.by_probe, measured.about_pixels, measured.examples) == (True, False, ())
    assert np.array_equal(measured.truth, [sample.grade for sample in heldout.images.samples])
    assert measured.probabilities.shape == (40, len(heldout.images.classes))


def test_every_figure_of_the_held_out_images(segmenting: tuple[Path, RunStore], tmp_path: Path) -> None:
    work, store = segmenting
    arguments = ["report", store.run, "--work", str(work), "--pages"]
    assert CliRunner().invoke(main, [*arguments, str(tmp_path)]).exit_code == 0
    for name in TITLES:
        assert_is_drawn(tmp_path, name)
    page = page_of(tmp_path)
    assert_loads_nothing(page)
    assert "The whole model answers." in page
    assert "give it only to those who may see them" in page
    first, *others = rows_of(tmp_path, "precision-recall")
    assert (first["recall"], first["precision"]) == ("0.0", "1.0")
    assert all(float(each["recall"]) > 0 and float(each["precision"]) > 0 for each in others)
    counts = rows_of(tmp_path, "confusion")
    assert sum(int(each[name]) for each in counts for name in ("background", "vessel")) == 4 * 32 * 32

    # Without the images nothing stale stays.
    file = work / "aggregator.yaml"
    before = file.read_text()
    file.write_text(re.sub(r"(?m)^heldout:.*$", "heldout: {}", before))
    assert CliRunner().invoke(main, [*arguments, str(tmp_path)]).exit_code == 0
    file.write_text(before)
    assert not [path for name in TITLES for path in tmp_path.rglob(f"{name}.*")]


def test_the_probe_s_page_says_so(grading: tuple[Path, RunStore], tmp_path: Path) -> None:
    work, store = grading
    result = CliRunner().invoke(main, ["report", store.run, "--work", str(work), "--pages", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = page_of(tmp_path)
    assert "What answers here is a linear probe" in page
    assert "Not drawn: the task grades images and segments none." in page
    for name in TITLES:
        if name != "examples":
            assert_is_drawn(tmp_path, name)


def test_what_cannot_be_measured_says_why(segmenting: tuple[Path, RunStore]) -> None:
    work, store = segmenting
    with pytest.raises(DataError, match="the aggregate of round 3 is not kept"):
        measure(open_heldout(work, store.configuration()), store, 3)
    other = RunStore(work, "other")
    other.begin(store.configuration(), Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    other.aggregate_path(0).parent.mkdir(parents=True)
    other.aggregate_path(0).write_bytes(store.aggregate_path(0).read_bytes())
    with pytest.raises(DataError, match="another network"):
        measure(open_heldout(work, store.configuration()), other, 0)


def test_one_class_and_one_kind_of_answer_have_no_curve(grading: tuple[Path, RunStore]) -> None:
    work, store = grading
    measured = measure(open_heldout(work, store.configuration()), store, 0)
    classes = len(measured.classes)
    certain = np.eye(classes)[np.zeros(6, dtype=int)]
    always_right = replace(
        measured, truth=np.zeros(6, dtype=np.int64), probabilities=certain, uncertainty=np.zeros(6), images=6
    )
    figures = {figure.name: figure for figure in heldout_figures(always_right)}
    assert figures["roc"].why_none == figures["precision-recall"].why_none == "the held-out images hold one class only"
    assert "undefined, for all are right or all are wrong" in figures["uncertainty"].caption
    assert figures["confusion"].svg


# --- the parts ---------------------------------------------------------------------------------------------


def entry(asked: str | None, answered: str | None, settled: str | None) -> Part:
    return Part(asked=asked, answered=answered, settled=settled, bytes=Bytes(1, None))


def cells(figure: Figure, column: str) -> list[Any]:
    assert figure.table is not None
    return [each[figure.table.header.index(column)] for each in figure.table.rows]


def test_what_is_missing_of_a_grade_is_called_as_in_its_cell() -> None:
    north, south = ({"accuracy_of_0": 0.5, "accuracy_of_1": None}, {"accuracy_of_0": 0.25})
    parts = {"north": Part(test=views.row(**north)), "south": Part(test=views.row(**south))}
    figure = of_classes(view_of_rounds([{}, parts], sites=[*parts]), 1, "test")
    assert figure.table is not None
    missing = {cell.why for row in figure.table.rows for cell in row if isinstance(cell, Missing)}
    assert missing == {"not reported", "not scored"}
    assert all(f"{word.capitalize()}: " in figure.caption for word in missing)


def test_classes_that_each_site_has_for_itself_have_no_mean_over_sites() -> None:
    parts = {site: Part(test=views.row(accuracy_of_3=0.5, auroc=0.8)) for site in ("north", "south")}
    fixed = {"task": "image_classification", "method": "fedavg", "task_options": {"labels": list("abcd")}}
    for settings, mean in ((fixed, "0.500 ± 0.000"), ({"task": "dr_staging", "method": "fedavg"}, "–")):
        view = view_of_rounds([parts], **{"augmentation": {}, "task_options": {}} | settings)
        table = as_in_papers(view, 0, "test")
        last = {line[0].text: line[-1].text for line in table.shown}
        assert (last["accuracy_of_3"], last["auroc"]) == (mean, "0.800 ± 0.000")
        said = any(
            "accuracy_of_K has no mean over sites: each site has classes of its own" in note for note in table.notes
        )
        assert said == (mean == "–")


def test_who_waited_for_whom() -> None:
    north, south = entry(f"{NOON}00Z", f"{NOON}20Z", f"{NOON}50Z"), entry(f"{NOON}00Z", f"{NOON}40Z", f"{NOON}50Z")
    figure = timeline(view_of_rounds([{"north": north, "south": south}]))
    assert cells(figure, "waited for") == ["south", None]
    assert cells(figure, "seconds to answer") == [20, 40]
    assert cells(figure, "seconds until settled") == [30, 10]
    north, south = entry(f"{NOON}00Z", f"{NOON}20Z", None), entry(f"{NOON}00Z", None, None)
    silent = timeline(view_of_rounds([{"north": north, "south": south}]))
    assert cells(silent, "waited for") == ["south", None]
    assert cells(silent, "seconds to answer") == [20, None]
    assert timeline(view_of_rounds([{"north": entry(None, None, None)}])).why_none == "no site was asked yet"


def test_an_update_that_comes_after_its_round_has_closed_blames_no_clock() -> None:
    late = replace(entry(f"{NOON}00Z", f"{NOON}55Z", f"{NOON}50Z"), status="late")
    in_time = entry(f"{NOON}00Z", f"{NOON}40Z", f"{NOON}50Z")
    figure = timeline(view_of_rounds([{"north": late, "south": in_time}]))
    assert cells(figure, "seconds until settled") == [None, 10]
    assert "came after the round had closed" in (drawn := figure.svg.decode()) and "clock disagrees" not in drawn
    wrong = timeline(view_of_rounds([{"north": replace(late, status="accepted"), "south": in_time}]))
    assert "clock disagrees" in (drawn := wrong.svg.decode()) and "came after" not in drawn


@pytest.mark.parametrize("settled", [None, f"{NOON}50Z"])
def test_a_clock_that_is_years_ahead_stretches_nothing(settled: str | None) -> None:
    ahead, right = (entry(f"{NOON}00Z", answered, settled) for answered in ("2999-01-01T00:00:00Z", f"{NOON}40Z"))
    seconds = 50.0 if settled else 40.0
    assert f"over {seconds} seconds" in timeline(view_of_rounds([{"north": ahead, "south": right}])).alt


def test_scores_as_in_papers() -> None:
    some = views.row(auroc=0.2, dice_mean=0.5, dice_std=0.1, referral_share_90=0.5, referral_share_95=0.5)
    fewer = views.row(auroc=None, dice_mean=0.7, dice_std=0.0)
    view = view_of_rounds([{"a": Part(test=some), "b": Part(test=fewer)}])
    table = as_in_papers(view, 0, "test")
    assert table.header == ("score", "a", "b", "mean over sites")
    assert [[cell.text for cell in each] for each in table.shown] == [
        ["images", "10", "10", "–"],
        ["dice (main score)", "0.500 ± 0.100", "0.700 ± 0.000", "0.600 ± 0.100"],
        ["loss", "1.000", "1.000", "1.000 ± 0.000"],
        ["auroc", "0.200", "not reported", "0.200 (1 of 2)"],
        ["referral_share_90", "0.500", "not scored", "0.500 (1 of 2)"],
        ["referral_share_95", "0.500", "not scored", "0.500 (1 of 2)"],
    ]
    assert "in brackets: how many of the sites reported the score" in table.caption
    assert table.csv().decode().splitlines()[2].startswith("dice,")
    assert [note.split(":")[0] for note in table.notes] == [
        "dice is the main score", "dice", "loss", "auroc", "referral_share_P"
    ]  # fmt: skip
    assert "in a site's column the standard deviation over its images" in table.caption
    assert as_in_papers(view, 7, "test").rows == []


def test_what_no_site_reported_has_no_row_but_the_main_score() -> None:
    alone = views.row(auroc=None, dice_mean=None, epsilon=None)
    table = as_in_papers(view_of_rounds([{"a": Part(test=alone)}]), 0, "test")
    assert [[cell.text for cell in each] for each in table.shown] == [
        ["images", "10", "–"],
        ["dice (main score)", "not reported", "not reported"],
        ["loss", "1.000", "1.000"],
    ]
    assert "brackets" not in table.caption


def test_a_mean_over_other_sites_than_before_is_said_to_be_so() -> None:
    told = views.row(dice_mean=0.5)

    def told_by(*sites: str) -> dict[str, Part]:
        return {site: Part(told, told) if site in sites else Part() for site in "ab"}

    for others, is_said in ((("a", "b"), False), (("b",), True)):
        for figure in curves(view_of_rounds([told_by("a", "b"), told_by(), told_by(*others)])):
            assert ("not the same ones for each aggregate" in figure.caption) == is_said


def test_a_long_table_is_whole_in_its_file_alone() -> None:
    table = Table("long", "Long", ("n",), [[number] for number in range(SHOWN_ROWS + 7)])
    assert (len(table.shown), table.left_out) == (SHOWN_ROWS, 7)
    assert len(list(csv.reader(io.StringIO(table.csv().decode())))) == SHOWN_ROWS + 8


def test_an_undefined_score_of_the_held_out_images_is_said() -> None:
    table = of_heldout({"auroc": None, "dice_mean": 0.5, "dice_std": 0.25}, 3, "dice_mean")
    assert [[cell.text for cell in each] for each in table.shown] == [
        ["dice (main score)", "0.500 ± 0.250"], ["auroc", "undefined"]
    ]  # fmt: skip


def test_every_score_of_a_site_has_its_meaning() -> None:
    truth, probabilities = np.array([0, 1, 0, 1]), np.array([[0.8, 0.2], [0.3, 0.7], [0.4, 0.6], [0.1, 0.9]])
    names = sorted({*grading_scores(truth, probabilities, np.array([0.1, 0.2, 0.9, 0.3])), "loss"})
    said = [note.split(":")[0] for note in meanings(names, "kappa")[1:]]
    assert [name for name in names if not any(name.startswith(each.rstrip("KP")) for each in said)] == []


def test_a_dollar_is_no_formula() -> None:
    svg, png = picture(lambda sheet: sheet.subplots().set(title="$\\nosuch{$"))
    assert svg.startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")


def test_what_referral_leaves() -> None:
    right = np.array([True, False, True, True])
    kept, kept_right = left_by_referral(ranking(np.array([0.1, 0.9, 0.5, 0.5]), ~right))
    assert kept.tolist() == [4, 3, 1, 0]
    assert kept_right.tolist() == [3, 3, 1, 0]
