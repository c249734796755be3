"""The report's tables: what figures draw and pages show, and the same as CSV.

A cell without a number says why on a page; in CSV it is empty, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aggregator.report.meanings import meanings
from aggregator.run_view import INTERVAL, Part, Row, RunView, is_of_class, range_text
from shared.csv_file import as_csv
from shared.escaping import uncomputed
from shared.exchange.records.values import decimal_text
from shared.exchange.tables import EPSILON, Split, error_of
from shared.learning.metrics import OF_CLASS, mean_and_std
from shared.plurals import pluralize

NARROW = f"{INTERVAL}: too narrow for few patients, and left out where the error is 0"
_OWN_CLASSES = f"{OF_CLASS}K has no mean over sites: each site has classes of its own"
SHOWN_ROWS = 300
"""How many rows of a table a page shows; its CSV has all."""

_LONG = 30
"""Letters of a text that needs a wide column."""

_BETWEEN = 3
"""Letters between two columns."""

_TOO_SMALL = 0.0005
"""With three places it would look like 0, which it is not."""


@dataclass(frozen=True)
class Missing:
    """Why there is no number here."""

    why: str


NOT_ASKED = Missing("not asked")
NO_ANSWER = Missing("no answer")
NOT_REPORTED = Missing("not reported")
"""The site has fewer such images than it lets any number be about, or the score is undefined there."""
UNDEFINED = Missing("undefined")
NOT_SCORED = Missing("not scored")
"""The site's table has no such column, as for a grade that it does not use."""


@dataclass(frozen=True)
class Spread:
    """A mean and its standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class Partly:
    """A number over fewer values than there could be; the others are undefined."""

    number: float | Spread
    values: int
    of: int


@dataclass(frozen=True)
class MainScore:
    """The name of the score by which a model is chosen: a page marks it, a file has the name alone."""

    name: str


Cell = float | int | str | MainScore | Spread | Partly | Missing | None


@dataclass(frozen=True)
class Table:
    """One table.

    Args:
        name: of its file, without the ending.
        caption: what it shows.
        header: one text for each column.
        rows: the first cell of each is its heading.
        notes: what a page says below it, a line each.
    """

    name: str
    caption: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    notes: tuple[str, ...] = ()

    def csv(self) -> bytes:
        """Return all rows; a number in the shortest text that reads back as exactly that number, but for a mean with
        its deviation, which is for people.
        """
        return as_csv([map(uncomputed, self.header), *(map(_csv_cell, row) for row in self.rows)])

    @property
    def shown(self) -> list[list[ShownCell]]:
        """The first rows as a page shows them."""
        return [[_shown_cell(cell) for cell in row] for row in self.rows[:SHOWN_ROWS]]

    @property
    def heads(self) -> list[ShownCell]:
        """The header as a page shows it: over numbers it stands where they do."""
        kinds = [{_shown_cell(row[index]).kind for row in self.rows[:SHOWN_ROWS]} for index in range(len(self.header))]
        return [
            ShownCell(name, "number" if "number" in kind else "") for name, kind in zip(self.header, kinds, strict=True)
        ]

    def parts(self, letters: int) -> list[ShownPart]:
        """Return the table in parts that fit beside each other into so many letters; what does not fit goes on below.

        Each part begins with the columns of text that the table begins with: they say what its rows are.
        """
        heads, rows = self.heads, self.shown
        widths = [
            _BETWEEN + min(_LONG, max(len(cell.text) for cell in (head, *cells)))
            for head, cells in zip(heads, _columns(rows, len(heads)), strict=True)
        ]
        names = [*range(_count_of_names(rows, len(heads)))]
        parts = [[*names]]
        for at in range(len(names), len(heads)):
            if len(parts[-1]) > len(names) and sum(widths[column] for column in (*parts[-1], at)) > letters:
                parts.append([*names])
            parts[-1].append(at)
        return [ShownPart([heads[at] for at in part], [[row[at] for at in part] for row in rows]) for part in parts]

    @property
    def left_out(self) -> int:
        """How many rows a page does not show."""
        return max(0, len(self.rows) - SHOWN_ROWS)


@dataclass(frozen=True)
class ShownCell:
    """A cell's text and its CSS class."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class ShownPart:
    """Some columns of a table as a page shows them."""

    heads: Sequence[ShownCell]
    rows: Sequence[Sequence[ShownCell]]


