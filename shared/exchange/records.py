"""The contents of every record, as frozen, strictly checked models.

Numbers in JSON records are integers; floats travel as their shortest round-trip text (``Decimal text``),
so that canonical bytes do not depend on anybody's float printing. YAML records hold plain floats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from shared.doors import keys
from shared.doors.numbers import finite, whole
from shared.doors.tensor_file import MOST_DIMENSIONS, MOST_NUMBERS, count_of
from shared.errors import ActionRequiredError
from shared.exchange.forms import text_like
from shared.exchange.names import GLOBAL_MODEL, MAX_ROUND, SITE_MODEL, Kind, Name, is_weights
from shared.exchange.retention import KEEP_PATTERN
from shared.folder.address import checked_url
from shared.plurals import pluralize

_TIME_FORM = "%Y-%m-%dT%H:%M:%SZ"


def _finite_text(text: str) -> str:
    finite(text)
    return text


def _is_share(text: str) -> str:
    if not 0 <= finite(text) <= 1:
        raise ValueError("must be in [0, 1]")
    return text


def _is_one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of characters that can be printed")
    return text


def _real_time(text: str) -> str:
    try:
        is_time = datetime.strptime(text, _TIME_FORM).replace(tzinfo=UTC).strftime(_TIME_FORM) == text
    except ValueError:
        is_time = False
    if not is_time:
        raise ValueError("must be a time in UTC, as in 2026-11-21T09:30:00Z")
    return text


def _is_public_key(digits: str) -> str:
    keys.require_public(digits)
    return digits


def sentence(text: str) -> str:
    """Any text as a ``Sentence``: one line, nothing that cannot be printed, at most 1000 characters."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())[:1000]


Digest = Annotated[str, text_like(r"[0-9a-f]{64}", "64 hexadecimal digits, 0-9 and a-f")]
PublicKey = Annotated[Digest, AfterValidator(_is_public_key)]
Wrapped = Annotated[str, text_like(r"[0-9a-f]{208}", "208 hexadecimal digits, 0-9 and a-f")]
DecimalText = Annotated[str, AfterValidator(_finite_text)]
ShareText = Annotated[DecimalText, AfterValidator(_is_share)]
Sentence = Annotated[str, StringConstraints(max_length=1000), AfterValidator(_is_one_line)]
Time = Annotated[str, AfterValidator(_real_time)]
COUNT_TEXT = r"0|[1-9][0-9]{0,8}|fewer than ([2-9]|[1-9][0-9]{1,3})"
CountText = Annotated[str, StringConstraints(pattern=rf"^({COUNT_TEXT})$")]
Count = Annotated[int, Field(ge=0)]
RoundText = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,3})$")]
_PATH_PART = r"([A-Za-z_][A-Za-z0-9_]{0,63}|[0-9]{1,6})"
TensorName = Annotated[
    str,
    text_like(
        rf"(?=.{{1,200}}$){_PATH_PART}([./]{_PATH_PART})*",
        "a tensor's path, as in encoder.layer1.0.weight, at most 200 characters",
    ),
]


def most(count: str) -> int:
    """The most that a ``CountText`` can mean: of "fewer than 5", 4."""
    return whole(count.removeprefix("fewer than ")) - count.startswith("fewer than ")


def fewest(count: str) -> int:
    """The fewest that a ``CountText`` can mean: of "fewer than 5", none."""
    return 0 if count.startswith("fewer than ") else whole(count)


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


PROTOCOL: Final = 2
PROTOCOLS: Final = (1, 2)
Protocol = Annotated[Literal[1, 2], BeforeValidator(_no_truth_value)]  # True equals 1
"""What a folder is written in. Daemons speak ``PROTOCOL`` alone; an audit reads folders of protocol 1 for ever."""


