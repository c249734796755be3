"""Which tensor files may be removed once they have done their work; everything else stays for good.

``keep`` in the run's configuration, and so in the signed offer, is one of

    all       nothing is removed
    last K    of the rounds that have a verdict, the newest K keep their tensor files
    best      when the run has ended, only the answers that made the chosen aggregate keep theirs, and where they are
              differences, the global model that they differ from

The offer's ``start.safetensors`` and the final model always stay. Manifests, tables and verdicts stay too, so the
chains still verify, and who reads the folder can tell by this rule what was removed from what is missing.
"""

from __future__ import annotations

from collections.abc import Collection

from shared.doors.numbers import whole
from shared.exchange.names import MessageRef

KEEP_PATTERN = r"^(all|best|last [1-9][0-9]{0,3})$"


def may_be_removed(
    keep: str, ref: MessageRef, *, settled: Collection[int], chosen: int | None, difference: bool = False
) -> bool:
    """Return whether the tensor files of the message at ``ref`` may go.

    Args:
        keep: the rule, of ``KEEP_PATTERN``.
        settled: the rounds of the run that have a verdict in this folder.
        chosen: the round whose aggregate was chosen; None while the run is open.
        difference: the run has answers that are differences to the global model.
    """
    if ref.kind not in ("round", "update") or keep == "all":
        return False
    if keep == "best":
        needed = ("update", "round") if difference else ("update",)
        return chosen is not None and (ref.round_no != chosen or ref.kind not in needed)
    return ref.round_no in settled and ref.round_no <= max(settled) - _newest(keep)


def kept_rounds(keep: str, rounds: int) -> int:
    """Return how many of so many rounds that are settled keep their tensor files while the run goes on."""
    return min(rounds, _newest(keep)) if keep.startswith("last ") else rounds


def _newest(keep: str) -> int:
    return whole(keep.removeprefix("last "))
