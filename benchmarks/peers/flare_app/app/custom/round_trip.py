"""One model to all clients and back unchanged, several times over: the seconds of each go to a file.

The same in FLARE's words as a round of the exchange benchmark; nothing is trained, nothing is averaged.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

TENSORS = 4


class RoundTrip(ModelController):
    """The server's workflow."""

    def __init__(self, megabytes: int, sites: int, rounds: int, results: str) -> None:
        super().__init__()
        self.megabytes = megabytes
        self.sites = sites
        self.rounds = rounds
        self.results = results

    def run(self) -> None:
        """Send and receive."""
        random = np.random.default_rng(1)
        rows = self.megabytes * 10**6 // 4 // TENSORS // 1000
        model = {
            f"layer{number}": random.standard_normal((rows, 1000), dtype=np.float32) for number in range(1, TENSORS + 1)
        }
        clients = self.sample_clients(self.sites)
        seconds = []
        for number in range(self.rounds):
            sent = FLModel(params=model, current_round=number, total_rounds=self.rounds)
            began = time.monotonic()
            answers = self.send_model_and_wait(targets=clients, data=sent)
            seconds.append(time.monotonic() - began)
            if len(answers) != self.sites:
                raise RuntimeError(f"round {number + 1}: {len(answers)} of {self.sites} clients answered")
            for answer in answers:
                if not all(np.array_equal(answer.params[name], model[name]) for name in model):
                    raise RuntimeError(f"round {number + 1}: another model came back")
            model = dict(answers[0].params)
        results = Path(self.results)
        results.with_suffix(".new").write_text(json.dumps(seconds))
        results.with_suffix(".new").rename(results)
