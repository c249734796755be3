"""Synthetic recordings for the tasks ``time_series`` and ``spectrograms``, decided by a seed.

They say nothing about people. A class is a rhythm: of a time series how fast it swings, of a sound the pitch of what is
heard between two beats. Each recording has phases, strengths and a noise of its own, and each site a gain.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.csv_file import as_csv
from shared.learning.data import TIME
from shared.learning.data.recordings import RECORDINGS_FILE
from shared.learning.seeds import seed_for

PER_PERSON = 2


def write_time_series(
    folder: Path,
    *,
    recordings: int,
    rows: int,
    seed: int,
    labels: Sequence[str],
    channels: Sequence[str],
    rate_hz: float,
    gain: float = 1.0,
    noise: float = 0.5,
) -> None:
    """Write ``recordings.csv`` and a CSV for each recording, two of a class from each person.

    Args:
        recordings: how many; as many of each class as of the next.
        rows: of each.
        gain: this site's.
        noise: its deviation, where a swing's is about 0.7.
    """
    time = np.arange(rows) / rate_hz
    listed = []
    for number, label, person, rng in _drawn(recordings, labels, seed):
        turns = rate_hz * (label + 1) / 40  # a second: a class swings in 40, 20, 13, ... rows
        phases = rng.uniform(0, 2 * np.pi, len(channels))
        swing = np.sin(2 * np.pi * turns * time[:, None] + phases) * rng.uniform(0.8, 1.2, len(channels))
        values = gain * (swing + noise * rng.standard_normal(swing.shape)) + 9.81
        name = f"series-{number + 1:03d}"
        path = folder / "recordings" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        header = ",".join([TIME, *channels])
        np.savetxt(path, np.column_stack([time, values]), "%.4f", delimiter=",", header=header, comments="")
        listed.append([name, f"recordings/{path.name}", labels[label], person])
    _write_list(folder, listed)


def write_sounds(
    folder: Path,
    *,
    recordings: int,
    seconds: float,
    seed: int,
    labels: Sequence[str],
    rate: int = 2000,
    gain: float = 0.5,
) -> None:
    """Write ``recordings.csv`` and a WAV for each recording; arguments as for ``write_time_series``."""
    time = np.arange(round(seconds * rate)) / rate
    listed = []
    for number, label, person, rng in _drawn(recordings, labels, seed):
        since_beat = (time + rng.uniform(0, 1)) % rng.uniform(0.7, 1.0)
        beat = np.exp(-since_beat / 0.04) * np.sin(2 * np.pi * 60 * time)
        between = np.exp(-(((since_beat - 0.3) / 0.1) ** 2)) * np.sin(2 * np.pi * (120 + 140 * label) * time)
        sound = beat + 0.4 * between + 0.02 * rng.standard_normal(len(time))
        name = f"sound-{number + 1:03d}"
        path = folder / "recordings" / f"{name}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_wave(path, gain * sound, rate)
        listed.append([name, f"recordings/{path.name}", labels[label], person])
    _write_list(folder, listed)


def write_wave(path: Path, sound: NDArray[np.float64], rate: int) -> None:
    """Write (T,) numbers, cut off at ±1, as one channel of 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.rint(32767 * np.clip(sound, -1, 1)).astype("<i2").tobytes())


def _drawn(recordings: int, labels: Sequence[str], seed: int) -> list[tuple[int, int, str, np.random.Generator]]:
    """Return for each recording its number, its class, whose it is, and what decides the rest."""
    return [
        (
            number,
            number % len(labels),
            f"person-{number // (PER_PERSON * len(labels)) + 1:02d}",
            np.random.default_rng(seed_for(seed, "recording", number)),
        )
        for number in range(recordings)
    ]


def _write_list(folder: Path, listed: Sequence[Sequence[str]]) -> None:
    (folder / RECORDINGS_FILE).write_bytes(as_csv([["id", "file", "label", "group"], *listed]))
