"""Texts of records that nobody honest writes."""

from __future__ import annotations

from typing import Any

import yaml

from shared.doors import Refusal
from shared.exchange.reading import dump_values


def in_yaml(values: dict[str, Any]) -> bytes:
    """The values as a record has them; where they have no such text, as PyYAML writes them."""
    try:
        return dump_values(values)
    except Refusal:
        return yaml.safe_dump(values).encode()
