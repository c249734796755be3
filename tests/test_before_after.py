"""The first table of a report: a score before training and after, and what a site comes to alone."""

from __future__ import annotations

from aggregator.report.before_after import WHY_WITHHELD, Alone, before_and_after
from aggregator.run_view import Part
from tests.views import row, view_of_rounds


def part(images: str, dice: float | None) -> Part:
    return Part(test=row(images, None, dice_mean=dice))


def shown(
    first: dict[str, Part], chosen: dict[str, Part], alone: Alone | None = None
) -> tuple[list[list[str]], tuple[str, ...]]:
    """Of a run that has chosen aggregate 1."""
    table = before_and_after(view_of_rounds([first, chosen]), 1, "dice_mean", "Dice", alone)
    return [list(table.header), *([cell.text for cell in row] for row in table.shown)], table.notes


def test_a_score_over_too_few_images_is_withheld_and_the_table_says_why() -> None:
    few = part("fewer than 5", None)
    rows, notes = shown({"north": part("6", 0.25), "south": few}, {"north": part("6", 0.5), "south": few})
    assert rows == [
        ["site", "before training", "after"],
        ["north", "0.250", "0.500"],
        ["south", "withheld", "withheld"],
    ]
    assert notes == (WHY_WITHHELD,)


def test_a_site_that_was_not_asked_has_no_score() -> None:
    rows, notes = shown({"north": part("6", 0.25)}, {"south": part("6", 0.5)})
    assert rows[1:] == [["north", "0.250", "not asked"], ["south", "not asked", "0.500"]]
    assert notes == ()


def test_a_site_alone_has_a_column_with_its_model_s_scores_at_every_site() -> None:
    sites = {"north": part("6", 0.25), "south": part("6", 0.5)}
    rows, notes = shown(sites, sites, Alone("north", 4, {"north": 0.3}))
    assert [row[-1] for row in rows] == ["north alone", "0.300", "other classes"]
    assert notes == ("north alone: a model trained in as many rounds (4) on its images only",)
    rows, _ = shown(sites, sites, Alone("north", 4, {"north": None, "south": 0.1}))
    assert [row[-1] for row in rows] == ["north alone", "undefined", "0.100"]
