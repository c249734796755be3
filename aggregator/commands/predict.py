"""Say what an exported model sees in IMAGES, a file or a folder, and how sure it is. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aggregator.commands import MODEL
from shared.predicting import ask_about, predict_options


@click.command(help=__doc__)
@MODEL
@predict_options
def command(model: Path, **asked: Any) -> None:
    ask_about(model, **asked)
