"""States as numbers, and what may come next of many at once.

The aggregator's part and each folder are numbered when they are first met. What may happen next is worked out once for
each part that matters: at a site and its folder-sync worker for a folder, at the aggregator for its own part and what
it knows of both folders. All else is putting numbers together, which NumPy does for a whole array of states.

Two states that differ only in which site is which are one (``Rules.is_symmetric``): the aggregator's decisions are then
the same, which is checked for each that is worked out. Nothing else is left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.model_check import director, hospital, reduced, whole
from tests.model_check.properties import ViolationError, check_end
from tests.model_check.rules import Rules
from tests.model_check.state import Desk, Director, Folder, State

_BITS = 24
_MASK = (1 << _BITS) - 1

Numbers = NDArray[np.int64]
"""(N,) numbers: of states, of which each is its aggregator's part and its two folders, or of such parts."""
Flags = NDArray[np.bool_]
Part = TypeVar("Part", bound=Hashable)


class Steps(NamedTuple):
    """What may come next of many states: (M,) places among these, the states after them, and which take an accident."""

    sources: Numbers
    targets: Numbers
    are_accidents: Flags


class WrongStateError(Exception):
    """The state of this number is not as it must be, or leads where it must not."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(what)
        self.number = number


class _Numbered(Generic[Part]):
    """Parts in the order in which they were met."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._numbers: dict[Part, int] = {}

    def number(self, part: Part) -> int:
        if (known := self._numbers.get(part)) is None:
            known = self._numbers[part] = len(self.parts)
            self.parts.append(part)
        return known


