"""Say what the final model sees in IMAGES, a file or a folder, and how sure it is. Nothing leaves this machine."""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import say
from shared.plurals import pluralize
from site_client.commands import MODEL, WORK
from site_client.final import FINAL, open_final
from site_client.predict import predict as write_predictions


@click.command(help=__doc__)
@click.argument("images", type=click.Path(path_type=Path, exists=True))
@WORK
@MODEL
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("predictions"),
    show_default=True,
    help="Folder for the answers.",
)
def command(images: Path, work: Path, model: Path | None, output: Path) -> None:
    kept = open_final(model or work / FINAL)
    if kept.card.personal_round == 0:
        say("warning: no part of this model was ever trained at this site", err=True)
    if kept.card.theta_status != "measured":
        say(f"warning: θ could not be measured here ({kept.card.theta_status}); advice is given from 0.5", err=True)
    table, count, problems = write_predictions(kept, images, output)
    by = f"by the model of {kept.card.run}, θ {kept.card.theta:.4f}"
    say(f"{pluralize(count, 'image')} {by}: {table}")
    if problems:
        say("\n".join(problems), err=True)
        raise SystemExit(1)
