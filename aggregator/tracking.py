"""The curves of a run in TensorBoard or MLflow, if the PI wants them there; nothing of a run depends on it.

What is settled is read from the run's files, and what a sink has already from the sink itself. So no point is written
twice, whenever this ends, and a sink that was away gets what it missed. Each has a thread of its own: one that is slow,
down or not installed is warned of once, and holds nothing up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from aggregator.configuration import Tracking
from aggregator.run_view import Round, view_run
from aggregator.sinks import Mlflow, Point, Settled, Sink, TensorBoard
from aggregator.store import RunStore
from shared.errors import TransientError
from shared.exchange.records.values import sentence, time_text
from shared.exchange.tables import RECEIVED_SPLITS
from shared.software import installing
from shared.trouble import Trouble

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
AFTER_TROUBLE_S = 60.0
LAST_LOOK_S = 30.0  # that a sink gets at the end, before the process goes without it

MEAN = "mean over sites"  # no site can have this name
ROUND_OPEN = "seconds/round open"  # nor this one
_OF_VERDICT = ("score", "theta", "weight", "epsilon")


class Tracker:
    """Feeds sinks while its block runs, and once more at its end.

    Args:
        sinks: what people call each, and how it is opened.
    """

    def __init__(self, work: Path, store: RunStore, sinks: Mapping[str, Callable[[], Sink]]) -> None:
        self._stop = threading.Event()
        self._feeds = [_Feed(name, opened, work, store, self._stop) for name, opened in sinks.items()]

    def __enter__(self) -> None:
        for feed in self._feeds:
            feed.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        deadline = time.monotonic() + LAST_LOOK_S
        for feed in self._feeds:
            feed.join(max(0.0, deadline - time.monotonic()))
            if feed.is_alive():
                logger.warning("%s is not done yet: `launch` once more writes what is missing", feed.name)


class _Feed(threading.Thread):
    """One sink, opened when there is something for it, and again after trouble."""

    def __init__(
        self, name: str, opened: Callable[[], Sink], work: Path, store: RunStore, stop: threading.Event
    ) -> None:
        super().__init__(name=f"tracking by {name}", daemon=True)
        self._extra = name.lower()
        self._opened = opened
        self._work = work
        self._store = store
        self._stopped = stop
        self._sink: Sink | None = None
        self._trouble = Trouble(logger, self.name, "goes on, and nothing is missing.")

    def run(self) -> None:
        fed, due, is_last = None, 0.0, False
        while not is_last:
            is_last = self._stopped.wait(LOOK_EVERY_S)
            try:
                is_over, opened = self._store.is_over, self._store.round_no
                now = (opened if is_over else opened - 1, is_over)  # the newest round whose verdicts were all told
                if now == fed or (time.monotonic() < due and not is_last):
                    continue
                self._feed(*now)
            except ModuleNotFoundError as error:
                install = f"run {installing(self._extra)}, and launch once more"
                self._trouble.begins(TransientError(f"{error.name} is not installed: {install}"))
            except Exception as error:  # other people's software, which must not end a run, whatever it does
                self._sink = None
                self._trouble.begins(_trouble(error))
            else:
                self._trouble.ends()
                fed = now
                continue
            due = time.monotonic() + AFTER_TROUBLE_S

    def _feed(self, newest: int, is_over: bool) -> None:
        """Give the sink what is settled, and the end."""
        view = view_run(self._work, self._store)
        rounds = [settled(each) for each in view.rounds if each.round <= newest]
        self._sink = self._sink or self._opened()
        self._sink.write(rounds)
        if is_over:
            at = max((each.at for each in rounds if each.at), default=None)  # a round that all left has no verdict
            self._sink.end(view.card.chosen_round if view.card else None, at)


def _trouble(error: Exception) -> TransientError:
    return TransientError(sentence(f"{type(error).__name__}: {error}")[:300])


def settled(of_round: Round) -> Settled:
    """Return what is drawn of a round."""
    numbers: list[tuple[str, int, float | None]] = []
    aggregate = of_round.received_aggregate
    for site, part in of_round.sites.items():
        numbers += [(f"{name}/{site}", of_round.round, getattr(part, name)) for name in _OF_VERDICT]
        numbers.append((f"seconds/{site}", of_round.round, part.seconds_to_answer))
        numbers += [(f"bytes_{way}/{site}", of_round.round, getattr(part.bytes, way)) for way in ("down", "up")]
        for split in RECEIVED_SPLITS:
            if row := part.row(split):
                numbers += [(f"{split}_{name}/{site}", aggregate, value) for name, value in row.scores.items()]
    for split, means in of_round.means.items():
        numbers += [(f"{split}_{name}/{MEAN}", aggregate, mean.alike) for name, mean in means.items()]
    numbers.append((ROUND_OPEN, of_round.round, of_round.seconds))
    points = [Point(name, step, value) for name, step, value in numbers if value is not None]
    return Settled(of_round.round, points, of_round.settled or 0.0)


def folder_name(store: RunStore) -> str:
    """Return a run's name with when it was begun (UTC): a rehearsal before it may have had the same name."""
    return f"{store.run}-{time_text(store.begun_at).replace('-', '').replace(':', '')}"


def tracker(work: Path, store: RunStore, wanted: Tracking, federation: str) -> Tracker | None:
    """Return what tracks a run where the PI wants it, or None."""
    sinks: dict[str, Callable[[], Sink]] = {}
    if (folder := wanted.tensorboard) is not None:
        sinks["TensorBoard"] = lambda: TensorBoard(work / folder / folder_name(store))
    if (address := wanted.mlflow) is not None:
        sinks["MLflow"] = lambda: Mlflow(address, federation, store)
    return Tracker(work, store, sinks) if sinks else None
