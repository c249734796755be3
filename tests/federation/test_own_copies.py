"""A run whose sites take the published weights from their own copy: nothing of those is in any folder."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from threadpoolctl import threadpool_limits

from aggregator.model_card import export
from aggregator.preparation import prepare
from aggregator.store import RunStore
from aggregator.warm_start import start_of
from shared.audit.cli import main as audit
from shared.audit.verify import verify
from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import Start
from shared.folder.durable import hash_file, write_file
from shared.folder.local import LocalFolder
from shared.learning.kept_model import open_model
from shared.learning.models.options import published_weights
from shared.learning.run_checks import check_together
from site_client.configuration import configuration_in_force
from site_client.doctor import examine
from site_client.offer import describe
from site_client.store import runs_with, start_path
from studies.simulation import run_rounds
from tests.audit.replaying import not_same, replayed
from tests.federation.in_process import FederationInProcess
from tests.federation.in_turns import as_before
from tests.federation.running import WAIT_S, own_logins, run_configuration
from tests.federation.test_warm_start import SOURCE, VIT, published
from tests.learning.small_sites import write_small

FILE = "base.safetensors"
SITES = ("north", "south")
OWN, SENT, LATER = "own-copies", "sent", "goes-on"
"""The run whose sites take the weights from their own copy, the same without, and one that goes on from the first."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationInProcess]:
    """Three runs that have ended. North had the file from the beginning; south once its daemon had asked for it."""
    root = tmp_path_factory.mktemp("own-copies")
    weights = published(root / FILE)
    options = {"encoder": VIT, "train": {"lora": {"rank": 2}}, "hidden": [8], "image_size": 32}
    for number, name in enumerate(("heldout", *SITES)):
        write_small("fundus_disease", root / "data" / name, images=20, size=40, seed=number, site=number)
    first = run_configuration(
        run=OWN,
        task="fundus_disease",
        method="fedavg",
        sites=list(SITES),
        task_options=options | {"weights": weights | {"at_sites": True}},
        tolerance={"below_last": 0.9},
        learning_rate={"initial": 0.003, "factor": 1.0, "period": 1},
        augmentation={},
    )
    with threadpool_limits(1), FederationInProcess(root, first, data=root / "data") as federation:
        federation.set_up(own_logins(SITES, f"http://127.0.0.1:{federation.server.port}"))
        for work in (federation.aggregator, federation.site("north")):
            put(root / FILE, work)
        asked = threading.Thread(target=put_once_asked, args=(root / FILE, federation.site("south")))
        asked.start()
        federation.run_to_the_end()
        asked.join()
        store = RunStore(federation.aggregator, OWN)
        start = Start(name=OWN, sha256=hash_file(store.final_model)[1], start_sha256=hash_file(store.start)[1])
        for changed in ({"run": SENT, "task_options": options | {"weights": weights}}, {"run": LATER, "start": start}):
            federation.run = first.model_copy(update=changed)
            write_file(federation.aggregator / "RUN.yaml", dump_yaml(federation.run))
            federation.run_to_the_end()
        yield federation


def put(file: Path, work: Path) -> None:
    (work / "weights").mkdir(exist_ok=True)
    shutil.copy(file, work / "weights" / FILE)


