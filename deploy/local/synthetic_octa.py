"""Synthetic OCTA en-face images with exact vessel masks, for demonstrations and tests. Never evidence about patients.

A retina is grown in millimetres around the fovea: arteries and veins arch around the macula from the optic disc, give
off branches towards and away from the fovea, and those give off twigs. A device style then looks at it: how wide the
field is, how sharp, how bright, how noisy. Between the vessels lies a mesh of capillaries, absent in the foveal
avascular zone.

The mask is drawn from the same geometry as the image. It holds arteries, veins, their branches and their twigs, and
nothing of the capillary mesh. A vessel thinner than a pixel is about one pixel wide in it, so that it is not broken.
A vessel that begins thinner than 0.4 of a pixel is left out, as an observer would: the image shows but a trace of it.

``python -m deploy.local.synthetic_octa OUT.png`` draws a contact sheet of all styles.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy.ndimage import gaussian_filter

from shared.learning.seeds import seed_for

Field = NDArray[np.float64]
Points = NDArray[np.float64]


@dataclass(frozen=True)
class OctaStyle:
    """How one device shows a retina. Brightness is on the image's range, 0 to 1.

    Args:
        name: lower case, used in file names.
        field_mm: side of the square field of view.
        blur_mm: standard deviation of the optical blur.
        vessel: brightness of a large vessel.
        mesh: brightness of the capillary mesh.
        haze: brightness of what lies between and beneath.
        speckle: standard deviation of the multiplicative noise.
        grain: standard deviation of the additive noise.
        gamma: exponent applied last: above 1 darkens the background, below 1 lifts it.
        shading: how unevenly the field is lit, 0 for not at all.
        motion_lines: expected number of horizontal lines left by eye movements.
    """

    name: str
    field_mm: float
    blur_mm: float
    vessel: float
    mesh: float
    haze: float
    speckle: float
    grain: float
    gamma: float
    shading: float
    motion_lines: float


WIDE = OctaStyle(
    name="wide",
    field_mm=6.0,
    blur_mm=0.010,
    vessel=0.85,
    mesh=0.42,
    haze=0.10,
    speckle=0.42,
    grain=0.05,
    gamma=1.0,
    shading=0.2,
    motion_lines=1.0,
)
"""A 6 mm field, grainy: the mesh is not resolved, the vessels are bright."""

NARROW = OctaStyle(
    name="narrow",
    field_mm=3.5,
    blur_mm=0.009,
    vessel=0.95,
    mesh=0.62,
    haze=0.06,
    speckle=0.22,
    grain=0.03,
    gamma=1.2,
    shading=0.15,
    motion_lines=0.5,
)
"""A 3.5 mm field, sharp and dark: single capillaries and the edge of the avascular zone are seen."""

HAZY = OctaStyle(
    name="hazy",
    field_mm=7.5,
    blur_mm=0.022,
    vessel=0.70,
    mesh=0.20,
    haze=0.20,
    speckle=0.17,
    grain=0.05,
    gamma=0.85,
    shading=0.3,
    motion_lines=6.0,
)
"""A 7.5 mm field, blurred, pale and unevenly lit, with motion lines."""

STYLES = (WIDE, NARROW, HAZY)

_STEP_MM = 0.025
_LOOKS_AHEAD_MM = 0.06  # a growing tip ends this far before a vessel
_WORLD_MM = 5.5  # half the side of the square in which vessels grow: more than any field shows
_THINNEST_MM = 0.016
_DISC = np.array([-4.6, 0.3])  # mm from the fovea, in a left-handed picture


@dataclass(frozen=True)
class Vessel:
    """A path with its width at each point: (n, 2) and (n,), in mm from the fovea, x to the right, y downwards."""

    path: Points
    width: Points


def render(style: OctaStyle, size: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return one synthetic image and its mask, decided by the arguments alone.

    Args:
        style: the device.
        size: side of the image in pixels, 32 to 512.
        seed: any integer.

    Returns:
        (size, size) uint8 and (size, size) bool.

    Raises:
        ValueError: the size is outside its range.
    """
    if not 32 <= size <= 512:
        raise ValueError(f"a synthetic image has between 32 and 512 pixels a side, not {size}")
    rng = np.random.default_rng(seed_for(seed, "synthetic octa", style.name, size))
    fold = math.ceil(512 / size)  # drawn finer, then averaged, so that edges are as soft as a detector makes them
    fine = size * fold
    pixels_per_mm = fine / style.field_mm

    vessels = grow_retina(rng)
    seen = [vessel for vessel in vessels if vessel.width[0] >= 0.4 * style.field_mm / size]
    centre = rng.normal(0.0, 0.04 * style.field_mm, size=2)  # the fovea is never quite in the middle
    drawn = _draw(seen, fine, pixels_per_mm, centre, thinnest_px=1.3 * fold)
    mask = _average(drawn, fold) >= 0.5
    drawn = np.maximum(drawn, _draw(vessels, fine, pixels_per_mm, centre, thinnest_px=1.0))

    fovea = _distance_to(centre, fine, pixels_per_mm)  # mm
    mesh = _capillary_mesh(rng, fine, pixels_per_mm, fovea)
    light = 1 + style.shading * _smooth_noise(rng, fine, fine / 3)
    widths = gaussian_filter(drawn, 0.025 * pixels_per_mm)  # thin vessels carry less flow and are less bright
    flow = drawn * (0.6 + 0.4 * np.clip(widths * 1.4, 0, 1))
    depth = 0.55 + 0.45 * np.clip((fovea - 0.25) / 1.2, 0, 1)  # the retina thins towards the fovea
    scene = np.maximum(style.vessel * flow, (style.haze + style.mesh * mesh) * depth * (1 - flow))
    scene = gaussian_filter(scene * np.clip(light, 0.15, 2.5), style.blur_mm * pixels_per_mm)

    image = _average(scene, fold)
    image, mask = _move_rows(rng, image, mask, style.motion_lines)
    image *= 1 + style.speckle * _speckle(rng, size)
    image += rng.normal(0.0, style.grain, size=image.shape)
    image = np.clip(image, 0, 1) ** style.gamma
    return np.rint(image * 255).astype(np.uint8), mask