class Record(BaseModel):
    """Base: unknown keys refused, types never coerced, values never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Numbers = Literal["float32", "bfloat16", "float16"]


class Wire(Record):
    """The form of the weights that rounds send; by default plain float32. What each says exactly: ``encoding.py``.

    Args:
        numbers: what each number is rounded to before it travels.
        difference: a site sends, of its trained numbers, the difference to those it received.
        compression: of each tensor; without loss.
    """

    numbers: Numbers = "float32"
    difference: bool = False
    compression: Literal["none", "zstd"] = "none"

    def of(self, kind: Kind, name: str) -> Wire:
        """The form of one file of a message: a run's form says nothing of other files than its rounds' weights."""
        if (kind, name) == ("round", GLOBAL_MODEL):
            return self.model_copy(update={"difference": False})
        return self if (kind, name) == ("update", SITE_MODEL) else PLAIN

    def __str__(self) -> str:
        return ", ".join([self.numbers, *["difference"] * self.difference, *["zstd"] * (self.compression == "zstd")])


PLAIN = Wire()


Encrypt = Literal["none", "weights", "all"]
"""Which payloads of a run whoever runs the server cannot read."""


def encrypts(encrypt: Encrypt, name: str) -> bool:
    """Whether a payload of this name is one of them."""
    return encrypt == "all" or (encrypt == "weights" and is_weights(name))


class FileEntry(Record):
    """One payload as it lies in the folder: size in bytes, SHA-256, its form if that is not the plain one, and if it is
    encrypted what decrypts it, wrapped (``encryption.py``).
    """

    size: Count
    sha256: Digest
    wire: Wire = PLAIN
    encrypted: Wrapped | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_one_text(cls, value: Any) -> Any:
        form = value.get("wire") if isinstance(value, dict) else None
        if isinstance(form, dict) and (form == PLAIN.model_dump() or form.keys() != Wire.model_fields.keys()):
            raise ValueError("wire: is left out where it is plain, and complete where it is not")
        return value

    @field_validator("encrypted", mode="before")
    @classmethod
    def _is_left_out_where_it_is_not(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("is left out where the file is not encrypted")
        return value

    @model_serializer(mode="wrap")
    def _without_plain(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        left_out = [*["wire"] * (self.wire == PLAIN), *["encrypted"] * (self.encrypted is None)]
        return {name: fields[name] for name in fields if name not in left_out}


class Head(Record):
    """The last message of one sender in one folder: its number (0: none yet) and its manifest's SHA-256."""

    seq: Count = 0
    digest: Digest | None = None


class Manifest(Record):
    """What one message holds, what it answers, what came before it from the same sender."""

    protocol: Protocol = PROTOCOL
    kind: Kind
    federation: Name
    site: Name
    sender: Name
    run: Name
    round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    seq: Annotated[int, Field(ge=1)]
    previous: Digest | None
    in_reply_to: Digest | None
    created: Time
    files: dict[str, FileEntry]


class Federation(Record):
    """``federation.json``: who takes part here, under which keys; written once the site's card was accepted.

    The aggregator's encryption key is there where the site's card shows one.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["federation"] = "federation"
    federation: Name
    site: Name
    aggregator_key: PublicKey
    aggregator_encryption_key: Digest | None = None
    site_key: PublicKey
    created: Time
    files: dict[str, FileEntry]


class SiteCard(Record):
    """``site.json``: the site's key, authenticated by the invite's one-time secret (HMAC-SHA-256).

    The encryption key is authenticated by the card's signature. Cards of early versions show none.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["site"] = "site"
    federation: Name
    site: Name
    key: PublicKey
    encryption_key: Digest | None = None
    software: Sentence
    enrolment: Digest
    created: Time


class Handover(Record):
    """``keys/0002.json``: a site's key of that number, signed by the one before it.

    Args:
        after: the site's last message that an earlier key signed; all that follow are signed by ``key``.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["handover"] = "handover"
    federation: Name
    site: Name
    number: Annotated[int, Field(ge=2, le=9999)]
    key: PublicKey
    after: Head
    created: Time


Phase = Literal[
    "asked for consent",
    "receiving",
    "training",
    "outside hours",
    "sending",
    "waiting",
    "paused",
    "trouble",
    "stopped",
]


class Status(Record):
    """``status.json``: the site's heartbeat, and the last message it knows of either side."""

    protocol: Protocol = PROTOCOL
    kind: Literal["status"] = "status"
    federation: Name
    site: Name
    time: Time
    phase: Phase
    run: Name | None
    round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    progress_percent: Annotated[int, Field(ge=0, le=100)]
    trouble: Sentence | None
    own_head: Head
    aggregator_head: Head


