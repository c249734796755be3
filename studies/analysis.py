"""What a study's results say: means with their spread, tests between arms, noise, out-of-distribution images, cost.

A value is of one arm, seed, turn of the cross-validation and pair of sites: whose model, whose images. ``internal`` is
a model on images of its own site (of pooled sites: of any), ``external`` on another's.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.report.tables import Cell, Missing, Partly, Spread, Table
from shared.learning.metrics import mean_and_std, mean_over_sites
from shared.plurals import pluralize
from studies.configuration import POOLED, Energy

Row = Mapping[str, Any]
Key = tuple[Any, ...]
Floats = NDArray[np.float64]

ETAS = (1.0, 1.5, 2.0, math.e)
"""How far larger sites count more in a mean over sites: not at all with 1, by their images with e (FedEE)."""
_FEWEST_TESTED = 3
"""Of two values' differences a t-test tells nothing that one would act on."""
_NO_SPREAD = 1e-9
"""Values that lie no farther apart than this are the same but for rounding: no t-test tells anything of them."""


_ONE_MODEL = Missing("one model")


def kind_of(row: Row) -> str:
    """``internal`` or ``external``."""
    return "internal" if row["model_of"] in (row["tested_on"], POOLED) else "external"


def values(rows: Iterable[Row], score: str, *, split: str = "test") -> dict[tuple[str, str], dict[Key, float]]:
    """By arm and kind: the scores by seed, turn and pair of sites; what is undefined is left out."""
    found: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    for row in rows:
        value = row["scores"].get(score)
        if row["split"] == split and value is not None:
            place = (row["seed"], row["outer"], row["inner"], row["model_of"], row["tested_on"])
            found[row["arm"], kind_of(row)][place] = value
    return dict(found)


