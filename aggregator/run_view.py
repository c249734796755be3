"""One run as its work directory shows it: read here once, and drawn by all that tell of it.

``status``, the dashboard, the report, ``compare``, the model card and the tracking sinks differ in what they show, not
in what they read. A view is plain values of one moment, of a run that goes on as of one that ended. What a site
withheld, what is undefined and what has not come yet are None, never 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggregator.same_images import TestImages, same_test_images
from aggregator.site import open_ledger
from aggregator.store import RunStore, withdrawal_of
from shared.errors import ConfigurationError
from shared.exchange.encryption import EncryptionKey
from shared.exchange.ledger import readable_tables
from shared.exchange.mirror import Mirror
from shared.exchange.names import MANIFEST, MessageRef
from shared.exchange.order import Ending, consent_of, ending_of
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.tables import (
    IMAGES_OF,
    RECEIVED_SPLITS,
    MetricsRow,
    Split,
    difference_of,
    error_of,
    is_declared,
    is_support,
)
from shared.learning.choice import Tables, received_rows, reported_scores
from shared.learning.gain import Gain, gains
from shared.learning.metrics import OF_CLASS, mean_over_sites
from shared.learning.outcome import Outcome, outcome_of, standstills
from shared.learning.tasks import SELECTION_SCORES, TERMS, terms_of
from shared.learning.tasks.terms import EXTERNAL

if TYPE_CHECKING:
    from pandas import DataFrame

_NORMAL_95 = 1.96
"""Standard errors to either side: 95 % of a normal distribution, which few patients do not follow."""
INTERVAL = f"± {_NORMAL_95} standard errors"

_NUMBERS = ("score", "tolerance", "theta", "epsilon", "weight")
"""Of a verdict."""


# --- what a view holds -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bytes:
    """What was sent to a site, and what came from it."""

    down: int | None = None
    up: int | None = None


@dataclass(frozen=True)
class Support:
    """What a site's score is over, which stands beside it wherever sites are compared.

    Args:
        images: as count text.
        interval: the score ± 1.96 standard errors, if that is reported and not 0.
    """

    images: str
    interval: tuple[float, float] | None

    @property
    def text(self) -> str:
        """The images and the interval in words, for people."""
        interval = f"{range_text(self.interval)} by {INTERVAL}, " if self.interval else ""
        return f"{interval}{self.images} images"


def range_text(interval: tuple[float, float]) -> str:
    """Return an interval of scores, for people."""
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def signed_range(interval: tuple[float, float]) -> str:
    """Return an interval of differences, for people."""
    return f"{interval[0]:+.3f} to {interval[1]:+.3f}"


@dataclass(frozen=True)
class Row:
    """What a site reported of the model that it received; ``images`` as count text."""

    images: str
    loss: float | None
    scores: Mapping[str, float | None]

    @property
    def numbers(self) -> dict[str, float | None]:
        """The loss and every score, by name."""
        return {"loss": self.loss, **{name: value for name, value in self.scores.items() if not is_support(name)}}

    @property
    def classes(self) -> dict[str, int]:
        """How many of the images are of each class that the site tells of."""
        return {
            name.removeprefix(IMAGES_OF): int(images)
            for name, images in self.scores.items()
            if name.startswith(IMAGES_OF) and images is not None
        }

    def interval(self, score: str) -> tuple[float, float] | None:
        """Return a score from 0 to 1 ± 1.96 standard errors; None if the standard error is not reported, or is 0."""
        value, error = self.scores.get(score), self.scores.get(error_of(score))
        if value is None or not error:
            return None
        return max(0.0, value - _NORMAL_95 * error), min(1.0, value + _NORMAL_95 * error)

    def support(self, score: str) -> Support:
        """Return what a score is over."""
        return Support(self.images, self.interval(score))

    def difference(self, score: str) -> tuple[float, tuple[float, float] | None] | None:
        """Return how much greater a score is than the first model's, and the interval of ± 1.96 standard errors.

        The first model is the one that the run began with, on the same images. None if either number is not reported;
        no interval if the standard error is 0.
        """
        column = difference_of(score)
        value, error = self.scores.get(column), self.scores.get(error_of(column))
        if value is None or error is None:
            return None
        return value, (value - _NORMAL_95 * error, value + _NORMAL_95 * error) if error else None


@dataclass(frozen=True)
class Part:
    """One site's part in one round: what it reported, its verdict, and what was exchanged.

    ``answered`` is by the site's clock, all else by the aggregator's. ``seconds``: from signing the round to signing
    its verdict, so alike for all who were asked; ``seconds_to_answer``: until the site's answer was here. Bytes are
    those of the messages, manifests included.
    """

    validation: Row | None = None
    test: Row | None = None
    status: str | None = None
    reason: str | None = None
    score: float | None = None
    tolerance: float | None = None
    theta: float | None = None
    epsilon: float | None = None
    weight: float | None = None
    bytes: Bytes = Bytes()
    asked: str | None = None
    answered: str | None = None
    settled: str | None = None
    seconds: int | None = None
    seconds_to_answer: int | None = None

    def row(self, split: Split) -> Row | None:
        """Return the scores that the site reported on one split; None if it reported none."""
        return self.validation if split == "validation" else self.test

    @property
    def times(self) -> tuple[float | None, float | None, float | None]:
        """When it was asked, answered and was settled, in seconds since 1970."""
        return _since_1970(self.asked), _since_1970(self.answered), _since_1970(self.settled)


@dataclass(frozen=True)
class Mean:
    """Of one score, its mean over the ``sites`` that reported it: sites alike (η = 1), and by their images (η = e)."""

    sites: int
    alike: float | None
    by_images: float | None


@dataclass(frozen=True)
class Round:
    """One opened round: what each site that was asked did, and the means of what they reported."""

    round: int
    trains: bool
    received_aggregate: int
    sites: Mapping[str, Part]
    means: Mapping[Split, Mapping[str, Mean]]

    @property
    def is_closed(self) -> bool:
        """Whether the verdicts are fixed, of all who were asked."""
        return any(part.status for part in self.sites.values())

    @property
    def began(self) -> float | None:
        """When it was first signed for a site, in seconds since 1970."""
        return min((asked for part in self.sites.values() if (asked := part.times[0])), default=None)

    @property
    def seconds(self) -> int | None:
        """How long it was open: until its last verdict."""
        return max((part.seconds for part in self.sites.values() if part.seconds is not None), default=None)

    @property
    def settled(self) -> float | None:
        """When its last verdict was signed, in seconds since 1970."""
        return max((settled for part in self.sites.values() if (settled := part.times[2])), default=None)


@dataclass(frozen=True)
class Participant:
    """What one site said to the run; ``images`` as count text by split, ``withdrew``: why."""

    agrees: bool | None
    reason: str | None
    images: Mapping[Split, str]
    withdrew: str | None
    ended: Ending | None


@dataclass(frozen=True)
class RunView:
    """One run.

    Args:
        aborted: why it ended without having started, if so.
        score: the column of ``metrics.csv`` by which the model is chosen; empty while nobody knows it: of a plug-in's
            task, whose run an older version began.
        card: of the chosen model.
        bytes: of all messages of the run, by enrolled site.
        standstills: what keeps it from coming to anything while it goes on, a sentence each.
        gains: by site, what it gains over training alone, in a run with a baseline that has ended.
        test_images: by site, whether its test images are those of the run whose model a paired run began with; of none
            if nobody knows.
    """

    configuration: RunConfiguration
    outcome: Outcome | None
    aborted: str | None
    score: str
    card: FinalCard | None
    sites: Mapping[str, Participant]
    rounds: Sequence[Round]
    bytes: Mapping[str, Bytes]
    standstills: Sequence[str] = ()
    gains: Mapping[str, Gain] = field(default_factory=dict)
    test_images: Mapping[str, TestImages] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return its name and its extent: a notebook shows this, and a frame the rest."""
        return f"RunView(run={self.run!r}, sites={[*self.sites]}, rounds={len(self.rounds)})"

    @property
    def run(self) -> str:
        """Its name."""
        return self.configuration.run

    @property
    def has_own_classes(self) -> bool:
        """Whether each site has classes of its own, so that class 3 of one is another than class 3 of the next."""
        return _has_own_classes(self.configuration)

    @property
    def chosen_round(self) -> int | None:
        """The round whose aggregate was chosen; 0: the model that the run began with; None: none was chosen yet."""
        return self.card.chosen_round if self.card else None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or will never start."""
        return self.card is not None or self.aborted is not None

    def parts(self) -> Iterator[tuple[Round, str, Part]]:
        """Yield every site in every round, in order."""
        for of_round in self.rounds:
            for site, part in of_round.sites.items():
                yield of_round, site, part

    def verdicts(self) -> Counter[str]:
        """Return how often each verdict was given."""
        return Counter(part.status for *_, part in self.parts() if part.status)

    def scoring(self, aggregate: int) -> Round | None:
        """Return the round in which the sites received an aggregate and scored it, if it is open yet."""
        return next((each for each in self.rounds if each.received_aggregate == aggregate), None)

    def receivers(self, aggregate: int) -> dict[str, Part]:
        """Return the sites that received an aggregate, in the run's order, with their part in that round."""
        found = self.scoring(aggregate)
        return {site: found.sites[site] for site in self.configuration.sites if site in found.sites} if found else {}

    def frame(self) -> DataFrame:
        """Return a row for each number that a site could report of a model that it received; NaN if it did not."""
        from pandas import DataFrame  # noqa: PLC0415  (who asks for no frame need not load it)

        rows = [
            (of_round.received_aggregate, of_round.round, site, split, row.images, name, value)
            for of_round, site, part in self.parts()
            for split in RECEIVED_SPLITS
            if (row := part.row(split))
            for name, value in row.numbers.items()
        ]
        columns = ["aggregate", "round", "site", "split", "images", "score", "value"]
        return DataFrame(rows, columns=columns).astype({"value": float})

    def decisions(self) -> DataFrame:
        """Return a row for each site in each round: its verdict, and every number of it; NaN where there is none."""
        from pandas import DataFrame  # noqa: PLC0415  (as above)

        rows = [
            (of_round.round, site, part.status, *(getattr(part, name) for name in _NUMBERS), part.reason)
            for of_round, site, part in self.parts()
        ]
        return DataFrame(rows, columns=["round", "site", "status", *_NUMBERS, "reason"]).astype(
            dict.fromkeys(_NUMBERS, float)
        )


