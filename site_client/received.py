"""The groups of tensors that the aggregator sent beside a model, checked."""

from __future__ import annotations

from pathlib import Path

from shared.errors import RejectedError
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.weights import check_tensors


def received_state(ledger: Mirror, ref: MessageRef, sharing: Sharing) -> dict[str, Path]:
    """Return where each group of a message lies.

    Raises:
        RejectedError: the message does not hold exactly the run's groups, each with exactly its tensors.
    """
    message = ledger.message(ref)
    found = {name for name in message.manifest.files if names.is_state(name)} if message else set()
    paths: dict[str, Path] = {}
    for group, listed in sharing.groups(ref.kind).items():
        name = names.state_file(group)
        paths[group], shown_as = ledger.path(ref, name), f"{ref.path}/{name}"
        if name not in found:
            raise RejectedError(shown_as, "is missing from the message")
        check_tensors(paths[group], TensorList(tensors=listed), shown_as)
        found.remove(name)
    for name in sorted(found):
        raise RejectedError(f"{ref.path}/{name}", "has no place in the run")
    return paths
