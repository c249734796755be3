"""Run a notebook's code cells in this process, and write it with what they gave: text, tables, pictures.

    .venv/bin/python -m deploy.local.notebook docs/tutorial.ipynb

So the committed outputs are real ones, and no notebook software is needed to make them.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from shared.folder.durable import write_file

Json = dict[str, Any]


def run_cells(notebook: Mapping[str, Any]) -> Json:
    """Return a notebook (nbformat 4) whose code cells were run one after the other, in one namespace.

    Raises:
        Exception: whatever a cell raises.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    cells, number = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cells.append({**cell, "execution_count": number, "outputs": _run("".join(cell["source"]), space, number)})
        else:
            cells.append(dict(cell))
    return {**notebook, "cells": cells}


def _run(source: str, space: dict[str, Any], number: int) -> list[Json]:
    """Run a cell; return what it printed, and what its last line is worth if that is an expression."""
    body, printed, value = ast.parse(source).body, io.StringIO(), None
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    with redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), space)  # noqa: S102  (the repository's own file)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), space)  # noqa: S307
    outputs: list[Json] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = _shown(value)
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def _shown(value: Any) -> Json:
    """Return a value in every form in which a notebook shows it, by media type."""
    found: Json = {"text/plain": re.sub(" at 0x[0-9A-Fa-f]+", "", repr(value)).splitlines(True)}
    if (html := getattr(value, "_repr_html_", lambda: None)()) is not None:
        found["text/html"] = html.splitlines(True)
    if (png := getattr(value, "_repr_png_", lambda: None)()) is not None:
        found["image/png"] = base64.b64encode(png).decode()
    return found


def main(path: Path) -> None:
    """Run a notebook, and write it anew."""
    notebook = run_cells(json.loads(path.read_bytes()))
    write_file(path, (json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".ipynb"):
        sys.exit("usage: python -m deploy.local.notebook NOTEBOOK.ipynb")
    main(Path(sys.argv[1]))
