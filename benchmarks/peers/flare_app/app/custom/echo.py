"""A site of the exchange: sends every model back as it came."""

from __future__ import annotations

import nvflare.client as flare
from nvflare.client import FLModel

flare.init()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    flare.send(FLModel(params=received.params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
