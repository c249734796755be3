"""The first table of a report: a score before training and after, and what a site comes to alone."""

from __future__ import annotations

from typing import Any

from aggregator.report.before_after import WHY_WITHHELD, Alone, before_and_after


def row(images: str, dice: float | None) -> dict[str, Any]:
    return {"test": {"images": images, "loss": None, "scores": {"dice_mean": dice}}}


def document(**aggregates: dict[str, Any]) -> dict[str, Any]:
    """Of a run that has chosen aggregate 1."""
    return {
        "configuration": {"sites": ["north", "south"]},
        "chosen": {"aggregate": 1},
        "rounds": [{"received_aggregate": number, "sites": sites} for number, sites in enumerate(aggregates.values())],
    }


def shown(found: dict[str, Any], alone: Alone | None = None) -> tuple[list[list[str]], tuple[str, ...]]:
    table = before_and_after(found, "dice_mean", "Dice", alone)
    return [list(table.header), *([cell.text for cell in row] for row in table.shown)], table.notes


def test_a_score_over_too_few_images_is_withheld_and_the_table_says_why() -> None:
    few = row("fewer than 5", None)
    found = document(first={"north": row("6", 0.25), "south": few}, chosen={"north": row("6", 0.5), "south": few})
    rows, notes = shown(found)
    assert rows == [
        ["site", "before training", "after"],
        ["north", "0.250", "0.500"],
        ["south", "withheld", "withheld"],
    ]
    assert notes == (WHY_WITHHELD,)


def test_a_site_that_was_not_asked_has_no_score() -> None:
    rows, notes = shown(document(first={"north": row("6", 0.25)}, chosen={"south": row("6", 0.5)}))
    assert rows[1:] == [["north", "0.250", "not asked"], ["south", "not asked", "0.500"]]
    assert notes == ()


def test_a_site_alone_has_a_column_with_its_model_s_scores_at_every_site() -> None:
    sites = {"north": row("6", 0.25), "south": row("6", 0.5)}
    rows, notes = shown(document(first=sites, chosen=sites), Alone("north", 4, {"north": 0.3}))
    assert [row[-1] for row in rows] == ["north alone", "0.300", "other classes"]
    assert notes == ("north alone: a model trained in as many rounds (4) on its images only",)
    rows, _ = shown(document(first=sites, chosen=sites), Alone("north", 4, {"north": None, "south": 0.1}))
    assert [row[-1] for row in rows] == ["north alone", "undefined", "0.100"]
