"""Synthetic colour fundus photographs with grades, for demonstrations and tests. Never evidence about patients.

An eye is grown in millimetres around the fovea: pigment, optic disc with its cup, macula, arteries and veins with their
branches. Diabetic retinopathy is laid over it by grade, after the international scale:

0. none: no lesion;
1. mild: a few microaneurysms and nothing else;
2. moderate: more of them, some haemorrhages, sometimes hard exudates;
3. severe: many haemorrhages in all four quadrants, exudates, cotton wool spots;
4. proliferative: some of all this, and new vessels, a pre-retinal haemorrhage, or both.

A camera style then photographs it: field, colour, sharpness, light, noise, dust. Grade 5 stands for a photograph that
nobody can grade: an eye of any of the five grades, hopelessly blurred, dark or over-exposed.

The same seed is the same eye, at any grade, size and camera; of one kind of lesion a higher number contains the lower.
Lesions are drawn up to twice as large as real ones, for they are to be seen in pictures of 64 pixels. Drusen, pigment
spots, reflexes and dust lie in all grades alike, so that a spot alone proves nothing.

``python -m deploy.local.synthetic_fundus OUT.png`` draws a contact sheet of all styles and grades.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import gaussian_filter

from deploy.local.synthetic_octa import Points, Vessel
from shared.csv_file import as_csv
from shared.learning.seeds import seed_for

Canvas = NDArray[np.float32]

UNGRADABLE = 5
"""The grade of a photograph that shows too little of its eye."""


@dataclass(frozen=True)
class FundusStyle:
    """How one camera shows an eye. Brightness and colour are on the image's range, 0 to 1.

    Args:
        name: lower case, used in file names.
        field_mm: diameter of the round field of view, on the retina: 13 mm are about 45 degrees.
        centring: what the picture is centred on, from 0 for the fovea to 1 for the optic disc.
        aperture: diameter of the round field over the side of the picture: above 1 it is cut off at the sides.
        cast: gain of red, green and blue.
        brightness: gain of all three.
        contrast: above 1 deepens vessels and lesions, below 1 washes them out.
        blur_mm: standard deviation of the optical blur, on the retina.
        vignetting: share of the light that is lost at the edge.
        haze: share of stray light, which lifts the dark parts.
        noise: standard deviation of the detector's noise.
        dust: expected number of specks on the lens.
    """

    name: str
    field_mm: float
    centring: float
    aperture: float
    cast: tuple[float, float, float]
    brightness: float
    contrast: float
    blur_mm: float
    vignetting: float
    haze: float
    noise: float
    dust: float


CLINIC = FundusStyle(
    name="clinic",
    field_mm=13.0,
    centring=0.2,
    aperture=0.97,
    cast=(0.97, 1.06, 1.1),
    brightness=1.0,
    contrast=1.1,
    blur_mm=0.03,
    vignetting=0.25,
    haze=0.0,
    noise=0.012,
    dust=0.3,
)
"""A table camera in good hands: 45 degrees, sharp, orange."""

CROPPED = FundusStyle(
    name="cropped",
    field_mm=11.5,
    centring=0.35,
    aperture=1.12,
    cast=(1.0, 0.74, 0.6),
    brightness=1.0,
    contrast=1.15,
    blur_mm=0.04,
    vignetting=0.45,
    haze=0.0,
    noise=0.018,
    dust=0.5,
)
"""A narrow field, cut off at all four sides, deep red, dark towards the edge."""

PALE = FundusStyle(
    name="pale",
    field_mm=14.5,
    centring=0.1,
    aperture=0.97,
    cast=(0.95, 1.12, 1.25),
    brightness=1.12,
    contrast=0.95,
    blur_mm=0.05,
    vignetting=0.1,
    haze=0.08,
    noise=0.012,
    dust=0.5,
)
"""A wide field, bright, yellowish and a little washed out."""

HANDHELD = FundusStyle(
    name="handheld",
    field_mm=12.5,
    centring=0.25,
    aperture=0.9,
    cast=(0.82, 0.95, 0.72),
    brightness=0.78,
    contrast=1.05,
    blur_mm=0.05,
    vignetting=0.5,
    haze=0.04,
    noise=0.02,
    dust=3.0,
)
"""A small portable camera: dim, greenish brown, soft, noisy, with dust on the lens."""

STYLES = (CLINIC, CROPPED, PALE, HANDHELD)

GRADE_NAMES = {
    4: ("no DR", "mild", "moderate", "severe or proliferative"),
    5: ("no DR", "mild", "moderate", "severe", "proliferative"),
    6: ("no DR", "mild", "moderate", "severe", "proliferative", "ungradable"),
}
"""The scales in use, by their number of grades: as in Messidor, the international one, and as in DDR."""

_SHARES = {4: (38, 18, 24, 20), 5: (35, 16, 23, 13, 13), 6: (32, 14, 20, 12, 12, 10)}
"""Percent of a site's images that have each grade. With two images a grade, each grade has one at least."""