def _since_1970(time: str | None) -> float | None:
    return datetime.fromisoformat(time).timestamp() if time else None


# --- how it is read ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OpenedRun:
    """What a work directory holds of a run, opened: the run's files, and the exchange with each enrolled site."""

    work: Path
    store: RunStore
    run: RunConfiguration
    ledgers: Mapping[str, Mirror]


def open_run_files(
    work: Path,
    store: RunStore,
    own_key: EncryptionKey | None = None,
    *,
    known: dict[str, Mirror | None] | None = None,
) -> OpenedRun:
    """Open what the work directory holds of a run; nothing is sent or fetched.

    Args:
        own_key: the aggregator's, where it matters that a payload was encrypted; else no secret is read.
        known: what was opened for other runs, by site; what is opened for this one joins it.

    Raises:
        DropfedError: what is kept of the run is damaged.
    """
    run = store.configuration()
    known = {} if known is None else known
    for site in run.sites:
        if site not in known:
            known[site] = open_ledger(work / "sites" / site, encryption_key=own_key)
    return OpenedRun(work, store, run, {site: ledger for site in run.sites if (ledger := known[site]) is not None})


def view_run(work: Path, store: RunStore, known: dict[str, Mirror | None] | None = None) -> RunView:
    """Return a run as it stands.

    Args:
        known: as ``open_run_files`` takes it.

    Raises:
        DropfedError: what is kept of the run is damaged.
    """
    return view_of(open_run_files(work, store, known=known))


