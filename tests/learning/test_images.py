"""Reading images and masks: every format and bit depth, and one error that says everything."""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from shared.check import look_at_levels, look_at_masks
from shared.errors import DataError
from shared.learning.data.dicom import read_any_levels
from shared.learning.data.graded_images import read_colour
from shared.learning.data.headers import fields_that_may_name
from shared.learning.data.images import odd_masks, read_image, read_mask, read_pairs, scale_to
from shared.learning.data.labelled_photographs import meant_class
from shared.learning.data.tables import Row, named_rows, without_line
from shared.learning.tasks import task_named
from site_client.pictures import class_shares, maker_of, measured

RAMP = np.linspace(0, 255, 40 * 48).reshape(40, 48).astype(np.uint8)
EXACT = pytest.approx(RAMP / 255, abs=1e-6)
LOSSY = pytest.approx(RAMP / 255, abs=0.03)


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def save_pair(root, stem, image_shape=(40, 48), mask_shape=(40, 48)):
    save(root / "images" / f"{stem}.png", np.full(image_shape, 100, np.uint8))
    save(root / "masks" / f"{stem}.png", np.full(mask_shape, 255, np.uint8))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.png", EXACT), ("a.tif", EXACT), ("a.TIFF", EXACT), ("a.jpg", LOSSY), ("a.JPEG", LOSSY)],
)
@pytest.mark.parametrize("colour", [False, True])
def test_eight_bits(tmp_path, name, expected, colour):
    array = np.stack([RAMP] * 3, axis=2) if colour else RAMP
    image = read_image(save(tmp_path / name, array, **({"quality": 98} if "j" in name.lower() else {})))
    assert image.dtype == np.float32
    assert image == expected


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bits_keep_their_depth_and_their_range(tmp_path, name):
    array = RAMP.astype(np.uint16) * 100 + 7  # the highest is 25,507: not stretched to 1
    assert read_image(save(tmp_path / name, array)) == pytest.approx(array / 65535, abs=1e-7)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif"])
def test_whatever_a_file_is_called_no_program_in_it_is_run(tmp_path, monkeypatch, name):
    """Of PostScript, Pillow would have Ghostscript draw the picture."""
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)
    path = tmp_path / name
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(DataError, match=f"{name}: cannot be read as an image"):
        read_any_levels(path)
    assert fields_that_may_name(path) == []
    assert maker_of(path) == "not said"
    assert not (tmp_path / "ran").exists()


def test_big_endian_tiff(tmp_path):
    path = tmp_path / "a.tif"
    Image.frombytes("I;16B", (48, 40), (RAMP.astype(np.uint16) * 256).astype(">u2").tobytes()).save(path)
    assert read_image(path) == pytest.approx(RAMP * 256.0 / 65535, abs=1e-6)


def test_green_is_taken_of_colour(tmp_path):
    colour = np.zeros((40, 48, 3), np.uint8)
    colour[..., 0], colour[..., 1], colour[..., 2] = 250, RAMP, 9
    assert read_image(save(tmp_path / "a.png", colour)) == EXACT
    transparent = np.dstack([colour, np.full_like(RAMP, 3)])
    assert read_image(save(tmp_path / "b.png", transparent)) == EXACT


TURNED_BY_EXIF = {
    2: np.fliplr(RAMP), 3: np.rot90(RAMP, 2), 4: np.flipud(RAMP), 5: RAMP.T,
    6: np.rot90(RAMP, -1), 7: np.rot90(RAMP, 2).T, 8: np.rot90(RAMP),
}  # fmt: skip


