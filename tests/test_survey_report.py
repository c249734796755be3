"""What the report of a survey warns of and proposes, each from the sheets that say so and from no others."""

from __future__ import annotations

from aggregator.survey import Asked, classes_of
from aggregator.survey_report import proposals, report_text, warnings
from shared.exchange.records.messages import Head
from shared.exchange.records.surveys import (
    BINS,
    BIT_DEPTHS,
    COLOURS,
    FORMATS,
    MAKERS,
    QUANTILES,
    Sheet,
    SignedSheet,
    Spread,
    Survey,
)

NONE = Spread(**dict.fromkeys(QUANTILES))
WHEN = "2026-11-24T10:00:00Z"
EVEN = [repr(float(f"{1 / BINS:.2g}"))] * BINS


def at(median: float) -> Spread:
    return Spread(p5=None, p25=None, p50=repr(median), p75=None, p95=None)


def sheet(**changes: object) -> Sheet:
    plain: dict[str, object] = {
        "task": "dr_staging",
        "images": "400",
        "unreadable": "0",
        "duplicates": "0",
        "patients": None,
        "images_per_patient": NONE,
        "classes": {"0": "200", "1": "200", "other": "0"},
        "class_shares": {},
        "formats": dict.fromkeys(FORMATS, "0") | {"png": "400"},
        "bit_depths": dict.fromkeys(BIT_DEPTHS, "0") | {"8": "400"},
        "colours": dict.fromkeys(COLOURS, "0") | {"colour": "400"},
        "makers": dict.fromkeys(MAKERS, "0") | {"topcon": "400"},
        "longer_side": at(1000.0),
        "shorter_side": at(800.0),
        "field_of_view": at(0.7),
        "sharpness": at(9.0),
        "intensity": EVEN,
        "images_per_second": "40.0",
    }
    return Sheet.model_validate(plain | changes)


def answered(site: str, told: Sheet) -> Asked:
    survey = Survey(federation="retina", site=site, number=1, task="dr_staging", classes=["0", "1"], created=WHEN)
    answer = SignedSheet(
        federation="retina",
        site=site,
        number=1,
        in_reply_to="0" * 64,
        agrees=True,
        reason="",
        sheet=told,
        own_head=Head(),
        created=WHEN,
    )
    return Asked(site, survey, answer)


def said(north: Sheet, south: Sheet) -> tuple[list[str], dict[str, str]]:
    """Return the warnings, and the proposals by setting."""
    sheets = {"north": north, "south": south}
    return [*warnings(sheets)], {each.setting: each.value for each in proposals(sheets)}


def test_nothing_stands_out_between_sites_that_are_alike() -> None:
    warned, proposed = said(sheet(), sheet())
    assert warned == []
    assert proposed == {
        "method": "fedavg",
        "task_options: image_size": "512",
        "tolerance": "{below_last: 0.2}",
    }


def test_a_class_that_one_site_lacks_is_told_and_a_withheld_one_is_not() -> None:
    warned, proposed = said(sheet(classes={"0": "400", "1": "0", "other": "0"}), sheet())
    assert any(each.startswith("north: no image is of class 1, which south has") for each in warned)
    assert proposed["method"] == "fedbn"  # as far as grades are told
    warned, _ = said(sheet(classes={"0": None, "1": None, "other": None}), sheet())
    assert not any("no image is of class" in each for each in warned)


def test_scales_differ_where_they_do_whatever_a_withheld_grade_holds() -> None:
    whole, withheld = {"0": "200", "1": "100", "2": "100", "other": "0"}, {"0": "300", "1": "100", "other": "0"}
    warned, proposed = said(sheet(classes=withheld | {"2": None}), sheet(classes=whole))
    assert not any("different scales" in each for each in warned) and proposed["method"] == "fedavg"
    warned, proposed = said(sheet(classes=withheld | {"1": None, "2": "0"}), sheet(classes=whole))
    assert any(
        "different scales, as far as they tell: north up to 0 or higher, south up to 2" in each for each in warned
    )
    warned, proposed = said(sheet(classes=whole | {"1": None}), sheet(classes=withheld | {"2": "0"}))
    assert any("different scales" in each for each in warned) and proposed["method"] == "fedbn"


