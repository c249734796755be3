"""Every state that can be reached from the beginning, breadth first, and whether the run can end from each.

States are numbers here: the aggregator's part and each folder are numbered when they are first met, and what may happen
next is worked out once for each part that matters: at a site and its courier for a folder, at the aggregator for its
own part and what it knows of both folders. All else is putting numbers together.

Two states that differ only in which site is which are one (``Rules.is_symmetric``): the aggregator's decisions are then
the same, which is checked for each that is worked out. Nothing else is left out.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.model_check import director, hospital, reduced, whole
from tests.model_check.exchanges import records_read_once
from tests.model_check.properties import ViolationError, check_end
from tests.model_check.rules import Rules
from tests.model_check.state import SITES, Desk, Director, Folder, Hospital, State

_BITS = 24
_MASK = (1 << _BITS) - 1
_TOLD_EVERY = 100_000


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


class Model:
    """The numbered parts of a model, and what may happen next."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._of = reduced if rules.is_reduced else whole
        self._runs: list[Director] = []
        self._run_numbers: dict[Director, int] = {}
        self._folders: list[Folder] = []
        self._folder_numbers: dict[Folder, int] = {}
        self._views: list[int] = []
        self._view_numbers: dict[director.View, int] = {}
        self._quiet: list[bool | None] = []
        self._steps: list[list[tuple[int, bool]] | None] = []
        self._results: dict[tuple[int, int, int], tuple[bool, list[tuple[str, bool, int, Desk, Desk]]]] = {}
        self._placed: dict[tuple[int, Desk, str], int] = {}
        self._ends_well: set[tuple[int, int]] = set()

    def number(self, state: State) -> int:
        """The number of a state; of two that differ only in which site is which, one number."""
        first, second = (self._folder_number(folder) for folder in state.folders)
        return self._packed(self._run_number(state.director), first, second)

    def _packed(self, run: int, first: int, second: int) -> int:
        if self.rules.is_symmetric and first > second:
            first, second = second, first
        return (run << 2 * _BITS) | (first << _BITS) | second

    def following(self, number: int) -> list[tuple[int, bool]]:
        """The numbers of what may come next, and whether that takes an accident.

        Raises:
            ViolationError: what comes next must not be.
        """
        run, first, second = number >> 2 * _BITS, (number >> _BITS) & _MASK, number & _MASK
        packed = self._packed
        found = [(packed(run, after, second), accident) for after, accident in self._steps_of(first)]
        found += [(packed(run, first, after), accident) for after, accident in self._steps_of(second)]
        for name, accident, after, one, other in self._results_of(run, first, second)[1]:
            found.append((packed(after, self._place(first, one, name), self._place(second, other, name)), accident))
        return found

    def is_end(self, number: int) -> bool:
        """Whether the run is over, every folder says so, and every site has read all that there is.

        Raises:
            ViolationError: the end is not as it must be.
        """
        run, first, second = number >> 2 * _BITS, (number >> _BITS) & _MASK, number & _MASK
        if not (self._is_quiet(first) and self._is_quiet(second) and self._results_of(run, first, second)[0]):
            return False
        for folder in (first, second):
            if (run, folder) not in self._ends_well:
                check_end(self._runs[run], self._folders[folder], self.rules)
                self._ends_well.add((run, folder))
        return True

    # --- what is worked out once ---------------------------------------------------------------------------

    def _steps_of(self, number: int) -> list[tuple[int, bool]]:
        if (known := self._steps[number]) is None:
            found = self._of.folder_steps(self._folders[number], self.rules)
            known = self._steps[number] = [(self._folder_number(after), accident) for _, accident, after in found]
        return known

    def _is_quiet(self, number: int) -> bool:
        if (known := self._quiet[number]) is None:
            known = self._quiet[number] = hospital.is_quiet(self._folders[number], self.rules)
        return known

    def _results_of(self, run: int, first: int, second: int) -> tuple[bool, list[tuple[str, bool, int, Desk, Desk]]]:
        key = (run, self._views[first], self._views[second])
        if (known := self._results.get(key)) is None:
            views = (director.view_of(self._folders[first]), director.view_of(self._folders[second]))
            found = self._of.results(self._runs[run], views, self.rules)
            is_over = director.Office(self._runs[run], views, self.rules).is_over
            numbered = [(name, accident, self._run_number(after), *desks) for name, accident, after, desks in found]
            known = self._results[key] = (is_over, numbered)
            if self.rules.is_symmetric and key[1] != key[2]:
                _check_symmetry(found, self._of.results(self._runs[run], views[::-1], self.rules))
                mirrored = [(name, accident, after, other, one) for name, accident, after, one, other in numbered]
                self._results[run, key[2], key[1]] = (is_over, mirrored)
        return known

    def _place(self, number: int, desk: Desk, name: str) -> int:
        """The number of a folder whose aggregator's end has changed."""
        key = (number, desk, name)
        if (known := self._placed.get(key)) is None:
            known = self._placed[key] = self._folder_number(self._of.placed(self._folders[number], desk, name))
        return known

    def _run_number(self, run: Director) -> int:
        if (known := self._run_numbers.get(run)) is None:
            known = self._run_numbers[run] = len(self._runs)
            self._runs.append(run)
        return known

    def _folder_number(self, folder: Folder) -> int:
        if (known := self._folder_numbers.get(folder)) is None:
            known = self._folder_numbers[folder] = len(self._folders)
            self._folders.append(folder)
            self._steps.append(None)
            self._quiet.append(None)
            self._views.append(self._view_numbers.setdefault(director.view_of(folder), len(self._view_numbers)))
        return known


