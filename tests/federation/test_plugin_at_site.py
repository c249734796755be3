"""A plug-in's code at a site: whatever it does there is named, nothing leaves, and the daemon goes on."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.overview import overview
from aggregator.preparation import prepare
from aggregator.store import RunStore
from shared.errors import ActionRequiredError
from shared.exchange.names import CONSENT, MessageRef
from shared.exchange.records.run import Plugin
from shared.learning import plugins
from shared.learning.apart import QUESTION, clear_questions
from site_client.apart import answered
from site_client.commitment import divide_anew
from site_client.configuration import Policy, SiteConfiguration, read_configuration
from site_client.division import BUDGET, budget_here
from site_client.folders import UnitsIn
from site_client.heartbeat import PUBLIC_TROUBLE
from site_client.rotation import read_ledger
from site_client.store import SCRATCH
from tests import SOME_KEY
from tests.federation.hospital import Hospital
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, RUN, TASK, WAIT_S, fresh, own_logins, run_configuration, write_data
from tests.federation.test_torchrun import settle
from tests.installed_wheel import REPOSITORY, install_wheel

WHO = "plug-in dropfed-wayward 0.1.0"
MODULE = '''
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from shared.exchange.weights import entry_of
from shared.learning.tasks.octa_segmentation.task import OctaSegmentation
from site_client import train

DOES = Path({does!r}).read_text()


def spoil(network, inputs, logits):
    return logits * float("nan") if network.training else logits


def save_single_numbers(network, listed, path):
    save_file({{name: np.zeros(1, np.float32) for name in listed.tensors}}, path)
    return entry_of(path)


class Wayward(OctaSegmentation):
    """Vessels, but for what it is told to do with a site's images."""

    name = "wayward"

    def open_dataset(self, root, options, members):
        match DOES:
            case "raises":
                raise RuntimeError("of its own")
            case "hangs":
                time.sleep(600)
            case "shapes":
                train.save_tensors = save_single_numbers
        return super().open_dataset(root, options, members)

    def build_model(self, options, classes, seed):
        network = super().build_model(options, classes, seed)
        if DOES == "nan":
            network.register_forward_hook(spoil)
        return network
