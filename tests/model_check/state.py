"""What the model remembers: of each folder what either end holds of it, and what the aggregator holds of the run.

All are tuples, so that states are compared and hashed quickly. What is on a disk or in a folder survives a crash of the
daemon whose it is; what is marked *memory* does not.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from shared.exchange.names import Kind

RUN, NEXT = RUNS = ("octa-1", "octa-2")
"""The run that is played first, and with ``Rules.queue`` the one that waits for its turn."""
SITES = ("north", "south")

Says = Literal["", "yes", "no", "poison"]


class Sent(NamedTuple):
    """A message of the site; its number is its place in the chain. ``poison``: signed, and refused when it is read."""

    kind: Kind
    round_no: int = 0
    says: Says = ""
    run: str = RUN


class Told(NamedTuple):
    """A message of the aggregator. ``answers``: the number of the site's message; 0: its card; None: nothing."""

    kind: Kind
    round_no: int
    answers: int | None
    run: str = RUN


class Hospital(NamedTuple):
    """A site's end.

    Args:
        comes: it may join at all; the other model of one folder alone has a second site that never does.
        is_here: its card is in the folder; ``knows``: it has read that it is enrolled.
        sent: what it signed, of which so many are ``published``; ``has_payload``: so is the payload of the next.
        read: so many of the aggregator's messages it has accepted.
        wants_out: the runs from which a person decided to withdraw.
        rotated: after which of its messages another key signs; ``shows_key``: the hand-over is in the folder.
        started, looked: memory.
    """

    comes: bool = True
    is_here: bool = False
    knows: bool = False
    sent: tuple[Sent, ...] = ()
    published: int = 0
    has_payload: bool = False
    read: int = 0
    wants_out: tuple[str, ...] = ()
    rotated: int | None = None
    shows_key: bool = False
    started: bool = False
    looked: bool = False


class Desk(NamedTuple):
    """The aggregator's end of one folder, and what it holds of that site in the run.

    Args:
        enrolled: the site's card was accepted.
        told: what it signed, of which so many are ``published``; ``has_payload``: so is the payload of the next.
        accepted: so many of the site's messages; ``refused``: so many after those.
        knows_key: the hand-over was read.
        takes_part, scored, status: in the newest round; ``status`` once that is closed.
        asked_look, looked: memory; the look for the newest round was asked for, and has come.
        asked_stop_look, stop_looked: memory; likewise since the PI's stop.
        noticed: memory; the runs of which a look has shown a withdrawal that is not settled.
        in_trouble: the folder cannot be reached.
        due: memory; what was decided for this site and is not done yet; ``chosen``: a round that is due asks it.
        shown: what the property about looks is held against: whether a look since the round was opened has come, and
            has shown a withdrawal.
        had_left: the withdrawal was in the folder when the round was opened.
        was_late: by its verdict in the round before.
        counted: what the property about late answers is held against: each answer of the site that counted, by its
            round, with the round that it counted in.
        run: whose turn it is.
    """

    enrolled: bool = False
    told: tuple[Told, ...] = ()
    published: int = 0
    has_payload: bool = False
    accepted: int = 0
    refused: int = 0
    knows_key: bool = False
    takes_part: bool = False
    scored: bool = False
    status: str = ""
    asked_look: bool = False
    looked: bool = False
    asked_stop_look: bool = False
    stop_looked: bool = False
    noticed: tuple[str, ...] = ()
    in_trouble: bool = False
    due: str = ""
    chosen: bool = False
    shown: Literal["", "nothing", "withdrawal"] = ""
    had_left: bool = False
    was_late: bool = False
    counted: tuple[tuple[int, int], ...] = ()
    run: str = RUN


class Folder(NamedTuple):
    """One folder with both its ends."""

    desk: Desk = Desk()
    hospital: Hospital = Hospital()


class Director(NamedTuple):
    """What the aggregator holds of the run whose turn it is. ``due``: memory; what was decided for it and is not done
    yet.
    """

    round_no: int = 0
    closed: bool = False
    aggregated: bool = False
    chosen: bool = False
    aborted: bool = False
    paused: bool = False
    stopped: bool = False
    overdue: bool = False
    due: str = ""
    run: str = RUN


class State(NamedTuple):
    """The whole."""

    director: Director
    folders: tuple[Folder, Folder]
