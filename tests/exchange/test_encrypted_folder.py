"""A folder whose payloads are encrypted: the two sides work as ever, and the server's people read manifests alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shared.audit.cli import main
from shared.audit.verify import verify
from shared.errors import ActionRequiredError, NotFoundError, RejectedError, TransientError
from shared.exchange import ciphertexts, names, outbox
from shared.exchange.channel import Channel
from shared.exchange.encryption import Ciphertext, EncryptionKey, encrypt
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.wire import Encrypt, FileEntry
from shared.exchange.signing import SigningKey
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.trust import Peer
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from site_client import store
from tests.played import RUN, Played

UPDATE = MessageRef("update", RUN, 1)
TABLE = write_metrics([MetricsRow(1, 0, "validation", "10", 0.1, 0.5, {"dice_mean": 0.5, "dice_std": 0.1})])


def play(home: Path, encrypt: Encrypt, keep: str = "all") -> Played:
    home.mkdir()
    run = Played(home)
    run.offer_and_consent(encrypt=encrypt, keep=keep, rounds=1)
    run.round(1, trains=True)
    run.round(2, trains=False)
    run.finish()
    return run


def answering(home: Path, encrypt: Encrypt) -> Played:
    """A run that waits for the site's answer."""
    run = Played(home)
    run.offer_and_consent(encrypt=encrypt)
    to_site: dict[str, bytes | Path] = {
        names.ROUND_CONFIGURATION: b"round: 1\n",
        names.GLOBAL_MODEL: run.model(0.5),
    }
    run.send("round", 1, to_site, "consent")
    return run


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> dict[Encrypt, Played]:
    home = tmp_path_factory.mktemp("encrypted")
    modes: tuple[Encrypt, ...] = ("weights", "all")
    return {mode: play(home / mode, mode) for mode in modes}


def payloads(folder: Path) -> Iterator[Path]:
    for path in sorted((folder / names.RUNS).rglob("*")):
        if path.is_file() and path.name != names.MANIFEST:
            yield path


@pytest.mark.parametrize("mode", ["weights", "all"])
def test_the_server_holds_nothing_readable(encrypted: dict[Encrypt, Played], mode: Encrypt) -> None:
    run = encrypted[mode]
    read = 0
    for path in payloads(run.drop):
        content, said = path.read_bytes(), path.relative_to(run.drop)
        plain = (run.aggregator.ledger.root / said).read_bytes()
        assert plain == (run.site.ledger.root / said).read_bytes()
        is_hidden = mode == "all" or names.is_weights(path.name)
        assert (content != plain) == is_hidden, said
        assert not (is_hidden and plain[:12] in content), said
        read += 1
        entry = json.loads((path.parent / names.MANIFEST).read_bytes())["body"]["files"][path.name]
        assert ("encrypted" in entry) == is_hidden
        assert (entry["size"], entry["sha256"]) == hash_file(path)
    assert read == 14
    assert not [
        path for end in (run.aggregator, run.site) for path in (end.ledger.root.parent / "ciphertext").rglob("*.*")
    ]


@pytest.mark.parametrize("mode", ["weights", "all"])
def test_an_auditor_checks_bytes_without_a_key_and_contents_with_either_sides(
    encrypted: dict[Encrypt, Played], mode: Encrypt
) -> None:
    run = encrypted[mode]
    hidden = {"weights": 4, "all": 14}[mode]
    folder = LocalFolder(run.drop)
    audit = verify(folder)
    assert (audit.findings, audit.encrypted, audit.opened) == ([], hidden, 0)
    for end in (run.aggregator.ledger.root.parent.parent.parent, run.site.ledger.root.parent):
        audit = verify(folder, secret_key=EncryptionKey.at(end / "encryption.key"))
        assert (audit.findings, audit.encrypted, audit.opened) == ([], hidden, hidden)


