"""dropfed as a library: what notebooks and plug-ins import. docs/library.md says what each name is.

A name is loaded when it is first used, so that ``import dropfed`` alone loads neither PyTorch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from shared.errors import ActionRequiredError
from shared.software import installing

if TYPE_CHECKING:
    from aggregator.report.figures import Figure
    from aggregator.run_view import RunView
    from dropfed.folders import DropFolder, FolderMessage, open_folder
    from dropfed.models import Model, Prediction, load
    from dropfed.runs import figures, read_run
    from dropfed.simulation import Simulation, simulate
    from shared.audit.reading import Finding
    from shared.errors import (
        ActionRequiredError,
        ConfigurationError,
        DataError,
        DropfedError,
        NotFoundError,
        RejectedError,
    )
    from shared.exchange.names import MessageRef
    from shared.exchange.records.answers import Consent, Reliability, Withdrawal
    from shared.exchange.records.run import Range, RunConfiguration
    from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
    from shared.exchange.records.verdicts import FinalCard, Verdict
    from shared.learning.data.augmentation import Augmentation
    from shared.learning.data.graded_images import GradedImage, read_colour
    from shared.learning.data.images import SegmentedImage, read_image
    from shared.learning.data.sets import Members
    from shared.learning.data.units import Unit
    from shared.learning.measures import Measure
    from shared.learning.methods.contract import (
        MODEL,
        Array,
        Contribution,
        Groups,
        Local,
        Method,
        Over,
        Part,
        Sent,
        Tensors,
    )
    from shared.learning.methods.fedavg import FedAvg
    from shared.learning.methods.terms import MethodOptions
    from shared.learning.methods.terms import Terms as MethodTerms
    from shared.learning.metrics import Score
    from shared.learning.models import ENCODERS
    from shared.learning.models.encoders import Encoder, build_encoder
    from shared.learning.objectives import IGNORED, CrossEntropy, Evidential, Focal, Objective
    from shared.learning.tasks.classification import ClassScoring
    from shared.learning.tasks.contract import (
        Collection,
        Dataset,
        Evaluation,
        Network,
        Sample,
        Scoring,
        SegmentationTask,
        Task,
        divided,
    )
    from shared.learning.tasks.image_classification.task import ImageClassification
    from shared.learning.tasks.image_classification.terms import ImageOptions
    from shared.learning.tasks.segmentation.task import PixelScoring, Segmentation
    from shared.learning.tasks.segmentation.terms import SegmentationOptions
    from shared.learning.tasks.terms import Options, Terms

__version__ = version("dropfed")

_MODULES = {
    # for notebooks
    "dropfed.simulation": "simulate Simulation",
    "dropfed.runs": "read_run figures",
    "aggregator.run_view": "RunView",
    "aggregator.report.figures": "Figure",
    "dropfed.folders": "open_folder DropFolder FolderMessage",
    "shared.audit.reading": "Finding",
    "dropfed.models": "load Model Prediction",
    # records of the folder
    "shared.exchange.records.run": "RunConfiguration Range",
    "shared.exchange.names": "MessageRef",
    "shared.exchange.records.answers": "Consent Withdrawal Reliability",
    "shared.exchange.records.verdicts": "Verdict FinalCard",
    "shared.exchange.records.tensors": "Sharing TensorList TensorShape",
    # for a task of one's own
    "shared.learning.tasks.contract": (
        "Task SegmentationTask Network Sample Collection Dataset Evaluation Scoring divided"
    ),
    "shared.learning.tasks.terms": "Options Terms",
    "shared.learning.data.sets": "Members",
    "shared.learning.data.units": "Unit",
    "shared.learning.tasks.image_classification.task": "ImageClassification",
    "shared.learning.tasks.image_classification.terms": "ImageOptions",
    "shared.learning.data.graded_images": "GradedImage read_colour",
    "shared.learning.tasks.classification": "ClassScoring",
    "shared.learning.tasks.segmentation.task": "Segmentation PixelScoring",
    "shared.learning.tasks.segmentation.terms": "SegmentationOptions",
    "shared.learning.data.images": "SegmentedImage read_image",
    "shared.learning.data.augmentation": "Augmentation",
    "shared.learning.metrics": "Score",
    "shared.learning.measures": "Measure",
    "shared.learning.objectives": "Objective CrossEntropy Evidential Focal IGNORED",
    # for a method of one's own
    "shared.learning.methods.contract": "Method Over Groups Local Contribution Part Sent Array Tensors MODEL",
    "shared.learning.methods.fedavg": "FedAvg",
    "shared.learning.methods.terms": "MethodOptions",
    # encoders
    "shared.learning.models": "ENCODERS",
    "shared.learning.models.encoders": "Encoder build_encoder",
    # errors
    "shared.errors": "DropfedError ActionRequiredError ConfigurationError DataError NotFoundError RejectedError",
}
"""The public names that each module defines."""

_PLACES = {name: f"{module}:{name}" for module, names in _MODULES.items() for name in names.split()} | {
    "MethodTerms": "shared.learning.methods.terms:Terms"
}
"""Where each name is defined."""

__all__ = [
    "ENCODERS",
    "IGNORED",
    "MODEL",
    "ActionRequiredError",
    "Array",
    "Augmentation",
    "ClassScoring",
    "Collection",
    "ConfigurationError",
    "Consent",
    "Contribution",
    "CrossEntropy",
    "DataError",
    "Dataset",
    "DropFolder",
    "DropfedError",
    "Encoder",
    "Evaluation",
    "Evidential",
    "FedAvg",
    "Figure",
    "FinalCard",
    "Finding",
    "Focal",
    "FolderMessage",
    "GradedImage",
    "Groups",
    "ImageClassification",
    "ImageOptions",
    "Local",
    "Measure",
    "Members",
    "MessageRef",
    "Method",
    "MethodOptions",
    "MethodTerms",
    "Model",
    "Network",
    "NotFoundError",
    "Objective",
    "Options",
    "Over",
    "Part",
    "PixelScoring",
    "Prediction",
    "Range",
    "RejectedError",
    "Reliability",
    "RunConfiguration",
    "RunView",
    "Sample",
    "Score",
    "Scoring",
    "Segmentation",
    "SegmentationOptions",
    "SegmentationTask",
    "SegmentedImage",
    "Sent",
    "Sharing",
    "Simulation",
    "Task",
    "TensorList",
    "TensorShape",
    "Tensors",
    "Terms",
    "Unit",
    "Verdict",
    "Withdrawal",
    "__version__",
    "build_encoder",
    "divided",
    "figures",
    "load",
    "open_folder",
    "read_colour",
    "read_image",
    "read_run",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Return a public name, loaded now.

    Raises:
        ActionRequiredError: it needs a package that is not installed.
    """
    if name not in _PLACES:
        raise AttributeError(f"module 'dropfed' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ActionRequiredError(
            f"dropfed.{name} needs {error.name}, which is not installed here: run {installing('study')}"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
