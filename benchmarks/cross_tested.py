"""What runs by ``new-run``'s settings come to on every image of small sites, each tested by a run that never saw it.

    .venv/bin/python -m benchmarks.cross_tested NAME DIR

DIR holds one folder per site with images/ and masks/. A site's images, in the order of their names, fall into five
lots; in each of five runs one lot is tested, the next validates, and three are trained on. The first site's validation
images serve for the tolerance check, as in the demo. Where a site has ten images, a test of one run is two of them, and
says little by itself; here all ten count.

Writes results/cross-tested-NAME.json and .md; takes half an hour for the exudates.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import Data, compare
from benchmarks.comparison import play as play_run
from benchmarks.record import given_folder
from deploy.local.demo import run_configuration
from deploy.local.scenarios import SCENARIOS
from shared.folder.durable import link_file
from shared.learning.data.splits import SPLIT_FILE
from studies.simulation import Outcome

LOTS = 5
SCENARIO = SCENARIOS["octa_segmentation"].as_suggested()


def divided(ids: list[str], tested: int) -> Mapping[str, str]:
    """Return the set of every image where one of the lots is tested."""
    sets = ["test", "validation", *["train"] * (LOTS - 2)]
    return {name: sets[(number * LOTS // len(ids) - tested) % LOTS] for number, name in enumerate(ids)}


@contextmanager
def laid_out(sites: Data, tested: int) -> Iterator[tuple[Data, Path]]:
    """Lay out the sites with their ``split.csv``, and the held-out images; both are there until the block ends."""
    with tempfile.TemporaryDirectory() as root:
        heldout = Path(root) / "heldout"
        for name, site in sites.items():
            sets = divided(sorted(path.stem for path in (site / "images").iterdir()), tested)
            for kind in ("images", "masks"):
                for path in sorted((site / kind).iterdir()):
                    link_file(path.resolve(), Path(root) / name / kind / path.name)
                    if name == min(sites) and sets[path.stem] == "validation":
                        link_file(path.resolve(), heldout / kind / path.name)
            lines = ["id,split", *(f"{image},{part}" for image, part in sets.items())]
            (Path(root) / name / SPLIT_FILE).write_text("\n".join(lines) + "\n")
        yield {name: Path(root) / name for name in sites}, heldout


def play(sites: Data, tested: int) -> Outcome:
    """Play one run in which this lot of each site is tested."""
    run = run_configuration(
        SCENARIO, sorted(sites), SCENARIO.image_size, method="mean", rounds=SCENARIO.rounds, seed=2021
    )
    with laid_out(sites, tested) as (data, heldout):
        return play_run(run, data, heldout)


def main() -> None:
    """Run all five and record."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    root = given_folder(sys.argv[2], __doc__)
    sites = {path.name: path for path in root.iterdir() if (path / "images").is_dir()}
    compare(
        f"cross-tested-{sys.argv[1]}",
        f".venv/bin/python -m benchmarks.cross_tested {sys.argv[1]} DIR",
        {"as new-run suggests": lambda lot: play(sites, lot)},
        seeds=range(LOTS),
        scores={"dice_mean": "Dice", "auroc_mean": "AUROC"},
        settings={"sites": sorted(sites), "rounds": SCENARIO.rounds, "a seed is": "the lot that is tested"},
        is_timed=False,
    )


if __name__ == "__main__":
    main()
