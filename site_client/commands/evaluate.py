"""Show how the final model does on FOLDER, labelled like this site's data. Nothing leaves this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from shared.commands import AS_JSON, say
from site_client.commands import MODEL, WORK
from site_client.final import FINAL, open_final
from site_client.predict import evaluate_labelled


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@WORK
@MODEL
@AS_JSON
@click.option("--all", "shows_all", is_flag=True, help="Show every score, not only those that matter most.")
def command(folder: Path, work: Path, model: Path | None, as_json: bool, shows_all: bool) -> None:
    kept = open_final(model or work / FINAL)
    evaluation = evaluate_labelled(kept, folder)
    scores: dict[str, float | None] = {"images": evaluation.images, "loss": evaluation.loss}
    scores |= {name: score.value for name, score in sorted(evaluation.scores.items())}
    if as_json:
        say(json.dumps(scores, indent=2))
        return
    first = ("images", *kept.task.main_scores)
    for name in [*first, *(name for name in scores if shows_all and name not in first)]:
        value = scores[name]
        text = "absent" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        say(f"{name:28} {text}")
    if not shows_all:
        say(f"(--all shows {len(scores) - len(first)} more)")
