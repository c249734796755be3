"""The next global model, and what goes with it: in memory are one tensor, and a part of one of one site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import combinations
from pathlib import Path

import numpy as np

from shared.doors.tensor_file import count_of
from shared.errors import FaultError
from shared.exchange.encoding import rounded
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.wire import FileEntry, Numbers
from shared.exchange.weights import LARGEST, Array, TensorFile, magnitude_of, write_tensors
from shared.learning.combinations.contract import Rule
from shared.learning.methods.contract import MODEL, Groups, Method

PART = 1 << 20  # numbers looked at at a time
FLOAT32_MAX = float(np.finfo(np.float32).max)
_HIDDEN: Mapping[Numbers, tuple[float, float]] = {
    "float32": (0.0, 0.0),
    "bfloat16": (2.0**-8, 0.0),
    "float16": (2.0**-11, 2.0**-25),
}
"""How far a number can be from what it is rounded to: of itself, and of its subnormal neighbours."""
Files = Mapping[str, Path]


@dataclass(frozen=True)
class Weighed:
    """What a round's accepted sites sent, and what each counts for: checked files in the plain form.

    Args:
        files: by site and group; each has ``MODEL``.
        weights: by site, > 0, summing to 1.
        agreed: N, all sites that have agreed to the run so far; None: those that sent.
    """

    files: Mapping[str, Files]
    weights: Mapping[str, float]
    agreed: int | None = None


@dataclass(frozen=True)
class _Stretch:
    """A stretch of one tensor as it was before the round."""

    name: str
    start: int
    count: int
    before_files: Files
    opened: Callable[[Path], TensorFile]

    def before(self, group: str = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._read(self.before_files[group])

    def _read(self, path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.opened(path).part(self.name, self.start, self.count).astype(np.float64)


@dataclass(frozen=True)
class _Part(_Stretch):
    """See ``contract.Part``."""

    updates: Weighed
    rule: Rule

    @property
    def accepted(self) -> int:
        return len(self.updates.weights)

    @property
    def agreed(self) -> int:
        return self.updates.agreed or self.accepted

    def mean(self, group: str = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        # Σ a_k · x_k in the order of the sites' names, whatever the order of arrival (protocol 7.2).
        sites = sorted(self.updates.weights)
        values = (self._read(self.updates.files[site][group]) for site in sites)
        return self.rule.average(values, [self.updates.weights[site] for site in sites])


@dataclass(frozen=True)
class Combined:
    """What a method makes of a round's answers, tensor by tensor; computed in float64, stored as float32.

    Args:
        tensors: what comes out, by group; the model's is ``MODEL``.
        before: each group as it was before the round.
        buffers: tensors of the model that are averaged whatever the method.
        numbers: what the run sends: the model is rounded to them, so that sites receive exactly what is stored.
        travel: groups that sites are sent.
    """

    method: Method
    tensors: Mapping[str, TensorList]
    before: Files
    updates: Weighed
    buffers: frozenset[str] = frozenset()
    rule: Rule = field(default_factory=Rule)
    numbers: Numbers = "float32"
    travel: frozenset[str] = frozenset({MODEL})

    def write(self, targets: Files) -> FileEntry:
        """Write the groups of ``targets``, the model last.

        Returns:
            What a manifest says of the model.

        Raises:
            OverflowError: something of it could not be sent, though all that was sent could.
        """
        for group in targets:
            if group != MODEL:
                write_tensors(targets[group], self.tensors[group], lambda name, group=group: self._whole(group, name))  # type: ignore[misc]
        return write_tensors(targets[MODEL], self.tensors[MODEL], lambda name: self._whole(MODEL, name))

    def try_out(self) -> None:
        """Compute all of it, and keep nothing.

        Raises:
            OverflowError: as ``write``.
        """
        for group, listed in self.tensors.items():
            for name in listed.tensors:
                self._whole(group, name)

    def _whole(self, group: str, name: str) -> Array:
        # 1. Part by part, in float64, by the method's own formula; buffers are averaged whatever it is (protocol 7.3).
        shape = self.tensors[group].tensors[name].shape
        total = np.empty(count_of(shape), dtype=np.float32)
        most = max(1, PART // len(self.updates.weights)) if self.rule.compares_all else PART
        for start in range(0, len(total), most):
            count = min(most, len(total) - start)
            part = _Part(name, start, count, self.before, self._opened, self.updates, self.rule)
            with np.errstate(over="ignore"):  # step 3 finds it
                is_averaged = name in self.buffers
                found = part.mean() if is_averaged else self._combined(part, group)
                if np.shape(found) != (count,):  # numpy would repeat a single number
                    raise FaultError(
                        self.method.combine, f"gave shape {np.shape(found)} for {name} of {group}, not {(count,)}"
                    )
                total[start : start + count] = found
        # 2. Rounded once to float32, and the model to the numbers that the run sends (protocol 9.2).
        whole = rounded(total.reshape(shape), self.numbers) if group == MODEL else total.reshape(shape)
        # 3. What sites are sent must be no greater than they accept (protocol 9.1), and the rest finite.
        if not magnitude_of(whole) <= (LARGEST if group in self.travel else FLOAT32_MAX):
            raise OverflowError(f"{name} of what goes on as {group} would hold NaN, or what is too great to be sent")
        return whole

    def _combined(self, part: _Part, group: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        made = self.method.combine(part)
        if not (isinstance(made, Mapping) and group in made):
            raise FaultError(self.method.combine, f"gave nothing by the name {group}")
        return made[group]

    @cached_property
    def _opened(self) -> Callable[[Path], TensorFile]:
        return cache(TensorFile)


class _Still:
    """A part of one number, 0, that no site has moved; see ``contract.Part``."""

    accepted = agreed = 1

    def before(self, group: str = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.zeros(1)

    mean = before


def checked_groups(method: Method, groups: Groups) -> Groups:
    """Return a method's groups, if it combines no others: what it gave of those would be dropped. That is tried on a
    single number, before a run begins.

    Raises:
        FaultError: it does.
    """
    try:
        made = method.combine(_Still())
    except Exception:  # what it cannot do here is told where it must
        return groups
    due = {MODEL, *groups.to_site, *groups.at_aggregator}
    if isinstance(made, Mapping) and (undeclared := [group for group in made if group not in due]):
        what = f"gave {undeclared[0]}, which groups() declares neither to_site nor at_aggregator"
        raise FaultError(method.combine, what)
    return groups


@dataclass(frozen=True)
class _Sent(_Stretch):
    """See ``contract.Sent``."""

    files: Files
    rate: float
    images: int
    numbers: Numbers

    def sent(self, group: str = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._read(self.files[group])

    def moved(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        x, (relative, absolute) = self.sent(), _HIDDEN[self.numbers]
        return np.abs(self.before() - x) + relative * np.abs(x) + absolute


def implausible(
    method: Method, parameters: TensorList, *, before: Files, sent: Files, rate: float, images: int, numbers: Numbers
) -> tuple[str, str] | None:
    """Return what one site sent beside its model that cannot follow from that: the group and the parameter, or None.

    Args:
        before: what it received, by group.
        sent: what it sent, by group: checked files in the plain form.
        rate: the round's learning rate.
        images: on how many the site has said that it trains.
    """
    if type(method).implausible is Method.implausible:
        return None
    opened = cache(TensorFile)
    for name, tensor in parameters.tensors.items():
        size = count_of(tensor.shape)
        for start in range(0, size, PART):
            part = _Sent(name, start, min(PART, size - start), before, opened, sent, rate, images, numbers)
            if (group := method.implausible(part)) is not None:
                return group, name
    return None


def distances(updates: Mapping[str, Files], tensors: Mapping[str, TensorList]) -> dict[tuple[str, str], float]:
    """Return the squared distance between the answers of each two sites, the earlier name first.

    Args:
        updates: files by site and group.
        tensors: what of them counts, by group.
    """
    sites = sorted(updates)
    apart = dict.fromkeys(combinations(sites, 2), 0.0)
    most = max(1, PART // len(sites))
    for group, listed in tensors.items():
        opened = [TensorFile(updates[site][group]) for site in sites]
        for name, tensor in listed.tensors.items():
            size = count_of(tensor.shape)
            for start in range(0, size, most):
                count = min(most, size - start)
                numbers = np.stack([file.part(name, start, count).astype(np.float64) for file in opened])  # (S, n)
                for at, site in enumerate(sites):
                    # One after another, for every release of numpy divides a sum as it likes.
                    to_later = np.square(numbers[at + 1 :] - numbers[at]).cumsum(axis=1)[:, -1]
                    for other, distance in zip(sites[at + 1 :], to_later.tolist(), strict=True):
                        apart[site, other] += distance
    return apart
