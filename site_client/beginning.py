"""What a site begins a run with: what the offer brought, and with `at_sites` its own copy of published weights.

They are put together once, in ``WORK/start``, so that a round needs neither the file nor the time.
"""

from __future__ import annotations

from pathlib import Path

from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.mirror import Mirror
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.learning.apart import Progress, Question
from shared.learning.methods import open_method
from shared.learning.model_files import load_tensors, save_tensors
from shared.learning.sharing import network_of, published
from shared.learning.tasks import task_named
from site_client import store
from site_client.apart import answered
from site_client.configuration import SiteConfiguration


class PutTogether(Question[None]):
    """Put together what the offer brought, and published weights.

    Args:
        offered: the offer's file, checked; None where it has none.
        weights: the folder of published weights.
        path: where it goes.
    """

    run: RunConfiguration
    sharing: Sharing
    offered: Path | None
    weights: Path
    path: Path

    @property
    def step(self) -> str:
        """See ``Question``."""
        return "putting published weights into the network"

    def answer(self, on_progress: Progress) -> None:
        """See ``Question``."""
        task, method = task_named(self.run.task), open_method(self.run.method, self.run.method_options)
        network = network_of(self.run, task, method, prepare=published(self.run, task, [self.weights]))
        if self.offered is not None:
            load_tensors(network, self.sharing.offered, self.offered)
        save_tensors(network, self.sharing.beginning, self.path)


def beginning(
    work: Path, site: SiteConfiguration, ledger: Mirror, run: RunConfiguration, listed: Sharing
) -> Path | None:
    """Return what this site begins a run with, or None if nothing is.

    Raises:
        ActionRequiredError: published weights are needed, and are not in ``WORK/weights``, or others are.
    """
    offered = store.offered_start(ledger, run.run)
    if not listed.from_file:
        return offered
    path = store.start_path(work, run.run)
    if not path.exists():
        asked = PutTogether(run=run, sharing=listed, offered=offered, weights=work / store.WEIGHTS, path=path)
        try:
            answered(asked, site, run.plugins, scratch=work / store.SCRATCH)
        except ConfigurationError as error:
            raise ActionRequiredError("; ".join(error.problems)) from None
    return path
