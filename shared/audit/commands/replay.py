"""Compute the tolerance decisions, weights and models of RUN again, and compare.

With the aggregator's held-out images the scores too. What cannot be computed from the folders is said, and why.
Exit 1 if anything differs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from shared.audit.archive import Archive
from shared.audit.on_folders import end_with, findings_of, on_folders, readings_of, show_document
from shared.audit.replay import counts, lines, offered, replay_apart
from shared.audit.replay import replay as replay_run
from shared.audit.sites import the_run
from shared.commands import FOLDER_HERE
from shared.learning.compute import EXACT, prepare_compute


@click.command(help=__doc__)
@click.argument("run")
@click.option("--heldout", type=FOLDER_HERE, help="Held-out images.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, help="CPU threads for scores (default 1).")
@click.option("--with-plugins", is_flag=True, help="Run the plug-ins that the run names, if they are installed.")
@click.option(
    "--plugin-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=720.0,
    show_default=True,
    help="How long their code may take.",
)
@on_folders
def command(
    *,
    run: str,
    heldout: Path | None,
    threads: int,
    with_plugins: bool,
    plugin_minutes: float,
    archive: Archive,
    key: str | None,
    as_json: bool,
) -> None:
    folders, readings = readings_of(archive, key)
    the_run(readings, run)
    _, configuration, _ = offered(readings, run)
    if with_plugins and configuration.plugins:
        steps = replay_apart(
            folders,
            run,
            configuration.plugins,
            aggregator_key=key,
            heldout=heldout,
            threads=threads,
            minutes=plugin_minutes,
        )
    else:
        prepare_compute(EXACT, threads)
        with tempfile.TemporaryDirectory(prefix="dropfed-replay-") as scratch:
            steps = replay_run(readings, run, scratch=Path(scratch), heldout=heldout)
    document = {"run": run, **counts(steps), "steps": steps}
    show_document(document, lines(steps), as_json=as_json)
    if counts(steps)["differs"]:
        raise SystemExit(1)
    end_with(findings_of(folders))
