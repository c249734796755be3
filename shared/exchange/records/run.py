"""What a run is: ``run.yaml``, and ``config.yaml`` of each of its rounds."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from shared.exchange.forms import text_like
from shared.exchange.names import MAX_ROUND, ROUND_CONFIGURATION, RUN_CONFIGURATION, Name
from shared.exchange.records.values import IF_SAID, Count, Digest, Payload, Record, ScoreColumn
from shared.exchange.records.wire import PLAIN, Encrypt, Wire
from shared.exchange.retention import KEEP_PATTERN
from shared.plurals import pluralize


class Falling(Record):
    """A learning rate that falls by a factor, over and over; ``shared/learning/schedules.py`` has the formulas."""

    shape: Literal["cycle", "triangle"] = "cycle"
    initial: Annotated[float, Field(gt=0, le=10)] = 0.1
    factor: Annotated[float, Field(gt=0, le=1)] = 0.1
    period: Annotated[int, Field(ge=1, description="rounds until it begins anew, or turns")] = 3


class Line(Record):
    """A learning rate that goes from ``initial`` towards ``final`` in equal steps, over and over."""

    shape: Literal["line"]
    initial: Annotated[float, Field(gt=0, le=10)]
    final: Annotated[float, Field(gt=0, le=10)]
    period: Annotated[int, Field(ge=1, description="rounds until it begins anew")]
    hold: Annotated[int, Field(ge=1, description="rounds between two steps")] = 1


class Cosine(Record):
    """A learning rate that rises in equal steps to ``initial``, falls along half a cosine towards ``final``, and begins
    anew.
    """

    shape: Literal["cosine"]
    initial: Annotated[float, Field(gt=0, le=10)]
    final: Annotated[float, Field(gt=0, le=10)]
    period: Annotated[int, Field(ge=1, description="rounds until it begins anew")]
    warm_up: Annotated[int, Field(ge=0, description="of them, the rounds in which it rises")] = 0

    @model_validator(mode="after")
    def _falls(self) -> Cosine:
        if self.warm_up >= self.period:
            raise ValueError("warm_up: leaves no round of the period to fall in; lower it")
        if self.initial / (self.warm_up + 1) == 0:
            raise ValueError("initial: begins with a rate of 0; raise it")
        return self


def _by_default_a_cycle(rate: Any) -> Any:
    return {"shape": "cycle", **rate} if isinstance(rate, dict) else rate


LearningRate = Annotated[Falling | Line | Cosine, Field(discriminator="shape"), BeforeValidator(_by_default_a_cycle)]
"""How the learning rate goes from round to round."""


class Mean(Record):
    """The weighted mean."""

    rule: Literal["mean"] = "mean"


class Median(Record):
    """The median of each number."""

    rule: Literal["median"]


class TrimmedMean(Record):
    """The mean of each number without the greatest and the least."""

    rule: Literal["trimmed_mean"]
    cut: Annotated[float, Field(ge=0.001, lt=0.5, description="share of the sites, at each end")]


class Krum(Record):
    """The mean of those models that lie closest to the others."""

    rule: Literal["krum"]
    hostile: Annotated[int, Field(ge=1, description="so many sites may lie")]
    keep: Annotated[int, Field(ge=1, description="so many models count")] = 1


Combination = Annotated[Mean | Median | TrimmedMean | Krum, Field(discriminator="rule")]
"""How the accepted models are combined; what each rule does: ``shared/learning/combinations``."""


class Privacy(Record):
    """What a run's configuration says about privacy; exactly one of ``target_epsilon`` and ``noise_multiplier``.

    Args:
        max_grad_norm: C, to which each image's gradient is clipped.
        delta: δ, below one in the number of a site's training images.
        target_epsilon: ε that no site exceeds in the whole run; each takes the noise that this needs.
        noise_multiplier: σ, the noise's deviation over C; what ε comes to differs from site to site.
    """

    max_grad_norm: Annotated[float, Field(gt=0, le=1e6)]
    delta: Annotated[float, Field(gt=0, le=0.01)]
    target_epsilon: Annotated[float | None, Field(ge=0.01, le=100)] = None
    noise_multiplier: Annotated[float | None, Field(ge=0.2, le=1e4)] = None

    @model_validator(mode="after")
    def _says_one_of_two(self) -> Privacy:
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("target_epsilon, noise_multiplier: give exactly one of them; the other follows from it")
        return self


class BelowLast(Record):
    """A tolerance relative to the last aggregate: how far below the model that sites received an answer may score."""

    below_last: Annotated[float, Field(ge=0, lt=1)]


USUAL_TOLERANCE = BelowLast(below_last=0.2)
"""Of a run that does not say it, and what ``validate`` proposes: the least that was seen to omit no honest site whose
camera is another than that of the held-out images; see ``benchmarks/tolerance.py`` and docs/adr/0023.
"""


def _which_tolerance(value: Any) -> str:
    return "[relative]" if isinstance(value, dict | BelowLast) else "[absolute]"


Tolerance = Annotated[
    Annotated[float, Field(ge=0, lt=1), Tag("[absolute]")] | Annotated[BelowLast, Tag("[relative]")],
    Discriminator(_which_tolerance),
]
"""What a site's score must exceed: a number, or one that follows from the last aggregate's score on the same images."""
DistributionName = Annotated[str, text_like(r"[a-z0-9]+(-[a-z0-9]+){0,15}", "a distribution's normalised name")]
VersionText = Annotated[str, text_like(r"[0-9A-Za-z.+!_-]{1,64}", "a version, as in 1.0.2")]
Hours = Annotated[float, Field(gt=0, le=87600, description="ten years at most")]


class Start(Record):
    """The chosen model of an earlier run, with which training begins.

    Args:
        name: what the aggregator's people know it by: the run's name, or that of a folder in ``weights``.
        sha256: of its ``model.safetensors``.
        start_sha256: of its ``start.safetensors``; None where the run has nothing that comes but once.
    """

    name: Name
    sha256: Digest
    start_sha256: Digest | None = None


FIXED_COLUMNS = ("round", "epoch", "split", "images", "learning_rate", "loss")
"""The columns with which every table of scores begins."""


class StopAfter(Record):
    """Ends a run before its last round: once so many rounds in a row gained too little.

    Args:
        rounds: how many.
        gain: what the mean validation score has to rise by within them.
    """

    rounds: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    gain: Annotated[float, Field(ge=0, lt=1)] = 0.0


class Plugin(Record):
    """A wheel that a run needs at both ends, as whoever launches the run has it installed; no code travels.

    Args:
        sha256: of its files; ``shared/learning/plugins.py: fingerprint`` says how.
        requires: its main dependencies by name, each with the version there.
    """

    name: DistributionName
    version: VersionText
    sha256: Digest
    requires: dict[DistributionName, VersionText] = {}

    @property
    def wheel(self) -> tuple[str, str, str]:
        """What is one at both ends, and while a run lasts. What it requires, dropfed itself too, is told alone."""
        return self.name, self.version, self.sha256

    @property
    def in_full(self) -> str:
        """As it is told to whoever decides about it, or checks what became of it."""
        beside = ", ".join(f"{name} {version}" for name, version in self.requires.items())
        return f"{self.name} {self.version}, {self.sha256}{f' (beside {beside})' if beside else ''}"


class Range(Record):
    """Between what a score lies; None: it is not bounded there."""

    lowest: float | None = None
    highest: float | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value lies there."""
        return (self.lowest is None or value >= self.lowest) and (self.highest is None or value <= self.highest)


