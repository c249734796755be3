"""How much smaller weights travel in each form, how quickly they get there, and what rounding them costs.

    .venv/bin/python -m benchmarks.wire

The models are trained, by FedAvg, on two sites of the demo's synthetic images; for each kind of number in a run of its
own, in which all that is sent is rounded. Sizes are means over sites and rounds. Writes benchmarks/results/wire.json.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from timeit import repeat
from typing import Any

import torch

from aggregator.store import RunStore
from benchmarks.record import record, take_no_arguments
from deploy.local.demo import SITE_NAMES
from deploy.local.scenarios import SCENARIOS
from shared.exchange.encoding import decode, encode
from shared.exchange.names import GLOBAL_MODEL
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.wire import Wire
from shared.learning.methods import open_method
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from studies.simulation import run_rounds, trained_path

SITES = list(SITE_NAMES[:2])
NUMBERS = ("float32", "bfloat16", "float16")
TRIES = 3  # of each speed: the quickest counts, the others were kept waiting


@dataclass(frozen=True)
class Trained:
    """A model, and how it is trained beside the demo's settings for its task."""

    task: str
    task_options: dict[str, object]
    rounds: int
    seeds: tuple[int, ...]


MODELS = {
    "small encoder": Trained("dr_staging", {"optimizer": "adam"}, 6, (1, 2, 3)),
    "ResNet-18": Trained("dr_staging", {"encoder": "resnet18", "optimizer": "sgd"}, 3, (1,)),
    "residual U-Net": Trained("octa_segmentation", {}, 4, (1,)),
}


def run_of(model: Trained, wire: Wire, seed: int) -> RunConfiguration:
    """Return a run of the demo's sites with this model and form."""
    scenario = SCENARIOS[model.task]
    options = {**scenario.task_options, "image_size": scenario.image_size, **model.task_options}
    return RunConfiguration.model_validate(
        {
            **scenario.settings,
            "run": "wire",
            "task": model.task,
            "method": "fedavg",
            "sites": SITES,
            "rounds": model.rounds,
            "seed": seed,
            "task_options": options,
            "wire": wire,
        }
    )


def figures_of(form: Wire, run: RunConfiguration, tensors: TensorList, home: Path) -> dict[str, float]:
    """Return the mean MB sent either way in a run played in ``home``, and the MB of plain weights in a second."""
    store = RunStore(home, run.run)
    target, sent = home / "encoded", dict[str, list[int]](to_sites=[], from_sites=[])
    for round_no in range(1, run.rounds + 1):
        received = store.aggregate_path(round_no - 1)
        encode(received, target, tensors, form.of("round", GLOBAL_MODEL))
        sent["to_sites"].append(target.stat().st_size)
        for site in run.sites:
            trained = trained_path(store, site, round_no)
            encode(trained, target, tensors, form, received)
            sent["from_sites"].append(target.stat().st_size)
    megabytes = trained.stat().st_size / 1e6
    encoded = partial(encode, trained, target, tensors, form, received)
    decoded = partial(decode, target, home / "decoded", tensors, form, received, shown_as=trained.name)
    encoding_s, decoding_s = (min(repeat(work, number=1, repeat=TRIES)) for work in (encoded, decoded))
    return {
        "to_sites_mb": round(fmean(sent["to_sites"]) / 1e6, 3),
        "from_sites_mb": round(fmean(sent["from_sites"]) / 1e6, 3),
        "encode_mb_s": round(megabytes / encoding_s),
        "decode_mb_s": round(megabytes / decoding_s),
    }


def measure(name: str) -> dict[str, Any]:
    """Measure all figures of one model."""
    model = MODELS[name]
    scenario, task = SCENARIOS[model.task], task_named(model.task)
    of_numbers: dict[str, Any] = {}
    for numbers in NUMBERS:
        scores, forms = [], dict[str, dict[str, float]]()
        for seed in model.seeds:
            run = run_of(model, Wire.model_validate({"numbers": numbers}), seed)
            network = task.build_model(task.options(run.task_options), 2, seed)
            tensors = sharing(task, open_method(run.method, run.method_options), network).shared
            with tempfile.TemporaryDirectory() as folder:
                home, data = Path(folder), {site: Path(folder) / "data" / site for site in SITES}
                for number, site in enumerate(SITES):
                    scenario.write_site(data[site], number, scenario.image_size, 1000 * seed + number)
                outcome = run_rounds(run, data, home)
                scores.append({site: row.scores[scenario.score].value for site, row in outcome.tests.items()})
                print(name, numbers, seed, scores[-1], flush=True)
                for difference, compression in product((False, True), ("none", "zstd")) if not forms else ():
                    form = run.wire.model_copy(update={"difference": difference, "compression": compression})
                    forms[str(form)] = figures_of(form, run, tensors, home)
        of_numbers[numbers] = {f"test_{scenario.score}_by_seed": scores, "forms": forms}
    return {"task": model.task, "rounds": model.rounds, "seeds": model.seeds, "numbers": of_numbers}


if __name__ == "__main__":
    take_no_arguments(__doc__)
    torch.set_num_threads(1)
    print(record("wire", ".venv/bin/python -m benchmarks.wire", {name: measure(name) for name in MODELS}))
