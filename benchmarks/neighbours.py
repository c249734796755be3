"""What a site gains by a federation, by its number of images, with neighbours of its own size and of other sizes.

    .venv/bin/python -m benchmarks.neighbours

Sets side by side what ``benchmarks.studies`` has recorded of ``pays``, whose sites have equally many images, and of
``unequal-0`` to ``unequal-3``. Every number is tested on the same four cameras, each site on its own images. ``pays``
divides these by the seed, the others by ``split.csv``: so sites alone were trained and tested on other images of the
same cameras than the federations with unequal neighbours, and those differences are unpaired.
Writes ``results/neighbours.json``, ``.md`` and ``.png``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from matplotlib.figure import Figure

from benchmarks.break_even import Table, arm_of, break_even, in_words
from benchmarks.record import RESULTS, record, take_no_arguments
from benchmarks.study_designs import UNEQUAL, training_images

ALONE = "alone"
_COMMAND = ".venv/bin/python -m benchmarks.neighbours"

Scores = Mapping[int, Mapping[str, float]]
"""By number of training images and by site: AUROC on its own test images, mean over the seeds."""


def main() -> None:
    """Compare, write and draw."""
    equal, unequal = equal_neighbours(_by_site("pays")), unequal_neighbours([_by_site(name) for name in UNEQUAL])
    alone = equal.pop(ALONE)
    rows = {
        "alone": alone,
        **{f"{method}, equal neighbours": scores for method, scores in equal.items()},
        **{f"{method}, unequal neighbours": scores for method, scores in unequal.items()},
    }
    table = gains(rows)
    record("neighbours", _COMMAND, {"auroc": rows, "gains": table})
    lines = ["# Neighbours", "", f"`{_COMMAND}`; machine, date and commit in `neighbours.json`.", ""]
    lines += ["![AUROC by number of training images](neighbours.png)", ""]
    lines += ["| " + " | ".join(row) + " |" for row in (table[0], ["---"] * len(table[0]), *table[1:])]
    (RESULTS / "neighbours.md").write_text("\n".join(lines) + "\n")
    draw(rows)


def equal_neighbours(by_site: Table) -> dict[str, Scores]:
    """Return each method's scores from the table of a study whose arms are called ``METHOD, NUMBER images``."""
    found: dict[str, dict[int, Mapping[str, float]]] = {}
    for arm, scores in _own(by_site).items():
        if sized := arm_of(arm):
            method, number = sized
            found.setdefault(method, {})[number] = scores
    return dict(found)


def unequal_neighbours(by_site: Sequence[Table]) -> dict[str, Scores]:
    """Return each method's scores from the tables of every turn, in which each site has another number of images."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for turn, table in enumerate(by_site):
        for method, scores in _own(table).items():
            for site, number in training_images(turn).items():
                found.setdefault(method, {}).setdefault(number, {})[site] = scores[site]
    return dict(found)


def gains(rows: Mapping[str, Scores]) -> Table:
    """Return the mean over sites, and in brackets what it gains over sites alone, ± its deviation over the sites."""
    alone = rows[ALONE]
    numbers = sorted(alone)
    body = [[ALONE, *(f"{mean(alone[number].values()):.3f}" for number in numbers), ""]]
    for name, scores in rows.items():
        if name == ALONE:
            continue
        differences = {
            number: [scores[number][site] - alone[number][site] for site in alone[number]] for number in numbers
        }
        crossing = break_even(_curve(alone), _curve(scores))
        body.append(
            [
                name,
                *(
                    f"{mean(scores[number].values()):.3f} ({mean(each):+.3f} ± {stdev(each):.3f})"
                    for number, each in differences.items()
                ),
                in_words(crossing, numbers),
            ]
        )
    return [["AUROC", *(f"{number} images" for number in numbers), "as good alone from"], *body]


def draw(rows: Mapping[str, Scores]) -> None:
    """Draw a curve for each method and kind of neighbours, and that of sites alone."""
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.subplots()
    colours: dict[str, str] = {}
    for name, scores in rows.items():
        method, _, neighbours = name.partition(", ")
        colour = colours.setdefault(method, f"C{len(colours)}")
        numbers = sorted(scores)
        means = [mean(scores[number].values()) for number in numbers]
        style = "--" if neighbours.startswith("equal") else "-"
        axes.plot(numbers, means, style, color=colour, label=name, marker="o")
    axes.set(xlabel="training images of the site", ylabel="AUROC on its own images", xscale="log")
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    figure.savefig(RESULTS / "neighbours.png", dpi=120)


def _curve(scores: Scores) -> dict[int, tuple[float, float]]:
    return {number: (mean(of_sites.values()), stdev(of_sites.values())) for number, of_sites in scores.items()}


def _own(by_site: Table) -> dict[str, dict[str, float]]:
    """Return, by arm, each site's score on its own images."""
    (_, _, *sites), *rows = by_site
    return {
        arm: {site: float(cell.partition(" ± ")[0]) for site, cell in zip(sites, cells, strict=True)}
        for arm, tested_on, *cells in rows
        if tested_on == "internal"
    }


def _by_site(study: str) -> Table:
    table: Table = json.loads((RESULTS / f"study-{study}.json").read_text())["figures"]["tables"]["by-site"]
    return table


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
