"""Say what an exported model sees in IMAGES, a file or a folder, and how sure it is. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path

import click

from aggregator.commands import MODEL
from shared.plugin_options import PluginOptions
from shared.predicting import ask_about, predict_options


@click.command(help=__doc__)
@MODEL
@predict_options
def command(
    images: Path,
    *,
    model: Path,
    output: Path,
    page: bool,
    dicom_seg: bool,
    plugins: PluginOptions,
) -> None:
    ask_about(
        model,
        images,
        output,
        page=page,
        dicom_seg=dicom_seg,
        plugins=plugins,
    )
