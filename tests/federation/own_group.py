"""``MODULE ARGUMENTS...``: the module, in a process group of its own, which can be halted and ended as one."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    os.setpgrp()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