def _is_on_a_server(url: str) -> str:
    try:
        checked_url(url)
    except ActionRequiredError as error:
        raise ValueError(str(error)) from None
    return url


class Invite(Record):
    """The file with which IT joins: where, who, the aggregator's key, a one-time enrolment secret.

    Args:
        url: of a WebDAV server, by https (by http on this machine itself); never a folder of the machine or of its
            network, which IT alone names. None: IT names it.
        password: the folder's, if the aggregator's people want it to travel in this file.
    """

    protocol: Literal[2] = 2
    federation: Name
    site: Name
    url: Annotated[Sentence, AfterValidator(_is_on_a_server)] | None = None
    user: Sentence
    password: Annotated[str | None, Field(repr=False)] = None
    aggregator_key: PublicKey
    enrolment_secret: Digest


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


def _which_tolerance(value: Any) -> str:
    return "[relative]" if isinstance(value, dict | BelowLast) else "[absolute]"


Tolerance = Annotated[
    Annotated[float, Field(ge=0, lt=1), Tag("[absolute]")] | Annotated[BelowLast, Tag("[relative]")],
    Discriminator(_which_tolerance),
]
"""What a site's score must exceed: a number, or one that follows from the last aggregate's score on the same images."""

Hours = Annotated[float, Field(gt=0, le=87600, description="ten years at most")]


class RunConfiguration(Record):
    """Everything that decides a run's result, apart from the data. ``RUN.yaml`` and ``run.yaml`` alike."""

    run: Name
    task: Name
    method: Name
    sites: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUND - 1)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    epochs: Annotated[int, Field(ge=1, le=1000, description="local epochs per round")] = 1
    batch_size: Annotated[int, Field(ge=2, le=4096)] = 8
    learning_rate: LearningRate = Falling()
    tolerance: Annotated[
        Tolerance | None, Field(description="what a site's score must exceed; null: models are not scored")
    ] = BelowLast(below_last=0.2)
    tolerance_score: Annotated[
        Name | None, Field(description="by what a whole model is scored; left out of a run that does not say it")
    ] = None
    sites_per_round: Annotated[int | None, Field(ge=1, description="sites asked in a round; None: all")] = None
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
        rate = self.learning_rate
        falls = min(rate.period, self.rounds)
        if isinstance(rate, Falling) and rate.initial * rate.factor**falls == 0:
            raise ValueError(
                f"learning_rate: falls to 0 within {pluralize(self.rounds, 'round')}; raise factor or shorten period"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: fields[name] for name in fields if name != "tolerance_score" or self.tolerance_score is not None}


MOST_IN_ALL = 1 << 32
"""Numbers in all tensors of a run."""


class TensorShape(Record):
    """One shared tensor: dtype as safetensors names it, and shape."""

    dtype: Literal["F32"]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=MOST_NUMBERS)]], Field(max_length=MOST_DIMENSIONS)]

    @field_validator("shape")
    @classmethod
    def _fits(cls, shape: list[int]) -> list[int]:
        if count_of(shape) > MOST_NUMBERS:
            raise ValueError(f"has more than {MOST_NUMBERS} numbers")
        return shape


class TensorList(Record):
    """Exactly which tensors a file holds, by name; a file with anything else is refused."""

    tensors: dict[TensorName, TensorShape]


Groups = dict[Annotated[str, text_like(r"[a-z][a-z0-9_]{0,31}", "a lower-case word")], dict[TensorName, TensorShape]]
"""Tensors by group and name. A group travels as ``state-GROUP.safetensors``."""