_COUNTS = {  # fewest and most at each severity, 0 to 4; neighbours overlap, so that no count decides a grade
    "microaneurysms": ((0, 0), (3, 8), (4, 14), (8, 22), (6, 20)),
    "haemorrhages": ((0, 0), (0, 0), (2, 10), (8, 20), (4, 18)),
    "exudates": ((0, 0), (0, 0), (0, 3), (2, 6), (1, 5)),  # clusters
    "cotton wool": ((0, 0), (0, 0), (0, 1), (0, 4), (0, 3)),
}

_DISC = np.array([-4.5, -0.35])  # mm from the fovea; x towards the temple, y downwards
_DISC_MM = 0.9  # radius
_CUP = np.array([0.12, 0.0])  # mm from the middle of the disc
_WORLD_MM = 26.0  # side of the square around the fovea that carries pigment: more than any field shows
_STEP_MM = 0.08

_PIGMENT = (0.80, 0.41, 0.18)
_ABSORPTION = np.array((0.55, 1.30, 1.50), np.float32)  # of blood: green most, red least


class _Patch(NamedTuple):
    """A filled outline, (n, 2) in mm from the fovea, and how strongly it shows, 0 to 1."""

    outline: Points
    strength: float


@dataclass(frozen=True)
class _Eye:
    """What a healthy eye looks like; ``turn`` brings x towards the temple to x towards the right of the picture."""

    turn: NDArray[np.float64]
    arteries: list[Vessel]
    veins: list[Vessel]
    pigment: NDArray[np.float64]
    cup: float  # radius over that of the disc
    macula: float  # how dark
    shades: list[Image.Image]  # (n, n) float noise over the world: coarse, medium
    choroid: float  # how far its vessels shine through
    pale: list[_Patch]  # drusen
    dark: list[_Patch]  # pigment spots


@dataclass(frozen=True)
class _Lesions:
    """What the disease adds: blood is red, fat is yellow, wool is white; new vessels are blood, too."""

    blood: list[_Patch]
    fat: list[_Patch]
    wool: list[_Patch]
    new_vessels: list[Vessel]


@dataclass(frozen=True)
class _View:
    """Where millimetres on the retina lie in the picture, and how much finer outlines are drawn than pixels."""

    size: int
    pixels_per_mm: float
    centre: Points  # mm from the fovea
    turn: NDArray[np.float64]

    @property
    def fold(self) -> int:
        return max(2, math.ceil(384 / self.size))

    def places(self, points: Points) -> Points:
        """Convert (n, 2) mm of the eye to (n, 2) pixels of the picture."""
        result: Points = (points @ self.turn - self.centre) * self.pixels_per_mm + self.size / 2
        return result

    def coverage(self, patches: Sequence[_Patch]) -> Canvas:
        """Return (size, size) how strongly each pixel is covered, 0 to 1. Later patches hide earlier ones."""
        canvas = Image.new("L", (self.size * self.fold,) * 2, 0)
        draw = ImageDraw.Draw(canvas)
        for outline, strength in patches:
            draw.polygon((self.places(outline) * self.fold).ravel().tolist(), fill=round(255 * strength))
        return np.asarray(canvas.reduce(self.fold), dtype=np.float32) / np.float32(255)

    def vessels(self, vessels: Sequence[Vessel], strength: float, share: float = 1.0) -> list[_Patch]:
        """Return the vessels as patches, the widest last; ``share`` of their width is drawn.

        One thinner than a pixel of the fine canvas is drawn as wide as that, and fainter instead.
        """
        thinnest_mm = 1.2 / (self.pixels_per_mm * self.fold)
        patches = []
        for vessel in sorted(vessels, key=lambda vessel: float(vessel.width[0])):
            along = np.diff(vessel.path, axis=0, append=2 * vessel.path[-1:] - vessel.path[-2:-1])
            width = np.maximum(vessel.width * share, thinnest_mm)
            half = along[:, ::-1] * (-1, 1) * (width / 2 / np.hypot(along[:, 0], along[:, 1]))[:, None]
            outline = np.concatenate([vessel.path + half, (vessel.path - half)[::-1]])
            patches.append(_Patch(outline, strength * float(vessel.width.sum() * share / width.sum())))
        return patches

    def distance(self, point: Points) -> Canvas:
        """Return the (size, size) distance of each pixel from a point of the eye, in mm."""
        across, down = self.places(point[None])[0]
        along = np.arange(self.size, dtype=np.float32) + 0.5
        result: Canvas = np.hypot(along[None, :] - across, along[:, None] - down) / self.pixels_per_mm
        return result.astype(np.float32)

    def window(self, world: Image.Image) -> Canvas:
        """Return the (size, size) part that is seen of a picture of the whole world."""
        half_mm = self.size / self.pixels_per_mm / 2
        scale = world.width / _WORLD_MM
        left, top = (self.centre - half_mm) * scale + world.width / 2
        box = (left, top, left + 2 * half_mm * scale, top + 2 * half_mm * scale)
        return np.asarray(world.resize((self.size,) * 2, Image.Resampling.BICUBIC, box=box), dtype=np.float32)


