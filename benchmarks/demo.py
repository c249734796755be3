"""One run of the demo, recorded.

    .venv/bin/python -m benchmarks.demo NAME [OPTIONS OF THE DEMO]
    .venv/bin/python -m benchmarks.demo demo-dr-staging --task dr_staging
    .venv/bin/python -m benchmarks.demo real-octa-vessels --data DIR --rounds 4 --image-size 96

Writes benchmarks/results/NAME.json (every site's score before and after, how soon each aggregate came and what it
scored, time, machine) and NAME.md (the run's report: the score of every round, every verdict).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aggregator.run_view import RunView, view_run
from aggregator.store import runs_in
from benchmarks.record import RESULTS, record


def main() -> None:
    """Run and record."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    name, *options = sys.argv[1:]
    is_data = [before == "--data" for before in ["", *options][: len(options)]]
    absolute = [str(Path(option).resolve()) if data else option for option, data in zip(options, is_data, strict=True)]
    # Where the data lie on this machine says nothing to others.
    shown = ["DIR" if data else option for option, data in zip(options, is_data, strict=True)]
    with tempfile.TemporaryDirectory() as work:
        played = subprocess.run([sys.executable, "-m", "deploy.local.demo", *absolute], cwd=work, check=False)
        if played.returncode != 0:
            raise SystemExit(played.returncode)  # the demo has said why
        figures = read_figures(Path(work) / "demo-run")
        (RESULTS / f"{name}.md").write_bytes((Path(work) / "demo-run" / "report.md").read_bytes())
    print(record(name, " ".join([".venv/bin/python -m benchmarks.demo", name, *shown]), figures))


def read_figures(demo: Path) -> dict[str, Any]:
    """Read what the demo came to, and how soon."""
    figures: dict[str, Any] = json.loads((demo / "summary.json").read_bytes())
    (run,) = runs_in(demo / "aggregator")
    return figures | {"aggregates": aggregates(view_run(demo / "aggregator", run))}


def aggregates(view: RunView) -> list[dict[str, Any]]:
    """List every aggregate: how many seconds after the first model it was sent, and its score on each test set."""
    sent = [each.began or math.nan for each in view.rounds]
    return [
        {
            "aggregate": each.received_aggregate,
            "seconds": at - sent[0],
            view.score: {site: part.test.scores[view.score] for site, part in each.sites.items() if part.test},
        }
        for at, each in zip(sent, view.rounds, strict=True)
    ]


if __name__ == "__main__":
    main()
