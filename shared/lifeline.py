"""``torchrun`` that ends when whoever started it does, as do the processes that it starts.

All have the reading end of one pipe as their standard input; whoever started them alone holds the other end.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time


def end_with_starter(grace_s: float = 0.0) -> None:
    """End this process so long after nobody holds the other end of its standard input any more."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        time.sleep(grace_s)
        end(1)

    threading.Thread(target=wait, daemon=True).start()


def end(code: int) -> None:
    """End this process without waiting for others, or for threads that wait for them."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    from torch.distributed.run import main

    end_with_starter(grace_s=2.0)  # in which it sees its processes end, and itself ends in order
    main(sys.argv[1:])
