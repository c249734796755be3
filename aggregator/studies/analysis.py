"""What a study's results say: means with their spread, tests between ways, ensembles of folds, noise, foreign images.

A value is of one way, seed, turn of the cross-validation and pair of sites: whose model, whose images. ``internal`` is
a model on images of its own site (of pooled sites: of any), ``external`` on another's.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.report.tables import Spread, Table
from aggregator.studies.configuration import POOLED, Energy
from aggregator.studies.matrix import Cell
from aggregator.studies.results import PREDICTIONS, folder_of, result_of
from shared.learning.metrics import mean_and_std, mean_over_sites, ranking

Row = Mapping[str, Any]
Key = tuple[Any, ...]
Floats = NDArray[np.float64]

ETAS = (1.0, 1.5, 2.0, math.e)
"""How far larger sites count more in a mean over sites: not at all with 1, by their images with e (FedEE)."""
_NO_SPREAD = 1e-9
"""Values that lie no farther apart than this are the same but for rounding: no t-test tells anything of them."""


def kind_of(row: Row) -> str:
    """``internal`` or ``external``."""
    return "internal" if row["model_of"] in (row["tested_on"], POOLED) else "external"


def values(rows: Iterable[Row], score: str, *, split: str = "test") -> dict[tuple[str, str], dict[Key, float]]:
    """By way and kind: the scores by seed, turn and pair of sites; what is undefined is left out."""
    found: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    for row in rows:
        value = row["scores"].get(score)
        if row["split"] == split and value is not None:
            place = (row["seed"], row["outer"], row["inner"], row["model_of"], row["tested_on"])
            found[row["way"], kind_of(row)][place] = value
    return dict(found)


def spread_over_repeats(found: Mapping[Key, float]) -> Spread | float | None:
    """The mean over pairs of sites, then its mean and standard deviation over seeds and turns; one has no spread."""
    by_repeat: dict[Key, list[float]] = defaultdict(list)
    for place, value in found.items():
        by_repeat[place[:3]].append(value)
    means = [math.fsum(of_repeat) / len(of_repeat) for of_repeat in by_repeat.values()]
    if not means:
        return None
    return means[0] if len(means) == 1 else Spread(*_mean_and_sample_std(means))


def comparison(rows: Sequence[Row], scores: Sequence[str]) -> Table:
    """Every way's scores on the sites' test images."""
    by_score = {score: values(rows, score) for score in scores}
    pairs = _in_order(rows)
    body = [
        [way, kind, *(spread_over_repeats(by_score[score].get((way, kind), {})) for score in scores)]
        for way, kind in pairs
    ]
    caption = "Scores on test images: mean over sites, ± standard deviation of that mean over seeds and folds."
    return Table("comparison", caption, ("way", "tested on", *scores), body)


def by_site(rows: Sequence[Row], score: str) -> Table:
    """One score of every way, by the site whose images they are."""
    sites = sorted({row["tested_on"] for row in rows if row["split"] == "test"})
    found = values(rows, score)
    body = [
        [way, kind, *(spread_over_repeats(_of_site(found.get((way, kind), {}), site)) for site in sites)]
        for way, kind in _in_order(rows)
    ]
    return Table("by-site", f"{score} by the site whose test images they are.", ("way", "tested on", *sites), body)


@dataclass(frozen=True)
class Tested:
    """One comparison of two ways; p-values are two-tailed.

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
    """Every pair of ways, compared on the values of one seed, turn and tested site: of several models their mean."""
    from scipy import stats  # noqa: PLC0415  (takes half a second)

    found = {way: _by_tested(places) for (way, of_kind), places in values(rows, score).items() if of_kind == kind}
    compared = []
    for first, second in combinations(found, 2):
        both = sorted(found[first].keys() & found[second].keys(), key=str)
        if not both:
            continue
        one, two = (np.array([found[way][place] for place in both]) for way in (first, second))
        paired = unpaired = None
        if len(both) > 1:
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
    header = ("way", "against", "difference", "pairs", "p paired", "adjusted", "p unpaired", "adjusted ")
    caption = (
        f"Two-tailed t-tests on {score}, {kind}; adjusted by Benjamini and Hochberg. Values of one seed are not "
        "independent of each other where folds share images: p-values say less than they seem to."
    )
    return Table("tests" if kind == "internal" else f"tests-{kind}", caption, header, body)


def noise(rows: Sequence[Row], score: str) -> Table:
    """One score by the variance of the noise on the test images; 0 is none."""
    variances = sorted({float(row["split"].removeprefix("noise-")) for row in rows if _is_noise(row)})
    by_variance = {0.0: values(rows, score)} | {
        variance: values(rows, score, split=f"noise-{variance:g}") for variance in variances
    }
    ways = [way for way, kind in _in_order(rows) if kind == "internal"]
    body = [
        [way, *(spread_over_repeats(found.get((way, "internal"), {})) for found in by_variance.values())]
        for way in ways
    ]
    caption = f"{score} on test images with Gaussian noise, by its variance (levels from 0 to 1)."
    return Table("noise", caption, ("way", *(f"{variance:g}" for variance in by_variance)), body)


