"""docs/tutorial.ipynb: every cell runs, and its committed outputs are of the kinds that it gives."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from deploy.local.notebook import run_cells

NOTEBOOK: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "docs" / "tutorial.ipynb").read_text(encoding="utf-8")
)
MOST_PICTURES = 150_000  # bytes of PNG


def kinds(notebook: dict[str, Any]) -> list[list[list[str]]]:
    """Of each code cell, what each of its outputs is."""
    return [
        [[output["output_type"], *sorted(output.get("data", ()))] for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_cell_runs_and_gives_what_is_committed() -> None:
    played = run_cells(NOTEBOOK)
    assert kinds(played) == kinds(NOTEBOOK)
    assert [cell["source"] for cell in played["cells"]] == [cell["source"] for cell in NOTEBOOK["cells"]]
    assert [cell["id"] for cell in played["cells"]] == [cell["id"] for cell in NOTEBOOK["cells"]]


def test_its_outputs_are_real_ones_and_small() -> None:
    outputs = [output for cell in NOTEBOOK["cells"] for output in cell.get("outputs", ())]
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", ())]
    assert len(pictures) == 2
    contents = [base64.b64decode(picture) for picture in pictures]
    assert all(content.startswith(b"\x89PNG") for content in contents)
    assert sum(map(len, contents)) < MOST_PICTURES
    assert any("improved: mean validation" in "".join(output.get("text", ())) for output in outputs)
    assert not any("/tmp" in json.dumps(output) for output in outputs)
