"""CSV as tables have it: ASCII, commas, line feeds, and no cell in quotes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.doors import Refusal, door, require_size

MOST_LINES = 10_000
MOST_CELLS = 200_000


@door("cannot be read")
def parse(content: bytes, max_bytes: int) -> list[list[str]]:
    """Return the cells of each line, the header's first.

    Raises:
        Refusal: too large, too many lines or cells, a byte that is no printable ASCII, a quoted cell, or no line feed
            at its end.
    """
    require_size(content, max_bytes)
    if content.count(b"\n") > MOST_LINES or content.count(b",") + content.count(b"\n") > MOST_CELLS:
        raise Refusal(f"it has more than {MOST_LINES} lines, or {MOST_CELLS} cells")
    text = content.decode("ascii")
    if not text.endswith("\n") or '"' in text or not text.replace("\n", "").isprintable():
        raise Refusal("a line does not end as the protocol says, or a cell is quoted")
    return [line.split(",") for line in text[:-1].split("\n")]


def write(lines: Iterable[Sequence[str]]) -> bytes:
    """Write lines of cells, none of which holds a comma, a quotation mark or the end of a line."""
    return "".join(f"{','.join(cells)}\n" for cells in lines).encode("ascii")
