"""Which tolerance keeps honest sites and omits spoilt answers: small federations whose cameras differ.

    .venv/bin/python -m benchmarks.tolerance [--octa DIR] [--fundus DIR]

The first federations are of synthetic images and recordings; DIR holds one folder per site with real ``images`` and
``masks``. Each federation is played three times by its honest sites, without a tolerance. Every answer, and what
spoilers would send in its place, is scored as the aggregator scores it. Then it is computed which of them each
tolerance would omit. An honest site that would be omitted still shapes the aggregates that follow here, which flatters
a tolerance that would omit many. Writes ``results/tolerance.json`` and ``results/tolerance.md``.

A spoilt answer is the honest one with its parameters negated, or with noise as strong as each tensor added; an
untrained model from another seed; or what a site trains that has the labels the wrong way round.
"""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from aggregator.store import RunStore
from benchmarks.record import RESULTS, given_folder, record
from deploy.local import synthetic_fundus, synthetic_octa, synthetic_signals
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.folder.durable import link_file
from shared.learning.aggregation import Aggregation
from shared.learning.answers import limit_below
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.seeds import seed_for
from shared.learning.sharing import build_network
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Collection, Dataset
from shared.learning.tolerance import HeldOutSet
from studies.simulation import Site, open_sites, update_of

SEEDS = (1, 2, 3)
BELOW_LAST = (0.02, 0.05, 0.1, 0.2, 0.3)
ABSOLUTE = (0.3, 0.5, 0.6, 0.7)
ABOVE_UNTRAINED = 0.01  # what "set it above the untrained model's score" comes to
SPOILT = ("negated", "noise", "untrained", "flipped")
SPLIT = {"train": 0.6, "validation": 0.2, "test": 0.2}

SGD = {"learning_rate": {"initial": 0.1, "factor": 0.1, "period": 3}}
ADAM = {"learning_rate": {"initial": 0.002, "factor": 1.0, "period": 1}}
VESSELS: Mapping[str, Any] = {
    "task": "octa_segmentation",
    "method": "mean",
    "rounds": 7,
    "epochs": 2,
    "batch_size": 4,
    "augmentation": {"copies": 1},
    "split": SPLIT,
}
SMALL_UNET = {"image_size": 64, "widths": [8, 16, 32, 64], "dropout": 0.2}
SERIES: Mapping[str, Any] = {
    "task": "time_series",
    "method": "fedavg",
    "rounds": 8,
    "batch_size": 8,
    "learning_rate": {"initial": 0.003, "factor": 1.0, "period": 1},
    "task_options": {
        "labels": ["resting", "walking", "running"],
        "channels": ["x", "y"],
        "rate_hz": 20.0,
        "window": 32,
        "stride": 32,
        "optimizer": "adam",
    },
    "split": SPLIT,
}
STAGING: Mapping[str, Any] = {
    "task": "dr_staging",
    "method": "feduaa",
    "rounds": 6,
    "batch_size": 8,
    "task_options": {"encoder": "small", "weights": "random", "image_size": 64, "optimizer": "adam"},
    "learning_rate": {"initial": 0.003, "factor": 1.0, "period": 1},
    "split": SPLIT,
}
IMAGES, HELD_OUT = 12, 3  # of each site of vessels
RECORDINGS, GAINS = 48, (1.0, 2.0, 4.0)
PHOTOGRAPHS, HELD_OUT_PHOTOGRAPHS = 60, 100

Scores = dict[str, float]
"""By the name of a score."""


@dataclass(frozen=True)
class Case:
    """One federation.

    Args:
        settings: of its runs.
        write: makes the folders of sites and, below ``heldout``, of held-out images, by a seed.
    """

    settings: Mapping[str, Any]
    write: Callable[[Path, int], None]


# --- images -------------------------------------------------------------------------------------------------------


def write_octa(root: Path, seed: int, held_out: Sequence[synthetic_octa.OctaStyle]) -> None:
    """Write a site for each camera, and held-out images of these cameras."""
    for number, style in enumerate(synthetic_octa.STYLES):
        synthetic_octa.write_site(root / style.name, style=style, images=IMAGES, size=64, seed=100 * seed + number)
    for number, style in enumerate(held_out):
        images = HELD_OUT * len(synthetic_octa.STYLES) // len(held_out)
        synthetic_octa.write_site(root / "heldout", style=style, images=images, size=64, seed=100 * seed + 50 + number)