class Sharing(Record):
    """``tensors.yaml``: what of a model travels and what stays, and what a method has travel besides.

    Args:
        tensors: travel every round, both ways.
        buffers: those of ``tensors`` that no gradient moves: BatchNorm's statistics.
        start: come once, with the offer, so that all sites begin alike; from then on they stay at each site.
        frozen: those of ``start`` that never change, and so are the same everywhere.
        personal: names of tensors that never leave a site; each begins with its own, whose shapes may be its own too.
        to_site: come with every round.
        measured: leave with every answer: what was measured with the received model.
        trained: leave with every answer to a round that trains.
        with_final: come with the chosen model.
    """

    tensors: dict[TensorName, TensorShape]
    buffers: list[TensorName] = []
    start: dict[TensorName, TensorShape]
    frozen: list[TensorName] = []
    personal: list[TensorName]
    to_site: Groups = {}
    measured: Groups = {}
    trained: Groups = {}
    with_final: Groups = {}

    @model_validator(mode="after")
    def _fits(self) -> Sharing:
        besides = (self.to_site, self.measured, self.trained, self.with_final)
        parts = [self.tensors, self.start, *(listed for groups in besides for listed in groups.values())]
        if sum(count_of(tensor.shape) for part in parts for tensor in part.values()) > MOST_IN_ALL:
            raise ValueError(f"tensors: have more than {MOST_IN_ALL} numbers in all")
        return self

    def groups(self, kind: Kind, *, trains: bool = True) -> Groups:
        """The groups that a message of a kind brings, in a round that trains or in the closing one."""
        if kind == "update":
            return self.measured | (self.trained if trains else {})
        return {"round": self.to_site, "final": self.with_final}.get(kind, {})

    @property
    def parameters(self) -> TensorList:
        """Those of ``tensors`` that training moves."""
        return TensorList(tensors={name: shape for name, shape in self.tensors.items() if name not in self.buffers})

    @property
    def shared(self) -> TensorList:
        """What a model file of a round holds."""
        return TensorList(tensors=self.tensors)

    @property
    def beginning(self) -> TensorList:
        """What the offer's ``start.safetensors`` holds; there is none where this is empty."""
        return TensorList(tensors=self.start)

    @property
    def has_whole_model(self) -> bool:
        """Whether a model file of a round is, with what is frozen, a whole model: nothing changes but what travels."""
        return self.start.keys() == set(self.frozen) and not self.personal


class RoundConfiguration(Record):
    """``config.yaml``: what one site does in one round. ``epochs`` 0: validate only, send no model. ``seed``, in
    [0, 2^63), decides what is random in its training.
    """

    round: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    epochs: Annotated[int, Field(ge=0, le=1000)]
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    batch_size: Annotated[int, Field(ge=2, le=4096)]
    seed: Count
    augmentation: dict[str, Any]


class Consent(Record):
    """A site's yes or no to an offer; image counts per split where it says yes."""

    run: Name
    agrees: bool
    reason: Sentence
    images: dict[Literal["train", "validation", "test"], CountText]

    @model_validator(mode="after")
    def _a_yes_tells_what_it_trains_on(self) -> Consent:
        if self.agrees and self.images.get("train", "0") == "0":
            raise ValueError("images: a yes says how many images it trains on, one or more")
        return self

    @property
    def training_images(self) -> int:
        """How many images a site that agrees says it trains on; of "fewer than 5" the most that can be, 4."""
        return most(self.images["train"])


class Withdrawal(Record):
    """``withdrawal.json``: from here on a site answers no round of a run it had agreed to."""

    run: Name
    reason: Sentence


class Abort(Record):
    """``abort.json``: the run is over, and no final model comes here."""

    run: Name
    reason: Sentence


def _is_rounded(value: float) -> float:
    if round(value, 4) != value:
        raise ValueError("must have four decimals or fewer")
    return value


def _is_in_hundredths(value: float) -> float:
    if round(value, 2) != value:
        raise ValueError("must have two decimals or fewer")
    return value


def _has_no_sign(value: float) -> float:
    if math.copysign(1, value) < 0:
        raise ValueError("must be written without a sign")
    return value


Share = Annotated[float, Field(ge=0, le=1)]
RoundedShare = Annotated[Share, AfterValidator(_is_rounded), AfterValidator(_has_no_sign)]
Hundredths = Annotated[Share, AfterValidator(_is_in_hundredths)]


class Quantiles(Record):
    """Of a site's uncertainties, rounded to hundredths."""

    q10: Hundredths
    q25: Hundredths
    q50: Hundredths
    q75: Hundredths
    q90: Hundredths

    @model_validator(mode="after")
    def _rise(self) -> Quantiles:
        told = [self.q10, self.q25, self.q50, self.q75, self.q90]
        if told != sorted(told):
            raise ValueError("must not fall from one to the next")
        return self


