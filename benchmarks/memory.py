"""Peak memory of the aggregator process with 4, 16 and 64 sites, in a run whose model is a ResNet-50's 94 MB.

    .venv/bin/python -m benchmarks.memory

The aggregator is ``dropfed-aggregator launch`` as it is, with its tolerance check on a few small photographs; each
site sends back what it received. Floor: 1 model + 400 MB. Writes benchmarks/results/memory.json.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.exchange_federation import RUN, Home, federation, peak_mb, set_up
from benchmarks.exchange_servers import embedded
from benchmarks.record import record
from shared.exchange.records import RunConfiguration
from shared.learning.data import synthetic_fundus

SITES = (4, 16, 64)
IMAGE_SIZE = 64
ALLOWED_MB = 400


def peak_of_aggregator(sites: int) -> dict[str, float]:
    """The aggregator's peak resident memory over one round, and the size of the model file, in MB."""
    with tempfile.TemporaryDirectory(prefix="dropfed-memory-") as root:
        home = Home(Path(root))
        heldout = home.root / "heldout"
        style = synthetic_fundus.STYLES[0]
        synthetic_fundus.write_graded_site(heldout, style=style, images=20, size=IMAGE_SIZE, seed=1)
        run = RunConfiguration(
            run=RUN,
            task="dr_staging",
            method="fedavg",
            sites=[f"site-{number:02d}" for number in range(sites)],
            rounds=1,
            tolerance=0.0,
            quorum=sites,
            task_options={"encoder": "resnet50", "weights": "random", "image_size": IMAGE_SIZE},
        )
        launch = ["aggregator.cli", "launch", str(home.run_yaml), "--work", str(home.aggregator)]
        with embedded(home.root / "server", run.sites) as served:
            set_up(home, served, run, heldout=heldout, poll_seconds=2.0)
            closing = home.aggregator / "runs" / RUN / "rounds" / "0002" / "opened.json"
            model = home.aggregator / "runs" / RUN / "rounds" / "0001" / "aggregate.safetensors"
            peak = 0.0
            with federation(home, launch) as looks:
                for process in looks:
                    peak = max(peak, peak_mb(process))
                    if closing.exists():  # the round was combined and settled; the closing round holds less
                        break
            return {"peak_mb": round(peak), "model_mb": round(model.stat().st_size / 1e6, 1)}


def measure() -> dict[str, object]:
    """Figures by number of sites, each with its floor."""
    figures: dict[str, object] = {}
    for sites in SITES:
        found = peak_of_aggregator(sites)
        floor = round(found["model_mb"] + ALLOWED_MB)
        figures[f"{sites}_sites"] = {**found, "floor_mb": floor, "held": found["peak_mb"] <= floor}
        print(f"{sites:3d} sites: peak {found['peak_mb']:.0f} MB, floor {floor} MB", flush=True)
    return figures


if __name__ == "__main__":
    print(record("memory", "python -m benchmarks.memory", measure()))
