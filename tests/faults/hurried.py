"""The daemons' waits, made short: time is the one thing that tests of faults do not take as it is.

    python -m tests.faults.hurried MODULE ARGUMENTS...

runs a dropfed command so.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shared import polling
from shared.folder import forbearing, login, retrying, webdav

QUICKER = 7200
"""How many times as fast time goes on for locks."""
STALL_S = 2.0
POLL_S = 0.1  # for the daemons' own configuration

DEFAULTS: tuple[tuple[Any, dict[str, float]], ...] = (
    (retrying.RetryingFolder.__init__, {"first_wait_s": 0.01, "longest_wait_s": 0.1, "action_required_wait_s": 0.05}),
    (webdav.WebDavFolder.__init__, {"stall_s": STALL_S}),
)
CONSTANTS: tuple[tuple[Any, str, float | tuple[float, ...]], ...] = (
    (retrying, "LONGEST_RETRY_AFTER_S", 0.1),
    (retrying, "ROOT_SEEN_EVERY_S", 1.0),
    (polling, "SHORTEST_INTERVAL_S", 0.02),
    (login, "LEFT_ALONE_S", (0.0, 0.0, 0.1)),
    (forbearing, "LOCKED_FOR_S", forbearing.LOCKED_FOR_S / QUICKER),
    (forbearing, "LEFT_ALONE_S", forbearing.LEFT_ALONE_S / QUICKER),
)


@contextmanager
def hurried() -> Iterator[None]:
    """Shorten every wait of this process until the block ends."""
    defaults = [dict(function.__kwdefaults__) for function, _ in DEFAULTS]
    constants = [getattr(module, name) for module, name, _ in CONSTANTS]
    for function, short in DEFAULTS:
        assert short.keys() <= function.__kwdefaults__.keys()
        function.__kwdefaults__.update(short)
    for module, name, value in CONSTANTS:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (function, _), known in zip(DEFAULTS, defaults, strict=True):
            function.__kwdefaults__.update(known)
        for (module, name, _), value in zip(CONSTANTS, constants, strict=True):
            setattr(module, name, value)


if __name__ == "__main__":
    module = sys.argv[1]
    sys.argv = [module, *sys.argv[2:]]
    with hurried():
        runpy.run_module(module, run_name="__main__", alter_sys=True)
