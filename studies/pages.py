"""A study's page: the tables in the shape of the papers', and what they come to as pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from aggregator.report.figures import COLOURS, MOST_NAMED, Figure, lines, panel
from aggregator.report.page import Section, write_sections
from aggregator.report.tables import Cell as TableCell
from aggregator.report.tables import Partly, Spread, Table, is_number, number
from shared.exchange.reading import dump_yaml
from shared.learning.metrics import DROPPED_PERCENTS
from shared.learning.tasks import SELECTION_SCORES, task_named
from shared.learning.tasks.signal_classification import SignalClassification
from shared.plurals import pluralize
from studies import analysis, voting
from studies.configuration import StudyConfiguration
from studies.matrix import Cell
from studies.voting import Voted
from studies.weighing import weighing

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # after the report, which keeps it quiet

_USUAL = ("accuracy", "balanced_accuracy", "auroc", "auprc", "f1", "dice", "iou", "kappa", "sensitivity", "specificity")
_LETTERS_OF_A_LINE = 28
"""Of an arm's name beside its point; 60 in one line would leave no room for points."""
_MOST_TESTS = 15
"""More comparisons than this are folded up, one table each."""
_OF_TESTS = (
    "Each value is of one seed, fold and tested site, and counts once, however many {what} are behind it; test {what} "
    "by site: {tested}. A p-value needs three values that both arms have; where there "
    "are fewer, or nothing varies, a dash stands. Values are not independent of each other where folds share images or "
    "sites a model: p-values say less than they seem to."
)
_UNTRAINED = (
    "In some cells the untrained model was chosen, as where no round makes a better one. Such an arm's name says in "
    "how many; what these cells tell says nothing of its training. The table of chosen rounds has more."
)
_WITHOUT = (
    "In some cells a round ended without any site's model, as where training diverges or a method's file is at fault: "
    "the table of chosen rounds says of which arms, and each cell's log.txt why."
)
_NOTHING = "there is no number to draw, or not yet"
_ARMS_OF_A_FIGURE = 6
_NOT_ALWAYS = (
    "tuned",
    "weights",
    "thetas",
    "tests-external",
    "ensemble",
    "severities-*",
    "noise*",
    "elsewhere",
    "selective*",
)
"""Tables and figures that not every page has."""
_UNCERTAINTY_SCORES = (
    "calibration_error",
    "misdiagnosis_auroc",
    "selective_accuracy_40",
    "referral_share_90",
    "referral_share_95",
)


def write_study_pages(
    study: StudyConfiguration,
    home: Path,
    cells: Sequence[Cell],
    results: pd.DataFrame,
    tuned: Table | None = None,
) -> Path:
    """Write ``report.html``, ``figures/`` and ``tables/`` below ``home``, of the cells that are finished.

    Args:
        results: their table.
        tuned: which learning rate each arm took, where the study chose it.

    Returns:
        The page.
    """
    main, *others = study.scores or _usual_scores(study.task, results)
    what = "excerpts" if isinstance(task_named(study.task), SignalClassification) else "images"
    labels = analysis.labels(results)
    warnings = [_UNTRAINED] if any(label != arm for arm, label in labels.items()) else []
    warnings += [_WITHOUT] if (results["rounds_without_a_model"] > 0).any() else []
    tested = analysis.tested_images(results) or "none yet"
    chosen = analysis.chosen_rounds(results)
    results = results.assign(arm=results["arm"].map(labels))
    voted = [replace(each, arm=labels.get(each.arm, each.arm)) for each in voting.votes(home, cells)]
    numbers = {labels.get(cell.arm, cell.arm): cell.configuration.images_per_site for cell in cells}
    comparing = [analysis.comparison(results, [main, *others], what), analysis.by_site(results, main, what)]
    points = _points(comparing[0], analysis.heading(main), what)
    sections = [
        Section("comparison", "Scores", warnings, figures=[points], tables=[*comparing, chosen]),
        _tests(results, main, numbers, _OF_TESTS.format(what=what, tested=tested)),
    ]
    if tuned is not None:
        sections.append(Section("tuned", "Learning rates", tables=[tuned]))
    if voted:
        title = "Inner folds together" if study.folds else "With a cut from validation images"
        names = getattr(task_named(study.task).options(study.run.get("task_options", {})), "severities", ())
        tables = [voting.ensemble(voted, names)]
        sections.append(Section("ensemble", title, figures=_histograms(voted, names), tables=tables))
    sections.append(_uncertainty(results, what))
    if study.noise:
        table = analysis.noise(results, main, what)
        drawn = [replace(figure, is_tabled=True) for figure in _noise(table, main, what)]
        sections.append(Section("noise", "Noise", figures=drawn, tables=[table]))
    if weighed := weighing(home, cells):
        sections.append(Section("weighing", "What each site's model counted", tables=weighed))
    sections += [
        Section("fairness", "Larger and smaller sites", tables=[analysis.fairness(results, main, what)]),
        Section("cost", "Cost", tables=[analysis.cost(results, study.energy, what)]),
    ]
    _remove_earlier(home)
    finished, planned = results["configuration"].nunique(), len({cell.digest for cell in cells})
    return write_sections(
        home,
        sections,
        title=f"Study {study.study}",
        state=f"{finished} of {pluralize(planned, 'cell')} {'is' if planned == 1 else 'are'} finished.",
        facts=[
            ("Task", study.task),
            ("Sites", ", ".join(study.data)),
            (f"Test {what}", tested),
            ("Seeds", f"{pluralize(len(study.seeds), 'seed')}: {', '.join(map(str, study.seeds))}"),
            ("Folds", f"{study.folds.outer} outer, {study.folds.inner} inner" if study.folds else "none"),
            ("Main score", analysis.heading(main)),
        ],
        configuration=dump_yaml(study).decode().splitlines(),
    )


