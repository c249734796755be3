"""Sites that come late, are not asked, or leave, in a federation of real processes, either side of which dies."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import yaml

from aggregator.store import RunStore
from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.trust import open_record
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.learning.schedules import order_of_asking
from tests.federation.running import RUN, WAIT_S, Federation, run_configuration
from tests.federation.scripted import ScriptedSite, metrics

pytestmark = pytest.mark.timeout(900)


def command(federation: Federation, side: str, *arguments: str, work: Path) -> None:
    process = federation.start(f"{side}.cli", *arguments, work=work)
    assert process.wait(WAIT_S) == 0, federation.output(work)


def has(federation: Federation, site: str, ref: MessageRef) -> bool:
    return (federation.folder(site) / ref.manifest).exists()


def rounds_in(folder: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in folder.glob(f"runs/{RUN}/rounds/*/to_site"))


def assert_folder_verifies(federation: Federation, site: str) -> None:
    assert list(lines(verify(LocalFolder(federation.folder(site))))) == []


@pytest.mark.long
def test_a_late_site_joins_a_paused_run_and_each_round_asks_two_of_three(tmp_path: Path) -> None:
    sites = ["east", "north", "south"]
    run = run_configuration(sites=sites, sites_per_round=2, rounds=4, seed=1, consent_deadline_hours=1 / 3600)
    chosen = {n: tuple(sorted(order_of_asking(run.seed, n, sites)[:2])) for n in range(2, 5)} | {5: tuple(sites)}
    assert set(chosen.values()) == {("east", "north"), ("east", "south"), ("north", "south"), tuple(sites)}
    with Federation(tmp_path, run) as federation:
        store = RunStore(federation.aggregator, RUN)
        aggregator = federation.start_aggregator()
        for site in ("north", "south"):
            federation.start_site(site)
        federation.wait_until(lambda: store.round_no == 1, "the first round")
        command(federation, "aggregator", "pause", RUN, work=federation.aggregator)
        verdict = MessageRef("verdict", RUN, 1)
        federation.wait_until(
            lambda: all(has(federation, site, verdict) for site in ("north", "south")), "the verdicts of round 1"
        )
        aggregator.kill()
        aggregator.wait()
        aggregator = federation.start_aggregator()
        federation.start_site("east")
        consent = federation.aggregator / "sites" / "east" / "mirror" / MessageRef("consent", RUN).manifest
        federation.wait_until(consent.exists, "the consent of the late site")
        time.sleep(3)  # longer than the aggregator ever waits before it decides again
        assert store.round_no == 1 and aggregator.poll() is None
        command(federation, "aggregator", "status", "--json", work=federation.aggregator)
        assert '"state": "paused"' in federation.output(federation.aggregator)
        command(federation, "aggregator", "resume", RUN, work=federation.aggregator)
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.stop_all()

        assert store.participants(1) == ("north", "south")
        assert {n: store.participants(n) for n in chosen} == chosen
        for site in sites:
            asked = [n for n in range(1, 6) if site in store.participants(n)]
            assert rounds_in(federation.folder(site)) == asked
            assert_folder_verifies(federation, site)
        card = store.card()
        assert card is not None
        assert {int(n): tuple(who) for n, who in card.took_part.items() if who} == {1: ("north", "south")} | {
            n: who for n, who in chosen.items() if n < 5
        }


def test_a_site_that_withdraws_is_not_waited_for_nor_asked_again_though_both_sides_die(tmp_path: Path) -> None:
    """Then the same folder carries another run, which the site takes part in."""
    run = run_configuration(rounds=3, quorum=1)
    with Federation(tmp_path, run) as federation:
        store, north = RunStore(federation.aggregator, RUN), federation.site("north")
        aggregator = federation.start_aggregator()
        federation.start_site("south")
        leaving = federation.start_site("north")
        federation.wait_until((north / "mirror" / MessageRef("round", RUN, 1).manifest).exists, "the first round")
        command(federation, "site_client", "withdraw", RUN, "--yes", "--reason", "moving house", work=north)
        for process in (leaving, aggregator):
            process.kill()
            process.wait()
        leaving = federation.start_site("north")
        federation.wait_until(lambda: has(federation, "north", MessageRef("withdrawal", RUN)), "the withdrawal")
        leaving.kill()
        leaving.wait()
        aggregator = federation.start_aggregator()
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        assert store.participants(4) == ("south",)
        assert not has(federation, "north", MessageRef("final", RUN))
        newest = rounds_in(federation.folder("north"))[-1]
        content = (federation.folder("north") / MessageRef("verdict", RUN, newest).path / names.VERDICT).read_bytes()
        assert open_record(content, Verdict, "").status in ("withdrawn", "accepted")
        assert all("north" not in store.participants(n) for n in range(newest + 1, 5))

        second = run.model_dump() | {"run": "second-run", "rounds": 1, "quorum": 2}
        write_file(federation.aggregator / "RUN.yaml", yaml.safe_dump(second).encode())
        federation.start_site("north")
        assert federation.start_aggregator().wait(WAIT_S) == 0, federation.output(federation.aggregator)
        card = RunStore(federation.aggregator, "second-run").card()
        assert card is not None and card.took_part["1"] == ["north", "south"]
        federation.wait_until(lambda: federation.has_final("south"), "the final model at the other site")
        assert not federation.has_final("north")
        federation.stop_all()
        for site in run.sites:
            assert_folder_verifies(federation, site)


@pytest.mark.long
def test_a_run_ends_with_its_best_model_when_too_few_sites_are_left(tmp_path: Path) -> None:
    """And where a quorum does not answer, a site that came late is asked in the open round."""
    run = run_configuration(sites=["east", "north", "south"], rounds=3, quorum=2, consent_deadline_hours=1 / 3600)
    with Federation(tmp_path, run, images=0) as federation:
        store = RunStore(federation.aggregator, RUN)
        aggregator = federation.start_aggregator()
        north, south = ScriptedSite(federation, "north"), ScriptedSite(federation, "south")
        for site in (north, south):
            site.consent()
        model = north.receive_round(1).read_bytes()
        south.receive_round(1)
        south.withdraw("no more time")
        federation.wait_until(
            (federation.aggregator / "sites/south/mirror" / MessageRef("withdrawal", RUN).manifest).exists,
            "the withdrawal to be noticed",
        )
        east = ScriptedSite(federation, "east")
        east.consent()
        east.receive_round(1)
        for site in (north, east):
            site.answer(1, {names.SITE_MODEL: model, names.METRICS: metrics(1)})
        assert [site.verdict(1).status for site in (north, east, south)] == ["accepted", "accepted", "withdrawn"]
        for site in (north, east):
            site.receive_round(2)
        north.answer(2, {names.SITE_MODEL: model, names.METRICS: metrics(2, dice=0.4)})
        east.withdraw("nor here")
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        assert east.verdict(2).status == "withdrawn" and north.verdict(2).status == "accepted"
        card = store.card()
        assert isinstance(card, FinalCard) and card.chosen_round == 0
        assert "only 1 of 3 sites were left after round 2, the quorum is 2" in card.reason
        refused = federation.start("aggregator.cli", "pause", RUN, work=federation.aggregator)
        assert refused.wait(WAIT_S) == 2
        assert "has ended already" in federation.output(federation.aggregator)
        askings = json.loads((federation.aggregator / "runs" / RUN / "rounds/0001/opened.json").read_bytes())["askings"]
        assert [asking["asked"] for asking in askings] == [["north", "south"], ["east"]]


def test_a_pause_breaks_off_an_upload_and_resume_repeats_it(tmp_path: Path) -> None:
    run = run_configuration(sites=["north"], quorum=1, task_options={"image_size": 32, "widths": [64, 128]})
    with Federation(tmp_path, run, images=5) as federation:
        north, update = federation.site("north"), MessageRef("update", RUN, 1)
        federation.change(north / "site.yaml", limits={"upload_megabits": 1.0})  # it takes more than ten seconds

        def says(phase: str) -> bool:
            path = north / names.STATUS
            return path.exists() and json.loads(path.read_bytes())["body"]["phase"] == phase

        daemon, aggregator = federation.start_site("north"), federation.start_aggregator()
        federation.wait_until(lambda: says("sending") and (north / "transfer.json").exists(), "the upload")
        assert (north / "mirror" / update.path / names.SITE_MODEL).stat().st_size > 1.3e6
        command(federation, "site_client", "pause", work=north)
        federation.wait_until(lambda: says("paused"), "the pause")
        assert not has(federation, "north", update) and not (north / "transfer.json").exists()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(WAIT_S) == 0
        federation.change(north / "site.yaml", limits={})
        command(federation, "site_client", "resume", work=north)
        federation.start_site("north")
        assert aggregator.wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.stop_all()
        assert "Trying again" not in federation.output(north)  # there was no trouble
        assert_folder_verifies(federation, "north")
