"""All that the page shows, as plain values: what ``status`` says, and beside it rounds, curves and the log's end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from aggregator.estimates import round_began
from aggregator.overview import Reading, overview_of, read_newest_run
from aggregator.results import received_model_rows
from shared.durations import duration_text
from shared.errors import DropfedError
from shared.escaping import escape
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import status_text
from shared.exchange.records.run import round_name
from shared.exchange.records.values import now_text, time_text
from shared.exchange.records.verdicts import Verdict
from shared.exchange.tables import MetricsRow
from shared.folder.durable import disk_trouble
from shared.folder.meter import Transfer, transfer_text
from shared.learning.choice import validation_means
from shared.learning.tasks import SELECTION_SCORES

logger = logging.getLogger(__name__)

Document = dict[str, Any]
Rows = Mapping[int, Mapping[str, MetricsRow]]
"""By aggregate, by site."""

ROUNDS_SHOWN = 20  # the newest; the report has all
LOG_LINES = 200
LOG_BYTES = 256 << 10  # read from the log's end; more than 200 lines usually have
LOG_LINE_CHARACTERS = 2000


def page_state(work: Path) -> Document:
    """Where the newest run stands; ``problem`` says in one sentence why that is not known, if so. Never raises."""
    state: Document = {"now": now_text(), "problem": None, "run": None, "log": []}
    try:
        state["log"] = log_end(work / "log.txt")
        state["run"] = read_newest_run(work, _run)
    except DropfedError as error:
        state["problem"] = str(error)
    except OSError as error:
        state["problem"] = str(disk_trouble(error, work))
    except Exception:
        logger.exception("%s could not be read, by an error that nobody expected; please report it", work)
        state["problem"] = f"{work} could not be read, by an error that nobody expected: the dashboard's output has it"
    return state


def _run(reading: Reading) -> Document:
    overview = overview_of(reading)
    rows = received_model_rows(reading.store, reading.channels, "validation")
    return {
        "overview": overview,
        "about": _about(reading),
        "words": {name: _words(site, _score(reading, rows, name)) for name, site in overview["sites"].items()},
        "rounds": _rounds(reading),
        "curves": _curves(reading, rows),
    }


def _about(reading: Reading) -> Document:
    """What run this is; the federation as its sites know it, none before the first is enrolled."""
    run = reading.run
    began = round_began(reading.channels, run.run, 1)
    return {
        "federation": next((channel.peer.federation for channel in reading.channels.values()), None),
        "task": run.task,
        "method": run.method,
        "began": None if began is None else time_text(began),
    }


def _score(reading: Reading, rows: Rows, site: str) -> str | None:
    """How well the chosen model does at a site, in words; None before one is chosen, or where it was not told."""
    card = reading.store.card()
    row = rows.get(card.chosen_round, {}).get(site) if card else None
    if card is None or row is None or (value := row.scores.get(card.score_name)) is None:
        return None
    return f"{card.score_name} {value:.3f}, the chosen model on its validation images"


def _words(site: Document, score: str | None) -> Document:
    """What of a site's state people read in words."""
    heartbeat, transfer = site["heartbeat"], site["transfer"]
    return {
        "says": status_text(heartbeat) if heartbeat else None,
        "heard": f"{duration_text(heartbeat['age_s'])} ago" if heartbeat else None,
        "transfer": transfer_text(Transfer(**transfer)) if transfer else None,
        "score": score,
    }


# --- rounds --------------------------------------------------------------------------------------------------------


def _rounds(reading: Reading) -> list[Document]:
    """The newest rounds, newest first."""
    store, run = reading.store, reading.run
    shown = range(store.round_no, max(0, store.round_no - ROUNDS_SHOWN), -1)
    rounds = []
    for round_no in shown:
        began = round_began(reading.channels, run.run, round_no)
        verdicts = store.verdicts(round_no)
        settled = _settled(reading, round_no) if verdicts is not None else None
        rounds.append(
            {
                "name": round_name(run, round_no),
                "began": None if began is None else time_text(began),
                "took": None if began is None or settled is None else duration_text(settled - began),
                "sites": {
                    site: _part(reading, round_no, site, (verdicts or {}).get(site))
                    for site in store.participants(round_no)
                },
            }
        )
    return rounds


def _settled(reading: Reading, round_no: int) -> float | None:
    """When the last verdict of a round was signed, in seconds since 1970."""
    ref = MessageRef("verdict", reading.run.run, round_no)
    signed = [message.manifest.created for channel in reading.channels.values() if (message := channel.message(ref))]
    return max((datetime.fromisoformat(each).timestamp() for each in signed), default=None)


def _part(reading: Reading, round_no: int, site: str, verdict: Verdict | None) -> Document:
    """What came of a site's part in a round; the verdict, or how far the round is."""
    if verdict is None:
        channel = reading.channels.get(site)
        has_answered = channel is not None and channel.is_settled(MessageRef("update", reading.run.run, round_no))
        return {"status": "answered" if has_answered else "asked", "score": None, "weight": None, "reason": None}
    return {
        "status": verdict.status,
        "score": None if verdict.score is None else float(verdict.score),
        "weight": None if verdict.weight is None else float(verdict.weight),
        "reason": verdict.reason,
    }


# --- curves --------------------------------------------------------------------------------------------------------


def _curves(reading: Reading, rows: Rows) -> list[Document]:
    """By aggregate: the score by which one is chosen, and the loss, on each site's validation images."""
    curves = []
    score = SELECTION_SCORES.get(reading.run.task)
    if score is not None:
        told = {of: {site: row.scores.get(score) for site, row in by_site.items()} for of, by_site in rows.items()}
        curves.append(_curve(reading, score, told, validation_means(rows, score)))
    losses = {of: {site: row.loss for site, row in by_site.items()} for of, by_site in rows.items()}
    curves.append(_curve(reading, "loss", losses, {}))
    return [curve for curve in curves if curve["aggregates"]]


def _curve(
    reading: Reading, name: str, told: Mapping[int, Mapping[str, float | None]], means: Mapping[int, float]
) -> Document:
    aggregates = [of for of in sorted(told) if any(value is not None for value in told[of].values())]
    return {
        "name": name,
        "aggregates": aggregates,
        "sites": {site: [_short(told[of].get(site)) for of in aggregates] for site in reading.run.sites},
        "mean": [_short(means.get(of)) for of in aggregates] if means else None,
    }


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 4)


# --- log -----------------------------------------------------------------------------------------------------------


def log_end(path: Path) -> list[str]:
    """The last lines of the daemon's log, fit to be shown; none where it never ran."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = file.seek(max(0, size - LOG_BYTES))
            content = file.read(LOG_BYTES)
    except FileNotFoundError:
        return []
    lines = content.decode(errors="replace").split("\n")
    whole = lines[1:] if start else lines  # the first is cut
    return [escape(line)[:LOG_LINE_CHARACTERS] for line in whole if line][-LOG_LINES:]
