"""The same training in two processes ends at the same bytes, whatever Python's own hashes are."""

import os
import subprocess
import sys

PROGRAM = """
import torch
torch.set_num_threads(1)
from tests.learning import test_dr_staging, test_octa_segmentation
for trained in (
    test_octa_segmentation.trained(rounds=2, copies=2),
    test_dr_staging.trained(test_dr_staging.EVIDENTIAL, rounds=2),
):
    print(test_dr_staging.digest_of(trained))
print(hash("site"))
"""


def test_two_processes_end_at_the_same_bytes():
    """Of segmentation and of staging."""
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("1", "4711")
    )
    assert [len(digest) for digest in first[:2]] == [64, 64]
    assert first[:2] == second[:2]
    assert first[2] != second[2]  # Python's own hashes do differ
