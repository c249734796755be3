"""Text of somebody else's, where people and their programs read it."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.escaping import quoted, uncomputed


@pytest.mark.parametrize("delimiter", [",", ";"])
@given(texts=st.lists(st.text(st.sampled_from("=+-@; ax1'\"\\t\\n")), min_size=1, max_size=3))
def test_no_spreadsheet_computes_it_wherever_that_begins_a_cell(texts: list[str], delimiter: str) -> None:
    """In Germany or France it is at each semicolon, whatever the file has between its cells."""
    table = io.StringIO()
    csv.writer(table).writerow([uncomputed(text) for text in texts])
    (cells,) = csv.reader(io.StringIO(table.getvalue()), delimiter=delimiter)
    assert not [cell for cell in cells if cell.strip().startswith(("=", "+", "-", "@"))]


def test_no_command_takes_a_path_for_an_option() -> None:
    assert [quoted(path) for path in ("-y.yaml", "a-y.yaml", "/a b")] == ["./-y.yaml", "a-y.yaml", "'/a b'"]


def test_what_is_none_stays_as_it_is() -> None:
    for text in ("octa-1", "a = b", "1 - 2; then 3", "3 @ 4", "fewer than 5"):
        assert uncomputed(text) == text
