"""What a site measures of its images for a survey, and what its sheet then tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from deploy.local.synthetic_signals import write_sounds
from shared.exchange.records.surveys import NOT_SAID, OTHER, Survey
from shared.learning.data.recordings import recording_units
from shared.learning.data.units import Unit, hashed
from site_client.own_images import image_files
from site_client.pictures import class_shares, maker_of, measured
from site_client.sheet import Measured, by_content, measure, told

SECRET = "Jane Doe, born 1950"


def survey(task: str = "image_classification", classes: tuple[str, ...] = ("well", "ill")) -> Survey:
    return Survey(
        federation="retina",
        site="north",
        number=1,
        task=task,
        classes=[*classes],
        created="2026-11-24T10:00:00Z",
    )


def draw(path: Path, side: int = 40, colour: bool = False, maker: str | None = None, seed: int = 0) -> Path:
    """Write an image: noise in the middle, black around it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = np.zeros((side, side, 3), dtype=np.uint8)
    noise = np.random.default_rng(seed).integers(50, 255, (side // 2, side // 2, 3), dtype=np.uint8)
    levels[: side // 2, : side // 2] = noise if colour else noise[..., :1]
    exif = Image.Exif()
    if maker:
        exif[ExifTags.Base.Make] = maker
        exif[ExifTags.Base.ImageDescription] = SECRET
    Image.fromarray(levels).save(path, exif=exif)
    return path


def units(paths: list[Path], **said: str | None) -> list[Unit]:
    return [Unit(path.stem, (hashed(path),), path.stem, **said) for path in paths]  # type: ignore[arg-type]


def test_a_picture_is_measured(tmp_path: Path) -> None:
    picture = measured(draw(tmp_path / "a.png"))
    assert (picture.format, picture.bit_depth, picture.colour) == ("png", "8", "grey")
    assert (picture.longer_side, picture.shorter_side) == (40, 40)
    assert picture.field_of_view == 0.25
    assert picture.intensity.sum() == pytest.approx(1)
    assert picture.intensity[0] == 0.75
    assert measured(draw(tmp_path / "b.png", colour=True)).colour == "colour"
    Image.fromarray(np.full((8, 8), 9, dtype=np.uint16)).save(tmp_path / "c.tif")
    assert measured(tmp_path / "c.tif").bit_depth == "more than 8"


def test_a_sharp_image_is_sharper_than_a_blurred_one(tmp_path: Path) -> None:
    sharp = draw(tmp_path / "a.png", side=200)
    Image.open(sharp).resize((50, 50)).resize((200, 200), Image.Resampling.BICUBIC).save(tmp_path / "b.png")
    assert measured(sharp).sharpness > 2 * measured(tmp_path / "b.png").sharpness


@pytest.mark.parametrize(
    ("said", "known"),
    [("TOPCON Corporation", "topcon"), ("Carl Zeiss Meditec", "zeiss"), (SECRET, OTHER), (None, NOT_SAID)],
)
def test_of_a_maker_only_a_known_name_is_told(tmp_path: Path, said: str | None, known: str) -> None:
    assert maker_of(draw(tmp_path / "a.png", maker=said)) == known


def test_shares_of_a_mask(tmp_path: Path) -> None:
    mask = np.zeros((10, 10), dtype=np.uint8)
    mask[:3] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    assert class_shares(tmp_path / "mask.png", 2).tolist() == [0.7, 0.3]


@pytest.mark.parametrize("classes", [(), ("b",), ("b", "v"), ("b", "v", "l"), ("b", "v", "l", "rare"), tuple("abcde")])
def test_which_images_count_does_not_depend_on_the_classes_that_are_asked_for(
    tmp_path: Path, classes: tuple[str, ...]
) -> None:
    """Else a survey that leaves a rare class out would be about the images without it, and tell how many have it."""
    found, files = [], {}
    for n in range(24):
        image, mask = draw(tmp_path / f"images/{n}.png", seed=n), tmp_path / f"masks/{n}.png"
        mask.parent.mkdir(exist_ok=True)
        levels = np.zeros((40, 40), dtype=np.uint8)
        levels[:8], levels[8:10] = 1, 2
        if n in (3, 17):
            levels[20:22] = 3
        Image.fromarray(levels).save(mask)
        files |= {hashed(image): image, hashed(mask): mask}
        found.append(Unit(str(n), (hashed(image),), hashed(mask)))
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"no mask")
    files[hashed(torn)] = torn
    found.append(Unit("torn", found[0].contents, hashed(torn)))
    sheet = told(measure(found, files, classes, lambda: None), survey("segmentation", classes), duplicates=0, least=10)
    assert (sheet.images, sheet.unreadable) == ("24", "fewer than 10")
    assert list(sheet.class_shares) == list(classes)
    if len(classes) > 2:  # two classes are told apart by whether a pixel is 0
        assert (sheet.class_shares[classes[1]].p50, sheet.class_shares[classes[2]].p50) == ("0.2", "0.05")


def test_where_a_mask_is_jpeg_no_shares_of_several_classes_are_told(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 2, dtype=np.uint8)).save(tmp_path / "mask.jpg")
    assert class_shares(tmp_path / "mask.jpg", 3) is None
    assert class_shares(tmp_path / "mask.jpg", 2).tolist() == [1.0, 0.0]


def test_a_sheet_tells_counts_and_no_text_of_a_file(tmp_path: Path) -> None:
    paths = [draw(tmp_path / f"{SECRET} {n}.png", side=40 + n, seed=n, maker=SECRET) for n in range(24)]
    found = [
        *units(paths[:11], kind="well", group="one"),
        *units(paths[11:22], kind="ill", group="two"),
        *units(paths[22:], kind=SECRET, group=SECRET),
    ]
    torn = tmp_path / "torn.png"
    torn.write_bytes(b"no image")
    files = {hashed(path): path for path in (*paths, torn)}
    seen = measure([*found, *units([torn], kind="well", group="one")], files, ("well", "ill"), lambda: None)
    sheet = told(seen, survey(), duplicates=12, least=10)
    assert (sheet.images, sheet.unreadable, sheet.duplicates) == ("24", "fewer than 10", "12")
    assert sheet.patients == "fewer than 10"
    assert sheet.classes == {"well": None, "ill": None, OTHER: None}  # two of others would follow
    assert sheet.makers[OTHER] == "24"
    assert sheet.formats["png"] == "24"
    assert sheet.longer_side.p50 == "52.0"
    assert sheet.longer_side.p5 is None
    assert "Doe" not in sheet.model_dump_json()


def test_sounds_are_counted_and_not_looked_at_as_images(tmp_path: Path) -> None:
    write_sounds(tmp_path, recordings=24, seconds=0.1, seed=1, labels=("well", "ill"))
    files, _ = by_content(image_files(tmp_path))
    seen = measure(recording_units(tmp_path), files, ("well", "ill"), lambda: None)
    sheet = told(seen, survey("spectrograms"), duplicates=0, least=10)
    assert (sheet.images, sheet.unreadable) == ("24", "0")
    assert sheet.classes == {"well": "12", "ill": "12", OTHER: "0"}
    assert set(sheet.formats.values()) == {None}


def test_where_one_is_no_image_no_total_tells_of_the_others(tmp_path: Path) -> None:
    paths = [draw(tmp_path / f"{n}.png", seed=n) for n in range(22)]
    recording = Unit("r", ("0" * 64,), "well", kind="well")
    seen = measure([*units(paths, kind="well"), recording], {hashed(p): p for p in paths}, ("well",), lambda: None)
    sheet = told(seen, survey(classes=("well",)), duplicates=0, least=10)
    assert sheet.images == "23"
    assert sheet.classes == {"well": "23", OTHER: "0"}
    assert set(sheet.formats.values()) == {None}
    assert sheet.longer_side.p50 is None
    assert set(sheet.intensity) == {None}


def test_masks_are_told_as_shares_of_pixels(tmp_path: Path) -> None:
    found, files = [], {}
    for n in range(20):
        image, mask = draw(tmp_path / f"images/{n}.png", seed=n), tmp_path / f"masks/{n}.png"
        mask.parent.mkdir(exist_ok=True)
        levels = np.zeros((40, 40), dtype=np.uint8)
        levels.flat[: 160 + n] = 1
        Image.fromarray(levels).save(mask)
        files |= {hashed(image): image, hashed(mask): mask}
        found.append(Unit(str(n), (hashed(image),), hashed(mask)))
    seen = measure(found, files, ("background", "vessel"), lambda: None)
    sheet = told(seen, survey("segmentation", ("background", "vessel")), duplicates=0, least=10)
    assert sheet.class_shares["vessel"].p50 == "0.11"
    assert sheet.class_shares["vessel"].p25 is None
    assert sheet.classes == {}


def test_masks_that_are_alike_are_no_duplicates(tmp_path: Path) -> None:
    for n in range(3):
        draw(tmp_path / f"images/{n}.png", seed=min(n, 1))  # the last is a copy
        draw(tmp_path / f"masks/{n}.png", seed=9)  # all are
    paths = sorted(tmp_path.rglob("*.png"))
    files, copies = by_content(paths)
    found = units([path for path in paths if path.parent.name == "images"])
    assert len(files) == 3
    assert sum(copies[content] for content in {content for unit in found for content in unit.contents}) == 1


def test_another_table_of_the_same_images_is_withheld() -> None:
    seen = Measured(read=[Unit(str(n), (str(n),), "", kind="well" if n < 12 else "ill") for n in range(24)])
    first = told(seen, survey(), duplicates=0, least=10)
    assert first.classes == {"well": "12", "ill": "12", OTHER: "0"}
    assert told(seen, survey(), duplicates=0, least=10, earlier=[first]).classes == first.classes
    merged = told(seen, survey(classes=("ill",)), duplicates=0, least=10, earlier=[first])
    assert merged.classes == {"ill": None, OTHER: None}
    mistaken = told(seen, survey(classes=("0", "1")), duplicates=0, least=10)
    assert mistaken.classes == {"0": "0", "1": "0", OTHER: "24"}
    assert told(seen, survey(), duplicates=0, least=10, earlier=[mistaken]).classes == first.classes
