"""Federated methods, one readable file each."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from shared.errors import ConfigurationError
from shared.learning.methods.contract import Method

METHODS = ("mean",)


def method_named(name: str) -> Method:
    """Return the method a run configuration names.

    Raises:
        ConfigurationError: there is none of that name; the known ones are listed.
    """
    if name not in METHODS:
        raise ConfigurationError([f"method: there is no method {name}; use one of {', '.join(METHODS)}"])
    return cast(Method, import_module(f"shared.learning.methods.{name}"))
