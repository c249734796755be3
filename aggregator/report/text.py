"""The report for people who read it on a terminal, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from aggregator.report.before_after import Alone, against_last, before_and_after, gain_and_worst, gained
from aggregator.report.heldout import Model
from aggregator.report.tables import Missing, Table, told
from aggregator.run_view import Part, RunView
from shared.escaping import escape
from shared.exchange.tables import RECEIVED_SPLITS, Split
from shared.learning.outcome import chosen_text, reason_text
from shared.sizes import size_text

NONE = "–"
"""What stands where there is no number, on pages too."""
_MARKUP = re.compile(r"[\\|]|<(?=[A-Za-z/!?])|(?<=\])\(")
"""What in a cell would end it, or begin a tag of HTML, a link or an image."""


def report_text(view: RunView, model: Model | str, score: str, title: str, alone: Alone | None = None) -> str:
    """Return the report for people as Markdown: outcome, one score of every aggregate at every site, verdicts, cost.

    Args:
        model: what it costs, or why that is not known.
        score: a column of ``metrics.csv``.
        title: what people call it.
        alone: what a site comes to by itself, if that was measured.
    """
    run, card = view.configuration, view.card
    lines = [f"# Run {run.run}: {run.task} by {run.method}", ""]
    if view.outcome:
        lines += [f"Outcome: {escape(view.outcome.text)}.", ""]
    if card:
        for said in gain_and_worst(view, card.chosen_round, score, title):
            lines += [f"{said[:1].upper()}{said[1:]}.", ""]
        for table in (
            gained(view, score, title),
            against_last(view, score, title),
            before_and_after(view, card.chosen_round, score, title, alone),
        ):
            lines += _captioned(table) if table else []
        lines += [f"Chosen: {chosen_text(card)} ({reason_text(card, view.outcome)}).", ""]
    for split in RECEIVED_SPLITS:
        lines += [f"## {title} on each site's {split} images", ""]
        scores = [
            [each.received_aggregate, *(_cell(each.sites.get(site), split, score) for site in run.sites)]
            for each in view.rounds
            if any(part.row(split) for part in each.sites.values())
        ]
        lines += [*table_lines(["aggregate of round", *run.sites], scores), ""]
    verdicts = [
        [
            *(each.round if each.trains else "closing", site, part.status),
            *(*map(short, (part.score, part.theta, part.weight)), part.reason),
        ]
        for each, site, part in view.parts()
        if part.status
    ]
    head = ("round", "site", "status", "score", "θ", "weight", "reason")
    lines += ["## Verdicts", "", *table_lines(head, verdicts)]
    return "\n".join([*lines, "", *_cost_lines(view, model)]) + "\n"


def _captioned(table: Table) -> list[str]:
    rows = [[cell.text for cell in row] for row in table.shown]
    notes = [*(f"- {note}." for note in table.notes), *([""] if table.notes else [])]
    return [f"{table.caption}:", "", *table_lines(table.header, rows), "", *notes]


def _cost_lines(view: RunView, model: Model | str) -> list[str]:
    if isinstance(model, str):
        of_model = f"The model's own cost is not known: {model}."
    else:
        counted = f"{model.parameters:,} parameters ({model.with_statistics:,} with BatchNorm's statistics)"
        of_model = f"{counted}; {model.operations}."
    rows = []
    for site, total in view.bytes.items():
        trained = [each.sites[site] for each in view.rounds if each.trains and site in each.sites]
        down, up = (_mean(getattr(part.bytes, way) for part in trained) for way in ("down", "up"))
        seconds = _mean(part.seconds_to_answer for part in trained)
        rows.append([site, *map(size, (total.down, total.up, down, up)), NONE if seconds is None else f"{seconds:.0f}"])
    head = ("site", "to it", "from it", "in a training round: to it", "from it", "seconds to answer")
    return ["## Cost", "", of_model, "", *table_lines(head, rows)]


def _mean(numbers: Iterable[int | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else None


def _cell(part: Part | None, split: Split, score: str) -> str:
    """Return the score, or why there is none; with its standard deviation over images, where it is a mean over them."""
    value, spread = told(part, split, score), told(part, split, score.replace("_mean", "_std"))
    if isinstance(value, Missing):
        return value.why
    is_mean = score.endswith("_mean") and isinstance(spread, float)
    return f"{value:.3f} ± {spread:.3f}" if is_mean else f"{value:.3f}"


# --- what all that is written for people has in common -----------------------------------------------------


def table_lines(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table; texts from elsewhere stay inside their cells, as plain text."""
    cells = [[_MARKUP.sub(r"\\\g<0>", escape(str(cell))) for cell in row] for row in (head, *rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"| {' | '.join(f'{cell:{width}}' for cell, width in zip(row, widths, strict=True))} |" for row in cells]
    return [lines[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *lines[1:]]


def size(known: float | None) -> str:
    """Return a size of so many bytes; a dash where it is not known."""
    return NONE if known is None else size_text(known)


def short(number: float | None) -> str:
    """Return a score to three places; a dash where there is none."""
    return NONE if number is None else f"{number:.3f}"
