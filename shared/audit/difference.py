"""What differs between two runs: how they were configured, who took part, and what came of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.audit.reading import NOT_OPENED, HiddenError, Reading
from shared.audit.sites import require_opened, rounds_of, settings_of
from shared.errors import RejectedError
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.verdicts import FinalCard, Verdict


def run_facts(readings: Mapping[str, Reading], run: str) -> dict[str, Any]:
    """Return all that can be compared of a run, flat: by key, a plain value."""
    facts: dict[str, Any] = {}
    if (settings := settings_of(readings, run)) is not None:
        facts |= dict(flat("configuration", settings.model_dump(mode="json", exclude={"run"})))
    cards = []
    for site, reading in readings.items():
        if MessageRef("offer", run) not in reading.messages:
            continue
        consent = reading.consent(run)
        said = "no answer" if consent is None else "agreed" if consent.agrees else "declined"
        facts[f"participants.{site}"] = f"{said}, withdrew" if reading.ending(run) == "withdrawn" else said
        for split, count in sorted(consent.images.items()) if consent else ():
            facts[f"images.{site}.{split}"] = count
        for round_no in rounds_of({site: reading}, run):
            verdict = reading.record_or_none(MessageRef("verdict", run, round_no), Verdict)
            if verdict is not None:
                for name in ("status", "score", "theta", "weight", "epsilon"):
                    if (value := getattr(verdict, name)) is not None:
                        facts[f"outcome.round {round_no}.{site}.{name}"] = value
        final = MessageRef("final", run)
        if (card := reading.record_or_none(final, FinalCard)) is not None:
            cards.append(card)
            facts[f"outcome.final model.{site}"] = final_model(reading, run)
    if cards:
        facts["outcome.chosen round"] = cards[0].chosen_round
        facts["outcome.score"] = cards[0].score_name
        facts["outcome.reason"] = cards[0].reason
        facts |= {f"outcome.validation.{number}": mean for number, mean in cards[0].validation.items()}
        facts |= {f"outcome.epsilon.{site}": spent for site, spent in cards[0].epsilon.items()}
    return facts


def final_model(reading: Reading, run: str) -> str:
    """Return the SHA-256 of the final model itself, also if its file is encrypted; or why it cannot be known."""
    try:
        return reading.digest(reading.messages[MessageRef("final", run)], names.FINAL_MODEL)
    except HiddenError:
        return NOT_OPENED
    except RejectedError as error:
        return error.reason


def difference(readings: Mapping[str, Reading], first: str, second: str) -> dict[str, tuple[Any, Any]]:
    """Return what differs, by key: as it is in the first run and in the second; None where one does not have it.

    What is not opened in either counts as different, for nobody knows.

    Raises:
        ConfigurationError: a run is encrypted, and no key opens it.
    """
    for run in (first, second):
        require_opened(readings, run)
    one, other = run_facts(readings, first), run_facts(readings, second)
    keys = [*one, *(key for key in other if key not in one)]
    return {
        key: (one.get(key), other.get(key))
        for key in keys
        if one.get(key) != other.get(key) or one.get(key) == NOT_OPENED
    }


def lines(found: Mapping[str, tuple[Any, Any]], first: str, second: str) -> Iterator[str]:
    """Yield one line per difference."""
    if not found:
        yield f"{first} and {second} do not differ in configuration, participants or outcome"
    for key, (one, other) in found.items():
        yield escape(f"{key}: {_shown(one)} in {first}, {_shown(other)} in {second}")


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)


def flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their dotted key."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from flat(f"{key}.{name}" if key else name, inner)
    else:
        yield key, value
