"""The curves of a run in TensorBoard or MLflow, if the PI wants them there; nothing of a run depends on it.

What is settled is read from the run's files, and what a sink has already from the sink itself. So no point is written
twice, whenever this ends, and a sink that was away gets what it missed. A thread of its own does it: one that is slow,
down or not installed is warned of once, and holds nothing up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType

from aggregator.configuration import Tracking
from aggregator.report import Document, rounds_report
from aggregator.sinks import Mlflow, Point, Settled, Sink, TensorBoard
from aggregator.store import RunStore
from shared.errors import TransientError
from shared.exchange.records.values import sentence
from shared.trouble import Trouble

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 2.0
AFTER_TROUBLE_S = 60.0
LAST_LOOK_S = 30.0  # that a sink gets at the end, before the process goes without it

MEAN = "mean over sites"  # no site can have this name
_OF_VERDICT = ("score", "theta", "weight", "epsilon", "seconds")


class Tracker:
    """Feeds sinks while its block runs, and once more at its end.

    Args:
        sinks: what people call each, and how it is opened.
    """

    def __init__(self, work: Path, store: RunStore, sinks: Mapping[str, Callable[[], Sink]]) -> None:
        self._work = work
        self._store = store
        self._stop = threading.Event()
        self._trouble = Trouble(logger, "tracking", "goes on.")
        self._feeds = [_Feed(name, opened) for name, opened in sinks.items()]
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(LAST_LOOK_S)
        if self._thread.is_alive():
            logger.warning("tracking is not done yet: `launch` once more writes what is missing")

    def _run(self) -> None:
        fed, due, is_last = None, 0.0, False
        while not is_last:
            is_last = self._stop.wait(LOOK_EVERY_S)
            try:
                now = (_newest_settled(self._store), self._store.is_over)
                if now != fed and (is_last or time.monotonic() >= due):
                    due = time.monotonic() + AFTER_TROUBLE_S
                    if self._feed(*now):
                        fed, due = now, 0.0
            except Exception as error:  # whatever is wrong here, the run itself must not end by it
                due = time.monotonic() + AFTER_TROUBLE_S
                self._trouble.begins(_trouble(error))

    def _feed(self, newest: int, is_over: bool) -> bool:
        """Give every sink what is settled; return whether all took it."""
        rounds = [settled(each) for each in rounds_report(self._work, self._store) if each["round"] <= newest]
        card = self._store.card()
        chosen = card.chosen_round if card else None
        took = [feed.take(rounds, is_over=is_over, chosen=chosen) for feed in self._feeds]
        return all(took)


class _Feed:
    """One sink, opened when there is something for it, and again after trouble."""

    def __init__(self, name: str, opened: Callable[[], Sink]) -> None:
        self._extra = name.lower()
        self._opened = opened
        self._sink: Sink | None = None
        self._trouble = Trouble(logger, f"tracking by {name}", "goes on, and nothing is missing.")

    def take(self, rounds: Sequence[Settled], *, is_over: bool, chosen: int | None) -> bool:
        """Return whether it took all of it."""
        try:
            self._sink = self._sink or self._opened()
            self._sink.write(rounds)
            if is_over:
                self._sink.end(chosen)
        except ModuleNotFoundError as error:
            install = f"`pip install 'dropfed[{self._extra}]'` and launch once more"
            self._trouble.begins(TransientError(f"{error.name} is not installed: {install}"))
        except Exception as error:  # other people's software, which must not end a run, whatever it does
            self._sink = None
            self._trouble.begins(_trouble(error))
        else:
            self._trouble.ends()
            return True
        return False


def _trouble(error: Exception) -> TransientError:
    return TransientError(sentence(f"{type(error).__name__}: {error}")[:300])


def _newest_settled(store: RunStore) -> int:
    """The newest round of which every site was told its verdict."""
    return store.round_no if store.is_over else store.round_no - 1


def settled(of_round: Document) -> Settled:
    """What is drawn of a round, from the report's entry for it."""
    found: list[Point] = []
    for site, said in of_round["sites"].items():
        found += [
            Point(f"{name}/{site}", of_round["round"], said[name]) for name in _OF_VERDICT if said[name] is not None
        ]
        found += [
            Point(f"bytes_{way}/{site}", of_round["round"], said["bytes"][way])
            for way in ("down", "up")
            if said["bytes"][way] is not None
        ]
        for split in of_round["means"]:
            scores = said[split]["scores"] if said[split] else {}
            found += _of_model(of_round, split, site, scores.items())
    for split, means in of_round["means"].items():
        found += _of_model(of_round, split, MEAN, ((name, mean["alike"]) for name, mean in means.items()))
    times = [said["settled"] for said in of_round["sites"].values() if said["settled"]]
    return Settled(of_round["round"], found, datetime.fromisoformat(max(times)).timestamp() if times else 0.0)


def _of_model(of_round: Document, split: str, whose: str, scores: Iterable[tuple[str, float | None]]) -> list[Point]:
    step = of_round["received_aggregate"]
    return [Point(f"{split}_{name}/{whose}", step, value) for name, value in scores if value is not None]


def tracker(work: Path, store: RunStore, wanted: Tracking, federation: str) -> Tracker | None:
    """What tracks a run where the PI wants it, or None."""
    sinks: dict[str, Callable[[], Sink]] = {}
    if (folder := wanted.tensorboard) is not None:
        sinks["TensorBoard"] = lambda: TensorBoard(work / folder / store.run)
    if (address := wanted.mlflow) is not None:
        sinks["MLflow"] = lambda: Mlflow(address, federation, store)
    return Tracker(work, store, sinks) if sinks else None
