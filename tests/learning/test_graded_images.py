"""Graded images: both ways to say the grades, every format, and one error that says everything."""

import builtins
import os
import struct
import tempfile
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, JPEGBaseline8Bit, JPEGLosslessSV1

from shared.errors import DataError, DropfedError
from shared.learning.data.graded_images import GRADED_EXTENSIONS, read_colour, read_graded
from shared.learning.data.images import list_images as list_files
from shared.software import installing

GREY = np.linspace(0, 255, 40 * 40).reshape(40, 40).astype(np.uint8)
COLOUR = np.stack([GREY, GREY.T, 255 - GREY], axis=2)


def save(path, array=GREY, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def listed(root, text, *stems):
    for stem in stems:
        save(root / "images" / f"{stem}.png")
    (root / "labels.csv").write_text(text, encoding="utf-8")
    return root


def problems_of(root, side=32):
    with pytest.raises(DataError) as caught:
        read_graded(root, side)
    return caught.value.problems


# One image


def test_colour_is_kept_and_grey_is_three_equal_channels(tmp_path):
    colour = read_colour(save(tmp_path / "a.png", COLOUR), 40)
    assert (colour.dtype, colour.shape) == (np.uint8, (40, 40, 3))
    assert np.array_equal(colour, COLOUR)
    assert np.array_equal(read_colour(save(tmp_path / "b.tif", GREY), 40), np.stack([GREY] * 3, axis=2))
    assert colour.flags.owndata  # no larger array lives on behind it


def test_sixteen_bits_are_scaled_on_their_fixed_range(tmp_path):
    levels = GREY.astype(np.uint16) * 100 + 7  # the highest is 25,507: not stretched to 255
    image = read_colour(save(tmp_path / "a.png", levels), 40)
    assert np.array_equal(image[..., 0], np.round(levels / 257).astype(np.uint8))
    full = read_colour(save(tmp_path / "b.tif", np.full((40, 40), 65535, np.uint16)), 40)
    assert (full == 255).all()


@pytest.mark.parametrize("shape", [(80, 160), (160, 80)])
def test_an_oblong_lies_in_the_middle_of_black(tmp_path, shape):
    image = read_colour(save(tmp_path / "a.png", np.full(shape, 200, np.uint8)), 40)
    image = image if shape[0] < shape[1] else image.transpose(1, 0, 2)
    assert (image[10:30] == 200).all()
    assert not image[:10].any()
    assert not image[30:].any()


def test_shrinking_takes_the_mean_and_enlarging_is_smooth(tmp_path):
    stripes = np.zeros((80, 80), np.uint8)
    stripes[::2] = 200
    assert (read_colour(save(tmp_path / "a.png", stripes), 40) == 100).all()
    edge = np.zeros((40, 40), np.uint8)
    edge[:, 20:] = 200
    assert len(np.unique(read_colour(save(tmp_path / "b.png", edge), 160))) > 2


@pytest.mark.parametrize("shape", [(31, 40), (20_000, 1)])
def test_too_small(tmp_path, shape):
    with pytest.raises(DataError, match=rf"images/a.png: is {shape[1]}x{shape[0]} pixels; each side needs 32\."):
        read_colour(save(tmp_path / "images" / "a.png", np.zeros(shape, np.uint8)), 32)


# Grades in a table


def test_labels_file(tmp_path):
    save(tmp_path / "images" / "b.png", COLOUR)
    save(tmp_path / "images" / "c.jpg")
    listed(tmp_path, "\ufeffgrade,id\n2,b\n 0 , a\n\n0,c\n", "a")
    (tmp_path / "images" / ".DS_Store").write_bytes(b"x")
    folder = read_graded(tmp_path, 40)
    assert [(image.id, image.grade) for image in folder.images] == [("a", 0), ("b", 2), ("c", 0)]
    assert np.array_equal(folder.images[1].image, COLOUR)
    assert folder.grades == ("0", "1", "2")


def test_names_of_grades_say_how_many_there_are(tmp_path):
    listed(tmp_path, "id,grade\na,0\n", "a")
    (tmp_path / "grades.txt").write_text("none\nmild \n\nsevere\n\n")
    assert problems_of(tmp_path) == ("grades.txt, line 3: '' is not a new name of 1 to 60 letters; write one.",)
    (tmp_path / "grades.txt").write_text("\ufeffkeine\nmäßig \nschwer\n\n", encoding="utf-8")
    assert read_graded(tmp_path, 32).grades == ("keine", "mäßig", "schwer")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"only\n", "grades.txt: names 1 grades; write 2 to 20 lines, a name in each."),
        (b"", "grades.txt: names 0 grades; write 2 to 20 lines, a name in each."),
        (b"\n".join(b"grade %d" % i for i in range(21)), "grades.txt: names 21 grades;"),
        (b"none\nmild\nnone\n", "grades.txt, line 3: 'none' is not a new name"),
        (b"none\n" + b"x" * 61, "grades.txt, line 2: 'xxx"),
        (b"none\nm\x1b[31mild", "grades.txt, line 2: 'm\\x1b[31mild' is not a new name"),
        (b"none\n\xff\xfe", "grades.txt: cannot be read"),
    ],
)
def test_wrong_names_of_grades(tmp_path, content, sentence):
    listed(tmp_path, "id,grade\na,0\nb,1\n", "a", "b")
    (tmp_path / "grades.txt").write_bytes(content)
    (problem,) = problems_of(tmp_path)
    assert problem.startswith(sentence)