def _columns(rows: Sequence[Sequence[ShownCell]], count: int) -> list[list[ShownCell]]:
    return [[row[at] for row in rows] for at in range(count)]


def _count_of_names(rows: Sequence[Sequence[ShownCell]], count: int) -> int:
    """Return with how many columns a table says what its rows are: the first one, and those of text beside it."""
    columns = _columns(rows, count)
    is_text = (any(cell.kind not in ("number", "soft") for cell in cells) for cells in columns[1:])
    return 1 + next((at for at, is_name in enumerate(is_text) if not is_name), count - 1)


def number(cell: Cell) -> float:
    """Return a cell as a coordinate: NaN, which no figure draws, where there is no number."""
    return float(cell) if isinstance(cell, (int, float)) else float("nan")


def is_number(cell: Cell) -> bool:
    """Return whether there is a number, which a figure can draw."""
    return isinstance(cell, (int, float)) and math.isfinite(cell)


def short(value: float) -> str:
    """Return a number for people."""
    if isinstance(value, int):
        return f"{value:,}"
    if 0 < abs(value) < _TOO_SMALL:
        return f"{value:.0e}"
    return f"{value:.3f}" if abs(value) < 1000 else f"{value:,.0f}"


# --- of a run ----------------------------------------------------------------------------------------------


def told(part: Part | None, split: Split, name: str) -> Cell:
    """Return one number of a site in a round, or why there is none.

    Args:
        part: the site's; None if it was not asked.
        name: a column of ``metrics.csv``, or ``loss``.
    """
    if part is None:
        return NOT_ASKED
    if (row := part.row(split)) is None:
        return NO_ANSWER
    if name not in row.numbers:
        return NOT_SCORED
    value = row.numbers[name]
    return NOT_REPORTED if value is None else value


def by_aggregate(view: RunView, split: Split, name: str, title: str) -> Table:
    """Return one number of each aggregate at each site, and its mean over the sites that reported it."""
    sites = view.configuration.sites
    rows: list[list[Cell]] = []
    for of_round in view.rounds:
        cells = [told(of_round.sites.get(site), split, name) for site in sites]
        if any(isinstance(cell, float) or cell == NOT_REPORTED for cell in cells):
            rows.append([of_round.received_aggregate, *cells, _mean(cells)])
    caption = f"{title} of the aggregate of each round on each site's {split} images"
    return Table(f"{name.replace('_', '-')}-{split}", caption, ("aggregate", *sites, "mean over sites"), rows)


def as_in_papers(view: RunView, aggregate: int, split: Split) -> Table:
    """Return the scores of one aggregate: a column per site, a row per score, with the standard deviation if known.

    The last column is the mean and the population standard deviation over the sites that reported the score. Scores of
    single classes have none where each site has classes of its own. A score that no site reported has no row, unless it
    is the main one; nor has ε, which is of training.
    """
    sites, score = view.configuration.sites, view.score
    found = view.receivers(aggregate)
    names = {name for part in found.values() if (row := part.row(split)) for name in row.numbers}
    images = [images_cell(found.get(site), split) for site in sites]
    rows: list[list[Cell]] = [["images", *images, None]] if names else []
    support = _support(found, sites, split, score)
    rows += support
    shown = []

    def is_apart(name: str) -> bool:
        return view.has_own_classes and is_of_class(name)

    for name in _main_first(names - {EPSILON}, score):
        means = [told(found.get(site), split, name) for site in sites]
        if name != score and not any(isinstance(mean, float) for mean in means):
            continue
        shown.append(name)
        stds = [told(found.get(site), split, _std_of(name)) for site in sites]
        over_sites = None if is_apart(name) else _over_sites(means)
        rows.append([_heading(name, score), *map(_with_spread, means, stds), over_sites])
    caption = (
        f"The aggregate of round {aggregate} on each site's {split} images. After ±: in a site's column the standard "
        "deviation over its images, in the last column that over the sites; both divide by the number, not by one less"
    )
    if any(isinstance(row[-1], Partly) for row in rows):
        caption += "; in brackets: how many of the sites reported the score, where not all did"
    header = ("score", *sites, "mean over sites")
    narrow = [NARROW] if any(INTERVAL in str(row[0]) for row in support) else []
    own = [_OWN_CLASSES] if any(map(is_apart, shown)) else []
    notes = (*_meanings(shown, score), *own, *_classes_of_means(found, split), *narrow)
    return Table(f"all-scores-{split}", caption, header, rows, notes)


