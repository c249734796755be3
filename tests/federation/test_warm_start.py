"""Two runs, one after the other: updates of low rank to a published network, and then on from the first run's model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file
from safetensors.torch import save_file

from aggregator.cli import main as aggregator
from aggregator.model_card import export
from aggregator.preparation import prepare
from aggregator.store import RunStore
from aggregator.warm_start import load_start
from shared.audit.verify import verify
from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration, Start
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from shared.learning.models.encoders import build_encoder
from shared.learning.tasks import task_named
from site_client.cli import main
from site_client.offer import describe
from tests.audit.replaying import not_same, replayed
from tests.federation.in_turns import in_turns
from tests.federation.running import Setting, staging_run

VIT = "timm:test_vit"
SOURCE, LICENCE = "https://example.org/base", "CC BY 4.0"


def published(path: Path) -> dict[str, str]:
    """Write a network's tensors as somebody might publish them; return what a run says of the file."""
    torch.manual_seed(3)
    save_file(build_encoder(VIT, 32).get_submodule("network").state_dict(), path)
    return {"file": path.name, "sha256": hash_file(path)[1], "source": SOURCE, "licence": LICENCE}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Two runs that have ended; the second began with the first one's model."""
    root = tmp_path_factory.mktemp("warm")
    (root / "weights").mkdir()
    options = {
        "encoder": VIT,
        "weights": published(root / "weights" / "base.safetensors"),
        "train": {"lora": {"rank": 4}},
        "head": "linear",
        "image_size": 32,
        "optimizer": "adam",
    }
    first = staging_run(run="first", method="fedbn", rounds=1, task_options=options, tolerance=None)
    ended = in_turns(root, first, weights=root / "weights")
    of_first = RunStore(ended.aggregator, "first")
    start = Start(name="first", sha256=hash_file(of_first.final_model)[1], start_sha256=hash_file(of_first.start)[1])
    second = first.model_copy(update={"run": "second", "seed": 8, "start": start})
    return in_turns(root, second, data=ended.data, weights=root / "weights")


def test_the_second_run_begins_where_the_first_one_ended(federation: Setting) -> None:
    first, second = (RunStore(federation.aggregator, run) for run in ("first", "second"))
    assert second.aggregate_path(0).read_bytes() == first.final_model.read_bytes()
    assert (
        second.start.read_bytes() == first.start.read_bytes()
    )  # though it has another seed, which would draw another A
    learnt = load_file(second.aggregate_path(0))
    assert {name.rpartition(".")[2] for name in learnt} == {"b"}
    assert any(tensor.any() for tensor in learnt.values())
    base = load_file(second.start)
    file = load_file(federation.aggregator / "weights" / "base.safetensors")
    assert (base["encoder.network.norm.weight"] == file["norm.weight"]).all()
    assert (
        base["encoder.network.blocks.0.attn.qkv.parametrizations.weight.original"] == file["blocks.0.attn.qkv.weight"]
    ).all()


def test_folders_verify_and_the_second_run_replays_from_the_model_that_it_names(
    federation: Setting,
) -> None:
    folders = federation.root / "folders"
    assert not any(verify(LocalFolder(folders / site)).findings for site in federation.run.sites)
    steps = replayed(folders, "second")
    assert not_same(replayed(folders, "first")) == [] and not_same(steps) == []
    step = {step.what: step for step in steps if step.round == 0}["first global model"]
    assert (step.outcome, "the model of first that the run names" in step.detail) == ("same", True)


def test_where_it_comes_from_is_said_everywhere(federation: Setting, tmp_path: Path) -> None:
    start = federation.run.start
    assert start is not None
    offered = (federation.folder("north") / MessageRef("offer", "second").path / names.RUN_CONFIGURATION).read_bytes()
    assert parse_yaml(offered, RunConfiguration, "run.yaml").start == start
    shown = describe(federation.site("north"), "second")
    assert f"begins with:        the model of first, SHA-256 {start.sha256}" in shown
    assert f"pretrained weights: base.safetensors, from {SOURCE}; licence: {LICENCE}" in shown
    export(federation.aggregator, RunStore(federation.aggregator, "second"), tmp_path / "model")
    card = (tmp_path / "model" / "model-card.md").read_text()
    assert f"the model of first, SHA-256 {start.sha256}" in card
    assert f"base.safetensors from {SOURCE}" in card and f"licence: {LICENCE}" in card
    document = json.loads((tmp_path / "model" / "model-card.json").read_text())
    assert document["run"]["configuration"]["start"]["name"] == "first"


