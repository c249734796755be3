"""From a study to its cells: one run each, known by a hash of all that decides it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import BeforeValidator

from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.exchange.reading import check_record
from shared.exchange.records.run import Range, RunConfiguration
from shared.exchange.records.values import Record
from shared.exchange.signing import digest_of
from shared.learning import plugins
from shared.learning.compute import Precision
from shared.learning.data.splits import Folds
from shared.learning.measures import with_measures
from shared.learning.methods import REFERENCES, files_behind, method_names, open_method
from shared.learning.metrics import OF_CLASS
from shared.learning.new_runs import as_of_now
from shared.learning.objectives import CrossEntropy
from shared.learning.run_checks import check_reference, check_together
from shared.learning.tasks import task_named
from studies.configuration import Device, StudyConfiguration
from studies.folders import same_folders

_ANY_CLASSES = 2  # of a network that only shows whether it can be begun
_DEFAULTS = {"keep": "last 1"}
"""What of a run is otherwise in a study: a folder per site with the models of every round would soon fill a disk."""
IMAGES_PER_SITE = "images_per_site"
"""A key of an arm that no run has: training images that are taken of each site, drawn by the seed; a number, or
``fewest``: as many as the site has that has fewest."""
LEAVE_ONE_OUT = "leave_one_out"
"""A key of an arm that no run has: true plays it once without each site, and tests it on that site's images alone."""
_NOT_OF_RUNS = (IMAGES_PER_SITE, LEAVE_ONE_OUT)
_FEWEST_SITES = 3
"""So many there must be for two to be left."""


def _number_or_fewest(value: object) -> object:
    if value is None or value == "fewest" or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number, 1 or more, or fewest")