def _over_sites(cells: Sequence[Cell]) -> Cell:
    """Return the mean over the sites that reported a score, and how many these are; one value has no deviation."""
    known = [cell for cell in cells if isinstance(cell, float)]
    if not known:
        return NOT_REPORTED
    mean = Spread(*mean_and_std(known)) if len(known) > 1 else known[0]
    return mean if len(known) == len(cells) else Partly(mean, len(known), len(cells))


def _support(found: Mapping[str, Part], sites: Sequence[str], split: Split, score: str) -> list[list[Cell]]:
    """Return what the sites tell of what their scores are over: images of each class, and the main one's interval."""
    told = {site: row for site in sites if site in found and (row := found[site].row(split))}
    classes = sorted({number for row in told.values() for number in row.classes}, key=int)
    rows: list[list[Cell]] = [
        [f"images of class {number}", *(_of_class(told.get(site), number) for site in sites), None]
        for number in classes
    ]
    intervals = [interval_text(told.get(site), score) for site in sites]
    if any(isinstance(each, str) for each in intervals):
        rows.append([f"{score_title(score)} {INTERVAL}", *intervals, None])
    return rows


def _classes_of_means(found: Mapping[str, Part], split: Split) -> list[str]:
    """Return over which classes each site's means over classes are, as far as it tells."""
    told = {site: row.classes for site, part in found.items() if (row := part.row(split)) and row.classes}
    of_sites = "; ".join(f"{site} {', '.join(classes)}" for site, classes in told.items())
    return [f"means over classes cover those of which a site has images; reported: {of_sites}"] if told else []


def _of_class(row: Row | None, number: str) -> Cell:
    return NOT_REPORTED if row is None else row.classes.get(number, NOT_REPORTED)


def interval_text(row: Row | None, score: str) -> Cell:
    """Return a score ± 1.96 standard errors, or that nobody tells; nothing where they are 0."""
    if row is None or None in (row.scores.get(score), row.scores.get(error_of(score))):
        return NOT_REPORTED
    found = row.interval(score)
    return range_text(found) if found else None


def of_heldout(scores: Mapping[str, float | None], images: int, score: str) -> Table:
    """Return what the held-out images gave; ``score`` is the run's main one."""
    rows: list[list[Cell]] = []
    shown = _main_first(scores, score)
    for name in shown:
        value: Cell = UNDEFINED if scores[name] is None else scores[name]
        rows.append([_heading(name, score), _with_spread(value, scores.get(_std_of(name)))])
    caption = f"Scores over {pluralize(images, 'held-out image')}. After ±: the standard deviation over them"
    return Table("heldout-scores", caption, ("score", "value"), rows, _meanings(shown, score))


def every_score(view: RunView) -> Table:
    """Return one row for each number that a site could have reported."""
    frame = view.frame()
    rows = [
        [*place, images, name, *((None, NOT_REPORTED.why) if math.isnan(value) else (value, ""))]
        for *place, images, name, value in frame.itertuples(index=False, name=None)
    ]
    caption = "Every score of every aggregate at every site"
    return Table("scores", caption, (*map(str, frame.columns), "why_empty"), rows)


def verdicts(view: RunView) -> Table:
    """Return what became of every answer."""
    names = ("status", "score", "tolerance", "theta", "weight", "epsilon", "reason")
    rows = [
        [of_round.round, site, *(getattr(part, name) for name in names)]
        for of_round, site, part in view.parts()
        if part.status
    ]
    return Table("verdicts", "Every verdict and its reason", ("round", "site", *names), rows)


