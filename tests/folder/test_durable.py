"""What is written is on the disk before it takes its name, and its name is before the caller goes on."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shared.folder.durable import temporary_name, write_file, writing


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every fsync, of a file with what it held and of a folder, and every rename, in order."""
    found: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor: int) -> None:
        state = os.fstat(descriptor)
        found.append("folder" if stat.S_ISDIR(state.st_mode) else f"file of {state.st_size}")
        sync(descriptor)

    def noted_replace(source: Path, target: Path) -> Path:
        found.append(f"{source.name} becomes {target.name}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    return found


def test_a_file_is_on_the_disk_before_it_is_renamed_and_the_name_after(tmp_path: Path, steps: list[str]) -> None:
    write_file(tmp_path / "model", b"12345")
    assert steps == ["file of 5", f"{temporary_name('model')} becomes model", "folder"]
    assert (tmp_path / "model").read_bytes() == b"12345"


def test_what_could_not_be_written_leaves_what_was_there(tmp_path: Path, steps: list[str]) -> None:
    write_file(tmp_path / "model", b"old")
    steps.clear()
    with pytest.raises(OSError, match="full"), writing(tmp_path / "model") as file:
        file.write(b"new")
        raise OSError("full")
    assert (steps, [path.name for path in tmp_path.iterdir()]) == ([], ["model"])
    assert (tmp_path / "model").read_bytes() == b"old"
