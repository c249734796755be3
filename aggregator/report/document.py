"""A run's report: one document of all that can be compared between runs, read from the work directory alone.

It works on a run that goes on as on one that ended. What a site withheld, what is undefined and what has not come yet
are None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from aggregator.facts import ending_of
from aggregator.overview import read_channels
from aggregator.report.heldout import open_heldout
from aggregator.results import received_model_rows, run_outcome
from aggregator.store import RunStore, consent_of, withdrawal_of
from shared.errors import ConfigurationError, DataError
from shared.exchange.mirror import Mirror
from shared.exchange.names import MANIFEST, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.tables import MetricsRow, Split
from shared.learning.cost import model_cost
from shared.learning.metrics import mean_over_sites
from shared.learning.outcome import chosen_text
from shared.learning.tasks import task_named

RECEIVED_SPLITS: tuple[Split, ...] = ("validation", "test")
"""What a site scores the model on that it received, before it trains."""

Document = dict[str, Any]


def run_report(work: Path, store: RunStore) -> Document:
    """Everything about one run, as plain values.

    Raises:
        ConfigurationError: this software does not know the run's task, or what is kept of the run is damaged.
        ActionRequiredError: what is kept of the run is damaged.
    """
    run = store.configuration()
    channels = read_channels(work, run.sites)
    outcome = run_outcome(store, channels)
    return {
        "run": run.run,
        "outcome": asdict(outcome) if outcome else None,
        "is_over": store.is_over,
        "aborted": store.aborted(),
        "score": task_named(run.task).selection_score,
        "chosen": _chosen(store.card()),
        "configuration": run.model_dump(mode="json"),
        "sites": {site: _site(channels.get(site), run.run) for site in run.sites},
        "rounds": _rounds(store, run, channels),
        "cost": _cost(work, store, run, channels),
    }


def rounds_report(work: Path, store: RunStore) -> list[Document]:
    """The report's ``rounds`` alone: no network is built for it.

    Raises:
        DropfedError: what is kept of the run is damaged.
    """
    run = store.configuration()
    return _rounds(store, run, read_channels(work, run.sites))


# --- what came of it ---------------------------------------------------------------------------------------


def _chosen(card: FinalCard | None) -> Document | None:
    if card is None:
        return None
    return {
        "aggregate": card.chosen_round,
        "model": chosen_text(card),
        "score": card.score_name,
        "validation": {number: float(mean) for number, mean in card.validation.items()},
        "took_part": card.took_part,
        "reason": card.reason,
    }


def _site(channel: Mirror | None, run: str) -> Document:
    consent = consent_of(channel, run) if channel else None
    return {
        "agrees": consent.agrees if consent else None,
        "reason": consent.reason if consent else None,
        "images": dict(consent.images) if consent else {},
        "withdrew": withdrawal_of(channel, run) if channel else None,
        "ended": ending_of(channel, run) if channel else None,
    }


def _rounds(store: RunStore, run: RunConfiguration, channels: Mapping[str, Mirror]) -> list[Document]:
    rows = {split: received_model_rows(store, channels, split) for split in RECEIVED_SPLITS}
    rounds = []
    for round_no in range(1, store.round_no + 1):
        received = {split: rows[split].get(round_no - 1, {}) for split in RECEIVED_SPLITS}
        verdicts = store.verdicts(round_no) or {}
        rounds.append(
            {
                "round": round_no,
                "trains": round_no <= run.rounds,
                "received_aggregate": round_no - 1,
                "sites": {
                    site: {split: _row(received[split].get(site)) for split in RECEIVED_SPLITS}
                    | _verdict(verdicts.get(site))
                    | _exchanged(channels[site], run.run, round_no)
                    for site in store.participants(round_no)
                },
                "means": {split: _means(received[split]) for split in RECEIVED_SPLITS},
            }
        )
    return rounds


def _row(row: MetricsRow | None) -> Document | None:
    return {"images": row.images, "loss": row.loss, "scores": row.scores} if row else None


def _verdict(verdict: Verdict | None) -> Document:
    if verdict is None:
        return dict.fromkeys(("status", "reason", "score", "tolerance", "theta", "weight", "epsilon"))
    return {
        "status": verdict.status,
        "reason": verdict.reason,
        "score": _number(verdict.score),
        "tolerance": _number(verdict.tolerance),
        "theta": _number(verdict.theta),
        "epsilon": _number(verdict.epsilon),
        "weight": _number(verdict.weight),
    }


def _means(rows: Mapping[str, MetricsRow]) -> Document:
    """Of every score, its mean over the sites that reported it: sites alike (η = 1), and by their images (η = e)."""
    means: Document = {}
    for name in sorted({name for row in rows.values() for name in row.scores}):
        told = [(value, row.images) for row in rows.values() if (value := row.scores.get(name)) is not None]
        values = [value for value, _ in told]
        images = [int(count) if count.isdecimal() else 0 for _, count in told]
        means[name] = {
            "sites": len(told),
            "alike": mean_over_sites(values, [1] * len(told), 1) if told else None,
            "by_images": mean_over_sites(values, images, math.e) if min(images, default=0) else None,
        }
    return means


# --- what it cost ------------------------------------------------------------------------------------------


def _exchanged(channel: Mirror, run: str, round_no: int) -> Document:
    """Bytes of a round's messages, manifests included, and what its manifests say of the time.

    ``answered`` is by the site's clock, all else by the aggregator's: from signing the round to signing its verdict.
    """
    to_site, from_site, verdict = refs = _refs(run, round_no)
    asked, answered, settled = (message.manifest.created if (message := channel.message(ref)) else None for ref in refs)
    seconds = None
    if asked and settled:
        seconds = int((datetime.fromisoformat(settled) - datetime.fromisoformat(asked)).total_seconds())
    return {
        "bytes": {"down": _bytes(channel, to_site, verdict), "up": _bytes(channel, from_site)},
        "asked": asked,
        "answered": answered,
        "settled": settled,
        "seconds": seconds,
    }


def _refs(run: str, round_no: int) -> tuple[MessageRef, MessageRef, MessageRef]:
    """Where the messages of a round lie: to the site, from it, and the verdict."""
    return MessageRef("round", run, round_no), MessageRef("update", run, round_no), MessageRef("verdict", run, round_no)


def _bytes(channel: Mirror, *refs: MessageRef) -> int | None:
    """What the messages at these places weigh, files pruned since included; None if there is none."""
    there = [message for ref in refs if (message := channel.message(ref))]
    sizes = [
        channel.path(message.ref, MANIFEST).stat().st_size
        + sum(entry.size for entry in message.manifest.files.values())
        for message in there
    ]
    return sum(sizes) if sizes else None


def _cost(work: Path, store: RunStore, run: RunConfiguration, channels: Mapping[str, Mirror]) -> Document:
    rounds = [_refs(run.run, round_no) for round_no in range(1, store.round_no + 1)]
    down = [MessageRef("offer", run.run), *(ref for to, _, verdict in rounds for ref in (to, verdict))]
    up = [MessageRef("consent", run.run), *(answer for _, answer, _ in rounds), MessageRef("withdrawal", run.run)]
    model, why_none = _model(work, run)
    return {
        "model": model,
        "why_no_model": why_none,
        "bytes": {
            site: {"down": _bytes(channel, *down, MessageRef("final", run.run)), "up": _bytes(channel, *up)}
            for site, channel in channels.items()
        },
    }


def _model(work: Path, run: RunConfiguration) -> tuple[Document | None, str | None]:
    """What the aggregator's model costs, asked about the first held-out image; or why that is not known.

    A head that stays at the sites is counted for the held-out images' classes; a site may have fewer or more.
    """
    try:
        heldout = open_heldout(work, run)
    except (ConfigurationError, DataError) as error:
        return None, str(error)
    image, _ = heldout.task.collate(heldout.images.samples[:1])
    model = heldout.untrained()
    return {"image": list(image.shape[1:]), **asdict(model_cost(model, image))}, None


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
