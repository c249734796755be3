"""A study's page: the tables in the shape of the papers', and what they come to as pictures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from aggregator.report.figures import COLOURS, Figure, Words, lines, panel
from aggregator.report.page import Section, write_sections
from aggregator.report.tables import Cell as TableCell
from aggregator.report.tables import Spread, Table
from aggregator.studies import analysis
from aggregator.studies.analysis import Row, Voted
from aggregator.studies.configuration import POOLED, StudyConfiguration
from aggregator.studies.matrix import Cell
from shared.errors import ConfigurationError
from shared.exchange.reading import dump_yaml
from shared.learning.metrics import DROPPED_PERCENTS
from shared.learning.tasks import SELECTION_SCORES, task_named

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # after the report, which keeps it quiet

_USUAL = ("accuracy", "balanced_accuracy", "auroc", "auprc", "f1", "dice", "iou", "kappa", "sensitivity", "specificity")
_LETTERS_OF_A_LINE = 28
"""Of a way's name beside its point; 60 in one line would leave no room for points."""
_OF_DOUBT = (
    "calibration_error",
    "misdiagnosis_auroc",
    "selective_accuracy_40",
    "referral_share_90",
    "referral_share_95",
)


def write_study_pages(study: StudyConfiguration, home: Path, cells: Sequence[Cell], rows: Sequence[Row]) -> Path:
    """Write ``report.html``, ``figures/`` and ``tables/`` below ``home``, of the cells that are finished.

    Args:
        rows: of ``results.table_rows``.

    Returns:
        The page.

    Raises:
        ConfigurationError: a score that the study names does not exist.
    """
    _demand_scores(study, rows)
    main, *others = study.scores or _usual_scores(study.task, rows)
    voted = list(analysis.votes(home, cells))
    comparing = [analysis.comparison(rows, [main, *others]), analysis.by_site(rows, main)]
    sections = [
        Section("comparison", "Scores", figures=[_bars(comparing[0], main)], tables=comparing),
        Section(
            "tests",
            "Tests between ways",
            tables=[
                analysis.table_of_tests(compared, main, kind)
                for kind in ("internal", "external")
                if (compared := analysis.tests(rows, main, kind)) or kind == "internal"
            ],
        ),
    ]
    if voted:
        sections.append(
            Section("ensemble", "Inner folds together", figures=_histograms(voted), tables=[analysis.ensemble(voted)])
        )
    sections.append(_uncertainty(rows))
    if study.noise:
        table = analysis.noise(rows, main)
        sections.append(Section("noise", "Noise", figures=[_noise(table, main)], tables=[table]))
    sections += [
        Section("fairness", "Larger and smaller sites", tables=[analysis.fairness(rows, main)]),
        Section("cost", "Cost", tables=[analysis.cost(rows, study.energy)]),
    ]
    finished = len({row["configuration"] for row in rows})
    return write_sections(
        home,
        sections,
        title=f"Study {study.study}",
        state=f"{finished} of {len({cell.digest for cell in cells})} cells are finished.",
        facts=[
            ("Task", study.task),
            ("Sites", ", ".join(study.data)),
            ("Seeds", ", ".join(map(str, study.seeds))),
            ("Folds", f"{study.folds.outer} outer, {study.folds.inner} inner" if study.folds else "none"),
            ("Main score", main),
        ],
        configuration=dump_yaml(study).decode().splitlines(),
    )


def _demand_scores(study: StudyConfiguration, rows: Sequence[Row]) -> None:
    there = {name for row in rows if row["split"] == "test" for name in row["scores"]}
    if unknown := [score for score in study.scores if score not in there]:
        told = ", ".join(sorted(there))
        raise ConfigurationError(
            [f"scores: there is no {score}; take it out, or take one of {told}" for score in unknown]
        )


def _usual_scores(task: str, rows: Sequence[Row]) -> list[str]:
    """The main score, then those of the usual ones that the task has."""
    main = SELECTION_SCORES.get(task) or task_named(task).selection_score
    there = {name for row in rows for name in row["scores"]}
    usual = [name for score in _USUAL for name in (score, f"{score}_mean") if name in there and name != main]
    return [main, *usual]


