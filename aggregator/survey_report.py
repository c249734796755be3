"""A survey's sheets side by side: what to know before a run, and what the run might be, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aggregator.report.tables import NOT_REPORTED
from aggregator.report.text import table_lines
from aggregator.survey import Asked
from shared.exchange.names import sheet_path
from shared.exchange.records.run import USUAL_TOLERANCE
from shared.exchange.records.surveys import BINS, NOT_SAID, OTHER, Cells, Sheet, Spread
from shared.exchange.records.values import most
from shared.learning.data.splits import SplitPlan

FEW_TO_TEST_ON = 50  # images: the standard error of an accuracy over fewer is more than 0.07
DIFFERS = 0.3  # total variation between two distributions, from 0 to 1
SIDES = (64, 96, 128, 192, 224, 256, 384, 512, 768, 1024)  # pixels
LARGEST_SUGGESTED = 512
SUGGESTED_SMALLEST = SIDES[0]


@dataclass(frozen=True)
class Proposal:
    """A setting of a run, and why."""

    setting: str
    value: str
    reason: str


TOLERANCE = Proposal(
    "tolerance",
    f"{{below_last: {USUAL_TOLERANCE.below_last:g}}}",
    "the usual one: where it was measured it omitted no honest model, also with held-out images of one camera",
)


def document(asked: Sequence[Asked]) -> dict[str, Any]:
    """Return everything as plain values, for scripts."""
    sheets = sheets_of(asked)
    return {
        "sites": {
            each.site: {
                "survey": each.survey.model_dump() if each.survey else None,
                "answer": each.answer.model_dump() if each.answer else None,
                "trouble": each.trouble,
            }
            for each in asked
        },
        "warnings": list(warnings(sheets)),
        "proposals": [vars(proposal) for proposal in proposals(sheets)],
    }


def report_text(asked: Sequence[Asked]) -> str:
    """Return the survey's answers, proposals and warnings for people, as Markdown."""
    sheets = sheets_of(asked)
    lines = [f"- {each.site}: {standing(each)}" for each in asked]
    if sheets:
        rows = [[name, *cells] for name, cells in _rows(sheets).items()]
        lines += ["", *table_lines(["", *sheets], rows)]
        lines += ["", "## To be known before a run", ""]
        lines += [f"- {warning}" for warning in warnings(sheets)] or ["- nothing stands out"]
        lines += ["", "## What a run might be", ""]
        lines += [f"- `{each.setting}: {each.value}`: {each.reason}" for each in proposals(sheets)]
    return "\n".join(lines) + "\n"


def standing(asked: Asked) -> str:
    """Return where a site's part in the survey stands."""
    if asked.trouble is not None:
        return asked.trouble
    if asked.survey is None:
        return "has not been asked"
    if asked.answer is None:
        return f"has not answered yet about {asked.survey.task}; its people may have to decide"
    if asked.answer.sheet is None:
        return f"declined: {asked.answer.reason}"
    return f"answered about {asked.survey.task}, in {sheet_path(asked.survey.number)}"


def sheets_of(asked: Iterable[Asked]) -> dict[str, Sheet]:
    """Return the sheets that came, by site: of the task that was asked about last."""
    found = [each for each in asked if each.survey is not None]
    newest = max((each.survey for each in found if each.survey), key=lambda survey: survey.created, default=None)
    return {
        each.site: each.answer.sheet
        for each in found
        if each.answer and each.answer.sheet and newest and each.answer.sheet.task == newest.task
    }


# --- side by side ------------------------------------------------------------------------------------------


def _rows(sheets: Mapping[str, Sheet]) -> dict[str, list[str]]:
    """Return the cells of each row, a column for each site."""
    rows = {
        "images": [sheet.images for sheet in sheets.values()],
        "unreadable": [sheet.unreadable for sheet in sheets.values()],
        "duplicates": [sheet.duplicates for sheet in sheets.values()],
        "patients": [sheet.patients or NOT_REPORTED.why for sheet in sheets.values()],
        "images per patient": [_spread_text(sheet.images_per_patient) for sheet in sheets.values()],
    }
    for name in dict.fromkeys(name for sheet in sheets.values() for name in sheet.classes):
        row = [sheet.classes.get(name) or NOT_REPORTED.why for sheet in sheets.values()]
        if set(row) != {"0"}:
            rows[f"class {name}"] = row
    for name in dict.fromkeys(name for sheet in sheets.values() for name in sheet.class_shares):
        rows[f"share of {name}"] = [_spread_text(sheet.class_shares.get(name)) for sheet in sheets.values()]
    for title, name in (("format", "formats"), ("bits", "bit_depths"), ("colours", "colours"), ("maker", "makers")):
        rows[title] = [_cells_text(getattr(sheet, name)) for sheet in sheets.values()]
    for title, name in (
        ("longer side, pixels", "longer_side"),
        ("shorter side, pixels", "shorter_side"),
        ("field of view, share", "field_of_view"),
        ("sharpness", "sharpness"),
    ):
        rows[title] = [_spread_text(getattr(sheet, name)) for sheet in sheets.values()]
    rows["mean intensity"] = [_mean_text(sheet) for sheet in sheets.values()]
    rows["images per second"] = [sheet.images_per_second or NOT_REPORTED.why for sheet in sheets.values()]
    return rows


