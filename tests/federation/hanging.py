"""Run a site's daemon that hangs in its second turn, until somebody has written into a pipe; all else of it lives.

python -m tests.federation.hanging PIPE MODULE ARGUMENTS...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from site_client import rounds

PIPE = Path(sys.argv[1])
_decide, _turns = rounds.decide, iter([False, True])


def decide(facts: rounds.SiteFacts) -> rounds.Action:
    """What there is to do; in the second turn, not yet."""
    if next(_turns, False):
        PIPE.read_bytes()
    return _decide(facts)


rounds.decide = decide
module = sys.argv[2]
sys.argv = [module, *sys.argv[3:]]
runpy.run_module(module, run_name="__main__", alter_sys=True)
