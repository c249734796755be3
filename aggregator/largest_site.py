"""Whether a run's rounds may close without the site that has the most images, as far as anybody here knows that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from aggregator.site import open_ledger
from aggregator.store import configurations_of
from aggregator.survey import kept_sheet
from shared.check import Finding
from shared.errors import RejectedError
from shared.exchange.mirror import Mirror
from shared.exchange.order import consent_of
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import most


def about_largest_site(work: Path, run: RunConfiguration) -> Iterator[Finding]:
    """Warn where a quorum of answers may lack the site that has more images than any other."""
    if run.quorum == len(run.sites) or run.may_pass_over:  # who is asked is the PI's choice
        return
    told = known_images(work, run)
    largest = max(told, key=lambda site: told[site], default=None)
    if largest is None or sorted(told.values())[-2:] == [told[largest]] * 2:
        return
    share = told[largest] / sum(told.values())
    yield Finding(
        "warning",
        f"quorum: {run.quorum} of {len(run.sites)} sites may close a round without {largest}, which has {share:.0%} of "
        f"the images; with `quorum: {len(run.sites)}` a round waits for every site",
    )


def known_images(work: Path, run: RunConfiguration) -> Mapping[str, int]:
    """Return how many images each site of a run has: as their last sheets say, or else as they told with their consent
    to the newest run of this task; empty where neither is known of all.
    """
    ledgers = {site: open_ledger(work / "sites" / site) for site in run.sites}
    opened = {site: ledger for site, ledger in ledgers.items() if ledger is not None}
    if len(opened) < len(run.sites):
        return {}
    sources = [
        {site: _surveyed(ledger, run.task) for site, ledger in opened.items()},
        *(
            {site: _consented(ledger, earlier.run) for site, ledger in opened.items()}
            for earlier in configurations_of(work, run.task)
        ),
    ]
    for source in sources:
        found = {site: count for site, count in source.items() if count is not None}
        if len(found) == len(run.sites):
            return found
    return {}


def _surveyed(ledger: Mirror, task: str) -> int | None:
    try:
        sheet = kept_sheet(ledger, task)
    except RejectedError:  # `survey --report` tells of it
        return None
    return None if sheet is None else most(sheet.images)


def _consented(ledger: Mirror, run: str) -> int | None:
    consent = consent_of(ledger, run)
    return consent.training_images if consent is not None and consent.agrees else None
