"""The plain mean of Lo et al. 2021: every accepted site counts the same.

    w ← (1/|S|) Σ_{k in S} x_k        S: sites whose score on the held-out set exceeds the tolerance

All parameters and BatchNorm's running statistics travel, but for a task's local part. A ``Method`` that says nothing
more is this one.
"""

from __future__ import annotations

from shared.learning.methods.contract import Method


class Mean(Method):
    """The method that this module describes."""

    name = "mean"
