"""A predicted mask as a DICOM segmentation, to lie beside its image in an archive, where the optional highdicom is
installed. It names the patient as the image does, or it could not be filed.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.errors import ActionRequiredError, DataError
from shared.folder.durable import writing
from shared.learning.data.images import short_name
from shared.software import installing

RESEARCH_ONLY = "For research only, not for diagnosis"
"""What a series is called; of 64 characters at most."""
_MAKER = "dropfed"


def require_highdicom() -> None:
    """Check that segmentations can be written.

    Raises:
        ActionRequiredError: a package is missing.
    """
    try:
        import highdicom  # noqa: F401, PLC0415  (an extra)
    except ImportError as error:
        raise ActionRequiredError(
            f"--dicom-seg needs {error.name}, which is not installed here: run {installing('dicomseg')}"
        ) from None


def write_segmentation(
    source: Path, classes: NDArray[np.intp], labels: Sequence[str], *, run: str, sha256: str, path: Path
) -> None:
    """Write one segment for each class but the first.

    Args:
        source: the image, a DICOM file.
        classes: (H, W), of each of its pixels.
        labels: what the classes are called.
        run: that trained the model.
        sha256: of the model's file.

    Raises:
        DataError: the image is no DICOM file, or does not tell what a segmentation refers to.
    """
    from highdicom import AlgorithmIdentificationSequence, seg  # noqa: PLC0415  (an extra)
    from pydicom import dcmread  # noqa: PLC0415
    from pydicom.sr.codedict import codes  # noqa: PLC0415
    from pydicom.uid import generate_uid  # noqa: PLC0415

    algorithm = AlgorithmIdentificationSequence(run, codes.DCM.ArtificialIntelligence, sha256)
    segments = [
        seg.SegmentDescription(
            segment_number=number,
            segment_label=label,
            segmented_property_category=codes.SCT.AnatomicalStructure,
            segmented_property_type=codes.SCT.BloodVessel if label == "vessel" else codes.SCT.AnatomicalStructure,
            algorithm_type=seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        for number, label in enumerate(labels[1:], start=1)
    ]
    mask = classes.astype(np.uint8)[None]  # (H, W) -> (1, H, W)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about values of other tags
            image = dcmread(source, stop_before_pixels=True)
            about = [
                str(image.SOPInstanceUID),
                run,
                sha256,
                hashlib.sha256(mask.tobytes()).hexdigest(),
            ]  # the same mask of the same model has the same names
            made = seg.Segmentation(
                source_images=[image],
                pixel_array=mask,
                segmentation_type=seg.SegmentationTypeValues.BINARY,
                segment_descriptions=segments,
                series_instance_uid=generate_uid(entropy_srcs=["series", *about]),
                series_number=1,
                sop_instance_uid=generate_uid(entropy_srcs=["instance", *about]),
                instance_number=1,
                manufacturer=_MAKER,
                manufacturer_model_name=_MAKER,
                software_versions=version("dropfed"),
                device_serial_number="none",
                series_description=RESEARCH_ONLY,
            )
    except Exception as error:  # whatever pydicom and highdicom raise over an image that lacks something
        reason = " ".join(str(error).replace(str(source), source.name).split())
        raise DataError(
            [f"{short_name(source)}: no DICOM segmentation can be made of it ({reason}); its mask is in masks/"]
        ) from error
    with writing(path) as file:
        made.save_as(file)