def exif_of(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


@pytest.mark.parametrize(("orientation", "seen"), TURNED_BY_EXIF.items())
@pytest.mark.parametrize(
    ("name", "saved"),
    [("a.png", {}), ("a.jpg", {"quality": 98}), ("a.tif", {}), ("a.tif", {"compression": "tiff_lzw"})],
)
def test_images_are_turned_as_viewers_show_them(tmp_path, name, saved, orientation, seen):
    path = save(tmp_path / name, RAMP, exif=exif_of(orientation), **saved)
    assert read_image(path) == pytest.approx(seen / 255, abs=0.03)


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
@pytest.mark.parametrize("mask", [RAMP > 90, (RAMP > 90).astype(np.uint8) * 255, (RAMP > 90).astype(np.uint16)])
def test_masks_are_turned_as_their_image(tmp_path, name, mask):
    path = save(tmp_path / "masks" / name, mask, exif=exif_of(6))
    assert np.array_equal(read_mask(path, 2), np.rot90(RAMP > 90, -1))
    save(tmp_path / "images" / "a.jpg", RAMP, exif=exif_of(6))
    (pair,) = read_pairs(tmp_path, 2)
    assert pair.image.shape == (48, 40)
    path.unlink()
    save(tmp_path / "masks" / name, mask)
    with pytest.raises(
        DataError, match=rf"a.jpg is 40x48 pixels but masks/{name} is 48x40; save both alike, turned as "
    ):
        read_pairs(tmp_path, 2)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_exif_that_cannot_be_read_turns_nothing(tmp_path):
    for name, content in (
        ("a.png", b"no EXIF"),
        ("b.png", exif_of(9)),
        ("c.jpg", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12"),
    ):
        assert read_image(save(tmp_path / name, RAMP, exif=content)) == LOSSY


@pytest.mark.parametrize(("name", "saved"), [("a.jpg", {"quality": 98}), ("a.tif", {}), ("a.png", {})])
@pytest.mark.parametrize("has_exif", [False, True])
def test_xmp_turns_nothing(tmp_path, name, saved, has_exif):
    xmp = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    text, exif = PngInfo(), Image.Exif()
    text.add_itxt("XML:com.adobe.xmp", xmp)
    if has_exif:
        exif[ExifTags.Base.Software] = "a viewer"
    if name == "a.tif":
        exif[700] = xmp.encode()
    path = save(tmp_path / name, RAMP, exif=exif, pnginfo=text, xmp=xmp.encode(), **saved)
    assert xmp.encode() in path.read_bytes()
    assert read_image(path) == LOSSY


def test_images_that_say_another_turn_than_their_masks_are_told(tmp_path):
    mask = np.where(RAMP > 90, 255, 0).astype(np.uint8)
    turns = {"both": (3, 3), "image": (3, None), "mask": (None, 2), "neither": (None, 1), "nonsense": (9, None)}
    for name, of_pair in turns.items():
        for folder, pixels, turn in zip(("images", "masks"), (RAMP, mask), of_pair, strict=True):
            said = {} if turn is None else {"exif": exif_of(turn)}
            save(tmp_path / folder / f"{name}.{'tif' if name == 'image' else 'png'}", pixels, **said)
    task = task_named("octa_segmentation")
    (said,) = [finding.text for finding in look_at_masks(task, tmp_path, ("none", "vessel"), "; soon")]
    assert said == (
        "octa_segmentation: 2 images and their masks say different turns in their EXIF, as images/image.tif, "
        "images/mask.png: all is well if each mask fits its image as viewers show both; else save both without that "
        "mark; soon"
    )


@pytest.mark.parametrize("value", [1, 3, 255])
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_any_value_but_0_is_mask(tmp_path, value, suffix):
    truth = RAMP > 90
    assert np.array_equal(read_mask(save(tmp_path / f"a.{suffix}", truth.astype(np.uint8) * value), 2), truth)


def test_one_bit_and_palette_masks(tmp_path):
    truth = RAMP > 90
    assert np.array_equal(read_mask(save(tmp_path / "bit.png", truth), 2), truth)
    palette = Image.fromarray(np.stack([truth * 200, truth * 0, truth * 0], axis=2).astype(np.uint8)).quantize(2)
    palette.save(tmp_path / "palette.png")
    assert np.array_equal(read_mask(tmp_path / "palette.png", 2), truth)


def test_the_smear_around_an_edge_in_jpeg_is_not_mask(tmp_path):
    truth = np.zeros((64, 64), bool)
    truth[20:37, 5:50] = True
    path = save(tmp_path / "a.jpg", truth.astype(np.uint8) * 255, quality=60)
    assert (np.asarray(Image.open(path)) > 0).sum() > truth.sum() * 1.2
    assert np.array_equal(read_mask(path, 2), truth)


def test_pairs_are_found_across_formats_and_sorted(tmp_path):
    save_pair(tmp_path, "b")
    save(tmp_path / "images" / "a.tif", RAMP)
    save(tmp_path / "masks" / "a.png", RAMP)
    (tmp_path / "images" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "images" / "Thumbs.db").write_bytes(b"x")
    pairs = read_pairs(tmp_path, 2)
    assert [pair.id for pair in pairs] == ["a", "b"]
    assert pairs[1].mask.dtype == np.uint8
    assert set(np.unique(pairs[0].mask)) == {0, 1}


def test_every_problem_is_in_one_error(tmp_path):
    save_pair(tmp_path, "good")
    save_pair(tmp_path, "unequal", mask_shape=(40, 50))
    save_pair(tmp_path, "tiny", (20, 48), (20, 48))
    save_pair(tmp_path, "torn")
    save_pair(tmp_path, "twin")
    save_pair(tmp_path, "deep")
    save(tmp_path / "images" / "twin.jpg", RAMP)
    save(tmp_path / "images" / "alone.png", RAMP)
    save(tmp_path / "masks" / "orphan.png", RAMP)
    (tmp_path / "images" / "notes.txt").write_text("x")
    (tmp_path / "masks" / "torn.png").write_bytes((tmp_path / "masks" / "torn.png").read_bytes()[:60])
    (tmp_path / "images" / "deep.png").unlink()
    save(tmp_path / "images" / "deep.tif", RAMP.astype(np.float32))
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path, 2)
    for sentence in (
        "images/alone.png: has no mask",
        "masks/orphan.png: has no image",
        "images/unequal.png is 48x40 pixels but masks/unequal.png is 50x40",
        "images/tiny.png: is 48x20 pixels; each side needs 32",
        "masks/torn.png: cannot be read as an image",
        "images/twin.png: images/twin.jpg has the same stem",
        "images/notes.txt: is not a PNG, JPEG or TIFF",
        "images/deep.tif: has pixels of type F",
    ):
        assert sentence in str(caught.value)
    assert len(caught.value.problems) == 8


def test_many_images_without_a_mask_are_one_line_with_their_number(tmp_path):
    (tmp_path / "masks").mkdir()
    for number in range(10):
        save(tmp_path / "images" / f"eye-{number}.png", RAMP)
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path, 2)
    first = "images/eye-0.png, images/eye-1.png, images/eye-2.png"
    assert caught.value.problems == (
        f"images: 10 files have no mask, as {first}; add masks/NAME.png for each or remove them.",
    )