def write_series(root: Path, seed: int) -> None:
    """Write a site for each gain, and held-out recordings of the first."""
    options = SERIES["task_options"]
    settings = {name: options[name] for name in ("labels", "channels", "rate_hz")} | {"rows": 64}
    for number, gain in enumerate(GAINS):
        folder, of_site = root / f"gain-{number}", 100 * seed + number
        synthetic_signals.write_time_series(folder, recordings=RECORDINGS, seed=of_site, gain=gain, **settings)
    folder, of_site = root / "heldout", 100 * seed + 50
    synthetic_signals.write_time_series(folder, recordings=RECORDINGS, seed=of_site, gain=GAINS[0], **settings)


def write_fundus(root: Path, seed: int) -> None:
    """Write a site for each camera, and held-out photographs of the first."""
    for number, style in enumerate(synthetic_fundus.STYLES):
        folder, seed_of_site = root / style.name, 100 * seed + number
        synthetic_fundus.write_graded_site(folder, style=style, images=PHOTOGRAPHS, size=64, seed=seed_of_site)
    first, images = synthetic_fundus.STYLES[0], HELD_OUT_PHOTOGRAPHS
    synthetic_fundus.write_graded_site(root / "heldout", style=first, images=images, size=64, seed=100 * seed + 50)


def link_real(source: Path, root: Path, seed: int) -> None:
    """Link some of each site's images, and hold out others of each; the seed decides which."""
    for folder in sorted(path for path in source.iterdir() if (path / "masks").is_dir()):
        masks = {path.stem: path for path in (folder / "masks").iterdir()}
        images = [path for path in (folder / "images").iterdir() if path.stem in masks]
        drawn = sorted(images, key=lambda path: seed_for(seed, path.name))
        site = folder.name.replace("_", "-")
        for number, path in enumerate(drawn[: IMAGES + HELD_OUT]):
            target, stem = (root / site, path.stem) if number < IMAGES else (root / "heldout", f"{site}-{path.stem}")
            link_file(path, target / "images" / f"{stem}{path.suffix}")
            link_file(masks[path.stem], target / "masks" / f"{stem}{masks[path.stem].suffix}")


def unet(**options: object) -> dict[str, object]:
    """Return the small U-Net, with these options."""
    return {"task_options": SMALL_UNET | options}


CASES: dict[str, Case] = {
    "OCTA, held out: all cameras, SGD": Case(
        {**VESSELS, **SGD, **unet()}, lambda root, seed: write_octa(root, seed, synthetic_octa.STYLES)
    ),
    "OCTA, held out: one camera, Adam and Dice": Case(
        {**VESSELS, **ADAM, **unet(optimizer="adam"), "method_options": {"dice": True}},
        lambda root, seed: write_octa(root, seed, synthetic_octa.STYLES[:1]),
    ),
    "OCTA, held out: one camera, FedBN, Adam and Dice": Case(
        {**VESSELS, **ADAM, **unet(optimizer="adam"), "method": "fedbn", "method_options": {"dice": True}},
        lambda root, seed: write_octa(root, seed, synthetic_octa.STYLES[:1]),
    ),
    "time series, held out: one gain": Case(SERIES, write_series),
    "staging, held out: one camera": Case(STAGING, write_fundus),
}


# --- playing ------------------------------------------------------------------------------------------------------


def run_of(case: Case, seed: int, sites: list[str]) -> RunConfiguration:
    """Return a run without a tolerance."""
    values = {"run": "tolerance", "tolerance": None, "seed": seed, "sites": sites, **case.settings}
    return RunConfiguration.model_validate(values)