'''
LINE = MODULE[: MODULE.index("of its own")].count("\n") + 1  # on which it raises
STAYS = f"{WHO}: what it made of round 1 stays here, for the offer says otherwise (model.safetensors: "
FAULTS = {
    "raises": f"{WHO}: raised RuntimeError: of its own (wayward.py, line {LINE}); ask who wrote it",
    "nan": f"{STAYS}classify.bias holds a value that is not finite); ask who wrote it",
    "shapes": f"{STAYS}classify.bias is F32[1], not F32[2]); ask who wrote it",
}


@pytest.fixture
def does(tmp_path: Path) -> Path:
    """The file that says what the plug-in does."""
    (tmp_path / "does").write_text("")
    return tmp_path / "does"


@pytest.fixture
def installed(does: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where its wheel is installed, for this process and those that it starts; it is not permitted here."""
    place, modules = tmp_path / "installed", {"wayward.py": MODULE.format(does=str(does))}
    install_wheel(place, "wayward", modules, "[dropfed.tasks]\nwayward = wayward:Wayward\n", monkeypatch)
    yield place
    assert "wayward" not in sys.modules, "the daemon's own process has imported it"


@pytest.fixture
def wheel(installed: Path) -> Plugin:
    """The wheel as offers name it."""
    return plugins.described(plugins.distributions()["dropfed-wayward"])


def allowing(wheel: Plugin, **changes: object) -> Policy:
    allowed = {"plugins": {wheel.name: wheel.sha256}, "tasks": ["wayward"]}
    return POLICY.model_copy(update=allowed | changes)


def trouble(status: Path) -> str:
    """What a heartbeat of north's says."""
    told = json.loads(status.read_bytes())["body"]
    assert told["site"] == "north"
    return str(told["trouble"])


def test_a_run_goes_on_once_it_does_what_it_must(
    does: Path, installed: Path, wheel: Plugin, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    site = Hospital(tmp_path / "hospital", tmp_path / "data", task="wayward")
    here, there = site.work / "status.json", site.drop / "status.json"
    site.set_policy(allowing(wheel))
    asked = run_configuration(sites=["north"], quorum=1, tolerance=None, task="wayward", plugins=[wheel])
    run = site.offer(asked)
    site.live()
    assert site.receive(MessageRef("consent", RUN))
    site.send_round(run, 1)
    first, closing = (MessageRef("update", RUN, number) for number in (1, 2))

    # 1. It hangs.
    does.write_text("hangs")
    site.set_policy(allowing(wheel, plugin_minutes=0.01))
    too_long = f"{WHO}: took more than the 0.01 minutes that site.yaml allows one piece of its work"
    with site.living():
        site.wait_until(lambda: too_long in trouble(here))
    assert f"north: {too_long}" in caplog.text
    site.set_policy(allowing(wheel))
    with site.living():
        # 2. It raises, or what it makes of the round is no such model.
        for fault, said in FAULTS.items():
            does.write_text(fault)
            site.wait_until(lambda said=said: said in trouble(here))  # type: ignore[misc]
            site.wait_until(lambda: trouble(there) == PUBLIC_TROUBLE)
            assert f"north: {said}" in caplog.text
        assert not site.is_signed(first)
        does.write_text("")
        site.wait_until(lambda: site.is_published(first))
        site.wait_until(lambda: trouble(here) == "None")
        # 3. Its files change before the next round, and then are gone.
        assert site.receive(first)
        site.send_verdict(run, 1)
        module, about = installed / "wayward.py", installed / "dropfed_wayward-0.1.0.dist-info"
        good = module.read_bytes()
        module.write_bytes(good + b"more = 1\n")
        site.send_round(run, 2)
        differ = f"{WHO}: the files that are installed here, of 0.1.0, differ from the run's"
        site.wait_until(lambda: differ in trouble(here))
        module.write_bytes(good)
        about.rename(installed / "away")
        site.wait_until(lambda: trouble(here) == f"{WHO}: is not installed here; install its wheel")
        assert not site.is_signed(closing)
        (installed / "away").rename(about)
        # 4. It is as it was.
        site.wait_until(lambda: site.is_published(closing))
        assert site.receive(closing)
        site.send_verdict(run, 2)
        site.send_final(run)
        site.wait_until((site.work / "final" / RUN / "card.yaml").exists)
    assert trouble(here) == "None"


def test_what_names_images_lies_in_the_work_directory_and_is_cleared_away(wheel: Plugin, tmp_path: Path) -> None:
    write_data(TASK, tmp_path, 0, 4, seed=1)
    work = tmp_path / "north"
    settings = {"federation": "retina", "site": "north", "url": tmp_path.as_uri(), "user": "north"}
    site = SiteConfiguration(**settings, aggregator_key=SOME_KEY, policy=allowing(wheel))
    seen: list[str] = []

    def look(_percent: int) -> bool:
        clear_questions(work / SCRATCH)  # as a daemon does that starts while `check` asks
        seen.extend(path.name for path in (work / SCRATCH).glob("*/*"))
        return True

    question = UnitsIn(task="wayward", root=tmp_path, is_labelled=True)
    assert len(answered(question, site, [wheel], look, work / SCRATCH)) == 4
    assert QUESTION in seen
    assert list((work / SCRATCH).iterdir()) == []
    left = work / SCRATCH / "dropfed-question-killed"
    left.mkdir()
    (left / "asked.lock").touch()
    (left.parent / "dropfed-work").mkdir()
    (left / QUESTION).write_text("names of images")
    clear_questions(work / SCRATCH)
    assert [path.name for path in (work / SCRATCH).iterdir()] == ["dropfed-work"], "which is of others"


@pytest.mark.long
@pytest.mark.parametrize("fault", ["raises", "nan"])
def test_it_is_held_to_the_offer_by_torchrun_too(does: Path, wheel: Plugin, tmp_path: Path, fault: str) -> None:
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    site = Hospital(tmp_path / "hospital", tmp_path / "data", task="wayward")
    site.set_policy(allowing(wheel))
    run = site.offer(run_configuration(sites=["north"], quorum=1, tolerance=None, task="wayward", plugins=[wheel]))
    site.live()
    assert site.receive(MessageRef("consent", RUN))
    site.send_round(run, 1)
    settle(site.work, launcher="torchrun")
    does.write_text(fault)
    with pytest.raises(ActionRequiredError, match=re.escape(FAULTS[fault])):
        site.live()
    assert not site.is_signed(MessageRef("update", RUN, 1))


def test_a_lost_budget_counts_all_that_it_may_have_taken_where_it_is_gone(
    installed: Path, wheel: Plugin, tmp_path: Path
) -> None:
    write_data(TASK, tmp_path / "data", 0, 20, seed=1)
    site = Hospital(tmp_path / "hospital", tmp_path / "data", task="wayward")
    site.set_policy(allowing(wheel))
    site.offer(run_configuration(sites=["north"], quorum=1, tolerance=None, task="wayward", plugins=[wheel]))
    site.live()
    agreed = budget_here(site.work)
    (site.work / BUDGET).unlink()
    next(installed.glob("*.dist-info")).rename(tmp_path / "away")
    divide_anew(site.work, read_ledger(site.work), read_configuration(site.work))
    anew = budget_here(site.work)
    assert agreed is not None and anew is not None
    before, after = agreed.runs[RUN], anew.runs[RUN]
    assert after.sets is None and after.rows.keys() == before.rows.keys()
    assert all(after.rows[name] >= rows for name, rows in before.rows.items())


@pytest.mark.long
def test_a_site_without_it_declines_and_the_others_go_on(wheel: Plugin, tmp_path: Path) -> None:
    for number, name in enumerate(("heldout", "north", "south")):
        write_data(TASK, tmp_path / "data" / name, number, 8, seed=number)
    run = run_configuration(task="wayward", quorum=1)
    with FederationInProcess(tmp_path, run, data=tmp_path / "data", policy=allowing(wheel)) as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        allowed = {wheel.name: wheel.sha256}
        federation.change(federation.aggregator / "aggregator.yaml", plugins=allowed)
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.setenv("PYTHONPATH", str(REPOSITORY))
            work = federation.site("south")
            south = fresh(["site_client.cli", "run", "--work", str(work)], work / "output.txt")
        try:
            federation.run_to_the_end(sites=["north"])
            assert south.poll() is None
        finally:
            south.terminate()
            south.wait(WAIT_S)
    answer = federation.folder("south") / MessageRef("consent", RUN).path / CONSENT
    said = json.loads(answer.read_bytes())
    assert (said["agrees"], said["reason"]) == (False, f"{WHO}: is not installed here; install its wheel")
    assert overview(federation.aggregator).sites["south"].phase == f"declined: {said['reason']}"
    verdicts = RunStore(federation.aggregator, RUN).verdicts(1) or {}
    assert {site: verdict.status for site, verdict in verdicts.items()} == {"north": "accepted"}
    remarks = prepare(federation.aggregator, federation.aggregator / "RUN.yaml").begun.remarks
    needs = "each site needs these very files, and a policy that allows them"
    assert f"plug-in: {wheel.in_full}; {needs}" in [remark.text for remark in remarks]
