"""What a survey asks, and the sheet of figures about a site's images that answers it: a closed list.

Each figure is about many images, has two significant digits, and is null where it may not leave (``null``: withheld).
No text of a file is in it: classes are called as the survey calls them, and makers are those of a fixed list.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from shared.doors.numbers import finite
from shared.exchange.forms import text_like
from shared.exchange.names import Name
from shared.exchange.records.messages import Head
from shared.exchange.records.values import PROTOCOL, CountText, DecimalText, Digest, Protocol, Record, Sentence, Time

OTHER = "other"
FORMATS = ("png", "jpeg", "tiff", "dicom", OTHER)
BIT_DEPTHS = ("8", "more than 8")
COLOURS = ("grey", "colour")
NOT_SAID = "not said"
MAKERS = ("canon", "heidelberg", "kowa", "nidek", "optopol", "optos", "optovue", "topcon", "zeiss", OTHER, NOT_SAID)
"""Makers of retinal cameras and scanners, as they are looked for in a file's own words, in small letters."""
QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
BINS = 32
"""Of the histogram of intensities, of equal width from black to the brightest that a file can say."""
MOST_CLASSES = 20
MOST_SURVEYS = 9999
_HIGHEST = 1e6  # of any figure that is no count


def _two_digits(text: str) -> str:
    if text.isdecimal() and len(text.rstrip("0")) > 2:
        raise ValueError("must have two significant digits")
    return text


def _figure(text: str) -> str:
    value = finite(text)
    if not 0 <= value <= _HIGHEST or text != figure_text(value):
        raise ValueError(f"must be a number of two significant digits, from 0 to {_HIGHEST:g}")
    return text


def _share(text: str) -> str:
    if finite(text) > 1:
        raise ValueError("must be in [0, 1]")
    return text


def figure_text(value: float) -> str:
    """Return a number with two significant digits, as it may leave a site."""
    places = 1 - math.floor(math.log10(abs(value))) if value else 0
    return repr(1.0 * round(value, places))


RoundedCount = Annotated[CountText, AfterValidator(_two_digits)]
"""A number of images with two significant digits, or "fewer than N"."""
Figure = Annotated[DecimalText, AfterValidator(_figure)]
Share = Annotated[Figure, AfterValidator(_share)]
Cells = dict[str, RoundedCount | None]
"""How many images are of each of a fixed list of kinds; None: withheld."""
ClassName = Annotated[str, text_like(r"[^\x00-\x1f\x7f/\\,]{1,40}", "1 to 40 characters without slash or comma")]


class Survey(Record):
    """``surveys/0001.json``: what the aggregator asks a site.

    Args:
        number: as in the name.
        task: of whose images the sheet is to be.
        classes: what images, or pixels, are counted by, at most; anything else counts as ``other``. Empty: not counted.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["survey"] = "survey"
    federation: Name
    site: Name
    number: Annotated[int, Field(ge=1, le=MOST_SURVEYS)]
    task: Name
    classes: Annotated[list[ClassName], Field(max_length=MOST_CLASSES)]
    created: Time

    @model_validator(mode="after")
    def _classes_differ(self) -> Survey:
        if len({*self.classes, OTHER}) <= len(self.classes):
            raise ValueError(f"classes: one is named twice, or called {OTHER}")
        return self


class Spread(Record):
    """Quantiles over images; each is there only where as many images lie beyond it as a figure needs."""

    p5: Figure | None
    p25: Figure | None
    p50: Figure | None
    p75: Figure | None
    p95: Figure | None


class Sheet(Record):
    """Figures about a site's images of one task: of each image, scan or recording its first file, in whole blocks.

    Args:
        images: that can be read; all other counts but the next two are of these.
        unreadable: as images.
        duplicates: files that lie there a second time, byte by byte, and count once.
        patients: or whatever else the images are grouped by; None: the site does not know, or may not say.
        images_per_patient: over patients.
        classes: by the survey's classes and ``other``; empty where the task labels pixels.
        class_shares: of each image's pixels, by the survey's classes; empty where the task labels images.
        longer_side, shorter_side: in pixels.
        field_of_view: share of an image's pixels that are not black.
        intensity: mean over images of each image's own histogram, whose bins sum to 1.
        sharpness: variance of the Laplacian of the image as it is at a longer side of 512 pixels, times 1000.
        images_per_second: that this machine reads and measures.
    """

    task: Name
    images: RoundedCount
    unreadable: RoundedCount
    duplicates: RoundedCount
    patients: RoundedCount | None
    images_per_patient: Spread
    classes: Cells
    class_shares: dict[str, Spread]
    formats: Cells
    bit_depths: Cells
    colours: Cells
    makers: Cells
    longer_side: Spread
    shorter_side: Spread
    field_of_view: Spread
    intensity: Annotated[list[Share | None], Field(min_length=BINS, max_length=BINS)]
    sharpness: Spread
    images_per_second: Figure | None

    @model_validator(mode="after")
    def _lists_are_closed(self) -> Sheet:
        for name, known in (("formats", FORMATS), ("bit_depths", BIT_DEPTHS), ("colours", COLOURS), ("makers", MAKERS)):
            if set(getattr(self, name)) != set(known):
                raise ValueError(f"{name}: must have exactly {', '.join(known)}")
        shares = [self.field_of_view, *self.class_shares.values()]
        if any(value is not None and finite(value) > 1 for spread in shares for value in spread.model_dump().values()):
            raise ValueError("a share must be in [0, 1]")
        for spread in (value for value in self.__dict__.values() if isinstance(value, Spread)):
            _require_rising(spread)
        for spread in self.class_shares.values():
            _require_rising(spread)
        return self


class SignedSheet(Record):
    """``sheets/0001.json``: the site's signed answer to the survey of that number.

    Args:
        in_reply_to: digest of the survey.
        reason: why the site answers so; it names no file of the site's.
        sheet: there exactly with a yes.
        own_head: the site's last message when the sheet was made.
    """

    protocol: Protocol = PROTOCOL
    kind: Literal["sheet"] = "sheet"
    federation: Name
    site: Name
    number: Annotated[int, Field(ge=1, le=MOST_SURVEYS)]
    in_reply_to: Digest
    agrees: bool
    reason: Sentence
    sheet: Sheet | None
    own_head: Head
    created: Time

    @model_validator(mode="after")
    def _sheet_with_a_yes(self) -> SignedSheet:
        if self.agrees != (self.sheet is not None):
            raise ValueError("sheet: must be there with a yes, and only then")
        return self

    def fault(self, survey: Survey) -> str | None:
        """Return what does not fit the survey that it answers; None if nothing does not."""
        if (sheet := self.sheet) is None:
            return None
        if sheet.task != survey.task:
            return f"is about {sheet.task}, and the survey asks about {survey.task}"
        asked = set(survey.classes)
        if set(sheet.classes) not in ({*asked, OTHER}, set()) or set(sheet.class_shares) not in (asked, set()):
            return "counts other classes than the survey asks for"
        return None


def _require_rising(spread: Spread) -> None:
    told: list[Any] = [finite(value) for value in spread.model_dump().values() if value is not None]
    if told != sorted(told):
        raise ValueError("quantiles: must not fall")
