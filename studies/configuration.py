"""``STUDY.yaml``: what a study compares, on whose images, how often."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.exchange.names import Name
from shared.exchange.reading import parse_yaml
from shared.exchange.records.values import Record
from shared.learning.compute import Precision
from shared.learning.schedules import rounds_of_equal_steps
from shared.settings import PathText, read_named

Label = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f|]+$")]
Device = Literal["cpu", "cuda"]
POOLED = "all-sites"
"""What the one site is called that has the images of all."""
OTHERS = "other-sites"
"""What it is called where one site is left out."""
_BATCH_SIZE = 8
_DECIDED_BY_THE_STUDY = ("run", "task", "sites", "seed", "split.folds")


class Turns(Record):
    """A nested cross-validation: every outer fold is tested on once for every inner fold that it is validated on."""

    outer: Annotated[int, Field(ge=3, le=20, description="folds")] = 5
    inner: Annotated[int, Field(ge=1, le=19, description="of these, so many serve as validation in turn")] = 4

    @model_validator(mode="after")
    def _enough(self) -> Turns:
        if self.inner >= self.outer:
            raise ValueError(f"inner: {self.inner} must be less than the {self.outer} folds; lower it")
        return self


class Energy(Record):
    """What an estimate of energy takes for granted; nothing of it is measured."""

    watts: Annotated[float, Field(gt=0, description="of one cell while it goes on")] = 100.0
    joules_per_megabyte: Annotated[float, Field(ge=0, description="for a megabyte that is moved")] = 50.0


class EqualSteps(Record):
    """As many rounds as let a site take the steps of a pooled training (FedEE's budget)."""

    images: Annotated[int, Field(ge=1, description="training images of all sites")]
    pooled_epochs: Annotated[int, Field(ge=1)]
    steps_per_round: Annotated[int, Field(ge=1)]


class Tuning(Record):
    """A grid of learning rates, of which each arm takes the one that does best on validation images."""

    learning_rates: Annotated[
        list[Annotated[float, Field(gt=0, le=10)]],
        Field(min_length=2, max_length=9, description="what a run's learning rate begins with"),
    ]
    rounds: Annotated[int | None, Field(ge=1, description="of a short run; none: a third of the arm's")] = None


class StudyConfiguration(Record):
    """One study. Paths are relative to the file's folder."""

    study: Name
    task: Name
    data: Annotated[
        dict[Name, PathText], Field(min_length=1, description="each site's folder, laid out like a site's data")
    ]
    out_of_distribution: Annotated[
        PathText | None, Field(description="a folder of images that are no site's, without labels")
    ] = None
    heldout: Annotated[
        PathText | None,
        Field(description="the aggregator's labelled images, for the tolerance check; none: runs have none"),
    ] = None
    keep_folders: Annotated[bool, Field(description="whether each federated cell's drop folders stay")] = False
    weights: Annotated[
        PathText, Field(description="a folder with published weights' files, where runs begin with such")
    ] = "weights"
    device: Annotated[Device, Field(description="what cells are computed on; cuda: all cells share the first GPU")] = (
        "cpu"
    )
    precision: Annotated[
        Precision, Field(description="bfloat16: convolutions in 16 bits, quicker where the processor has it")
    ] = "float32"
    run: Annotated[dict[str, Any], Field(description="what all runs have in common, as in RUN.yaml")] = {}
    rounds_as: EqualSteps | None = None
    arms: Annotated[
        dict[Label, dict[str, Any]],
        Field(min_length=1, description="what is compared: by its name in the tables, what its runs say besides"),
    ]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1, max_length=1000)] = [0]
    tune: Tuning | None = None
    folds: Turns | None = None
    noise: Annotated[
        list[Annotated[float, Field(gt=0, le=1)]],
        Field(max_length=20, description="variances of Gaussian noise on test images"),
    ] = []
    scores: Annotated[
        list[str], Field(description="columns shown in the tables, the main one first; none: the task's own")
    ] = []
    energy: Energy = Energy()

    @model_validator(mode="after")
    def _steps_can_be_counted(self) -> StudyConfiguration:
        size = self.run.get("batch_size", _BATCH_SIZE)
        if self.rounds_as is not None and not (type(size) is int and size > 0):
            raise ValueError("run: batch_size: must be a whole number above 0, by which rounds_as counts; correct it")
        return self

    @property
    def folders(self) -> dict[str, str]:
        """Every folder with images, by the key that names it."""
        others = {"out_of_distribution": self.out_of_distribution, "heldout": self.heldout}
        named = {f"data: {site}": folder for site, folder in self.data.items()}
        return named | {key: folder for key, folder in others.items() if folder}

    def problems(self) -> list[str]:
        """Return a sentence for each key that does not go with another."""
        found = []
        for where, keys in (("run", self.run), *((f"arms.{label}", arm) for label, arm in self.arms.items())):
            for key in _DECIDED_BY_THE_STUDY:
                outer, _, inner = key.partition(".")
                if outer in keys and (not inner or (isinstance(keys[outer], dict) and inner in keys[outer])):
                    found.append(f"{where}: {key} is decided by the study; take it out there")
        if self.tune is not None:
            found += self._problems_of_tuning(self.tune)
        found += [
            f"data: {name} is what several sites together are called; name the site otherwise"
            for name in (POOLED, OTHERS)
            if name in self.data
        ]
        if self.rounds_as is not None and "rounds" in self.run:
            found.append("rounds_as: run says rounds too; keep one of them")
        if len(set(self.seeds)) < len(self.seeds):
            found.append("seeds: one is named twice; name each once")
        return found

    def _problems_of_tuning(self, tuning: Tuning) -> list[str]:
        found = []
        schedule = self.run.get("learning_rate", {})
        if not isinstance(schedule, dict) or "initial" in schedule:
            found.append("run: what learning_rate begins with is decided by tune; leave initial out there")
        found += [
            f"arms.{label}: learning_rate is decided by tune; take it out there"
            for label, arm in self.arms.items()
            if "learning_rate" in arm
        ]
        if len(set(tuning.learning_rates)) < len(tuning.learning_rates):
            found.append("tune: a learning rate is named twice; name each once")
        return found

    def common(self) -> dict[str, Any]:
        """Return what all runs have in common."""
        if self.rounds_as is None:
            return dict(self.run)
        rounds = rounds_of_equal_steps(
            self.rounds_as.images,
            len(self.data),
            self.run.get("batch_size", _BATCH_SIZE),
            self.rounds_as.pooled_epochs,
            self.rounds_as.steps_per_round,
        )
        return {**self.run, "rounds": rounds}


def read_study(path: Path) -> StudyConfiguration:
    """Read ``STUDY.yaml``.

    Raises:
        ConfigurationError: every problem in it.
    """
    return parse_yaml(read_named(path, "name the study's file"), StudyConfiguration, str(path))
