"""Predictions as one self-contained page, which a person leafs through by the arrow keys: the doubtful ones first."""

from __future__ import annotations

import hashlib
import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shared.pages.render import render
from shared.plurals import pluralize

MOST_SHOWN = 100
"""Images on a page: some 25 MB in all, where each has three pictures."""
LONGEST_SIDE = 512
"""Of a picture on a page, in pixels."""
ORDERED_BY_UNCERTAINTY = "The most uncertain come first"
ORDERED_BY_SCORE = "What the model was most wrong about comes first"

_HERE = Path(__file__).parent
_QUALITY = 85  # of JPEG


@dataclass(frozen=True, order=True)
class _Shown:
    """One image on a page; those of higher ``rank`` first, then in the order in which they came."""

    rank: float
    before: int
    name: str = field(compare=False)
    words: Sequence[str] = field(compare=False)
    pictures: Mapping[str, str] = field(compare=False)


class Page:
    """Images to be shown, of which only the ``MOST_SHOWN`` of highest rank are kept.

    Args:
        order: what comes first, as a sentence without its full stop.
    """

    def __init__(self, title: str, order: str) -> None:
        self._title, self._order = title, order
        self._count = 0
        self._kept: list[_Shown] = []

    def add(self, rank: float, name: str, words: Sequence[str], pictures: Mapping[str, NDArray[Any]]) -> None:
        """Add an image.

        Args:
            words: what is said of it, each a sentence without its full stop.
            pictures: by what they show, (H, W) or (H, W, 3) in [0, 1].
        """
        self._count += 1
        if len(self._kept) == MOST_SHOWN and rank <= self._kept[0].rank:
            return
        drawn = {what: _data_address(levels) for what, levels in pictures.items()}
        shown = _Shown(rank, -self._count, name, words, drawn)
        if len(self._kept) < MOST_SHOWN:
            heappush(self._kept, shown)
        else:
            heappushpop(self._kept, shown)

    def html(self, others: str) -> bytes:
        """Return the page.

        Args:
            others: where images are told of that it does not show, as a clause.
        """
        script = (
            (_HERE / "predictions.js").read_text(encoding="utf-8").removesuffix("\n")
        )  # as the template includes it
        left_out = self._count - len(self._kept)
        more = f"{pluralize(left_out, 'more image')} {'is' if left_out == 1 else 'are'} not on this page; {others}."
        page = render(
            _HERE / "predictions.html",
            title=self._title,
            order=self._order,
            more=more if left_out else "",
            images=sorted(self._kept, reverse=True),
            digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
        return page.encode()


def picture_of(levels: NDArray[Any]) -> Image.Image:
    """Return (H, W) or (H, W, 3) values in [0, 1] as an 8-bit picture."""
    return Image.fromarray(np.rint(levels * 255).astype(np.uint8))


def _data_address(levels: NDArray[Any]) -> str:
    """Return a picture, made small enough, as an address that holds it."""
    picture, content = picture_of(levels), io.BytesIO()
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    picture.save(content, format="JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{b64encode(content.getvalue()).decode()}"
