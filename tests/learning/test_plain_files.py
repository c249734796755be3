"""Files of any kind that belong together by their stems."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import DataError
from shared.learning.data.plain_files import plain_files, plain_units


def write(root: Path, *paths: str) -> Path:
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    return root


def test_what_belongs_to_an_image_lies_beside_it_under_its_stem(tmp_path: Path) -> None:
    write(tmp_path, "images/b.nii", "images/a.raw", "notes/a.txt", "notes/b.txt", "images/.hidden")
    listed = plain_files(tmp_path, None)
    assert [(each.id, each.label) for each in listed] == [("a", None), ("b", None)]
    assert listed[0].files == {"images": tmp_path / "images/a.raw", "notes": tmp_path / "notes/a.txt"}
    before = plain_units(tmp_path)
    (tmp_path / "notes/a.txt").write_text("another")
    after = plain_units(tmp_path)
    assert [each.contents for each in before] == [each.contents for each in after]
    assert [each.label == other.label for each, other in zip(before, after, strict=True)] == [False, True]


def test_labels_are_classes(tmp_path: Path) -> None:
    write(tmp_path, "images/a", "images/b")
    (tmp_path / "labels.csv").write_text("id,label\na,ill\nb,well\n")
    assert [each.label for each in plain_files(tmp_path, ["well", "ill"])] == ["ill", "well"]
    assert [each.kind for each in plain_units(tmp_path)] == ["ill", "well"]
    with pytest.raises(DataError, match="label must be one of well, not 'ill'"):
        plain_files(tmp_path, ["well"])


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        (["masks/a.png"], "holds no folder images"),
        (["images/a.png", "images/b.png", "masks/a.png"], "masks: has no file b, which images has; add it"),
        (["images/a.png", "masks/a.png", "masks/c.png"], "masks/c.png: images has no c; add it"),
        (["images/a.png", "images/a.raw"], "images/a.raw: is no file, or another has the same stem"),
        (["images/a/b"], "images/a: is no file, or another has the same stem"),
        (["images/.hidden"], "images: has no file in it; put some there"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, paths: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        plain_files(write(tmp_path, *paths), None)
