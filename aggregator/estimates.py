"""When something is expected, from how long it took before: an estimate, and none where nothing was measured yet."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import pairwise
from statistics import median

from aggregator.store import RunStore
from shared.exchange.mirror import Mirror
from shared.exchange.names import MANIFEST, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import time_text


def round_began(channels: Mapping[str, Mirror], run: str, round_no: int) -> float | None:
    """When a round was first signed for a site, in seconds since 1970; None before that."""
    asked = [_signed(channel, MessageRef("round", run, round_no)) for channel in channels.values()]
    return min((each for each in asked if each is not None), default=None)


def end_is_expected(store: RunStore, run: RunConfiguration, channels: Mapping[str, Mirror], now: float) -> str | None:
    """When the run ends if each further round, the closing one too, takes as long as the median of the past ones."""
    began = [round_began(channels, run.run, round_no) for round_no in range(1, store.round_no + 1)]
    took = [later - earlier for earlier, later in pairwise(began) if earlier is not None and later is not None]
    if not took or began[-1] is None or store.round_no > run.rounds:
        return None
    each, left = median(took), run.rounds + 1 - store.round_no
    return time_text(max(now, began[-1] + each) + left * each)


def answer_is_expected(channel: Mirror, run: RunConfiguration, round_no: int) -> str | None:
    """When a site's answer to an open round comes if it takes as long as the median of its past ones."""
    asked = _signed(channel, MessageRef("round", run.run, round_no))
    refs = [
        (MessageRef("round", run.run, number), MessageRef("update", run.run, number)) for number in range(1, round_no)
    ]
    took = [
        max(0.0, channel.path(update, MANIFEST).stat().st_mtime - sent)  # by our clock alone
        for to_site, update in refs
        if channel.message(update) is not None and (sent := _signed(channel, to_site)) is not None
    ]
    if asked is None or not took or round_no > run.rounds:
        return None
    return time_text(asked + median(took))


def _signed(channel: Mirror, ref: MessageRef) -> float | None:
    message = channel.message(ref)
    return datetime.fromisoformat(message.manifest.created).timestamp() if message else None