@pytest.mark.parametrize("mode", ["weights", "all"])
def test_the_aggregators_own_copies_are_checked_too(
    encrypted: dict[Encrypt, Played], tmp_path: Path, mode: Encrypt
) -> None:
    """They hold what the payloads say, so it is compared with what the manifests say of that."""
    work = tmp_path / "work"
    shutil.copytree(encrypted[mode].aggregator.ledger.root.parent.parent.parent, work)
    result = CliRunner().invoke(main, ["verify", str(work)])
    assert result.exit_code == 0, result.output
    assert "of them opened" in result.output
    model = work / "sites" / "north" / "mirror" / UPDATE.path / names.SITE_MODEL
    content = model.read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = CliRunner().invoke(main, ["verify", str(work)])
    assert result.exit_code == 1
    assert f"{UPDATE.path}/{names.SITE_MODEL}: is not what its sender encrypted" in result.output
    (work / "encryption.key").unlink()
    result = CliRunner().invoke(main, ["verify", str(work)])
    assert result.output.count("without encryption.key nobody can compare it") == {"weights": 4, "all": 14}[mode]


def test_other_commands_open_what_they_show(encrypted: dict[Encrypt, Played]) -> None:
    run = encrypted["all"]
    own = str(run.site.ledger.root.parent / "encryption.key")
    result = CliRunner().invoke(main, ["sent", "north", str(run.drop)])
    assert "(encrypted)" in result.output
    result = CliRunner().invoke(main, ["sent", "north", str(run.drop), "--secret-key", own])
    assert "(encrypted)" not in result.output
    result = CliRunner().invoke(main, ["sent", "north", str(run.drop), "--secret-key", own, "--json"])
    files = [file for message in json.loads(result.stdout) for file in message["files"]]
    assert any(tensor["shape"] == [3, 2] for file in files for tensor in file["tensors"] or [])


def test_the_auditors_command_takes_a_key(encrypted: dict[Encrypt, Played], tmp_path: Path) -> None:
    run = encrypted["all"]
    own = run.site.ledger.root.parent / "encryption.key"
    result = CliRunner().invoke(main, ["verify", str(run.drop), "--secret-key", str(own)])
    assert result.exit_code == 0
    assert "14 encrypted files, 14 of them opened" in result.stdout
    EncryptionKey.made_at(tmp_path / "other.key")
    result = CliRunner().invoke(main, ["verify", str(run.drop), "--secret-key", str(tmp_path / "other.key")])
    assert result.exit_code == 2
    assert "opens nothing here" in result.output


def test_without_a_key_what_the_rule_removed_cannot_be_told_from_what_is_missing(
    encrypted: dict[Encrypt, Played], tmp_path: Path
) -> None:
    run = play(tmp_path / "home", "all", keep="last 1")
    own = EncryptionKey.at(run.site.ledger.root.parent / "encryption.key")
    run.aggregator.outbox.prune(RUN)
    run.site.outbox.prune(RUN)
    audit = verify(LocalFolder(run.drop), secret_key=own)
    assert audit.findings == []
    assert len(audit.removed) == 2
    doubted = verify(LocalFolder(run.drop)).findings
    assert sorted(finding.file for finding in doubted) == audit.removed
    assert all("only a key shows" in finding.what for finding in doubted)


@pytest.mark.parametrize("mode", ["weights", "all"])
def test_what_was_to_be_encrypted_is_refused_as_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Encrypt
) -> None:
    """A site that forgets the encryption, or is made to: its answer is refused by each reader."""
    run = answering(tmp_path, mode)
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "encrypts", lambda *_: False)
        files: dict[str, bytes | Path] = {names.METRICS: TABLE, names.SITE_MODEL: run.model(0.25)}
        run.sign_and_publish("update", 1, files)
    assert "is not encrypted" in refusal(run)
    assert any("is not encrypted" in finding.what for finding in verify(LocalFolder(run.drop)).findings)


def refusal(run: Played) -> str:
    """Why the aggregator refuses the answer, for good."""
    manifest, asked = run.aggregator.inbox.notice(UPDATE), run.aggregator.ledger.message(MessageRef("round", RUN, 1))
    assert manifest is not None
    assert asked is not None
    for attempt in range(2):
        try:
            fetched = run.aggregator.inbox.fetch(UPDATE, manifest, answers=(asked.digest,), max_weights_bytes=1 << 20)
        except RejectedError as error:
            run.aggregator.ledger.refuse(UPDATE, error, manifest)
            return str(error)
        assert (attempt, fetched) == (0, None)
    raise AssertionError("it was accepted")


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "flipped": lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
    "empty": lambda _: b"",
}