def _remove_earlier(home: Path) -> None:
    """Remove what an earlier page had and this one may not have."""
    for pattern in _NOT_ALWAYS:
        for folder in ("tables", "figures"):
            for path in (home / folder).glob(f"{pattern}.*"):
                path.unlink()


def _tests(results: pd.DataFrame, score: str, numbers: Mapping[str, int | str | None], how: str) -> Section:
    tables = [
        analysis.table_of_tests(compared, score, kind)
        for kind in ("internal", "external")
        if (compared := analysis.tests(results, score, kind, numbers)) or kind == "internal"
    ]
    are_many = any(len(table.rows) > _MOST_TESTS for table in tables)
    shown, folded = ([], tables) if are_many else (tables, [])
    return Section("tests", "Tests between arms", [how], shown, folded)


def _usual_scores(task: str, results: pd.DataFrame) -> list[str]:
    """Return the main score, then those of the usual ones that the task has."""
    main = SELECTION_SCORES.get(task) or task_named(task).selection_score
    usual = [name for score in _USUAL for name in (score, f"{score}_mean") if name in results and name != main]
    return [main, *usual]


def _uncertainty(results: pd.DataFrame, what: str) -> Section:
    ending = "" if "misdiagnosis_auroc" in results else "_mean"
    named = [f"{name}{ending}" for name in _UNCERTAINTY_SCORES]
    table = analysis.comparison(results, named, what)
    percents = [0, *DROPPED_PERCENTS]
    scores = [f"accuracy{ending}", *(f"selective_accuracy_{percent}{ending}" for percent in DROPPED_PERCENTS)]
    found = analysis.comparison(results, scores, what)
    arms = [row for row in found.rows if row[1] == "internal"]
    caption = "Accuracy without the most uncertain predictions."
    selective = Table("selective", caption, *_turned("% left out", percents, [(row[0], *row[2:]) for row in arms]))
    curves = _curves(
        "Accuracy without the most uncertain",
        f"Internal test {what}; the mean over sites, seeds and folds.",
        selective,
        xlabel="left out (%)",
        ylabel="accuracy",
    )
    tables = [Table("uncertainty", table.caption, table.header, table.rows)]
    unlike = analysis.elsewhere(results, what)
    if any(cell is not None for row in unlike.rows for cell in row[1:]):
        tables.append(unlike)
    said = "How well each arm's uncertainty finds its own wrong answers, and how many it must refer for 90 and 95 %."
    return Section("uncertainty", "Uncertainty", paragraphs=[said], figures=curves, tables=tables)


def _points(table: Table, score: str, what: str) -> Figure:
    """Return the main score of every arm with its spread: a point internally, a square externally."""
    arms = list(dict.fromkeys(str(row[0]) for row in table.rows))
    shown = {(str(row[0]), str(row[1])): row[2] for row in table.rows if row[2] is not None}
    if not shown:
        return Figure("arms", "Every arm", why_none="no cell is finished yet")

    def draw(axes: Axes) -> None:
        for kind, marker, colour, beside in (("internal", "o", COLOURS[0], 0.0), ("external", "s", COLOURS[1], 0.3)):
            label = kind
            for place, arm in enumerate(arms):
                if (cell := shown.get((arm, kind))) is not None:
                    known = cell.number if isinstance(cell, Partly) else cell
                    spread = known.std if isinstance(known, Spread) else None  # of a single value it is not known
                    where = (_middle(cell), -place - beside)
                    axes.errorbar(*where, xerr=spread, fmt=marker, capsize=3, ms=4, color=colour, label=label)
                    label = ""
        names = ["\n".join(wrap(name, _LETTERS_OF_A_LINE)) for name in arms]
        axes.set_yticks([-place - 0.15 for place in range(len(arms))], names, size=8)
        axes.set_ylim(-len(arms) + 0.3, 0.4)

    body = [[*pair, cell] for pair, cell in shown.items()]
    figure = Figure(
        "arms",
        "Every arm",
        "Mean over sites, and its standard deviation over seeds and folds where there are several.",
        f"Points: {score} of every arm on test {what}, internal and external.",
        Table("arms", f"{score} of every arm.", ("arm", "tested on", score), body),
    )
    return panel(figure, draw, {"xlabel": score}, height=max(2.5, 0.42 * len(arms) + 1.2))


