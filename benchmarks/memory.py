"""Peak memory of the aggregator process with 4, 16 and 64 sites.

    .venv/bin/python -m benchmarks.memory

Twice: the exchange alone, of a 98 MB model that nothing is computed with but the mean; and a run as a PI launches it,
of a ResNet-50 encoder (94 MB) with its tolerance check on a few small photographs. Each site sends back what it
received. Floor: 1 model + 400 MB. Records nothing: ``benchmarks/exchange.py`` measures it too, and does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.exchange_federation import RUN, Home, end_all_when_ended, federation, peak_mb, set_up
from benchmarks.exchange_servers import embedded
from benchmarks.record import take_no_arguments
from deploy.local import synthetic_fundus
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.run import RunConfiguration

SITES = (4, 16, 64)
MODEL_BYTES = 98 * 10**6
IMAGE_SIZE = 64
ALLOWED_MB = 400
POLL_SECONDS = 2.0


def peak_of_exchange(sites: int) -> dict[str, float]:
    """Return the peak memory of one round's exchange and of its mean, and the size of the model file, in MB."""
    with tempfile.TemporaryDirectory(prefix="dropfed-memory-") as root:
        home = Home(Path(root))
        run = _run(sites, task="octa_segmentation", method="mean", task_options={"bytes": MODEL_BYTES})
        return _peak(home, run, ["benchmarks.exchange_ends", AGGREGATOR, str(home.root), "2"])


def peak_of_launch(sites: int, network: Mapping[str, object]) -> dict[str, float]:
    """Return the peak memory of one round with its tolerance check, and the size of the model file, in MB.

    Args:
        network: its task options, besides the size of the images.
    """
    with tempfile.TemporaryDirectory(prefix="dropfed-memory-") as root:
        home = Home(Path(root))
        style = synthetic_fundus.STYLES[0]
        synthetic_fundus.write_graded_site(home.heldout, style=style, images=20, size=IMAGE_SIZE, seed=1)
        options = {"image_size": IMAGE_SIZE, **network}
        run = _run(sites, task="dr_staging", method="fedavg", task_options=options)
        launch = ["aggregator.cli", "launch", str(home.run_yaml), "--work", str(home.aggregator)]
        return _peak(home, run, launch)


def _run(sites: int, **settings: object) -> RunConfiguration:
    names = [f"site-{number:02d}" for number in range(sites)]
    common = {"run": RUN, "sites": names, "rounds": 2, "tolerance": 0.0, "quorum": sites}
    return RunConfiguration.model_validate(common | settings)


def _peak(home: Home, run: RunConfiguration, aggregator: list[str]) -> dict[str, float]:
    """Run until the first round was combined and settled; the next holds no more."""
    with embedded(home.root / "server", run.sites) as served:
        set_up(home, served, run, poll_seconds=POLL_SECONDS)
        rounds = home.aggregator / "runs" / RUN / "rounds"
        peak = 0.0
        with federation(home, aggregator) as daemons:
            for _ in daemons.looks():
                peak = max(peak, peak_mb(daemons.aggregator))
                if (rounds / "0002" / "opened.json").exists():
                    break
        model = rounds / "0001" / "aggregate.safetensors"
        return {"peak_mb": round(peak), "model_mb": round(model.stat().st_size / 1e6, 1)}


def measure() -> dict[str, dict[str, object]]:
    """Measure both kinds by number of sites, each with its floor."""
    figures: dict[str, dict[str, object]] = {}
    resnet = {"encoder": "resnet50", "weights": "random"}
    kinds: dict[str, Callable[[int], dict[str, float]]] = {
        "the exchange alone": peak_of_exchange,
        "a ResNet-50, scored": partial(peak_of_launch, network=resnet),
    }
    for kind, peak in kinds.items():
        figures[kind] = {}
        for sites in SITES:
            found = peak(sites)
            floor = round(found["model_mb"] + ALLOWED_MB)
            figures[kind][str(sites)] = {**found, "floor_mb": floor, "held": found["peak_mb"] <= floor}
            print(f"{kind}, {sites} sites: peak {found['peak_mb']:.0f} MB, floor {floor} MB", flush=True)
    return figures


def main() -> None:
    """Measure, and print what was found."""
    end_all_when_ended()
    measure()


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