@pytest.mark.parametrize("change", HOSTILE)
def test_a_signed_ciphertext_that_does_not_decrypt_is_poison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run = answering(tmp_path, "weights")

    def damaged(plain: Path, target: Path) -> Ciphertext:
        made = encrypt(plain, target)
        target.write_bytes(HOSTILE[change](target.read_bytes()))
        size, sha256 = hash_file(target)
        return Ciphertext(target, FileEntry(size=size, sha256=sha256), made.content)

    monkeypatch.setattr(ciphertexts, "encrypt", damaged)
    run.sign_and_publish("update", 1, {names.METRICS: TABLE, names.SITE_MODEL: run.model(0.25)})
    assert f"{UPDATE.path}/{names.SITE_MODEL}: does not decrypt" in refusal(run)
    assert not run.aggregator.ledger.path(UPDATE, names.SITE_MODEL).exists()
    quarantined = run.aggregator.ledger.root.parent / "quarantine" / UPDATE.path
    assert {path.name for path in quarantined.iterdir()} == {
        names.MANIFEST,
        names.METRICS,
        names.SITE_MODEL,
        "reason.txt",
    }


def test_a_ciphertext_that_says_it_is_larger_than_any_answer_is_not_fetched(tmp_path: Path) -> None:
    run = answering(tmp_path, "weights")
    run.sign_and_publish("update", 1, {names.METRICS: TABLE, names.SITE_MODEL: run.model(0.25)})
    manifest, asked = run.aggregator.inbox.notice(UPDATE), run.aggregator.ledger.message(MessageRef("round", RUN, 1))
    size = run.site.ledger.path(UPDATE, names.SITE_MODEL).stat().st_size
    assert manifest is not None
    assert asked is not None
    with pytest.raises(RejectedError, match=f"has {size} bytes, at most {size - 1}"):
        run.aggregator.inbox.fetch(UPDATE, manifest, answers=(asked.digest,), max_weights_bytes=size - 1)
    assert run.aggregator.inbox.fetch(UPDATE, manifest, answers=(asked.digest,), max_weights_bytes=size) is not None


def another(run: Played, folder: LocalFolder) -> Channel:
    """The site's end as a new process opens it."""
    work = run.site.ledger.root.parent
    peer = Peer("retina", "north", AGGREGATOR, run.aggregator_key)
    key, own = SigningKey.at(work / "signing.key"), EncryptionKey.found_at(work / "encryption.key")
    return Channel(work, folder, me="north", key=key, peer=peer, encryption_key=own)


class Torn(LocalFolder):
    """The connection breaks after so many uploads or creations."""

    left = 0

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        self._count()
        super().upload(path, source, sha256=sha256)

    def create(self, path: str, content: bytes) -> None:
        super().create(path, content)
        self._count()

    def _count(self) -> None:
        if self.left == 0:
            raise TransientError("the connection broke")
        self.left -= 1


@pytest.mark.parametrize("survived", [0, 1, 2])
def test_a_new_process_sends_the_very_bytes_that_were_signed(tmp_path: Path, survived: int) -> None:
    run, torn = answering(tmp_path, "all"), Torn(tmp_path / "drop")
    torn.left = survived
    site, asked = another(run, torn), run.site.ledger.message(MessageRef("round", RUN, 1))
    assert asked is not None
    files: dict[str, bytes | Path] = {names.METRICS: TABLE, names.SITE_MODEL: run.model(0.25)}
    signed = site.outbox.sign(UPDATE, files, in_reply_to=asked.digest)
    site.outbox._published = signed.manifest.seq - 1
    with pytest.raises(TransientError):
        site.outbox.publish()
    run.site = another(run, LocalFolder(tmp_path / "drop"))
    run.site.outbox.publish()
    run.send("update", 1, {}, "round")
    assert run.aggregator.ledger.path(UPDATE, names.METRICS).read_bytes() == TABLE
    assert not (run.site.ledger.root.parent / "ciphertext" / UPDATE.path).exists()
    assert verify(LocalFolder(run.drop)).findings == []


def test_a_site_that_lost_its_disk_reads_its_own_messages_again(tmp_path: Path) -> None:
    run = play(tmp_path / "home", "all")
    before = run.site.ledger.path(MessageRef("consent", RUN), names.CONSENT).read_bytes()
    shutil.rmtree(run.site.ledger.root / names.RUNS)
    site = another(run, LocalFolder(run.drop))
    site.inbox.adopt([MessageRef("consent", RUN), UPDATE, MessageRef("update", RUN, 2)])
    assert site.ledger.path(MessageRef("consent", RUN), names.CONSENT).read_bytes() == before
    assert site.ledger.own_head == run.site.ledger.own_head


