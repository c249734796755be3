"""The documentation as a site: every link leads somewhere, and its pages ask no other machine for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOADED = {"action", "data", "poster", "src", "srcset"}  # and href, of anything but an anchor
ELSEWHERE = re.compile(r"\s*(?:[a-z]+:)?//")
OF_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?!data:)([^\"')\s]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link or an anchor that leads nowhere, or a page in no menu, ends the build."""
    home = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(home)]
    built = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert built.returncode == 0, built.stdout
    return home


class Loads(HTMLParser):
    """The addresses that a page loads by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in LOADED or (name == "href" and tag != "a")]


def test_pages_and_styles_name_nothing_from_elsewhere(site: Path) -> None:
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) > 60 and styles
    for page in pages:
        text = page.read_text()
        assert not [address for address in Loads(text).found if ELSEWHERE.match(address)], page
        assert page.name == "404.html" or "Content-Security-Policy" in text, page
    for style in styles:
        assert not [address for address in OF_STYLES.findall(style.read_text()) if ELSEWHERE.match(address)], style


def test_what_a_page_loads_is_seen() -> None:
    page = '<a href="https://a.example"><link href="//b.example"><img src="https://c.example"><script src="d.js">'
    assert [address for address in Loads(page).found if ELSEWHERE.match(address)] == [
        "//b.example",
        "https://c.example",
    ]
    assert OF_STYLES.findall("@import 'https://a.example'; b { background: url(//c.example/d.png), url(data:x) }") == [
        "https://a.example",
        "//c.example/d.png",
    ]