def test_every_line_that_is_wrong_is_named(tmp_path):
    lines = [
        "id,grade", "a,0", "b,1.0", "c,5", "d,-1", "e,", "f", "a,1", "g,1,left", "../../etc/passwd,1", "h.png,1", "i,²",
        '"new\nline",1', "j,0001",
    ]  # fmt: skip
    listed(tmp_path, "\n".join(lines), *"abcdefghijz")
    (tmp_path / "grades.txt").write_text("none\nmild\nmoderate\nsevere\nproliferative\n")
    grade = "grade must be a whole number from 0 to 4, not"
    absent = "write a name that is here, or remove the line."
    too_long = "has more cells than columns; put a text with a comma into quotation marks, or remove what is too much."
    assert problems_of(tmp_path) == (
        f"labels.csv, line 9: {too_long}",
        "labels.csv, line 8: 'a' is there twice; keep one line.",
        f"labels.csv, line 10: nothing here is called '../../etc/passwd'; {absent}",
        "labels.csv, line 11: nothing here is called 'h.png'; write it without its ending, as 'h'.",
        f"labels.csv, line 14: nothing here is called 'new\\nline'; {absent}",
        "labels.csv: the image 'z' has no line; add one.",
        f"labels.csv, line 3: {grade} '1.0'.",
        f"labels.csv, line 4: {grade} '5'.",
        f"labels.csv, line 5: {grade} '-1'.",
        f"labels.csv, line 6: {grade} ''.",
        f"labels.csv, line 7: {grade} ''.",
        f"labels.csv, line 12: {grade} '²'.",
        f"labels.csv, line 15: {grade} '0001'.",
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "none"),
        ("id;grade\na;0\n", "'id;grade'"),
        ("a,0\n", "'a', '0'"),
        ("id,grade,split\na,0,train\n", "'id', 'grade', 'split'"),
        ("id,id\na,0\n", "'id', 'id'"),
    ],
)
def test_wrong_columns(tmp_path, text, found):
    listed(tmp_path, text, "a")
    sentence = f"labels.csv: the columns must be id and grade, with commas between; found: {found}."
    assert problems_of(tmp_path) == (sentence,)


def test_labels_that_are_not_text(tmp_path):
    listed(tmp_path, "", "a")
    (tmp_path / "labels.csv").write_bytes(b"id,grade\n\xff,0\n")
    (problem,) = problems_of(tmp_path)
    assert problem.startswith("labels.csv: cannot be read")