class CellConfiguration(Record):
    """All that decides a cell's figures, on one machine.

    Attributes:
        run: its sites are those that train.
        data: each site's folder, absolute; of a site that is left out, too.
        contents: by folder, a digest of the names and sizes of its files: images that were exchanged are a new cell.
        weights: where published weights lie, absolute.
        validation_only: whether test images are left alone: of a trial, which chooses a learning rate.
        methods: SHA-256, hex, of the file of the run's method, and of each that it extends or goes over, by name.
    """

    run: RunConfiguration
    data: dict[str, str]
    out_of_distribution: str | None
    heldout: str | None
    keep_folders: bool
    images_per_site: Annotated[int | Literal["fewest"] | None, BeforeValidator(_number_or_fewest)]
    noise: list[float]
    contents: dict[str, str]
    weights: str
    methods: dict[str, str]
    device: Device
    precision: Precision
    software: str
    validation_only: bool = False

    @property
    def left_out(self) -> str | None:
        """The site on whose images the others' models are tested, where one is left out."""
        return next((site for site in self.data if site not in self.run.sites), None)

    @property
    def trained_on(self) -> dict[str, Path]:
        """The folder of each site that trains."""
        return {site: Path(self.data[site]) for site in self.run.sites}

    def run_with(self, train_images: int | None) -> RunConfiguration:
        """Return the run, with so many training images of each site; with None, as many as the run says."""
        if train_images is None:
            return self.run
        return self.run.model_copy(update={"split": {**self.run.split, "train_images": train_images}})


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Args:
        arm: what people call it.
        turn: of the cross-validation, or None.
    """

    arm: str
    configuration: CellConfiguration
    turn: Folds | None

    @property
    def digest(self) -> str:
        """SHA-256, hex, of all that decides the cell. Where its folders lie does not: a study may be moved."""
        settings = self.configuration.model_dump(mode="json", exclude={"contents", "weights"})
        contents = self.configuration.contents
        settings["data"] = {site: contents[folder] for site, folder in self.configuration.data.items()}
        for key in ("out_of_distribution", "heldout"):
            settings[key] = settings[key] and contents[settings[key]]
        return digest_of(json.dumps(settings, sort_keys=True).encode())

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.digest[:16]


def expand(study: StudyConfiguration, root: Path) -> list[Cell]:
    """Return every cell, ordered so that each seed is complete before the next begins.

    Args:
        root: the folder that the study's paths are relative to.

    Raises:
        ConfigurationError: every problem of every arm, each told once; and folders, published weights and scores that
            are not there.
    """
    problems = [*study.problems(), *_misfits_of_leaving_out(study)]
    problems += [*_missing_folders(study, root), *_shared_folders(study, root)]
    try:
        problems += _unknown_scores(study)
    except ConfigurationError as error:  # without its task no arm can be looked at
        raise ConfigurationError([*problems, *error.problems]) from None
    paths = {key: (root / folder).resolve() for key, folder in study.folders.items()}
    data = {site: str(paths[f"data: {site}"]) for site in study.data}
    ood, heldout = (str(paths[key]) if key in paths else None for key in ("out_of_distribution", "heldout"))
    contents = {str(path): contents_of(path) for path in paths.values() if path.is_dir()}
    weights = (root / study.weights).resolve()
    common = study.model_dump(include={"keep_folders", "noise", "device", "precision"})
    common |= {"data": data, "out_of_distribution": ood, "heldout": heldout, "contents": contents}
    common |= {"weights": str(weights), "software": f"dropfed {version('dropfed')}"}
    cells: list[Cell] = []
    found: dict[str, dict[str, None]] = {}  # by problem, the arms that have it
    arms = [(label, arm, sites) for label, arm in study.arms.items() for sites in _training(arm, [*data])]
    for seed, turn, (label, arm, sites) in product(study.seeds, _turns(study), arms):
        settings = {**_DEFAULTS, **study.common(), **{key: arm[key] for key in arm if key not in _NOT_OF_RUNS}}
        if study.heldout is None:
            settings.setdefault("tolerance", None)
        if turn is not None and isinstance(settings.get("split", {}), dict):
            settings["split"] = {**settings.get("split", {}), "folds": turn.model_dump()}
        if isinstance(named := settings.get("scores", {}), dict) and (installed := _installed_scores(study)):
            settings["scores"] = {**{score: {} for score in installed}, **named}
        values = {**settings, "run": study.study, "task": study.task, "sites": sites, "seed": seed}
        try:
            run = check_record(values, RunConfiguration, f"arms: {label}")
            _check(run, has_heldout=heldout is not None)
            run = as_of_now(run)
            own = {"run": run, "methods": _methods(run), IMAGES_PER_SITE: arm.get(IMAGES_PER_SITE)}
            configuration = check_record(common | own, CellConfiguration, f"arms: {label}")
        except ConfigurationError as error:
            for problem in error.problems:
                found.setdefault(problem.removeprefix(f"arms: {label}: "), {})[label] = None
            continue
        cells.append(Cell(label, configuration, turn))
    for problem, labels in found.items():
        is_common = 1 < len(labels) == len(study.arms)
        problems += [f"run: {problem}"] if is_common else [f"arms: {label}: {problem}" for label in labels]
    problems += _missing_weights(cells, weights)
    if problems:
        raise ConfigurationError(problems)
    return cells


def _misfits_of_leaving_out(study: StudyConfiguration) -> Iterator[str]:
    """Yield a sentence for each arm that cannot leave a site out as it says."""
    for label, arm in study.arms.items():
        wanted, where = arm.get(LEAVE_ONE_OUT, False), f"arms: {label}: {LEAVE_ONE_OUT}"
        if not isinstance(wanted, bool):
            yield f"{where}: must be true or false"
        elif wanted and len(study.data) < _FEWEST_SITES:
            yield f"{where}: needs {_FEWEST_SITES} sites or more; take it out, or add sites"


def _training(arm: Mapping[str, object], sites: Sequence[str]) -> list[list[str]]:
    """Return the sites that train in each of an arm's runs of one seed."""
    if arm.get(LEAVE_ONE_OUT) is not True or len(sites) < _FEWEST_SITES:
        return [[*sites]]
    return [[site for site in sites if site != left_out] for left_out in sites]


def _missing_folders(study: StudyConfiguration, root: Path) -> list[str]:
    """Return a sentence for each folder that is not there, by the key that names it."""
    problems = []
    for key, folder in study.folders.items():
        if not (path := (root / folder).resolve()).is_dir():
            what_to_do = "write it without ~, which is not replaced here" if folder.startswith("~") else "correct it"
            problems.append(f"{key}: there is no folder {path}; {what_to_do}")
    return problems