def _cells_text(cells: Cells) -> str:
    told = [f"{name} {count}" for name, count in cells.items() if count not in (None, "0")]
    others = [f"others {NOT_REPORTED.why}"] if None in cells.values() else []
    return ", ".join([*told, *others]) if told else NOT_REPORTED.why


def _spread_text(spread: Spread | None) -> str:
    """Return the median, and between which quantiles the others lie, as far as they are reported."""
    told = {name: _short(value) for name, value in (spread.model_dump() if spread else {}).items() if value is not None}
    if "p50" not in told:
        return NOT_REPORTED.why
    low, high = next(((told[a], told[b]) for a, b in (("p5", "p95"), ("p25", "p75")) if a in told), ("", ""))
    return f"{told['p50']} ({low} to {high})" if low else told["p50"]


def _short(value: str) -> str:
    return f"{float(value):g}"


def _mean_text(sheet: Sheet) -> str:
    shares = [float(share) for share in sheet.intensity if share is not None]
    if not shares:
        return NOT_REPORTED.why
    middles = [(place + 0.5) / BINS for place, share in enumerate(sheet.intensity) if share is not None]
    return f"{sum(a * b for a, b in zip(middles, shares, strict=True)) / max(sum(shares), 1e-9):.2f}"


# --- what stands out ---------------------------------------------------------------------------------------


def warnings(sheets: Mapping[str, Sheet]) -> Iterator[str]:
    """Yield what should be known before a run, a sentence each."""
    yield from _absent(sheets)
    for site, sheet in sheets.items():
        if most(sheet.classes.get(OTHER) or "0"):
            yield f"{site}: {sheet.classes[OTHER]} images are of classes that the survey does not name: another scale"
        if (tested := most(sheet.images) * SplitPlan().test) < FEW_TO_TEST_ON:
            yield (
                f"{site}: too few to test on: about {tested:.0f} of {sheet.images} images, in whole blocks, would "
                "test (`dropfed-site check` there tells the number), and a score over fewer than "
                f"{FEW_TO_TEST_ON} says little"
            )
        for what in ("unreadable", "duplicates"):
            if getattr(sheet, what) != "0":
                yield f"{site}: {what}: {getattr(sheet, what)}"
    if differ := _scales_that_differ(sheets):
        yield f"the sites grade by different scales, as far as they tell: {differ}"
    if differ := colours_that_differ(sheets):
        yield f"other colours: {differ}"
    sides = {site: float(side) for site, sheet in sheets.items() if (side := sheet.longer_side.p50) is not None}
    if sides and max(sides.values()) > 2 * min(sides.values()):
        told = ", ".join(f"{site} {side:g}" for site, side in sides.items())
        yield f"images differ in size by more than twice (median of the longer side in pixels: {told})"


def _absent(sheets: Mapping[str, Sheet]) -> Iterator[str]:
    for name in dict.fromkeys(name for sheet in sheets.values() for name in sheet.classes):
        having = [site for site, sheet in sheets.items() if most(sheet.classes.get(name) or "0") and name != OTHER]
        for site, sheet in sheets.items():
            if having and sheet.classes.get(name) == "0":
                yield f"{site}: no image is of class {name}, which {', '.join(having)} has"


def _scales_that_differ(sheets: Mapping[str, Sheet]) -> str | None:
    """Return in words up to which grade each site grades; None where all may grade up to the same."""
    found = {site: grades for site, sheet in sheets.items() if (grades := _highest_grade(sheet))}
    lowest, highest = zip(*found.values(), strict=True) if found else ((0,), (0,))
    if max(lowest) <= min(highest):
        return None
    return ", ".join(
        f"{site} up to {low}" + (" or higher" if high > low else "") for site, (low, high) in found.items()
    )


