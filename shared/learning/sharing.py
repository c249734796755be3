"""A run's network, and which of its tensors travel and which stay, by method and task."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from shared.errors import ConfigurationError, FaultError
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.learning.batch_norm import replace_batch_norm
from shared.learning.drawing import drawn_by
from shared.learning.methods.contract import MODEL, Groups, Method, TensorLists
from shared.learning.models.encoders import Encoder
from shared.learning.models.grading_network import OwnHead
from shared.learning.models.lora import LowRankUpdate
from shared.learning.seeds import seed_for
from shared.learning.tasks.contract import Network, Task
from shared.learning.tasks.terms import Options

_GROUP = re.compile(r"[a-z][a-z0-9_]{0,31}")
ANY_CLASSES = 2
"""Of a network where nobody says how many: what travels does not depend on it."""


def build_network(
    task: Task,
    method: Method,
    options: Options,
    classes: int,
    *,
    run_seed: int,
    is_private: bool = False,
    prepare: Callable[[nn.Module], None] = lambda model: None,
) -> nn.Module:
    """Return the network that a run trains, untrained, on the CPU, a ``Network``.

    Args:
        is_private: private training puts a GroupNorm in the place of every BatchNorm.
        prepare: done with each of the task's own models in it, such as to put published weights into it.

    Raises:
        FaultError: a model of the task lacks something that a ``Network`` has.
    """

    def build(number: int) -> nn.Module:
        further = (number,) if number else ()
        model: nn.Module = task.build_model(options, classes, seed_for(run_seed, "initial model", *further))
        if lacking := [name for name in ("classes", "features", "heads") if not hasattr(model, name)]:
            raise FaultError(task.build_model, f"gave a network without {', '.join(lacking)}")
        prepare(model)
        if is_private:
            replace_batch_norm(model)
        return model

    with drawn_by(seed_for(run_seed, "initial network")):
        return method.network(build)


def learns_features(network: nn.Module) -> bool:
    """Return whether training moves anything before the heads of a ``Network``."""
    of_heads = {parameter for head in cast(Network, network).heads for parameter in head.parameters()}
    return any(parameter.requires_grad and parameter not in of_heads for parameter in network.parameters())


def network_of(
    run: RunConfiguration,
    task: Task,
    method: Method,
    classes: int = ANY_CLASSES,
    *,
    prepare: Callable[[nn.Module], None] = lambda model: None,
) -> nn.Module:
    """Return a run's network; see ``build_network``.

    Args:
        task, method: the run's.
        classes: of what it is trained or asked about.
    """
    options, is_private = task.options(run.task_options), run.privacy is not None
    return build_network(task, method, options, classes, run_seed=run.seed, is_private=is_private, prepare=prepare)


def published(run: RunConfiguration, task: Task, folders: Sequence[Path]) -> Callable[[nn.Module], None]:
    """Return what has ``network_of`` begin with the published weights that a run names, if it does.

    Args:
        folders: where they may lie.
    """
    options = task.options(run.task_options)

    def prepare(model: nn.Module) -> None:
        task.load_initial_weights(model, options, folders)

    return prepare


def sharing(task: Task, method: Method, network: nn.Module) -> Sharing:
    """Return the parts of a network's state, and what travels beside them, as a run's offer lists them.

    ``tensors`` travels every round; ``start`` stays at a site, but all sites begin with the aggregator's: what the
    method says, and a task's frozen layers, which never change, and of which ``from_file`` comes from each site's own
    copy of published weights; ``personal``
    (a head whose shape depends on a site's classes, and what the method says) never leaves a site, and each begins with
    its own. Tensors of whole numbers, as BatchNorm's step counters, are in none: they are no quantity that can be
    averaged, and either nothing reads them or every site computes the same.

    Raises:
        ConfigurationError: nothing that learns is left to travel.
    """
    unmoved = {module for module in network.modules() if _never_learns(module)}
    encoders = [module for module in network.modules() if isinstance(module, Encoder)]
    unmoved |= _below(encoder for encoder in encoders if encoder.is_frozen)
    at_sites = _below(encoder for encoder in encoders if encoder.is_at_sites)
    own_heads = [module for module in network.modules() if isinstance(module, OwnHead)]
    heads = cast(Network, network).heads if task.head_is_local else own_heads
    own = [*heads, *method.personal(network)]
    never, stays = _below(own), _below(method.stays(network))
    travels: dict[str, TensorShape] = {}
    buffers: list[str] = []
    start: dict[str, TensorShape] = {}
    frozen: list[str] = []
    from_file: list[str] = []
    personal: list[str] = []
    state = network.state_dict().keys()
    for path, module in network.named_modules():
        for key, tensor in _own_tensors(path, module).items():
            if key not in state:
                continue
            is_parameter = isinstance(tensor, nn.Parameter)
            is_frozen = not tensor.requires_grad if is_parameter else module in unmoved
            if module in never:
                personal.append(key)
            elif module in stays or is_frozen:
                start[key] = _shape(tensor.shape)
                frozen += [key] if is_frozen else []
                is_published = is_frozen and module in at_sites and not isinstance(module, LowRankUpdate)
                from_file += [key] if is_published else []
            else:
                travels[key] = _shape(tensor.shape)
                buffers += [] if is_parameter else [key]
    plain = Sharing(
        tensors=travels, buffers=buffers, start=start, frozen=frozen, from_file=from_file, personal=personal
    )
    if not plain.parameters.tensors:
        raise ConfigurationError([f"method: {method.name} shares nothing that learns of {task.name}; take another"])
    groups = _groups(method, network, plain)
    return plain.model_copy(
        update={
            name: {group: listed.tensors for group, listed in of_kind.items()}
            for name, of_kind in (
                ("to_site", groups.to_site),
                ("measured", groups.measured),
                ("trained", groups.trained),
                ("with_final", groups.with_final),
            )
        }
    )


def _groups(method: Method, network: nn.Module, plain: Sharing) -> Groups:
    """Return what a method's ``groups`` gave.

    Raises:
        FaultError: something else than lists of tensors by group, or a group's name is none.
    """
    found = method.groups(network, plain)
    kinds = vars(found).values() if isinstance(found, Groups) else [None]
    if not all(
        isinstance(kind, Mapping) and all(isinstance(each, TensorList) for each in kind.values()) for kind in kinds
    ):
        raise FaultError(method.groups, "gave something else than Groups, with a TensorList for each group")
    for kind, listed in vars(found).items():
        for name in listed:
            # What travels gives its file's name (protocol 7.1); what stays may have a hyphen besides.
            plain_name = str(name) if kind not in ("at_site", "at_aggregator") else str(name).replace("-", "_")
            if name == MODEL or _GROUP.fullmatch(plain_name) is None:
                raise FaultError(method.groups, f"calls a group {name!r}; a lower-case word is due, and not {MODEL}")
    return found


def require_declared(
    hook: Callable[..., object],
    where: str,
    made: Mapping[str, Mapping[str, object]],
    due: Mapping[str, Mapping[str, TensorShape]],
    also: Collection[str] = (),
) -> None:
    """Check that a method has made just the groups that are due, each with just its tensors.

    Args:
        hook: that has made them.
        where: it put them, as its author calls that.
        due: what it declares of them, by group.
        also: the groups that may be there, and are looked at elsewhere.

    Raises:
        FaultError: it has not.
    """
    for group in made:
        if group not in due and group not in also:
            raise FaultError(hook, f"wrote {where}[{group!r}], and groups() declares no such group for it")
    for group, listed in due.items():
        found = made.get(group, {})
        for name in [*listed, *found]:
            declared = f"a tensor of shape {(*listed[name].shape,)}" if name in listed else "no such tensor"
            if (there := _kind(found.get(name))) != declared:
                raise FaultError(hook, f"left in {where}[{group!r}] {there} as {name}; groups() declares {declared}")


def _kind(value: object) -> str:
    if value is None:
        return "no such tensor"
    return f"a tensor of shape {(*value.shape,)}" if isinstance(value, Tensor) else type(value).__name__


def staying(listed: Sharing, network: nn.Module) -> TensorList:
    """Return the tensors of this network that become a site's own, with the shapes that they have there."""
    state = network.state_dict()
    own = [*(key for key in listed.start if key not in listed.frozen), *listed.personal]
    return TensorList(tensors={key: _shape(state[key].shape) for key in own})


def grouped(groups: TensorLists) -> TensorList:
    """Return the tensors of several groups as those of one file: ``GROUP/NAME``."""
    return TensorList(
        tensors={f"{group}/{name}": shape for group, listed in groups.items() for name, shape in listed.tensors.items()}
    )


def _never_learns(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def _below(modules: Iterable[nn.Module]) -> set[nn.Module]:
    return {inner for module in modules for inner in module.modules()}


def _own_tensors(path: str, module: nn.Module) -> dict[str, Tensor]:
    """Return a module's own parameters and buffers by their names in the state, without its children's."""
    prefix = f"{path}." if path else ""
    own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    return {f"{prefix}{name}": tensor for name, tensor in own.items() if tensor.is_floating_point()}


def _shape(shape: tuple[int, ...]) -> TensorShape:
    return TensorShape(dtype="F32", shape=list(shape))
