"""What people who run a command let the code of plug-ins do, as options of that command."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from shared.exchange.records.run import Plugin
from shared.learning.apart import WITH_PLUGINS, Bounds

_MINUTES, _MEMORY = "--plugin-minutes", "--plugin-memory-gb"


class _Amount(click.FloatRange):
    """A number of a range, which has an end: neither ``inf`` nor ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        amount = super().convert(value, param, ctx)
        if not math.isfinite(amount):
            self.fail(f"{value} bounds nothing: name a number, a large one if need be.", param, ctx)
        return amount


@dataclass(frozen=True)
class PluginOptions:
    """Whether the plug-ins that a model or a run names are run, and what they may take then.

    Args:
        minutes: that all of their work may take.
        memory_gb: besides PyTorch itself.
    """

    are_run: bool
    minutes: float
    memory_gb: float

    def bounds(self, named: Sequence[Plugin], threads: int) -> Bounds:
        """Return what the plug-ins that are named may take, as ``Bounds``."""
        return Bounds(
            said_in="the command line",
            allowed={plugin.name: plugin.sha256 for plugin in named},
            allowed_in=WITH_PLUGINS,
            minutes=self.minutes,
            minutes_key=_MINUTES,
            memory_gb=self.memory_gb,
            if_full=f"allow more ({_MEMORY}), or give it less to do at a time",
            threads=threads,
        )


def plugin_options(whose: str, minutes: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command these options; it takes them as ``plugins``, a ``PluginOptions``.

    Args:
        whose: plug-ins, as in "the run names".
        minutes: that they may take, if nobody says.
    """

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(WITH_PLUGINS, is_flag=True, help=f"Run the plug-ins that {whose}, if they are installed.")
        @click.option(
            _MINUTES,
            type=_Amount(min=0, min_open=True),
            default=minutes,
            show_default=True,
            help="How long their code may take.",
        )
        @click.option(
            _MEMORY,
            type=_Amount(min=0, min_open=True),
            default=16.0,
            show_default=True,
            help="Memory that their code may take, besides PyTorch.",
        )
        @wraps(command)
        def told(
            *arguments: Any, with_plugins: bool, plugin_minutes: float, plugin_memory_gb: float, **options: Any
        ) -> Any:
            plugins = PluginOptions(with_plugins, plugin_minutes, plugin_memory_gb)
            return command(*arguments, plugins=plugins, **options)

        return told

    return with_options
