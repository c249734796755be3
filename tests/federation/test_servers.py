"""A whole federation over each kind of server, by the processes that users start, ends with the same model.

So it does where no clock is right.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shared.audit.verify import verify
from shared.folder.local import LocalFolder
from tests.at_length import shown_by
from tests.federation.running import Federation, run_configuration
from tests.folder.installed import AbsentError
from tests.folder.servers import running

RUN = run_configuration(rounds=2)
SERVERS = (  # each server once, each variant once; the folder's own tests run over all of them
    "wsgidav",
    "apache-tls",
    "apache-digest",
    "nginx-tls",
    "lighttpd",
    "rclone",
    "sabre",
    "owncloud",
    "owncloud-link",
)


@pytest.fixture(scope="module")
def final_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the embedded server led to."""
    with Federation(tmp_path_factory.mktemp("embedded"), RUN, images=8) as federation:
        federation.run_to_the_end()
        return federation.final_sha256()


@pytest.mark.parametrize("name", shown_by(["apache-tls", "owncloud"], SERVERS))
def test_two_rounds(name: str, final_sha256: str, tmp_path: Path) -> None:
    try:
        with running(name) as logins, Federation(tmp_path, RUN, images=8, logins=logins) as federation:
            federation.run_to_the_end()
            audits = [verify(logins.sites[site].open()) for site in RUN.sites]
    except AbsentError as error:
        pytest.skip(str(error))
    assert federation.final_sha256() == final_sha256
    assert [audit.findings for audit in audits] == [[], []]
    assert [audit.messages for audit in audits] == [12, 12]


def test_clocks_that_disagree_by_years(final_sha256: str, tmp_path: Path) -> None:
    year_s = 365 * 86400
    runner = ("tests.federation.astray", f"aggregator={-20 * year_s},north={3 * year_s}")
    with Federation(tmp_path, RUN, images=8, runner=runner) as federation:
        federation.run_to_the_end()
        folder = LocalFolder(federation.folder("north"))
        assert verify(folder).findings == []
        years = [
            json.loads(folder.read(f"runs/{RUN.run}/{place}/manifest.json", max_bytes=1 << 20))["body"]["created"][:4]
            for place in ("offer", "consent")
        ]
    assert int(years[1]) - int(years[0]) in (22, 23)  # leap days
    assert federation.final_sha256() == final_sha256
