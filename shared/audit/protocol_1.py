"""What protocol 1 had and protocol 2 has no more. An audit reads folders of it for ever, and nobody else does
(protocol 12.1 and 12.2).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import Field

from shared.doors import Refusal, patterns
from shared.doors.json_text import parse_canonical
from shared.doors.schema import AnyRecord, Faults, fill
from shared.doors.yaml_text import refs
from shared.errors import ConfigurationError, RejectedError
from shared.exchange import names, order
from shared.exchange.names import MAX_RECORD_BYTES, MAX_ROUND, Kind, MessageRef
from shared.exchange.reading import fault_in, fill_yaml
from shared.exchange.records import answers
from shared.exchange.records.answers import Share
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import Count, Payload, Record
from shared.learning.schedules import learning_rate
from shared.learning.seeds import seed_for, split_seed

GROUP_PATTERN = "group_pattern"
"""Among the options of most tasks: a regular expression of the aggregator's for the names of a hospital's images."""
_BETWEEN_VALUES = re.compile(r"[\s:,?\[\]{}-]*")


class Seeds(Record):
    """Seeds of one site in one round, each in [0, 2^63): of the split, and of the training."""

    split: Count
    training: Count


class RoundConfiguration(Payload):
    """``config.yaml``, with the run's split and its seed."""

    FILE: ClassVar[str] = names.ROUND_CONFIGURATION

    round: Annotated[int, Field(ge=1, le=MAX_ROUND)]
    epochs: Annotated[int, Field(ge=0, le=1000)]
    learning_rate: Annotated[float, Field(gt=0, le=10)]
    batch_size: Annotated[int, Field(ge=2, le=4096)]
    seeds: Seeds
    split: dict[str, Any]
    augmentation: dict[str, Any]


class Reliability(answers.Reliability):
    """``reliability.yaml``, whose numbers were not rounded."""

    theta: Annotated[float, Field(gt=0, le=1)]
    auroc: Share | None


RECORDS: dict[str, type[Payload]] = {names.ROUND_CONFIGURATION: RoundConfiguration, names.RELIABILITY: Reliability}
"""The records that had another form."""
WITHOUT: frozenset[Kind] = frozenset({"abort"})
"""The kinds of message that it did not have: nobody was told of a run that never started."""


def round_configuration(run: RunConfiguration, round_no: int, site: str) -> RoundConfiguration:
    """Return what a site was asked for in a round; the closing one has no epochs."""
    return RoundConfiguration(
        round=round_no,
        epochs=run.epochs if round_no <= run.rounds else 0,
        learning_rate=learning_rate(run.learning_rate, round_no - 1),
        batch_size=run.batch_size,
        seeds=Seeds(split=split_seed(run.seed, site), training=seed_for(run.seed, round_no, site, "training")),
        split=run.split,
        augmentation=run.augmentation,
    )


def as_today(run: RunConfiguration) -> RunConfiguration:
    """Return a run's configuration without what no run says any more.

    Raises:
        ConfigurationError: that was not as it had to be.
    """
    options = dict(run.task_options)
    pattern = options.pop(GROUP_PATTERN, None)
    try:
        if pattern is not None:
            patterns.parse(pattern)
    except Refusal as refusal:
        raise ConfigurationError([f"task_options: {GROUP_PATTERN}: {refusal}"]) from None
    return run.model_copy(update={"task_options": options})


def is_scratch(path: str) -> bool:
    """Return whether ``path`` is that of a folder in which somebody checked what the server can do."""
    return re.fullmatch(r"check-[0-9a-f]{16}", path) is not None


def open_record(content: bytes, kind: type[AnyRecord], path: str) -> AnyRecord:
    """Read an unsigned JSON payload whose hash was checked. What it has nothing to say of it may leave out, or not.

    Raises:
        RejectedError: not canonical JSON, or not this record.
    """
    try:
        return fill(kind, parse_canonical(content, MAX_RECORD_BYTES))
    except Refusal as refusal:
        reason = fault_in(refusal, kind)
        what = f"is not a well-formed {kind.__name__} record: " if isinstance(refusal, Faults) else ""
        raise RejectedError(path, f"{what}{reason}") from None


def open_yaml(content: bytes, kind: type[AnyRecord], path: str) -> AnyRecord:
    """Read a YAML payload whose hash was checked. It has no one text, but holds nothing beside keys and values.

    Raises:
        RejectedError: not plain YAML, not this record, or something is beside its values.
    """
    try:
        if (beside := _beside_values(content)) is not None:
            raise RejectedError(path, f"holds {beside}, which no record may")
        return fill_yaml(content, kind)
    except Refusal as refusal:
        raise RejectedError(path, fault_in(refusal, kind)) from None


def _beside_values(content: bytes) -> str | None:
    """Return what a YAML text holds that is neither key nor value, where something could be hidden; None if nothing is.

    Raises:
        Refusal: it cannot be read at all.
    """
    end, text = 0, content.decode(errors="replace")
    for begin, behind, is_block in refs(content, MAX_RECORD_BYTES):
        if _BETWEEN_VALUES.fullmatch(text, end, begin) is None:
            return "a comment"
        if is_block:
            return "a text block"
        end = max(end, behind)
    return None if _BETWEEN_VALUES.fullmatch(text, end) else "a comment"


class Replies(order.Replies):
    """What the messages of one folder answered: a round and the final model the consent, whatever was read since."""

    def answers(self, ref: MessageRef) -> frozenset[str | None]:
        """Return the digests of which the message at ``ref`` must answer one, by the rules of any folder."""
        if ref.kind in order.ANSWERS_NEWEST:
            consent = self.signed(MessageRef("consent", ref.run))
            return frozenset({consent.digest} if consent else ())
        return super().answers(ref)

    def had_read(self, ref: MessageRef, in_reply_to: str | None) -> bool:
        """Return whether the site's message at ``ref`` is there: this protocol's folders do not tell what was read."""
        return self.signed(ref) is not None

    def fault(self, ref: MessageRef, in_reply_to: str | None) -> str | None:
        """Return what is wrong with what a message answers, or None, by the rules of any folder."""
        return None if in_reply_to in self.answers(ref) else order.ANSWERS_ANOTHER
