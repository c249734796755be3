"""``make screenshots``: without a browser it says so; and the pictures are where the pages show them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deploy.local.screenshots import PICTURES, SHOTS, WIDTH
from tests.federation.forked import Forked
from tests.federation.running import WAIT_S

ROOT = Path(__file__).parent.parent
LARGEST = 300_000  # bytes
NO_PAGES = {"synthetic-octa.png", "synthetic-fundus.png"}


def test_without_a_browser_it_says_what_brings_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, said = tmp_path / "pictures", tmp_path / "said.txt"
    pictures.mkdir()
    monkeypatch.setenv("PATH", str(pictures))
    assert Forked(["deploy.local.screenshots", str(pictures)], said).wait(WAIT_S) == 0
    assert said.read_text() == "no picture was taken: Chromium is not installed; `apt-get install chromium` brings it\n"
    assert not [*pictures.iterdir()]


def test_every_picture_of_a_page_is_taken_anew() -> None:
    assert {path.name for path in (ROOT / PICTURES).glob("*.png")} == SHOTS.keys() | NO_PAGES


def test_every_picture_is_small_and_shown_in_the_documentation() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    for name, height in SHOTS.items():
        content = (ROOT / PICTURES / name).read_bytes()
        assert len(content) < LARGEST
        size = [int.from_bytes(content[start : start + 4]) for start in (16, 20)]
        assert size[0] == WIDTH and size[1] <= height
        assert any(re.search(rf"!\[[^]]+\]\((\.\./)?pictures/{re.escape(name)}\)", page) for page in pages), name