def untrained(rows: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """By arm: in how many cells a model was chosen that no round had trained, and how many cells there are."""
    cells: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in rows:
        of_arm = cells[row["arm"]]
        of_arm[row["configuration"]] = of_arm.get(row["configuration"], False) or row["chosen_round"] == 0
    return {arm: (sum(of_arm.values()), len(of_arm)) for arm, of_arm in cells.items()}


def labels(rows: Iterable[Row]) -> dict[str, str]:
    """By arm, what tables call it: where untrained models are among its own, its name says so."""
    return {
        arm: f"{arm} (untrained model in {none} of {pluralize(cells, 'cell')})" if none else arm
        for arm, (none, cells) in untrained(rows).items()
    }


def chosen_rounds(rows: Sequence[Row]) -> Table:
    """After which round the model was taken that is tested."""
    body: list[list[Cell]] = []
    for arm, (none, cells) in untrained(rows).items():
        of_arm = [row for row in rows if row["arm"] == arm]
        rounds = ", ".join(map(str, sorted({row["rounds"] for row in of_arm})))
        body.append([arm, range_of(row["chosen_round"] for row in of_arm), rounds, cells, none])
    caption = (
        "After which round the tested model was chosen, by its score on validation images; 0 is the model that the run "
        "began with, which no round has trained."
    )
    return Table("chosen", caption, ("arm", "chosen round", "of", "cells", "cells with an untrained model"), body)


def tested_images(rows: Iterable[Row]) -> str:
    """How many test images each site has: where folds and seeds differ, the fewest and the most."""
    found: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        if row["split"] == "test":
            found[row["tested_on"]].add(row["images"])
    return ", ".join(f"{site} {range_of(found[site])}" for site in sorted(found))


def range_of(numbers: Iterable[int]) -> str:
    """As in "3", or "2 to 9"."""
    found = set(numbers)
    return f"{min(found):,}" if len(found) == 1 else f"{min(found):,} to {max(found):,}"


def spread_over_repeats(found: Mapping[Key, float]) -> Spread | float | None:
    """The mean over pairs of sites, then its mean and standard deviation over seeds and turns; one has no spread."""
    by_repeat: dict[Key, list[float]] = defaultdict(list)
    for place, value in found.items():
        by_repeat[place[:3]].append(value)
    means = [math.fsum(of_repeat) / len(of_repeat) for of_repeat in by_repeat.values()]
    if not means:
        return None
    return means[0] if len(means) == 1 else Spread(*_mean_and_sample_std(means))


def _over_repeats(found: Mapping[Key, float], asked: int) -> Spread | Partly | float | None:
    """The same, and where fewer values are defined than were asked for, how many."""
    over_repeats = spread_over_repeats(found)
    if over_repeats is None or len(found) == asked:
        return over_repeats
    return Partly(over_repeats, len(found), asked)


def comparison(rows: Sequence[Row], scores: Sequence[str], what: str = "images") -> Table:
    """Every arm's scores on the sites' test images.

    Args:
        what: the images are called, as in all tables.
    """
    by_score = {score: values(rows, score) for score in scores}
    asked = Counter((row["arm"], kind_of(row)) for row in rows if row["split"] == "test")
    body = [
        [*pair, *(_over_repeats(by_score[score].get(pair, {}), asked[pair]) for score in scores)]
        for pair in _in_order(rows)
    ]
    caption = f"Scores on test {what}: mean over sites, ± standard deviation of that mean over seeds and folds."
    if any(isinstance(cell, Partly) for line in body for cell in line):
        caption += " In brackets: how many of the values are defined, where not all are."
    return Table("comparison", caption, ("arm", "tested on", *map(heading, scores)), body)


def heading(score: str) -> str:
    """What a score is called over a column; of a segmentation each is a mean over images."""
    return score.removesuffix("_mean")


def by_site(rows: Sequence[Row], score: str, what: str = "images") -> Table:
    """One score of every arm, by the site whose images they are."""
    sites = sorted({row["tested_on"] for row in rows if row["split"] == "test"})
    found = values(rows, score)
    body = [
        [arm, kind, *(spread_over_repeats(_of_site(found.get((arm, kind), {}), site)) for site in sites)]
        for arm, kind in _in_order(rows)
    ]
    caption = f"{heading(score)} by the site whose test {what} they are, so many: {tested_images(rows)}."
    return Table("by-site", caption, ("arm", "tested on", *sites), body)


@dataclass(frozen=True)
class Tested:
    """One comparison of two arms; p-values are two-tailed.

    Args:
        difference: mean of the first minus mean of the second, over what both have.
        pairs: how many values both have.
        paired: p of the paired t-test; None where it is not defined.
        unpaired: p of Welch's t-test.
    """

    first: str
    second: str
    difference: float
    pairs: int
    paired: float | None
    unpaired: float | None


def tests(rows: Sequence[Row], score: str, kind: str = "internal") -> list[Tested]:
    """Every pair of arms, compared on the values of one seed, turn and tested site: of several models their mean."""
    from scipy import stats  # noqa: PLC0415  (takes half a second)

    found = {arm: _by_tested(places) for (arm, of_kind), places in values(rows, score).items() if of_kind == kind}
    compared = []
    for first, second in combinations(found, 2):
        both = sorted(found[first].keys() & found[second].keys(), key=str)
        if not both:
            continue
        one, two = (np.array([found[arm][place] for place in both]) for arm in (first, second))
        paired = unpaired = None
        if len(both) >= _FEWEST_TESTED:
            if np.ptp(one - two) > _NO_SPREAD:
                paired = float(stats.ttest_rel(one, two).pvalue)
            if np.ptp(one) + np.ptp(two) > _NO_SPREAD:
                unpaired = float(stats.ttest_ind(one, two, equal_var=False).pvalue)
        compared.append(Tested(first, second, float(np.mean(one - two)), len(both), paired, unpaired))
    return compared


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """P-values adjusted for their number by Benjamini and Hochberg (1995); what is None stays so and does not count."""
    from scipy import stats  # noqa: PLC0415

    known = [p for p in p_values if p is not None]
    corrected = iter(stats.false_discovery_control(known, method="bh").tolist() if known else [])
    return [None if p is None else float(next(corrected)) for p in p_values]


def table_of_tests(compared: Sequence[Tested], score: str, kind: str = "internal") -> Table:
    """All comparisons of one kind with adjusted p-values."""
    paired = adjusted([each.paired for each in compared])
    unpaired = adjusted([each.unpaired for each in compared])
    body = [
        [each.first, each.second, each.difference, each.pairs, each.paired, p, each.unpaired, q]
        for each, p, q in zip(compared, paired, unpaired, strict=True)
    ]
    p_values = [name for test in ("paired", "unpaired") for name in (f"p {test}", f"p {test}, adjusted")]
    header = ("arm", "against", "difference", "pairs", *p_values)
    caption = (
        f"Two-tailed t-tests on {heading(score)}, {kind}; p-values adjusted by Benjamini and Hochberg. The difference "
        "is the arm's mean minus that of the one it is against; pairs are values, not images."
    )
    return Table("tests" if kind == "internal" else f"tests-{kind}", caption, header, body)


def noise(rows: Sequence[Row], score: str, what: str = "images") -> Table:
    """One score by the variance of the noise on the test images; 0 is none."""
    variances = sorted({float(row["split"].removeprefix("noise-")) for row in rows if _is_noise(row)})
    by_variance = {0.0: values(rows, score)} | {
        variance: values(rows, score, split=f"noise-{variance:g}") for variance in variances
    }
    arms = [arm for arm, kind in _in_order(rows) if kind == "internal"]
    body = [
        [arm, *(spread_over_repeats(found.get((arm, "internal"), {})) for found in by_variance.values())]
        for arm in arms
    ]
    caption = f"{heading(score)} on own sites' test {what} with Gaussian noise, by its variance; 0 is none."
    return Table("noise", caption, ("arm", *(f"{variance:g}" for variance in by_variance)), body)


def elsewhere(rows: Sequence[Row], what: str = "images") -> Table:
    """Whether models are less sure of other sites' images, and of out-of-distribution ones."""
    found: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    for row in rows:
        value = row["scores"].get("ood_auroc")
        if value is not None and (row["split"] == "out_of_distribution" or kind_of(row) == "external"):
            whose = "out_of_distribution" if row["split"] == "out_of_distribution" else "other sites"
            place = (row["seed"], row["outer"], row["inner"], row["model_of"], row["tested_on"])
            found[row["arm"], whose][place] = value
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    body: list[list[Cell]] = []
    for arm in arms:
        of_others, of_ood = (found.get((arm, whose), {}) for whose in ("other sites", "out_of_distribution"))
        others = _ONE_MODEL if _mirrored(of_others) else spread_over_repeats(of_others)
        body.append([arm, others, spread_over_repeats(of_ood)])
    caption = (
        f"P(one of the {what} from elsewhere is more uncertain than one of the model's own site); 0.5 tells nothing. "
        f"One model of all sites would come to 0.5 on other sites' {what}, whatever it says."
    )
    return Table("elsewhere", caption, ("arm", "other sites", "out_of_distribution"), body)


def _mirrored(found: Mapping[Key, float]) -> bool:
    """Whether all is as with one model: what it says of s against n is the reverse of what it says of n against s."""
    back = [found.get((*repeat, tested_on, model_of)) for *repeat, model_of, tested_on in found]
    return bool(found) and all(
        other is not None and abs(value + other - 1) < _NO_SPREAD
        for value, other in zip(found.values(), back, strict=True)
    )


def fairness(rows: Sequence[Row], score: str, what: str = "images") -> Table:
    """The mean over sites with larger sites counting ever more: Σ η^(ln n) λ / Σ η^(ln n) (FedEE)."""
    arms = [arm for arm, kind in _in_order(rows) if kind == "internal"]
    body = []
    for arm in arms:
        by_repeat: dict[Key, list[tuple[float, int]]] = defaultdict(list)
        for row in rows:
            value = row["scores"].get(score)
            if (row["arm"], row["split"], kind_of(row)) == (arm, "test", "internal") and value is not None:
                by_repeat[row["seed"], row["outer"], row["inner"]].append((value, row["images"]))
        means = [
            [mean_over_sites([v for v, _ in told], [n for _, n in told], eta) for told in by_repeat.values()]
            for eta in ETAS
        ]
        body.append([arm, *(spread(of_eta) for of_eta in means)])
    header = ("arm", *(f"η = {'e' if eta == math.e else f'{eta:g}'}" for eta in ETAS))
    caption = f"{heading(score)}, mean over sites: alike with η = 1, by their {what} with η = e."
    return Table("fairness", caption, header, body)


def cost(rows: Sequence[Row], energy: Energy, what: str = "images") -> Table:
    """What an arm costs: the model, a round's bytes, time, and an estimate of energy by the formula in the caption."""
    body = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        cells = {row["configuration"]: row for row in rows if row["arm"] == arm}.values()
        seconds, up, down = (
            math.fsum(row[name] for row in cells) / len(cells)
            for name in ("seconds", "bytes_from_site", "bytes_to_site")
        )
        first = next(iter(cells))
        moved = (up + down) * first["answers"]
        watt_hours = (seconds * energy.watts + moved / 1e6 * energy.joules_per_megabyte) / 3600
        body.append([arm, first["parameters"], first["flops"] / 1e9, up / 1e6, down / 1e6, seconds, watt_hours])
    header = (
        "arm",
        "parameters",
        f"GFLOPs an {what.removesuffix('s')}",
        "MB from a site",
        "MB to a site",
        "s a run",
        "Wh a run",
    )
    caption = (
        "MB are of one site and training round. Energy is an estimate, not measured: (seconds · "
        f"{energy.watts:g} W + MB of all sites and training rounds · {energy.joules_per_megabyte:g} J) / 3600."
    )
    return Table("cost", caption, header, body)


# --- small things ----------------------------------------------------------------------------------------------


def _in_order(rows: Sequence[Row]) -> list[tuple[str, str]]:
    found = dict.fromkeys((row["arm"], kind_of(row)) for row in rows if row["split"] == "test")
    arms = list(dict.fromkeys(arm for arm, _ in found))
    return [(arm, kind) for arm in arms for kind in ("internal", "external") if (arm, kind) in found]


def _of_site(found: Mapping[Key, float], site: str) -> dict[Key, float]:
    return {place: value for place, value in found.items() if place[4] == site}


def _by_tested(found: Mapping[Key, float]) -> dict[Key, float]:
    """By seed, turn and tested site: the mean over the models that were tested there."""
    by_place: dict[Key, list[float]] = defaultdict(list)
    for place, value in found.items():
        by_place[*place[:3], place[4]].append(value)
    return {place: math.fsum(of_place) / len(of_place) for place, of_place in by_place.items()}


def _is_noise(row: Row) -> bool:
    return bool(row["split"].startswith("noise-"))


def spread(found: Sequence[float]) -> Spread | float | None:
    """The mean and standard deviation of some values; one has no deviation."""
    if not found:
        return None
    return found[0] if len(found) == 1 else Spread(*_mean_and_sample_std(found))


def _mean_and_sample_std(found: Sequence[float]) -> tuple[float, float]:
    """The mean, and the standard deviation with n − 1 below."""
    mean, std = mean_and_std(found)
    return mean, std * math.sqrt(len(found) / (len(found) - 1))