@pytest.mark.parametrize("mode", ["weights", "all"])
@pytest.mark.parametrize("damaged", [None, b"", b"encrypt: none"])
def test_nothing_is_signed_while_nobody_can_tell_what_is_to_be_encrypted(
    tmp_path: Path, damaged: bytes | None, mode: Encrypt
) -> None:
    run = answering(tmp_path, mode)
    asked = run.site.ledger.message(MessageRef("round", RUN, 1))
    assert asked is not None
    offered = run.site.ledger.path(MessageRef("offer", RUN), names.RUN_CONFIGURATION)
    whole = offered.read_bytes()
    offered.unlink()
    if damaged == b"encrypt: none":  # well-formed, and not what was offered
        damaged = whole.replace(f"encrypt: {mode}".encode(), damaged)
    if damaged is not None:
        offered.write_bytes(damaged)
    site = another(run, LocalFolder(run.drop))
    with pytest.raises(ActionRequiredError, match="says what is encrypted"):
        site.outbox.sign(UPDATE, {names.METRICS: TABLE, names.SITE_MODEL: run.model(1.0)}, in_reply_to=asked.digest)
    site.outbox.publish()
    assert site.ledger.message(UPDATE) is None
    assert not (run.drop / UPDATE.path).exists()


@pytest.mark.parametrize("has_key", [True, False])
def test_plain_text_is_not_taken_on_the_word_of_a_damaged_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_key: bool
) -> None:
    """The aggregator's own copy of the offer has lost its line about encryption, and so has the site's."""
    run = answering(tmp_path, "all")
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "encrypts", lambda *_: False)
        run.sign_and_publish("update", 1, {names.METRICS: TABLE, names.SITE_MODEL: run.model(0.25)})
    offered = run.aggregator.ledger.path(MessageRef("offer", RUN), names.RUN_CONFIGURATION)
    offered.write_bytes(offered.read_bytes().replace(b"encrypt: all", b"encrypt: none"))
    home = run.aggregator.ledger.root.parent
    key, own = SigningKey.at(tmp_path / "aggregator" / "signing.key"), tmp_path / "aggregator" / "encryption.key"
    again = Channel(
        home,
        LocalFolder(run.drop),
        me=AGGREGATOR,
        key=key,
        peer=run.aggregator.ledger.peer,
        encryption_key=EncryptionKey.at(own) if has_key else None,
    )
    manifest, asked = again.inbox.notice(UPDATE), again.ledger.message(MessageRef("round", RUN, 1))
    assert manifest is not None and asked is not None
    for _ in range(2):
        with pytest.raises(ActionRequiredError, match="nothing is sent or taken until it is back"):
            again.inbox.fetch(UPDATE, manifest, answers=(asked.digest,), max_weights_bytes=1 << 20)
    assert again.ledger.refusal(UPDATE) is None  # and no site is blamed for it


def test_an_offer_that_is_not_as_it_was_accepted_is_followed_by_nobody(tmp_path: Path) -> None:
    run = answering(tmp_path, "none")
    store.offer(run.site.ledger, RUN)
    path = run.site.ledger.path(MessageRef("offer", RUN), names.RUN_CONFIGURATION)
    path.write_bytes(path.read_bytes().replace(b"seed: ", b"seed: 1"))
    with pytest.raises(ActionRequiredError, match=f"{path} is not the file its manifest names|{path} has "):
        store.offer(run.site.ledger, RUN)


def test_keys_that_are_neither_sides_stop_the_work_and_decide_nothing(tmp_path: Path) -> None:
    run = answering(tmp_path, "all")
    (run.site.ledger.root.parent / "encryption.key").unlink()
    site, asked = another(run, LocalFolder(run.drop)), run.site.ledger.message(MessageRef("round", RUN, 1))
    assert asked is not None
    with pytest.raises(Exception, match=r"put the very encryption\.key back"):
        site.outbox.sign(UPDATE, {names.METRICS: TABLE}, in_reply_to=asked.digest)
    assert site.ledger.message(UPDATE) is None
    with pytest.raises(NotFoundError):
        LocalFolder(run.drop).read(UPDATE.manifest, max_bytes=1 << 20)