def put_once_asked(file: Path, work: Path) -> None:
    """What people do when the log asks for the file: they look, and put another there, and then the right one."""
    for sentence in ("is not in", "is another file than the run names"):
        log, deadline = work / "log.txt", time.monotonic() + WAIT_S
        while not (log.exists() and sentence in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        write_file(work / f"{sentence}.txt", seen(work).encode())
        (work / "weights").mkdir(exist_ok=True)
        write_file(work / "weights" / FILE, b"another" if sentence == "is not in" else file.read_bytes())


def seen(work: Path) -> str:
    """What people are told of the run."""
    checked = examine(work, configuration_in_force(work), quick=True)
    return "\n".join([describe(work, OWN), *(f"{finding.grade}: {finding.text}" for finding in checked)])


def offered(federation: FederationInProcess, run: str, name: str) -> Path:
    return federation.folder("south") / MessageRef("offer", run).path / name


def test_nothing_of_the_weights_is_in_the_folders(federation: FederationInProcess) -> None:
    base = {tensor.tobytes() for tensor in load_file(federation.root / FILE).values() if tensor.size > 200}
    assert base
    for run, is_sent in ((OWN, False), (SENT, True), (LATER, False)):
        files = [load_file(path) for path in (federation.root / "folders").rglob(f"runs/{run}/**/*.safetensors")]
        sent = {tensor.tobytes() for file in files for tensor in file.values()}
        assert bool(sent & base) == is_sent
    assert {name.rpartition(".")[2] for name in load_file(offered(federation, OWN, names.START))} == {"a"}


def test_the_offer_says_so_and_one_without_the_option_says_what_it_always_said(federation: FederationInProcess) -> None:
    own, sent = (yaml.safe_load(offered(federation, run, names.TENSORS).read_bytes()) for run in (OWN, SENT))
    assert {name.rpartition(".")[2] for name in set(own["frozen"]).difference(own.pop("from_file"))} == {"a"}
    assert own == sent
    own, sent = (yaml.safe_load(offered(federation, run, names.RUN_CONFIGURATION).read_bytes()) for run in (OWN, SENT))
    assert own["task_options"]["weights"].pop("at_sites") is True
    assert own | {"run": SENT} == sent


def test_a_site_without_the_file_is_told_which_and_agrees_once_it_is_there(federation: FederationInProcess) -> None:
    work, sha256 = federation.site("south"), hash_file(federation.root / FILE)[1]
    sentences = {
        "is not in": f"weights: {FILE}, whose SHA-256 is {sha256}, is not in {work / 'weights'}; get it from {SOURCE} "
        "and put it there.",
        "is another file than the run names": f"weights: {work / 'weights' / FILE} is another file than the run names, "
        f"its SHA-256 is {hashlib.sha256(b'another').hexdigest()} and not {sha256}; get it from {SOURCE}.",
    }
    log = (work / "log.txt").read_text()
    for when, sentence in sentences.items():
        told = (work / f"{when}.txt").read_text()
        assert f"needs that file:    {sentence}\n" in told
        assert f"problem: {sentence}" in told
        assert sentence in log
    assert f"run {OWN}: agreed" in log and "declined" not in log
    shown = seen(federation.site("north"))
    assert f"needs that file:    {federation.site('north') / 'weights' / FILE}, which is the one\n" in shown
    assert "comes once, stays:  start.safetensors, 12 tensors, 1,536 numbers" in shown
    assert "weights:" not in shown.partition("every tensor")[2], "no run is open that needs it"


def test_only_the_newest_run_s_beginning_stays_at_a_site(federation: FederationInProcess) -> None:
    for site in SITES:
        work = federation.site(site)
        assert runs_with(work, "start") == [LATER]
        assert start_path(work, LATER).read_bytes() == RunStore(federation.aggregator, LATER).start.read_bytes()


def test_validate_says_that_each_site_needs_the_file(federation: FederationInProcess) -> None:
    run, weights = federation.aggregator / "RUN.yaml", published_weights(federation.run.task_options)
    told = [remark.text for remark in prepare(federation.aggregator, run).begun.remarks]
    assert (
        f"weights: each site needs {FILE}, SHA-256 {weights.sha256}, from {SOURCE}, in its WORK/weights; "
        "nothing of it is sent"
    ) in told
    assert (
        f"image_size: {VIT} was published for 160 × 160 pixels, and the run has 32; "
        "its weights may do better at their own size"
    ) in told


def test_a_run_goes_on_from_one_with_the_same_weights_alone(federation: FederationInProcess, tmp_path: Path) -> None:
    assert federation.run.start is not None
    assert start_of(federation.aggregator, federation.run, OWN) == federation.run.start
    store, later = RunStore(federation.aggregator, OWN), RunStore(federation.aggregator, LATER)
    assert later.aggregate_path(0).read_bytes() == store.final_model.read_bytes()
    others = {name: tensor + 1 for name, tensor in load_file(federation.root / FILE).items()}
    save_file(others, federation.aggregator / "weights" / "others.safetensors")
    weights = federation.run.task_options["weights"] | {
        "file": "others.safetensors",
        "sha256": hash_file(federation.aggregator / "weights" / "others.safetensors")[1],
    }
    options = federation.run.task_options | {"weights": weights}
    run = federation.run.model_copy(update={"run": "others", "task_options": options})
    write_file(tmp_path / "RUN.yaml", dump_yaml(run))
    with pytest.raises(ConfigurationError, match="has another frozen encoder than the file of weights, from which"):
        prepare(federation.aggregator, tmp_path / "RUN.yaml")


def test_it_is_simulated_with_the_same_end(federation: FederationInProcess, tmp_path: Path) -> None:
    data, run = federation.root / "data", RunStore(federation.aggregator, OWN).configuration()
    with as_before():
        torch.set_num_threads(1)
        run_rounds(
            run, {site: data / site for site in SITES}, tmp_path, heldout=data / "heldout", weights=federation.root
        )
    played, real = RunStore(tmp_path, OWN), RunStore(federation.aggregator, OWN)
    assert played.aggregate_path(1).read_bytes() == real.aggregate_path(1).read_bytes()


@pytest.mark.parametrize(
    ("task", "options"), [("fundus_disease", {"train": "all"}), ("spectrograms", {"encoder": "small"})]
)
def test_what_trains_cannot_be_left_out_of_what_travels(task: str, options: dict[str, object], tmp_path: Path) -> None:
    weights = published(tmp_path / FILE) | {"at_sites": True}
    options |= {"weights": weights}
    run = run_configuration(task=task, method="fedavg", task_options=options, augmentation={})
    with pytest.raises(ConfigurationError, match="set train to lora or head if the task has it, or leave at_sites out"):
        check_together(run)


def test_it_ends_at_the_bytes_of_the_run_that_sends_the_weights(federation: FederationInProcess) -> None:
    stores = [RunStore(federation.aggregator, run) for run in (OWN, SENT)]
    assert len({store.start.read_bytes() for store in stores}) == 1
    assert len({store.final_model.read_bytes() for store in stores}) == 1
    for site in SITES:
        final = [federation.site(site) / "final" / run / names.FINAL_MODEL for run in (OWN, SENT)]
        assert final[0].read_bytes() == final[1].read_bytes()
    exports = [federation.root / "exports" / store.run for store in stores]
    for store, folder in zip(stores, exports, strict=True):
        export(federation.aggregator, store, folder)
    models = [open_model(folder).model.state_dict() for folder in exports]
    assert all((models[0][name] == models[1][name]).all() for name in models[0])


def test_folders_verify_and_replay_with_the_file_for_scores(federation: FederationInProcess, tmp_path: Path) -> None:
    folders, heldout = federation.root / "folders", federation.root / "data" / "heldout"
    assert not any(verify(LocalFolder(folders / site)).findings for site in SITES)
    told = not_same(replayed(folders, OWN))
    assert {step.what for step in told if not step.what.startswith(("score of", "tolerance"))} <= {"first global model"}
    again = not_same(replayed(folders, OWN, heldout=heldout, weights=federation.aggregator / "weights"))
    assert again == []
    asked = ["replay", OWN, *[str(folders / site) for site in SITES], "--heldout", str(heldout)]
    refused = CliRunner().invoke(audit, asked)
    assert refused.exit_code == 2 and "name their folder by --weights" in refused.output, refused.output
    done = CliRunner().invoke(audit, [*asked, "--weights", str(federation.aggregator / "weights")])
    assert done.exit_code == 0, done.output
    page = tmp_path / "page.html"
    assert CliRunner().invoke(audit, ["report", str(folders / "south"), "--html", str(page)]).exit_code == 0
    assert page.read_text().count("took them from its own copy of published weights") == 2
