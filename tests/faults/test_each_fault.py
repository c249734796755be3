"""Each kind of fault for a while, in the middle of a federation: the log says in a sentence what was wrong, once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.at_length import shown_by
from tests.faults.runs import run_in, tiny_run
from tests.faults.storm import KINDS, OF_TLS, Outage, Weather, aggregator_at, undisturbed
from tests.federation.running import Setting

FAILED = "The connection to .* failed: .*"
BUSY = "cannot do {method} now: "
LOCKED = "cannot do [A-Z]+ now: 423 Locked"  # told when it lasts, of whatever is asked then

SAID: dict[str, tuple[str | None, str | None]] = {
    # kind: what a site says that sends, and the aggregator that fetches; None: nothing is wrong enough to be told
    "refused": (FAILED, FAILED),
    "delayed": (None, None),
    "stalled": (None, "stood still: fewer than 256 bytes moved in 2 s"),  # of an upload's answer, the status is enough
    "dripping": (None, None),
    "request cut": (FAILED, FAILED),
    "answer cut": (FAILED, f"{FAILED}|was cut off after"),
    "answer lost": (FAILED, FAILED),
    "truncated, right length": (None, FAILED),
    "truncated, wrong length": (None, "sent a listing that is not whole|came with"),
    "truncated, no length": (None, "ended after|sent a listing that is not whole"),
    "duplicated": (None, None),
    "401": (
        "refuses user '{site}' or the password: correct user or url in site.yaml",
        "refuses user 'aggregator' or the password",
    ),
    "403": ("forbids PUT to user '{site}': have the folder's owner permit it", "forbids GET to user 'aggregator'"),
    "404": ("is not there", "is not there: check the address, and that the folder is still shared"),
    "409": (BUSY + "409", BUSY + "409"),
    "412": (BUSY + "412", BUSY + "412"),
    "413": ("is larger than the server accepts: have its upload limit raised", "is larger than the server accepts"),
    "423": (LOCKED, LOCKED),
    "429": (BUSY + "429 Too Many Requests", BUSY + "429 Too Many Requests"),
    "500": (BUSY + "500", BUSY + "500"),
    "502": (BUSY + "502", BUSY + "502"),
    "maintenance": (BUSY + "503", BUSY + "503"),
    "504": (BUSY + "504", BUSY + "504"),
    "507": ("There is no room left for .*: free some space or have the quota raised", "There is no room left"),
    "login page": ("answers PUT with a web page", "answers GET with a web page"),
    "expired certificate": ("The certificate of .* is not valid .*expired", "The certificate of .* is not valid"),
    "wrong host": ("The certificate of .* is not valid .*127.0.0.1", "The certificate of .* is not valid"),
}
LENGTHS = {"stalled": 1, "404": 80, "423": 20} | dict.fromkeys((kind for kind in KINDS if "truncated" in kind), 4)
"""Requests in a row: a missing folder is looked for now and then only, and a lock is told that lasts. A site sends a
message by four, and would tell of the listing after them.
"""


def test_every_kind_is_tested() -> None:
    assert SAID.keys() == KINDS.keys()


def in_pairs(kinds: list[str]) -> list[tuple[str, ...]]:
    """A federation has two sites, and each can have a fault of its own."""
    return [tuple(kinds[at : at + 2]) for at in range(0, len(kinds), 2)]


PAIRS = [
    *in_pairs([kind for kind in KINDS if kind not in OF_TLS]),
    *in_pairs([kind for kind in KINDS if kind in OF_TLS]),
]


FEW = [("answer lost", "truncated, right length"), ("413", "423"), ("expired certificate", "wrong host")]


@pytest.mark.parametrize("kinds", shown_by(FEW, PAIRS), ids=" and ".join)
def test_the_log_says_what_was_wrong_and_when_it_was_over(kinds: tuple[str, ...], tmp_path: Path) -> None:
    of_site, outages = dict(zip(tiny_run().sites, kinds, strict=False)), {}
    for site, kind in of_site.items():
        outages[site] = Outage(kind, "PUT", "metrics.csv", LENGTHS.get(kind, 5))
        outages[aggregator_at(site)] = Outage(kind, "GET", "metrics.csv", LENGTHS.get(kind, 5))
    weather = Weather(lambda client: outages.get(client, undisturbed), tls=kinds[0] in OF_TLS)
    outcome = run_in(weather, tmp_path)
    assert not outcome.problems, "\n".join([*outcome.problems, outcome.journal])
    setting = Setting(tmp_path)
    of_aggregator = (setting.aggregator / "log.txt").read_text().splitlines()
    for site, kind in of_site.items():
        assert outcome.faults[kind] == 2 * LENGTHS.get(kind, 5), outcome.journal
        of_folder = "\n".join(line for line in of_aggregator if f" {site}: " in line)
        logs = (((setting.site(site) / "log.txt").read_text(), "PUT"), (of_folder, "GET"))
        for (log, method), said in zip(logs, SAID[kind], strict=True):
            if said is None:
                assert "Trying again until it works" not in log
            else:
                told = said.format(method=method, site=site)
                assert re.search(told, log), log
                assert "the folder can be used again" in log
