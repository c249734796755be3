"""A federation of processes, one of whose sites trains by torchrun."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from shared.audit.verify import lines, verify
from shared.exchange.names import MessageRef
from shared.folder.local import LocalFolder
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.test_torchrun import TWO, assert_all_end, settle, torchrun_of, trains


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_federation_one_of_whose_sites_trains_by_torchrun(tmp_path: Path) -> None:
    """Its daemon is killed while they train."""
    with Federation(tmp_path, run_configuration(method="scaffold")) as federation:
        settle(federation.site("south"), **TWO)
        daemon = federation.start_site("south")
        federation.start_site("north")
        aggregator = federation.start_aggregator()

        def running() -> list[psutil.Process]:
            return torchrun_of(psutil.Process(daemon.pid))

        def both_train() -> bool:
            return {rank for process in running() for rank in (0, 1) if trains(process, rank)} == {0, 1}

        federation.wait_until(both_train, "two processes that train")
        orphans = running()
        daemon.kill()
        daemon.wait()
        assert_all_end(orphans)
        federation.start_site("south")
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.stop_all()
        for site in federation.run.sites:
            assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
            assert (federation.folder(site) / MessageRef("update", RUN, 1).manifest).exists()