def write_site(folder: Path, *, style: OctaStyle, images: int, size: int, seed: int) -> None:
    """Write ``images/STYLE-001.png``, ... and ``masks/STYLE-001.png``, ...: a data folder as a site has one.

    Args:
        folder: made if it is not there; files of the same names are replaced.
        style: the site's device.
        images: how many.
        size: side of each image in pixels, 32 to 512.
        seed: decides every pixel.
    """
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(1, images + 1):
        image, mask = render(style, size, seed_for(seed, "image", number))
        stem = f"{style.name}-{number:03d}.png"
        Image.fromarray(image).save(folder / "images" / stem)
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / stem)


def contact_sheet(size: int = 256, pairs: int = 2, seed: int = 1) -> Image.Image:
    """Return all styles in rows; in each row, so many images, each with its mask at its right."""
    rows = []
    for style in STYLES:
        drawn = [render(style, size, seed_for(seed, "contact sheet", pair)) for pair in range(pairs)]
        tiles = [tile for image, mask in drawn for tile in (image, mask.astype(np.uint8) * 255)]
        rows.append(np.hstack([np.pad(tile, ((0, 8), (0, 8)), constant_values=255) for tile in tiles]))
    return Image.fromarray(np.pad(np.vstack(rows), ((8, 0), (8, 0)), constant_values=255))


def grow_retina(rng: np.random.Generator) -> list[Vessel]:
    """Return the vessels of one macula: arcades above and below, vessels from disc to macula, branches and twigs.

    Arteries and veins alternate; both are grown alike, for OCTA shows no difference.
    """
    mirrored = rng.random() < 0.5  # a left or a right eye
    vessels: list[Vessel] = []
    taken: set[tuple[int, int]] = set()
    trunks: list[Vessel] = []
    for side in (-1, 1):
        for order in range(2):
            trunks.append(_arcade(rng, side, order))
    for side in (-1, 1, 0):
        trunks.append(_towards_macula(rng, side))
    for trunk in trunks:
        _occupy(taken, trunk.path)
    vessels += trunks
    for trunk in trunks:
        _branch(rng, trunk, vessels, taken, generation=1)
    tilt = rng.normal(0.0, 0.1)
    turn = np.array([[math.cos(tilt), math.sin(tilt)], [-math.sin(tilt), math.cos(tilt)]])
    turn[:, 0] *= -1 if mirrored else 1
    return [Vessel(vessel.path @ turn, vessel.width) for vessel in vessels]


def _arcade(rng: np.random.Generator, side: int, order: int) -> Vessel:
    """Return a large vessel from the disc, arching above (side -1) or below (side 1) the macula; order 1 is further
    out.
    """
    height = rng.uniform(1.5, 2.1) + order * rng.uniform(0.5, 1.1)
    stops = np.array(
        [
            [rng.uniform(-3.2, -2.4), side * height * rng.uniform(0.75, 0.95)],
            [rng.uniform(-1.0, 0.2), side * height],
            [rng.uniform(1.4, 2.2), side * height * rng.uniform(0.75, 1.1)],
            [_WORLD_MM + 1, side * height * rng.uniform(0.5, 1.6)],
        ]
    )
    width = rng.uniform(0.075, 0.12)
    start = _DISC + np.array([0.0, side * (0.3 + 0.25 * order)])
    return _walk(rng, start, stops, width=width, wobble=0.10)


