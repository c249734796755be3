"""One run of the demo, recorded.

    .venv/bin/python -m benchmarks.demo NAME [OPTIONS OF THE DEMO]
    .venv/bin/python -m benchmarks.demo demo-dr-staging --task dr_staging
    .venv/bin/python -m benchmarks.demo real-octa-vessels --data DIR --rounds 4 --image-size 96

Writes benchmarks/results/NAME.json (every site's score before and after, time, machine) and NAME.md (the run's report:
the score of every round, every verdict).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import RESULTS, record


def main() -> None:
    """Run and record."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    name, *options = sys.argv[1:]
    is_data = [before == "--data" for before in ["", *options[:-1]]]
    absolute = [str(Path(option).resolve()) if data else option for option, data in zip(options, is_data, strict=True)]
    # Where the data lie on this machine says nothing to others.
    shown = ["DIR" if data else option for option, data in zip(options, is_data, strict=True)]
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.executable, "-m", "deploy.local.demo", *absolute], cwd=work, check=True)
        demo = Path(work) / "demo-run"
        figures = json.loads((demo / "summary.json").read_bytes())
        (RESULTS / f"{name}.md").write_bytes((demo / "report.md").read_bytes())
    print(record(name, " ".join([".venv/bin/python -m benchmarks.demo", name, *shown]), figures))


if __name__ == "__main__":
    main()