def view_of(opened: OpenedRun, *, with_open_round: bool = True) -> RunView:
    """Return an opened run as it stands.

    Args:
        with_open_round: read the tables of the open round too; without them a damaged one stops nobody.
    """
    store, run, ledgers, card = opened.store, opened.run, opened.ledgers, opened.store.card()
    numbers = range(1, store.round_no + 1)
    known = card or store.told_by_code()
    score = known.score_name if known else SELECTION_SCORES.get(run.task, "")
    verdicts = {number: closed for number in numbers if (closed := store.verdicts(number)) is not None}
    tables = readable_tables(ledgers, store.run, numbers if with_open_round else verdicts)
    scores = reported_scores(received_rows(tables, "validation"), score)
    gained = gains(tables, card.chosen_round, score) if card else {}
    of_closed = {aggregate: found for aggregate, found in scores.items() if aggregate + 1 in verdicts}
    asked = {number: store.participants(number) for number in numbers}
    return RunView(
        configuration=run,
        outcome=outcome_of(run, card, store.aborted(), scores, gained),
        aborted=store.aborted(),
        score=score,
        card=card,
        sites={site: _participant(ledgers.get(site), run.run) for site in run.sites},
        rounds=_rounds(run, asked, verdicts, tables, ledgers),
        bytes={site: _bytes_of_run(ledger, run.run, numbers) for site, ledger in ledgers.items()},
        standstills=[] if store.is_over else [*standstills(run, verdicts, of_closed, score).values()],
        gains=gained,
        test_images=same_test_images(opened.work, run, ledgers) if run.paired else {},
    )


