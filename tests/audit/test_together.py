"""What one folder cannot show, and several can: each holds by itself, and against the others it does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from shared.audit.cli import main
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.signing import canonical
from shared.exchange.weights import entry_of
from tests.audit.recorded import Recorded
from tests.federation.running import run_configuration

RUN = "octa-1"


def recorded(home: Path, **settings: object) -> Recorded:
    asked: dict[str, object] = {"run": RUN, "sites": ["east", "north"], "quorum": 1, "rounds": 1}
    run = Recorded(home, run_configuration(**asked | settings)).play()
    for site in run.run.sites:
        run.beat(site)
    return run


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return recorded(tmp_path_factory.mktemp("played"))


@pytest.fixture
def folders(played: Recorded, tmp_path: Path) -> Path:
    """A copy of both folders, in which everything holds."""
    shutil.copytree(played.folders, tmp_path / "folders")
    return tmp_path / "folders"


def verified(*folders: Path) -> tuple[int, str, str]:
    """What `verify` exits with and prints."""
    result = CliRunner().invoke(main, ["verify", *map(str, folders)])
    return result.exit_code, result.stdout, result.stderr


def test_a_run_that_was_offered_otherwise_to_one_hospital_is_found(folders: Path, tmp_path: Path) -> None:
    assert verified(folders)[0] == 0
    other = recorded(tmp_path / "other", seed=99)
    shutil.rmtree(folders / "north")
    shutil.copytree(other.folders / "north", folders / "north")
    assert verified(folders / "north")[0] == 0
    offer = MessageRef("offer", RUN).path
    why = "is not what east was sent, and all hospitals of a run are offered the same"
    code, said, _ = verified(folders)
    assert (code, said) == (1, f"{folders}/north/{offer}/{names.RUN_CONFIGURATION}: {why}\n")
    document = json.loads(CliRunner().invoke(main, ["report", "--json", str(folders)]).stdout)
    assert [(each["site"], each["what"]) for each in document["findings"]] == [("north", why)]


def test_two_cards_of_one_final_model_are_found(tmp_path: Path) -> None:
    run, ref = recorded(tmp_path), MessageRef("final", RUN)
    card = run.folders / "north" / ref.path / names.CARD
    changed = FinalCard.model_validate_json(card.read_bytes()).model_copy(update={"reason": "another"})
    card.write_bytes(canonical(changed.model_dump()))
    manifest = run.messages["north", ref].manifest
    files = manifest.files | {names.CARD: entry_of(card)}
    run.sign("north", ref, manifest.model_copy(update={"files": files}))
    run.beat("north")
    assert verified(run.folders / "north")[0] == 0
    code, said, _ = verified(run.folders)
    assert code == 1
    assert said.startswith(f"{card}: is not what east was sent, and all hospitals of a run are told the same")
