"""What a study's results say: means with their spread, tests between arms, noise, out-of-distribution images, cost.

``results`` is a study's table (``studies/table.py``). A value is of one arm, seed, turn of the cross-validation and
pair of sites: whose model, whose images. ``internal`` is a model on images of its own site (of pooled sites: of any),
``external`` on another's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from aggregator.report.tables import Cell, Missing, Partly, Spread, Table
from shared.learning.metrics import mean_over_sites
from shared.plurals import pluralize
from studies.configuration import POOLED, Energy

REPEAT = ["seed", "outer", "inner"]
"""The columns by which one training of an arm is told from the next."""
KINDS = ["internal", "external"]

ETAS = (1.0, 1.5, 2.0, math.e)
"""How far larger sites count more in a mean over sites: not at all with 1, by their images with e (FedEE)."""
_FEWEST_TESTED = 3
"""Of two values' differences a t-test tells nothing that one would act on."""
_NO_SPREAD = 1e-9
"""Values that lie no farther apart than this are the same but for rounding: no t-test tells anything of them."""
_ONE_MODEL = Missing("one model")
_OVER_CLASSES = {"dice", "f1", "iou", "sensitivity", "specificity"}


def untrained(results: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return, by arm, in how many cells a model was chosen that no round had trained, and how many cells there are."""
    first_chosen = results.groupby(["arm", "configuration"], sort=False)["chosen_round"].min()
    return {
        str(arm): (int((of_arm == 0).sum()), len(of_arm)) for arm, of_arm in first_chosen.groupby("arm", sort=False)
    }


def labels(results: pd.DataFrame) -> dict[str, str]:
    """Return, by arm, its name in tables: the name says so if untrained models are among its own."""
    return {
        arm: f"{arm} (untrained model in {none} of {pluralize(cells, 'cell')})" if none else arm
        for arm, (none, cells) in untrained(results).items()
    }


def chosen_rounds(results: pd.DataFrame) -> Table:
    """Return the table of the rounds after which the tested models were taken."""
    body: list[list[Cell]] = []
    for arm, (none, cells) in untrained(results).items():
        of_arm = results[results["arm"] == arm]
        rounds = ", ".join(map(str, sorted(of_arm["rounds"].unique())))
        lost = range_of(of_arm["rounds_without_a_model"])
        body.append([arm, range_of(of_arm["chosen_round"]), rounds, cells, none, lost])
    caption = (
        "After which round the tested model was chosen, by its score on validation images; 0 is the model that the run "
        "began with, which no round has trained. In a round without a model no site's counted, and the model stayed as "
        "it was: each cell's log.txt says why."
    )
    header = ("arm", "chosen round", "of", "cells", "cells with an untrained model", "rounds without a model")
    return Table("chosen", caption, header, body)


def tested_images(results: pd.DataFrame) -> str:
    """Return how many test images each site has: where folds and seeds differ, the fewest and the most."""
    by_site = results[results["split"] == "test"].groupby("tested_on")["images"]
    return ", ".join(f"{site} {range_of(images)}" for site, images in by_site)


def range_of(numbers: pd.Series[int]) -> str:
    """Return a range as text, as in "3", or "2 to 9"."""
    fewest, most = numbers.min(), numbers.max()
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def spread(found: Sequence[float] | pd.Series[float]) -> Spread | float | None:
    """Return the mean and standard deviation (n - 1 below) of what is defined; one value has no deviation."""
    known = pd.Series(found, dtype=float).dropna()
    if len(known) > 1:
        return Spread(float(known.mean()), float(known.std()))
    return float(known.iloc[0]) if len(known) else None


def spread_over_repeats(rows: pd.DataFrame, score: str) -> Spread | float | None:
    """Return the mean over pairs of sites, then its mean and standard deviation over seeds and turns."""
    return spread(_known(rows, score).groupby(REPEAT, dropna=False)["value"].mean())


def _over_repeats(rows: pd.DataFrame, score: str) -> Spread | Partly | float | None:
    """Return the spread over seeds and turns, and how many values it rests on, if some are undefined."""
    over_repeats, known = spread_over_repeats(rows, score), len(_known(rows, score))
    # Of a repeat that leaves out one site after the other some cells may be there, and some not.
    of = math.prod(len(rows.drop_duplicates(by)) for by in (REPEAT, ["model_of", "tested_on"]))
    return over_repeats if over_repeats is None or known == of else Partly(over_repeats, known, of)


def comparison(results: pd.DataFrame, scores: Sequence[str], what: str = "images") -> Table:
    """Return every arm's scores on the sites' test images.

    Args:
        what: the images are called, as in all tables.
    """
    body: list[list[Cell]] = [
        [*names, *(_over_repeats(rows, score) for score in scores)]
        for names, rows in _groups(_tested(results), "arm", "kind")
    ]
    caption = f"Scores on test {what}: mean over sites, ± standard deviation of that mean over seeds and folds."
    if over_classes := [score for score in scores if score in _OVER_CLASSES]:
        caption += f" Of {', '.join(over_classes)}: the mean over classes, each against all others."
    if any(isinstance(cell, Partly) for line in body for cell in line):
        caption += " In brackets: how many of the values are known, where not all are."
    return Table("comparison", caption, ("arm", "tested on", *map(heading, scores)), body)


def heading(score: str) -> str:
    """Return what a score is called over a column; of a segmentation each is a mean over images."""
    return score.removesuffix("_mean")


def by_site(results: pd.DataFrame, score: str, what: str = "images") -> Table:
    """Return one score of every arm, by the site whose images they are."""
    tested = _tested(results)
    sites = sorted(tested["tested_on"].unique())
    body = [
        [*names, *(spread_over_repeats(rows[rows["tested_on"] == site], score) for site in sites)]
        for names, rows in _groups(tested, "arm", "kind")
    ]
    caption = f"{heading(score)} by the site whose test {what} they are, so many: {tested_images(results)}."
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


def tests(
    results: pd.DataFrame, score: str, kind: str = "internal", numbers: Mapping[str, int | str | None] | None = None
) -> list[Tested]:
    """Return every pair of arms, compared by seed, turn and tested site; several models count as their mean.

    Args:
        numbers: by arm, its training images of each site; None: all. Two arms of different numbers are no pair: that
            they differ is known, and would make what is in doubt look surer once p-values are adjusted together.
    """
    from scipy import stats  # noqa: PLC0415  (takes half a second)

    tested = _tested(results)
    of_kind = _known(tested[tested["kind"] == kind], score)
    places = of_kind.groupby(["arm", *REPEAT, "tested_on"], dropna=False, observed=True)
    by_arm = places["value"].mean().unstack("arm")
    compared = []
    numbers = numbers or {}
    for first, second in combinations(by_arm.columns, 2):
        one_number, other_number = numbers.get(first), numbers.get(second)
        if None not in (one_number, other_number) and one_number != other_number:
            continue
        both = by_arm[[first, second]].dropna()
        if both.empty:
            continue
        one, two = both[first].to_numpy(), both[second].to_numpy()
        paired = unpaired = None
        if len(both) >= _FEWEST_TESTED:
            if np.ptp(one - two) > _NO_SPREAD:
                paired = float(stats.ttest_rel(one, two).pvalue)
            if np.ptp(one) + np.ptp(two) > _NO_SPREAD:
                unpaired = float(stats.ttest_ind(one, two, equal_var=False).pvalue)
        compared.append(Tested(first, second, float(np.mean(one - two)), len(both), paired, unpaired))
    return compared


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Return P-values adjusted for their number by Benjamini and Hochberg (1995); None stays so and does not count."""
    from scipy import stats  # noqa: PLC0415

    known = [p for p in p_values if p is not None]
    corrected = iter(stats.false_discovery_control(known, method="bh").tolist() if known else [])
    return [None if p is None else float(next(corrected)) for p in p_values]


def table_of_tests(compared: Sequence[Tested], score: str, kind: str = "internal") -> Table:
    """Return all comparisons of one kind with adjusted p-values."""
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


def noise(results: pd.DataFrame, score: str, what: str = "images") -> Table:
    """Return one score by the variance of the noise on the test images; 0 is none."""
    noisy = results["split"][results["split"].str.startswith("noise-")].unique()
    splits = {"0": "test"} | {split.removeprefix("noise-"): split for split in sorted(noisy, key=_variance)}
    rows = _ordered(results[results["split"].isin(splits.values())])
    body = [
        [*arm, *(spread_over_repeats(of_arm[of_arm["split"] == split], score) for split in splits.values())]
        for arm, of_arm in _groups(rows[rows["kind"] == "internal"], "arm")
    ]
    caption = f"{heading(score)} on own sites' test {what} with Gaussian noise, by its variance; 0 is none."
    return Table("noise", caption, ("arm", *splits), body)


def elsewhere(results: pd.DataFrame, what: str = "images") -> Table:
    """Return whether models are less sure of other sites' images, and of out-of-distribution ones."""
    body: list[list[Cell]] = []
    for arm, rows in _groups(_ordered(results), "arm"):
        of_others = rows[(rows["split"] == "test") & (rows["kind"] == "external")]
        others = _ONE_MODEL if _mirrored(of_others) else spread_over_repeats(of_others, "ood_auroc")
        of_ood = rows[rows["split"] == "out_of_distribution"]
        body.append([*arm, others, spread_over_repeats(of_ood, "ood_auroc")])
    caption = (
        f"P(one of the {what} from elsewhere is more uncertain than one of the model's own site); 0.5 tells nothing. "
        f"One model of all sites would come to 0.5 on other sites' {what}, whatever it says."
    )
    return Table("elsewhere", caption, ("arm", "other sites", "out_of_distribution"), body)


def _mirrored(rows: pd.DataFrame) -> bool:
    """Return whether what is said of s against n is always the reverse of n against s, as with one model."""
    said = _known(rows, "ood_auroc")[[*REPEAT, "model_of", "tested_on", "value"]]
    turned = said.rename(columns={"model_of": "tested_on", "tested_on": "model_of"})
    both = said.merge(turned, on=[*REPEAT, "model_of", "tested_on"], how="left", suffixes=("", "_back"))
    return not both.empty and bool(((both["value"] + both["value_back"] - 1).abs() < _NO_SPREAD).all())


def fairness(results: pd.DataFrame, score: str, what: str = "images") -> Table:
    """Return the mean over sites with larger sites counting ever more: Σ η^(ln n) λ / Σ η^(ln n) (FedEE)."""
    tested = _tested(results)
    body: list[list[Cell]] = []
    for arm, rows in _groups(tested[tested["kind"] == "internal"], "arm"):
        repeats = [repeat for _, repeat in _known(rows, score).groupby(REPEAT, dropna=False)]
        values = [(repeat["value"].tolist(), repeat["images"].tolist()) for repeat in repeats]
        body.append([*arm, *(spread([mean_over_sites(*each, eta) for each in values]) for eta in ETAS)])
    header = ("arm", *(f"η = {'e' if eta == math.e else f'{eta:g}'}" for eta in ETAS))
    caption = f"{heading(score)}, mean over sites: alike with η = 1, by their {what} with η = e."
    return Table("fairness", caption, header, body)


def cost(results: pd.DataFrame, energy: Energy, what: str = "images") -> Table:
    """Return what an arm costs: the model, a round's bytes, time, and energy as ``cost_caption`` says."""
    body: list[list[Cell]] = []
    for arm, cells in results.drop_duplicates(["arm", "configuration"]).groupby("arm", sort=False):
        seconds, up, down = map(float, cells[["seconds", "bytes_from_site", "bytes_to_site"]].mean())
        parameters, flops = map(int, cells[["parameters", "flops"]].iloc[0])
        megabytes = (cells["bytes_from_site"] + cells["bytes_to_site"]) * cells["answers"] / 1e6
        moving = float(megabytes.mean()) * energy.joules_per_megabyte / 3600
        computing = seconds * energy.watts / 3600
        body.append([str(arm), parameters, flops / 1e9, up / 1e6, down / 1e6, seconds, computing, moving])
    of_model = ("parameters", f"GFLOPs an {what.removesuffix('s')}")
    header = ("arm", *of_model, "MB from a site", "MB to a site", "s a run", "Wh of computing", "Wh of moving")
    return Table("cost", cost_caption(energy), header, body)


def cost_caption(energy: Energy) -> str:
    """Return what the figures of ``cost`` are, and that those of energy are not measured."""
    return (
        "MB are of one site and training round. Energy is an estimate, not measured: the mean over cells of seconds · "
        f"{energy.watts:g} W for computing, and of MB of all sites and training rounds · "
        f"{energy.joules_per_megabyte:g} J for moving."
    )


# --- rows ------------------------------------------------------------------------------------------------------


def _ordered(results: pd.DataFrame) -> pd.DataFrame:
    """Return all rows with their kind; groups of arms and kinds come in the study's order."""
    is_own = (results["model_of"] == results["tested_on"]) | (results["model_of"] == POOLED)
    return results.assign(
        arm=pd.Categorical(results["arm"], results["arm"].unique()),
        kind=pd.Categorical(np.where(is_own, *KINDS), KINDS),
    )


def _tested(results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of test images."""
    return _ordered(results[results["split"] == "test"])


def _groups(rows: pd.DataFrame, *by: str) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Yield the rows of each group, by the names that it goes by."""
    for names, group in rows.groupby([*by], observed=True):
        yield [*map(str, names)], group


def _known(rows: pd.DataFrame, score: str) -> pd.DataFrame:
    """Return the rows in which a score is defined, as their ``value``."""
    return rows.assign(value=rows.get(score, math.nan)).dropna(subset="value")


def _variance(split: str) -> float:
    return float(split.removeprefix("noise-"))