def test_many_names_without_a_line_are_one_line_with_their_number():
    names = [f"eye-{number}" for number in range(4)]
    (one,) = without_line("labels.csv", "the image ", names[:1])
    assert one == "labels.csv: the image 'eye-0' has no line; add one."
    assert without_line("labels.csv", "the image ", names) == [
        "labels.csv: 4 names have no line, as the image 'eye-0', 'eye-1', 'eye-2'; add one for each."
    ]


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("eye-1.png", "write it without its ending, as 'eye-1'."),
        ("EYE-1", "did you mean 'eye-1'?"),
        ("7", "did you mean '007'? Excel drops zeros in front."),
        ("8", "write a name that is here, or remove the line."),
    ],
)
def test_a_row_of_no_image_is_told_what_it_was_perhaps_meant_for(written, remedy):
    problems: list[str] = []
    rows = [Row(2, {"id": written}), Row(3, {"id": "eye-2"})]
    assert named_rows("labels.csv", rows, ["007", "eye-1", "eye-2"], "the image ", problems) == [("eye-2", rows[1])]
    assert problems[0] == f"labels.csv, line 2: nothing here is called {written!r}; {remedy}"
    assert all("'007'" in told or "'eye-1'" in told for told in problems[1:])


def test_many_rows_of_no_image_or_written_twice_are_one_line_each_with_their_number():
    problems: list[str] = []
    names = [f"{number:03}" for number in range(8)]
    rows = [Row(line, {"id": str(int(name))}) for line, name in enumerate(names[:4], start=2)]
    rows += [Row(line, {"id": name}) for line, name in enumerate(2 * names[4:], start=6)]
    named_rows("labels.csv", rows, names, "the image ", problems)
    assert problems == [
        "labels.csv: 4 ids are there twice, as '004', '005', '006'; keep one line.",
        "labels.csv: 4 ids are of nothing here, as '0', '1', '2'; did you mean '000'? Excel drops zeros in front.",
    ]


