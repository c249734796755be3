"""Text from elsewhere, shown so that it can neither forge a line nor move the cursor."""

from __future__ import annotations


def visible(text: str) -> str:
    """The text on one line; what would break it, or cannot be seen, as an escape, as in ``\\n``."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
