"""Runs side by side: what differs in their settings, how good the chosen models are, what became of answers, the cost.

All of it is taken from the runs' reports. What was not told, is undefined or has not come yet is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aggregator.report import Document, run_report
from aggregator.report.text import short, size, table_lines
from aggregator.store import RunStore
from shared.audit.difference import flat
from shared.exchange.tables import Split

_SPLITS: tuple[Split, ...] = ("validation", "test")


def compare_runs(work: Path, stores: Sequence[RunStore]) -> Document:
    """Two runs or more, as plain values.

    Raises:
        DropfedError: as ``run_report``.
    """
    reports = [run_report(work, store) for store in stores]
    settings = {report["run"]: dict(flat("", report["configuration"])) for report in reports}
    return {
        "differing": _differing(settings),
        "runs": {report["run"]: summary_of(report) for report in reports},
    }


def _differing(settings: Mapping[str, Mapping[str, Any]]) -> Document:
    """Of each setting that differs, the runs that have it, and what it is there."""
    keys = dict.fromkeys(key for of_run in settings.values() for key in of_run if key != "run")
    found = {key: {run: of_run[key] for run, of_run in settings.items() if key in of_run} for key in keys}
    return {
        key: values
        for key, values in found.items()
        if len(values) < len(settings) or any(value != next(iter(values.values())) for value in values.values())
    }


def summary_of(report: Document) -> Document:
    """What a run came to, from its report: state, scores of the chosen aggregate, verdicts, cost."""
    bytes_of = report["cost"]["bytes"].values()
    rounds = [[site["seconds"] for site in of_round["sites"].values()] for of_round in report["rounds"]]
    longest = [max(known) for seconds in rounds if (known := [each for each in seconds if each is not None])]
    verdicts = Counter(
        site["status"] for of_round in report["rounds"] for site in of_round["sites"].values() if site["status"]
    )
    return {
        "outcome": report["outcome"]["name"] if report["outcome"] else None,
        "state": "aborted" if report["aborted"] else "ended" if report["is_over"] else "open",
        "rounds": sum(of_round["trains"] for of_round in report["rounds"]),
        "score": report["score"],
        "aggregate": report["chosen"]["aggregate"] if report["chosen"] else None,
        **{split: chosen_scores(report, split) for split in _SPLITS},
        "verdicts": dict(sorted(verdicts.items())),
        "bytes": {way: _sum(site[way] for site in bytes_of) for way in ("down", "up")},
        "seconds": _sum(longest),
    }


def chosen_scores(report: Document, split: str) -> Document:
    """The main score of the chosen aggregate at each site, as far as told, and the mean of those."""
    score, chosen = report["score"], report["chosen"]["aggregate"] if report["chosen"] else None
    received = next((each for each in report["rounds"] if each["received_aggregate"] == chosen), None)
    rows = {site: found[split] for site, found in received["sites"].items()} if received else {}
    mean = received["means"][split].get(score) if received else None
    return {
        "sites": {site: row["scores"].get(score) if (row := rows.get(site)) else None for site in report["sites"]},
        "mean": mean["alike"] if mean else None,
    }


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


# --- for people --------------------------------------------------------------------------------------------


def comparison_text(comparison: Document) -> str:
    """The same as Markdown, a column for each run."""
    runs: Mapping[str, Document] = comparison["runs"]
    outcomes = [run["outcome"] or "" for run in runs.values()]
    lines = _table("", runs, {"outcome": outcomes, "state": [run["state"] for run in runs.values()]})
    differing = {
        key: [_shown(values[run]) if run in values else "" for run in runs]
        for key, values in comparison["differing"].items()
    }
    lines += _table("Settings that differ", runs, differing) if differing else ["", "No setting differs."]
    lines += _table("The chosen aggregate", runs, _score_rows(runs))
    statuses = sorted({status for run in runs.values() for status in run["verdicts"]})
    counts = {status: [str(run["verdicts"].get(status, 0)) for run in runs.values()] for status in statuses}
    lines += _table("Verdicts", runs, counts)
    cost = {
        "rounds of training": [str(run["rounds"]) for run in runs.values()],
        "sent to the sites": [size(run["bytes"]["down"]) for run in runs.values()],
        "sent by the sites": [size(run["bytes"]["up"]) for run in runs.values()],
        "seconds in rounds": ["" if run["seconds"] is None else str(run["seconds"]) for run in runs.values()],
    }
    return "\n".join([*lines, *_table("Cost", runs, cost)]).lstrip("\n") + "\n"


def _score_rows(runs: Mapping[str, Document]) -> dict[str, list[str]]:
    sites = dict.fromkeys(site for run in runs.values() for split in _SPLITS for site in run[split]["sites"])
    rows = {
        "of round": ["" if run["aggregate"] is None else str(run["aggregate"]) for run in runs.values()],
        "score": [run["score"] for run in runs.values()],
    }
    for split in _SPLITS:
        for site in sites:
            rows[f"{split}, {site}"] = [short(run[split]["sites"].get(site)) for run in runs.values()]
        rows[f"{split}, mean over sites"] = [short(run[split]["mean"]) for run in runs.values()]
    return rows


def _table(title: str, runs: Iterable[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    head = ["", f"## {title}", ""] if title else []
    return [*head, *table_lines(["", *runs], [[name, *values] for name, values in rows.items()])]


def _shown(value: Any) -> str:
    """A setting in a cell."""
    return ", ".join(map(str, value)) if isinstance(value, list) else "null" if value is None else str(value)
