"""What stays at a site: heads of different sizes, BatchNorm, θ; before, during and after crashes."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from safetensors.numpy import load_file

from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.folder.durable import hash_file
from site_client import store
from site_client.cli import main
from tests.federation.in_turns import in_turns
from tests.federation.running import POLICY, RUN, Federation, Setting, run_configuration, staging_run
from tests.federation.test_crashes import assert_folders_verify, run_killed_at_every_seam
from tests.federation.test_finished_run import assert_scores_are_those_of_the_tables, reported

AS_USUAL = POLICY.model_copy(update={"minimum_count": 5})


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A run of staging by FedUAA that nothing disturbed, its daemons stopped."""
    return in_turns(tmp_path_factory.mktemp("staging"), staging_run(), images=40, policy=AS_USUAL)


def hashes(federation: Setting) -> dict[str, str]:
    """SHA-256 of the global model and of everything that stays at a site."""
    found = {"global": federation.final_sha256()}
    for site in federation.run.sites:
        home = federation.site(site)
        for path in sorted([*home.glob("personal/*/*.safetensors"), *home.glob("final/*/model.safetensors")]):
            found[f"{site}/{path.relative_to(home)}"] = hash_file(path)[1]
    return found


def site_command(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def test_heads_and_batchnorm_never_leave_and_differ_from_site_to_site(ended: Setting) -> None:
    heads = {}
    for site, grades in (("north", 4), ("south", 6)):
        kept = load_file(ended.site(site) / "personal" / RUN / "0002.safetensors")
        assert kept["head.classify.weight"].shape == (grades, 512)
        sent = load_file(ended.folder(site) / MessageRef("update", RUN, 2).path / names.SITE_MODEL)
        assert not set(kept) & set(sent)
        assert not any("norm" in name or name.startswith("head") for name in sent)
        heads[site] = kept
    assert not (
        heads["north"]["encoder.stage1.norm.running_mean"] == heads["south"]["encoder.stage1.norm.running_mean"]
    ).all()


def test_all_sites_begin_with_the_aggregators_batchnorm(ended: Setting) -> None:
    starts = {hash_file(ended.folder(site) / MessageRef("offer", RUN).path / names.START) for site in ended.run.sites}
    assert len(starts) == 1
    listed = yaml.safe_load((ended.folder("north") / MessageRef("offer", RUN).path / names.TENSORS).read_bytes())
    assert "head.classify.weight" in listed["personal"]
    assert set(listed["start"]) == set(load_file(ended.folder("north") / MessageRef("offer", RUN).path / names.START))


def test_the_weights_are_the_softmax_of_what_the_sites_sent(ended: Setting) -> None:
    for round_no in (1, 2):
        verdicts, thetas = {}, {}
        for site in ended.run.sites:
            folder = ended.folder(site)
            verdicts[site] = json.loads(
                (folder / MessageRef("verdict", RUN, round_no).path / names.VERDICT).read_bytes()
            )
            sent = yaml.safe_load((folder / MessageRef("update", RUN, round_no).path / names.RELIABILITY).read_bytes())
            thetas[site] = sent["theta"]
            assert verdicts[site]["status"] == "accepted", verdicts[site]
            assert float(verdicts[site]["theta"]) == thetas[site]
        total = sum(math.exp(theta) for theta in thetas.values())
        for site, theta in thetas.items():
            assert float(verdicts[site]["weight"]) == pytest.approx(math.exp(theta) / total, rel=1e-12)


def test_the_report_tells_thetas_and_leaves_out_what_sites_withheld(ended: Setting) -> None:
    said = reported(ended)
    assert_scores_are_those_of_the_tables(ended, said)
    first, second, _ = said["rounds"]
    tested = first["sites"]["south"]["test"]["scores"]
    withheld = [tested[f"accuracy_of_{grade}"] for grade in range(6)]
    assert withheld == [None] * 6, "forty images of six grades: every block has images of several"
    assert tested["auroc"] is None is tested["balanced_accuracy"], "they would tell of single grades"
    assert tested["accuracy"] is not None
    for of_round in (first, second):
        thetas = {site: found["theta"] for site, found in of_round["sites"].items()}
        assert all(0 < theta <= 1 for theta in thetas.values())
        assert sum(found["weight"] for found in of_round["sites"].values()) == pytest.approx(1)
    model = said["cost"]["model"]
    assert model["image"] == [3, 32, 32]
    assert model["flops"] > 0


def test_the_kept_model_is_the_chosen_aggregate_with_the_parts_of_its_round(ended: Setting) -> None:
    card = json.loads((ended.folder("south") / MessageRef("final", RUN).path / names.CARD).read_bytes())
    home = ended.site("south") / "final" / RUN
    kept, own = load_file(home / "model.safetensors"), yaml.safe_load((home / "card.yaml").read_bytes())
    assert own["personal_round"] == own["chosen_round"] == card["chosen_round"]
    assert own["classes"][5] == "ungradable"
    for name, tensor in load_file(ended.folder("south") / MessageRef("final", RUN).path / names.FINAL_MODEL).items():
        assert (kept[name] == tensor).all()
    if own["personal_round"]:
        personal = load_file(ended.site("south") / "personal" / RUN / f"{own['personal_round']:04d}.safetensors")
        assert all((kept[name] == tensor).all() for name, tensor in personal.items())


def test_it_predicts_with_advice_and_evaluates(ended: Setting, tmp_path: Path) -> None:
    model = ended.site("south") / "final" / RUN
    theta = yaml.safe_load((model / "card.yaml").read_bytes())["theta"]
    images = ended.root / "data" / "south" / "images"
    result = site_command("predict", images, "--model", model, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    for row in rows:
        probabilities = [float(row[f"probability_{grade}"]) for grade in range(6)]
        assert sum(probabilities) == pytest.approx(1, abs=1e-3)
        if abs(float(row["uncertainty"]) - theta) > 1e-4:
            assert (row["advice"] == "refer to an ophthalmologist") == (float(row["uncertainty"]) >= theta)
    one = site_command("predict", images / f"{rows[0]['image']}.png", "--model", model, "--output", tmp_path / "one")
    assert one.stdout.startswith("1 image by the model of test-run, θ 0.")

    scores = site_command("evaluate", ended.root / "data" / "south", "--work", ended.site("south"), "--json")
    assert scores.exit_code == 0, scores.stderr
    found = json.loads(scores.stdout)
    assert found["images"] == 40
    assert {"auroc", "auroc_logits", "kappa", "misdiagnosis_auroc", "accuracy_of_5", "loss_kl"} <= set(found)
    first, every = (
        site_command("evaluate", ended.root / "data" / "south", "--work", ended.site("south"), *options).stdout
        for options in ((), ("--all",))
    )
    shown = [line.split()[0] for line in first.splitlines()]
    assert shown[:4] == ["model", "images", "auroc", "balanced_accuracy"] and shown[-1] == "(--all"
    assert f"{found['auroc']:.4f}" in first
    assert f"shows {len(found) - len(shown) + 2} more" in first  # but for whose model it is, and this line
    assert {line.split()[0] for line in every.splitlines()} == {"model", *found}


def test_one_broken_file_spoils_no_folder(ended: Setting, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for path in sorted((ended.root / "data" / "south" / "images").iterdir())[:3]:
        (images / path.name).write_bytes(path.read_bytes())
    (images / "broken.png").write_bytes(b"not an image")
    (images / "notes.txt").write_text("patients of Tuesday")
    result = site_command("predict", images, "--work", ended.site("south"), "--output", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stdout.startswith("3 images")
    assert "broken.png: cannot be read as an image" in result.stderr and "notes.txt: is neither" in result.stderr
    with (tmp_path / "out" / "predictions.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3


def test_nobody_agrees_to_what_was_not_offered(ended: Setting) -> None:
    """Neither now nor, by a slip of the pen, to a later run of that name."""
    for command in ("approve", "decline"):
        result = site_command(command, "later-run", "--work", ended.site("north"))
        assert result.exit_code == 2 and "no such run was offered" in result.stderr
    assert not (ended.site("north") / "decisions" / "later-run").exists()


def test_the_offer_says_every_setting(ended: Setting) -> None:
    offered = yaml.safe_load(
        (ended.folder("north") / MessageRef("offer", RUN).path / names.RUN_CONFIGURATION).read_bytes()
    )
    assert offered["method_options"]["temperature"] == 0.05
    assert offered["augmentation"]["rotation_degrees"] == [-30.0, 30.0]
    assert offered["task_options"]["head"] == "released"
    assert offered["split"]["train"] == 0.5


def test_wrong_use_is_one_sentence(ended: Setting, tmp_path: Path) -> None:
    model = ended.site("south") / "final" / RUN
    for arguments, words in (
        (("predict", ended.root / "data" / "south" / "labels.csv", "--model", model), "neither a PNG"),
        (("predict", ended.root, "--model", tmp_path), "holds no card.yaml"),
        (("evaluate", ended.root / "data" / "north", "--model", model), "has 4 classes, the model 6"),
        (("show", "no-such-run", "--work", ended.site("south")), "no such run was offered"),
    ):
        result = site_command(*arguments)
        assert result.exit_code in (1, 2), result
        assert words in result.stderr


def test_it_shows_what_leaves_and_what_stays(ended: Setting) -> None:
    text = site_command("show", RUN, "--work", ended.site("north")).stdout
    for words in ("dr_staging by feduaa", "reliability.yaml", "start.safetensors", "head.classify.weight"):
        assert words in text


@pytest.mark.long
@pytest.mark.timeout(900)
def test_after_crashes_at_every_seam_head_and_encoder_are_of_one_round(
    ended: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads, BatchNorm, the global model and the kept models end at the same bytes, wherever parts are kept or sent."""
    monkeypatch.setenv("DIES_AT", r"personal/|before final/|before mirror/.*from_site|start\.safetensors")
    with Federation(tmp_path, staging_run(), images=40, policy=AS_USUAL) as federation:
        died_at = run_killed_at_every_seam(federation, ["south"])
        assert hashes(federation) == hashes(ended)
        assert_folders_verify(federation)
    for seam in (
        "before personal/test-run/0001.safetensors",
        "before mirror/runs/test-run/rounds/0001/from_site/model.safetensors",
        "before mirror/runs/test-run/rounds/0001/from_site/reliability.yaml",
        "before mirror/runs/test-run/rounds/0001/from_site/manifest.json",
        "before personal/test-run/0002.safetensors",
        "before final/test-run/model.safetensors",
        "before final/test-run/card.yaml",
        "after download runs/test-run/offer/start.safetensors",
    ):
        assert seam in died_at["south"], seam


@pytest.mark.parametrize(("method", "kept"), [("scaffold", [3]), ("fedbn", [1, 2, 3])])
def test_of_whole_models_nothing_stays_from_before_the_last_accepted_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kept: list[int]
) -> None:
    monkeypatch.setattr(store, "prune_personal", lambda work, run, *, kept: None)  # as while the run goes on
    played = in_turns(tmp_path, run_configuration(method=method, rounds=3), images=8)
    for site in played.run.sites:
        stayed = sorted((played.site(site) / "personal" / RUN).iterdir())
        assert [path.name for path in stayed] == [f"{round_no:04d}.safetensors" for round_no in kept]
