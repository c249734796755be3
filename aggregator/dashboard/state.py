"""All that the page shows: what ``status`` says, and beside it rounds, curves and the log's end."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aggregator.listing import list_runs
from aggregator.overview import SiteOverview, overview_of, read_run_in_turn
from aggregator.run_view import OpenedRun, Round, RunView, view_of, view_run
from aggregator.store import runs_in
from shared.durations import duration_text
from shared.errors import PLEASE_REPORT, DropfedError
from shared.escaping import escape
from shared.exchange.names import MessageRef
from shared.exchange.records.run import round_name
from shared.exchange.records.values import now_text, time_text
from shared.folder.durable import disk_trouble
from shared.folder.meter import transfer_text

logger = logging.getLogger(__name__)

ROUNDS_SHOWN = 20  # the newest; the report has all
LOG_LINES = 200
LOG_BYTES = 256 << 10  # read from the log's end; more than 200 lines usually have
LOG_LINE_CHARACTERS = 2000


def page_state(work: Path) -> dict[str, Any]:
    """Return all that the page shows, for its script; ``problem`` says in a sentence why the run is not known, if so.

    Never raises.
    """
    state: dict[str, Any] = {"now": now_text(), "problem": None, "run": None, "runs": [], "log": []}
    try:
        state["log"] = log_end(work / "log.txt")
        state["runs"] = [asdict(listed) for listed in list_runs(work)]
        state["run"] = read_run_in_turn(work, _run)
    except Exception as error:
        state["problem"] = _in_a_sentence(error, work)
    return state


def run_report(work: Path, run: str) -> str | None:
    """Return the report on a run for people, without what a model costs, which takes building it; None of no such run.

    Where it cannot be told, why. Never raises.
    """
    from aggregator.report.text import report_text  # noqa: PLC0415  (PyTorch, which nothing else here needs)

    try:
        store = next((store for store in runs_in(work) if store.run == run), None)
        if store is None:
            return None
        view = view_run(work, store)
        return report_text(view, f"`dropfed-aggregator report {run}` tells it", view.score, view.score)
    except Exception as error:
        return _in_a_sentence(error, work)


def _in_a_sentence(error: Exception, work: Path) -> str:
    """Return why something of a work directory cannot be shown."""
    if isinstance(error, DropfedError):
        return str(error)
    if isinstance(error, OSError):
        return str(disk_trouble(error, work))
    logger.error("%s could not be read, by an error that nobody expected; %s", work, PLEASE_REPORT, exc_info=error)
    return f"{work} could not be read, by an error that nobody expected: the dashboard's output has it"


def _run(opened: OpenedRun) -> dict[str, Any]:
    view, run = view_of(opened), opened.run
    overview = overview_of(opened, view)
    return {
        "overview": asdict(overview),
        "about": {
            "federation": next((ledger.peer.federation for ledger in opened.ledgers.values()), None),
            "task": run.task,
            "method": run.method,
            "began": _time(view.rounds[0].began) if view.rounds else None,
        },
        "words": {name: _words(site, _score(view, name)) for name, site in overview.sites.items()},
        "rounds": [_round(opened, each) for each in reversed(view.rounds[-ROUNDS_SHOWN:])],
        "curves": [curve for name in (view.score, "loss") if (curve := _curve(view, name))],
    }


def _score(view: RunView, site: str) -> str | None:
    """Return in words how the chosen model scores at a site; None if no model is chosen or no score was reported."""
    part = view.receivers(view.card.chosen_round).get(site) if view.card else None
    row = part.validation if part else None
    value = row.scores.get(view.score) if row else None
    if row is None or value is None:
        return None
    return f"{view.score} {value:.3f} ({row.support(view.score).text}), the chosen model on its validation images"


def _words(site: SiteOverview, score: str | None) -> dict[str, str | None]:
    """Return what of a site's state people read in words."""
    beat = site.heartbeat
    return {
        "says": beat.text if beat else None,
        "heard": f"{duration_text(beat.age_s)} ago" if beat else None,
        "transfer": transfer_text(site.transfer) if site.transfer else None,
        "score": score,
    }


def _round(opened: OpenedRun, found: Round) -> dict[str, Any]:
    """Return a round, and what came of each site's part in it: the verdict, or how far the round is."""
    began, settled, update = found.began, found.settled, MessageRef("update", opened.run.run, found.round)
    has_answered = {site for site, ledger in opened.ledgers.items() if ledger.is_settled(update)}
    return {
        "name": round_name(opened.run, found.round),
        "began": _time(began),
        "took": duration_text(settled - began) if began and settled else None,
        "sites": {
            site: {
                "status": part.status or ("answered" if site in has_answered else "asked"),
                **{name: getattr(part, name) for name in ("score", "weight", "reason")},
            }
            for site, part in found.sites.items()
        },
    }


def _curve(view: RunView, name: str) -> dict[str, Any] | None:
    """Return a score of each aggregate on each site's validation images, and its mean; None if none was reported."""
    aggregates: list[int] = []
    means: list[float | None] = []
    values: dict[str, list[float | None]] = {site: [] for site in view.configuration.sites}
    for each in view.rounds:
        rows = {site: part.validation for site, part in each.sites.items()}
        told = {site: row.numbers.get(name) if (row := rows.get(site)) else None for site in values}
        if any(value is not None for value in told.values()):
            aggregates.append(each.received_aggregate)
            mean = each.means["validation"].get(name)
            means.append(_short(mean.alike if mean else None))
            for site, value in told.items():
                values[site].append(_short(value))
    if not aggregates:
        return None
    return {"name": name, "aggregates": aggregates, "sites": values, "mean": means if name == view.score else None}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else time_text(seconds)


def _short(number: float | None) -> float | None:
    return None if number is None else round(number, 4)


# --- log -----------------------------------------------------------------------------------------------------------


def log_end(path: Path) -> list[str]:
    """Return the last lines of the daemon's log, fit to be shown; none where it never ran."""
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
