"""Show how the final model does on FOLDER, labelled like this site's data. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path

import click

from shared.plugin_options import PluginOptions
from shared.predicting import evaluate_options, show_scores
from site_client.commands import MODEL, WORK
from site_client.final import FINAL


@click.command(help=__doc__)
@WORK
@MODEL
@evaluate_options
def command(
    folder: Path,
    *,
    work: Path,
    model: Path | None,
    page: Path | None,
    as_json: bool,
    shows_all: bool,
    plugins: PluginOptions,
) -> None:
    show_scores(
        model or work / FINAL,
        folder,
        page,
        as_json=as_json,
        shows_all=shows_all,
        plugins=plugins,
    )