def test_one_half_of_the_table_is_missing(tmp_path):
    save(tmp_path / "first" / "images" / "a.png")
    assert problems_of(tmp_path / "first") == (
        "labels.csv: is missing; write a line with id and grade for each file in images.",
    )
    (tmp_path / "second").mkdir()
    listed(tmp_path / "second", "id,grade\n")
    assert problems_of(tmp_path / "second")[0].startswith("images: there is no such folder")


def test_grade_0_alone_is_no_grading(tmp_path):
    save(tmp_path / "eyes" / "images" / "a.png")
    assert problems_of(listed(tmp_path / "eyes", "id,grade\na,0\n")) == (
        "eyes: has images of grade 0 only; name all the grades there are in grades.txt.",
    )


def test_both_ways_at_once(tmp_path):
    listed(tmp_path, "id,grade\na,0\nb,1\n", "a", "b")
    save(tmp_path / "1_mild" / "c.png")
    assert problems_of(tmp_path) == (
        "1_mild: is a grade's folder beside images and labels.csv; give the grades in one of the two ways.",
    )


# Grades as folders


def test_grade_folders(tmp_path):
    save(tmp_path / "2 moderate" / "a.png")
    save(tmp_path / "0" / "c.tif")
    save(tmp_path / "0" / "b.jpg")
    (tmp_path / "1_mild").mkdir()
    (tmp_path / "split.csv").write_text("id,group\n")
    folder = read_graded(tmp_path, 32)
    assert [(image.id, image.grade) for image in folder.images] == [("a", 2), ("b", 0), ("c", 0)]
    assert folder.grades == ("0", "mild", "moderate")
    (tmp_path / "1_mild").rmdir()
    (tmp_path / "grades.txt").write_text("none\nsome\nmore\nmost\n")
    assert read_graded(tmp_path, 32).grades == ("none", "some", "more", "most")


def test_everything_that_is_wrong_with_the_folders_is_named(tmp_path):
    for path in ("0/a.png", "2/b.png", "2-moderate/c.png", "4_severe/a.jpg", "20/d.png", "01/e.png", "more/f.png"):
        save(tmp_path / path)
    save(tmp_path / "loose.png")
    (tmp_path / "2" / "notes.txt").write_text("x")
    (tmp_path / "2" / "deeper").mkdir()
    not_an_image = "is not a PNG, JPEG, TIFF or DICOM file; convert it or move it elsewhere."
    not_a_grade = "is not a grade's folder; name it by the grade's number, like 2 or 2_moderate, or move it elsewhere."
    no_folder = "there is no folder for this grade; make an empty one, or name all the grades in grades.txt."
    assert problems_of(tmp_path) == (
        f"01: {not_a_grade}",
        "2-moderate: 2 is the folder of grade 2 too; keep one.",
        "20: the highest grade is 19; rename it or move it elsewhere.",
        "loose.png: lies beside the folders of the grades; move it into one.",
        f"more: {not_a_grade}",
        f"2/deeper: {not_an_image}",
        f"2/notes.txt: {not_an_image}",
        "4_severe/a.jpg: 0/a.png has the same stem; remove or rename one.",
        f"1: {no_folder}",
        f"3: {no_folder}",
    )


def test_folders_beyond_the_named_grades(tmp_path):
    for grade in range(3):
        save(tmp_path / str(grade) / f"{grade}.png")
    (tmp_path / "grades.txt").write_text("no\nyes\n")
    assert problems_of(tmp_path) == ("2: the highest grade is 1; rename it or move it elsewhere.",)


def test_nothing_there(tmp_path):
    assert problems_of(tmp_path / "absent") == (
        f"{tmp_path / 'absent'}: there is no such folder; correct the path, or make it and put the images there.",
    )
    root = tmp_path / "empty"
    root.mkdir()
    assert problems_of(root) == ("empty: has neither images and labels.csv nor a folder for each grade; make either.",)
    for grade in "01":
        (root / grade).mkdir()
    assert problems_of(root) == ("empty: has no image in it; put PNG, JPEG, TIFF or DICOM files there.",)
    (tmp_path / "zero" / "0").mkdir(parents=True)
    save(tmp_path / "zero" / "0" / "a.png")
    assert problems_of(tmp_path / "zero")[0].startswith("zero: has images of grade 0 only")


