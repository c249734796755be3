"""Write the final model of RUN and its card.

The card says which data and method, who took part, the scores, ε, and the hashes of what the model came from.
"""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.launched import find_run
from aggregator.model_card import export as write
from shared.commands import NamedPath, say


@click.command(help=__doc__)
@click.argument("run")
@WORK
@click.option("--output", type=NamedPath(), required=True, help="Folder to make; it must not exist yet.")
@click.option("--onnx", is_flag=True, help="Also write model.onnx, compared with PyTorch; needs the extra onnx.")
@click.option("--monai", is_flag=True, help="Also write a MONAI bundle, in monai/.")
def command(run: str, work: Path, output: Path, onnx: bool, monai: bool) -> None:
    for path in write(work, find_run(work, run), output, onnx=onnx, monai=monai):
        say(f"wrote {path}")