class _Rows:
    """Lists of steps, each step as so many numbers."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._first = array("q", [0])
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._first) - 1

    def append(self, steps: Iterable[tuple[int, ...]]) -> None:
        for step in steps:
            self._numbers.extend(step)
        self._first.append(len(self._numbers) // self._width)

    def of(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """The lists of these numbers (N,), one after the other: (M,) places among these, and (M, width) steps."""
        first = np.frombuffer(self._first, dtype=np.int64)
        starts, counts = first[numbers], first[numbers + 1] - first[numbers]
        refs = np.repeat(np.arange(len(numbers)), counts)
        within = np.arange(len(refs)) - np.repeat(np.cumsum(counts) - counts, counts)
        steps = np.frombuffer(self._numbers, dtype=np.int64).reshape(-1, self._width)
        return refs, steps[np.repeat(starts, counts) + within]


class Model:
    """The numbered parts of a model, and what may happen next."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._of = reduced if rules.is_reduced else whole
        self._runs = _Numbered[Director]()
        self._folders = _Numbered[Folder]()
        self._views = _Numbered[director.View]()
        self._marks = _Numbered[tuple[Desk, str]]()  # an aggregator's end, and the step after which it is so
        self._view_of_folder = array("q")
        self._is_quiet = array("b")
        self._folder_steps = _Rows(2)
        self._results = _Rows(4)
        self._result_rows: dict[int, int] = {}
        self._is_over = array("b")
        self._placed: dict[int, int] = {}
        self._ends_well: set[int] = set()

    def number(self, state: State) -> int:
        """The number of a state; of two that differ only in which site is which, one number."""
        first, second = (np.array([self._folder_number(folder)]) for folder in state.folders)
        return int(self._packed(np.array([self._runs.number(state.director)]), first, second)[0])

    def following(self, states: Numbers) -> Steps:
        """What may come next of these states.

        Raises:
            WrongStateError: what comes next must not be.
        """
        runs, first, second = _parts(states)
        self._work_out_folders(states)
        found = []
        for moving, others in ((first, second), (second, first)):
            refs, steps = self._folder_steps.of(moving)
            found.append((refs, self._packed(runs[refs], steps[:, 0], others[refs]), steps[:, 1]))
        rows, are_swapped = self._result_rows_of(states)
        refs, steps = self._results.of(rows)
        after, are_accidents, one, other = steps.T
        one, other = np.where(are_swapped[refs], (other, one), (one, other))
        one, other = self._place(first[refs], one), self._place(second[refs], other)
        found.append((refs, self._packed(after, one, other), are_accidents))
        sources, targets, accidents = (np.concatenate(each) for each in zip(*found, strict=True))
        return Steps(sources, targets, accidents.astype(bool))

    def are_ends(self, states: Numbers) -> Flags:
        """Whether the run is over, every folder says so, and every site has read all; asked after ``following``.

        Raises:
            WrongStateError: an end is not as it must be.
        """
        runs, first, second = _parts(states)
        rows, _ = self._result_rows_of(states)
        is_quiet, is_over = (np.frombuffer(each, dtype=np.bool_) for each in (self._is_quiet, self._is_over))
        are_ends: Flags = is_quiet[first] & is_quiet[second] & is_over[rows]
        for folders in (first, second):
            keys = runs << _BITS | folders
            for key in _unknown(keys[are_ends], self._ends_well):
                with _wrong_is(lambda key=key, keys=keys: states[are_ends & (keys == key)]):
                    check_end(self._runs.parts[key >> _BITS], self._folders.parts[key & _MASK], self.rules)
                self._ends_well.add(key)
        return are_ends

    # --- what is worked out once ---------------------------------------------------------------------------

    def _packed(self, runs: Numbers, first: Numbers, second: Numbers) -> Numbers:
        if self.rules.is_symmetric:
            first, second = np.minimum(first, second), np.maximum(first, second)
        return runs << 2 * _BITS | first << _BITS | second

    def _work_out_folders(self, states: Numbers) -> None:
        """All that are numbered: of those that are new some state among these has each."""
        for number in range(len(self._folder_steps), len(self._folders.parts)):
            folder = self._folders.parts[number]
            with _wrong_is(lambda number=number: states[np.any(np.equal(_parts(states)[1:], number), axis=0)]):
                found = self._of.folder_steps(folder, self.rules)
            self._folder_steps.append((self._folder_number(after), accident) for _, accident, after in found)
            self._is_quiet.append(hospital.is_quiet(folder, self.rules))

    def _result_rows_of(self, states: Numbers) -> tuple[Numbers, Flags]:
        """The rows of what may happen at the aggregator; and whether with the one site for the other."""
        runs, *folders = _parts(states)
        views = np.frombuffer(self._view_of_folder, dtype=np.int64)
        first, second = (views[each] for each in folders)
        keys = self._packed(runs, first, second)
        distinct, refs = np.unique(keys, return_inverse=True)
        for key in _unknown(distinct, self._result_rows):
            with _wrong_is(lambda key=key: states[keys == key]):
                self._work_out_results(key)
        rows = np.array([self._result_rows[key] for key in distinct.tolist()], dtype=np.int64)
        return rows[refs], np.asarray(first > second) & self.rules.is_symmetric

    def _work_out_results(self, key: int) -> None:
        run, *seen = (int(part[0]) for part in _parts(np.array([key])))
        views = (self._views.parts[seen[0]], self._views.parts[seen[1]])
        found = self._of.results(self._runs.parts[run], views, self.rules)
        if self.rules.is_symmetric and seen[0] != seen[1]:
            _check_symmetry(found, self._of.results(self._runs.parts[run], views[::-1], self.rules))
        self._result_rows[key] = len(self._results)
        self._results.append(
            (self._runs.number(after), accident, *(self._marks.number((desk, name)) for desk in desks))
            for name, accident, after, desks in found
        )
        office = director.Office(self._runs.parts[run], views, self.rules)
        self._is_over.append(office.is_over and office.is_last)

    def _place(self, folders: Numbers, marks: Numbers) -> Numbers:
        """The numbers of folders whose aggregator's end has changed."""
        keys, refs = np.unique(folders << _BITS | marks, return_inverse=True)
        for key in _unknown(keys, self._placed):
            folder, (desk, name) = self._folders.parts[key >> _BITS], self._marks.parts[key & _MASK]
            self._placed[key] = self._folder_number(self._of.placed(folder, desk, name))
        return np.array([self._placed[key] for key in keys.tolist()], dtype=np.int64)[refs]

    def _folder_number(self, folder: Folder) -> int:
        number = self._folders.number(folder)
        if number == len(self._view_of_folder):
            self._view_of_folder.append(self._views.number(director.view_of(folder)))
        return number


def _parts(states: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return states >> 2 * _BITS, states >> _BITS & _MASK, states & _MASK


def _unknown(keys: Numbers, known: Container[int]) -> list[int]:
    return [key for key in np.unique(keys).tolist() if key not in known]


@contextmanager
def _wrong_is(states: Callable[[], Numbers]) -> Iterator[None]:
    """Of a property that is violated in the block, say in which state: the first of these."""
    try:
        yield
    except ViolationError as violation:
        raise WrongStateError(str(violation), int(states()[0])) from violation


def _check_symmetry(found: list[director.Result], mirrored: list[director.Result]) -> None:
    """The aggregator does the same whichever of two sites is which."""
    one = {(after, desks) for _, _, after, desks in found}
    other = {(after, desks[::-1]) for _, _, after, desks in mirrored}
    if one != other:
        raise AssertionError("what the aggregator does depends on which site is which")