def elsewhere(rows: Sequence[Row]) -> Table:
    """Whether models are less sure of other sites' images, and of foreign ones."""
    found: dict[tuple[str, str], dict[Key, float]] = defaultdict(dict)
    for row in rows:
        value = row["scores"].get("ood_auroc")
        if value is not None and (row["split"] == "foreign" or kind_of(row) == "external"):
            what = "foreign" if row["split"] == "foreign" else "other sites"
            place = (row["seed"], row["outer"], row["inner"], row["model_of"], row["tested_on"])
            found[row["way"], what][place] = value
    ways = list(dict.fromkeys(row["way"] for row in rows))
    body = [
        [way, *(spread_over_repeats(found.get((way, what), {})) for what in ("other sites", "foreign"))] for way in ways
    ]
    caption = "P(an image from elsewhere is more uncertain than one of the model's own site); 0.5 tells nothing."
    return Table("elsewhere", caption, ("way", "other sites", "foreign"), body)


def fairness(rows: Sequence[Row], score: str) -> Table:
    """The mean over sites with larger sites counting ever more: Σ η^(ln n) λ / Σ η^(ln n) (FedEE)."""
    ways = [way for way, kind in _in_order(rows) if kind == "internal"]
    body = []
    for way in ways:
        by_repeat: dict[Key, list[tuple[float, int]]] = defaultdict(list)
        for row in rows:
            value = row["scores"].get(score)
            if (row["way"], row["split"], kind_of(row)) == (way, "test", "internal") and value is not None:
                by_repeat[row["seed"], row["outer"], row["inner"]].append((value, row["images"]))
        means = [
            [mean_over_sites([v for v, _ in told], [n for _, n in told], eta) for told in by_repeat.values()]
            for eta in ETAS
        ]
        body.append([way, *(_spread(of_eta) for of_eta in means)])
    header = ("way", *(f"η = {'e' if eta == math.e else f'{eta:g}'}" for eta in ETAS))
    return Table("fairness", f"{score}, mean over sites: alike with η = 1, by their images with η = e.", header, body)


def cost(rows: Sequence[Row], energy: Energy) -> Table:
    """What a way costs: the model, a round's bytes, time, and an estimate of energy by the formula in the caption."""
    body = []
    for way in dict.fromkeys(row["way"] for row in rows):
        cells = {row["configuration"]: row for row in rows if row["way"] == way}.values()
        seconds, up, down = (
            math.fsum(row[name] for row in cells) / len(cells)
            for name in ("seconds", "bytes_from_site", "bytes_to_site")
        )
        first = next(iter(cells))
        moved = (up + down) * first["answers"]
        watt_hours = (seconds * energy.watts + moved / 1e6 * energy.joules_per_megabyte) / 3600
        body.append([way, first["parameters"], first["flops"] / 1e9, up / 1e6, down / 1e6, seconds, watt_hours])
    header = ("way", "parameters", "GFLOPs an image", "MB from a site", "MB to a site", "s a run", "Wh a run")
    caption = (
        "MB are of one site and training round. Energy is an estimate, not measured: (seconds · "
        f"{energy.watts:g} W + MB of all sites and training rounds · {energy.joules_per_megabyte:g} J) / 3600."
    )
    return Table("cost", caption, header, body)


# --- ensembles of the inner folds -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Predicted:
    """What a classification's models say about images, together.

    Args:
        truth: (N,) classes.
        probabilities: (N, K).
        severities: (N,) text, empty where the task has none.
    """

    images: tuple[str, ...]
    truth: NDArray[np.int64]
    probabilities: Floats
    severities: tuple[str, ...]


def read_predictions(path: Path) -> Predicted | None:
    """A table that a cell wrote; None where there is none."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in (rows[0] if rows else {}) if name.startswith("probability_")]
    return Predicted(
        tuple(row["image"] for row in rows),
        np.array([int(row["class"]) for row in rows]),
        np.array([[float(row[name]) for name in columns] for row in rows]),
        tuple(row["severity"] for row in rows),
    )


def youden_cut(predicted: Predicted) -> float:
    """The probability of class 1 from which on sensitivity + specificity is greatest; the highest such, of equals."""
    found = ranking(predicted.probabilities[:, 1], predicted.truth == 1)
    if not found.positives[-1] or not found.negatives[-1]:
        return 0.5
    # In whole numbers: equals stay equal, which two rounded shares need not.
    gain = found.positives * found.negatives[-1] - found.negatives * found.positives[-1]
    return float(found.scores[int(np.argmax(gain))])


@dataclass(frozen=True)
class Voted:
    """The models of one outer fold's inner turns, voting softly: their probabilities are averaged, and their cuts."""

    way: str
    seed: int
    outer: int | None
    model_of: str
    tested_on: str
    predicted: Predicted
    cut: float


