"""One model to all nodes and back unchanged, several times over: the seconds of each go to a file.

The same in Flower's words as a round of the exchange benchmark; nothing is trained, nothing is averaged.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

TENSORS = 4

server = ServerApp()
client = ClientApp()


@client.train()
def echo(message: Message, _context: Context) -> Message:
    """Send back what came."""
    return Message(content=message.content, reply_to=message)


@server.main()
def measure(grid: Grid, context: Context) -> None:
    """Wait for all nodes, then send and receive."""
    sites, results = int(context.run_config["sites"]), Path(str(context.run_config["results"]))
    random = np.random.default_rng(1)
    rows = int(context.run_config["megabytes"]) * 10**6 // 4 // TENSORS // 1000
    model = ArrayRecord([random.standard_normal((rows, 1000), dtype=np.float32) for _ in range(TENSORS)])
    while len(nodes := list(grid.get_node_ids())) < sites:
        time.sleep(0.1)
    seconds = []
    for number in range(int(context.run_config["rounds"])):
        began = time.monotonic()
        messages = [
            Message(
                content=RecordDict({"model": model}),
                message_type=MessageType.TRAIN,
                dst_node_id=node,
                group_id=str(number),
            )
            for node in nodes
        ]
        replies = list(grid.send_and_receive(messages))
        seconds.append(time.monotonic() - began)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"round {number + 1}: {reply.error}")
            back = reply.content.array_records["model"].to_numpy_ndarrays()
            if not all(np.array_equal(*pair) for pair in zip(back, model.to_numpy_ndarrays(), strict=True)):
                raise RuntimeError(f"round {number + 1}: another model came back")
        if len(replies) != sites:
            raise RuntimeError(f"round {number + 1}: {len(replies)} of {sites} nodes answered")
        model = replies[0].content.array_records["model"]
    results.with_suffix(".new").write_text(json.dumps(seconds))
    results.with_suffix(".new").rename(results)
