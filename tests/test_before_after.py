"""The first table of a report: a score before training and after, and what a site comes to alone."""

from __future__ import annotations

from dataclasses import replace

from aggregator.report.before_after import WHY_NOT_REPORTED, Alone, against_last, before_and_after, gain_and_worst
from aggregator.run_view import Part
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.tables import difference_of, error_of
from tests.views import row, view_of_rounds

START = {"name": "first", "sha256": "ab" * 32}


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
        ["site", "before training", "after", "test images"],
        ["north", "0.250", "0.500", "6"],
        ["south", "not reported", "not reported", "fewer than 5"],
    ]
    assert notes == (WHY_NOT_REPORTED,)


def said(first: dict[str, Part], chosen: dict[str, Part]) -> list[str]:
    return gain_and_worst(view_of_rounds([first, chosen]), 1, "dice_mean", "Dice")


def test_two_sentences_say_what_was_gained_and_where_it_does_worst() -> None:
    few = part("fewer than 5", None)
    first = {"north": part("6", 0.25), "south": part("6", 0.5), "east": part("6", 0.2), "west": few}
    chosen = {"north": part("6", 0.5), "south": part("6", 0.4), "east": few, "west": part("6", 0.3)}
    assert said(first, chosen) == [
        "on the sites' own test images Dice rose at 1 of 2 sites, in the mean from 0.375 to 0.450",
        "Dice is lowest at west: 0.300 over 6 images",
    ]
    lowest = "Dice is lowest at north: 0.250 over 6 images, after 0.250 before training"
    assert said(first, {"north": part("6", 0.25)})[1] == lowest
    assert said({"north": few}, {"north": few}) == [
        "no site reported Dice on its test images both before and after training",
        "no site reported Dice of the chosen model on its test images",
    ]


def test_a_site_that_was_not_asked_has_no_score() -> None:
    rows, notes = shown({"north": part("6", 0.25)}, {"south": part("6", 0.5)})
    assert rows[1:] == [["north", "0.250", "not asked", "not asked"], ["south", "not asked", "0.500", "6"]]
    assert notes == ()


def test_a_site_alone_has_a_column_with_its_model_s_scores_at_every_site() -> None:
    sites = {"north": part("6", 0.25), "south": part("6", 0.5)}
    rows, notes = shown(sites, sites, Alone("north", 4, {"north": 0.3}))
    assert [row[-2] for row in rows] == ["north alone", "0.300", "other classes"]
    assert notes == ("north alone: a model trained in as many rounds (4) on its images only",)
    rows, _ = shown(sites, sites, Alone("north", 4, {"north": None, "south": 0.1}))
    assert [row[-2] for row in rows] == ["north alone", "undefined", "0.100"]


def test_the_interval_against_the_last_run_is_of_patients_left_out_and_not_of_draws() -> None:
    difference = difference_of("dice_mean")
    chosen = Part(test=row("6", None, dice_mean=0.5, **{difference: 0.1, error_of(difference): 0.02}))
    card = FinalCard.model_construct(chosen_round=1)
    view = replace(view_of_rounds([{"north": chosen}] * 2, paired=True, start=START), card=card)
    table = against_last(view, "dice_mean", "Dice")
    assert table is not None and "without the same patients" in table.notes[0] and "drawn" not in table.notes[0]
    untold = replace(view, rounds=view_of_rounds([{"north": part("6", 0.5)}] * 2).rounds)
    table = against_last(untold, "dice_mean", "Dice")
    assert table is not None and not any("without the same patients" in note for note in table.notes)
