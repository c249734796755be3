"""Each site alone: a reference for comparisons on one machine. No model meets another.

site        w ← x, in as many rounds as a federation would have
"""

from __future__ import annotations

from shared.learning.methods.contract import Method


class SingleSite(Method):
    """The method that this module describes."""

    name = "single_site"
    reference = "alone"
