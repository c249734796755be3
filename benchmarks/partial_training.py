"""What a round of a large network takes, by what of it trains: all, the head, or low-rank updates.

    .venv/bin/python -m benchmarks.partial_training

Bytes: exact, for a file's size follows from names and shapes alone. Seconds: of ViT-B/16 on photographs of 224², two
steps of eight, with random weights, of one core's own time. Memory: the peak of an aggregator that launches ViT-L/16
with updates of rank 8, offers its base of 1.2 GB to two sites, scores their answers, and combines them; each site sends
back what it received. Writes benchmarks/results/partial_training.json.
"""

from __future__ import annotations

import time

import torch
from torch.nn import functional

from benchmarks.exchange_federation import end_all_when_ended
from benchmarks.memory import peak_of_launch
from benchmarks.record import record, take_no_arguments
from shared.doors.tensor_file import count_of, header
from shared.exchange.records.tensors import Sharing, TensorShape
from shared.learning.methods import open_method
from shared.learning.optimizers import new_optimizer
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named
from shared.learning.tasks.terms import Options

NETWORKS = ("vit_b_16", "vit_l_16", "swin_b", "convnext_base")
WITH_ATTENTION = ("vit_b_16", "vit_l_16", "swin_b")
RANKS = (4, 8, 16)
TASK = task_named("fundus_disease")  # whose head travels; here it is one linear layer to its classes
CLASSES = 3
SIZE = 224
BATCH, STEPS, REPEATS = 8, 2, 3


def options_of(encoder: str, train: object) -> Options:
    """Return the task's options for one encoder."""
    given = {"encoder": encoder, "weights": "random", "image_size": SIZE, "hidden": [], "train": train}
    options: Options = TASK.options(given)
    return options


def built(encoder: str, train: object) -> tuple[torch.nn.Module, Sharing]:
    """Return a network, and what of it travels by FedAvg."""
    options, method = options_of(encoder, train), open_method("fedavg", {})
    network = build_network(TASK, method, options, CLASSES, run_seed=1)
    return network, sharing(TASK, method, network)


def file_bytes(tensors: dict[str, TensorShape]) -> int:
    """Return the size of a plain file of these tensors; 0 where there is none."""
    if not tensors:
        return 0
    shapes = {name: ("F32", tensor.shape) for name, tensor in tensors.items()}
    return 8 + len(header(shapes)) + 4 * sum(count_of(tensor.shape) for tensor in tensors.values())


def sizes(encoder: str, train: object) -> dict[str, int]:
    """Return how many bytes a round sends each way, and how many come once with the offer."""
    with torch.device("meta"):
        _, listed = built(encoder, train)
    return {"bytes_each_way": file_bytes(listed.tensors), "bytes_once": file_bytes(listed.start)}


def table() -> dict[str, dict[str, dict[str, int]]]:
    """Return the sizes by network and by what trains."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for encoder in NETWORKS:
        ranks = {f"rank {rank}": {"lora": {"rank": rank}} for rank in RANKS if encoder in WITH_ATTENTION}
        choices: dict[str, object] = {"all": "all", "head": "head", **ranks}
        found[encoder] = {name: sizes(encoder, train) for name, train in choices.items()}
    return found


def trained_s(encoder: str, train: object) -> float:
    """Return the seconds of a core that a few steps take on images that lie ready."""
    network, _ = built(encoder, train)
    optimizer = new_optimizer(network, options_of(encoder, train), 0.001)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(BATCH, 3, SIZE, SIZE, generator=generator)
    targets = torch.arange(BATCH) % CLASSES
    network.train()
    began = time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(network(images), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.process_time() - began


def seconds(encoder: str) -> dict[str, dict[str, float]]:
    """Return by what trains the quickest of some repeats, done in turn, and its share of training everything."""
    choices: dict[str, object] = {"all": "all", "head": "head", "rank 8": {"lora": {"rank": 8}}}
    trained_s(encoder, "all")  # imports, and the first touch of memory
    repeats = [{name: trained_s(encoder, train) for name, train in choices.items()} for _ in range(REPEATS)]
    quickest = {name: min(repeat[name] for repeat in repeats) for name in choices}
    return {
        name: {"seconds": round(taken, 2), "of_all": round(taken / quickest["all"], 3)}
        for name, taken in quickest.items()
    }


def main() -> None:
    """Measure and record."""
    end_all_when_ended()
    torch.set_num_threads(1)
    figures = {
        "bytes": table(),
        "seconds": {"vit_b_16": seconds("vit_b_16")},
        "memory": peak_of_launch(
            2, {"encoder": "vit_l_16", "weights": "random", "image_size": SIZE, "train": {"lora": {"rank": 8}}}
        ),
    }
    print(record("partial_training", ".venv/bin/python -m benchmarks.partial_training", figures))


if __name__ == "__main__":
    take_no_arguments(__doc__)
    main()