def _shared_folders(study: StudyConfiguration, root: Path) -> list[str]:
    """Return a sentence for each folder that is two sites', or out of distribution or held out besides: images would be
    trained and tested on.
    """
    folders = {key.removeprefix("data: "): folder for key, folder in study.folders.items()}
    return [
        f"data: {owner} and {name} have the same folder, {folders[name]}; give each its own"
        for owner, name in same_folders((name, root / folder) for name, folder in folders.items())
    ]


def contents_of(folder: Path) -> str:
    """Return a digest of what files there are and how large they are, in linked folders too, as images are read."""
    found = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in _files(folder, ()))
    return digest_of(json.dumps(found).encode())


def _files(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield a folder's files; of one that is linked into itself only once, and none of one that we may not enter."""
    if (real := folder.resolve()) in above:
        return
    try:
        inside = [*folder.iterdir()]
    except PermissionError:
        return
    for path in inside:
        if path.is_dir():
            yield from _files(path, (*above, real))
        elif path.is_file():
            yield path


def _methods(run: RunConfiguration) -> dict[str, str]:
    method = type(open_method(run.method, run.method_options))
    files = {name: digest_of(path.read_bytes()) for name, path in sorted(files_behind(method).items())}
    return files | {wheel.name: wheel.sha256 for wheel in plugins.required_by(run)}


def _installed_scores(study: StudyConfiguration) -> dict[str, Range]:
    """Return the scores to be shown that somebody's wheel provides, as runs name them."""
    provided = plugins.provided("scores")
    return {score: Range() for score in study.scores if score in provided}


def _unknown_scores(study: StudyConfiguration) -> list[str]:
    """Return a sentence for each score that the task does not have; of single classes each may."""
    task = task_named(study.task)
    scoring = task.scoring(CrossEntropy())
    there = {
        *scoring.scores([scoring.look(torch.zeros(2, 2), torch.tensor([0, 1]))]),  # of two answers, whatever they say
        *with_measures(task, _installed_scores(study)).scores,
    }
    told = ", ".join(sorted(name for name in there if not name.startswith(OF_CLASS) and not name.endswith("_std")))
    return [
        f"scores: there is no {escape(score)}; take it out, or take one of {told}"
        for score in study.scores
        if score not in there and not _of_a_class(score)
    ]


def _of_a_class(score: str) -> bool:
    """Return whether a score is that of one class, by its number from 0."""
    return score.startswith(OF_CLASS) and re.fullmatch("0|[1-9][0-9]?", score.removeprefix(OF_CLASS)) is not None


def _check(run: RunConfiguration, *, has_heldout: bool) -> None:
    if run.tolerance is not None and not has_heldout:
        raise ConfigurationError(
            ["tolerance: there are no images to score models with; name their folder under heldout, or take it out"]
        )
    if run.method not in (known := (*method_names(), *REFERENCES, *plugins.provided("methods"))):
        raise ConfigurationError([f"method: there is no method {escape(run.method)}; use one of {', '.join(known)}"])
    if run.start is not None:
        raise ConfigurationError(["start: a study's runs begin as their task has it; leave it out"])
    if run.trainer is not None:
        raise ConfigurationError(["trainer: a study trains by PyTorch; leave it out"])
    if open_method(run.method, run.method_options).reference:
        check_reference(run)
    else:
        check_together(run)


def _missing_weights(cells: Sequence[Cell], folder: Path) -> list[str]:
    """Return a sentence for each published weights that runs begin with and that are not there."""
    runs = {json.dumps(cell.configuration.run.task_options, sort_keys=True): cell.configuration.run for cell in cells}
    problems: list[str] = []
    for run in runs.values():
        task = task_named(run.task)
        options = task.options(run.task_options)
        try:
            task.load_initial_weights(task.build_model(options, _ANY_CLASSES, run.seed), options, [folder])
        except ConfigurationError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return problems


def _turns(study: StudyConfiguration) -> Iterator[Folds | None]:
    if study.folds is None:
        yield None
        return
    for outer, inner in product(range(study.folds.outer), range(study.folds.inner)):
        yield Folds(count=study.folds.outer, outer=outer, inner=inner)
