"""The report as one self-contained page, with its figures and tables as files beside it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aggregator.configuration import read_configuration
from aggregator.report import site_figures, tables
from aggregator.report.before_after import against_last, before_and_after, gain_and_worst, gained
from aggregator.report.figures import Figure
from aggregator.report.heldout import HeldOut, Measured, Model, asked_or_why, find_heldout, measure
from aggregator.report.heldout_figures import heldout_figures
from aggregator.report.tables import Table
from aggregator.report.timeline import timeline
from aggregator.results import best_so_far
from aggregator.run_view import OpenedRun, RunView, open_run_files, view_of
from aggregator.store import RunStore
from shared.errors import DataError, RejectedError
from shared.exchange.names import Name
from shared.exchange.reading import dump_yaml
from shared.exchange.tables import RECEIVED_SPLITS
from shared.folder.durable import write_file
from shared.learning.apart import Progress, Question
from shared.learning.compute import EXACT, prepare_compute
from shared.learning.metrics import OF_CLASS
from shared.learning.outcome import chosen_text, reason_text
from shared.moments import moment_text
from shared.pages.render import render

PAGE = "report.html"
_TEMPLATE = Path(__file__).parent / "page.html"


@dataclass(frozen=True)
class Section:
    """One part of the page."""

    name: str
    title: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()
    figures: Sequence[Figure] = ()


def write_pages(work: Path, store: RunStore, folder: Path) -> Path:
    """Write ``report.html``, ``figures/*.svg``, ``figures/*.png`` and ``tables/*.csv`` below ``folder``.

    Returns:
        The page.

    What an earlier call wrote there is replaced; a figure that can no longer be drawn is removed. Where the run needs
    plug-ins, a child process writes the pages. If these cannot be asked, the pages say so where they would be measured.

    Raises:
        DropfedError: as for ``view_run``.
    """
    why = asked_or_why(WritePages(work=work, run=store.run, folder=folder), work, store.configuration())
    if why is not None:
        _write_pages(work, store, folder, why)
    return folder / PAGE


class WritePages(Question[None]):
    """Write the pages of a run; arguments as for ``write_pages``."""

    work: Path
    run: Name
    folder: Path

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"measuring the model of {self.run}"

    def answer(self, on_progress: Progress) -> None:
        """See ``Question``."""
        store = RunStore(self.work, self.run)
        _write_pages(self.work, store, self.folder, find_heldout(self.work, store.configuration()))


def _write_pages(work: Path, store: RunStore, folder: Path, heldout: HeldOut | str) -> None:
    opened = open_run_files(work, store)
    view, run, configuration = view_of(opened), opened.run, read_configuration(work)
    aggregate, what = _aggregate(opened, view)
    prepare_compute(EXACT, configuration.threads)
    model = heldout if isinstance(heldout, str) else heldout.model()
    measured = heldout if isinstance(heldout, str) else _measured(heldout, store, aggregate)
    write_sections(
        folder,
        _sections(view, aggregate, what, measured),
        others=[tables.every_score(view)],
        title=f"Run {run.run}",
        state=_state(view),
        facts=[
            ("Federation", configuration.federation),
            ("Ran", _ran(view)),
            ("Page made", moment_text(time.time())),
            *_facts(view, model, measured),
        ],
        configuration=dump_yaml(run).decode().splitlines(),
    )


def write_sections(folder: Path, sections: Sequence[Section], others: Sequence[Table] = (), **values: object) -> Path:
    """Write a page of sections with its figures and tables, as ``write_pages`` does.

    Args:
        others: tables that the page itself does not show.
        values: ``title``, ``state`` in a sentence, ``facts`` as pairs, and ``configuration`` line by line.
    """
    tables = [*others]
    for section in sections:
        tables += [*section.tables, *section.folded]
        for figure in section.figures:
            _write_figure(folder / "figures", figure)
            if figure.table is not None:
                tables.append(figure.table)
            else:
                (folder / "tables" / f"{figure.name}.csv").unlink(missing_ok=True)
    for table in tables:
        write_file(folder / "tables" / f"{table.name}.csv", table.csv())
    page = render(_TEMPLATE, sections=sections, **values)
    write_file(folder / PAGE, page.encode())
    return folder / PAGE


def _write_figure(folder: Path, figure: Figure) -> None:
    for ending, content in (("svg", figure.svg), ("png", figure.png)):
        path = folder / f"{figure.name}.{ending}"
        if figure.why_none:
            path.unlink(missing_ok=True)
        else:
            write_file(path, content)


def _aggregate(opened: OpenedRun, view: RunView) -> tuple[int, str]:
    """Return the aggregate that the page looks at closely, and what it is: the chosen one, or what would be now."""
    store = opened.store
    if view.card:
        return view.card.chosen_round, "the chosen aggregate"
    told = store.told_by_code()
    in_turn = told is not None and told.in_turn
    is_ranked = not in_turn and any(view.score in each.means["validation"] for each in view.rounds)
    what = "the best aggregate so far" if is_ranked else "the newest aggregate"
    if not any(store.aggregate_path(number).exists() for number in range(len(view.rounds) + 1)):
        return 0, what
    return best_so_far(store, opened.ledgers, view.score, in_turn=in_turn), what


def _measured(heldout: HeldOut, store: RunStore, aggregate: int) -> Measured | str:
    """Return what the aggregate says of the held-out images, or why that is not known."""
    try:
        return measure(heldout, store, aggregate)
    except (DataError, RejectedError) as error:
        return str(error)


# --- what the page says ------------------------------------------------------------------------------------


def _sections(view: RunView, aggregate: int, what: str, measured: Measured | str) -> list[Section]:
    looked_at = f"{what}, that of round {aggregate}"
    grades = any(name.startswith(OF_CLASS) for name in view.frame()["score"])
    by_class = [site_figures.of_classes(view, aggregate, split) for split in RECEIVED_SPLITS] if grades else []
    title = tables.score_title(view.score)
    before = [before_and_after(view, view.card.chosen_round, view.score, title)] if view.card else []
    gain, compared = gained(view, view.score, title), against_last(view, view.score, title)
    return [
        *([Section("gain", "What each hospital gains", tables=[gain])] if gain else []),
        *([Section("against-last", "Against the last run", tables=[compared])] if compared else []),
        *([Section("before-after", "Before and after", tables=before)] if before else []),
        Section("curves", "Scores at the sites", [_HOW_TOLD], figures=site_figures.curves(view)),
        Section(
            "scores",
            "All scores",
            [f"Of {looked_at}, on the images of each site. {_WORDS}"],
            tables=[tables.as_in_papers(view, aggregate, "test")],
            folded=[tables.as_in_papers(view, aggregate, "validation")],
            figures=by_class,
        ),
        Section(
            "sites-uncertainty",
            "Does uncertainty predict errors?",
            [f"Of {looked_at}, with what stays at each site: only numbers over enough images leave it."],
            figures=[
                site_figures.selective(view, aggregate, "test"),
                site_figures.uncertainty_of_predictions(view, aggregate, "test"),
            ],
        ),
        _heldout_section(measured, looked_at, view.score),
        Section(
            "decisions",
            "Tolerance, θ and weights",
            [_counted(view)],
            folded=[tables.verdicts(view)],
            figures=[site_figures.tolerance(view), *site_figures.thetas_and_weights(view)],
        ),
        Section(
            "time",
            "Time and bytes",
            ["Bytes are those of the messages once, manifests included; what was sent again after a cut comes on top."],
            tables=[tables.bytes_by_site(view)],
            figures=[timeline(view)],
        ),
        Section("sites", "Sites", tables=[tables.people(view)]),
    ]


_HOW_TOLD = (
    "Each site scores the model that it receives on its own images, before it trains. What a site did not report and "
    "what has not come yet leaves a gap; missing values are left out, not drawn as 0."
)
_WORDS = (
    "Not reported: the site has fewer such images than it lets a score be about (minimum_count in its policy), or the "
    "score is undefined there. Not scored: the site has no such score, as of a grade that it does not use. No answer: "
    "none came, or its table could not be read."
)
_PROBED = (
    "Part of the model stays at the sites, the head among it where grades are told apart, so the aggregator has no "
    "whole model. What answers here is a linear probe, a logistic regression on the shared part's features, "
    "cross-validated over the held-out images as in the tolerance check. It tells what the features hold, not what a "
    "site's own head says; and u is the probe's, not the model's."
)


def _counted(view: RunView) -> str:
    """Return what became of the answers, in a sentence."""
    counts = ", ".join(f"{count} {status}" for status, count in view.verdicts().most_common())
    return f"Verdicts: {counts}." if counts else "No verdict was given yet."


def _heldout_section(measured: Measured | str, looked_at: str, score: str) -> Section:
    title = "On the aggregator's held-out images"
    if isinstance(measured, str):
        return Section("heldout", title, [f"Nothing could be measured: {measured}."], figures=heldout_figures(measured))
    who = f"Measured for this page with {looked_at}. {_PROBED if measured.by_probe else 'The whole model answers.'}"
    if measured.about_pixels and not measured.by_probe:
        who += " Scores are over all pixels, curves over those drawn from each image."
    paragraphs = [who]
    if measured.examples:
        paragraphs.append("This page shows images that the aggregator holds: give it only to those who may see them.")
    table = tables.of_heldout(measured.scores, measured.images, score)
    return Section("heldout", title, paragraphs, folded=[table], figures=heldout_figures(measured))


def _state(view: RunView) -> str:
    if view.outcome:
        said = view.outcome.text.split("; ")
        if view.card:
            said += gain_and_worst(view, view.card.chosen_round, view.score, tables.score_title(view.score))
            said.append(f"chosen: {chosen_text(view.card)} ({reason_text(view.card, view.outcome)})")
        text = ". ".join(f"{sentence[:1].upper()}{sentence[1:]}" for sentence in said) + "."
        return text.replace(view.score, tables.score_title(view.score))
    if not view.rounds:
        return "No round was opened yet."
    return f"Goes on: round {view.rounds[-1].round} of {view.configuration.rounds + 1}, the closing one counted."


def _ran(view: RunView) -> str:
    """Return from when to when the run has asked and settled, by the aggregator's clock."""
    begun = min((began for each in view.rounds if (began := each.began)), default=None)
    if begun is None:
        return "no round was opened yet"
    settled = max((settled for each in view.rounds if (settled := each.settled)), default=None)
    return f"{moment_text(begun)} to {moment_text(settled) if settled and view.is_over else 'now'}"


def _facts(view: RunView, model: Model | str, measured: Measured | str) -> list[tuple[str, str]]:
    run, card = view.configuration, view.card
    agreed = sum(said.agrees is True for said in view.sites.values())
    left = sum(said.agrees is True and said.ended == "withdrawn" for said in view.sites.values())
    facts = [
        ("Task and method", f"{run.task} by {run.method}"),
        ("Sites", f"{len(run.sites)} invited, {agreed} agreed" + (f", {left} of them withdrew" if left else "")),
        ("Rounds", f"{sum(each.trains for each in view.rounds)} of {run.rounds} opened for training"),
    ]
    if card and (mean := card.validation.get(str(card.chosen_round))) is not None:
        facts.append((f"Mean validation {tables.score_title(card.score_name)}", tables.short(float(mean))))
    if isinstance(measured, Measured):
        facts.append(("Held-out images", f"{measured.images}, classes: {', '.join(measured.classes)}"))
    if isinstance(model, Model):
        facts.append(("Model", f"{model.parameters:,} parameters; {model.operations}"))
    else:
        facts.append(("Model", f"not known: {model}"))
    return facts
