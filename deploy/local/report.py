"""The demo's report: what each round did, as Markdown tables."""

from __future__ import annotations

from pathlib import Path

from aggregator.overview import read_channels
from aggregator.results import received_model_rows
from aggregator.store import RunStore
from shared.exchange.records import RunConfiguration
from shared.exchange.tables import MetricsRow
from shared.learning.metrics import OF_CLASS

SiteScore = dict[str, float | int | None]


def site_scores(work: Path, run: RunConfiguration, score: str) -> dict[str, SiteScore]:
    """What each site came to; None where the site withheld a value, or the method has none.

    Args:
        score: the column of ``metrics.csv`` that ``before`` (the first model) and ``after`` (the chosen one) show, both
            on the site's test images.
    """
    store = RunStore(work, run.run)
    rows = received_model_rows(store, read_channels(work, run.sites), "test")
    card = store.card()
    chosen = card.chosen_round if card else 0
    verdicts = store.verdicts(run.rounds) or {}
    return {
        site: {
            "classes": _classes(rows.get(chosen, {}).get(site)),
            "test_images": _images(rows.get(chosen, {}).get(site)),
            "before": _value(rows.get(0, {}).get(site), score),
            "after": _value(rows.get(chosen, {}).get(site), score),
            "theta": _number(verdicts[site].theta) if site in verdicts else None,
            "weight": _number(verdicts[site].weight) if site in verdicts else None,
        }
        for site in run.sites
    }


def federation_report(work: Path, run: RunConfiguration, score: str, title: str) -> str:
    """Markdown: validation and test scores of every aggregate at every site, and every verdict."""
    store = RunStore(work, run.run)
    channels = read_channels(work, run.sites)
    card = store.card()
    lines = [f"# Run {run.run}: {run.task} by {run.method}", ""]
    if card:
        lines += [f"Chosen: the aggregate of round {card.chosen_round} ({card.reason}).", ""]
    for split in ("validation", "test"):
        rows = received_model_rows(store, channels, split)
        lines += [f"## {title} on each site's {split} images", ""]
        lines += ["| aggregate of round | " + " | ".join(run.sites) + " |", "|---" * (len(run.sites) + 1) + "|"]
        for aggregate in sorted(rows):
            cells = [_cell(rows[aggregate].get(site), score) for site in run.sites]
            lines.append(f"| {aggregate} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Verdicts", "", "| round | site | status | score | θ | weight | reason |", "|---" * 7 + "|"]
    for round_no in range(1, store.round_no + 1):
        for site, verdict in (store.verdicts(round_no) or {}).items():
            numbers = [_short(verdict.score), _short(verdict.theta), _short(verdict.weight)]
            lines.append(f"| {round_no} | {site} | {verdict.status} | " + " | ".join([*numbers, verdict.reason]) + " |")
    return "\n".join(lines) + "\n"


def _value(row: MetricsRow | None, score: str) -> float | None:
    return row.scores.get(score) if row else None


def _classes(row: MetricsRow | None) -> int | None:
    """How many classes a site tells apart."""
    of_classes = [name for name in row.scores if name.startswith(OF_CLASS)] if row else []
    return len(of_classes) or None


def _images(row: MetricsRow | None) -> int | None:
    return int(row.images) if row and row.images.isdecimal() else None


def _cell(row: MetricsRow | None, score: str) -> str:
    """The score; with its standard deviation over images, where it is a mean over images."""
    if row is None:
        return ""
    value, spread = row.scores.get(score), row.scores.get(score.replace("_mean", "_std"))
    if value is None:
        return "withheld"
    return f"{value:.3f} ± {spread:.3f}" if score.endswith("_mean") and spread is not None else f"{value:.3f}"


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _short(text: str | None) -> str:
    return "" if text is None else f"{float(text):.3f}"
