"""Compute the tolerance decisions, weights and models of RUN again, and compare.

With the aggregator's held-out images, compute the scores too. What cannot be computed from the folders is named, with
the reason. Exit 1 if anything differs.
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
from shared.plugin_options import PluginOptions, plugin_options


@click.command(help=__doc__)
@click.argument("run")
@click.option("--heldout", type=FOLDER_HERE, help="The aggregator's held-out images.")
@click.option(
    "--weights",
    type=FOLDER_HERE,
    help="Folder of published weights that sites took from their own copy; scores need them.",
)
@click.option("--threads", type=click.IntRange(1, 256), default=1, help="CPU threads for scores (default 1).")
@plugin_options("the run names", minutes=720.0)
@on_folders
def command(
    *,
    run: str,
    heldout: Path | None,
    weights: Path | None,
    threads: int,
    plugins: PluginOptions,
    archive: Archive,
    key: str | None,
    as_json: bool,
) -> None:
    folders, readings = readings_of(archive, key)
    the_run(readings, run)
    _, configuration, _ = offered(readings, run)
    if plugins.are_run and configuration.plugins:
        steps = replay_apart(
            folders,
            run,
            configuration.plugins,
            plugins.bounds(configuration.plugins, threads),
            aggregator_key=key,
            heldout=heldout,
            weights=weights,
            threads=threads,
        )
    else:
        prepare_compute(EXACT, threads)
        with tempfile.TemporaryDirectory(prefix="dropfed-replay-") as scratch:
            steps = replay_run(readings, run, scratch=Path(scratch), heldout=heldout, weights=weights)
    document = {"run": run, **counts(steps), "steps": steps}
    show_document(document, lines(steps), as_json=as_json)
    if counts(steps)["differs"]:
        raise SystemExit(1)
    end_with(findings_of(folders))
