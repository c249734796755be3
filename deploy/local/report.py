"""The demo's report: what each round did, as Markdown tables."""

from __future__ import annotations

from pathlib import Path

from aggregator.overview import read_channels
from aggregator.results import received_model_rows
from aggregator.store import RunStore
from shared.exchange.records import RunConfiguration
from shared.exchange.tables import MetricsRow

SiteScore = dict[str, float | int | None]


def site_scores(work: Path, run: RunConfiguration) -> dict[str, SiteScore]:
    """Each site's test Dice of the first and of the chosen model; None where the site withheld it."""
    store = RunStore(work, run.run)
    rows = received_model_rows(store, read_channels(work, run.sites), "test")
    card = store.card()
    chosen = card.chosen_round if card else 0
    return {
        site: {
            "dice_before": _dice(rows.get(0, {}).get(site)),
            "dice_after": _dice(rows.get(chosen, {}).get(site)),
            "test_images": _images(rows.get(chosen, {}).get(site)),
        }
        for site in run.sites
    }


def federation_report(work: Path, run: RunConfiguration) -> str:
    """Markdown: validation and test Dice of every aggregate at every site, and every verdict."""
    store = RunStore(work, run.run)
    channels = read_channels(work, run.sites)
    card = store.card()
    lines = [f"# Run {run.run}: {run.task} by {run.method}", ""]
    if card:
        lines += [f"Chosen: the aggregate of round {card.chosen_round} ({card.reason}).", ""]
    for split in ("validation", "test"):
        rows = received_model_rows(store, channels, split)
        lines += [f"## Dice on each site's {split} images, mean ± standard deviation over images", ""]
        lines += ["| aggregate of round | " + " | ".join(run.sites) + " |", "|---" * (len(run.sites) + 1) + "|"]
        for aggregate in sorted(rows):
            cells = [_mean_and_std(rows[aggregate].get(site)) for site in run.sites]
            lines.append(f"| {aggregate} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Verdicts", "", "| round | site | status | score | weight | reason |", "|---|---|---|---|---|---|"]
    for round_no in range(1, store.round_no + 1):
        for site, verdict in (store.verdicts(round_no) or {}).items():
            cells = [verdict.status, verdict.score or "", verdict.weight or "", verdict.reason]
            lines.append(f"| {round_no} | {site} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _dice(row: MetricsRow | None) -> float | None:
    return row.scores.get("dice_mean") if row else None


def _images(row: MetricsRow | None) -> int | None:
    return int(row.images) if row and row.images.isdecimal() else None


def _mean_and_std(row: MetricsRow | None) -> str:
    if row is None:
        return ""
    mean, std = row.scores.get("dice_mean"), row.scores.get("dice_std")
    return f"{mean:.3f} ± {std:.3f}" if mean is not None and std is not None else "withheld"