def draw_fundus(grade: int, style: FundusStyle, size: int, seed: int) -> NDArray[np.uint8]:
    """Return one synthetic photograph, decided by the arguments alone.

    Args:
        grade: 0 to 4 on the international scale, or ``UNGRADABLE``.
        style: the camera.
        size: side of the picture in pixels, 32 to 512.
        seed: any integer: the eye, and how its photograph was taken.

    Returns:
        (size, size, 3) uint8, red, green, blue; 0 outside the round field of view.

    Raises:
        ValueError: the grade or the size is outside its range.
    """
    if not 0 <= grade <= UNGRADABLE:
        raise ValueError(f"a grade is 0 to 4, or {UNGRADABLE} for ungradable, not {grade}")
    _check_size(size)
    severity = grade
    taking = _rng(seed, "taking", style.name)
    if grade == UNGRADABLE:
        severity = int(_rng(seed, "severity").integers(5))
        style = _spoil(_rng(seed, "spoil"), style)
    eye = _grow_eye(_rng(seed, "eye"))
    lesions = _lesions(seed, severity)
    view = _view_of(eye, style, size, taking)
    scene = _paint(eye, lesions, view)
    return _photograph(scene, style, view, taking, noise=_rng(seed, "noise", style.name, size))


def draw_disc_and_cup(style: FundusStyle, size: int, seed: int) -> NDArray[np.uint8]:
    """Return where a photograph by the same arguments shows the optic disc and its cup, whatever its grade.

    Returns:
        (size, size) uint8: 1 the disc around its cup, 2 the cup, 0 all else.

    Raises:
        ValueError: the size is outside its range.
    """
    _check_size(size)
    eye = _grow_eye(_rng(seed, "eye"))
    view = _view_of(eye, style, size, _rng(seed, "taking", style.name))
    disc, cup = view.distance(_DISC) < _DISC_MM, view.distance(_DISC + _CUP) < eye.cup * _DISC_MM
    return np.asarray(disc, np.uint8) + np.asarray(disc & cup, np.uint8)


def _view_of(eye: _Eye, style: FundusStyle, size: int, taking: np.random.Generator) -> _View:
    target = style.centring * _DISC @ eye.turn + taking.normal(0.0, 0.03 * style.field_mm, size=2)
    return _View(size, style.aperture * size / style.field_mm, target, eye.turn)


def write_disc_and_cup_site(root: Path, *, style: FundusStyle, images: int, size: int, seed: int) -> None:
    """Write ``images`` and ``masks``, a PNG each of every photograph: a data folder as a site has one.

    Args:
        root: made if it is not there; files of the same names are replaced.
        style: the site's camera; its photographs are centred between fovea and disc, so that all of the disc is seen.
        images: how many; grades 0 to 4 follow each other.
        size: side of each picture in pixels, 32 to 512.
        seed: decides every pixel.
    """
    style = replace(style, centring=0.5)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    for number in range(images):
        name, own = f"{style.name}-{number + 1:03d}.png", seed_for(seed, style.name, "disc", number)
        Image.fromarray(draw_fundus(number % 5, style, size, own)).save(root / "images" / name)
        Image.fromarray(draw_disc_and_cup(style, size, own)).save(root / "masks" / name)


