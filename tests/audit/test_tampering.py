"""Every byte of a tampered folder is noticed, and the finding names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import strategies as st

from deploy.local.webdav_server import EmbeddedServer
from shared.audit.archive import open_archive
from shared.audit.cli import main
from shared.audit.verify import Finding, verify
from shared.errors import ConfigurationError
from shared.exchange import names, outbox
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.answers import Withdrawal
from shared.exchange.records.wire import Wire
from shared.exchange.signing import SigningKey, canonical
from shared.folder.local import LocalFolder
from shared.moments import moment_text
from tests.at_length import held_to, shown_by
from tests.played import RUN, TENSORS, Played, scored_verdict


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def findings(folder: Path) -> list[Finding]:
    return verify(LocalFolder(folder)).findings


@contextmanager
def changed(path: Path) -> Iterator[None]:
    """Put a file back after the block: quicker than a copy of the whole folder for each example."""
    content = path.read_bytes()
    try:
        yield
    finally:
        path.write_bytes(content)


@pytest.fixture(scope="module")
def copy(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("copy") / "north"
    shutil.copytree(played.drop, target)
    return target


def test_an_untouched_folder_holds(copy: Path) -> None:
    audit = verify(LocalFolder(copy))
    assert audit.findings == []
    assert audit.messages == 9  # offer, consent, two rounds of three, final
    assert audit.in_progress == []


def test_rounds_of_two_runs_that_interleave_are_noticed_and_an_early_offer_is_none(run: Played) -> None:
    run.offer_and_consent()
    run.round(1, trains=True)
    run.run = "other"
    run.offer_and_consent()
    assert findings(run.drop) == []
    run.round(1, trains=True)
    first = MessageRef("round", "other", 1).manifest
    what = {finding.file: finding.what for finding in findings(run.drop)}
    assert what == {first: f"comes before run {RUN} had ended here"}
    run.send("round", 2, run.to_site(2), "consent")
    run.run = "third"
    run.offer()
    offer = MessageRef("offer", "third").manifest
    what = {finding.file: finding.what for finding in findings(run.drop)}
    before = MessageRef("round", "other", 2).path
    assert what[offer] == f"may not follow {before}, the aggregator's message before it"


@held_to(40, 150, data=st.data())
def test_a_flipped_bit_is_noticed(copy: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(files_of(copy)))
    content = (copy / name).read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    with changed(copy / name):
        (copy / name).write_bytes(content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :])
        assert name in {finding.file for finding in findings(copy)}


@pytest.mark.parametrize("step", shown_by([16], [16, 1]))
def test_every_byte_of_every_record_counts(run: Played, step: int) -> None:
    """At length not a sample: each single byte of each kind of signed record, one after the other."""
    run.offer_and_consent()
    for name in ("federation.json", "site.json", "status.json", MessageRef("consent", RUN).manifest):
        content = (run.drop / name).read_bytes()
        with changed(run.drop / name):
            for position in range(0, len(content), step):
                flipped = content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
                (run.drop / name).write_bytes(flipped)
                audit = verify(LocalFolder(run.drop))
                assert name in {finding.file for finding in audit.findings}, position


@held_to(40, 150, data=st.data())
def test_a_truncated_or_longer_file_is_noticed(copy: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(files_of(copy)))
    content = (copy / name).read_bytes()
    with changed(copy / name):
        if data.draw(st.booleans()):
            (copy / name).write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        else:
            (copy / name).write_bytes(content + data.draw(st.binary(min_size=1, max_size=20)))
        assert name in {finding.file for finding in findings(copy)}


@pytest.mark.parametrize("step", shown_by([5], [5, 1]))
def test_two_swapped_files_are_noticed(copy: Path, step: int) -> None:
    """At length every pair of files with different content."""
    names = files_of(copy)
    for index, first in enumerate(names):
        for second in names[index + 1 :: step]:
            one, other = (copy / first).read_bytes(), (copy / second).read_bytes()
            if one == other:
                continue
            with changed(copy / first), changed(copy / second):
                (copy / first).write_bytes(other)
                (copy / second).write_bytes(one)
                assert {first, second} & {finding.file for finding in findings(copy)}, (first, second)


def test_every_removed_file_is_noticed(copy: Path) -> None:
    for name in files_of(copy):
        with changed(copy / name):
            (copy / name).unlink()
            assert name in {finding.file for finding in findings(copy)}, name


@pytest.mark.parametrize(
    ("removed", "found_at", "what"),
    [
        (
            ["verdict"],
            MessageRef("round", RUN, 2),
            "after 2 ({round}): those between are missing or broken; {verdict} must be",
        ),
        (
            ["round"],
            MessageRef("verdict", RUN, 1),
            "after 1 ({offer}): those between are missing or broken; {round} must be",
        ),
        (["round", "verdict"], MessageRef("round", RUN, 2), "after 1 ({offer}): those between are missing or broken"),
        (["offer"], MessageRef("round", RUN, 1), "after 0: those between are missing or broken"),
        (["update"], MessageRef("update", RUN, 2), "after 1 ({consent}): those between are missing or broken"),
    ],
)
def test_a_gap_is_told_with_what_lies_beside_it(
    played: Played, tmp_path: Path, removed: list[Kind], found_at: MessageRef, what: str
) -> None:
    folder = tmp_path / "north"
    shutil.copytree(played.drop, folder)
    refs: dict[Kind, MessageRef] = {kind: MessageRef(kind, RUN, 1) for kind in ("round", "update", "verdict")}
    refs |= {kind: MessageRef(kind, RUN) for kind in ("offer", "consent")}
    for kind in removed:
        shutil.rmtree(folder / refs[kind].path)
    said = {finding.file: finding.what for finding in findings(folder) if finding.what.startswith("is number")}
    due = what.format(**{kind: ref.path for kind, ref in refs.items()})
    assert list(said) == [found_at.manifest]
    assert due in said[found_at.manifest]
    assert ("must be one of them" in said[found_at.manifest]) == ("must be" in due)


def test_times_that_cannot_be_are_told_and_are_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Played(tmp_path)
    for created in ("2020-11-21T10:00:00Z", "2020-11-21T09:00:00Z", "2099-01-01T00:00:00Z"):
        monkeypatch.setattr(outbox, "now_text", lambda created=created: created)
        if run.aggregator.ledger.message(MessageRef("offer", RUN)) is None:
            run.offer_and_consent()
        else:
            run.send("round", 1 if created.startswith("2020") else 2, run.to_site(1), "consent")
    result = CliRunner().invoke(main, ["verify", str(run.drop)])
    offer, first, second = MessageRef("offer", RUN), MessageRef("round", RUN, 1), MessageRef("round", RUN, 2)
    earlier, later, far = map(moment_text, ("2020-11-21T09:00:00Z", "2020-11-21T10:00:00Z", "2099-01-01T00:00:00Z"))
    assert (
        f"north: {first.path} tells the time {earlier}, and {offer.path}, sent before it by aggregator, {later}\n"
    ) in result.stderr
    assert f"north: {second.path} tells the time {far}, which is still to come" in result.stderr


@pytest.mark.parametrize("foreign", ["notes.txt", ".hidden", ".x.writing", "manifest.json.new", "MODEL.pt", "a b.csv"])
def test_an_added_file_is_noticed_wherever_it_lies(copy: Path, foreign: str) -> None:
    folders = {copy, *(path for path in copy.rglob("*") if path.is_dir())}
    for folder in folders:
        path = folder / foreign
        path.write_bytes(b"x")
        try:
            assert path.relative_to(copy).as_posix() in {finding.file for finding in findings(copy)}
        finally:
            path.unlink()


def test_a_name_can_neither_forge_a_line_nor_hide_one(copy: Path) -> None:
    path = copy / "\x1b[2Kx\n1 folder: every signature, hash, chain, name and content holds"
    path.write_bytes(b"")
    code, lines = cli("verify", copy)
    path.unlink()
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(r"\x1b[2Kx\n1 folder: ")


def test_what_an_unfinished_write_left_is_no_finding(played: Played, copy: Path) -> None:
    """A copy of the file it was to become; a heartbeat, which is overwritten, need only be signed by the site."""
    manifest = MessageRef("offer", RUN).manifest
    older = json.loads((copy / "status.json").read_bytes())["body"] | {"phase": "training"}
    key = SigningKey.at(played.drop.parent / "north" / "signing.key")
    for name, content, holds in (
        ("federation.json", (copy / "federation.json").read_bytes(), True),
        ("README.txt", (copy / "README.txt").read_bytes(), True),
        (manifest, (copy / manifest).read_bytes(), True),
        ("status.json", key.sign(older), True),
        ("status.json", SigningKey(b"\x02" * 32).sign(older), False),
        ("federation.json", (copy / "site.json").read_bytes(), False),
        (manifest, (copy / MessageRef("verdict", RUN, 1).manifest).read_bytes(), False),
        (
            f"{MessageRef('offer', RUN).path}/run.yaml",
            (copy / MessageRef("offer", RUN).path / "run.yaml").read_bytes(),
            False,
        ),
    ):
        for ending in (".new", ".new.new"):
            unfinished = copy / f"{name}{ending}"
            unfinished.write_bytes(content)
            try:
                assert [finding.file for finding in findings(copy)] == ([] if holds else [f"{name}{ending}"]), name
            finally:
                unfinished.unlink()


@pytest.mark.parametrize("foreign", ["extra", f"runs/{RUN}/extra", "runs/Upper", f"runs/{RUN}/rounds/1", ".git"])
def test_an_added_folder_is_noticed(copy: Path, foreign: str) -> None:
    (copy / foreign).mkdir()
    try:
        assert foreign in {finding.file for finding in findings(copy)}
    finally:
        (copy / foreign).rmdir()


def test_a_removed_message_is_noticed(copy: Path, tmp_path: Path) -> None:
    """A whole directory at a time, the newest included: status.json speaks of it."""
    for ref in (
        MessageRef("offer", RUN),
        MessageRef("update", RUN, 1),
        MessageRef("verdict", RUN, 2),
        MessageRef("final", RUN),
    ):
        shutil.move(copy / ref.path, tmp_path / "kept")
        try:
            assert findings(copy), ref
        finally:
            shutil.move(tmp_path / "kept", copy / ref.path)
    assert findings(copy) == []


def test_a_removed_end_is_told_by_its_numbers(copy: Path, tmp_path: Path) -> None:
    for ref in (MessageRef("final", RUN), MessageRef("verdict", RUN, 2)):
        shutil.move(copy / ref.path, tmp_path / ref.kind)
    code, (line,) = cli("verify", copy)
    for ref in (MessageRef("final", RUN), MessageRef("verdict", RUN, 2)):
        shutil.move(tmp_path / ref.kind, copy / ref.path)
    newest = f"the newest here is number 4, {MessageRef('round', RUN, 2).path}"
    assert (code, f"{newest}: all after it, up to 6, are missing" in line) == (1, True)


def test_a_message_signed_by_a_stranger_is_noticed(copy: Path) -> None:
    manifest = copy / MessageRef("update", RUN, 1).manifest
    body = json.loads(manifest.read_bytes())["body"]
    with changed(manifest):
        manifest.write_bytes(SigningKey(b"\x09" * 32).sign(body))
        found = {finding.file: finding.what for finding in findings(copy)}
        assert "unknown key" in found[MessageRef("update", RUN, 1).manifest]


def test_a_pinned_key_tells_a_folder_made_by_a_stranger(played: Played, copy: Path) -> None:
    assert verify(LocalFolder(copy), aggregator_key=played.aggregator_key).findings == []
    (finding,) = verify(LocalFolder(copy), aggregator_key="0" * 64).findings
    assert finding.file == "federation.json"


def test_a_message_on_its_way_is_no_finding_while_the_run_is_open(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.round(1, trains=True)
    upload = run.drop / MessageRef("round", RUN, 2).path
    upload.mkdir(parents=True)
    (upload / "config.yaml").write_bytes(b"round: 2\n")
    audit = verify(LocalFolder(run.drop))
    assert (audit.findings, audit.in_progress) == ([], [MessageRef("round", RUN, 2).path])


@pytest.mark.parametrize(
    "path", [names.FEDERATION, names.SITE_CARD, names.STATUS, MessageRef("round", RUN, 1).manifest]
)
def test_a_write_that_was_cut_off_is_no_finding_and_hides_nothing(copy: Path, path: str) -> None:
    content = (copy / path).read_bytes()
    left = copy / f"{path}.new"
    try:
        for end in (0, len(content) // 2, len(content)):
            left.write_bytes(content[:end])
            assert findings(copy) == []
        for other in (content[: len(content) // 2] + b"x", content + b"x", b"x"):
            left.write_bytes(other)
            assert [finding.file for finding in findings(copy)] == [f"{path}.new"]
    finally:
        left.unlink()


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (MessageRef("consent", "another"), names.CONSENT),
        (MessageRef("update", "another", 7), names.SITE_MODEL),
        (MessageRef("round", "another", 7), names.GLOBAL_MODEL),
        (MessageRef("final", "another"), names.FINAL_MODEL),
        (MessageRef("update", RUN, 4), names.SITE_MODEL),
        (MessageRef("round", RUN, 9), names.GLOBAL_MODEL),
        (MessageRef("verdict", RUN, 2), names.VERDICT),
        (MessageRef("abort", RUN), names.ABORT),
    ],
    ids=lambda value: value.path if isinstance(value, MessageRef) else value,
)
def test_what_cannot_come_next_is_on_no_way(tmp_path: Path, place: MessageRef, name: str) -> None:
    """Else whoever can write in the folder could leave bytes there that nobody signed, and no audit would say so."""
    run = Played(tmp_path)
    run.offer_and_consent()
    run.round(1, trains=True)
    (run.drop / place.path).mkdir(parents=True)
    (run.drop / place.path / name).write_bytes(b"x" * 100)
    audit = verify(LocalFolder(run.drop))
    assert [finding.file for finding in audit.findings] == [place.manifest]
    assert audit.in_progress == []


def test_no_answer_comes_to_a_round_before_one_that_was_answered(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    late = scored_verdict(RUN, 1, None).model_copy(
        update={"status": "late", "score": None, "reason": "no answer came before the round closed"}
    )
    run.sign_and_publish("verdict", 1, {names.VERDICT: canonical(late.model_dump())}, answers_nothing=True)
    place = run.drop / MessageRef("update", RUN, 1).path
    place.mkdir(parents=True)
    (place / names.SITE_MODEL).write_bytes(b"x")
    assert verify(LocalFolder(run.drop)).in_progress == [MessageRef("update", RUN, 1).path]
    run.sign_and_publish("round", 2, run.to_site(2))
    run.sign_and_publish("update", 2, run.from_site(2, trains=True))
    assert MessageRef("update", RUN, 1).manifest in [finding.file for finding in findings(run.drop)]


def test_an_offer_may_be_on_its_way_whatever_is_open(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    offer = MessageRef("offer", "another")
    (run.drop / offer.path).mkdir(parents=True)
    (run.drop / offer.path / names.TENSORS).write_bytes(b"tensors: {}\n")
    audit = verify(LocalFolder(run.drop))
    assert (audit.findings, audit.in_progress) == ([], [offer.path])


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json.old", "site.safetensors", ".hidden.writing"])
def test_what_no_message_has_is_found_beside_one_that_is_on_its_way(tmp_path: Path, name: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    upload = run.drop / MessageRef("round", RUN, 1).path
    upload.mkdir(parents=True)
    for on_its_way in (
        "config.yaml",
        "manifest.json.new",
        ".global.safetensors.writing",
        f".global.safetensors.{'0' * 16}.arriving",
    ):
        (upload / on_its_way).write_bytes(b"")
    assert verify(LocalFolder(run.drop)).findings == []
    (upload / name).write_bytes(b"of somebody else")
    (finding,) = verify(LocalFolder(run.drop)).findings
    assert (finding.file, finding.what) == (
        f"{upload.relative_to(run.drop)}/{name}",
        "is a file that does not belong here",
    )


def test_a_record_that_is_too_large_is_found_before_its_manifest_is_there(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    upload = run.drop / MessageRef("round", RUN, 1).path
    upload.mkdir(parents=True)
    (upload / "config.yaml").write_bytes(b" " * (2 << 20))
    (finding,) = verify(LocalFolder(run.drop)).findings
    assert finding.what.startswith(f"has {2 << 20} bytes, at most ")


def test_a_run_whose_method_is_not_here_is_one_finding_and_no_hospital_s(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(method="fedavgm")
    run.round(1, trains=True)
    (finding,) = verify(LocalFolder(run.drop)).findings
    assert finding.file == f"{MessageRef('offer', RUN).path}/run.yaml"
    assert "names the method fedavgm, whose file is not here, so what depends on it was not checked" in finding.what


@pytest.mark.parametrize("empty", ["runs/octa-2", f"runs/{RUN}/rounds/0002", f"runs/{RUN}/rounds/0002/to_site"])
def test_an_empty_folder_of_a_message_is_on_its_way_and_two_are_not(tmp_path: Path, empty: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.round(1, trains=True)
    (run.drop / empty).mkdir(parents=True)
    code, (line,) = cli("verify", run.drop)
    ref = "runs/octa-2/offer" if empty == "runs/octa-2" else MessageRef("round", RUN, 2).path
    assert (code, f"1 on their way ({ref})" in line) == (0, True)
    (run.drop / "runs" / "octa-3").mkdir()
    found = {finding.file: finding.what for finding in findings(run.drop)}
    assert found == {f"{path}/manifest.json": "is missing: its folder is empty" for path in (ref, "runs/octa-3/offer")}


def test_a_run_whose_messages_were_all_taken_away_is_noticed(copy: Path, tmp_path: Path) -> None:
    emptied = tmp_path / "north"
    shutil.copytree(copy, emptied)
    shutil.rmtree(emptied / "runs" / RUN)
    (emptied / "runs" / RUN).mkdir()
    assert f"runs/{RUN}/offer/manifest.json" in {finding.file for finding in findings(emptied)}


def test_weights_in_another_form_than_the_run_wants_are_noticed(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(wire=Wire(numbers="bfloat16", difference=True), rounds=1)
    run.round(1, trains=True)
    run.round(2, trains=False)
    run.finish()
    received, trained = "has the form (float32), the run wants (bfloat16)", "(bfloat16, difference)"
    found = [(finding.file, finding.what) for finding in findings(run.drop)]
    assert [file for file, _ in found] == [
        f"runs/{RUN}/rounds/0001/from_site/model.safetensors",
        f"runs/{RUN}/rounds/0001/to_site/global.safetensors",
        f"runs/{RUN}/rounds/0002/to_site/global.safetensors",
    ]
    assert trained in found[0][1]
    assert found[1][1] == found[2][1] == received


def test_what_the_offer_does_not_list_beside_a_model_is_noticed(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(
        groups={
            "to_site": {"control": TENSORS.tensors},
            "measured": {"seen": TENSORS.tensors},
            "trained": {"control": TENSORS.tensors},
        },
        rounds=1,
    )
    run.round(1, trains=True, to_site=["control"], from_site=["control", "seen"])
    assert findings(run.drop) == []
    run.round(2, trains=True, to_site=["control", "seen"], from_site=["control", "patients", "seen"])
    run.round(3, trains=False, to_site=["control"], from_site=["control", "seen"])  # the closing one is number 2
    run.finish()
    found = [
        (finding.file, finding.what) for finding in findings(run.drop) if finding.file.endswith(names.WEIGHTS_SUFFIX)
    ]
    files = [
        "0002/from_site/state-control",
        "0002/from_site/state-patients",
        "0002/to_site/state-seen",
        "0003/from_site/state-control",
    ]
    model = "was not asked for: the closing round trains nothing"
    assert found == [
        (f"runs/{RUN}/rounds/0002/from_site/model.safetensors", model),
        *((f"runs/{RUN}/rounds/{file}.safetensors", "is not in the run's offer") for file in files),
    ]


def cli(*arguments: object) -> tuple[int, list[str]]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"DROPFED_PASSWORD": "secret"})
    assert "Traceback" not in result.output
    return result.exit_code, (result.stdout or result.stderr).splitlines()


def test_the_command_says_one_line_when_all_holds_and_one_per_finding_otherwise(copy: Path) -> None:
    code, lines = cli("verify", copy)
    assert (code, len(lines)) == (0, 1)
    assert "every signature, hash, chain, name and content holds" in lines[0]
    with changed(copy / "README.txt"):
        (copy / "README.txt").write_bytes(b"something else")
        code, lines = cli("verify", copy)
        assert (code, len(lines)) == (1, 1)
        assert lines[0].startswith("README.txt: ")
        code, lines = cli("verify", copy, "--json")
        (result,) = json.loads("\n".join(lines)).values()
        assert (code, result["holds"]) == (1, False)
        assert [finding["file"] for finding in result["findings"]] == ["README.txt"]


@pytest.mark.parametrize("key", ["00", "", "g" * 64, "0" * 63, "A" * 64, "0" * 64 + "\n"])
def test_what_is_no_key_is_no_finding(copy: Path, key: str) -> None:
    code, lines = cli("verify", copy, "--key", key)
    assert code == 2
    assert len(lines) == 1 and lines[0].startswith("--key: must be the 64 hexadecimal digits")


def test_the_command_reads_a_folder_over_webdav(copy: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(copy, root / "north")
    server = EmbeddedServer(root, {"north": "secret", "south": "secret"}, "other-secret")
    server.start()
    try:
        assert cli("verify", server.url_of("north"), "--user", "north")[0] == 0
        (root / "north" / "site.json").write_bytes(b"{}")
        code, lines = cli("verify", server.url_of("north"), "--user", "north")
        assert code == 1
        assert any(line.startswith("site.json: ") for line in lines)
        (root / "south" / "notes").mkdir()
        code, lines = cli("verify", server.url_of("south"), "--user", "south")
        assert (code, len(lines), "is no drop folder" in lines[0]) == (2, 1, True)
    finally:
        server.stop()


def test_no_server_is_shown_the_password_of_another(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = {"first": "one-secret", "second": "another-secret"}
    servers = {}
    for name, password in passwords.items():
        shutil.copytree(copy, tmp_path / name / "auditor")
        servers[name] = EmbeddedServer(tmp_path / name, {"auditor": password}, "other-secret")
        servers[name].start()
    addresses = {name: server.url_of("auditor") for name, server in servers.items()}
    try:
        asked: list[str] = []

        def ask(who: str) -> str:
            asked.append(who)
            return next(password for name, password in passwords.items() if f":{servers[name].port}" in who)

        monkeypatch.delenv("DROPFED_PASSWORD", raising=False)
        archive = open_archive([*addresses.values(), addresses["first"]], user="auditor", ask_password=ask)
        assert [*archive.folders] == [*addresses.values()]
        assert asked == [f"auditor at http://127.0.0.1:{server.port}" for server in servers.values()]
        monkeypatch.setenv("DROPFED_PASSWORD", passwords["first"])
        with pytest.raises(ConfigurationError, match=rf"^{addresses['second']}: DROPFED_PASSWORD is "):
            open_archive(list(addresses.values()), user="auditor", ask_password=ask)
    finally:
        for server in servers.values():
            server.stop()


def test_whoever_withdrew_must_not_go_on_answering(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(rounds=1)
    run.round(1, trains=True)
    content = canonical(Withdrawal(run=RUN, reason="").model_dump())
    run.send("withdrawal", 0, {names.WITHDRAWAL: content}, "offer")
    assert verify(LocalFolder(run.drop)).findings == []
    run.round(2, trains=False)
    found = {finding.file: finding.what for finding in verify(LocalFolder(run.drop)).findings}
    assert found == {
        MessageRef("update", RUN, 2).manifest: "was sent after the site had withdrawn from the run",
        MessageRef("round", RUN, 2).manifest: "was signed although the site's withdrawal from the run was known",
    }
