"""Say what the final model sees in IMAGES, a file or a folder, and how sure it is. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shared.predicting import ask_about, predict_options
from site_client.commands import MODEL, WORK
from site_client.store import named_model


@click.command(help=__doc__)
@WORK
@MODEL
@predict_options
def command(*, work: Path, model: Path | None, **asked: Any) -> None:
    ask_about(named_model(work, model), **asked)
