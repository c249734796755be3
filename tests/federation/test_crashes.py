"""Whatever dies, whenever it dies: the run ends with the same final model, and the folder still verifies."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from shared.audit.verify import lines, verify
from shared.folder.local import LocalFolder
from tests.federation.in_turns import in_turns
from tests.federation.running import WAIT_S, Federation, Process, run_configuration

DIED = -signal.SIGKILL
RELATIVE = run_configuration(tolerance={"below_last": 0.5})
"""What a score must exceed is measured when the first answer is looked at, and is the same after every death."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SHA-256 of the final model of a run that nothing disturbs."""
    return in_turns(tmp_path_factory.mktemp("undisturbed"), RELATIVE).final_sha256()


def assert_folders_verify(federation: Federation) -> None:
    for site in federation.run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []


@pytest.mark.long
def test_two_runs_with_the_same_seed_give_the_same_bytes(undisturbed: str, tmp_path: Path) -> None:
    """Each daemon has its own random order of sets: two of them have an interpreter of their own from the start."""
    with Federation(tmp_path, RELATIVE) as federation:
        federation.start_site("south")
        federation.fresh = True
        federation.start_site("north")
        assert federation.start_aggregator().wait(WAIT_S) == 0, federation.output(federation.aggregator)
        federation.wait_for_finals()
        federation.stop_all()
        assert federation.final_sha256() == undisturbed
        assert_folders_verify(federation)


def test_another_seed_gives_other_bytes(undisturbed: str, tmp_path: Path) -> None:
    assert in_turns(tmp_path, RELATIVE.model_copy(update={"seed": 8})).final_sha256() != undisturbed


def run_killed_at_every_seam(federation: Federation, mortals: Sequence[str]) -> dict[str, str]:
    """Run to the end while some die before every rename and after every transfer, each once, and are restarted.

    Args:
        mortals: ``aggregator``, or names of sites.

    Returns:
        The seams at which each of them died.
    """
    seams = {name: federation.root / f"{name}.seams" for name in mortals}
    starts: dict[str, Callable[[], Process]] = {
        "aggregator": lambda: federation.start_aggregator(seams.get("aggregator"))
    }
    for site in federation.run.sites:
        starts[site] = lambda site=site: federation.start_site(site, dying=seams.get(site))  # type: ignore[misc]
    running = {name: start() for name, start in starts.items()}
    deadline = time.monotonic() + 3 * WAIT_S
    while not (running["aggregator"].poll() == 0 and all(map(federation.has_final, federation.run.sites))):
        assert time.monotonic() < deadline, federation.output(federation.aggregator)
        for name, process in running.items():
            code = process.poll()
            if code is not None and not (name == "aggregator" and code == 0):
                work = federation.aggregator if name == "aggregator" else federation.site(name)
                assert code == DIED, f"{name} ended with {code}:\n{federation.output(work)}"
                running[name] = starts[name]()
        time.sleep(0.02)
    federation.stop_all()
    return {name: path.read_text() for name, path in seams.items()}


AT_AGGREGATOR = (
    "before sites/SITE/mirror/runs/test-run/rounds/0001/to_site/manifest.json",  # sign
    "after upload runs/test-run/rounds/0001/to_site/global.safetensors",  # publish
    "after create runs/test-run/rounds/0001/to_site/manifest.json",
    "after download runs/test-run/rounds/0001/from_site/model.safetensors",  # fetch
    "before sites/SITE/mirror/runs/test-run/rounds/0001/from_site/manifest.json",  # verify
    "before runs/test-run/rounds/0001/limit.json",
    "before runs/test-run/rounds/0001/closed.json",
    "before runs/test-run/rounds/0001/aggregate.safetensors",
    "before runs/test-run/final/card.json",
    "before sites/SITE/mirror/federation.json",
)
AT_SITE = (
    "before mirror/runs/test-run/rounds/0001/from_site/model.safetensors",
    "before mirror/runs/test-run/rounds/0001/from_site/manifest.json",
    "after upload runs/test-run/rounds/0001/from_site/model.safetensors",
    "after create runs/test-run/rounds/0001/from_site/manifest.json",
    "after download runs/test-run/rounds/0001/to_site/global.safetensors",
    "before mirror/runs/test-run/rounds/0001/to_site/manifest.json",
    "before mirror/runs/test-run/consent/manifest.json",
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "where",
    [
        pytest.param("|".join(map(re.escape, (*AT_AGGREGATOR, *AT_SITE))), id="each kind of seam"),
        pytest.param("", id="every seam", marks=pytest.mark.long),
    ],
)
def test_killed_at_every_seam(where: str, undisturbed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the sites is enough: both run the same code."""
    monkeypatch.setenv("DIES_AT", where)
    with Federation(tmp_path, RELATIVE) as federation:
        died_at = run_killed_at_every_seam(federation, ["aggregator", "south"])
        assert federation.final_sha256() == undisturbed
        assert_folders_verify(federation)
    assert all(seam in died_at["aggregator"] for seam in AT_AGGREGATOR), died_at
    assert all(seam in died_at["south"] for seam in AT_SITE), died_at


def has_begun(part: Path) -> bool:
    try:
        return part.stat().st_size > 0
    except FileNotFoundError:  # it has just become whole
        return False


@pytest.mark.long
@pytest.mark.timeout(600)
def test_server_killed_in_mid_transfer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The WebDAV server dies while an upload or a download is on its way, several times, and comes back."""
    large = {"image_size": 32, "widths": [32, 64, 128, 256]}  # a model of 8 MB: transfers that can be caught
    run = run_configuration(task_options=large)
    expected = in_turns(tmp_path_factory.mktemp("calm"), run, images=8).final_sha256()
    with Federation(tmp_path_factory.mktemp("stormy"), run, images=8) as federation:
        kills = {"upload": 0, "download": 0}
        over = threading.Event()

        def kill_in_mid_transfer() -> None:
            while not over.is_set():
                uploading = any(map(has_begun, federation.root.glob("folders/*/runs/*/rounds/*/*/.*")))
                downloading = any(federation.root.glob("*/*/mirror/runs/*/rounds/*/*/.*.writing")) or any(
                    federation.root.glob("aggregator/sites/*/mirror/runs/*/rounds/*/*/.*.writing")
                )
                kind = "upload" if uploading else "download" if downloading else None
                if kind is not None and kills[kind] < 3:
                    federation.kill_server()
                    kills[kind] += 1
                    time.sleep(0.2)
                    federation.start_server()
                time.sleep(0.001)

        storm = threading.Thread(target=kill_in_mid_transfer)
        storm.start()
        try:
            federation.run_to_the_end()
        finally:
            over.set()
            storm.join()
        assert kills["upload"] and kills["download"], kills
        assert federation.final_sha256() == expected
        federation.stop_all()
        assert_folders_verify(federation)
