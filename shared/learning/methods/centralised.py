"""All sites' images in one place: a reference for comparisons on one machine, which no hospital would allow.

one site with the training images of all    w ← x, in as many rounds as a federation would have
"""

from __future__ import annotations

from shared.learning.methods.contract import Method


class Centralised(Method):
    """The method that this module describes."""

    name = "centralised"
    reference = "pooled"
