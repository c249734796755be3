"""From how many images of its own a site does as well alone as in a federation, from a study's tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

Table = list[list[str]]
Curve = Mapping[int, tuple[float, float]]
"""By number of training images a site: a score's mean over the sites, and its standard deviation over the seeds."""

_ARM = re.compile(r"(?P<method>.+), (?P<images>\d+) images(?: \(.*\))?")  # a remark on untrained models may follow
_TESTED_ON = {"internal": "own images", "external": "other sites' images"}


def arm_of(name: str) -> tuple[str, int] | None:
    """Return the method and the number of training images of an arm, None of one that is not called by them."""
    found = _ARM.fullmatch(name)
    return (found["method"], int(found["images"])) if found else None


def curves(comparison: Table, score: str) -> dict[str, dict[str, Curve]]:
    """Return a curve for each method, by what it is tested on, of arms that are called ``METHOD, NUMBER images``."""
    header, *rows = comparison
    found: dict[str, dict[str, dict[int, tuple[float, float]]]] = {}
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        if (arm := arm_of(cells["arm"])) and cells[score]:
            mean, _, deviation = cells[score].partition(" ± ")
            method, images = arm
            curve = found.setdefault(cells["tested on"], {}).setdefault(method, {})
            curve[images] = (float(mean), float(deviation or "nan"))
    return {tested_on: dict(by_method) for tested_on, by_method in found.items()}


def break_even(alone: Curve, federated: Curve) -> float | None:
    """Return the number of images from which a site does as well alone, straight between two numbers on a log scale.

    Returns:
        ``inf`` where the federation is ahead to the last number, 0 where it never is; None where it is behind at one
        number and ahead at a greater one, so that there is no such number.
    """
    gains = [(number, federated[number][0] - alone[number][0]) for number in sorted(alone.keys() & federated.keys())]
    signs = [gain > 0 for _, gain in gains]
    if signs != sorted(signs, reverse=True):
        return None
    if all(signs):
        return math.inf
    if not any(signs):
        return 0.0
    (below, gain), (above, loss) = gains[sum(signs) - 1], gains[sum(signs)]
    return math.exp(math.log(below) + gain / (gain - loss) * (math.log(above) - math.log(below)))


def break_even_table(comparison: Table, score: str) -> Table:
    """Return, for each method and what it is tested on, from where a site does as well alone, in words."""
    body = []
    for tested_on, by_method in curves(comparison, score).items():
        alone = by_method.pop("alone")
        body += [
            [method, _TESTED_ON.get(tested_on, tested_on), in_words(break_even(alone, curve), sorted(alone))]
            for method, curve in by_method.items()
        ]
    return [["method", "tested on", "as good alone from"], *body]


def in_words(found: float | None, numbers: Sequence[int]) -> str:
    """Return what ``break_even`` found, of curves over so many images."""
    if found is None:
        return "no one number: ahead and behind by turns"
    if math.isinf(found):
        return f"more than {numbers[-1]} images"
    return f"about {found:.0f} images" if found else f"{numbers[0]} images or fewer"


def draw(comparison: Table, score: str, path: Path) -> None:
    """Draw every method's curve, on own and on other sites' images."""
    by_set = curves(comparison, score)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (tested_on, by_method) in zip(
        figure.subplots(1, len(by_set), sharey=True, squeeze=False)[0], by_set.items(), strict=True
    ):
        for method, curve in by_method.items():
            numbers = sorted(curve)
            means, deviations = zip(*(curve[number] for number in numbers), strict=True)
            axes.errorbar(numbers, means, yerr=deviations, label=method, marker="o", capsize=3)
        axes.set(
            title=_TESTED_ON.get(tested_on, tested_on), xlabel="training images a site", ylabel=score, xscale="log"
        )
        axes.set_xticks(numbers, [str(number) for number in numbers])
        axes.minorticks_off()
    axes.legend()
    figure.savefig(path, dpi=120)
