"""``predict --dicom-seg``: masks of DICOM images as DICOM segmentations that name their image and its patient."""

from __future__ import annotations

import csv
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from shared.software import installing
from site_client.cli import main
from tests.learning.exports import REFERABLE, VESSELS, write_export

EN_FACE = "1.2.840.10008.5.1.4.1.1.77.1.5.7"
"""An image of retinal vessels from a volume of OCT."""
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
PHOTOGRAPH = "1.2.840.10008.5.1.4.1.1.77.1.5.1"
LEVELS = np.random.default_rng(1).integers(0, 255, (40, 64), dtype=np.uint8)


def write_dicom(path: Path, **changes: Any) -> None:
    """Write an en-face image; a change that is None leaves an attribute out."""
    instance = generate_uid()
    told: dict[str, Any] = {
        "SOPClassUID": EN_FACE,
        "SOPInstanceUID": instance,
        "StudyInstanceUID": generate_uid(),
        "SeriesInstanceUID": generate_uid(),
        "FrameOfReferenceUID": generate_uid(),
        "Modality": "OPT",
        "NumberOfFrames": 1,
        "PatientID": "17",
        "PatientName": "Doe^Jane",
        **dict.fromkeys(("PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"), ""),
        **dict.fromkeys(("AccessionNumber", "ReferringPhysicianName"), ""),
        "Rows": LEVELS.shape[0],
        "Columns": LEVELS.shape[1],
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "BitsAllocated": 8,
        "BitsStored": 8,
        "HighBit": 7,
        "PixelRepresentation": 0,
        "PixelData": LEVELS.tobytes(),
    }
    file = Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID, file.file_meta.MediaStorageSOPInstanceUID = EN_FACE, instance
    for keyword, value in (told | changes).items():
        if value is not None:
            setattr(file, keyword, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    file.save_as(path, enforce_file_format=True)


def predict(home: Path, **model: Any) -> Result:
    write_export(home / "model", **(model or VESSELS))
    asked = ["predict", str(home / "images"), "--model", str(home / "model"), "--output", str(home / "out")]
    return CliRunner().invoke(main, [*asked, "--dicom-seg"])


def test_a_dicom_image_is_seen_as_the_same_image_in_another_format(tmp_path: Path) -> None:
    write_dicom(tmp_path / "images" / "a.dcm")
    Image.fromarray(LEVELS).save(tmp_path / "images" / "b.png")
    write_export(tmp_path / "model", **VESSELS)
    asked = ["predict", str(tmp_path / "images"), "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    assert CliRunner().invoke(main, asked).exit_code == 0
    with (tmp_path / "out" / "predictions.csv").open(encoding="utf-8", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first.pop("image"), second.pop("image")) == ("a", "b")
    assert first == second
    assert not (tmp_path / "out" / "segmentations").exists()


@pytest.mark.parametrize(
    "changes", [{}, {"SOPClassUID": SECONDARY_CAPTURE, "NumberOfFrames": None, "FrameOfReferenceUID": None}]
)
def test_a_segmentation_holds_the_mask_and_names_its_image(changes: dict[str, Any], tmp_path: Path) -> None:
    seg = pytest.importorskip("highdicom.seg", reason="highdicom is not installed: `pip install '.[dicomseg]'`")
    write_dicom(tmp_path / "images" / "a.dcm", **changes)
    result = predict(tmp_path)
    assert result.exit_code == 0, result.output
    image = pydicom.dcmread(tmp_path / "images" / "a.dcm")
    found = seg.segread(tmp_path / "out" / "segmentations" / "a.dcm")
    mask = np.asarray(Image.open(tmp_path / "out" / "masks" / "a.png"))
    assert mask.any()
    assert np.array_equal(found.pixel_array.reshape(mask.shape) != 0, mask == 255)
    assert (found.PatientID, found.StudyInstanceUID) == ("17", image.StudyInstanceUID)
    (algorithm,) = found.get_segment_description(1).SegmentationAlgorithmIdentificationSequence
    model = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert algorithm.AlgorithmVersion == hashlib.sha256(model).hexdigest()
    assert found.SeriesDescription == "For research only, not for diagnosis"
    assert found.get_source_image_uids() == [
        (image.StudyInstanceUID, image.SeriesInstanceUID, image.SOPInstanceUID),
    ]
    assert [found.get_segment_description(number).segment_label for number in found.segment_numbers] == ["vessel"]


def test_images_that_no_segmentation_can_be_of_are_named(tmp_path: Path) -> None:
    pytest.importorskip("highdicom.seg", reason="highdicom is not installed: `pip install '.[dicomseg]'`")
    write_dicom(tmp_path / "images" / "a.dcm", FrameOfReferenceUID=None)
    Image.fromarray(LEVELS).save(tmp_path / "images" / "b.png")
    write_dicom(tmp_path / "images" / "c.dcm", StudyInstanceUID=None)
    write_dicom(tmp_path / "images" / "d.dcm", SOPClassUID=PHOTOGRAPH)
    result = predict(tmp_path)
    assert result.exit_code == 1
    for name in ("a.dcm", "b.png", "c.dcm", "d.dcm"):
        assert f"images/{name}: no DICOM segmentation can be made of it (" in result.output
    assert not (tmp_path / "out" / "segmentations").exists()
    assert {path.name for path in (tmp_path / "out" / "masks").iterdir()} == {"a.png", "b.png", "c.png", "d.png"}


def test_a_task_that_labels_no_pixels_and_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dicom(tmp_path / "images" / "a.dcm")
    result = predict(tmp_path, **REFERABLE)
    assert result.output.endswith("--dicom-seg: rdr_classification labels no pixels: leave it out\n")
    assert result.exit_code == 2
    monkeypatch.setitem(sys.modules, "highdicom", None)
    result = predict(tmp_path)
    said = f"--dicom-seg needs highdicom, which is not installed here: run {installing('dicomseg')}\n"
    assert result.output.endswith(said)
    assert result.exit_code == 1