def _uncertainty(rows: Sequence[Row]) -> Section:
    there = {name for row in rows for name in row["scores"]}
    ending = "" if "misdiagnosis_auroc" in there else "_mean"
    named = [f"{name}{ending}" for name in _OF_DOUBT]
    table = analysis.comparison(rows, named)
    percents = [0, *DROPPED_PERCENTS]
    scores = [f"accuracy{ending}", *(f"selective_accuracy_{percent}{ending}" for percent in DROPPED_PERCENTS)]
    found = analysis.comparison(rows, scores)
    ways = [row for row in found.rows if row[1] == "internal"]
    body: list[list[TableCell]] = [
        [percent, *(_middle(row[2 + index]) for row in ways)] for index, percent in enumerate(percents)
    ]
    header = ("% left out", *(str(row[0]) for row in ways))
    selective = Table("selective", "Accuracy without the most uncertain predictions.", header, body)
    curve = lines(
        "Accuracy without the most uncertain",
        "Internal test images; the mean over sites, seeds and folds.",
        selective,
        xlabel="left out (%)",
        ylabel="accuracy",
    )
    tables = [Table("uncertainty", table.caption, table.header, table.rows)]
    unlike = analysis.elsewhere(rows)
    if any(cell is not None for row in unlike.rows for cell in row[1:]):
        tables.append(unlike)
    said = "How well each way's uncertainty finds its own wrong answers, and how many it must refer for 90 and 95 %."
    return Section("uncertainty", "Uncertainty", paragraphs=[said], figures=[curve], tables=tables)


def _bars(table: Table, score: str) -> Figure:
    """The main score of every way with its spread, as points."""
    shown = [(f"{row[0]} ({row[1]})", row[2]) for row in table.rows if row[2] is not None]
    if not shown:
        return Figure("ways", "Every way", why_none="no cell is finished yet")

    def draw(axes: Axes) -> None:
        for place, (_, cell) in enumerate(shown):
            spread = cell.std if isinstance(cell, Spread) else None  # of a single value it is not known
            axes.errorbar(_middle(cell), -place, xerr=spread, fmt="o", color=COLOURS[0], capsize=3)
        names = ["\n".join(wrap(name, _LETTERS_OF_A_LINE)) for name, _ in shown]
        axes.set_yticks([-place for place in range(len(shown))], names, size=8)

    body = [[name, cell] for name, cell in shown]
    words = Words(
        "ways",
        "Every way",
        "Mean over sites, and its standard deviation over seeds and folds.",
        f"Points: {score} of every way on test images.",
    )
    return panel(
        words,
        Table("ways", f"{score} of every way.", ("way", score), body),
        draw,
        {"xlabel": score},
        height=max(2.5, 0.35 * len(shown) + 1),
    )


def _noise(table: Table, score: str) -> Figure:
    variances = [float(text) for text in table.header[1:]]
    body: list[list[TableCell]] = [
        [variance, *(_middle(row[1 + index]) for row in table.rows)] for index, variance in enumerate(variances)
    ]
    turned = Table("noise-curve", table.caption, ("variance", *(str(row[0]) for row in table.rows)), body)
    return lines("Noise on test images", table.caption, turned, xlabel="variance of the noise", ylabel=score)


def _histograms(voted: Sequence[Voted]) -> list[Figure]:
    """How the probability of class 1 is spread in each severity, by way; models on their own sites' images."""
    edges = np.linspace(0, 1, 11)
    by_way: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in voted:
        if each.model_of in (each.tested_on, POOLED):
            predicted = each.predicted
            for name, of_image in zip(predicted.severities, predicted.probabilities, strict=True):
                by_way[each.way][name or "all"].append(float(of_image[1]))
    figures = []
    for number, (way, severities) in enumerate(by_way.items()):
        ordered = sorted(
            severities, key=lambda name: (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)
        )
        counted = {name: np.histogram(severities[name], bins=edges)[0] for name in ordered}

        def draw(axes: Axes, counted: dict[str, np.ndarray] = counted) -> None:
            for index, (name, counts) in enumerate(counted.items()):
                share = counts / counts.sum()
                axes.step(edges, [*share, share[-1]], where="post", color=COLOURS[index % len(COLOURS)], label=name)

        body: list[list[TableCell]] = [
            [f"{low:.1f} to {high:.1f}", *(int(counts[place]) for counts in counted.values())]
            for place, (low, high) in enumerate(pairwise(edges))
        ]
        words = Words(
            f"severities-{number + 1}",
            f"Probabilities by severity: {way}",
            "Share of the images of each severity (counted from 0), by the votes' probability of class 1.",
            f"Histograms of {way}, one for each severity.",
        )
        table = Table(words.name, f"Images of {way}.", ("probability", *ordered), body)
        figures.append(panel(words, table, draw, {"xlabel": "probability of class 1", "ylabel": "share of images"}))
    return figures


def _middle(cell: TableCell) -> float:
    return cell.mean if isinstance(cell, Spread) else float(cell) if isinstance(cell, (int, float)) else math.nan
