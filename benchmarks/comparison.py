"""Several arms, several seeds: a table of means over sites, with their spread over seeds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.record import RESULTS, record
from shared.exchange.records.run import RunConfiguration
from studies.simulation import Outcome, run_rounds

Data = Mapping[str, Path]


def play(run: RunConfiguration, data: Data, heldout: Path | None = None) -> Outcome:
    """Play one run of all sites, a reference too."""
    with tempfile.TemporaryDirectory() as home:
        outcome = run_rounds(run, data, Path(home), heldout=heldout)
        _ = outcome.tests  # measured while the models are there
        return outcome


def compare(
    name: str,
    command: str,
    arms: Mapping[str, Callable[[int], Outcome]],
    *,
    seeds: Sequence[int],
    scores: Mapping[str, str],
    settings: Mapping[str, object],
    is_timed: bool = True,
) -> None:
    """Run every arm with every seed, and write ``results/NAME.json`` and ``results/NAME.md``.

    Args:
        arms: by what people call them; each takes a seed.
        scores: columns of ``metrics.csv`` of a site's test images, by what people call them.
        settings: what else decided the figures.
        is_timed: whether seconds count; then nothing else may go on meanwhile.
    """
    figures: dict[str, object] = {"settings": dict(settings), "seeds": list(seeds), "arms": (of_arms := {})}
    for arm, run in arms.items():
        found: list[dict[str, dict[str, float | None]]] = []
        began = time.monotonic()
        for seed in seeds:
            outcome = run(seed)
            found.append(
                {
                    site: {score: evaluation.scores[score].value for score in scores}
                    for site, evaluation in outcome.tests.items()
                }
            )
            print(arm, seed, {site: rows[next(iter(scores))] for site, rows in found[-1].items()}, flush=True)
        of_arms[arm] = {
            **(_seconds(time.monotonic() - began, len(seeds) * len(outcome.weights)) if is_timed else {}),
            "bytes_to_site_per_round": outcome.received_bytes,
            "bytes_from_site_per_round": outcome.sent_bytes,
            "by_seed": found,
        }
        record(name, command, figures)  # after each: what ends a later one takes nothing away
        (RESULTS / f"{name}.md").write_text(_markdown(name, command, of_arms, scores))


def _seconds(whole: float, rounds: int) -> dict[str, float]:
    return {"seconds": round(whole), "seconds_per_round": round(whole / rounds, 2)}


def _markdown(name: str, command: str, arms: Mapping[str, dict[str, object]], scores: Mapping[str, str]) -> str:
    first = next(iter(arms.values()))
    sites = list(first["by_seed"][0])  # type: ignore[index]
    timed = ["s a round"] if "seconds" in first else []
    lines = [
        f"# {name}",
        "",
        f"`{command}`; machine, date and commit in `{name}.json`. Scores of each site's test images; mean over sites,",
        "± standard deviation over seeds of that mean. A score that a site lacks does not count in it. Seconds are",
        "of all sites one after another, evaluation and aggregation too; bytes are of one site's tensor files a round.",
        "",
        "| | " + " | ".join([*scores.values(), *timed, "kB to a site", "kB from it"]) + " |",
        "|---" * (len(scores) + len(timed) + 3) + "|",
    ]
    for arm, found in arms.items():
        by_seed: list[dict[str, dict[str, float | None]]] = found["by_seed"]  # type: ignore[assignment]
        cells = [_cell([_mean(row[score] for row in rows.values()) for rows in by_seed]) for score in scores]
        cost = [f"{found['seconds_per_round']:.1f}"] if timed else []
        cost += [f"{found[f'bytes_{end}_per_round'] / 1e3:,.0f}" for end in ("to_site", "from_site")]  # type: ignore[operator]
        lines.append(f"| {arm} | " + " | ".join([*cells, *cost]) + " |")
    score, title = next(iter(scores.items()))
    lines += ["", f"{title} by site:", "", "| | " + " | ".join(sites) + " |", "|---" * (len(sites) + 1) + "|"]
    for arm, found in arms.items():
        by_seed = found["by_seed"]  # type: ignore[assignment]
        cells = [_cell([rows[site][score] for rows in by_seed]) for site in sites]
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _mean(values: object) -> float | None:
    known = [value for value in values if value is not None]  # type: ignore[attr-defined]
    return fmean(known) if known else None


def _cell(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "absent"
    return f"{fmean(known):.3f}" + (f" ± {stdev(known):.3f}" if len(known) > 1 else "")
