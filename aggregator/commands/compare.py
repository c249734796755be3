"""Show runs side by side: settings that differ, scores of the chosen models, verdicts, cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.comparison import comparison_text, settings_that_differ, summary_of
from aggregator.launched import find_run, runs_here
from aggregator.run_view import view_run
from shared.commands import AS_JSON, say
from shared.errors import ConfigurationError
from shared.exchange.mirror import Mirror


@click.command(help=__doc__)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@WORK
@AS_JSON
def command(runs: tuple[str, ...], work: Path, as_json: bool) -> None:
    if len(set(runs)) < max(len(runs), 2):
        raise ConfigurationError([f"compare: {' '.join(runs)}: name two runs or more, each once; {runs_here(work)}"])
    known: dict[str, Mirror | None] = {}  # each site's messages are read once for all runs
    views = [view_run(work, find_run(work, run), known) for run in runs]
    if as_json:
        summaries = {view.run: asdict(summary_of(view)) for view in views}
        say(json.dumps({"differing": settings_that_differ(views), "runs": summaries}, indent=2))
    else:
        say(comparison_text(views), nl=False)
