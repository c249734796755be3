"""Every state that can be reached from the beginning, breadth first, and whether the run can end from each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.model_check import director, reduced, whole
from tests.model_check.numbered import Model, Numbers, WrongStateError
from tests.model_check.rules import Rules
from tests.model_check.state import SITES, Director, Folder, Hospital, State


def beginning(rules: Rules) -> State:
    """The state in which nothing has happened."""
    return State(Director(), (Folder(), Folder(hospital=Hospital(comes=rules.sites == 2))))


def steps(state: State, rules: Rules) -> Iterator[tuple[str, bool, State]]:
    """All that may happen next: in words, whether it is an accident or a wish, and what is then there."""
    run, folders = state
    of = reduced if rules.is_reduced else whole
    for number, folder in enumerate(folders):
        for name, is_accident, after in of.folder_steps(folder, rules):
            placed = (after, folders[1]) if number == 0 else (folders[0], after)
            yield f"{SITES[number]}: {name}", is_accident, State(run, placed)
    views = (director.view_of(folders[0]), director.view_of(folders[1]))
    for name, is_accident, next_run, desks in of.results(run, views, rules):
        one, other = (of.placed(folder, desk, name) for folder, desk in zip(folders, desks, strict=True))
        yield f"aggregator: {name}", is_accident, State(next_run, (one, other))


@dataclass
class Counterexample:
    """How a state is reached that must not be, by a shortest way: what happens, and what is then there."""

    what: str
    trace: list[tuple[str, State]]

    def __str__(self) -> str:
        told = [f"{number:4}  {name}" for number, (name, _) in enumerate(self.trace) if name]
        return "\n".join([f"{self.what}, after", *told])


@dataclass
class Explored:
    """What an exploration found.

    Args:
        ends: states in which the run is over, every folder says so and every site has read it.
        hopeless: states from which no such state can be reached without accidents.
    """

    rules: Rules
    states: int = 0
    transitions: int = 0
    ends: int = 0
    steps_deep: int = 0
    hopeless: int = 0
    seconds: float = 0.0
    counterexample: Counterexample | None = None


class Exploration:
    """All states of a model, in the order in which they are found: those of one layer are as many steps away.

    Args:
        on_progress: told after each layer how many states are known, and how many of them are new.
    """

    def __init__(self, rules: Rules, on_progress: Callable[[int, int], None] = lambda known, new: None) -> None:
        self.model = Model(rules)
        self.found = Explored(rules)
        self._on_progress = on_progress
        self._layers: list[Numbers] = []
        self._can_end: list[NDArray[np.bool_]] = []
        self._ways: list[tuple[Numbers, Numbers]] = []  # of each layer: from where to where without an accident

    def run(self) -> Explored:
        """Explore until nothing new is found, or something that must not be."""
        began = time.monotonic()
        wrong = self._explored() or self._hopeless()
        if wrong is not None:
            self.found.counterexample = Counterexample(wrong[0], self._trace(*wrong[1:]))
        self.found.seconds = time.monotonic() - began
        return self.found

    def _explored(self) -> tuple[str, int, int] | None:
        """Explore; say what is wrong with a state, in which layer it is, and its number."""
        try:
            self._explore()
        except WrongStateError as wrong:
            return str(wrong), len(self._layers) - 1, wrong.number
        return None

    def _explore(self) -> None:
        """Go from layer to layer. ``known`` is sorted; ``places`` tells when each was found."""
        found = self.found
        layer = known = np.array([self.model.number(beginning(self.model.rules))])
        places = np.zeros(1, dtype=np.uint32)
        while len(layer):
            self._layers.append(layer)
            following = self.model.following(layer)
            self._can_end.append(self.model.are_ends(layer))
            targets, which = np.unique(following.targets, return_inverse=True)
            at = np.searchsorted(known, targets)
            is_new = known[np.minimum(at, len(known) - 1)] != targets
            place_of = places[np.minimum(at, len(known) - 1)]
            place_of[is_new] = np.arange(len(known), len(known) + np.count_nonzero(is_new))
            is_way = ~following.are_accidents
            sources = (found.states + following.sources[is_way]).astype(np.uint32)
            self._ways.append((sources, place_of[which[is_way]]))
            found.states += len(layer)
            found.transitions += len(following.targets)
            layer = targets[is_new]
            places = np.insert(places, at[is_new], place_of[is_new])
            known = np.insert(known, at[is_new], layer)
            self._on_progress(len(known), len(layer))
        found.ends = sum(int(np.count_nonzero(each)) for each in self._can_end)
        found.steps_deep = len(self._layers) - 1

    def _hopeless(self) -> tuple[str, int, int] | None:
        """Find from which states the run can end: those where it has, and those from which a step leads to such."""
        can_end, count = np.concatenate(self._can_end), -1
        while count != (count := np.count_nonzero(can_end)):
            for sources, targets in reversed(self._ways):
                can_end[sources[can_end[targets]]] = True
        self.found.hopeless = int(np.count_nonzero(~can_end))
        if not self.found.hopeless:
            return None
        place = int(np.argmin(can_end))
        depth = int(np.searchsorted(np.cumsum([len(layer) for layer in self._layers]), place, side="right"))
        return "no way leads to the run's end", depth, int(np.concatenate(self._layers)[place])

    def _trace(self, depth: int, number: int) -> list[tuple[str, State]]:
        """What happens, and what is then there, until a state of a layer; which site is which stays the same."""
        path = [number]
        for layer in reversed(self._layers[:depth]):
            found = self.model.following(layer)
            path.append(int(layer[found.sources[found.targets == path[-1]][0]]))
        state = beginning(self.model.rules)
        told = [("", state)]
        for wanted in reversed(path[:-1]):
            following = steps(state, self.model.rules)
            told.append(next((name, after) for name, _, after in following if self.model.number(after) == wanted))
            state = told[-1][1]
        return told
