"""Runs in which sites train by a program of their own, outside dropfed: what they may ask, and what is handed over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from shared.exchange.records.run import RunConfiguration
from shared.learning.data.units import Listed
from shared.learning.methods.contract import Method
from shared.learning.plugins import required_by
from shared.learning.tasks.terms import EXTERNAL, Options

_HOOKS = (
    *("network", "stays", "personal", "groups", "measure", "begin", "phases", "answer", "correction", "finish"),
    "ready",
)
"""What a method may do at a site beside plain training."""


@runtime_checkable
class Listing(Protocol):
    """A task whose files can be handed to a program as they lie there."""

    def listed(self, root: Path, options: Options) -> Sequence[Listed]:
        """Return what a labelled folder holds.

        Raises:
            DataError: names every problem.
        """


def objections(run: RunConfiguration, task: object, method: Method) -> list[str]:
    """Return why a run's sites cannot train by a program, each a sentence; or why they must."""
    if run.trainer is None:
        needs = f"task: {EXTERNAL} is of networks that dropfed cannot train; add `trainer: {{name: NAME}}`"
        return [needs] if run.task == EXTERNAL else []
    problems = []
    if run.privacy is not None:
        what = "nobody knows what a program outside dropfed takes of each image"
        problems.append(f"privacy: {what}, so its noise cannot be reckoned; leave out privacy, or trainer")
    if required_by(run):
        problems.append("trainer: a plug-in trains in a process of its own; leave out the plug-in, or trainer")
    elif not isinstance(task, Listing):
        problems.append(f"trainer: {run.task} has no files to hand to a program; take a task of images, or {EXTERNAL}")
    if any(getattr(type(method), hook) is not getattr(Method, hook) for hook in _HOOKS) or method.sends_reliability:
        trains = f"{run.method} does more at a site than train a network, and a program knows nothing of that"
        problems.append(f"trainer: {trains}; take mean, fedavg, dataweightedfed or sequential")
    if method.options.keep_optimizer or method.options.fine_tuning_epochs:
        problems.append("method_options: a program trains; set keep_optimizer to false and fine_tuning_epochs to 0")
    if run.task == EXTERNAL:
        problems += _of_unknown_networks(run)
    return problems


def _of_unknown_networks(run: RunConfiguration) -> list[str]:
    problems = []
    if run.tolerance is not None:
        problems.append(f"tolerance: dropfed cannot score a network of {EXTERNAL}; set `tolerance: null`")
    if run.start is None:
        problems.append(
            f"start: {EXTERNAL} has no first model; name a file of its tensors, {{name: NAME, sha256: HEX}}"
        )
    if run.trainer is not None and run.trainer.sites is not None:
        problems.append(f"trainer: sites: every site of {EXTERNAL} trains by a program; leave it out")
    return problems
