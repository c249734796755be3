"""Federations whose payloads are encrypted in the folders: the same model, and nobody else can read a thing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from aggregator.launch import prepare_daemon
from aggregator.setup import encryption_key
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange import names
from shared.exchange.encryption import EncryptionKey
from shared.exchange.names import MessageRef
from shared.exchange.records.wire import Encrypt, Wire
from shared.exchange.signing import SigningKey
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from site_client.offer import describe
from tests.at_length import shown_by
from tests.audit.replaying import not_same, replayed
from tests.federation.hospital import Hospital
from tests.federation.in_turns import in_turns
from tests.federation.running import POLICY, RUN, TASK, Federation, Setting, own_logins, run_configuration, write_data
from tests.federation.test_crashes import run_killed_at_every_seam

WIRE = Wire(difference=True, compression="zstd")


def ended(home: Path, encrypt: Encrypt) -> Setting:
    return in_turns(home, run_configuration(encrypt=encrypt, wire=WIRE if encrypt == "all" else Wire()))


@pytest.fixture(scope="module")
def plain_sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the final model of the run in plain text."""
    federation = ended(tmp_path_factory.mktemp("plain"), "none")
    assert readable_weights(federation.folder("north"))
    return federation.final_sha256()


def readable_weights(folder: Path) -> list[Path]:
    """Files that begin as a tensor file does: with the length of its header, then that."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if path.read_bytes()[4:10] == b'\0\0\0\0{"']


def assert_all_opens(root: Path, run_sites: list[str], aggregator: Path) -> None:
    key = EncryptionKey.at(aggregator / "encryption.key")
    for site in run_sites:
        assert readable_weights(root / site) == []
        audit = verify(LocalFolder(root / site), secret_key=key)
        assert audit.findings == []
        assert audit.opened == audit.encrypted > 0
    for folders, secret_key in ((root, aggregator / "encryption.key"), (aggregator, None)):
        steps = replayed(folders, RUN, secret_key=secret_key)
        assert not [step for step in not_same(steps) if not step.what.startswith("score of ")]
    with pytest.raises(ConfigurationError, match="is encrypted: name a key"):
        replayed(root, RUN)


@pytest.mark.parametrize("encrypt", shown_by(["all"], ["weights", "all"]))
def test_the_model_is_the_same_byte_for_byte(plain_sha256: str, tmp_path: Path, encrypt: Encrypt) -> None:
    federation = ended(tmp_path, encrypt)
    assert federation.final_sha256() == plain_sha256
    assert_all_opens(tmp_path / "folders", federation.run.sites, federation.aggregator)
    for home in (federation.aggregator, *map(federation.site, federation.run.sites)):
        assert not [path for path in home.rglob("ciphertext/**/*") if path.is_file()], "what has arrived is kept twice"
    ref = MessageRef("round", RUN, 1)
    entries = [
        json.loads((federation.folder(site) / ref.manifest).read_bytes())["body"]["files"][names.GLOBAL_MODEL]
        for site in federation.run.sites
    ]
    assert entries[0]["sha256"] == entries[1]["sha256"], "one ciphertext serves every folder"
    assert entries[0]["encrypted"] != entries[1]["encrypted"], "each site has the key in a wrapping of its own"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_who_dies_with_ciphertext_on_its_way_goes_on(
    plain_sha256: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "DIES_AT", r"ciphertext/.*(global|model|metrics)|ciphertext/0|rounds/0001/from_site/(mo|man|met)"
    )
    with Federation(tmp_path, run_configuration(encrypt="all")) as federation:
        died_at = run_killed_at_every_seam(federation, ["aggregator", "north"])
        assert federation.final_sha256() == plain_sha256
        assert_all_opens(tmp_path / "folders", federation.run.sites, federation.aggregator)
    update = "runs/test-run/rounds/0001/from_site"
    assert "before runs/test-run/ciphertext/0.safetensors" in died_at["aggregator"]
    assert f"before sites/SITE/ciphertext/{update}/model.safetensors" in died_at["aggregator"]
    for seam in (f"before ciphertext/{update}/model.safetensors", f"after upload {update}/model.safetensors"):
        assert seam in died_at["north"]


def test_a_site_without_a_key_is_told_of_at_launch(tmp_path: Path) -> None:
    """Its card shows none; the run is refused before anything is offered."""
    federation = Setting(tmp_path, run_configuration(encrypt="weights"))
    federation.set_up(own_logins(federation.run.sites, "http://127.0.0.1:1"))
    key = SigningKey.at(federation.aggregator / "signing.key")
    for site in federation.run.sites:
        own = SigningKey.at(federation.site(site) / "signing.key")
        mirror = federation.aggregator / "sites" / site / "mirror"
        card = json.loads((federation.site(site) / "mirror" / names.SITE_CARD).read_bytes())["body"]
        write_file(mirror / names.SITE_CARD, own.sign(card | {"encryption_key": None}))
        body = {"federation": "retina", "site": site, "aggregator_key": key.public, "site_key": own.public}
        files = {names.README: {"size": 1, "sha256": "aa" * 32}}
        more = {"protocol": 2, "kind": "federation", "created": card["created"], "files": files}
        more["aggregator_encryption_key"] = None
        write_file(mirror / names.FEDERATION, key.sign(body | more))
    with pytest.raises(ConfigurationError) as refusal:
        prepare_daemon(federation.aggregator, federation.aggregator / "RUN.yaml", threading.Event())
    assert [problem.split(", but ")[1].split(" and ")[0] for problem in refusal.value.problems] == ["north", "south"]
    assert not (federation.aggregator / "runs").exists()


def test_a_lost_key_is_not_made_anew(tmp_path: Path) -> None:
    federation = ended(tmp_path, "weights")
    (federation.aggregator / "encryption.key").unlink()
    run_yaml = federation.aggregator / "RUN.yaml"
    as_it_was = run_yaml.read_text()
    assert "encrypt: weights" in as_it_was
    for text in (as_it_was, as_it_was.replace("encrypt: weights", "encrypt: none")):
        run_yaml.write_text(text)
        with pytest.raises(ConfigurationError) as refusal:
            prepare_daemon(federation.aggregator, run_yaml, threading.Event())
        assert [p for p in refusal.value.problems if "encryption.key" in p] == [
            f"{federation.aggregator / 'encryption.key'} is missing: put this very key back from a backup, another "
            "will not do"
        ]
    with pytest.raises(ActionRequiredError, match=r"encryption\.key is missing: put this very key back"):
        encryption_key(federation.aggregator)


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    write_data(TASK, tmp_path / "images", 0, images=12, seed=1)
    return Hospital(tmp_path / "home", tmp_path / "images")


def test_a_hospital_may_demand_encryption(hospital: Hospital) -> None:
    hospital.set_policy(POLICY.model_copy(update={"encryption": "required"}))
    plain = hospital.offer(run_configuration(run="plain", sites=["north"], quorum=1))
    hospital.live()
    consent = json.loads((hospital.drop / MessageRef("consent", plain.run).path / names.CONSENT).read_bytes())
    assert consent["agrees"] is False
    assert consent["reason"] == "this hospital takes part only in runs whose weights are encrypted"
    assert "server can read:    everything" in describe(hospital.work, plain.run)
