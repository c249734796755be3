"""Show how an exported model does on FOLDER, labelled like a site's data. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aggregator.commands import MODEL
from shared.predicting import evaluate_options, show_scores


@click.command(help=__doc__)
@MODEL
@evaluate_options
def command(model: Path, **asked: Any) -> None:
    show_scores(model, **asked)
