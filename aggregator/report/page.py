"""The report as one self-contained page, with its figures and tables as files beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aggregator.configuration import read_configuration
from aggregator.overview import read_channels
from aggregator.report.before_after import before_and_after
from aggregator.report.document import Document, run_report
from aggregator.report.figures import Figure
from aggregator.report.heldout import Measured, measure, open_heldout
from aggregator.report.heldout_figures import heldout_figures
from aggregator.report.site_figures import (
    curves,
    of_classes,
    selective,
    thetas_and_weights,
    tolerance,
    uncertainty_of_predictions,
)
from aggregator.report.tables import (
    Table,
    as_in_papers,
    bytes_by_site,
    every_score,
    of_heldout,
    people,
    score_title,
    short,
    verdicts,
)
from aggregator.report.timeline import timeline
from aggregator.results import best_so_far
from aggregator.store import RunStore
from shared.errors import ConfigurationError, DataError, RejectedError
from shared.exchange.reading import dump_yaml
from shared.exchange.records.values import now_text
from shared.folder.durable import write_file
from shared.learning.compute import EXACT, prepare_compute
from shared.learning.metrics import OF_CLASS
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
    """Writes ``report.html``, ``figures/*.svg``, ``figures/*.png`` and ``tables/*.csv`` below ``folder``.

    Returns:
        The page.

    What an earlier call wrote there is replaced; a figure that can no longer be drawn is removed.

    Raises:
        ConfigurationError, ActionRequiredError: as for ``run_report``.
    """
    document = run_report(work, store)
    run = store.configuration()
    aggregate = _aggregate(work, store, document)
    measured = _measured(work, store, aggregate)
    sections = _sections(document, aggregate, measured)
    return write_sections(
        folder,
        sections,
        others=[every_score(document)],
        title=f"Run {run.run}",
        state=_state(document),
        facts=[
            ("Federation", read_configuration(work).federation),
            ("Ran", _ran(document)),
            ("Page made", _to_the_minute(now_text())),
            *_facts(document, measured),
        ],
        configuration=dump_yaml(run).decode().splitlines(),
    )


def write_sections(folder: Path, sections: Sequence[Section], others: Sequence[Table] = (), **values: object) -> Path:
    """Writes a page of sections with its figures and tables, as ``write_pages`` does.

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


def _aggregate(work: Path, store: RunStore, document: Document) -> int:
    """The aggregate that the page looks at closely: the chosen one, or the one that would be chosen now."""
    if document["chosen"]:
        return int(document["chosen"]["aggregate"])
    if not any(store.aggregate_path(number).exists() for number in range(store.round_no + 1)):
        return 0
    return best_so_far(store, read_channels(work, document["configuration"]["sites"]), document["score"])


def _measured(work: Path, store: RunStore, aggregate: int) -> Measured | str:
    """What the aggregate says of the held-out images, or why that is not known."""
    try:
        prepare_compute(EXACT, read_configuration(work).threads)
        return measure(open_heldout(work, store.configuration()), store, aggregate)
    except (ConfigurationError, DataError, RejectedError) as error:
        return str(error)


# --- what the page says ------------------------------------------------------------------------------------


def _sections(document: Document, aggregate: int, measured: Measured | str) -> list[Section]:
    chosen = "the chosen aggregate" if document["chosen"] else "the best aggregate so far"
    looked_at = f"{chosen}, that of round {aggregate}"
    grades = any(
        name.startswith(OF_CLASS) for each in document["rounds"] for found in each["sites"].values()
        for split in ("validation", "test") if found[split] for name in found[split]["scores"]
    )  # fmt: skip
    by_class = [of_classes(document, aggregate, split) for split in ("validation", "test")] if grades else []
    score = document["score"]
    tables = [before_and_after(document, score, score_title(score))] if document["chosen"] else []
    return [
        *([Section("before-after", "Before and after", tables=tables)] if tables else []),
        Section("curves", "Scores at the sites", [_HOW_TOLD], figures=curves(document)),
        Section(
            "scores",
            "All scores",
            [f"Of {looked_at}, on the images of each site. {_WORDS}"],
            tables=[as_in_papers(document, aggregate, "test")],
            folded=[as_in_papers(document, aggregate, "validation")],
            figures=by_class,
        ),
        Section(
            "sites-uncertainty",
            "Does uncertainty predict errors?",
            [f"Of {looked_at}, with what stays at each site: only numbers over enough images leave it."],
            figures=[selective(document, aggregate, "test"), uncertainty_of_predictions(document, aggregate, "test")],
        ),
        _heldout_section(measured, looked_at, score),
        Section(
            "decisions",
            "Tolerance, θ and weights",
            [_counted(document)],
            folded=[verdicts(document)],
            figures=[tolerance(document), *thetas_and_weights(document)],
        ),
        Section(
            "time",
            "Time and bytes",
            ["Bytes are those of the messages once, manifests included; what was sent again after a cut comes on top."],
            tables=[bytes_by_site(document)],
            figures=[timeline(document)],
        ),
        Section("sites", "Sites", tables=[people(document)]),
    ]


_HOW_TOLD = (
    "Each site scores the model that it receives on its own images, before it trains. What a site withheld, what is "
    "undefined and what has not come yet leaves a gap; missing values are left out, not drawn as 0."
)
_WORDS = (
    "Withheld: the site has fewer images than it lets anything be told of. Not told: undefined there, or over too few "
    "of its images. Not scored: the site has no such score, as of a grade that it does not use. No answer: none came, "
    "or its table could not be read."
)
_PROBED = (
    "Part of the model stays at the sites, the head among it where grades are told apart, so the aggregator has no "
    "whole model. What answers here is a linear probe, a logistic regression on the shared part's features, "
    "cross-validated over the held-out images as in the tolerance check. It tells what the features hold, not what a "
    "site's own head says; and u is the probe's, not the model's."
)


def _counted(document: Document) -> str:
    """What became of the answers, in a sentence."""
    statuses = Counter(found["status"] for each in document["rounds"] for found in each["sites"].values())
    del statuses[None]
    counts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
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
    table = of_heldout(measured.scores, measured.images, score)
    return Section("heldout", title, paragraphs, folded=[table], figures=heldout_figures(measured))


def _state(document: Document) -> str:
    run, chosen, outcome = document["configuration"], document["chosen"], document["outcome"]
    if outcome:
        said = [outcome["text"], *([f"chosen: {chosen['model']} ({chosen['reason']})"] if chosen else [])]
        text = ". ".join(f"{sentence[:1].upper()}{sentence[1:]}" for sentence in said) + "."
        return text.replace(document["score"], score_title(document["score"]))
    if not document["rounds"]:
        return "No round was opened yet."
    return f"Goes on: round {document['rounds'][-1]['round']} of {run['rounds'] + 1}, the closing one counted."


def _ran(document: Document) -> str:
    """From when to when the run has asked and settled, by the aggregator's clock."""
    found = [of_site for each in document["rounds"] for of_site in each["sites"].values()]
    begun = min((of_site["asked"] for of_site in found if of_site["asked"]), default=None)
    if begun is None:
        return "no round was opened yet"
    settled = max((of_site["settled"] for of_site in found if of_site["settled"]), default=None)
    until = _to_the_minute(settled) if settled and document["is_over"] else "now"
    return f"{_to_the_minute(begun)} to {until}"


def _to_the_minute(time: str) -> str:
    """A time of a record, for people."""
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M} UTC"


def _facts(document: Document, measured: Measured | str) -> list[tuple[str, str]]:
    run, chosen, model = document["configuration"], document["chosen"], document["cost"]["model"]
    agreed = sum(found["agrees"] is True for found in document["sites"].values())
    facts = [
        ("Task and method", f"{run['task']} by {run['method']}"),
        ("Sites", f"{len(run['sites'])} invited, {agreed} agreed"),
        ("Rounds", f"{sum(each['trains'] for each in document['rounds'])} of {run['rounds']} opened for training"),
    ]
    if chosen and (mean := chosen["validation"].get(str(chosen["aggregate"]))) is not None:
        facts.append((f"Mean validation {score_title(chosen['score'])}", short(mean)))
    if isinstance(measured, Measured):
        facts.append(("Held-out images", f"{measured.images}, classes: {', '.join(measured.classes)}"))
    if model:
        size = " × ".join(map(str, model["image"]))
        facts.append(("Model", f"{model['parameters']:,} parameters; {model['flops'] / 1e9:.3g} GFLOPs for {size}"))
    else:
        facts.append(("Model", f"not known: {document['cost']['why_no_model']}"))
    return facts
