"""A task of one's own that reads files, or lays out labels, in another way than dropfed's tasks do."""

from __future__ import annotations

import hashlib
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import dropfed
from configs.new_task.src.my_task import MyOptions, MyTask
from shared.errors import DataError

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-task.md"
OPTIONS = MyOptions()


class OfArrays(MyTask):
    """Images as NumPy writes them."""

    extensions = (".npy",)
    gives: NDArray[np.generic] | None = None

    def read(self, path: Path, options: MyOptions) -> NDArray[np.uint8]:
        if self.gives is not None:
            return self.gives  # type: ignore[return-value]
        return np.repeat(np.load(path)[..., None], 3, axis=2)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    for number in range(4):
        path = tmp_path / ("round", "square")[number % 2] / f"{number}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.full((32, 32), number, np.uint8))
    return tmp_path


def test_a_format_of_one_s_own_is_read_with_labels_and_without(arrays: Path) -> None:
    task = OfArrays()
    assert [(unit.id, unit.kind) for unit in task.units(arrays)] == [
        ("0", "round"),
        ("2", "round"),
        ("1", "square"),
        ("3", "square"),
    ]
    assert [each.grade for each in task.open_images(arrays, OPTIONS).samples] == [0, 1, 0, 1]
    assert {each.id: each.image.max() for each in task.open_unlabelled(arrays / "round", OPTIONS)} == {"0": 0, "2": 2}
    assert [unit.id for unit in task.unlabelled_units(arrays / "square")] == ["1", "3"]
    assert [each.files["images"].name for each in task.listed(arrays, OPTIONS)] == [f"{n}.npy" for n in range(4)]


def test_files_of_another_format_are_named_and_many_of_them_are_one_line(arrays: Path) -> None:
    with pytest.raises(DataError) as caught:
        MyTask().open_unlabelled(arrays / "round", OPTIONS)
    assert list(caught.value.problems) == [
        f"round/{number}.npy: is not a PNG file; convert it or move it elsewhere." for number in (0, 2)
    ]
    for number in range(4, 10):
        np.save(arrays / "round" / f"{number}.npy", np.zeros(1))
    with pytest.raises(DataError) as caught:
        MyTask().open_unlabelled(arrays / "round", OPTIONS)
    assert list(caught.value.problems) == [
        "round: 8 files are not PNG, as round/0.npy, round/2.npy, round/4.npy; convert them or move them elsewhere."
    ]


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (np.zeros((32, 32, 3)), r"float64 (32, 32, 3)"),
        (np.zeros((16, 16, 3), np.uint8), r"uint8 (16, 16, 3)"),
        (np.zeros((3, 32, 32), np.uint8), r"uint8 (3, 32, 32)"),
    ],
)
def test_what_read_gives_in_another_form_is_told(arrays: Path, gives: NDArray[np.generic], said: str) -> None:
    task = OfArrays()
    task.gives = gives
    with pytest.raises(TypeError, match=re.escape(f"read gave {said} for 0.npy, and must give uint8 (32, 32, 3)")):
        task.open_images(arrays, OPTIONS)
    with pytest.raises(TypeError, match=re.escape(f"read gave {said}")):
        task.open_unlabelled(arrays / "round", OPTIONS)


def test_the_page_s_labels_by_file_name_work(tmp_path: Path) -> None:
    page = PAGE.read_text()
    start = page.index("    def units(self, root: Path)")
    block = page[start : page.index("\n`units` says", start)]
    space = {"hashlib": hashlib, "Path": Path, "dropfed": dropfed, "MyOptions": MyOptions, "MyTask": MyTask}
    exec("class ByName(MyTask):\n" + textwrap.indent(textwrap.dedent(block), "    "), space)
    for name in ("round-1", "square-1", "round-2"):
        Image.fromarray(np.zeros((32, 32), np.uint8)).save(tmp_path / f"{name}.png")
    task: MyTask = space["ByName"]()  # type: ignore[operator]
    labels = [(unit.id, unit.kind) for unit in task.units(tmp_path)]
    assert labels == [("round-1", "round"), ("round-2", "round"), ("square-1", "square")]
    found = task.open_images(tmp_path, OPTIONS)
    assert [found.classes[each.grade] for each in found.samples] == ["round", "round", "square"]
    assert len(task.open_unlabelled(tmp_path, OPTIONS)) == 3