# Files that mean no good


def huge_png(path, side):
    """A small file that claims side² pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))))


def test_unreadable_files_are_all_named(tmp_path):
    for name in ("0/torn.png", "1/torn_too.jpg", "1/good.png"):
        path = save(tmp_path / name)
        if "torn" in name:
            path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    huge_png(tmp_path / "0" / "huge.png", 10_000)
    huge_png(tmp_path / "0" / "larger.png", 30_000)
    (tmp_path / "0" / "note.dcm").write_text("no image either")
    save(tmp_path / "1" / "small.png", np.zeros((20, 40), np.uint8))
    problems = problems_of(tmp_path)
    assert [problem.split(":")[0] for problem in problems] == [
        "0/huge.png", "0/larger.png", "0/note.dcm", "1/small.png", "0/torn.png", "1/torn_too.jpg",
    ]  # fmt: skip
    assert problems[:2] == (
        "0/huge.png: has 100,000,000 pixels, more than 89,478,485; scale it down.",
        "0/larger.png: has 900,000,000 pixels, more than 89,478,485; scale it down.",
    )


def test_reasons_show_no_path(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "text.png").write_text("no image")
    with pytest.raises(DataError) as caught:
        read_colour(tmp_path / "0" / "text.png", 32)
    assert str(caught.value).startswith("0/text.png: cannot be read as an image (")
    assert str(tmp_path) not in str(caught.value)


# DICOM


def dicom(
    path, array, photometric="MONOCHROME2", *, syntax=ExplicitVRLittleEndian, stored=None, payload=None, **others
):
    path.parent.mkdir(parents=True, exist_ok=True)
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = syntax
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = UID("1.2.840.10008.5.1.4.1.1.77.1.5.1")
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = UID("1.2.3")
    file.PatientName = "Doe^Jane"
    file.Rows, file.Columns = array.shape[:2]
    file.SamplesPerPixel = array.shape[2] if array.ndim == 3 else 1
    if array.ndim == 3:
        file.PlanarConfiguration = 0
    file.PhotometricInterpretation = photometric
    file.BitsAllocated = array.dtype.itemsize * 8
    file.BitsStored = stored or file.BitsAllocated
    file.HighBit = file.BitsStored - 1
    file.PixelRepresentation = 0
    file.PixelData = array.tobytes() if payload is None else payload
    file["PixelData"].VR = "OB" if payload else "OW"
    for key, value in others.items():
        setattr(file, key, value)
    file.save_as(path, enforce_file_format=True)
    return path


def test_dicom_grey_and_colour(tmp_path):
    grey = np.stack([GREY] * 3, axis=2)
    assert np.array_equal(read_colour(dicom(tmp_path / "a.dcm", GREY), 40), grey)
    assert np.array_equal(read_colour(dicom(tmp_path / "b.DCM", GREY, "MONOCHROME1"), 40), 255 - grey)
    assert np.array_equal(read_colour(dicom(tmp_path / "c.dcm", COLOUR, "RGB"), 40), COLOUR)


def test_dicom_planes_one_after_another(tmp_path):
    path = dicom(
        tmp_path / "a.dcm", COLOUR, "RGB", PlanarConfiguration=1, PixelData=COLOUR.transpose(2, 0, 1).tobytes()
    )
    assert np.array_equal(read_colour(path, 40), COLOUR)


def test_dicom_of_more_than_8_bits(tmp_path):
    levels = GREY.astype(np.uint16) * 16  # 12 bits of 16
    expected = np.round(levels / 4095 * 255).astype(np.uint8)
    assert np.array_equal(read_colour(dicom(tmp_path / "a.dcm", levels, stored=12), 40)[..., 1], expected)
    inverted = read_colour(dicom(tmp_path / "b.dcm", levels, "MONOCHROME1", stored=12), 40)[..., 1]
    assert np.array_equal(inverted, np.round((4095 - levels) / 4095 * 255).astype(np.uint8))
    full = GREY.astype(np.uint16) * 257
    assert np.array_equal(read_colour(dicom(tmp_path / "c.dcm", full), 40)[..., 2], GREY)
    dirty = levels | 0xF000  # an old overlay in the bits above
    assert read_colour(dicom(tmp_path / "d.dcm", dirty, stored=12), 40).dtype == np.uint8


def test_dicom_luminance_and_chrominance_become_colour(tmp_path):
    ycc = np.asarray(Image.fromarray(COLOUR).convert("YCbCr"))
    image = read_colour(dicom(tmp_path / "a.dcm", ycc, "YBR_FULL"), 40)
    assert np.abs(image.astype(int) - COLOUR).max() <= 3


def test_dicom_with_jpeg_inside(tmp_path):
    jpeg = BytesIO()
    smooth = np.stack([GREY, GREY, 255 - GREY], axis=2)
    Image.fromarray(smooth).save(jpeg, "JPEG", quality=98, subsampling=0)
    path = dicom(
        tmp_path / "a.dcm", smooth, "YBR_FULL_422", syntax=JPEGBaseline8Bit, payload=encapsulate([jpeg.getvalue()])
    )
    assert np.abs(read_colour(path, 40).astype(int) - smooth).mean() < 3


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"NumberOfFrames": 2, "PixelData": GREY.tobytes() * 2}, "it has 2 frames instead of one"),
        ({"Rows": 60_000, "Columns": 60_000}, "it claims to have 60000x60000 pixels"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "its colours are PALETTE COLOR instead of"),
        ({"BitsAllocated": 32, "BitsStored": 32}, "it has 32 of 32 bits instead of 8 to 16"),
        ({"BitsAllocated": 1, "BitsStored": 1}, "it has 1 of 1 bits instead of 8 to 16"),
        ({"BitsStored": 12}, "it has 12 of 8 bits"),
        ({"PixelRepresentation": 1}, "its values have a sign"),
        ({"PixelData": GREY.tobytes()[:100]}, ""),
        ({"Rows": None}, "it does not say its Rows"),
        ({"BitsStored": None, "PixelRepresentation": None}, "it does not say its BitsStored and PixelRepresentation"),
        ({"Rows": 0}, ""),
        ({"Rows": [40, 40]}, ""),
        ({"SamplesPerPixel": 3, "PixelData": COLOUR.tobytes()}, ""),
    ],
)
def test_dicom_that_is_not_one_plain_image(tmp_path, others, reason):
    with pytest.raises(DataError) as caught:
        read_colour(dicom(tmp_path / "0" / "a.dcm", GREY, **others), 32)
    (problem,) = caught.value.problems
    assert problem.startswith(f"0/a.dcm: cannot be read as an image ({reason}")
    assert problem.endswith("export it again.")
    assert "\n" not in problem


def test_dicom_that_is_compressed_as_a_whole_is_not_unpacked(tmp_path, monkeypatch):
    path = dicom(tmp_path / "a.dcm", GREY, syntax=DeflatedExplicitVRLittleEndian)
    monkeypatch.setattr(zlib, "decompress", lambda *_, **__: pytest.fail("it may be a bomb"))
    with pytest.raises(DataError, match="it is compressed as a whole"):
        read_colour(path, 32)


def test_dicom_that_no_decoder_is_there_for(tmp_path):
    path = dicom(tmp_path / "0" / "a.dcm", GREY, syntax=JPEGLosslessSV1, payload=encapsulate([b"no decoder" * 10]))
    with pytest.raises(DataError) as caught:
        read_colour(path, 32)
    (problem,) = caught.value.problems
    assert "Unable to decompress 'JPEG Lossless" in problem
    assert "\n" not in problem


@pytest.mark.parametrize("length", [0, 100, 131, 140, 300, 500, 1500])
def test_torn_dicom(tmp_path, length):
    path = dicom(tmp_path / "0" / "a.dcm", GREY)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"0/a\.dcm: cannot be read as an image"):
        read_colour(path, 32)


def test_of_dicom_only_what_pixels_need_is_read(tmp_path, monkeypatch):
    read = []
    original = pydicom.filereader.dcmread

    def watch(*arguments, **options):
        header = original(*arguments, **options)
        read.extend(element.keyword for element in header)
        return header

    monkeypatch.setattr(pydicom.filereader, "dcmread", watch)
    read_colour(dicom(tmp_path / "a.dcm", GREY), 32)
    assert "Rows" in read
    assert not [keyword for keyword in read if "Patient" in keyword]


def test_without_pydicom_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    for name in ("0/a.dcm", "0/b.dcm", "1/c.dcm"):
        dicom(tmp_path / name, GREY)
    original = builtins.__import__

    def without(name, *arguments):
        if name.startswith("pydicom"):
            raise ModuleNotFoundError(f"No module named '{name}'")
        return original(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DropfedError) as caught:
        read_graded(tmp_path, 32)
    assert str(caught.value) == (
        f"0/a.dcm: DICOM files need pydicom; run {installing('dicom')}, or convert them to PNG."
    )


# Images without grades


def list_images(path):
    return list_files(path, GRADED_EXTENSIONS)


def test_list_images(tmp_path):
    for name in ("b.png", "a.tif"):
        save(tmp_path / "eyes" / name)
    dicom(tmp_path / "eyes" / "c.dcm", GREY)
    names = ["a.tif", "b.png", "c.dcm"]
    assert [path.name for path in list_images(tmp_path / "eyes")] == names
    assert list_images(tmp_path / "eyes" / "b.png") == [tmp_path / "eyes" / "b.png"]
    (tmp_path / "eyes" / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"eyes/notes.txt: is not a PNG, JPEG, TIFF or DICOM file"):
        list_images(tmp_path / "eyes")
    for wrong in (tmp_path / "eyes" / "notes.txt", tmp_path / "absent"):
        with pytest.raises(DataError, match="is neither a PNG, JPEG, TIFF or DICOM file nor a folder of them"):
            list_images(wrong)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none: has no image in it"):
        list_images(tmp_path / "none")


def test_dicom_without_its_ending_is_told_how_to_be_called(tmp_path):
    for number in range(4):
        path = dicom(tmp_path / "eyes" / f"1.2.84{number}", GREY)
        sentence = f"eyes/1.2.84{number}: is a DICOM file; call it 1.2.84{number}.dcm."
        with pytest.raises(DataError) as caught:
            list_images(path)
        assert caught.value.problems == (sentence,)
        if number == 0:
            (tmp_path / "eyes" / "notes.txt").write_text("x")
            with pytest.raises(DataError) as caught:
                list_images(tmp_path / "eyes")
            assert caught.value.problems[0] == sentence
            assert caught.value.problems[1].startswith("eyes/notes.txt: is not a PNG")
    with pytest.raises(
        DataError, match=r"eyes: 4 DICOM files do not end in \.dcm, as eyes/1\.2\.840, .*; rename them\."
    ):
        list_images(tmp_path / "eyes")
    with pytest.raises(DataError, match="eyes: 5 files are not PNG, JPEG or TIFF, as "):
        list_files(tmp_path / "eyes")


def test_what_desktops_and_synology_leave_is_passed_over(tmp_path):
    save(tmp_path / "eyes" / "a.png")
    save(tmp_path / "eyes" / "@eaDir" / "a.png" / "SYNOPHOTO_THUMB_M.jpg")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini"):
        (tmp_path / "eyes" / name).write_bytes(b"x")
    assert [path.name for path in list_images(tmp_path / "eyes")] == ["a.png"]


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="Windows knows no such user")
def test_a_file_that_may_not_be_read_is_a_problem_of_its_own(tmp_path):
    with tempfile.TemporaryDirectory() as home:  # where another user may look, too
        Path(home).chmod(0o755)
        path = save(Path(home) / "a.png")
        path.chmod(0)
        was = os.geteuid()
        os.seteuid(was or 65534)  # root may read everything
        try:
            with pytest.raises(
                DataError, match=r"a\.png: cannot be read as an image \(Permission denied\); correct it"
            ):
                read_colour(path, 32)
        finally:
            os.seteuid(was)
