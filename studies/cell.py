"""One cell of a study, in a process of its own: ``python -m studies.cell DIR`` plays what ``DIR/cell.json`` says.

A federated run is played by the daemons, over drop folders (``studies/daemons.py``). From these and the work
directories beside them a cell that was killed goes on; they go with its end, but for ``DIR/folders`` where the study
keeps it. A reference exchanges nothing, and is played without.

``DIR/result.json`` comes last, so a cell that has it is done. ``DIR/predictions/MODEL_OF/TESTED_ON.SPLIT.csv`` holds
what a classification's model said about each image: all lies on one machine, and nothing of it is exchanged.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aggregator.preparation import in_full
from shared.commands import say
from shared.csv_file import as_csv
from shared.errors import DropfedError, PluginError
from shared.exchange.reading import parse_json
from shared.exchange.records.run import Plugin, RunConfiguration
from shared.folder.durable import write_file
from shared.folder.lock import work_lock
from shared.learning.blame import blaming, require_ranges
from shared.learning.compute import Computing, prepare_compute
from shared.learning.cost import model_cost
from shared.learning.data.noise import with_noise
from shared.learning.methods import open_method
from shared.learning.metrics import ood_auroc
from shared.learning.plugins import permit_installed, required_by
from shared.learning.reliability import image_uncertainty, uncertainty_of_answers
from shared.learning.tasks import task_named
from shared.learning.training import answers, evaluate_answers, tame
from studies.configuration import OTHERS, POOLED
from studies.daemons import FOLDERS, PARTS, run_exchange
from studies.matrix import Cell, CellConfiguration
from studies.results import CONFIGURATION, PREDICTIONS, RESULT
from studies.simulation import Final, Outcome, open_public, public_members, run_rounds

OUT_OF_DISTRIBUTION = "out_of_distribution"
ROUNDS = "rounds"
"""Name of the folder for what a reference leaves."""

ELAPSED = "elapsed"
"""Name of the file of the seconds that a federated run has taken so far."""

Row = dict[str, Any]


class Elapsed:
    """The seconds that a cell takes, with those of its processes that were killed before this one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._before = float(file.read_text()) if file.exists() else 0.0
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._before + time.monotonic() - self._began

    def keep(self) -> None:
        """Remember them for the process that goes on, if this one is killed."""
        write_file(self._file, str(self.seconds).encode())