def of_rounds(view: RunView, key: str, name: str, caption: str) -> Table:
    """Return one number of every verdict by its key, sites as columns."""
    sites = view.configuration.sites
    rows: list[list[Cell]] = []
    for of_round in view.rounds:
        cells = [_of_verdict(of_round.sites.get(site), key) for site in sites]
        if any(isinstance(cell, float) for cell in cells):
            rows.append([of_round.round, *cells])
    return Table(name, caption, ("round", *sites), rows)


def _of_verdict(part: Part | None, key: str) -> Cell:
    if part is None:
        return NOT_ASKED
    value: float | None = getattr(part, key)
    return Missing(part.status or "no verdict yet") if value is None else value


def bytes_by_site(view: RunView) -> Table:
    """Return what each site received and sent in the whole run."""
    rows = [[site, total.down, total.up] for site, total in view.bytes.items()]
    return Table("bytes", "Bytes of all messages of the run", ("site", "bytes to it", "bytes from it"), rows)


def people(view: RunView) -> Table:
    """Return what each site said to the run."""
    rows: list[list[Cell]] = []
    for site, said in view.sites.items():
        answer = {None: "has not answered", True: "agreed", False: "declined"}[said.agrees]
        if said.withdrew:
            answer += ", then withdrew" if said.ended == "withdrawn" else ", withdrew when the run was over"
        images = ", ".join(f"{split} {count}" for split, count in said.images.items())
        rows.append([site, answer, images or None, said.withdrew or said.reason])
    return Table("sites", "What each site said to the run", ("site", "answer", "images", "reason"), rows)


def _mean(cells: Iterable[Cell]) -> Cell:
    known = [cell for cell in cells if isinstance(cell, float)]
    return mean_and_std(known)[0] if known else NOT_REPORTED


def images_cell(part: Part | None, split: Split) -> Cell:
    """Return over how many images a site's scores are, or why that is not reported."""
    row = part.row(split) if part else None
    if row is None:
        return NO_ANSWER if part else NOT_ASKED
    return int(row.images) if row.images.isdecimal() else row.images


def _with_spread(mean: Cell, std: Cell) -> Cell:
    return Spread(mean, std) if isinstance(mean, float) and isinstance(std, float) else mean


def score_title(name: str) -> str:
    """Return what people call a score, by its column of ``metrics.csv``."""
    return name.removesuffix("_mean")


def _main_first(names: Iterable[str], score: str) -> list[str]:
    """Return the names of the main score, the loss and the others in order, without the deviations of means."""
    listed = set(names)
    scores = {name for name in listed if not name.endswith("_std") or f"{name.removesuffix('_std')}_mean" not in listed}
    return sorted(scores, key=lambda name: (score_title(name) != score_title(score), name != "loss", name))


def _heading(name: str, score: str) -> MainScore | str:
    title = score_title(name)
    return MainScore(title) if title == score_title(score) else title


def _meanings(names: Iterable[str], score: str) -> tuple[str, ...]:
    return meanings(map(score_title, names), score_title(score))


def _std_of(name: str) -> str:
    """Return the column that may hold a mean's standard deviation; that of no other score exists."""
    return f"{name.removesuffix('_mean')}_std" if name.endswith("_mean") else ""


# --- cells -------------------------------------------------------------------------------------------------


def _csv_cell(cell: Cell) -> str:
    match cell:
        case None | Missing():
            return ""
        case Spread():
            return f"{cell.mean:.3f} ± {cell.std:.3f}"
        case Partly():
            return f"{_csv_cell(cell.number)} ({cell.values} of {cell.of})"
        case float():
            return decimal_text(cell)
        case int():
            return str(cell)
        case str():
            return uncomputed(cell)
        case MainScore():
            return uncomputed(cell.name)


def _shown_cell(cell: Cell) -> ShownCell:
    match cell:
        case None:
            return ShownCell("–", "soft")
        case Missing():
            return ShownCell(cell.why, "soft")
        case Spread():
            return ShownCell(f"{cell.mean:.3f} ± {cell.std:.3f}", "number")
        case Partly():
            return ShownCell(f"{_shown_cell(cell.number).text} ({cell.values} of {cell.of})", "number")
        case int() | float():
            return ShownCell(short(cell), "number")
        case str():
            return ShownCell(cell, "long" if len(cell) > _LONG else "")
        case MainScore():
            return ShownCell(f"{cell.name} (main score)", "main")