class ExternalTrainer(Record):
    """Sites train by a program that each installed, and not by PyTorch; no program travels.

    Args:
        name: what each site's policy knows its program by.
        sites: which train so; None: all.
        options: numbers that every program is told.
    """

    name: Name
    sites: Annotated[list[Name] | None, Field(min_length=1, max_length=1000)] = None
    options: Annotated[dict[ScoreColumn, float], Field(max_length=64)] = {}


class RunConfiguration(Payload):
    """Everything that decides a run's result, apart from the data. ``RUN.yaml`` and ``run.yaml`` alike."""

    FILE: ClassVar[str] = RUN_CONFIGURATION

    run: Name
    task: Name
    method: Name
    sites: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    rounds: Annotated[
        int, Field(ge=0, le=MAX_ROUND - 1, description="of training; 0: the model that start names is scored alone")
    ]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    epochs: Annotated[int, Field(ge=1, le=1000, description="local epochs per round")] = 1
    batch_size: Annotated[int, Field(ge=2, le=4096)] = 8
    learning_rate: LearningRate = Falling()
    tolerance: Annotated[
        Tolerance | None, Field(description="what a site's score must exceed; null: models are not scored")
    ] = USUAL_TOLERANCE
    tolerance_score: Annotated[
        Name | None,
        IF_SAID,
        Field(description="by what a whole model is scored; left out of a run that does not say it"),
    ] = None
    sites_per_round: Annotated[int | None, Field(ge=1, description="sites asked in a round; None: all")] = None
    score_every: Annotated[
        int | None,
        IF_SAID,
        Field(ge=1, description="rounds from one that sites score to the next; left out of a run without it"),
    ] = None
    quorum: Annotated[int, Field(ge=1, description="sites needed to close a round at its deadline")] = 1
    consent_deadline_hours: Hours = 168.0
    round_deadline_hours: Hours = 24.0
    keep: Annotated[
        str,
        text_like(KEEP_PATTERN, "all, best, or last and a number, as in last 3"),
        Field(description="which tensor files stay"),
    ] = "all"
    task_options: dict[str, Any] = {}
    method_options: dict[str, Any] = {}
    augmentation: dict[str, Any] = {}
    split: dict[str, Any] = {}
    wire: Wire = PLAIN
    encrypt: Encrypt = "none"
    combination: Combination = Mean()
    privacy: Privacy | None = None
    start: Annotated[
        Start | None, IF_SAID, Field(description="the model that training begins with; left out of a run that has none")
    ] = None
    stop_after: Annotated[
        StopAfter | None,
        IF_SAID,
        Field(description="ends the run once nothing is gained; left out of one that has all its rounds"),
    ] = None
    plugins: Annotated[
        list[Plugin], IF_SAID, Field(max_length=16, description="wheels that it needs at both ends")
    ] = []
    scores: Annotated[
        dict[ScoreColumn, Range],
        IF_SAID,
        Field(max_length=64, description="columns beside those that the protocol describes"),
    ] = {}
    baseline: Annotated[
        Literal["local"] | None,
        IF_SAID,
        Field(description="local: each site also trains a model alone, which stays there; left out of a run without"),
    ] = None
    support: Annotated[
        bool,
        IF_SAID,
        Field(description="whether scores come with each class's images and a standard error; older runs lack it"),
    ] = False
    paired: Annotated[
        bool,
        IF_SAID,
        Field(description="whether sites compare each model with that of start; left out of a run that does not"),
    ] = False
    late: Annotated[
        Literal["next"] | None,
        IF_SAID,
        Field(description="next: an answer that comes once its round is closed counts in the next one; else in none"),
    ] = None
    trainer: Annotated[
        ExternalTrainer | None, IF_SAID, Field(description="a program outside dropfed; left out of a run that has none")
    ] = None

    @property
    def may_pass_over(self) -> bool:
        """Whether a round may ask fewer sites than there are."""
        return self.sites_per_round not in (None, len(self.sites))

    def program_at(self, site: str) -> str | None:
        """Return the name of the program that a site trains by; None of one that trains by PyTorch."""
        trainer = self.trainer
        return None if trainer is None or site not in (trainer.sites or self.sites) else trainer.name

    @model_validator(mode="after")
    def _consistent(self) -> RunConfiguration:
        if len(set(self.sites)) != len(self.sites):
            raise ValueError("sites: a site is named twice; name each once")
        if self.quorum > len(self.sites):
            raise ValueError(f"quorum: {self.quorum} is more than the {pluralize(len(self.sites), 'site')}; lower it")
        if self.sites_per_round is not None and not self.quorum <= self.sites_per_round <= len(self.sites):
            raise ValueError(
                f"sites_per_round: {self.sites_per_round} must be between the quorum, {self.quorum}, "
                f"and the {pluralize(len(self.sites), 'site')}; change it, or leave it out to ask all"
            )
        if self.trainer is not None and (strange := set(self.trainer.sites or ()).difference(self.sites)):
            raise ValueError(f"trainer: sites: {', '.join(sorted(strange))}: not among the run's sites; correct it")
        if taken := sorted(self.scores.keys() & set(FIXED_COLUMNS)):
            raise ValueError(f"scores: {taken[0]} is a column that every table has; call the score by another name")
        rate = self.learning_rate
        falls = min(rate.period, self.rounds)
        if isinstance(rate, Falling) and rate.initial * rate.factor**falls == 0:
            raise ValueError(
                f"learning_rate: falls to 0 within {pluralize(self.rounds, 'round')}; raise factor or shorten period"
            )
        return self


class RoundConfiguration(Payload):
    """``config.yaml``: what one site does in one round. ``epochs`` 0: validate only, send no model. ``seed``, in
    [0, 2^63), decides what is random in its training.
    """

    FILE: ClassVar[str] = ROUND_CONFIGURATION

    round: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    epochs: Annotated[int, Field(ge=0, le=1000)]
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    batch_size: Annotated[int, Field(ge=2, le=4096)]
    seed: Count
    augmentation: dict[str, Any]


def round_name(run: RunConfiguration, round_no: int) -> str:
    """Return what people call a round."""
    return f"round {round_no}" if round_no <= run.rounds else "the closing round"