class Reliability(Record):
    """``reliability.yaml``: how well a site's uncertainty tells its wrong predictions from its right ones.

    Measured with the received model, before it is trained (Wang et al. 2023, Algorithm 1).

    Args:
        theta: the uncertainty from which on a prediction is held to be wrong.
        status: ``measured``, or why θ could not be and is 0.5.
        n: predictions looked at; of a segmentation, sampled pixels.
        n_wrong: how many of them were wrong; None where withheld.
        auroc: of the uncertainty for "wrong"; None where it is undefined or withheld.
        quantiles: of the uncertainty; None where withheld.
    """

    theta: Annotated[RoundedShare, Field(gt=0)]
    status: Literal["measured", "all right", "all wrong", "no separation"]
    n: CountText
    n_wrong: CountText | None
    auroc: RoundedShare | None
    quantiles: Quantiles | None

    @model_validator(mode="after")
    def _fallback_is_one_half(self) -> Reliability:
        if self.status != "measured" and self.theta != 0.5:
            raise ValueError(f"theta: must be 0.5 where the status is {self.status}")
        return self

    @model_validator(mode="after")
    def _tells_what_can_be(self) -> Reliability:
        """Over few predictions neither count nor score is told; where all or none were wrong, there is no score."""
        n, wrong = self.n, self.n_wrong
        if n.startswith("fewer than ") and (wrong, self.auroc) != (None, None):
            raise ValueError(f"n_wrong, auroc: must be null where n is {n}")
        if self.auroc is not None and self.status in ("all right", "all wrong"):
            raise ValueError(f"auroc: must be null where the status is {self.status}")
        if wrong is None:
            return self
        least, greatest = {"all right": (0, 0), "all wrong": (most(n), most(n))}.get(self.status, (1, most(n) - 1))
        if most(wrong) < least or fewest(wrong) > greatest:
            raise ValueError(f"n_wrong: cannot be {wrong} of {n} where the status is {self.status}")
        return self


class Verdict(Record):
    """What became of one site's answer in one round.

    ``score`` and ``tolerance``, which it must exceed, are in [0, 1], None where models are not scored; ``theta`` in
    (0, 1] is what the site sent, where the method asks for it; ``weight`` in [0, 1] is the site's share of the
    aggregate; ``epsilon`` is what the site says that it has spent of its images' privacy in the run so far, where the
    run is private.
    """

    run: Name
    round: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    site: Name
    status: Literal["accepted", "omitted", "late", "withdrawn", "validated"]
    score: ShareText | None
    tolerance: ShareText | None
    theta: ShareText | None
    weight: ShareText | None
    epsilon: DecimalText | None = None
    reason: Sentence


class FinalCard(Record):
    """``card.json``: which aggregate was chosen and why.

    ``validation``: mean over sites, in [0, 1], by aggregate. ``took_part``: the sites whose weight is above 0, by round
    that was opened. ``epsilon``: by site, the most that it said it had spent of its images' privacy; empty where the
    run is not private.
    """

    run: Name
    task: Name
    method: Name
    chosen_round: Annotated[int, Field(ge=0, le=MAX_ROUND)]
    score_name: Name
    validation: dict[RoundText, ShareText]
    took_part: dict[RoundText, list[Name]]
    epsilon: dict[Name, DecimalText] = {}
    reason: Sentence


def round_name(run: RunConfiguration, round_no: int) -> str:
    """What people call a round."""
    return f"round {round_no}" if round_no <= run.rounds else "the closing round"


def status_text(status: Mapping[str, Any]) -> str:
    """The fields of a ``Status`` in words, without its trouble."""
    percent = f" ({status['progress_percent']} %)" if status["phase"] == "training" else ""
    run = f", run {status['run']}" if status["run"] else ""
    round_no = f", round {status['round']}" if status["round"] else ""
    return f"{status['phase']}{percent}{run}{round_no}, at {status['time']}"


def now_text() -> str:
    """The time now, UTC, to the second. Informs people; nothing is decided by it."""
    return time_text(datetime.now(UTC).timestamp())


def time_text(timestamp: float) -> str:
    """Seconds since 1970 as UTC, to the second."""
    return datetime.fromtimestamp(timestamp, UTC).strftime(_TIME_FORM)


def decimal_text(number: float) -> str:
    """The shortest text that reads back as exactly ``number``."""
    return repr(float(number))
