"""Federated methods, one readable file each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from shared.errors import ConfigurationError
from shared.exchange.reading import check_record

if TYPE_CHECKING:
    from shared.learning.methods import fedavg, fedbn, feduaa, mean
    from shared.learning.methods.contract import Method, MethodOptions

    _KEEP_THE_CONTRACT: tuple[Method, ...] = (fedavg, fedbn, feduaa, mean)

METHODS = ("fedavg", "fedbn", "feduaa", "mean")


def method_named(name: str) -> Method:
    """Return the method a run configuration names.

    Raises:
        ConfigurationError: there is none of that name; the known ones are listed.
    """
    if name not in METHODS:
        raise ConfigurationError([f"method: there is no method {name}; use one of {', '.join(METHODS)}"])
    return cast("Method", import_module(f"shared.learning.methods.{name}"))


def method_options(method: Method, raw: Mapping[str, object]) -> MethodOptions:
    """The method's options, checked.

    Raises:
        ConfigurationError: names every key that is unknown or wrong, and the remedy.
    """
    return check_record(raw, method.Options, "method_options")
