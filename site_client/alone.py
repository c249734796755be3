"""The model that a site trains by itself beside a run, ``baseline: local``: what the federation is compared with there.

It begins as round 1's global model. In each round that the site answers it is trained as long as the federation's, on
the same images, with the same objective, batch size and learning rate; nothing that comes later enters it. It stays at
the site, and its scores leave from the second round on, beside those of the model that the round sent. A site that was
not there in the first round has none.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from shared.exchange.records.tensors import TensorList
from shared.exchange.weights import TensorFile, check_tensors, write_tensors
from shared.learning.kept_model import all_tensors
from shared.learning.methods.contract import Tensors
from shared.learning.optimizers import new_optimizer, read_memory, remembered, restore_memory

if TYPE_CHECKING:
    from site_client.train import Trainer

logger = logging.getLogger(__name__)

_MEMORY = "optimizer/"
"""What the names of what the optimizer remembers begin with, in the file."""


@dataclass(frozen=True)
class Alone:
    """That model and what its optimizer remembers."""

    trainer: Trainer
    network: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def begun(cls, trainer: Trainer, network: nn.Module) -> Alone:
        """Return the training of a site by itself, before its first step.

        Args:
            network: round 1's global model, with what the site begins with.
        """
        return cls(trainer, network, new_optimizer(network, trainer.options, trainer.run.learning_rate.initial))

    def restore(self, path: Path) -> None:
        """Go on from where a round left the training in a file.

        Raises:
            RejectedError: the file holds something else.
        """
        listed = self._listed()
        check_tensors(path, listed, str(path), largest=math.inf)  # it never travels
        file, device = TensorFile(path), self.trainer.device
        state = {name: torch.from_numpy(file.tensor(name)).to(device) for name in listed.tensors}
        self.network.load_state_dict({name: state[name] for name in self._model().tensors}, strict=False)
        restore_memory(self.optimizer, self.network, {name: state[_MEMORY + name] for name in self._memory().tensors})

    def keep(self, path: Path) -> None:
        """Write the model where the next round finds it; if it has diverged, that of the round before stays."""
        memory: Tensors = read_memory(self.optimizer, self.network) if self._memory().tensors else {}
        state = self.network.state_dict() | {_MEMORY + name: tensor for name, tensor in memory.items()}
        listed = self._listed()
        if all(state[name].isfinite().all() for name in listed.tensors):
            write_tensors(path, listed, lambda name: state[name].detach().cpu().numpy())
        else:
            logger.error("the model trained alone has diverged: that of the round before is kept")

    def _model(self) -> TensorList:
        return all_tensors(self.trainer.sharing, self.trainer.stays(self.network))

    def _memory(self) -> TensorList:
        if not self.trainer.method.options.keep_optimizer:
            return TensorList(tensors={})
        return remembered(self.optimizer, self.network)

    def _listed(self) -> TensorList:
        memory = {_MEMORY + name: shape for name, shape in self._memory().tensors.items()}
        return TensorList(tensors=self._model().tensors | memory)
