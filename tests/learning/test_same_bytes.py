"""The same training in two processes ends at the same bytes, whatever Python's own hashes are."""

import os
import subprocess
import sys

import torch

from shared.learning.compute import EXACT, prepare_compute
from tests.learning import test_dr_staging, test_octa_segmentation

PROGRAM = "from tests.learning.test_same_bytes import trained; print(*trained())"


def trained():
    """Train segmentation and staging; return the digest of each, and what says how Python hashes."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    prepare_compute(EXACT, 1)
    try:
        models = (
            test_octa_segmentation.trained(rounds=2, copies=2),
            test_dr_staging.trained(test_dr_staging.EVIDENTIAL, rounds=2),
        )
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
    return [*map(test_dr_staging.digest_of, models), str(hash("site"))]


def test_two_processes_end_at_the_same_bytes():
    """Of segmentation and of staging, in this process and in another."""
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") == "4711" else "4711"
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", PROGRAM]
    there = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    here = trained()
    assert [len(digest) for digest in here[:2]] == [64, 64]
    assert here[:2] == there[:2]
    assert here[2] != there[2]  # Python's own hashes do differ
