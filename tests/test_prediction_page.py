"""The page of predictions: what it shows and in which order, that it asks for nothing, and how a person uses it."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from PIL import ExifTags, Image

from shared.errors import DataError
from shared.learning import predictions
from shared.learning.prediction_page import LONGEST_SIDE, MOST_SHOWN, Page
from shared.learning.tasks import task_named
from site_client.cli import main
from tests.browser import chromium
from tests.learning.exports import DISEASES, VESSELS, write_export, write_kept
from tests.learning.small_sites import LABELS, SIGNALS, write_labelled_vessels, write_small

RIGHT, LEFT, END = "\ue014", "\ue012", "\ue010"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of vessels and a model of them, with what the two commands write."""
    home = tmp_path_factory.mktemp("page")
    write_export(home / "model", **VESSELS)
    write_small("octa_segmentation", home / "data", images=4, size=64)
    Image.effect_noise((700, 300), 60).save(home / "data" / "images" / "a <b>wide< one.png")
    Image.new("L", (700, 300)).save(home / "data" / "masks" / "a <b>wide< one.png")
    for asked in (
        ["predict", str(home / "data" / "images"), "--output", str(home / "out"), "--page"],
        ["evaluate", str(home / "data"), "--page", str(home / "compared.html")],
    ):
        result = CliRunner().invoke(main, [*asked, "--model", str(home / "model")])
        assert result.exit_code == 0, result.output
        (home / f"{asked[0]}.txt").write_text(result.output)
    return home


def names_in(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_the_commands_say_whose_model_was_asked_and_where_the_page_is(folder: Path) -> None:
    run = yaml.safe_load((folder / "model" / "run.yaml").read_text())["run"]
    out = folder / "out"
    said = f"by the model of {run}, θ 0.5000: {out}/predictions.csv and {out}/predictions.html"
    assert (
        (folder / "predict.txt")
        .read_text()
        .endswith(
            f"{said}\nFor research only, not for diagnosis: no decision about a patient may rest on these answers.\n"
        )
    )
    assert re.search(rf"^model of +{run}$", (folder / "evaluate.txt").read_text(), re.MULTILINE)


def test_the_most_uncertain_come_first(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "out" / "predictions.csv").open(encoding="utf-8", newline="")))
    expected = [row["image"] for row in sorted(rows, key=lambda row: -float(row["uncertainty"]))]
    page = (folder / "out" / "predictions.html").read_text(encoding="utf-8")
    assert [name.replace("&lt;", "<").replace("&gt;", ">") for name in names_in(page)] == expected
    for row in rows:
        assert f"Mean uncertainty {float(row['uncertainty']):.2f}." in page
        assert f"vessel {float(row['share_vessel']):.1%}" in page
    assert "An aid for research, not a diagnosis." in page


def test_the_lowest_dice_comes_first(folder: Path) -> None:
    page = (folder / "compared.html").read_text(encoding="utf-8")
    found = [float(value) for value in re.findall(r"Dice (\d\.\d{3}) against the mask", page)]
    assert len(found) == 5 and found == sorted(found)
    assert found[0] == 0, "the mask of noise is empty"
    assert names_in(page)[0] == "a &lt;b&gt;wide&lt; one"
    assert page.count("<figcaption>mask (in colour)</figcaption>") == 5