def play(case: Case, seed: int, home: Path) -> Iterator[dict[str, Any]]:
    """Yield, by round, the scores of the received model, of each honest answer, and of what spoilers send."""
    data = home / "data"
    case.write(data, seed)
    folders = {path.name: path for path in sorted(data.iterdir()) if path.name != "heldout"}
    run = run_of(case, seed, list(folders))
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options = task.options(run.task_options)
    network, sites = open_sites(run, folders, home)
    listed = next(iter(sites.values())).trainer.sharing
    store = RunStore(home, run.run)
    store.begin(run, listed)
    aggregation = Aggregation(store, method, method.groups(network, listed))
    aggregation.begin(network)
    images = task.open_images(data / "heldout", options)
    held_out = scorers(run, listed, images)
    liars = {name: Site(site.trainer, flipped(site.dataset), site.tests) for name, site in sites.items()}
    for round_no in range(1, run.rounds + 1):
        store.ask(round_no, tuple(sites), tuple(sites))
        updates = {name: update_of(run, store, site, name, round_no)[0] for name, site in sites.items()}
        liar = list(sites)[round_no % len(sites)]
        lie = update_of(run, store, liars[liar], f"{liar}-flipped", round_no)[0].files[MODEL]
        sent = {name: update.files[MODEL] for name, update in updates.items()}
        spoilt = {"flipped": [lie], **spoil(run, listed, [*sent.values()], home / "spoilt", 1000 * seed + round_no)}
        yield {
            "last": score(held_out, store.aggregate_path(round_no - 1)),
            "honest": {name: score(held_out, path) for name, path in sent.items()},
            "spoilt": {kind: [score(held_out, path) for path in spoilt[kind]] for kind in SPOILT},
        }
        aggregation.settle(round_no, updates)
        aggregation.aggregate(round_no, updates, aggregation.weights(updates))
        for name, site in sites.items():
            kept = store.home / "sites" / name / f"{round_no:04d}.kept.safetensors"
            site.accepted = kept if kept.exists() else None


def scorers(run: RunConfiguration, listed: Sharing, images: Collection) -> dict[str, HeldOutSet]:
    """Return the tolerance check by each score that there is."""
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    names = task.tolerance_scores if listed.has_whole_model else ("linear probe",)
    found = {}
    for name in names:
        network = build_network(
            task, method, task.options(run.task_options), len(images.classes), run_seed=run.seed, is_private=False
        )
        objective = method.objective(run.rounds, run.rounds)
        found[name] = HeldOutSet(task, network, images, listed, name, objective, run.seed)
    return found


def score(held_out: Mapping[str, HeldOutSet], path: Path) -> Scores:
    """Return the scores of one model file."""
    return {name: round(each.score(path, path.name) or 0.0, 4) for name, each in held_out.items()}


def flipped(dataset: Dataset) -> Dataset:
    """Return the same images with their labels the wrong way round: the first class is called the last."""

    def lie(sample: Any) -> Any:
        last = len(dataset.classes) - 1
        is_mask = hasattr(sample, "mask")
        return replace(sample, mask=last - sample.mask) if is_mask else replace(sample, grade=last - sample.grade)

    return replace(dataset, train=[lie(sample) for sample in dataset.train])


def spoil(
    run: RunConfiguration, listed: Sharing, honest: Sequence[Path], home: Path, seed: int
) -> dict[str, list[Path]]:
    """Return what spoilers send in the place of honest models, by kind; statistics of BatchNorm stay what they were."""
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    network = build_network(task, method, task.options(run.task_options), 2, run_seed=seed, is_private=False)
    home.mkdir(exist_ok=True)
    found: dict[str, list[Path]] = {"untrained": [home / "untrained.safetensors"], "negated": [], "noise": []}
    save_tensors(network, listed.shared, found["untrained"][0])
    shared = [tensor for name, tensor in network.state_dict().items() if name in listed.parameters.tensors]
    random = torch.Generator().manual_seed(seed)
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "negated": torch.neg,
        "noise": lambda tensor: tensor + strength(tensor) * torch.randn(tensor.shape, generator=random),
    }
    for number, path in enumerate(honest):
        for kind, change in changes.items():
            load_tensors(network, listed.shared, path)
            for tensor in shared:
                tensor.copy_(change(tensor))
            found[kind].append(home / f"{kind}-{number}.safetensors")
            save_tensors(network, listed.shared, found[kind][-1])
    return found


def strength(tensor: torch.Tensor) -> float:
    """Return how large the numbers of a tensor are: the root of the mean square."""
    return float(tensor.square().mean().sqrt())


# --- what a tolerance makes of it ---------------------------------------------------------------------------------


def tolerances(names: Sequence[str]) -> dict[str, tuple[str, Callable[[float, float], float]]]:
    """Return, by name, each tolerance's score and what that must exceed, by last and untrained score."""
    main = names[0]
    found: dict[str, tuple[str, Callable[[float, float], float]]] = {}
    for below in BELOW_LAST:
        found[f"below_last: {below}"] = (
            main,
            lambda last, _, below=below: limit_below(last, BelowLast(below_last=below)),  # type: ignore[misc]
        )
    for level in ABSOLUTE:
        found[f"{level}"] = main, lambda _last, _, level=level: level  # type: ignore[misc]
    for name in names:
        found[f"above the untrained {name}"] = name, lambda _, untrained: untrained + ABOVE_UNTRAINED
    return found