def _curves(
    title: str, caption: str, table: Table, *, xlabel: str, ylabel: str, are_names: bool = False
) -> list[Figure]:
    """Return a line for each arm; where they are too many for one figure, some at a time, all on the same range."""
    arms = table.header[1:]
    if len(arms) <= MOST_NAMED:
        return [lines(title, caption, table, are_names=are_names, why_none=_NOTHING, xlabel=xlabel, ylabel=ylabel)]
    found = [number(cell) for row in table.rows for cell in row[1:] if is_number(cell)]
    edge = 0.05 * (max(found) - min(found)) if found else 0.0
    limits = (min(found) - edge, max(found) + edge) if edge else (None, None)
    figures = []
    for start in range(0, len(arms), _ARMS_OF_A_FIGURE):
        chosen = range(1 + start, 1 + min(start + _ARMS_OF_A_FIGURE, len(arms)))
        part = Table(
            f"{table.name}-{1 + start // _ARMS_OF_A_FIGURE}",
            table.caption,
            (table.header[0], *(table.header[column] for column in chosen)),
            [[row[0], *(row[column] for column in chosen)] for row in table.rows],
        )
        of_all = f"{title}: arms {chosen[0]} to {chosen[-1]} of {len(arms)}"
        figures.append(lines(of_all, caption, part, limits=limits, are_names=are_names, xlabel=xlabel, ylabel=ylabel))
    return figures


def _noise(table: Table, score: str, what: str) -> list[Figure]:
    turned = Table("noise-curve", table.caption, *_turned("variance", table.header[1:], table.rows))
    along = "variance of the noise (not to scale)"
    title, ylabel = f"Noise on test {what}", analysis.heading(score)
    return _curves(title, table.caption, turned, are_names=True, xlabel=along, ylabel=ylabel)


def _histograms(voted: Sequence[Voted], names: Sequence[str]) -> list[Figure]:
    """Return how the probability of class 1 is spread in each severity, by arm; models on their own sites' images."""
    edges = np.linspace(0, 1, 11)
    said = pd.concat([each.predicted.assign(arm=each.arm, kind=each.kind) for each in voted])
    said = said[(said["kind"] == "internal") & (said["severity"] != "")]
    figures = []
    for index, (arm, of_arm) in enumerate(said.groupby("arm", sort=False)):
        by_severity = {str(name): of_name for name, of_name in of_arm.groupby("severity")["probability_1"]}
        binned = {
            voting.name_of_severity(each, names): np.histogram(by_severity[each], bins=edges)[0]
            for each in voting.in_order(by_severity)
        }

        def draw(axes: Axes, binned: dict[str, np.ndarray] = binned) -> None:
            for place, (name, counts) in enumerate(binned.items()):
                share = counts / counts.sum()
                axes.step(edges, [*share, share[-1]], where="post", color=COLOURS[place % len(COLOURS)], label=name)

        body: list[list[TableCell]] = [
            [f"{low:.1f} to {high:.1f}", *(int(counts[place]) for counts in binned.values())]
            for place, (low, high) in enumerate(pairwise(edges))
        ]
        name = f"severities-{index + 1}"
        figure = Figure(
            name,
            f"Probabilities by severity: {arm}",
            "Share of the images of each severity, by the votes' probability of being referable, at their own sites.",
            f"Histograms of {arm}, one for each severity.",
            Table(name, f"Images of {arm}.", ("probability", *binned), body),
        )
        labels = {"xlabel": "probability of being referable", "ylabel": "share of images"}
        figures.append(panel(figure, draw, labels))
    return figures


def _turned(
    along: str, places: Sequence[TableCell], arms: Sequence[Sequence[TableCell]]
) -> tuple[tuple[str, ...], list[list[TableCell]]]:
    """Return the header and the rows of a table that has the arms as columns, and a row for each of these places."""
    rows = [[place, *(_middle(arm[index]) for arm in arms)] for index, place in enumerate(places, start=1)]
    return (along, *(str(arm[0]) for arm in arms)), rows


def _middle(cell: TableCell) -> float:
    cell = cell.number if isinstance(cell, Partly) else cell
    return cell.mean if isinstance(cell, Spread) else float(cell) if isinstance(cell, (int, float)) else math.nan
