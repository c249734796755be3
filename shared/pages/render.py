"""One way to make a page: a template of its own that extends ``shared/pages/base.html``, and plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from shared.escaping import escape

_HERE = Path(__file__).parent


def render(template: Path, **values: Any) -> str:
    """Return one HTML page that loads nothing from anywhere.

    Args:
        template: of package data; it extends ``base.html`` and fills its blocks.
        values: what it speaks of. All text is escaped, and loses its control characters; only ``Markup``, which a
            figure of ours is, enters as it is.
    """
    environment = Environment(
        loader=ChoiceLoader([FileSystemLoader(template.parent), FileSystemLoader(_HERE)]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)


def _plain(value: Any) -> Any:
    """Return what stands where a value was not reported, and text without what a terminal or a browser would obey."""
    if value is None:
        return "–"
    return escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value
