"""The demo's federation on real images, recorded.

    .venv/bin/python -m benchmarks.real_images NAME DATA --image-size 96

DATA holds one sub-folder per site, each with images/ and masks/. Writes benchmarks/results/real-NAME.json (every
site's Dice before and after, time, machine) and real-NAME.md (the run's report: Dice of every round, every verdict).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import RESULTS, record


def main() -> None:
    """Run and record."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("name")
    arguments.add_argument("data", type=Path)
    arguments.add_argument("--image-size", type=int, default=96)
    arguments.add_argument("--rounds", type=int, default=4)
    chosen = arguments.parse_args()
    options = ["--image-size", str(chosen.image_size), "--rounds", str(chosen.rounds)]
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "deploy.local.demo", "--data", str(chosen.data.resolve()), *options]
        subprocess.run(command, cwd=work, check=True)
        demo = Path(work) / "demo-run"
        figures = {"images": chosen.data.name, "image_size": chosen.image_size}
        figures |= json.loads((demo / "summary.json").read_bytes())
        (RESULTS / f"real-{chosen.name}.md").write_bytes((demo / "report.md").read_bytes())
    print(record(f"real-{chosen.name}", f"make demo DATA={chosen.data.name} {_as_make(chosen)}", figures))


def _as_make(chosen: argparse.Namespace) -> str:
    return f"IMAGE_SIZE={chosen.image_size} ROUNDS={chosen.rounds}"


if __name__ == "__main__":
    main()
