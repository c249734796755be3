"""Synthetic data folders that tests use, each drawn once: an OCTA image alone takes a fifth of a second.

What is drawn lies in pytest's own folder, for all workers and all later runs, as long as the code that draws it is the
same.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import scipy
from numpy.typing import NDArray
from PIL import Image

from deploy.local import synthetic_octa
from deploy.local.synthetic_octa import OctaStyle
from tests.learning import synthetic_scans

ROOT = Path(__file__).parents[1]
CODE = (
    "deploy/local/synthetic_*.py",
    "shared/learning/seeds.py",
    "tests/federation/running.py",
    "tests/learning/small_*.py",
    "tests/learning/synthetic_*.py",
)
_render = synthetic_octa.render


@cache
def _kept() -> Path:
    """Return the folder of what this code draws with these libraries."""
    code = b"".join(path.read_bytes() for pattern in CODE for path in sorted(ROOT.glob(pattern)))
    digest = hashlib.sha256(code + f"{np.__version__} {scipy.__version__}".encode()).hexdigest()
    folder = ROOT / ".pytest_cache" / "d" / f"drawn-{digest[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def draw_once(name: str, draw: Callable[[Path], None], target: Path) -> None:
    """Have in ``target`` what ``draw`` draws into a folder, under a name that says all that decides it."""
    kept = _kept() / name
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=_kept()) as folder:
            with patch.object(synthetic_octa, "render", render), patch.object(synthetic_scans, "render", render):
                draw(Path(folder) / "drawn")
            with suppress(OSError):  # another worker was quicker
                (Path(folder) / "drawn").rename(kept)
    shutil.copytree(kept, target, dirs_exist_ok=True)


def render(style: OctaStyle, size: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return what ``synthetic_octa.render`` does: folders of more images hold those of folders of fewer."""
    path = _kept() / f"{hashlib.sha256(repr((style, size, seed)).encode()).hexdigest()[:32]}.png"
    if not path.exists():
        image, mask = _render(style, size, seed)
        with tempfile.TemporaryDirectory(dir=_kept()) as folder:
            drawn = Path(folder) / path.name
            Image.fromarray(np.hstack([image, mask.astype(np.uint8) * 255])).save(drawn)
            drawn.replace(path)
    with Image.open(path) as both:
        side_by_side = np.array(both)
    return side_by_side[:, :size].copy(), side_by_side[:, size:] > 0