def _check_symmetry(found: list[director.Result], mirrored: list[director.Result]) -> None:
    """The aggregator does the same whichever of two sites is which."""
    one = {(after, desks) for _, _, after, desks in found}
    other = {(after, desks[::-1]) for _, _, after, desks in mirrored}
    if one != other:
        raise AssertionError("what the aggregator does depends on which site is which")


class Exploration:
    """All states of a model, in the order in which they are found.

    Args:
        on_progress: told now and then how many states were looked at, and how many are known.
    """

    def __init__(self, rules: Rules, on_progress: Callable[[int, int], None] = lambda done, known: None) -> None:
        self.model = Model(rules)
        self.found = Explored(rules)
        self._on_progress = on_progress
        self._indices: dict[int, int] = {}
        self._numbers = array("Q")
        self._came_from = array("I")
        self._targets = array("I")  # of steps that are no accident, of all states one after the other
        self._first_target = array("Q")
        self._is_end = array("b")

    def run(self) -> Explored:
        """Explore until nothing new is found, or something that must not be."""
        began = time.monotonic()
        with records_read_once():
            self._explore()
        if self.found.counterexample is None:
            self._look_back()
        self.found.seconds = time.monotonic() - began
        return self.found

    def _explore(self) -> None:
        found, model, indices = self.found, self.model, self._indices
        self._meet(model.number(beginning(model.rules)), 0)
        at = 0
        while at < len(self._numbers):
            number = self._numbers[at]
            self._first_target.append(len(self._targets))
            try:
                self._is_end.append(model.is_end(number))
                following = model.following(number)
            except ViolationError as violation:
                found.counterexample = Counterexample(str(violation), self.trace(at))
                break
            found.transitions += len(following)
            for after, is_accident in following:
                target = indices.get(after)
                if target is None:
                    target = self._meet(after, at)
                if not is_accident:
                    self._targets.append(target)
            at += 1
            if at % _TOLD_EVERY == 0:
                self._on_progress(at, len(self._numbers))
        found.states, found.ends = len(self._numbers), sum(self._is_end)
        found.steps_deep = len(self._path(len(self._numbers) - 1)) - 1

    def _meet(self, number: int, source: int) -> int:
        index = self._indices[number] = len(self._numbers)
        self._numbers.append(number)
        self._came_from.append(source)
        return index

    def _look_back(self) -> None:
        """Find from which states the run can end: those where it has, and those from which a step leads to such."""
        first = np.frombuffer(self._first_target, dtype=np.uint64).astype(np.int64)
        last = np.append(first[1:], len(self._targets))
        targets = np.frombuffer(self._targets, dtype=np.uint32)
        can_end = np.frombuffer(self._is_end, dtype=np.int8).astype(bool)
        has_steps = last > first
        while True:
            leads = np.zeros(len(can_end), dtype=bool)
            leads[has_steps] = np.logical_or.reduceat(can_end[targets], first[has_steps])
            if not (leads & ~can_end).any():
                break
            can_end |= leads
        self.found.hopeless = int(np.count_nonzero(~can_end))
        if self.found.hopeless:
            what = "no way leads to the run's end"
            self.found.counterexample = Counterexample(what, self.trace(int(np.argmin(can_end))))

    def _path(self, index: int) -> list[int]:
        """The numbers of the states that lead to one that was found, and its own."""
        path = [index]
        while path[-1]:
            path.append(self._came_from[path[-1]])
        return [self._numbers[each] for each in reversed(path)]

    def trace(self, index: int) -> list[tuple[str, State]]:
        """What happens, and what is then there, until a state that was found; which site is which stays the same."""
        state = beginning(self.model.rules)
        told = [("", state)]
        for number in self._path(index)[1:]:
            following = steps(state, self.model.rules)
            told.append(next((name, after) for name, _, after in following if self.model.number(after) == number))
            state = told[-1][1]
        return told