def write_graded_site(
    root: Path, *, style: FundusStyle, images: int, size: int, seed: int, grades: int = 5, label_noise: float = 0.0
) -> None:
    """Write ``images/STYLE-001.png``, ..., ``labels.csv`` and ``grades.txt``: a data folder as a site has one.

    ``labels.csv`` has the columns ``id``, a picture's stem, and ``grade``, from 0. ``grades.txt`` names the grades of
    this site's scale, one a line, from 0 upwards.

    Args:
        root: made if it is not there; files of the same names are replaced.
        style: the site's camera.
        images: how many, at least two a grade.
        size: side of each picture in pixels, 32 to 512.
        seed: decides every pixel and every label.
        grades: 4 (severe and proliferative are one), 5, or 6 (with ungradable).
        label_noise: probability in [0, 1] that a label is one grade off; ungradable is never mistaken.

    Raises:
        ValueError: the number of grades, the number of images, the size or the label noise is outside its range.
    """
    if grades not in GRADE_NAMES:
        raise ValueError(f"a scale has 4, 5 or 6 grades, not {grades}")
    if images < 2 * grades:
        raise ValueError(f"{grades} grades take at least {2 * grades} images, not {images}")
    _check_size(size)
    if not 0 <= label_noise <= 1:
        raise ValueError(f"the label noise is a probability between 0 and 1, not {label_noise}")
    rng = _rng(seed, "site", style.name)
    truth = rng.permutation(np.repeat(np.arange(grades), _quota(images, _SHARES[grades])))
    worst = min(grades, UNGRADABLE) - 1  # of the grades that have neighbours
    (root / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, grade in enumerate(truth.tolist(), start=1):
        severity = grade
        if grades == 4 and grade == 3:
            severity = 3 + int(rng.random() < 0.5)
        label = grade
        if rng.random() < label_noise and grade != UNGRADABLE:
            label = _neighbour(rng, grade, worst)
        stem = f"{style.name}-{number:03d}"
        picture = draw_fundus(severity, style, size, seed_for(seed, style.name, "image", number))
        Image.fromarray(picture).save(root / "images" / f"{stem}.png")
        rows.append((stem, label))
    (root / "labels.csv").write_bytes(as_csv([("id", "grade"), *rows]))
    (root / "grades.txt").write_text("".join(f"{name}\n" for name in GRADE_NAMES[grades]), encoding="utf-8")


def contact_sheet(size: int = 176, seed: int = 2) -> Image.Image:
    """Return all styles in rows, all grades in columns, each under its name; one eye a style."""
    gap, caption = 4, 18
    names = GRADE_NAMES[6]
    sheet = Image.new("RGB", (len(names) * (size + gap) + gap, len(STYLES) * (size + caption + gap) + gap), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    for row, style in enumerate(STYLES):
        for grade, name in enumerate(names):
            left, top = gap + grade * (size + gap), gap + row * (size + caption + gap)
            draw.text((left + size / 2, top + caption / 2), f"{style.name}: {name}", "black", font, anchor="mm")
            picture = draw_fundus(grade, style, size, seed_for(seed, "contact sheet", row))
            sheet.paste(Image.fromarray(picture), (left, top + caption))
    return sheet


def _rng(seed: int, *purpose: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_for(seed, "synthetic fundus", *purpose))


def _check_size(size: int) -> None:
    if not 32 <= size <= 512:
        raise ValueError(f"a synthetic photograph has between 32 and 512 pixels a side, not {size}")


def _quota(images: int, percent: Sequence[int]) -> list[int]:
    """Return how many images each grade has, by largest remainder; of equal remainders the lower grade goes first."""
    quota = [images * share // 100 for share in percent]
    remainders = [images * share % 100 for share in percent]
    for grade in sorted(range(len(percent)), key=lambda grade: -remainders[grade])[: images - sum(quota)]:
        quota[grade] += 1
    return quota


def _neighbour(rng: np.random.Generator, grade: int, worst: int) -> int:
    """Return one of the grades beside this one; at an end of the scale there is but one."""
    step = 1 if rng.random() < 0.5 else -1
    return grade + step if 0 <= grade + step <= worst else grade - step


def _spoil(rng: np.random.Generator, style: FundusStyle) -> FundusStyle:
    """Return the same camera, misused: out of focus, in the dark, or blinding."""
    fault = int(rng.integers(3))
    if fault == 0:
        return replace(style, blur_mm=style.blur_mm + rng.uniform(0.5, 0.9), haze=style.haze + 0.15)
    if fault == 1:
        return replace(style, blur_mm=style.blur_mm + 0.3, brightness=style.brightness * rng.uniform(0.2, 0.35))
    return replace(
        style, blur_mm=style.blur_mm + 0.4, brightness=style.brightness * rng.uniform(1.6, 2.2), haze=style.haze + 0.3
    )


def _grow_eye(rng: np.random.Generator) -> _Eye:
    """Return a healthy eye, left or right, with the harmless spots that eyes have."""
    tilt = rng.normal(0.0, 0.08)
    turn = np.array([[math.cos(tilt), math.sin(tilt)], [-math.sin(tilt), math.cos(tilt)]])
    turn[:, 0] *= -1 if rng.random() < 0.5 else 1
    arteries = _grow_tree(rng, width_mm=0.14)
    veins = _grow_tree(rng, width_mm=0.19)
    hue, depth = rng.normal(0.0, 0.09), rng.normal(0.0, 0.08)
    pigment = np.array(_PIGMENT) * (1 + depth) * (1 - hue / 3, 1 + hue, 1 + 1.5 * hue)
    drusen = int(rng.integers(4, 14)) if rng.random() < 0.3 else 0
    spots = int(rng.integers(1, 8)) if rng.random() < 0.6 else 0
    return _Eye(
        turn=turn,
        arteries=arteries,
        veins=veins,
        pigment=pigment,
        cup=rng.uniform(0.25, 0.55),
        macula=rng.uniform(0.35, 0.6),
        shades=[_noise(rng, 10), _noise(rng, 40), _noise(rng, 90)],
        choroid=rng.uniform(0.0, 0.07),
        pale=[
            _Patch(_blob(rng, rng.normal(0.0, 1.6, size=2), rng.uniform(0.07, 0.16)), rng.uniform(0.2, 0.5))
            for _ in range(drusen)
        ],
        dark=[
            _Patch(_blob(rng, place, rng.uniform(0.08, 0.18)), rng.uniform(0.3, 0.9))
            for place in _scatter(rng, spots, nearest_mm=1.0)
        ],
    )


def _noise(rng: np.random.Generator, cells: int) -> Image.Image:
    """Return (cells, cells) noise over the world, to be enlarged: of deviation about 1."""
    noise = gaussian_filter(rng.standard_normal((cells, cells), dtype=np.float32), 0.8, mode="wrap")
    return Image.fromarray(noise / noise.std())


def _grow_tree(rng: np.random.Generator, width_mm: float) -> list[Vessel]:
    """Return arteries or veins: four arcades, small vessels to the macula, and two generations of branches."""
    trunks = []
    for side in (-1, 1):
        rise = rng.uniform(2.2, 3.0)
        temporal = [(0.3, 1.0 * rise), (3.0, 1.55 * rise), (rng.uniform(8.0, 11.0), rise * rng.uniform(0.3, 1.0))]
        nasal = [(-0.4, 1.6), (-1.5, rng.uniform(1.6, 2.6)), (-5.5, rng.uniform(2.5, 5.0))]
        for stops, width in ((temporal, width_mm), (nasal, 0.75 * width_mm)):
            trunks.append(_arcade(rng, np.array(stops) * (1, side), width * rng.uniform(0.85, 1.15)))
    roots = np.repeat(_DISC[None], 3, axis=0)
    macular = _wander(
        rng, roots, np.array([-0.35, 0.0, 0.4]) + rng.normal(0.0, 0.12, 3), rng.uniform(2.2, 3.6, 3), 0.4 * width_mm
    )
    vessels = trunks + macular
    parents = trunks
    for spacing_mm, shortest_mm, longest_mm in ((1.4, 1.2, 4.0), (1.0, 0.5, 1.8)):
        parents = _branches(rng, parents, spacing_mm, shortest_mm, longest_mm)
        vessels = vessels + parents
    return vessels


def _arcade(rng: np.random.Generator, stops: Points, width: float) -> Vessel:
    """Return a large vessel from the disc by way of the stops, (3, 2) in mm from the disc: a winding Bézier curve."""
    at = np.linspace(0, 1, 90)[:, None]
    path = 3 * at * (1 - at) ** 2 * stops[0] + 3 * at**2 * (1 - at) * stops[1] + at**3 * stops[2]
    winding = np.cumsum(gaussian_filter(rng.normal(0.0, 0.11, size=(90, 2)), (4, 0)), axis=0)
    start = _DISC + rng.normal(0.0, 0.08, size=2)
    return Vessel(start + path + winding * np.sqrt(at), np.linspace(width, 0.4 * width, 90))


def _branches(
    rng: np.random.Generator, parents: list[Vessel], spacing_mm: float, shortest_mm: float, longest_mm: float
) -> list[Vessel]:
    """Return the branches of all vessels: to both sides in turn, away from the disc."""
    roots, headings, widths = [], [], []
    for parent in parents:
        step_mm = float(np.hypot(*(parent.path[1:] - parent.path[:-1]).T).mean())
        at = int(rng.uniform(0.6, 1.4) * spacing_mm / step_mm)
        side = 1 if rng.random() < 0.5 else -1
        while at < len(parent.path) - 2:
            along = parent.path[at + 1] - parent.path[at - 1]
            roots.append(parent.path[at])
            headings.append(math.atan2(along[1], along[0]) + side * rng.uniform(0.4, 0.9))
            widths.append(parent.width[at] * rng.uniform(0.4, 0.65))
            side = -side
            at += max(2, int(rng.uniform(0.5, 1.5) * spacing_mm / step_mm))
    lengths = rng.uniform(shortest_mm, longest_mm, len(roots))
    return _wander(rng, np.array(roots).reshape(-1, 2), np.array(headings), lengths, np.array(widths))


def _wander(
    rng: np.random.Generator,
    roots: Points,
    headings: NDArray[np.float64],
    lengths: NDArray[np.float64],
    widths: NDArray[np.float64] | float,
    *,
    wobble: float = 0.035,
) -> list[Vessel]:
    """Return winding vessels that narrow along their way and end before the fovea.

    Args:
        rng: how they wind.
        roots: (n, 2) where they begin, in mm from the fovea.
        headings: (n,) in which direction, in radians.
        lengths: (n,) in mm.
        widths: (n,) or one for all, in mm.
        wobble: how much more, or less, a vessel turns with each step, in radians.
    """
    count = len(roots)
    steps = max(4, math.ceil(float(lengths.max(initial=0.0)) / _STEP_MM))
    turning = gaussian_filter(rng.normal(0.0, 4 * wobble, size=(count, steps)), (0, 3))
    angles = headings[:, None] + np.cumsum(turning, axis=1)  # (n, steps)
    paths = roots[:, None] + _STEP_MM * np.cumsum(np.stack([np.cos(angles), np.sin(angles)], axis=2), axis=1)
    blocked = np.hypot(paths[..., 0], paths[..., 1]) < rng.uniform(0.4, 0.9, size=(count, 1))
    blocked |= np.arange(steps) * _STEP_MM > lengths[:, None]
    ends = np.where(blocked.any(axis=1), blocked.argmax(axis=1), steps)
    return [
        Vessel(np.concatenate([root[None], path[:end]]), np.linspace(width, 0.5 * width, end + 1))
        for root, path, width, end in zip(roots, paths, np.broadcast_to(widths, count), ends.tolist(), strict=True)
        if end >= 3
    ]


def _scatter(rng: np.random.Generator, count: int, nearest_mm: float = 0.5) -> Points:
    """Return (count, 2) places in mm from the fovea, in its four quadrants by turns, none on the disc.

    The first places are the same whatever the count.
    """
    places: list[Points] = []
    quadrant = int(rng.integers(4))
    while len(places) < count:
        angle = (quadrant + rng.random()) * math.pi / 2
        distance = math.sqrt(rng.uniform(nearest_mm**2, 4.9**2))
        place = distance * np.array([math.cos(angle), math.sin(angle)])
        place[0] -= 0.8 if place[0] < 0 else 0.0  # pictures reach further beyond the disc than towards the temple
        if math.hypot(*(place - _DISC)) > 1.5 * _DISC_MM:
            places.append(place)
            quadrant += 1
    return np.array(places).reshape(-1, 2)


def _blob(
    rng: np.random.Generator,
    centre: Points,
    radius_mm: float,
    *,
    ragged: float = 0.2,
    stretch: float = 1.0,
    angle: float = 0.0,
) -> Points:
    """Return the (16, 2) outline of a spot that is ``stretch`` times longer along an angle than across it."""
    around = np.arange(16) * math.pi / 8
    rough = gaussian_filter(rng.standard_normal(16), 0.8, mode="wrap")
    radius = radius_mm * np.maximum(0.3, 1 + ragged * rough)
    along, across = radius * np.cos(around) * math.sqrt(stretch), radius * np.sin(around) / math.sqrt(stretch)
    cos, sin = math.cos(angle), math.sin(angle)
    result: Points = centre + np.stack([along * cos - across * sin, along * sin + across * cos], axis=1)
    return result


def _lesions(seed: int, severity: int) -> _Lesions:
    """Return the lesions of this eye at severity 0 to 4; each kind of lesion has its own random numbers."""
    rngs = {kind: _rng(seed, kind) for kind in _COUNTS}
    counts = {}
    for kind, ranges in _COUNTS.items():
        fewest, most = ranges[severity]
        counts[kind] = fewest + int(rngs[kind].random() * (most - fewest + 1))
    blood, fat, wool = [], [], []
    rng = rngs["microaneurysms"]
    places = _scatter(_rng(seed, "microaneurysms", "places"), counts["microaneurysms"])
    for place in places:
        blood.append(_Patch(_blob(rng, place, rng.uniform(0.09, 0.15)), rng.uniform(0.45, 0.9)))
    rng = rngs["haemorrhages"]
    for place in _scatter(_rng(seed, "haemorrhages", "places"), counts["haemorrhages"]):
        towards_disc = math.atan2(*(place - _DISC)[::-1])  # flame haemorrhages lie along the nerve fibres
        stretch = rng.uniform(1.0, 1.5) if rng.random() < 0.7 else rng.uniform(2.0, 4.0)
        outline = _blob(
            rng, place, rng.uniform(0.16, 0.36), ragged=0.4, stretch=stretch, angle=towards_disc + rng.normal(0.0, 0.3)
        )
        blood.append(_Patch(outline, rng.uniform(0.6, 1.0)))
    rng = rngs["exudates"]
    for place in _scatter(_rng(seed, "exudates", "places"), counts["exudates"], nearest_mm=0.8):
        fat += _cluster(rng, 0.75 * place)  # most lie near the macula
    rng = rngs["cotton wool"]
    for place in _scatter(_rng(seed, "cotton wool", "places"), counts["cotton wool"], nearest_mm=1.5):
        wool.append(_Patch(_blob(rng, place, rng.uniform(0.22, 0.38), stretch=1.4), rng.uniform(0.5, 0.8)))
    if severity < 4:
        return _Lesions(blood, fat, wool, [])
    rng = _rng(seed, "proliferation")
    form = rng.random()
    new_vessels = [vessel for _ in range(int(rng.integers(1, 3))) for vessel in _tangle(rng)] if form < 0.75 else []
    if form > 0.4:
        blood.append(_Patch(_boat(rng), rng.uniform(0.85, 1.0)))
    return _Lesions(blood, fat, wool, new_vessels)


def _cluster(rng: np.random.Generator, centre: Points) -> list[_Patch]:
    """Return hard exudates: small sharp spots in a heap or, now and then, in a ring."""
    ring = rng.random() < 0.3
    patches = []
    for _ in range(int(rng.integers(5, 15))):
        angle = rng.uniform(0, 2 * math.pi)
        distance = rng.normal(0.65, 0.07) if ring else abs(rng.normal(0.0, 0.4))
        place = centre + distance * np.array([math.cos(angle), math.sin(angle)])
        patches.append(_Patch(_blob(rng, place, rng.uniform(0.06, 0.15)), rng.uniform(0.6, 1.0)))
    return patches


def _tangle(rng: np.random.Generator) -> list[Vessel]:
    """Return new vessels: a fan of fine, curling ones, on the disc or beside an arcade."""
    if rng.random() < 0.45:
        centre = _DISC + rng.normal(0.0, 0.4, size=2)
    else:
        centre = np.array([rng.uniform(-3.0, 2.5), rng.choice((-1, 1)) * rng.uniform(2.0, 3.4)])
    count = int(rng.integers(18, 30))
    roots = centre + rng.normal(0.0, 0.3, size=(count, 2))
    return _wander(
        rng,
        roots,
        rng.uniform(0, 2 * math.pi, count),
        rng.uniform(0.8, 2.2, count),
        rng.uniform(0.06, 0.1, count),
        wobble=0.22,
    )


def _boat(rng: np.random.Generator) -> Points:
    """Return a pre-retinal haemorrhage: blood that has sunk in front of the retina, so that it has a level top."""
    radius_mm = rng.uniform(0.7, 1.5)
    centre = np.array([rng.uniform(-3.5, 2.5), rng.choice((-1, 1)) * rng.uniform(1.2, 3.0)])
    around = np.linspace(0, math.pi, 24)
    outline = np.stack([np.cos(around), rng.uniform(0.5, 0.9) * np.sin(around)], axis=1)
    outline *= 1 + 0.03 * rng.standard_normal((24, 1))
    result: Points = centre + radius_mm * outline
    return result


def _paint(eye: _Eye, lesions: _Lesions, view: _View) -> Canvas:
    """Return the (size, size, 3) retina as it is, evenly lit, before a camera sees it."""
    coarse, medium, fine = (view.window(shade) for shade in eye.shades)
    fovea = view.distance(np.zeros(2))
    shade = 1 + 0.06 * coarse + 0.022 * medium
    shade += eye.choroid * (np.exp(-((fine / 0.5) ** 2)) - 0.5) * np.clip(fovea / 3, 0, 1)
    scene = shade[..., None] * eye.pigment.astype(np.float32)  # (size, size, 3)
    scene = _mix(scene, np.exp(-((fovea / 1.0) ** 2)) * eye.macula, (0.42, 0.16, 0.07))
    scene = _mix(scene, 0.5 * view.coverage(eye.dark), (0.30, 0.17, 0.12))
    scene = _mix(scene, view.coverage(eye.pale), (0.92, 0.70, 0.36))

    disc = view.distance(_DISC)
    scene = _mix(scene, 0.35 * _disk(disc, 1.3 * _DISC_MM, 0.2), (0.90, 0.60, 0.33))  # thinner pigment around it
    scene = _mix(scene, 0.92 * _disk(disc, _DISC_MM, 0.05), (1.0, 0.72, 0.42))
    cup = view.distance(_DISC + _CUP)
    scene = _mix(scene, 0.8 * _disk(cup, eye.cup * _DISC_MM, 0.09), (1.0, 0.87, 0.62))

    wool = gaussian_filter(view.coverage(lesions.wool), 0.09 * view.pixels_per_mm)
    scene = _mix(scene, 0.85 * wool, (0.97, 0.80, 0.58))
    vessels = view.coverage(
        view.vessels(eye.arteries, 0.42) + view.vessels(eye.veins, 0.62) + view.vessels(lesions.new_vessels, 0.7)
    )
    reflex = view.coverage(view.vessels([artery for artery in eye.arteries if artery.width[0] > 0.09], 0.5, share=0.3))
    blood = np.maximum(vessels - 0.35 * reflex, view.coverage(lesions.blood))
    scene = scene * np.exp(-blood[..., None] * _ABSORPTION)
    return _mix(scene, 0.9 * view.coverage(lesions.fat), (1.0, 0.82, 0.40))


def _mix(scene: Canvas, share: Canvas, colour: tuple[float, float, float]) -> Canvas:
    """Return the scene with a share, (size, size) in 0 to 1, of each pixel replaced by a colour."""
    result: Canvas = scene + share[..., None] * (np.array(colour, np.float32) - scene)
    return result


def _disk(distance: Canvas, radius: float, softness: float) -> Canvas:
    """Return 1 within a radius and 0 beyond, with a soft edge."""
    result: Canvas = 1 / (1 + np.exp(np.clip((distance - radius) / (softness / 2), -40, 40)))
    return result


def _photograph(
    scene: Canvas, style: FundusStyle, view: _View, taking: np.random.Generator, noise: np.random.Generator
) -> NDArray[np.uint8]:
    """Return the scene through a camera: no two photographs are lit, coloured and focused alike."""
    half = view.size / 2
    along = (np.arange(view.size, dtype=np.float32) + 0.5 - half) / (half * style.aperture)
    across, down = along[None, :], along[:, None]
    radius = np.hypot(across, down)  # 1 at the edge of the field
    lean = taking.normal(0.0, 0.08, size=2)
    light = (1 - style.vignetting * radius**2) * (1 + lean[0] * across + lean[1] * down)
    gain = np.array(style.cast) * style.brightness * taking.lognormal(0.0, 0.1) * taking.lognormal(0.0, 0.05, size=3)
    picture = scene * light[..., None].astype(np.float32) * gain.astype(np.float32)
    haze = min(0.9, style.haze + abs(taking.normal(0.0, 0.05)))
    picture = picture * (1 - haze) + haze * np.array((0.72, 0.58, 0.45), np.float32) * min(1.5, style.brightness)
    blur_px = style.blur_mm * taking.lognormal(0.0, 0.3) * view.pixels_per_mm
    picture = gaussian_filter(picture, (blur_px, blur_px, 0))
    middle = picture.mean(axis=(0, 1))
    picture = middle + (picture - middle) * np.float32(style.contrast * taking.lognormal(0.0, 0.08))
    for _ in range(taking.poisson(style.dust)):
        spot_x, spot_y = taking.uniform(-0.8, 0.8, size=2)
        spread = taking.uniform(0.015, 0.035)
        depth = taking.uniform(0.1, 0.3) * (-1 if taking.random() < 0.6 else 0.5)
        spot = np.exp(-((across - spot_x) ** 2 + (down - spot_y) ** 2) / (2 * spread**2))
        picture = picture * (1 + np.float32(depth) * spot[..., None].astype(np.float32))
    grain = noise.standard_normal((view.size, view.size, 4), dtype=np.float32)
    grain = 0.85 * grain[..., :1] + 0.5 * grain[..., 1:]  # most of it is grey, as a camera's own denoising leaves it
    picture = np.clip(picture + np.float32(style.noise) * grain, 0, 1)
    edge = np.clip((1 - radius) * half * style.aperture, 0, 1)  # a pixel wide
    result: NDArray[np.uint8] = np.rint(picture * edge[..., None] * 255).astype(np.uint8)
    return result


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".png"):
        sys.exit("usage: python -m deploy.local.synthetic_fundus OUT.png")
    contact_sheet().save(sys.argv[1], optimize=True)
