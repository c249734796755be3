"""The documentation site keeps the layout of the repository, so that a link leads to the same file in both.

``mkdocs.yml`` names this file under ``hooks``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
SHOWN = (
    "*.md",
    "CITATION.cff",
    "LICENSE",
    "benchmarks/results/**/*.*",
    "configs/**/*.yaml",
    "configs/external_trainer/*.c",
    "deploy/*/README.md",
    "docs/*.ipynb",
    "docs/*.md",
    "docs/adr/*",
    "docs/pictures/*",
    "docs/roles/*",
    "shared/learning/**/*.py",
)
"""The pages, and what they link to."""


NOTEBOOK, NOTEBOOK_PAGE = "tutorial.ipynb", "tutorial.md"
"""Beside each other in docs; the page is made of the notebook's cells and outputs."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the theme's own files and those of the repository, each where it lies there."""
    of_the_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = [path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in sorted(ROOT.glob(pattern))]
    shown = [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in paths]
    notebook = json.loads((ROOT / "docs" / NOTEBOOK).read_bytes())
    page = File.generated(config, f"docs/{NOTEBOOK_PAGE}", content="\n\n".join(map(_text_of, notebook["cells"])))
    return Files([*of_the_theme, *shown, page])


def on_page_markdown(markdown: str, **_: object) -> str:
    """Return a page whose links to the notebook lead to its page."""
    return markdown.replace(NOTEBOOK, NOTEBOOK_PAGE)


def _text_of(cell: dict[str, Any]) -> str:
    """Return a cell as Markdown: its text; or its code, what it printed and what it showed."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(_text_of_output, cell["outputs"])])


def _text_of_output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return f"![What the cell shows](data:image/png;base64,{data['image/png']})"
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"