def votes(home: Path, cells: Sequence[Cell]) -> Iterator[Voted]:
    """Every ensemble of two classes whose members are all finished; without a cross-validation each votes alone."""
    groups: dict[Key, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.way, cell.configuration.run.seed, cell.turn.outer if cell.turn else None].append(cell)
    for (way, seed, outer), members in groups.items():
        if any(result_of(home, member) is None for member in members):
            continue
        first = folder_of(home, members[0]) / PREDICTIONS
        for path in sorted(first.glob("*/*.test.csv")):
            model_of, tested_on = path.parent.name, path.name.removesuffix(".test.csv")
            tested, validated = [], []
            for member in members:
                folder = folder_of(home, member) / PREDICTIONS / model_of
                tested.append(read_predictions(folder / f"{tested_on}.test.csv"))
                validated.append(read_predictions(folder / f"{model_of}.validation.csv"))
            together = _together([each for each in tested if each is not None])
            if together is None or together.probabilities.shape[1] != 2:
                continue
            cuts = [youden_cut(each) for each in validated if each is not None]
            cut = math.fsum(cuts) / len(cuts) if cuts else 0.5
            yield Voted(way, seed, outer, model_of, tested_on, together, cut)


def ensemble(found: Sequence[Voted]) -> Table:
    """The scores of soft votes, and the share that is right of each severity."""
    severities = list(dict.fromkeys(name for each in found for name in each.predicted.severities if name))
    names = ("accuracy", "balanced accuracy", "AUROC", "AUPRC", "F1", "sensitivity", "specificity")
    scored: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for each in found:
        kind = "internal" if each.model_of in (each.tested_on, POOLED) else "external"
        scored[each.way, kind].append(_vote_scores(each, severities))
    body = [
        [way, kind, *(_spread([one[name] for one in of_way if name in one]) for name in (*names, *severities))]
        for (way, kind), of_way in scored.items()
    ]
    caption = (
        "Inner folds vote softly, cut at the mean of their validation cuts (Youden): mean ± standard deviation over "
        "sites, outer folds and seeds. Of each severity: the share that is right."
    )
    return Table("ensemble", caption, ("way", "tested on", *names, *severities), body)


def _vote_scores(voted: Voted, severities: Sequence[str]) -> dict[str, float]:
    predicted, truth = voted.predicted, voted.predicted.truth == 1
    says = predicted.probabilities[:, 1] >= voted.cut
    right = says == truth
    found = {"accuracy": float(right.mean())}
    curve = ranking(predicted.probabilities[:, 1], truth)
    if truth.any() and not truth.all():
        sensitivity, specificity = float(says[truth].mean()), float((~says[~truth]).mean())
        found |= {"sensitivity": sensitivity, "specificity": specificity}
        found |= {"balanced accuracy": (sensitivity + specificity) / 2}
        areas = {"AUROC": curve.auroc(), "AUPRC": curve.average_precision()}
        found |= {name: area for name, area in areas.items() if area is not None}
    if truth.any() or says.any():
        found["F1"] = float(2 * (says & truth).sum() / (says.sum() + truth.sum()))
    for severity in severities:
        chosen = np.array([name == severity for name in predicted.severities])
        if chosen.any():
            found[severity] = float(right[chosen].mean())
    return found


def _together(found: Sequence[Predicted]) -> Predicted | None:
    """The mean of several models' probabilities of the same images."""
    if not found or any(each.images != found[0].images for each in found):
        return None
    first = found[0]
    mean = np.mean([each.probabilities for each in found], axis=0)
    return Predicted(first.images, first.truth, mean, first.severities)


# --- small things ----------------------------------------------------------------------------------------------


def _in_order(rows: Sequence[Row]) -> list[tuple[str, str]]:
    found = dict.fromkeys((row["way"], kind_of(row)) for row in rows if row["split"] == "test")
    ways = list(dict.fromkeys(way for way, _ in found))
    return [(way, kind) for way in ways for kind in ("internal", "external") if (way, kind) in found]


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


def _spread(found: Sequence[float]) -> Spread | float | None:
    if not found:
        return None
    return found[0] if len(found) == 1 else Spread(*_mean_and_sample_std(found))


def _mean_and_sample_std(found: Sequence[float]) -> tuple[float, float]:
    """The mean, and the standard deviation with n − 1 below."""
    mean, std = mean_and_std(found)
    return mean, std * math.sqrt(len(found) / (len(found) - 1))