def test_names_are_not_searched_through_for_each_row():
    class Names(list):
        def __contains__(self, name):
            raise AssertionError(f"all names are compared with {name}")

    row = Row(2, {"id": "eye-1"})
    assert named_rows("labels.csv", [row], Names(["eye-1"]), "the image ", []) == [("eye-1", row)]


def test_a_folder_is_of_the_class_of_its_name_in_any_case_and_either_way_to_write_accents():
    composed, decomposed = "dégénérescence", "De\u0301ge\u0301ne\u0301rescence"
    assert meant_class(decomposed, ["normal", composed]) == composed
    assert meant_class(composed, [decomposed.lower(), composed]) == composed
    assert meant_class("degenerescence", [composed]) is None


@pytest.mark.parametrize("read", [read_image, read_any_levels])
def test_dicom_by_another_name_is_called_dicom(read, tmp_path):
    (tmp_path / "eye.png").write_bytes(b"\0" * 128 + b"DICM" + b"\0" * 400)
    with pytest.raises(DataError, match=r"/eye.png: is a DICOM file, though it is called .png; call it eye.dcm where "):
        read(tmp_path / "eye.png")


def test_masks_that_are_empty_full_or_grey_are_told(tmp_path):
    black, white = np.zeros_like(RAMP), np.where(RAMP > 100, 255, 0).astype(np.uint8)
    numbers = np.minimum(white, 1)
    masks = {"empty": black, "grey": RAMP, "good": white, "numbers": numbers, "shifted": numbers + 1}
    for name, mask in masks.items():
        save(tmp_path / "images" / f"{name}.png", RAMP)
        save(tmp_path / "masks" / f"{name}.png", mask)
    save(tmp_path / "masks" / "blurred.jpg", white)
    odd = odd_masks(tmp_path, 2)
    assert [path.name for path in odd.empty] == ["empty.png"]
    assert [path.name for path in odd.full] == ["shifted.png"]
    assert [path.name for path in odd.grey] == ["grey.png"]
    said = [finding.text for finding in look_at_masks(task_named("octa_segmentation"), tmp_path, ("none", "vessel"))]
    of_empty = "1 mask is empty, none all over, as masks/empty.png; if something is to be seen there, mark it"
    of_full = "1 mask has no pixel of none, as masks/shifted.png; what is none there must be 0"
    of_grey = "1 mask has grey values, as masks/grey.png: every value but 0 is taken for vessel; save what is meant as "
    assert said == [f"octa_segmentation: {each}" for each in (of_empty, of_full, f"{of_grey}black and white")]


def grey_tiff(path, rows, bits, photometric):
    """Save an uncompressed grey TIFF, of 12 bits or with 0 for white, as Pillow does not."""
    content = rows.tobytes()
    width, fields = 48, 9
    start = 8 + 2 + 12 * fields + 4
    tags = [(256, width), (257, 40), (258, bits), (259, 1), (262, photometric), (273, start), (277, 1), (278, 40)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (279, len(content))])
    path.write_bytes(b"II*\0" + struct.pack("<IH", 8, fields) + entries + bytes(4) + content)
    return path


def test_twelve_bits_of_tiff_keep_their_range(tmp_path):
    levels = RAMP.astype(np.uint16) * 16 + 15
    first, second = levels[:, ::2], levels[:, 1::2]  # 2 of 12 bits in 3 bytes
    rows = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=2).astype(np.uint8)
    path = grey_tiff(tmp_path / "a.tif", rows, bits=12, photometric=1)
    assert read_image(path) == pytest.approx(levels / 4095, abs=1e-6)
    assert read_colour(path, 48).max() == 255
    assert measured(path).bit_depth == "more than 8"


