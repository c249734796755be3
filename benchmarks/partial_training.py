"""How many bytes a round of a large network takes, by what of it trains: all, the head, or low-rank updates.

    .venv/bin/python -m benchmarks.partial_training
    .venv/bin/python -m benchmarks.partial_training --memory

The networks have no numbers, so nothing is trained or fetched: a file's size follows from names and shapes alone, and
is exact. ``--memory`` has an aggregator's process begin a run of ViT-L/16 with updates of rank 8, with numbers, and
prints its peak of memory, and what it wrote. The first writes benchmarks/results/partial_training.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import record
from shared.doors.tensor_file import count_of, header
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.learning.methods import open_method
from shared.learning.model_files import save_tensors
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named

NETWORKS = ("vit_b_16", "vit_l_16", "swin_b", "convnext_base")
WITH_ATTENTION = ("vit_b_16", "vit_l_16", "swin_b")
RANKS = (4, 8, 16)
TASK = task_named("fundus_disease")  # whose head travels; here it is one linear layer to three classes


def built(encoder: str, train: object) -> tuple[torch.nn.Module, Sharing]:
    """A network, and what of it travels by FedAvg."""
    options = TASK.options({"encoder": encoder, "weights": "random", "hidden": [], "train": train})
    method = open_method("fedavg", {})
    network = build_network(TASK, method, options, len(options.class_names), run_seed=1)
    return network, sharing(TASK, method, network)


def file_bytes(tensors: dict[str, TensorShape]) -> int:
    """The size of a plain file of these tensors; 0 where there is none."""
    if not tensors:
        return 0
    shapes = {name: ("F32", tensor.shape) for name, tensor in tensors.items()}
    return 8 + len(header(shapes)) + 4 * sum(count_of(tensor.shape) for tensor in tensors.values())


def sizes(encoder: str, train: object) -> dict[str, int]:
    """What a round sends each way, and what comes once with the offer."""
    with torch.device("meta"):
        _, listed = built(encoder, train)
    return {"bytes_each_way": file_bytes(listed.tensors), "bytes_once": file_bytes(listed.start)}


def table() -> dict[str, dict[str, dict[str, int]]]:
    """By network and by what trains."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for encoder in NETWORKS:
        ranks = {f"rank {rank}": {"lora": {"rank": rank}} for rank in RANKS if encoder in WITH_ATTENTION}
        choices: dict[str, object] = {"all": "all", "head": "head", **ranks}
        found[encoder] = {name: sizes(encoder, train) for name, train in choices.items()}
    return found


def memory() -> dict[str, Any]:
    """What the process of an aggregator takes that builds ViT-L/16 and writes what a run begins with."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    network, listed = built("vit_l_16", {"lora": {"rank": 8}})
    with tempfile.TemporaryDirectory() as folder:
        once = save_tensors(network, listed.beginning, Path(folder) / "start.safetensors")
        model = save_tensors(network, listed.shared, Path(folder) / "aggregate.safetensors")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"start_bytes": once.size, "model_bytes": model.size, "peak_kib": after, "peak_kib_before": before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", action="store_true", help="measure the memory of a run's beginning instead")
    if parser.parse_args().memory:
        print(json.dumps(memory(), indent=2))
    else:
        print(record("partial_training", "benchmarks.partial_training", {"bytes": table()}))


if __name__ == "__main__":
    main()
