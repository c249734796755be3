"""Which tensors of a model travel and which stay, by method and task."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from shared.exchange.records import Sharing, TensorList, TensorShape
from shared.learning.methods.contract import Method
from shared.learning.tasks.contract import Task


def sharing(task: Task, method: Method, model: nn.Module) -> Sharing:
    """The three parts of a model's state, as a run's offer lists them.

    ``tensors`` travels every round; ``start`` stays at a site, but all sites begin with the aggregator's; ``personal``
    (the task's local part) never leaves a site, and each begins with its own. BatchNorm's step counters are in none:
    they are no quantity that can be averaged, and with a fixed momentum nothing reads them.
    """
    travels: dict[str, TensorShape] = {}
    start: dict[str, TensorShape] = {}
    personal: list[str] = []
    state = model.state_dict().keys()
    for path, module in model.named_modules():
        is_local = task.local_part is not None and (path == task.local_part or path.startswith(f"{task.local_part}."))
        for key, shape in _own_tensors(path, module).items():
            if key not in state:
                continue
            if is_local:
                personal.append(key)
            elif method.stays(module):
                start[key] = shape
            else:
                travels[key] = shape
    return Sharing(tensors=travels, start=start, personal=personal)


def staying(task: Task, method: Method, model: nn.Module) -> TensorList:
    """The tensors of this model that stay at its site, with the shapes that they have there."""
    listed = sharing(task, method, model)
    state = model.state_dict()
    return TensorList(tensors={key: _shape(state[key].shape) for key in (*listed.start, *listed.personal)})


def _own_tensors(path: str, module: nn.Module) -> dict[str, TensorShape]:
    """A module's own parameters and buffers by their names in the state, without its children's."""
    prefix = f"{path}." if path else ""
    own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    return {
        f"{prefix}{name}": _shape(tensor.shape)
        for name, tensor in own.items()
        if not (isinstance(module, _BatchNorm) and name == "num_batches_tracked")
    }


def _shape(shape: tuple[int, ...]) -> TensorShape:
    return TensorShape(dtype="F32", shape=list(shape))
