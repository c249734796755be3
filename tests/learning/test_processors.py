"""What ``replay`` compares to the last digit does not depend on what the processor can: neither an instruction of its
own nor a library's code for it decides a number.

Where numpy has no such instructions to leave out, the two computations are one, and the test shows nothing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy._core import _multiarray_umath  # the one place that says which of them this build chooses from

from shared.exchange.records.tensors import TensorList, TensorShape
from shared.exchange.weights import write_tensors
from shared.learning.combinations.median import Median
from shared.learning.combinations.trimmed_mean import TrimmedMean
from shared.learning.combine import distances
from shared.learning.methods.contract import MODEL
from shared.learning.methods.mdt import solve
from shared.learning.uncertainty import reliability_weights

FEATURES = 512


def computed(scratch: Path) -> dict[str, str]:
    """Return a hash of each kind of number, here and now."""
    drawn = np.random.default_rng(0)
    weights = [
        tuple(reliability_weights(dict(zip("abcd", drawn.integers(1, 10_001, 4) / 10_000, strict=True))).values())
        for _ in range(1000)
    ]
    medians, means = [], []
    for sites in (3, 5, 7, 8, 12, 20):
        values = np.where(drawn.random((sites, 999)) < 0.5, -0.0, drawn.choice([0.0, 1e-3, -1e-3], (sites, 999)))
        for count in (1, 999):
            medians.append(Median().average(list(values[:, :count]), []).tobytes())
            means.append(TrimmedMean(0.34).average(list(values[:, :count]), []).tobytes())
    features = np.hstack([np.abs(drawn.normal(size=(120, FEATURES))), np.ones((120, 1))])
    matrix, right = (sum(row[:, None] * row for row in features), sum(features))  # no library of linear algebra here
    penalised = matrix + np.diag([0.5] * FEATURES + [0.0])
    model = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[70_001])})
    files = {site: {MODEL: scratch / f"{site}.safetensors"} for site in "abcde"}
    for of_site in files.values():
        numbers = drawn.integers(-(10**9), 10**9, 70_001).astype(np.float32)
        write_tensors(of_site[MODEL], model, lambda _, numbers=numbers: numbers)
    found = {
        "weights": repr(weights).encode(),
        "medians": b"".join(medians),
        "trimmed means": b"".join(means),
        "temperature": solve(penalised, right).tobytes(),
        "distances": repr(distances(files, {MODEL: model})).encode(),
    }
    return {what: hashlib.sha256(content).hexdigest() for what, content in found.items()}


def test_the_numbers_are_the_same_without_the_instructions_of_this_processor(tmp_path: Path) -> None:
    has = _multiarray_umath.__cpu_features__
    left_out = " ".join(name for name in _multiarray_umath.__cpu_dispatch__ if has[name])
    plain = {"NPY_DISABLE_CPU_FEATURES": left_out, "OPENBLAS_CORETYPE": "Prescott", "ATEN_CPU_CAPABILITY": "default"}
    told = subprocess.run(
        [sys.executable, "-m", "tests.learning.test_processors", str(tmp_path)],
        env=os.environ | plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [f"{what}: {digest}" for what, digest in computed(tmp_path).items()]


def test_distances_are_added_one_after_another(tmp_path: Path) -> None:
    listed = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[999])})
    drawn = np.random.default_rng(0).normal(size=(2, 999)).astype(np.float32)
    files = {site: {MODEL: tmp_path / f"{site}.safetensors"} for site in "ab"}
    for site, numbers in zip("ab", drawn, strict=True):
        write_tensors(files[site][MODEL], listed, lambda _, numbers=numbers: numbers)
    total = 0.0
    for one, other in drawn.astype(np.float64).T.tolist():
        total += (other - one) * (other - one)
    assert distances(files, {MODEL: listed}) == {("a", "b"): total}


if __name__ == "__main__":
    for kind, digest_of_kind in computed(Path(sys.argv[1])).items():
        print(f"{kind}: {digest_of_kind}")