def view_of_tables(
    run: RunConfiguration,
    card: FinalCard,
    tables: Tables,
    verdicts: Mapping[int, Mapping[str, Verdict]],
    images: Mapping[str, Mapping[Split, str]],
) -> RunView:
    """Return a run that has ended, as its tables and verdicts tell it alone: nobody knows times, bytes and consents.

    Args:
        tables, verdicts: of every round.
        images: as count text, by site and split.
    """
    scores = reported_scores(received_rows(tables, "validation"), card.score_name)
    gained = gains(tables, card.chosen_round, card.score_name)
    return RunView(
        configuration=run,
        outcome=outcome_of(run, card, None, scores, gained),
        aborted=None,
        score=card.score_name,
        card=card,
        sites={site: Participant(None, None, images[site], None, None) for site in run.sites},
        rounds=_rounds(run, {number: [*of_round] for number, of_round in verdicts.items()}, verdicts, tables, {}),
        bytes={},
        gains=gained,
    )


def _participant(ledger: Mirror | None, run: str) -> Participant:
    consent = consent_of(ledger, run) if ledger else None
    return Participant(
        agrees=consent.agrees if consent else None,
        reason=consent.reason if consent else None,
        images=dict(consent.images) if consent else {},
        withdrew=withdrawal_of(ledger, run) if ledger else None,
        ended=ending_of(ledger, run) if ledger else None,
    )


def _rounds(
    run: RunConfiguration,
    asked: Mapping[int, Sequence[str]],
    verdicts: Mapping[int, Mapping[str, Verdict]],
    tables: Tables,
    ledgers: Mapping[str, Mirror],
) -> list[Round]:
    rows = {split: received_rows(tables, split) for split in RECEIVED_SPLITS}
    has_own_classes = _has_own_classes(run)
    return [
        Round(
            round=number,
            trains=number <= run.rounds,
            received_aggregate=number - 1,
            sites={
                site: _part(
                    ledgers.get(site),
                    _refs(run.run, number),
                    _told(verdicts, number, site),
                    (_row(rows["validation"], number - 1, site), _row(rows["test"], number - 1, site)),
                )
                for site in sites
            },
            means={
                split: _means(of_split.get(number - 1, {}), has_own_classes=has_own_classes)
                for split, of_split in rows.items()
            },
        )
        for number, sites in asked.items()
    ]


def _told(verdicts: Mapping[int, Mapping[str, Verdict]], number: int, site: str) -> dict[str, Any]:
    """Return what a round's verdict on a site tells, and the next one's of the same answer, if that came late."""
    verdict, after = (verdicts.get(each, {}).get(site) for each in (number, number + 1))
    if verdict is None:
        return {}
    numbers = {name: float(text) for name in _NUMBERS if (text := getattr(verdict, name)) is not None}
    numbers |= {"weight": verdict.share} if verdict.late and verdict.share else {}
    is_counted = after is not None and after.late is not None and after.share > 0
    reason = f"counted in round {number + 1}" if is_counted else verdict.reason
    return {"status": verdict.status, "reason": "; ".join(filter(None, (reason, verdict.of_late))), **numbers}