def _towards_macula(rng: np.random.Generator, side: int) -> Vessel:
    """Return a small vessel that runs straight from the disc to the macula and ends before it."""
    stops = np.array([[rng.uniform(-2.8, -2.0), side * rng.uniform(0.5, 0.8)], [-0.8, side * rng.uniform(0.3, 0.6)]])
    width = rng.uniform(0.045, 0.065)
    return _walk(rng, _DISC + np.array([0.0, 0.15 * side]), stops, width=width, wobble=0.16)


def _walk(rng: np.random.Generator, start: Points, stops: Points, *, width: float, wobble: float) -> Vessel:
    """Return a smooth, slightly winding path by way of the stops, half as wide at its end as at its start."""
    x, y = start.tolist()
    points = [(x, y)]
    heading = math.atan2(*(stops[0] - start)[::-1])
    sway = 0.0
    for stop_x, stop_y in stops.tolist():
        for _ in range(400):
            direction = math.atan2(stop_y - y, stop_x - x)
            if math.hypot(stop_x - x, stop_y - y) < 0.2 or math.cos(direction - heading) < -0.2:
                break
            sway = 0.93 * sway + rng.normal(0.0, wobble)
            heading += 0.07 * _turn(direction - heading) + 0.10 * sway
            x, y = _ahead(x, y, heading, _STEP_MM)
            points.append((x, y))
    path = np.array(points)
    return Vessel(path, np.linspace(width, width * 0.5, len(path)))


def _branch(
    rng: np.random.Generator, parent: Vessel, vessels: list[Vessel], taken: set[tuple[int, int]], generation: int
) -> None:
    """Add the branches of a vessel, their branches, and so on for three generations, to the list of vessels."""
    spacing_mm = (0.42, 0.30, 0.24)[generation - 1]
    at = int(rng.uniform(0.3, 1.0) * spacing_mm / _STEP_MM)
    side = 1 if rng.random() < 0.5 else -1
    while at < len(parent.path) - 3:
        width = parent.width[at] * rng.uniform(0.45, 0.75)
        if width >= _THINNEST_MM and bool(np.all(np.abs(parent.path[at]) < _WORLD_MM)):
            child = _grow(rng, parent, taken, at=at, side=side, width=width, generation=generation)
            if len(child.path) > 6:
                vessels.append(child)
                _occupy(taken, child.path)
                if generation < 3:
                    _branch(rng, child, vessels, taken, generation + 1)
        side = -side if rng.random() < 0.7 else side
        at += max(3, int(rng.gamma(4.0, spacing_mm / 4) / _STEP_MM))


def _grow(
    rng: np.random.Generator,
    parent: Vessel,
    taken: set[tuple[int, int]],
    *,
    at: int,
    side: int,
    width: float,
    generation: int,
) -> Vessel:
    """Return one branch, which leaves at an angle, bends along its way, and ends before another vessel or the fovea."""
    along = parent.path[min(at + 2, len(parent.path) - 1)] - parent.path[max(at - 2, 0)]
    heading = math.atan2(along[1], along[0]) + side * rng.uniform(0.6, 1.25)
    outwards = math.atan2(parent.path[at][1], parent.path[at][0])
    inwards = math.cos(heading - outwards) < 0
    length_mm = (rng.uniform(1.2, 3.2), rng.uniform(0.4, 1.5), rng.uniform(0.2, 0.6))[generation - 1]
    nearest_mm = rng.uniform(0.35, 0.9)
    x, y = parent.path[at].tolist()
    points = [(x, y)]
    sway = 0.0
    for step in range(int(length_mm / _STEP_MM)):
        if math.hypot(x, y) < nearest_mm:
            break
        goal = math.atan2(-y, -x) if inwards else math.atan2(y, x)
        sway = 0.90 * sway + rng.normal(0.0, 0.2)
        heading += 0.05 * _turn(goal - heading) + 0.11 * sway
        x, y = _ahead(x, y, heading, _STEP_MM)
        if step > 4 and (_cell(x, y) in taken or _cell(*_ahead(x, y, heading, _LOOKS_AHEAD_MM)) in taken):
            break
        points.append((x, y))
    path = np.array(points)
    return Vessel(path, np.linspace(width, max(width * 0.55, _THINNEST_MM), len(path)))


def _ahead(x: float, y: float, heading: float, distance: float) -> tuple[float, float]:
    """Return the place at this distance. Of plain floats, for a retina has a hundred thousand such steps."""
    return x + distance * math.cos(heading), y + distance * math.sin(heading)


def _cell(x: float, y: float) -> tuple[int, int]:
    return (math.floor(x / 0.06), math.floor(y / 0.06))


def _occupy(taken: set[tuple[int, int]], path: Points) -> None:
    taken.update(_cell(x, y) for x, y in path.tolist())


