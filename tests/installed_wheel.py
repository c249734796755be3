"""A plug-in's wheel as it lies once it is installed, for a test's process and those that it starts."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.learning import plugins

REPOSITORY = Path(__file__).parents[1]


def install_wheel(
    place: Path, name: str, modules: Mapping[str, str], entry_points: str, patch: pytest.MonkeyPatch
) -> None:
    """Lay out ``dropfed-NAME`` 0.1.0 in a folder where both find it, permitted to nobody.

    Args:
        modules: the text of its files, by their paths.
    """
    about = f"dropfed_{name}-0.1.0.dist-info"
    files = {
        **modules,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: dropfed-{name}\nVersion: 0.1.0\n",
        f"{about}/entry_points.txt": entry_points,
    }
    for path, text in files.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    (place / about / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    patch.syspath_prepend(str(place))
    patch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(REPOSITORY)]))
    patch.setattr(plugins, "_permitted", set())
    importlib.invalidate_caches()
