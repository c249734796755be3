"""``export``: the final model as every site got it, and a card that says only what was measured or told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aggregator.cli import main
from aggregator.model_card import model_card
from aggregator.model_card_text import card_text
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Withdrawal
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import CameLate
from shared.exchange.records.wire import Encrypt
from shared.exchange.signing import canonical, digest_of
from shared.folder.durable import hash_file, write_file
from shared.learning.tasks.terms import EXTERNAL
from tests.federation.running import run_configuration
from tests.played import RUN, Played, ended_run


def export(work: Path, output: Path, run: str = RUN) -> Result:
    return CliRunner().invoke(main, ["export", run, "--output", str(output), "--work", str(work)])


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    played, _ = ended_run(tmp_path_factory.mktemp("played"))
    return played


def store_of(played: Played) -> RunStore:
    return RunStore(played.drop.parent / "aggregator", RUN)


@pytest.fixture(scope="module")
def exported(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("exported") / "model"
    result = export(played.drop.parent / "aggregator", output)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [f"wrote {path}" for path in sorted(output.iterdir())]
    return output


@pytest.fixture(scope="module")
def card(exported: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((exported / "model-card.json").read_text(encoding="utf-8"))
    return found


def test_the_files_are_those_that_the_sites_got(played: Played, exported: Path, card: dict[str, Any]) -> None:
    final, offer = played.drop / MessageRef("final", RUN).path, store_of(played).home
    assert {path.name for path in exported.iterdir()} == {
        "model.safetensors",
        "model-card.json",
        "model-card.md",
        "run.yaml",
        "tensors.yaml",
    }
    assert (exported / "model.safetensors").read_bytes() == (final / names.FINAL_MODEL).read_bytes()
    for name in (names.RUN_CONFIGURATION, names.TENSORS):
        assert (exported / name).read_bytes() == (offer / name).read_bytes()
        assert card["inputs"]["sha256"][name] == hash_file(offer / name)[1]
    size, sha256 = hash_file(final / names.FINAL_MODEL)
    assert (card["model"]["bytes"], card["model"]["sha256"]) == (size, sha256)
    manifest = hash_file(played.drop / MessageRef("update", RUN, 1).path / names.MANIFEST)[1]
    assert card["inputs"]["contributions"] == {"north": {"round": 1, "manifest": manifest}, "south": None}
    assert card["inputs"]["final_messages"] == {"north": hash_file(final / names.MANIFEST)[1], "south": None}


def test_the_card_says_what_is_known_and_null_for_the_rest(played: Played, card: dict[str, Any]) -> None:
    north, south = card["sites"]["north"], card["sites"]["south"]
    assert (card["run"]["outcome"]["name"], card["run"]["chosen"]) == ("cannot be told", "the aggregate of round 1")
    assert (north["agreed"], north["images"], north["rounds_in_the_model"]) == (
        True,
        {"train": "12", "validation": "10"},
        [1],
    )
    assert north["validation"]["scores"] == {"dice_mean": 0.5, "dice_std": 0.1}
    assert north["software"].startswith("dropfed ")
    assert south == {
        "agreed": None,
        "withdrew": None,
        "images": {},
        "rounds_in_the_model": [],
        "epsilon": None,
        "validation": None,
        "test": None,
        "software": None,
        "gain": None,
        "test_images": None,
    }
    assert card["images"] == {"train": 12, "validation": 10, "test": None}
    assert card["run"]["rounds"] == {"planned": 1, "trained": 1, "in_the_model": 1}
    assert card["run"]["verdicts"] == {"accepted": 1, "validated": 1}
    began = json.loads((played.drop / MessageRef("round", RUN, 1).path / names.MANIFEST).read_bytes())
    assert card["run"]["began"] == began["body"]["created"] <= card["run"]["ended"]
    assert (card["model"]["parameters"], card["model"]["stays_at_sites"]) == (7, ["head.weight"])
    assert (card["privacy"], card["licence"]) == (None, None)
    assert "not for diagnosis" in card["intended_use"]
    for what in ("not a whole model", "are not anonymous"):
        assert any(what in limit for limit in card["limits"]), what


def test_a_last_update_that_came_late_is_the_one_of_the_round_before(tmp_path: Path) -> None:
    played, store = ended_run(tmp_path)
    manifest = hash_file(played.drop / MessageRef("update", RUN, 1).path / names.MANIFEST)[1]
    closed, card = store.verdicts(2), store.card()
    assert closed and card
    late = CameLate(update=manifest, score="0.9", weight="1.0", reason="")
    store.close_round(2, {"north": closed["north"].model_copy(update={"status": "late", "late": late})})
    store.write_card(card.model_copy(update={"chosen_round": 2, "took_part": {"1": [], "2": ["north"]}}))
    result = export(tmp_path / "aggregator", tmp_path / "model")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "model" / "model-card.json").read_text(encoding="utf-8"))
    assert written["inputs"]["contributions"]["north"] == {"round": 1, "manifest": manifest}


def test_the_card_for_people(exported: Path, card: dict[str, Any]) -> None:
    written = (exported / "model-card.md").read_text(encoding="utf-8").splitlines()
    text = "\n".join(" ".join(line.split()) for line in written)
    for line in (
        "# octa-1",
        f"| SHA-256 | {card['model']['sha256']} |",
        r"| rounds | 1 of 1 trained; the model is the aggregate of round 1 (best \| of all) |",
        "| north | yes | 12 | 10 | not reported | 1 | no |",
        "| south | not reported | not reported | not reported | not reported | 0 | no |",
        "| all in the model | | 12 | 10 | not reported | | |",
        "| north | 0.500 (10 images) | not reported |",
        "| licence | not reported: it is for the PI to say, before the model is handed on |",
        "The run was not private: no noise was added, and no ε is known.",
    ):
        assert line in text.splitlines(), text


def test_base_weights_are_none_only_where_that_is_known(played: Played) -> None:
    store = store_of(played)
    chosen = store.card()
    assert chosen
    found = model_card(played.drop.parent / "aggregator", store, chosen)

    def told(**changes: Any) -> str:
        return " ".join(card_text(replace(found, run=replace(found.run, **changes))).split())

    assert "| base weights | none: training began from random weights |" in told()
    start = {"name": "first", "sha256": "ab" * 32}
    begun = told(configuration={**found.run.configuration, "start": start})
    assert "| base weights | those of the model that it began with; see its card |" in begun
    for task in (EXTERNAL, "task_of_a_plugin"):
        assert "| base weights | not known: " in told(task=task)
    wheel = {"name": "encoders-of-ours", "version": "0.1.0", "sha256": "ab" * 32}
    assert "| base weights | not known: " in told(configuration={**found.run.configuration, "plugins": [wheel]})


def test_twice_is_the_same_and_nothing_is_written_over(played: Played, exported: Path, tmp_path: Path) -> None:
    work, again = played.drop.parent / "aggregator", tmp_path / "again"
    (tmp_path / ".again.writing").mkdir()  # an export that was cut off
    (tmp_path / ".again.writing" / "half").write_bytes(b"")
    assert export(work, again).exit_code == 0
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in exported.iterdir()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["again"]
    result = export(work, again)
    assert (result.exit_code, result.output) == (
        2,
        f"{again}: is there already and stays as it is; choose another folder\n",
    )


def test_a_model_that_is_not_the_sites_is_not_handed_on(played: Played, tmp_path: Path) -> None:
    work, model = played.drop.parent / "aggregator", store_of(played).final_model
    right = model.read_bytes()
    write_file(model, right[:-1] + b"x")
    try:
        result = export(work, tmp_path / "model")
    finally:
        write_file(model, right)
    assert result.exit_code == 1
    assert "the file is damaged, it is not what north was sent; put it back from sites/north/mirror" in result.output
    assert not (tmp_path / "model").exists()


def test_a_table_that_was_damaged_since_is_not_taken_as_untold(tmp_path: Path) -> None:
    played, _ = ended_run(tmp_path)
    work = played.drop.parent / "aggregator"
    table = work / "sites" / "north" / "mirror" / MessageRef("update", RUN, 2).path / names.METRICS
    table.write_bytes(b"xx")
    result = export(work, tmp_path / "model")
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "it is not as it was left here; put it back" in " ".join(result.output.split())
    assert str(table) in "".join(result.output.split())


@pytest.mark.parametrize("encrypt", ["weights", "all"])
def test_the_model_of_an_encrypted_run(tmp_path: Path, encrypt: Encrypt) -> None:
    played, store = ended_run(tmp_path, encrypt)
    work, output = tmp_path / "aggregator", tmp_path / "model"
    assert export(work, output).output.splitlines() == [f"wrote {path}" for path in sorted(output.iterdir())]
    right, sent = store.final_model.read_bytes(), played.drop / MessageRef("final", RUN).path / names.FINAL_MODEL
    assert (output / "model.safetensors").read_bytes() == right != sent.read_bytes()
    card = json.loads((output / "model-card.json").read_text(encoding="utf-8"))
    assert card["model"]["sha256"] == digest_of(right)

    write_file(store.final_model, right[:-1] + b"x")
    result = export(work, tmp_path / "damaged")
    assert "the file is damaged, it is not what north was sent" in result.output and result.exit_code == 1


def test_what_sites_say_is_no_more_than_text(tmp_path: Path) -> None:
    played, _ = ended_run(tmp_path)
    withdrawal = Withdrawal(run=RUN, reason="p < 0.05 <b>x</b> ![](http://host/x) | \\|")
    played.send("withdrawal", 0, {names.WITHDRAWAL: canonical(withdrawal.model_dump())}, "consent")
    assert export(tmp_path / "aggregator", tmp_path / "model").exit_code == 0
    text = (tmp_path / "model" / "model-card.md").read_text(encoding="utf-8")
    assert r"p < 0.05 \<b>x\</b> ![]\(http://host/x) \| \\\| |" in text


def test_a_run_without_a_final_model(played: Played, tmp_path: Path) -> None:
    work = played.drop.parent / "aggregator"
    RunStore(work, "open").begin(run_configuration(run="open"), Sharing(tensors={}, start={}, personal=[]))
    result = export(work, tmp_path / "model", "open")
    assert result.exit_code == 2
    assert result.output.startswith(
        "open has no final model: it has not ended, and `dropfed-aggregator stop open --work"
    )
    RunStore(work, "open").request_stop()
    closing = "open has no final model: it is being closed, and `dropfed-aggregator launch "
    assert export(work, tmp_path / "model", "open").output.startswith(closing)
    RunStore(work, "open").abort("nobody agreed")
    assert export(work, tmp_path / "model", "open").output == "open has no final model: nobody agreed\n"
