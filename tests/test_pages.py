"""What all pages have of the one that they extend: they fit a phone, and are whole on paper."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from shared.audit.cli import main as audit
from tests.browser import chromium
from tests.played import RUN, Played, begun
from tests.test_report import report

LONG = "octa_segmentation.fedavg_2026".ljust(64, "x")
"""A name of a run, which no line of a phone holds."""

TOO_WIDE = """
document.querySelectorAll('details').forEach((at) => { at.open = true; });
return [document.documentElement, ...document.querySelectorAll('pre')].filter((at) => at.scrollWidth > at.clientWidth)
  .map((at) => at.outerHTML.slice(0, 200));
"""
"""What scrolls sideways beside the tables, which say that they do."""

CUT = """
document.querySelectorAll('details').forEach((at) => { at.open = false; });
const isWhole = (at) => at.checkVisibility() && getComputedStyle(at).overflowX === 'visible';
return [...document.querySelectorAll('.wide, td, pre')].filter((at) => !isWhole(at))
  .map((at) => at.outerHTML.slice(0, 200));
"""
"""What paper would not show, or not whole."""


def test_every_page_fits_a_phone_and_is_whole_on_paper(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    begun(run)
    pages = [tmp_path / "report.html", tmp_path / "audit.html"]
    assert report(run, "--pages", str(tmp_path)).exit_code == 0
    assert CliRunner().invoke(audit, ["report", "--html", str(pages[1]), str(run.drop)]).exit_code == 0
    for page in pages:
        page.write_text(page.read_text(encoding="utf-8").replace(RUN, LONG), encoding="utf-8")
    with chromium(tmp_path) as browser:
        browser.resize(320, 640)
        for page in pages:
            browser.open(page.as_uri())
            assert LONG in browser.text() and browser.run(TOO_WIDE) == []
        browser.print()
        for page in pages:
            browser.open(page.as_uri())
            assert browser.run(CUT) == []
