"""Sounds in WAV files, cut into segments, each of which becomes a picture: time to the right, frequency upwards.

A file has one channel of 16 bits, at any rate that holds the highest frequency that is looked at.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

from shared.errors import DataError
from shared.escaping import escape
from shared.learning.data.images import short_name

SPREAD = 4.0
"""Deviations from the mean at which a picture's darkest and brightest level lie."""

_SILENCE = 1e-9  # power that 16 bits do not tell from none; its logarithm has an end


def read_wave(path: Path) -> tuple[NDArray[np.float64], int]:
    """Return one sound: (T,) in [-1, 1), and its samples a second.

    Raises:
        DataError: it cannot be read, or has several channels, or not 16 bits.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count = file.getparams()[:4]
            content = file.readframes(count)
    except (OSError, EOFError, wave.Error, RuntimeError) as error:
        reason = " ".join(str(error).replace(str(path), path.name).split()) or "it ends too early"
        raise DataError(
            [f"{short_name(path)}: cannot be read as WAV ({escape(reason)}); save it as PCM of 16 bits."]
        ) from error
    if channels != 1 or width != 2:
        raise DataError(
            [f"{short_name(path)}: has {channels} channels of {8 * width} bits; save it with one channel of 16 bits."]
        )
    if len(content) != 2 * count or rate < 1:
        raise DataError([f"{short_name(path)}: is cut off: it holds less than it says; export it again."])
    return np.frombuffer(content, dtype="<i2") / 32768, rate


def cut_spectrograms(
    sound: NDArray[np.float64], rate: int, *, segment_s: float, frame_s: float, highest_hz: float, side: int
) -> list[NDArray[np.uint8]]:
    """Return the pictures of one recording's segments, one after the other; what is left over at its end is dropped.

    A frame under a Hann window every half frame; the logarithm of its power; its mean over the recording taken off and
    divided by its deviation over the recording; from -4 to 4 on 8 bits. So a picture does not depend on how loud the
    recording is, but a loud segment of it is brighter than a quiet one.

    Args:
        sound: (T,) in [-1, 1], at least one segment.
        rate: samples a second.
        segment_s: length of a segment, which becomes one picture, in seconds.
        frame_s: length of a frame, in seconds.
        highest_hz: the highest frequency of a picture.
        side: of each picture, in pixels.

    Returns:
        Each (side, side, 3) uint8, three equal channels that are one in memory.
    """
    length = round(segment_s * rate)
    starts = range(0, len(sound) - length + 1, length)
    powers = np.stack([_log_power(sound[start : start + length], rate, frame_s, highest_hz) for start in starts])
    deviation = float(powers.std())
    scaled = (powers - powers.mean()) / (deviation or 1.0)  # (N, F, T)
    levels = np.clip((scaled / SPREAD + 1) / 2, 0, 1).astype(np.float32)
    return [_picture(of_segment, side) for of_segment in levels]


def _log_power(sound: NDArray[np.float64], rate: int, frame_s: float, highest_hz: float) -> NDArray[np.float64]:
    """Return the logarithmic power: (T,) -> (frequencies up to the highest, frames)."""
    length = round(frame_s * rate)
    frames = sliding_window_view(sound, length)[:: length // 2] * np.hanning(length)  # (N, length)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2  # (N, length // 2 + 1)
    kept = 1 + round(highest_hz * length / rate)
    result: NDArray[np.float64] = np.log10(power[:, :kept] + _SILENCE).T
    return result


def _picture(levels: NDArray[np.float32], side: int) -> NDArray[np.uint8]:
    upright = Image.fromarray(np.ascontiguousarray(levels[::-1]))  # low frequencies at the bottom
    scaled = np.asarray(upright.resize((side, side), Image.Resampling.BILINEAR))
    grey = np.rint(255 * scaled).astype(np.uint8)
    return np.broadcast_to(grey[..., np.newaxis], (side, side, 3))


def read_spectrograms(
    path: Path, *, segment_s: float, frame_s: float, highest_hz: float, side: int
) -> Sequence[NDArray[np.uint8]]:
    """Return the pictures of one file, as ``cut_spectrograms`` makes them: (side, side, 3) uint8 each.

    Args:
        segment_s: length of a segment, which becomes one picture, in seconds.
        frame_s: length of a frame, in seconds.
        highest_hz: the highest frequency of a picture.
        side: of each picture, in pixels.

    Raises:
        DataError: it cannot be read, is shorter than a segment, or its rate is too low.
    """
    sound, rate = read_wave(path)
    if rate < 2 * highest_hz:
        raise DataError(
            [
                f"{short_name(path)}: {rate} samples a second hold nothing above {rate / 2:g} Hz, and the run looks up "
                f"to {highest_hz:g} Hz; record faster, or leave it out."
            ]
        )
    if len(sound) < round(segment_s * rate):
        raise DataError(
            [f"{short_name(path)}: lasts {len(sound) / rate:g} s, a segment {segment_s:g} s; leave it out."]
        )
    return cut_spectrograms(sound, rate, segment_s=segment_s, frame_s=frame_s, highest_hz=highest_hz, side=side)
