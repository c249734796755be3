"""Peak memory of the aggregator process with 3 and with 12 sites, in the demo's federation (full-size U-Net).

    .venv/bin/python -m benchmarks.memory

Floor: 2 × model + 400 MB. Writes benchmarks/results/memory.json.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.record import record

SITES = (3, 12)
ROUNDS = 2
IMAGE_SIZE = 96


def peak_of_aggregator(sites: int, work: Path) -> tuple[float, float]:
    """Run the demo with ``sites`` sites; return the aggregator's peak resident memory and the model's size, in MB."""
    options = ["--sites", str(sites), "--rounds", str(ROUNDS), "--image-size", str(IMAGE_SIZE)]
    demo = subprocess.Popen([sys.executable, "-m", "deploy.local.demo", *options], cwd=work, stdout=subprocess.DEVNULL)
    peak_kib, aggregator = 0, None
    while demo.poll() is None:
        if aggregator is None:
            aggregator = _aggregator_of(demo.pid)
        elif (found := _high_water_kib(aggregator)) is not None:
            peak_kib = max(peak_kib, found)
        time.sleep(0.02)
    if demo.returncode != 0:
        raise SystemExit(f"the demo with {sites} sites failed")
    model_bytes = (work / "demo-run" / "final" / "model.safetensors").stat().st_size
    return peak_kib * 1024 / 1e6, model_bytes / 1e6


def _aggregator_of(parent: int) -> int | None:
    try:
        children = psutil.Process(parent).children()
        return next((child.pid for child in children if "aggregator.cli" in child.cmdline()), None)
    except psutil.NoSuchProcess:
        return None


def _high_water_kib(process: int) -> int | None:
    """The kernel's own record of the peak: nothing is missed between two looks."""
    try:
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    except OSError:
        return None
    return int(match[1]) if match else None


def main() -> None:
    """Measure and record."""
    figures: dict[str, object] = {"rounds": ROUNDS, "image_size": IMAGE_SIZE}
    for sites in SITES:
        with tempfile.TemporaryDirectory() as work:
            peak, model = peak_of_aggregator(sites, Path(work))
        floor = 2 * model + 400
        figures[f"{sites}_sites"] = {"peak_mb": round(peak), "model_mb": round(model, 1), "floor_mb": round(floor)}
        print(f"{sites:3d} sites: peak {peak:.0f} MB, floor 2 × {model:.1f} + 400 = {floor:.0f} MB")
    print(record("memory", "python -m benchmarks.memory", figures))


if __name__ == "__main__":
    main()
