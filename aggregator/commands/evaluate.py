"""Show how an exported model does on FOLDER, labelled like a site's data. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import MODEL
from shared.plugin_options import PluginOptions
from shared.predicting import evaluate_options, show_scores


@click.command(help=__doc__)
@MODEL
@evaluate_options
def command(
    folder: Path,
    *,
    model: Path,
    page: Path | None,
    as_json: bool,
    shows_all: bool,
    plugins: PluginOptions,
) -> None:
    show_scores(
        model,
        folder,
        page,
        as_json=as_json,
        shows_all=shows_all,
        plugins=plugins,
    )
