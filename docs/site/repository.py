"""The documentation site keeps the layout of the repository, so that a link leads to the same file in both.

``mkdocs.yml`` names this file under ``hooks``.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
SHOWN = (
    "*.md",
    "CITATION.cff",
    "LICENSE",
    "benchmarks/results/**/*.*",
    "configs/**/*.yaml",
    "deploy/*/README.md",
    "docs/*.ipynb",
    "docs/*.md",
    "docs/adr/*",
    "docs/pictures/*",
    "docs/roles/*",
    "shared/learning/**/*.py",
)
"""The pages, and what they link to."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Return the theme's own files and those of the repository, each where it lies there."""
    of_the_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = [path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in sorted(ROOT.glob(pattern))]
    shown = [File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in paths]
    return Files([*of_the_theme, *shown])
