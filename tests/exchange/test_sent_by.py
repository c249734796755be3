"""A sender's messages in their order, as they come and as the newest is taken back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.exchange.ledger import Ledger

STEPS = st.lists(st.tuples(st.sampled_from(["north", "aggregator"]), st.integers(1, 9)) | st.none(), max_size=30)


class Known(Ledger):
    """Messages alone."""

    content: Any = None
    parsed: Any = None
    configuration: Any = None


Known.__abstractmethods__ = frozenset()


@given(steps=STEPS)
def test_they_are_those_that_are_known_by_number(steps: list[tuple[str, int] | None]) -> None:
    """None takes the newest back, whose place another may take."""
    ledger: Any = Known()
    for step in steps:
        if step is None:
            if ledger.messages:
                ledger.messages.popitem()
        elif step not in ledger.messages:
            sender, number = step
            ledger.messages[step] = SimpleNamespace(manifest=SimpleNamespace(sender=sender, seq=number))
        for sender in ("north", "aggregator"):
            expected = [each for each in ledger.messages.values() if each.manifest.sender == sender]
            found = ledger.sent_by(sender)
            assert found == sorted(expected, key=lambda message: message.manifest.seq)
            found.clear()  # nobody who does what he likes with the answer changes the next
