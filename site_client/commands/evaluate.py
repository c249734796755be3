"""Show how the final model does on FOLDER, labelled like this site's data. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shared.predicting import evaluate_options, show_scores
from site_client.commands import MODEL, WORK
from site_client.store import named_model


@click.command(help=__doc__)
@WORK
@MODEL
@evaluate_options
def command(*, work: Path, model: Path | None, **asked: Any) -> None:
    show_scores(named_model(work, model), **asked)