def test_other_classes_are_another_scale() -> None:
    warned, _ = said(sheet(classes={"0": "200", "1": "100", "other": "100"}), sheet())
    assert warned == ["north: 100 images are of classes that the survey does not name: another scale"]


def test_classes_in_other_shares_propose_fedprox() -> None:
    few = {"ill": "40", "well": "360", "other": "0"}
    many = {"ill": "360", "well": "40", "other": "0"}
    assert said(sheet(classes=few), sheet(classes=many))[1]["method"] == "fedprox"


def test_other_colours_or_devices_propose_fedbn() -> None:
    grey = sheet(colours={"grey": "400", "colour": "0"})
    warned, proposed = said(grey, sheet())
    assert "other colours: north is grey, south is colour" in warned
    assert (proposed["method"], proposed["tolerance"]) == ("fedbn", "{below_last: 0.2}")
    dark = sheet(intensity=["1.0"] + ["0.0"] * (BINS - 1))
    assert "the histograms of north and south differ by 0.96" in said(dark, sheet())[0][0]
    zeiss = sheet(makers=dict.fromkeys(MAKERS, "0") | {"zeiss": "400"})
    assert said(zeiss, sheet())[1]["method"] == "fedbn"


def test_small_sites_and_small_images_are_told() -> None:
    warned, proposed = said(sheet(images="100", longer_side=at(300.0), unreadable="fewer than 10"), sheet())
    few = "north: too few to test on: about 20 of 100 images, in whole blocks, would test (`dropfed-site check`"
    assert any(each.startswith(few) for each in warned)
    assert "north: unreadable: fewer than 10" in warned
    assert any(each.startswith("images differ in size by more than twice") for each in warned)
    assert proposed["task_options: image_size"] == "256"


def test_the_report_names_every_site_and_escapes_what_it_says() -> None:
    north = answered("north", sheet())
    text = report_text([north, Asked("south", north.survey), Asked("west", trouble="is not there")])
    assert "- south: has not answered yet about dr_staging" in text
    assert "- west: is not there" in text
    assert "nothing stands out" in text
    assert "has not been asked" in report_text([Asked("north")])


def test_whatever_a_site_does_not_tell_is_one_word() -> None:
    nothing: dict[str, object] = {
        "classes": {"0": None, "1": None, "other": None},
        "colours": dict.fromkeys(COLOURS),
        "formats": dict.fromkeys(FORMATS) | {"png": "400"},
        **dict.fromkeys(("longer_side", "shorter_side", "field_of_view", "sharpness"), NONE),
        "intensity": [None] * BINS,
        "images_per_second": None,
    }
    plain = {"patients": "100", "images_per_patient": at(4.0), "class_shares": {"vessel": at(0.2)}}
    north, south = sheet(**nothing), sheet(**plain, classes={"0": "200", "1": "200", "2": "40", "other": "0"})
    shown = report_text([answered("north", north), answered("south", south)])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines() if line.startswith("| ")]
    told = {name: (of_north, of_south) for name, of_north, of_south in rows}
    for name in (
        *("patients", "images per patient", "class 0", "class 1", "class 2", "class other", "share of vessel"),
        *("colours", "longer side, pixels", "shorter side, pixels", "field of view, share", "sharpness"),
        *("mean intensity", "images per second"),
    ):
        assert told[name][0] == "not reported", name
        assert told[name][1] not in ("", "not reported"), name
    assert told["format"] == ("png 400, others not reported", "png 400")


def test_what_a_task_is_counted_by() -> None:
    assert classes_of("octa_segmentation", None) == ["background", "vessel"]
    assert classes_of("rdr_classification", None)[:2] == ["normal", "mild"]
    assert classes_of("dr_staging", None)[:3] == ["0", "1", "2"]
    assert classes_of("external", None) == []
    assert classes_of("image_classification", ["a", "b"]) == ["a", "b"]