def _part(
    ledger: Mirror | None,
    refs: Sequence[MessageRef],
    told: Mapping[str, Any],
    rows: tuple[Row | None, Row | None],
) -> Part:
    if ledger is None:
        return Part(*rows, **told)
    to_site, from_site, settling = refs
    asked, answered, settled = (message.manifest.created if (message := ledger.message(ref)) else None for ref in refs)
    began, ended = _since_1970(asked), _since_1970(settled)
    here = ledger.path(from_site, MANIFEST).stat().st_mtime if answered else None
    if here and ended and int(here) > ended and told.get("status") != "late":
        here = None  # of a copied directory: its files have times of their own
    return Part(
        *rows,
        **told,
        bytes=Bytes(down=_size(ledger, to_site, settling), up=_size(ledger, from_site)),
        asked=asked,
        answered=answered,
        settled=settled,
        seconds=_between(began, ended),
        seconds_to_answer=_between(began, here),
    )


def _between(began: float | None, ended: float | None) -> int | None:
    """Return how many seconds passed; None where a time is not known, or a clock was put back."""
    return int(ended - began) if began and ended and ended >= began else None


def _row(rows: Mapping[int, Mapping[str, MetricsRow]], aggregate: int, site: str) -> Row | None:
    row = rows.get(aggregate, {}).get(site)
    return Row(row.images, row.loss, row.scores) if row else None


def _has_own_classes(run: RunConfiguration) -> bool:
    """Return whether each site has classes of its own; False for a plug-in's task, of which that is not known."""
    if run.task not in TERMS or run.task == EXTERNAL:
        return False
    try:
        return terms_of(run.task).options(run.task_options).class_names is None
    except ConfigurationError:  # another version's
        return False


def is_of_class(score: str) -> bool:
    """Return whether a score is dropfed's own of the images of a single class."""
    return score.startswith(OF_CLASS) and is_declared(score)


def _means(rows: Mapping[str, MetricsRow], *, has_own_classes: bool) -> dict[str, Mean]:
    means = {}
    for name in sorted({name for row in rows.values() for name in row.scores if not is_support(name)}):
        told = [(value, row.images) for row in rows.values() if (value := row.scores.get(name)) is not None]
        if has_own_classes and is_of_class(name):
            means[name] = Mean(sites=len(told), alike=None, by_images=None)
            continue
        values = [value for value, _ in told]
        images = [int(count) if count.isdecimal() else 0 for _, count in told]
        means[name] = Mean(
            sites=len(told),
            alike=mean_over_sites(values, [1] * len(told), 1) if told else None,
            by_images=mean_over_sites(values, images, math.e) if min(images, default=0) else None,
        )
    return means


def _refs(run: str, number: int) -> tuple[MessageRef, MessageRef, MessageRef]:
    """Return where the messages of a round lie: to the site, from it, and the verdict."""
    return MessageRef("round", run, number), MessageRef("update", run, number), MessageRef("verdict", run, number)


def _bytes_of_run(ledger: Mirror, run: str, numbers: Sequence[int]) -> Bytes:
    refs = [ref for number in numbers for ref in _refs(run, number)]
    up = [MessageRef("consent", run), *(ref for ref in refs if ref.kind == "update"), MessageRef("withdrawal", run)]
    ends = MessageRef("final", run), MessageRef("abort", run)
    down = [MessageRef("offer", run), *(ref for ref in refs if ref.kind != "update"), *ends]
    return Bytes(down=_size(ledger, *down), up=_size(ledger, *up))


def _size(ledger: Mirror, *refs: MessageRef) -> int | None:
    """Return what the messages at these places weigh, files pruned since included; None if there is none."""
    there = [message for ref in refs if (message := ledger.message(ref))]
    sizes = [
        ledger.path(message.ref, MANIFEST).stat().st_size + sum(entry.size for entry in message.manifest.files.values())
        for message in there
    ]
    return sum(sizes) if sizes else None