def _highest_grade(sheet: Sheet) -> tuple[int, int] | None:
    """Return between which grades a site's highest lies, which may be withheld; None where classes are no numbers."""
    counts = {name: count for name, count in sheet.classes.items() if count != "0" and name != OTHER}
    if not counts or not all(map(str.isdecimal, counts)):
        return None
    told = (int(name) for name, count in counts.items() if count is not None)
    return max(told, default=0), max(map(int, counts))


def colours_that_differ(sheets: Mapping[str, Sheet]) -> str | None:
    """Return in words which site's colours or intensities are unlike those of another; None where none are."""
    colours = {site: _main(sheet.colours) for site, sheet in sheets.items() if _main(sheet.colours)}
    if len(set(colours.values())) > 1:
        return ", ".join(f"{site} is {colour}" for site, colour in colours.items())
    pairs = [(a, b) for place, a in enumerate(sheets) for b in list(sheets)[place + 1 :]]
    far = {(a, b): _variation(sheets[a].intensity, sheets[b].intensity) for a, b in pairs}
    (a, b), distance = max(far.items(), key=lambda each: each[1], default=(("", ""), 0.0))
    if distance <= DIFFERS:
        return None
    return f"the histograms of {a} and {b} differ by {distance:.2f} of at most 1 (total variation)"


def _main(cells: Cells) -> str | None:
    told = {name: most(count) for name, count in cells.items() if count is not None}
    return max(told, key=lambda name: told[name]) if any(told.values()) else None


def _variation(one: Sequence[str | None], other: Sequence[str | None]) -> float:
    """Return the total variation between two histograms, as far as both tell; what one withholds is not compared."""
    both = [(float(a), float(b)) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return sum(abs(a - b) for a, b in both) / 2


# --- proposals ---------------------------------------------------------------------------------------------


def proposals(sheets: Mapping[str, Sheet]) -> list[Proposal]:
    """Return what a run might be, for a PI to judge."""
    if not sheets:
        return []
    return [_method(sheets), *_image_size(sheets), TOLERANCE]


def _method(sheets: Mapping[str, Sheet]) -> Proposal:
    if _scales_that_differ(sheets):
        return Proposal(
            "method",
            "fedbn",
            "the sites seem to grade by different scales, as far as they tell: beside the heads BatchNorm stays there",
        )
    makers = {maker for sheet in sheets.values() if (maker := _main(sheet.makers)) not in (None, NOT_SAID, OTHER)}
    if differ := colours_that_differ(sheets):
        return Proposal(
            "method", "fedbn", f"{differ}: statistics of BatchNorm that stay at each site fit its own images"
        )
    if len(makers) > 1:
        told = " and ".join(sorted(map(str, makers)))
        return Proposal("method", "fedbn", f"devices of {told}: BatchNorm that stays at each site fits its own images")
    if (distance := _class_distance(sheets)) > DIFFERS:
        why = (
            f"the sites' classes differ by {distance:.2f} of at most 1, and its term keeps local training near the mean"
        )
        return Proposal("method", "fedprox", why)
    return Proposal("method", "fedavg", "nothing that the sheets tell asks for more than the mean weighted by images")


def _class_distance(sheets: Mapping[str, Sheet]) -> float:
    """Return the largest total variation between two sites' classes, as far as both tell."""
    shares = []
    for sheet in sheets.values():
        counts = {name: most(count) for name, count in sheet.classes.items() if count is not None}
        if total := sum(counts.values()):
            shares.append({name: count / total for name, count in counts.items()})
    return max(
        (sum(abs(a[name] - b[name]) for name in a.keys() & b.keys()) / 2 for a in shares for b in shares), default=0.0
    )


def _image_size(sheets: Mapping[str, Sheet]) -> Iterator[Proposal]:
    sides = {site: float(side) for site, sheet in sheets.items() if (side := sheet.longer_side.p50) is not None}
    if not sides:
        return
    site = min(sides, key=lambda name: sides[name])
    fits = [side for side in SIDES if side <= min(sides[site], LARGEST_SUGGESTED)]
    size = fits[-1] if fits else SUGGESTED_SMALLEST
    reason = f"half of the images of {site} have a longer side of {sides[site]:g} pixels or less"
    if sides[site] > LARGEST_SUGGESTED:
        reason += f"; more than {LARGEST_SUGGESTED} takes several times as long, so begin with that"
    else:
        reason += ", and a larger size would only enlarge them"
    yield Proposal("task_options: image_size", str(size), reason)