@pytest.mark.parametrize(("kind", "bits"), [("u1", 8), ("<u2", 16)])
def test_a_tiff_with_0_for_white_is_turned_back(tmp_path, kind, bits):
    path = grey_tiff(tmp_path / "a.tif", RAMP.astype(kind), bits=bits, photometric=0)
    assert np.array_equal(read_any_levels(path)[0], 2**bits - 1 - RAMP.astype(np.uint16))


def test_images_that_are_seen_almost_black_are_told(tmp_path):
    save(tmp_path / "images" / "12-of-16.png", RAMP.astype(np.uint16) * 16)
    save(tmp_path / "images" / "16.png", RAMP.astype(np.uint16) * 256)
    save(tmp_path / "images" / "8.jpg", RAMP)
    save(tmp_path / "images" / "@eaDir" / "8.jpg" / "thumbnail.png", RAMP // 16)
    save(tmp_path / "images" / ".trash" / "deleted.png", RAMP // 16)
    save(tmp_path / "masks" / "8.png", RAMP // 250)
    (said,) = look_at_levels(task_named("octa_segmentation"), tmp_path)
    assert said.text.startswith(
        "octa_segmentation: 1 image reaches less than an eighth of what the file can say, as images/12-of-16.png, and "
    )
    save(tmp_path / "drive" / "8.png", RAMP // 16)
    (tmp_path / "by_class").mkdir()
    (tmp_path / "by_class" / "healthy").symlink_to(tmp_path / "drive", target_is_directory=True)
    (said,) = look_at_levels(task_named("image_classification"), tmp_path / "by_class")
    assert "as healthy/8.png, and" in said.text


def test_a_second_page_is_not_dropped_silently(tmp_path):
    first, second = Image.fromarray(RAMP), Image.fromarray(RAMP)
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    with pytest.raises(DataError, match="has 2 pages"):
        read_image(tmp_path / "a.tif")


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(DataError) as caught:
        read_pairs(tmp_path, 2)
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["images", "masks"]
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="has no image in it"):
        read_pairs(tmp_path, 2)


def test_a_folder_that_is_not_there_is_named_and_one_below_it_too(tmp_path):
    with pytest.raises(DataError) as raised:
        read_pairs(tmp_path / "absent", 2)
    assert raised.value.problems == (
        f"{tmp_path / 'absent'}: there is no such folder; correct the path, or make it and put the images there.",
    )
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError) as raised:
        read_pairs(tmp_path / "images", 2)
    assert raised.value.problems[0] == (
        f"images: there is no such folder in {tmp_path / 'images'}; name {tmp_path}, the folder that holds images."
    )


def test_scaling_keeps_shape_range_and_cover():
    mask = np.zeros((40, 80), np.uint8)
    mask[:, 21:41] = 1  # half of new column 10, of which a quarter is not enough
    image, small = scale_to(np.full((40, 80), 0.25, np.float32), mask, 20)
    assert image.shape == small.shape == (10, 20)
    assert image == pytest.approx(0.25)
    assert small[0].tolist() == [5 <= column < 10 for column in range(20)]
    large, _ = scale_to(np.eye(40, dtype=np.float32), np.eye(40, dtype=np.uint8), 96)
    assert large.shape == (96, 96)
    assert large.min() >= 0
    assert large.max() <= 1


def test_a_mask_of_several_classes_says_their_numbers(tmp_path):
    classes = np.arange(48 * 48).reshape(48, 48) % 3
    path = save(tmp_path / "a.png", classes.astype(np.uint8))
    assert np.array_equal(read_mask(path, 3), classes)
    assert np.array_equal(read_mask(path, 2), classes > 0)
    with pytest.raises(DataError, match=r"has a pixel of 9, and the classes are numbered 0 to 2"):
        read_mask(save(tmp_path / "b.png", np.full((48, 48), 9, np.uint8)), 3)
    with pytest.raises(DataError, match="JPEG changes the numbers of classes"):
        read_mask(save(tmp_path / "c.jpg", np.zeros((48, 48), np.uint8)), 3)


def packed(path, values, bits):
    """Save a grey PNG of so many bits a pixel, as Pillow does not."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], bits, 0, 0, 0, 0)
    of_each = np.unpackbits(values[..., None].astype(np.uint8), axis=2)[..., 8 - bits :]  # (H, W, bits)
    rows = b"".join(b"\0" + row.tobytes() for row in np.packbits(of_each.reshape(len(values), -1), axis=1))
    picture = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + picture)
    return path


def in_palette(path, values, colours, **saved):
    picture = Image.fromarray(values.astype(np.uint8)).convert("L")
    picture.putpalette([level for colour in colours for level in colour])
    picture.save(path, **saved)
    return path


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_numbers_of_classes_are_those_in_the_file_in_any_number_of_bits(tmp_path, bits):
    classes = np.arange(48 * 48).reshape(48, 48) % min(3, 2**bits)
    path = packed(tmp_path / "a.png", classes, bits)
    assert np.array_equal(read_mask(path, 3), classes)
    assert np.array_equal(read_mask(path, 2), classes > 0)
    if bits > 1:
        with pytest.raises(DataError, match=r"has a pixel of 3, and the classes are numbered 0 to 2"):
            read_mask(packed(tmp_path / "b.png", classes + 1, bits), 3)


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("colours", [[(0, 0, 0), (128, 0, 0), (0, 128, 0)], [(0, 0, 0), (1, 0, 0), (0, 1, 0)]])
def test_numbers_of_classes_are_places_in_a_palette(tmp_path, colours, suffix):
    classes = np.arange(48 * 48).reshape(48, 48) % 3
    path = in_palette(tmp_path / f"a.{suffix}", classes, colours)
    assert np.array_equal(read_mask(path, 3), classes)
    assert np.array_equal(read_mask(path, 2), classes > 0)
    shares = class_shares(path, 3)
    assert shares is not None and shares == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("classes", [2, 3])
def test_masks_with_marked_pixels_that_are_transparent_are_refused(tmp_path, classes):
    drawn = (RAMP > 90).astype(np.uint8)
    erased = np.where(RAMP > 200, 0, 255).astype(np.uint8)
    for name in ("a.png", "a.tif"):
        for levels in (np.dstack([drawn] * 2), np.dstack([drawn] * 4)):
            levels[..., -1] = 255
            assert np.array_equal(read_mask(save(tmp_path / name, levels), classes), drawn)
            levels[..., -1] = erased
            path = save(tmp_path / name, levels)
            with pytest.raises(DataError, match=rf"/{name}: has transparent pixels that are marked; flatten it on bl"):
                read_mask(path, classes)
            assert class_shares(path, classes)[1] == pytest.approx(drawn.mean())  # no survey loses an image by its mask
            levels[..., :-1] *= (erased > 0)[..., None]
            assert np.array_equal(read_mask(save(tmp_path / name, levels), classes), drawn * (erased > 0))
    colours = [(0, 0, 0), (255, 255, 255), (9, 9, 9)]
    unused = in_palette(tmp_path / "unused.png", drawn, colours, transparency=2)
    assert np.array_equal(read_mask(unused, classes), drawn)
    background = in_palette(tmp_path / "background.png", drawn, colours, transparency=0)
    assert np.array_equal(read_mask(background, classes), drawn)
    with pytest.raises(DataError, match="has transparent pixels that are marked"):
        read_mask(in_palette(tmp_path / "palette.png", drawn, colours, transparency=1), classes)


def test_a_scaled_pixel_is_of_the_class_that_covers_most_of_it():
    mask = np.repeat([[0, 2, 1, 1], [2, 2, 0, 1]], 10, axis=0).repeat(10, axis=1).astype(np.uint8)  # (20, 40)
    _, small = scale_to(np.zeros(mask.shape, np.float32), mask, 2)
    assert small.tolist() == [[2, 1]]