def play(home: Path) -> None:
    """Play the cell whose folder is ``home``.

    Raises:
        DropfedError: the data or the settings do not allow it.
    """
    permit_installed()
    cell = Cell("", parse_json((home / CONFIGURATION).read_bytes(), CellConfiguration, str(home / CONFIGURATION)), None)
    configuration = cell.configuration
    computing, plugins = computing_of(configuration), required_by(configuration.run)
    prepare_compute(computing, threads=1)  # cells go on side by side; and the same figures come out on another day
    elapsed = Elapsed(home / ELAPSED)
    try:
        with blaming(plugins):
            outcome = _outcome(configuration, home, computing, elapsed)
            rows = list(_rows(home, configuration, outcome))
    except Exception:
        clear(home)  # what failed is played anew, once its reason is mended
        raise
    result = {
        "configuration": cell.digest,
        "rows": rows,
        "cost": {
            "bytes_to_site": outcome.received_bytes,
            "bytes_from_site": outcome.sent_bytes,
            "answers": sum(len(of_round) for of_round in outcome.weights.values()),
            "seconds": round(elapsed.seconds, 1),
        },
        "weights": outcome.weights,
        "thetas": outcome.thetas,
        **({"gains": {site: asdict(gain) for site, gain in outcome.gains.items()}} if outcome.gains else {}),
    }
    write_file(home / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    clear(home, {FOLDERS} if configuration.keep_folders else set())


def computing_of(configuration: CellConfiguration) -> Computing:
    """Return how a cell's networks are computed."""
    return Computing(device=configuration.device, precision=configuration.precision)


def clear(home: Path, kept: Collection[str] = ()) -> None:
    """Remove what a run has left in a cell's folder."""
    for name in {ROUNDS, *PARTS}.difference(kept):
        shutil.rmtree(home / name, ignore_errors=True)
    (home / ELAPSED).unlink(missing_ok=True)


def _outcome(configuration: CellConfiguration, home: Path, computing: Computing, elapsed: Elapsed) -> Outcome:
    """Play a cell's run."""
    data = configuration.trained_on
    everywhere = {site: Path(folder) for site, folder in configuration.data.items()}
    run, weights = with_as_many_images(configuration, everywhere), Path(configuration.weights)
    if open_method(run.method, run.method_options).reference:
        clear(home)
        return run_rounds(in_full(run), data, home / ROUNDS, weights=weights, computing=computing)
    heldout = Path(configuration.heldout) if configuration.heldout else None
    return run_exchange(run, data, home, heldout=heldout, weights=weights, computing=computing, on_turn=elapsed.keep)


def with_as_many_images(configuration: CellConfiguration, data: Mapping[str, Path]) -> RunConfiguration:
    """Return the run, with as many training images of each site as the study wants.

    Args:
        data: the folders of all sites, of one that is left out too: all runs of an arm take as many.
    """
    run, wanted = configuration.run, configuration.images_per_site
    if wanted == "fewest":
        task = task_named(run.task)
        wanted = min(len(public_members(task, folder, run, site)["train"]) for site, folder in data.items())
    return configuration.run_with(wanted)


def _rows(home: Path, configuration: CellConfiguration, outcome: Outcome) -> Iterator[Row]:
    """Yield how each site's final model does on every site's images that have its classes; where a site is left out,
    on that one's.
    """
    task, plugins = task_named(configuration.run.task), required_by(configuration.run)
    options = task.options(configuration.run.task_options)
    folder = configuration.out_of_distribution
    ood = task.open_unlabelled(Path(folder), options) if folder else ()
    tests = _tests(configuration, outcome)
    for trained_by, final in outcome.finals.items():
        model_of = OTHERS if trained_by == POOLED and configuration.left_out else trained_by
        asked = _Asked(final.network(), final, home / PREDICTIONS / model_of, plugins)
        fixed = {"model_of": model_of, "chosen_round": outcome.chosen[next(iter(final.tests))], **asked.cost()}
        yield fixed | asked.look(model_of, "validation", final.dataset.validation).row
        if configuration.validation_only:
            continue
        looks = {
            site: asked.look(site, "test", images)
            for site, (classes, images) in tests.items()
            if classes == final.dataset.classes
        }
        own = np.concatenate(
            [
                looks[site].uncertainty
                if site in looks
                else image_uncertainty(task, asked.network, images, final.objective)
                for site, images in final.tests.items()
            ]
        )
        for site, look in looks.items():
            if site not in final.tests:
                look.row["scores"]["ood_auroc"] = ood_auroc(own, look.uncertainty).value
            yield fixed | look.row
            for variance in configuration.noise:
                noisy = [with_noise(image, variance, configuration.run.seed) for image in tests[site][1]]
                yield fixed | asked.look(site, f"noise-{variance:g}", noisy).row
        if ood:
            which = dict.fromkeys(("tested_on", "split"), OUT_OF_DISTRIBUTION)
            elsewhere = image_uncertainty(task, asked.network, ood, final.objective)
            scores = {"ood_auroc": ood_auroc(own, elsewhere).value}
            yield fixed | which | {"images": len(ood), "loss": None, "scores": scores}


def _tests(configuration: CellConfiguration, outcome: Outcome) -> dict[str, tuple[Sequence[str] | None, Sequence[Any]]]:
    """Return the classes and the test images of each site whose images are tested on."""
    if (left_out := configuration.left_out) is not None:
        task = task_named(configuration.run.task)
        dataset = open_public(task, Path(configuration.data[left_out]), configuration.run, left_out)
        return {left_out: (dataset.classes, dataset.test)}
    return {
        site: (final.dataset.classes, images)
        for final in outcome.finals.values()
        for site, images in final.tests.items()
    }


@dataclass(frozen=True)
class _Look:
    """How a model does on a set.

    Args:
        uncertainty: (N,) float64 in [0, 1], of each image.
    """

    row: Row
    uncertainty: NDArray[np.float64]


@dataclass(frozen=True)
class _Asked:
    """A final model that is asked about images.

    Args:
        folder: where its predictions go.
        plugins: of its run.
    """

    network: torch.nn.Module
    final: Final
    folder: Path
    plugins: Sequence[Plugin]

    def look(self, tested_on: str, split: str, images: Sequence[Any]) -> _Look:
        """Return how the model does, asked once about each image; what a classification says is written down."""
        objective, uncertainty = self.final.objective, list[float]()
        predictions = list[list[object]]()  # of a segmentation none: its pixels are too many

        def given() -> Iterator[tuple[Sequence[Any], torch.Tensor, torch.Tensor]]:
            for batch, logits, targets in answers(self.final.task, self.network, images):
                of_batch = uncertainty_of_answers(objective, logits, targets)
                uncertainty.extend(of_batch)
                if targets.ndim == 1:
                    probabilities = objective.probabilities(tame(logits).double()).tolist()
                    for sample, target, u, row in zip(batch, targets.tolist(), of_batch, probabilities, strict=True):
                        predictions.append([sample.id, target, getattr(sample, "severity", ""), u, *row])
                yield batch, logits, targets

        with blaming(self.plugins, f"the model of {self.folder.name} on the images of {tested_on}"):
            evaluation = evaluate_answers(self.final.task, given(), objective)
            if self.plugins:
                require_ranges(evaluation.scores, self.final.task.scores)
        if predictions:
            probabilities = [f"probability_{k}" for k in range(len(self.final.dataset.classes))]
            header = ["image", "class", "severity", "uncertainty", *probabilities]
            write_file(self.folder / f"{tested_on}.{split}.csv", as_csv([header, *predictions]))
        scores = {name: score.value for name, score in evaluation.scores.items()}
        counted = {"images": evaluation.images, "loss": evaluation.loss, "scores": scores}
        return _Look({"tested_on": tested_on, "split": split, **counted}, np.array(uncertainty))

    def cost(self) -> Row:
        image, _ = self.final.task.collate(self.final.dataset.validation[:1])
        cost = model_cost(self.network, image)
        return {"parameters": cost.parameters, "flops": cost.flops}


def main(folder: str) -> int:
    """Play one cell; what stands in the way is one sentence on standard error."""
    try:
        with work_lock(Path(folder), "another process plays this cell; wait for it, or stop it first"):
            play(Path(folder))
    except DropfedError as error:
        if isinstance(error, PluginError):  # for who wrote it
            traceback.print_exception(error.__cause__ or error)
        say(str(error), err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
