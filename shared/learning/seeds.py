"""Where every random number of a run comes from.

One run has one seed. Whatever is random (the split, the initial weights, the order of the batches, each augmented
copy, each dropout mask) gets a seed of its own, derived from the run's seed and from what it is for, so that nothing
depends on what else was drawn before, on the process, or on the hash seed of Python.
"""

from __future__ import annotations

import hashlib


def seed_for(run_seed: int, *purpose: int | str) -> int:
    """Return the seed for one purpose: the first 63 bits of SHA-256 over the run's seed and the purpose.

    Each part is written as its type, its length in bytes and its text, so that ("ab", "c") and ("a", "bc"), or 1 and
    "1", never meet.

    Args:
        run_seed: the seed of the run, any integer.
        purpose: what the seed is for, from general to particular: ``seed_for(7, "round", 3, "augment", "image-12")``.

    Returns:
        An integer in [0, 2**63): accepted by ``numpy.random.default_rng`` and ``torch.manual_seed``.
    """
    return int.from_bytes(_digest(run_seed, *purpose)[:8], "big") >> 1


def split_seed(run_seed: int, site: str) -> int:
    """Return the seed by which a site's blocks are dealt out to a run's sets, one for the whole run."""
    return seed_for(run_seed, site, "split")


def no_secret(run_seed: int, site: str) -> bytes:
    """Return 32 bytes in the place of a site's secret, for public images whose results must be repeatable.

    Whoever knows the seed knows how the images are divided.
    """
    return _digest(run_seed, site, "division")


def _digest(*parts: int | str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        kind = "text" if isinstance(part, str) else "number"
        text = str(part).encode()
        digest.update(f"{kind}:{len(text)}:".encode() + text)
    return digest.digest()
