"""The next global model, and what goes with it: in memory are one tensor, and a part of one of one site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from shared.doors.tensor_file import count_of
from shared.exchange.encoding import rounded
from shared.exchange.records import FileEntry, Numbers, TensorList
from shared.exchange.weights import Array, TensorFile, write_tensors
from shared.learning.combinations.contract import Rule
from shared.learning.methods.contract import MODEL, Method

PART = 1 << 20  # numbers looked at at a time
Files = Mapping[str, Path]


@dataclass(frozen=True)
class Answers:
    """What a round's accepted sites sent: checked files in the plain form.

    Args:
        files: by site and group; each has ``MODEL``.
        weights: by site, > 0, summing to 1.
        agreed: N, all sites that have agreed to the run so far; None: those that sent.
    """

    files: Mapping[str, Files]
    weights: Mapping[str, float]
    agreed: int | None = None


@dataclass(frozen=True)
class _Part:
    """A stretch of one tensor; see ``contract.Part``."""

    name: str
    start: int
    count: int
    before_files: Files
    answers: Answers
    rule: Rule
    opened: Callable[[Path], TensorFile]

    @property
    def accepted(self) -> int:
        return len(self.answers.weights)

    @property
    def agreed(self) -> int:
        return self.answers.agreed or self.accepted

    def before(self, group: str = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._read(self.before_files[group])

    def mean(self, group: str = MODEL) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        sites = sorted(self.answers.weights)
        values = (self._read(self.answers.files[site][group]) for site in sites)
        return self.rule.average(values, [self.answers.weights[site] for site in sites])

    def _read(self, path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self.opened(path).part(self.name, self.start, self.count).astype(np.float64)


def combine(
    method: Method,
    targets: Files,
    tensors: Mapping[str, TensorList],
    *,
    before: Files,
    answers: Answers,
    buffers: frozenset[str] = frozenset(),
    rule: Rule | None = None,
    numbers: Numbers = "float32",
) -> FileEntry:
    """Write what a method makes of a round's answers, the model last; computed in float64, stored as float32.

    Args:
        targets: where each group goes; the model's is ``MODEL``.
        tensors: what each of them holds.
        before: each group as it was before the round.
        buffers: tensors of the model that are averaged whatever the method.
        numbers: what the run sends: the model is rounded to them, so that sites receive exactly what is stored.

    Returns:
        What a manifest says of the model.

    Raises:
        OverflowError: something of it would not be finite, though all that was sent is.
    """
    rule = rule or Rule()
    most = max(1, PART // len(answers.weights)) if rule.compares_all else PART
    opened = cache(TensorFile)

    def combined(group: str, name: str) -> Array:
        shape = tensors[group].tensors[name].shape
        total = np.empty(count_of(shape), dtype=np.float32)
        for start in range(0, len(total), most):
            count = min(most, len(total) - start)
            part = _Part(name, start, count, before, answers, rule, opened)
            with np.errstate(over="ignore"):
                total[start : start + count] = part.mean() if name in buffers else method.combine(part)[group]
        whole = rounded(total.reshape(shape), numbers) if group == MODEL else total.reshape(shape)
        if not np.isfinite(whole).all():
            raise OverflowError(f"{name} of what goes on as {group} would hold NaN, or what is too great to be sent")
        return whole

    for group in targets:
        if group != MODEL:
            write_tensors(targets[group], tensors[group], lambda name, group=group: combined(group, name))  # type: ignore[misc]
    return write_tensors(targets[MODEL], tensors[MODEL], lambda name: combined(MODEL, name))


def distances(answers: Mapping[str, Files], tensors: Mapping[str, TensorList]) -> dict[tuple[str, str], float]:
    """The squared distance between the answers of each two sites, the earlier name first.

    Args:
        answers: files by site and group.
        tensors: what of them counts, by group.
    """
    sites = sorted(answers)
    apart = dict.fromkeys(combinations(sites, 2), 0.0)
    most = max(1, PART // len(sites))
    for group, listed in tensors.items():
        opened = [TensorFile(answers[site][group]) for site in sites]
        for name, tensor in listed.tensors.items():
            size = count_of(tensor.shape)
            for start in range(0, size, most):
                count = min(most, size - start)
                numbers = np.stack([file.part(name, start, count).astype(np.float64) for file in opened])  # (S, n)
                for at, site in enumerate(sites):
                    to_later = np.square(numbers[at + 1 :] - numbers[at]).sum(axis=1)
                    for other, distance in zip(sites[at + 1 :], to_later.tolist(), strict=True):
                        apart[site, other] += distance
    return apart
