"""Show runs side by side: settings that differ, scores of the chosen models, verdicts, cost."""

from __future__ import annotations

import json
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.comparison import compare_runs, comparison_text
from aggregator.launched import find_run, runs_here
from shared.commands import AS_JSON, say
from shared.errors import ConfigurationError


@click.command(help=__doc__)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@WORK
@AS_JSON
def command(runs: tuple[str, ...], work: Path, as_json: bool) -> None:
    if len(set(runs)) < max(len(runs), 2):
        raise ConfigurationError([f"compare: {' '.join(runs)}: name two runs or more, each once; {runs_here(work)}"])
    found = compare_runs(work, [find_run(work, run) for run in runs])
    say(json.dumps(found, indent=2) if as_json else comparison_text(found), nl=as_json)