def test_the_dice_of_several_labels_is_the_mean_over_them_as_in_the_scores(tmp_path: Path) -> None:
    options = {"labels": ["none", "artery", "vein"], "widths": [4, 8]}
    write_export(tmp_path / "model", task="segmentation", method="mean", task_options=options)
    write_labelled_vessels(tmp_path / "data", images=3)
    asked = ["evaluate", str(tmp_path / "data"), "--page", str(tmp_path / "page.html"), "--all"]
    result = CliRunner().invoke(main, [*asked, "--model", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    shown = [float(value) for value in re.findall(r"Dice (\d\.\d{3}) against the mask", page)]
    (scored,) = re.findall(r"(?m)^dice_mean +(\d\.\d+)", result.output)
    assert fmean(shown) == pytest.approx(float(scored), abs=0.001)


def test_pictures_are_in_the_page_and_bounded(folder: Path) -> None:
    page = (folder / "out" / "predictions.html").read_text(encoding="utf-8")
    sources = re.findall(r'<img src="(.*?)"', page)
    assert len(sources) == 3 * 5
    assert re.findall(r"https?:|url|@import|//[a-z]", re.sub(r'"data:.*?"', "", page)) == []
    sizes = set()
    for source in sources:
        head, _, content = source.partition(",")
        assert head == "data:image/jpeg;base64"
        sizes.add(Image.open(io.BytesIO(b64decode(content))).size)
    assert sizes == {(64, 64), (LONGEST_SIDE, 219)}
    assert Image.open(folder / "out" / "masks" / "a <b>wide< one.png").size == (700, 300)


def test_of_many_images_the_page_shows_some_and_says_how_many_not() -> None:
    page = Page("Predictions", "The most uncertain come first")
    ranks = np.random.default_rng(1).permutation(MOST_SHOWN + 3)
    for rank in ranks:
        page.add(float(rank), f"image-{rank}", ["seen"], {"image": np.zeros((2, 2))})
    html = page.html("predictions.csv tells of all").decode()
    assert names_in(html) == [f"image-{rank}" for rank in range(MOST_SHOWN + 2, 2, -1)]
    assert "3 more images are not on this page; predictions.csv tells of all." in html


def test_of_graded_images_the_least_probable_truth_comes_first(tmp_path: Path) -> None:
    write_export(tmp_path / "model", **DISEASES)
    write_small("fundus_disease", tmp_path / "data", images=8, size=64)
    asked = ["evaluate", str(tmp_path / "data"), "--page", str(tmp_path / "page.html")]
    result = CliRunner().invoke(main, [*asked, "--model", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    truths = re.findall(r"Graded as (.*?) by people", page)
    probabilities = re.findall(r"normal (\d+)%, glaucoma (\d+)%, cataract (\d+)%", page)
    shares = [int(of[LABELS.index(truth)]) for truth, of in zip(truths, probabilities, strict=True)]
    assert len(shares) == 8 and shares == sorted(shares)


def test_time_series_have_no_page(tmp_path: Path) -> None:
    write_export(tmp_path / "model", task="time_series", method="fedavg", task_options=SIGNALS["time_series"])
    write_small("time_series", tmp_path / "data", images=3, size=64)
    asked = ["predict", str(tmp_path / "data" / "recordings"), "--model", str(tmp_path / "model"), "--page"]
    result = CliRunner().invoke(main, [*asked, "--output", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.output.endswith("a page shows images, and these are time series: leave --page out\n")
    assert not (tmp_path / "out").exists()


def test_a_person_leafs_through_by_the_arrow_keys(folder: Path, tmp_path: Path) -> None:
    path = folder / "out" / "predictions.html"
    with chromium(tmp_path) as browser:
        browser.resize(320, 256)  # as a page of 1280 pixels, four times as large
        browser.open(path.as_uri())
        browser.run("scrollTo(0, document.documentElement.scrollHeight)")
        browser.press(RIGHT)
        top = "return document.querySelector('section.image:not([hidden])').getBoundingClientRect().top"
        assert browser.run(top) > -1
        browser.press(LEFT)
        shown = []
        for keys in ("", LEFT, RIGHT, RIGHT, LEFT, END, RIGHT * 3, RIGHT):
            browser.press(keys)
            assert browser.run("return document.querySelectorAll('section.image:not([hidden])').length") == 1
            shown.append(browser.text("#place"))
            assert shown[-1].endswith(f": {browser.text('section.image:not([hidden]) h2')}")
        numbers = [text.partition(" of 5: ")[0] for text in shown]
        assert numbers == ["1", "1", "2", "3", "2", "2", "5", "5"]  # End goes to the end of the page
        browser.run("document.getElementById('back').click()")
        assert browser.text("#place").startswith("4 of 5: ")
        assert [address for address in browser.requested() if not address.startswith("data:")] == [path.as_uri()]
        assert browser.complaints() == []


def test_no_mask_that_a_person_has_drawn_is_written_over(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    before = {path.name: path.read_bytes() for path in (tmp_path / "data" / "masks").iterdir()}
    images, model = str(tmp_path / "data" / "images"), str(folder / "model")
    result = CliRunner().invoke(main, ["predict", images, "--model", model, "--output", str(tmp_path / "data")])
    told = f"{tmp_path / 'data'}: has a folder masks that no prediction wrote; name another folder\n"
    assert (result.exit_code, result.stderr) == (2, told)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data" / "masks").iterdir()} == before
    for _ in range(2):  # what a prediction wrote, the next one may write anew, also if it was cut off
        asked = ["predict", images, "--model", model, "--output", str(tmp_path / "out")]
        assert CliRunner().invoke(main, asked).exit_code == 0
        (tmp_path / "out" / "predictions.csv").unlink()


def test_a_model_that_is_named_needs_no_work_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a PI's shell, in which DROPFED_WORK is the aggregator's."""
    (tmp_path / "aggregator.yaml").write_bytes(b"")
    monkeypatch.setenv("DROPFED_WORK", str(tmp_path))
    asked = ["predict", str(folder / "data" / "images"), "--output", str(tmp_path / "out")]
    assert CliRunner().invoke(main, [*asked, "--model", str(folder / "model")]).exit_code == 0
    result = CliRunner().invoke(main, asked)
    assert (
        result.exit_code == 2
        and "is the aggregator's work directory, and this command is for a site's" in result.output
    )


@pytest.mark.parametrize(("theta_from", "images"), [(None, "training"), ("train", "training"), ("validation",) * 2])
def test_a_warning_about_theta_names_the_images_that_it_was_measured_on(
    theta_from: str | None, images: str, folder: Path, tmp_path: Path
) -> None:
    options = {"theta_from": theta_from} if theta_from else {}
    write_kept(tmp_path / "model", ["background", "vessel"], "all right", **VESSELS | {"method_options": options})
    asked = ["predict", str(folder / "data" / "images"), "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(main, [*asked, "--output", str(tmp_path / "out")])
    assert result.exit_code == 0
    assert f"(every answer about the {images} images was right, and none that is wrong" in result.stderr


def test_a_page_takes_the_place_of_nothing_but_a_page(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("kept")
    asked = ["evaluate", str(folder / "data"), "--model", str(folder / "model"), "--page", str(tmp_path / "site.yaml")]
    result = CliRunner().invoke(main, asked)
    said = f"{tmp_path}/site.yaml: is there already, and does not end in .html; name another file\n"
    assert (result.exit_code, result.output) == (2, said)
    assert (tmp_path / "site.yaml").read_text() == "kept"


def test_a_page_in_a_folder_that_is_not_there_is_told_before_anything_is_scored(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    asked = ["evaluate", str(tmp_path / "empty"), "--model", str(folder / "model")]
    result = CliRunner().invoke(main, [*asked, "--page", str(tmp_path / "new" / "page.html")])
    said = f"{tmp_path}/new/page.html: there is no folder {tmp_path}/new; make it, or name another file\n"
    assert (result.exit_code, result.output) == (2, said)


@pytest.mark.parametrize("within", [".", "runs/octa-1", "new/folder"])
def test_nothing_that_shows_images_is_written_where_others_read(within: str, folder: Path, tmp_path: Path) -> None:
    (drop := tmp_path / "drop").mkdir()
    for card in (drop / "site.json", drop / "federation.json", tmp_path / "federation.json"):
        card.write_bytes(b"{}")  # the last lies where somebody keeps a copy
    (drop / "runs" / "octa-1").mkdir(parents=True)
    (tmp_path / "link").symlink_to(drop)
    before = sorted(drop.rglob("*"))
    for place in (drop / within, tmp_path / "link" / within):
        for asked, target in (
            (["predict", str(folder / "data" / "images"), "--output"], place),
            (["evaluate", str(folder / "data"), "--page"], place / "page.html"),
        ):
            result = CliRunner().invoke(main, [*asked, str(target), "--model", str(folder / "model")])
            said = f"{target}: lies in the drop folder {drop}, where others read it; name another place\n"
            assert (result.exit_code, result.output) == (2, said)
    assert sorted(drop.rglob("*")) == before


def test_nothing_that_shows_images_is_written_among_them(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", data := tmp_path / "data")
    (tmp_path / "link").symlink_to(data / "images")
    before = sorted(data.rglob("*"))
    for images in (data / "images", tmp_path / "link"):
        for target in (images, images / "new" / "out"):
            asked = ["predict", str(data / "images"), "--model", str(folder / "model"), "--output", str(target)]
            result = CliRunner().invoke(main, asked)
            said = f"{target}: lies in {data}/images, among the images themselves; name another place\n"
            assert (result.exit_code, result.output) == (2, said)
    asked = ["evaluate", str(data), "--model", str(folder / "model"), "--page", str(data / "images" / "page.html")]
    assert "among the images themselves" in CliRunner().invoke(main, asked).output
    assert sorted(data.rglob("*")) == before


@pytest.mark.parametrize("amount", ["inf", "nan"])
def test_what_bounds_nothing_is_no_bound_of_a_plug_in(folder: Path, amount: str) -> None:
    for option in ("--plugin-minutes", "--plugin-memory-gb"):
        asked = ["evaluate", str(folder / "data"), "--model", str(folder / "model"), option, amount]
        result = CliRunner().invoke(main, asked)
        assert result.exit_code == 2
        assert f"Invalid value for '{option}': {amount} bounds nothing: name a number" in result.output


def test_of_several_runs_models_none_is_taken_that_nobody_named(tmp_path: Path) -> None:
    """A copy or a restored backup gives files other times, so these do not tell which model is meant."""
    for run in ("second", "first"):
        (tmp_path / "final" / run).mkdir(parents=True)
        (tmp_path / "final" / run / "card.yaml").write_bytes(b"")
    asked = ["--model", str(tmp_path / "final")]
    for command in (["predict", str(tmp_path), "--output", str(tmp_path / "out")], ["evaluate", str(tmp_path)]):
        result = CliRunner().invoke(main, [*command, *asked])
        assert result.exit_code == 2
        said = f"{tmp_path}/final: holds several models (first, second); name one of them, as {tmp_path}/final/RUN"
        assert said in " ".join(result.output.split())


def test_no_pictures_of_other_images_are_left_beside(folder: Path, tmp_path: Path) -> None:
    images, asked = folder / "data" / "images", ["--model", str(folder / "model"), "--output", str(tmp_path / "out")]
    assert CliRunner().invoke(main, ["predict", str(images), *asked]).exit_code == 0
    table = (tmp_path / "out" / "predictions.csv").read_bytes()
    (tmp_path / "out" / "masks" / f".{images.name}.png.writing").write_bytes(b"")  # as one that was cut off leaves
    assert CliRunner().invoke(main, ["predict", str(images), *asked]).exit_code == 0
    one, *others = sorted(images.iterdir())
    result = CliRunner().invoke(main, ["predict", str(one), *asked])
    told = f"{tmp_path / 'out'}: has pictures of other images, as of {others[0].stem}, from an earlier prediction; "
    assert (result.exit_code, result.stderr) == (2, f"{told}name another folder\n")
    assert (tmp_path / "out" / "predictions.csv").read_bytes() == table


def test_nothing_that_an_earlier_model_said_stays_beside(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["predict", str(folder / "data" / "images"), "--model", str(folder / "model"), "--output", str(out)]
    assert CliRunner().invoke(main, [*asked, "--page"]).exit_code == 0
    assert CliRunner().invoke(main, asked).exit_code == 0
    assert (out / "predictions.csv").exists() and not (out / "predictions.html").exists()
    (out / "segmentations").mkdir()
    result = CliRunner().invoke(main, asked)
    told = f"{out}: has segmentations from an earlier prediction; pass --dicom-seg, or name another folder\n"
    assert (result.exit_code, result.stderr) == (2, told)


def test_an_image_that_goes_meanwhile_or_has_too_long_a_name_is_told_and_the_others_are_predicted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, out, long = tmp_path / "images", tmp_path / "out", "糖" * 81
    shutil.copytree(folder / "data" / "images", images)
    (images / f"{long}.png").write_bytes(next(images.iterdir()).read_bytes())
    gone, *kept = sorted(path.stem for path in images.iterdir() if path.stem != long)
    answers = predictions.each_answer

    def meanwhile(*given: Any) -> Iterator[Any]:
        (images / f"{gone}.png").unlink()
        yield from answers(*given)

    monkeypatch.setattr(predictions, "each_answer", meanwhile)
    asked = ["predict", str(images), "--model", str(folder / "model"), "--output", str(out), "--page"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1
    assert f"{long}.png: its name is too long for its pictures; give it a shorter." in result.stderr
    assert f"images/{gone}.png: cannot be read as an image" in result.stderr
    rows = list(csv.DictReader((out / "predictions.csv").open(encoding="utf-8", newline="")))
    assert sorted(row["image"] for row in rows) == kept
    assert sorted(path.stem for path in (out / "masks").iterdir()) == kept


def test_what_is_drawn_fits_the_image_as_viewers_turn_it(folder: Path, tmp_path: Path) -> None:
    quarter = Image.Exif()
    quarter[ExifTags.Base.Orientation] = 6
    Image.effect_noise((80, 48), 60).save(tmp_path / "eye.jpg", exif=quarter)
    asked = ["predict", str(tmp_path / "eye.jpg"), "--model", str(folder / "model"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    for part in ("masks", "uncertainty", "overlays"):
        assert Image.open(tmp_path / "out" / part / "eye.png").size == (48, 80)


def test_no_spreadsheet_computes_what_somebody_called_an_image_or_a_class(tmp_path: Path) -> None:
    classes = ["=B2+1", "-1"]
    settings = DISEASES | {"task_options": DISEASES["task_options"] | {"labels": classes}}
    write_export(tmp_path / "model", **settings | {"task": "image_classification"})
    (tmp_path / "images").mkdir()
    Image.effect_noise((64, 64), 60).save(tmp_path / "images" / "@SUM(1+1).png")
    asked = ["predict", str(tmp_path / "images"), "--output", str(tmp_path / "out"), "--model", str(tmp_path / "model")]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    (row,) = csv.DictReader((tmp_path / "out" / "predictions.csv").open(encoding="utf-8", newline=""))
    assert row["image"] == "'@SUM(1+1)"
    assert row["grade_name"] in [f"'{name}" for name in classes]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such name")
def test_a_name_that_is_no_utf8_is_told_and_the_others_are_predicted(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "data", tmp_path / "data")
    image = next((tmp_path / "data" / "images").iterdir())
    (tmp_path / "data" / "images" / os.fsdecode(b"m\xfcller.png")).write_bytes(image.read_bytes())
    told = r"images/m\udcfcller.png: its name is no UTF-8, or has a character that no screen shows; rename it."
    asked = ["predict", str(tmp_path / "data" / "images"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(main, [*asked, "--model", str(folder / "model")])
    assert told in result.output and (tmp_path / "out" / "predictions.csv").exists()
    with pytest.raises(DataError) as caught:
        task_named("octa_segmentation").units(tmp_path / "data")
    assert told in caught.value.problems


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes among files")
def test_a_pipe_in_place_of_a_card_is_waited_for_by_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "card.yaml")
    result = CliRunner().invoke(main, ["predict", str(tmp_path), "--model", str(tmp_path), "--output", str(tmp_path)])
    assert (result.exit_code, "card.yaml: is no file that can be read" in result.stderr) == (2, True)