def _turn(angle: float) -> float:
    """Return the angle as a number between -π and π."""
    return math.remainder(angle, 2 * math.pi)


def _draw(vessels: list[Vessel], fine: int, pixels_per_mm: float, centre: Points, thinnest_px: float) -> Field:
    """Return the vessels on a canvas of (fine, fine), 1 inside, 0 outside; each at least so many pixels wide."""
    canvas = Image.new("L", (fine, fine), 0)
    draw = ImageDraw.Draw(canvas)
    for vessel in vessels:
        places = (vessel.path + centre) * pixels_per_mm + fine / 2
        radii = np.maximum(vessel.width * pixels_per_mm, thinnest_px) / 2
        inside = np.all((places > -radii[:, None]) & (places < fine + radii[:, None]), axis=1)
        shown = inside[1:] & inside[:-1]
        if not shown.any():
            continue
        along = np.gradient(places, axis=0)
        across = along[:, ::-1] * [-1, 1] / np.linalg.norm(along, axis=1, keepdims=True)
        left, right = places + across * radii[:, None], places - across * radii[:, None]
        corners = np.hstack([left[:-1], left[1:], right[1:], right[:-1]])  # (segments, 8): x and y of four corners
        for segment in corners[shown].tolist():
            draw.polygon(segment, fill=1)
    return np.asarray(canvas, dtype=np.float64)


def _capillary_mesh(rng: np.random.Generator, fine: int, pixels_per_mm: float, fovea: Field) -> Field:
    """Return the (fine, fine) brightness of the capillaries, 0 to about 1: lines where smooth noise changes sign."""
    mesh = np.zeros((fine, fine))
    for spacing_mm in (0.014, 0.019):
        noise = _smooth_noise(rng, fine, spacing_mm * pixels_per_mm)
        mesh = np.maximum(mesh, np.exp(-((noise / 0.35) ** 2)))
    patchy = np.clip(0.8 + 0.22 * _smooth_noise(rng, fine, 0.08 * pixels_per_mm), 0, 1.3)
    ragged = fovea + 0.035 * _smooth_noise(rng, fine, 0.12 * pixels_per_mm)
    avascular_mm = rng.uniform(0.2, 0.32)
    edge = 1 / (1 + np.exp(-np.clip((ragged - avascular_mm) / 0.025, -50, 50)))
    result: Field = mesh * patchy * edge
    return result


def _smooth_noise(rng: np.random.Generator, side: int, sigma: float) -> Field:
    """Return (side, side) Gaussian noise of mean 0 and deviation 1, smooth over about sigma pixels."""
    step = max(1, int(sigma / 3))  # very smooth noise is made small and enlarged
    small = math.ceil(side / step)
    noise = gaussian_filter(rng.standard_normal((small, small)), sigma / step, mode="wrap")
    if step > 1:
        picture = Image.fromarray(noise.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC)
        noise = np.asarray(picture, dtype=np.float64)
    result: Field = (noise - noise.mean()) / max(float(noise.std()), 1e-9)
    return result


def _speckle(rng: np.random.Generator, size: int) -> Field:
    """Return (size, size) noise of deviation about 1, a little longer along the scan lines than across them."""
    noise = gaussian_filter(rng.standard_normal((size, size)), (0.25, 0.55), mode="wrap")
    result: Field = noise / noise.std()
    return result


def _move_rows(
    rng: np.random.Generator, image: Field, mask: NDArray[np.bool_], motion_lines: float
) -> tuple[Field, NDArray[np.bool_]]:
    """Imitate eye movements: from a line on, image and mask are shifted alike by a pixel or two; the line glows."""
    size = len(image)
    image, mask = image.copy(), mask.copy()
    for row in np.sort(rng.integers(1, size, size=rng.poisson(motion_lines))):
        shift = int(rng.integers(-1, 2)) * max(1, size // 160)
        image[row:] = np.roll(image[row:], shift, axis=1)
        mask[row:] = np.roll(mask[row:], shift, axis=1)
        image[row : row + max(1, size // 200)] += rng.uniform(0.05, 0.25)
    return image, mask


def _distance_to(centre: Points, fine: int, pixels_per_mm: float) -> Field:
    """Return the (fine, fine) distance of each pixel from the fovea, in mm."""
    along = (np.arange(fine) + 0.5 - fine / 2) / pixels_per_mm
    result: Field = np.hypot(along[None, :] - centre[0], along[:, None] - centre[1])
    return result


def _average(canvas: Field, fold: int) -> Field:
    size = len(canvas) // fold
    result: Field = canvas.reshape(size, fold, size, fold).mean(axis=(1, 3))  # (fine, fine) -> (size, size)
    return result


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".png"):
        sys.exit("usage: python -m deploy.local.synthetic_octa OUT.png")
    contact_sheet().save(sys.argv[1], optimize=True)
