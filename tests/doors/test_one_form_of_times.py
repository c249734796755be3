"""People are shown moments in one form, which shared/moments.py makes and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.doors.test_only_here import PRODUCT, ROOT, modules

FORMS = {"strftime", "isoformat", "ctime", "asctime"}
"""Methods and functions that make a text of a moment."""
DAY = "%Y-%m-%d"
"""On which a certificate ends: no moment."""
ELSEWHERE = {
    "shared/moments.py": {"isoformat"},
    "shared/exchange/records/values.py": {"strftime"},  # records are in UTC
    "shared/logs.py": {"isoformat"},  # and so is a log for scripts
}
IN_PAGES = re.compile(r"\b(?:strftime|isoformat|to\w*(?:Date|Time|Locale|ISO)String)\b")


def made(tree: ast.Module) -> Iterator[str]:
    """How a module makes texts of moments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in FORMS:
            yield node.attr
        elif isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            form = "".join(str(part.value) for part in ast.walk(node.format_spec) if isinstance(part, ast.Constant))
            if re.search("%[A-Za-z]", form) and form != DAY:
                yield form


def test_moments_are_told_in_one_form() -> None:
    assert {path: found for path, tree in modules() if (found := {*made(tree)})} == ELSEWHERE


def test_pages_have_no_other_form() -> None:
    pages = [path for room in PRODUCT for form in ("html", "js") for path in (ROOT / room).rglob(f"*.{form}")]
    assert len(pages) >= 5
    assert not [str(path) for path in pages if IN_PAGES.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "text", ["now.strftime('%H:%M')", "now.isoformat()", "f'{now:%H:%M} h'", "f'{now:{zone}%Y}'", "time.ctime()"]
)
def test_another_form_is_noticed(text: str) -> None:
    assert [*made(ast.parse(text))]


@pytest.mark.parametrize(
    "text", ["f'{share:.0%} of {now:%Y-%m-%d}'", "moment_text(now)", "datetime.fromisoformat(text)"]
)
def test_shares_and_days_are_none(text: str) -> None:
    assert not [*made(ast.parse(text))]