def judged(plays: Sequence[Sequence[Mapping[str, Any]]], name: str, limit: Callable[[float, float], float]) -> Scores:
    """Return the shares of answers that a tolerance omits: of honest and of spoilt ones, in round 1 and later."""
    omitted: dict[str, list[bool]] = {}
    for rounds in plays:
        untrained = rounds[0]["last"][name]
        for number, found in enumerate(rounds, 1):
            when, above = "round 1" if number == 1 else "later", limit(found["last"][name], untrained)
            for scores in found["honest"].values():
                omitted.setdefault(f"honest, {when}", []).append(scores[name] <= above)
            for kind, each in found["spoilt"].items():
                omitted.setdefault(f"{kind}, {when}", []).extend(scores[name] <= above for scores in each)
    return {what: round(fmean(those), 3) for what, those in omitted.items()}


def main() -> None:
    """Measure and record."""
    torch.set_num_threads(1)
    parser = ArgumentParser(prog="python -m benchmarks.tolerance")
    folder = partial(given_folder, doc=__doc__)
    for name in ("octa", "fundus"):
        parser.add_argument(f"--{name}", type=folder, metavar="DIR", help="one folder per site")
    given = parser.parse_args()
    cases = dict(CASES)
    for kind, source in (("OCTA", given.octa), ("fundus vessels", given.fundus)):
        if source is not None:
            settings = {**VESSELS, **ADAM, **unet(optimizer="adam"), "method_options": {"dice": True}}
            cases[f"real {kind}, held out: all sites, Adam and Dice"] = Case(
                settings,
                lambda root, seed, source=source: link_real(source, root, seed),  # type: ignore[misc]
            )
    options = "".join(f" --{name} {name.upper()}" for name, source in vars(given).items() if source)
    command = f".venv/bin/python -m benchmarks.tolerance{options}"
    of_cases: dict[str, Any] = {}
    figures = {"seeds": list(SEEDS), "images": IMAGES, "cases": of_cases}
    for name, case in cases.items():
        began, plays = time.monotonic(), []
        for seed in SEEDS:
            with tempfile.TemporaryDirectory() as home, threadpool_limits(1):
                plays.append(list(play(case, seed, Path(home))))
            print(name, seed, [round(next(iter(found["last"].values())), 3) for found in plays[-1]], flush=True)
        scores = list(plays[0][0]["last"])
        of_cases[name] = {
            "seconds": round(time.monotonic() - began),
            "settings": case.settings,
            "tolerances": {label: judged(plays, *how) for label, how in tolerances(scores).items()},
            "by_seed": plays,
        }
        record("tolerance", command, figures)  # after each: what ends a later one takes nothing away
        (RESULTS / "tolerance.md").write_text(markdown(command, of_cases))


def markdown(command: str, cases: Mapping[str, Any]) -> str:
    """Return the tables."""
    lines = [
        "# Tolerance",
        "",
        f"`{command}`;",
        "machine, date and commit in `tolerance.json`. Share of answers that each tolerance omits, in per cent, over",
        f"{len(SEEDS)} seeds: of honest sites it should be 0, of spoilt ones 100. The first number is of round 1, the",
        "second of all later rounds. Every federation was played without a tolerance, by its honest sites alone.",
        "",
        "Vessels are scored by macro Dice, but for `above the untrained accuracy`; recordings by balanced accuracy.",
        "Where part of the model stays at the sites, with FedBN and in staging, the score is a linear probe's.",
    ]
    for name, found in cases.items():
        last = [fmean(next(iter(rounds[number]["last"].values())) for rounds in found["by_seed"]) for number in (0, -1)]
        columns = ("honest", *SPOILT)
        lines += [
            "",
            f"## {name}",
            "",
            f"The aggregate scores {last[0]:.2f} untrained and {last[1]:.2f} before the last round.",
            "",
        ]
        lines += ["| tolerance | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for label, shares in found["tolerances"].items():
            cells = [
                f"{100 * shares[f'{what}, round 1']:.0f} / {100 * shares[f'{what}, later']:.0f}" for what in columns
            ]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
