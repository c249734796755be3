"""dropfed as a library: what notebooks and plug-ins import. docs/library.md says what each name is.

A name is loaded when it is first used, so that ``import dropfed`` alone loads neither PyTorch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from shared.errors import ActionRequiredError

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

_PLACES = {
    # for notebooks
    "simulate": "dropfed.simulation:simulate",
    "Simulation": "dropfed.simulation:Simulation",
    "read_run": "dropfed.runs:read_run",
    "figures": "dropfed.runs:figures",
    "RunView": "aggregator.run_view:RunView",
    "Figure": "aggregator.report.figures:Figure",
    "open_folder": "dropfed.folders:open_folder",
    "DropFolder": "dropfed.folders:DropFolder",
    "FolderMessage": "dropfed.folders:FolderMessage",
    "Finding": "shared.audit.reading:Finding",
    "load": "dropfed.models:load",
    "Model": "dropfed.models:Model",
    "Prediction": "dropfed.models:Prediction",
    # records of the folder
    "RunConfiguration": "shared.exchange.records.run:RunConfiguration",
    "MessageRef": "shared.exchange.names:MessageRef",
    "Consent": "shared.exchange.records.answers:Consent",
    "Withdrawal": "shared.exchange.records.answers:Withdrawal",
    "Reliability": "shared.exchange.records.answers:Reliability",
    "Verdict": "shared.exchange.records.verdicts:Verdict",
    "FinalCard": "shared.exchange.records.verdicts:FinalCard",
    "Sharing": "shared.exchange.records.tensors:Sharing",
    "TensorList": "shared.exchange.records.tensors:TensorList",
    "TensorShape": "shared.exchange.records.tensors:TensorShape",
    # for a task of one's own
    "Task": "shared.learning.tasks.contract:Task",
    "SegmentationTask": "shared.learning.tasks.contract:SegmentationTask",
    "Network": "shared.learning.tasks.contract:Network",
    "Sample": "shared.learning.tasks.contract:Sample",
    "Collection": "shared.learning.tasks.contract:Collection",
    "Dataset": "shared.learning.tasks.contract:Dataset",
    "Evaluation": "shared.learning.tasks.contract:Evaluation",
    "Scoring": "shared.learning.tasks.contract:Scoring",
    "divided": "shared.learning.tasks.contract:divided",
    "Options": "shared.learning.tasks.terms:Options",
    "Terms": "shared.learning.tasks.terms:Terms",
    "Members": "shared.learning.data.sets:Members",
    "Unit": "shared.learning.data.units:Unit",
    "ImageClassification": "shared.learning.tasks.image_classification.task:ImageClassification",
    "ImageOptions": "shared.learning.tasks.image_classification.terms:ImageOptions",
    "GradedImage": "shared.learning.data.graded_images:GradedImage",
    "ClassScoring": "shared.learning.tasks.classification:ClassScoring",
    "Segmentation": "shared.learning.tasks.segmentation.task:Segmentation",
    "SegmentationOptions": "shared.learning.tasks.segmentation.terms:SegmentationOptions",
    "SegmentedImage": "shared.learning.data.images:SegmentedImage",
    "PixelScoring": "shared.learning.tasks.segmentation.task:PixelScoring",
    "Range": "shared.exchange.records.run:Range",
    "read_colour": "shared.learning.data.graded_images:read_colour",
    "read_image": "shared.learning.data.images:read_image",
    "Augmentation": "shared.learning.data.augmentation:Augmentation",
    "Score": "shared.learning.metrics:Score",
    "Measure": "shared.learning.measures:Measure",
    "Objective": "shared.learning.objectives:Objective",
    "CrossEntropy": "shared.learning.objectives:CrossEntropy",
    "Evidential": "shared.learning.objectives:Evidential",
    "Focal": "shared.learning.objectives:Focal",
    "IGNORED": "shared.learning.objectives:IGNORED",
    # for a method of one's own
    "Method": "shared.learning.methods.contract:Method",
    "Over": "shared.learning.methods.contract:Over",
    "FedAvg": "shared.learning.methods.fedavg:FedAvg",
    "MethodOptions": "shared.learning.methods.terms:MethodOptions",
    "MethodTerms": "shared.learning.methods.terms:Terms",
    "Groups": "shared.learning.methods.contract:Groups",
    "Local": "shared.learning.methods.contract:Local",
    "Contribution": "shared.learning.methods.contract:Contribution",
    "Part": "shared.learning.methods.contract:Part",
    "Sent": "shared.learning.methods.contract:Sent",
    "Array": "shared.learning.methods.contract:Array",
    "Tensors": "shared.learning.methods.contract:Tensors",
    "MODEL": "shared.learning.methods.contract:MODEL",
    # encoders
    "ENCODERS": "shared.learning.models:ENCODERS",
    "Encoder": "shared.learning.models.encoders:Encoder",
    "build_encoder": "shared.learning.models.encoders:build_encoder",
    # errors
    "DropfedError": "shared.errors:DropfedError",
    "ActionRequiredError": "shared.errors:ActionRequiredError",
    "ConfigurationError": "shared.errors:ConfigurationError",
    "DataError": "shared.errors:DataError",
    "NotFoundError": "shared.errors:NotFoundError",
    "RejectedError": "shared.errors:RejectedError",
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
            f"dropfed.{name} needs {error.name}, which is not installed here: run `pip install 'dropfed[study]'`"
        ) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
