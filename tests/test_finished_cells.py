"""A study that was stopped goes on elsewhere: what its finished cells came to is kept, and put back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.finished_cells import FinishedCells


def test_another_machine_goes_on_with_what_was_finished(tmp_path: Path) -> None:
    here, kept = tmp_path / "here", tmp_path / "kept"
    for name, result in (("a", {"rows": [1]}), ("b", None)):
        (here / name).mkdir(parents=True)
        if result:
            (here / name / "result.json").write_text(json.dumps(result))
    cells = FinishedCells(here, kept)
    cells.put_back()  # nothing is kept yet
    cells.keep()
    first = (kept / "a.json").read_bytes()
    assert [path.name for path in kept.iterdir()] == ["a.json"]

    there = FinishedCells(tmp_path / "there", kept)
    there.put_back()
    assert json.loads((tmp_path / "there/a/result.json").read_text()) == {"rows": [1]}
    (tmp_path / "there/b").mkdir()
    (tmp_path / "there/b/result.json").write_text("{}")
    there.keep()
    assert (kept / "a.json").read_bytes() == first, "played there, not here"
    (told,) = there.by_machine()
    assert told["cells"] == 2 and set(told) == {"cells", "commit", "date", "machine"}
    there.remove()
    assert not kept.exists() and there.by_machine() == []


def test_what_was_played_anew_here_is_not_overwritten(tmp_path: Path) -> None:
    cells = FinishedCells(tmp_path / "here", tmp_path / "kept")
    (tmp_path / "here/a").mkdir(parents=True)
    (tmp_path / "here/a/result.json").write_text('{"rows": [1]}')
    cells.keep()
    (tmp_path / "here/a/result.json").write_text('{"rows": [2]}')
    cells.put_back()
    assert json.loads((tmp_path / "here/a/result.json").read_text()) == {"rows": [2]}
    shutil.rmtree(tmp_path / "here")
    cells.put_back()
    assert json.loads((tmp_path / "here/a/result.json").read_text()) == {"rows": [1]}