def test_validate_says_what_a_run_begins_with_and_that_no_batch_norm_stays(federation: Setting) -> None:
    told = [remark.text for remark in prepare(federation.aggregator, federation.aggregator / "RUN.yaml").begun.remarks]
    assert federation.run.start is not None
    assert f"start: training begins with the model of first, SHA-256 {federation.run.start.sha256}" in told
    assert not any("learnt nothing yet" in text for text in told)
    assert (
        "method: fedbn keeps each site's BatchNorm there, and this network has none that learns: "
        "all that learns but the head travels"
    ) in told


def test_new_run_writes_what_begins_with_an_earlier_model(federation: Setting, tmp_path: Path) -> None:
    output, work = tmp_path / "RUN.yaml", str(federation.aggregator)
    asked = ["new-run", "--work", work, "--method", "fedbn", "--defaults", "--output", str(output), "--start"]
    said = CliRunner().invoke(aggregator, [*asked, "first"])
    assert said.exit_code == 0, said.output
    written = parse_yaml(output.read_bytes(), RunConfiguration, "RUN.yaml")
    assert (written.start, written.task) == (federation.run.start, "dr_staging")
    assert written.task_options["train"] == {"lora": {"rank": 4, "on": ["attention"]}}
    checked = CliRunner().invoke(aggregator, ["validate", str(output), "--work", work])
    assert checked.exit_code == 0, checked.output
    output.unlink()
    exported = federation.aggregator / "weights" / "elsewhere"
    export(federation.aggregator, RunStore(federation.aggregator, "first"), exported)
    assert CliRunner().invoke(aggregator, [*asked, str(exported)]).exit_code == 0
    written = parse_yaml(output.read_bytes(), RunConfiguration, "RUN.yaml")
    assert written.start is not None and (written.start.name, written.start.sha256) == (
        "elsewhere",
        hash_file(exported / names.FINAL_MODEL)[1],
    )
    output.unlink()
    for start, sentence in (
        (
            str(tmp_path / "model"),
            f"put that folder into {federation.aggregator / 'weights'}, and name it by its place",
        ),
        ("nowhere", "start: nowhere is no run here that has ended with a model"),
    ):
        refused = CliRunner().invoke(aggregator, [*asked, start])
        assert (refused.exit_code, output.exists()) == (2, False)
        assert sentence in refused.output
    shutil.rmtree(exported)


def test_the_final_model_predicts_at_a_site(federation: Setting, tmp_path: Path) -> None:
    site, images = federation.site("north"), federation.root / "data" / "north" / "images"
    asked = ["predict", str(images), "--work", str(site), "--output", str(tmp_path / "predicted")]
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2 and "holds several models (first, second)" in refused.output
    result = CliRunner().invoke(main, [*asked, "--model", str(site / "final" / "second")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "predicted" / "predictions.csv").read_text().count("\n") > 10


def test_another_aggregator_goes_on_from_what_was_exported_and_from_nothing_else(
    federation: Setting, tmp_path: Path
) -> None:
    exported, store = tmp_path / "weights" / "first", RunStore(federation.aggregator, "first")
    export(federation.aggregator, store, exported)
    task, run = task_named(federation.run.task), federation.run
    model = task.build_model(task.options(run.task_options), 2, 1)
    start = run.start
    assert start is not None

    def begin(start: Start) -> None:
        load_start(model, store.sharing(), start, tmp_path)

    begin(start)
    learnt = load_file(store.final_model)
    assert all((model.state_dict()[name].numpy() == tensor).all() for name, tensor in learnt.items())
    other = "0" * 64
    with pytest.raises(ConfigurationError, match=f"start: sha256: .* has the SHA-256 {start.sha256}, not {other}"):
        begin(start.model_copy(update={"sha256": other}))
    with pytest.raises(ConfigurationError, match=r"start_sha256: .*start\.safetensors has .* and the run says none"):
        begin(start.model_copy(update={"start_sha256": None}))
    wider = task.build_model(task.options(run.task_options | {"train": {"lora": {"rank": 5}}}), 2, 1)
    with pytest.raises(ConfigurationError, match="a run begins with a model of its own task, encoder and train"):
        load_start(wider, store.sharing().model_copy(update={"tensors": {}}), start, tmp_path)
    (exported / names.START).unlink()
    with pytest.raises(ConfigurationError, match="this run needs what comes but once; export it anew"):
        begin(start)
    with pytest.raises(ConfigurationError, match="start: first is no run here that has ended with a model"):
        load_start(model, store.sharing(), start, tmp_path / "nowhere")
