"""Whether a site's test images are those of the earlier run whose model a run began with, as far as is known here.

A site divides its images by the run's seed and split. With others, images that it now tests on may be among those that
the earlier model was trained on, which does better on them than it would on new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.order import consent_of
from shared.exchange.records.run import RunConfiguration

TestImages = Literal["the same", "others", "new"]
"""``new``: the site did not take part in the earlier run, whose model knows none of its images."""


def begun_with(work: Path, run: RunConfiguration) -> RunConfiguration | None:
    """Return the earlier run with whose model a run begins; None if there is none here."""
    earlier = RunStore(work, run.start.name) if run.start else None
    is_here = earlier is not None and (earlier.home / names.RUN_CONFIGURATION).is_file()
    return earlier.configuration() if earlier is not None and is_here else None


def divides_alike(run: RunConfiguration, other: RunConfiguration) -> bool:
    """Return whether two runs divide the same images into the same sets, of whose training sets one may take less."""
    return run.seed == other.seed and _split_of(run) == _split_of(other)


def _split_of(run: RunConfiguration) -> dict[str, object]:
    return {key: value for key, value in run.split.items() if key != "train_images"}


def same_test_images(work: Path, run: RunConfiguration, ledgers: Mapping[str, Mirror]) -> dict[str, TestImages]:
    """Return which test images each site has, beside those of the run whose model this one began with; of no site if
    that run is not here.
    """
    earlier = begun_with(work, run)
    if earlier is None:
        return {}
    return {site: _of_site(ledger, run, earlier) for site, ledger in ledgers.items()}


def _of_site(ledger: Mirror, run: RunConfiguration, earlier: RunConfiguration) -> TestImages:
    before, now = consent_of(ledger, earlier.run), consent_of(ledger, run.run)
    if before is None or not before.agrees:
        return "new"
    is_same = now is not None and now.images == before.images and divides_alike(run, earlier)
    return "the same" if is_same else "others"
