"""A look into a site's folder: which of its messages are taken, in which order, and what the look has then shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from aggregator.facts import expected
from shared.errors import ActionRequiredError, DoubtfulError
from shared.exchange.names import MessageRef
from shared.exchange.order import Exchange


class Notices(Protocol):
    """What is noticed in a site's folder; an ``Inbox`` is one."""

    def notice(self, ref: MessageRef) -> bytes | None:
        """Return the manifest's bytes if the site has published a message at ``ref``."""

    def is_signed(self, ref: MessageRef, manifest: bytes) -> bool:
        """Return whether the site's key has signed a noticed manifest for this place."""

    def skips_messages(self, ref: MessageRef, manifest: bytes) -> bool:
        """Return whether a noticed manifest is well signed but others of its sender come before it."""


@dataclass(frozen=True)
class Seen:
    """What came of a look.

    Args:
        happened: something was taken, or refused.
        is_whole: all that it was to look for was looked for, and what was there is settled, or is nothing that the site
            has signed.
        is_full: all places were looked at in which the site may have left something.
        doubt: what a full look has found there twice, and does not hold.
    """

    happened: bool
    is_whole: bool
    is_full: bool = False
    doubt: DoubtfulError | None = None


def look(
    ledger: Exchange,
    inbox: Notices,
    awaited: MessageRef | None,
    *,
    searches: bool,
    noticed: set[MessageRef],
    may_have_sent_more: Callable[[], bool],
    fetch: Callable[[MessageRef, bytes], bool],
) -> Seen:
    """Look for what is awaited; where the site has sent something else, take all that in the site's own order.

    Args:
        ledger: what is known of the site's folder.
        searches: look for a withdrawal too, whatever the heartbeat says.
        noticed: withdrawals that looks have shown. This one adds what it finds; none is whole until they are settled,
            for a server may show a file now and not a moment later.
        may_have_sent_more: what the heartbeat says.
        fetch: takes a message, or refuses it; returns whether it did either.

    Raises:
        ActionRequiredError: a withdrawal was there, and is not any more.
    """
    if awaited is not None and ledger.is_settled(awaited):
        awaited = None  # the daemon has not looked yet
    manifest = inbox.notice(awaited) if awaited else None
    if awaited and manifest and not inbox.skips_messages(awaited, manifest):
        with suppress(DoubtfulError):  # the site may have left its answer elsewhere, as a withdrawal
            return Seen(fetch(awaited, manifest), is_whole=False)  # there may be more
    # A site's messages are put into its folder in their order. So where its last one of a run is not, its withdrawal,
    # this request has shown that it had not left.
    last = [ref for ref in expected(ledger) if ref.kind == "withdrawal"] if searches else []
    left = [ref for ref in last if _is_there(inbox, ref, noticed)]
    if manifest is None and not left and not may_have_sent_more():
        _require_there(ledger, inbox, noticed)
        return Seen(happened=False, is_whole=all(map(ledger.is_settled, noticed)))
    happened, doubts = False, dict[MessageRef, DoubtfulError]()
    for ref, manifest in _in_order(inbox, expected(ledger)):
        try:
            happened |= fetch(ref, manifest)
        except DoubtfulError as error:  # put there by anybody: it must not hide what the site has sent
            doubts[ref] = error
            continue
        finally:
            _remember(inbox, ref, manifest, noticed)
        if not ledger.is_settled(ref):
            return Seen(happened, is_whole=False)  # what follows it is looked at once this has come whole
    if not happened:
        _require_there(ledger, inbox, noticed)
    is_whole = all(map(ledger.is_settled, ({*left} - doubts.keys()) | noticed))
    return Seen(happened, is_whole, is_full=True, doubt=next(iter(doubts.values()), None))


def _in_order(inbox: Notices, refs: Sequence[MessageRef]) -> Iterator[tuple[MessageRef, bytes]]:
    """Notice what is there, those last before which others must come: answers about several runs come in any order."""
    later = []
    for ref in refs:
        if (manifest := inbox.notice(ref)) is not None:
            if inbox.skips_messages(ref, manifest):
                later.append((ref, manifest))
            else:
                yield ref, manifest
    yield from later


def _require_there(ledger: Exchange, inbox: Notices, noticed: set[MessageRef]) -> None:
    """Have trouble told where a withdrawal was taken away before it was read: else a stop would wait for it in silence.

    Raises:
        ActionRequiredError: it is not there.
    """
    for ref in noticed:
        if not ledger.is_settled(ref) and inbox.notice(ref) is None:
            raise ActionRequiredError(
                f"{ref.manifest} was in the folder, signed, and is not any more: have the site put it there again"
            )


def _is_there(inbox: Notices, ref: MessageRef, noticed: set[MessageRef]) -> bool:
    manifest = inbox.notice(ref)
    if manifest is not None:
        _remember(inbox, ref, manifest, noticed)
    return manifest is not None


def _remember(inbox: Notices, ref: MessageRef, manifest: bytes, noticed: set[MessageRef]) -> None:
    if ref.kind == "withdrawal" and inbox.is_signed(ref, manifest):
        noticed.add(ref)
