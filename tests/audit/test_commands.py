"""What the commands tell of folders: all of it there, in order, and read without changing anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shared.audit.cli import main
from shared.audit.closing import Closing, tree_digest
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.messages import Head, Status
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import SigningKey, digest_of, fingerprint
from site_client.rotation import rotate
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played


@pytest.fixture(scope="module")
def copy(played: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("copy") / "north"
    shutil.copytree(played.drop, target)
    return target


def cli(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout


def told(*arguments: object) -> Any:
    code, output = cli(*arguments, "--json")
    assert code == 0, output
    return json.loads(output)


def digest_file(folder: Path, ref: MessageRef) -> str:
    return digest_of((folder / ref.manifest).read_bytes())


def test_reading_changes_nothing(copy: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.is_dir() or path.read_bytes()) for path in copy.rglob("*")}
    for command in (["timeline"], ["show", "1"], ["sent", "north"], ["diff", RUN, RUN], ["digest", RUN], ["verify"]):
        assert cli(*command, copy)[0] == 0, command
    assert {path: (path.stat().st_mtime_ns, path.is_dir() or path.read_bytes()) for path in copy.rglob("*")} == before


def test_a_key_that_is_not_the_folder_s_is_told_as_that_of_the_option(copy: Path) -> None:
    code, said = cli("verify", "--key", "ab" * 32, copy)
    key = json.loads((copy / names.FEDERATION).read_bytes())["key"]
    assert code == 1
    assert f"federation.json: is signed by the key {key}, and --key names {'ab' * 32}: compare the two" in said
    assert cli("verify", "--key", key, copy)[0] == 0


def test_a_folder_that_does_not_say_whose_it_is_comes_with_what_to_do(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(copy, tmp_path / "north")
    (tmp_path / "north" / names.FEDERATION).unlink()
    result = CliRunner().invoke(main, ["timeline", str(tmp_path / "north")])
    assert result.exit_code == 1
    assert "federation.json: is missing; nothing of this folder can be told: see what" in result.stderr


def test_the_timeline_has_every_message_after_what_it_answers(copy: Path) -> None:
    events = told("timeline", copy)
    assert [event["kind"] for event in events] == [
        *("offer", "consent", "round", "update", "verdict", "round", "update", "verdict", "final")
    ]
    seen = {names.SITE_CARD}
    for event in events:
        assert event["answers"] in seen
        seen.add(event["path"])
        sizes = sum(path.stat().st_size for path in (copy / event["path"]).iterdir())
        assert event["size_bytes"] == sizes
        assert event["digest"] == digest_of((copy / event["path"] / names.MANIFEST).read_bytes())
    assert {(event["sender"], event["key"]) for event in events} == {
        (sender, json.loads((copy / names.FEDERATION).read_bytes())["body"][f"{kind}_key"])
        for sender, kind in (("aggregator", "aggregator"), ("north", "site"))
    }
    assert events[3]["outcome"] == "accepted"
    assert events[4]["outcome"] == "accepted, weight 1.0000: ok"
    code, output = cli("timeline", copy)
    assert (code, len(output.splitlines())) == (0, 9)


def test_a_round_is_shown_with_its_metrics_and_its_verdict(copy: Path) -> None:
    document = told("show", f"{RUN}/1", copy)
    assert document == told("show", "1", copy, "--run", RUN) == told("show", "0001", copy)
    north = document["sites"]["north"]
    assert north["asked"]["digest"] == digest_file(copy, MessageRef("round", RUN, 1))
    assert north["answered"]["files"][names.SITE_MODEL]["state"] == "there"
    assert [row["scores"] for row in north["metrics"]] == [{"dice_mean": None, "dice_std": 0.1}]
    assert (north["verdict"]["status"], north["verdict"]["reason"], north["problems"]) == ("accepted", "ok", [])
    text = cli("show", "1", copy)[1]
    assert "metrics as received, validation, 10 images: loss 0.5, dice_std 0.1" in text
    assert "verdict: accepted, weight 1.0000: ok" in text


@pytest.mark.parametrize("which", ["9", "nothing", "octa-2/1", "1/"])
def test_a_round_that_is_not_there_is_one_sentence(copy: Path, which: str) -> None:
    result = CliRunner().invoke(main, ["show", which, str(copy)])
    assert (result.exit_code, len(result.stderr.splitlines()), result.stdout) == (2, 1, "")


def test_what_was_sent_is_every_file_with_its_tensors(copy: Path) -> None:
    found = told("sent", "north", copy)
    assert [each["path"] for each in found] == [
        names.SITE_CARD,
        MessageRef("consent", RUN).path,
        MessageRef("update", RUN, 1).path,
        MessageRef("update", RUN, 2).path,
        names.STATUS,
    ]
    update = found[2]
    assert update["answers"] == MessageRef("round", RUN, 1).path
    metrics, model, manifest = update["files"]
    assert (manifest["name"], manifest["sha256"]) == (names.MANIFEST, update["digest"])
    assert (metrics["name"], metrics["tensors"]) == (names.METRICS, None)
    content = (copy / update["path"] / names.SITE_MODEL).read_bytes()
    assert (model["bytes"], model["sha256"], model["state"]) == (len(content), digest_of(content), "there")
    assert model["tensors"] == [
        {"name": name, "dtype": "F32", "shape": each.shape} for name, each in TENSORS.tensors.items()
    ]
    code, output = cli("sent", "north", copy)
    assert code == 0
    assert output.splitlines()[-1] == f"5 messages and records, 9 files, {_bytes(found):,} bytes"
    assert "    2 tensors, 7 values" in output.splitlines()
    assert cli("sent", "south", copy)[0] == 2


def _bytes(found: list[dict[str, Any]]) -> int:
    return sum(file["bytes"] for each in found for file in each["files"])


def with_new_keys(root: Path) -> tuple[Played, list[str]]:
    """A run whose site handed its key over twice, and its three keys."""
    run = Played(root)
    run.offer_and_consent()
    keys = [SigningKey.at(root / "north" / "signing.key").public]
    keys += [rotate(root / "north").key for _ in range(2)]
    shutil.copytree(root / "north" / "mirror" / names.KEYS, run.drop / names.KEYS)
    return run, keys


def test_new_keys_are_among_what_was_sent_each_with_the_key_that_signed_it(tmp_path: Path) -> None:
    run, keys = with_new_keys(tmp_path)
    found = told("sent", "north", run.drop)
    assert [each["path"] for each in found] == [
        names.SITE_CARD,
        MessageRef("consent", RUN).path,
        "keys/0002.json",
        "keys/0003.json",
        names.STATUS,
    ]
    assert [each["key"] for each in found] == [keys[0], keys[0], keys[0], keys[1], keys[0]]  # the heart beat before
    assert found[3]["digest"] == digest_of((run.drop / "keys" / "0003.json").read_bytes())


def test_the_timeline_has_each_new_key_where_it_begins_to_sign(tmp_path: Path) -> None:
    run, keys = with_new_keys(tmp_path)
    events = told("timeline", run.drop)
    assert [(event["kind"], event["path"]) for event in events] == [
        ("offer", MessageRef("offer", RUN).path),
        ("consent", MessageRef("consent", RUN).path),
        ("handover", "keys/0002.json"),
        ("handover", "keys/0003.json"),
    ]
    handovers = [event for event in events if event["kind"] == "handover"]
    assert [(each["key"], each["new_key"], each["from_seq"]) for each in handovers] == [
        (keys[0], keys[1], 2),
        (keys[1], keys[2], 2),
    ]
    line = cli("timeline", run.drop)[1].splitlines()[2]
    said = f"hand-over keys/0002.json  key {fingerprint(keys[0])}  from message 2 on key {fingerprint(keys[1])}"
    assert line.endswith(f"north -> aggregator  {said}")


def test_what_was_removed_by_the_rule_is_said(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(keep="last 1")
    run.round(1, trains=True)
    run.round(2, trains=True)
    (run.drop / MessageRef("update", RUN, 1).path / names.SITE_MODEL).unlink()
    of_first, of_second = told("sent", "north", run.drop)[2:4]
    assert [(file["name"], file["state"]) for file in of_first["files"]] == [
        (names.METRICS, "there"),
        (names.SITE_MODEL, "removed"),
        (names.MANIFEST, "there"),
    ]
    assert {file["state"] for file in of_second["files"]} == {"there"}
    (run.drop / MessageRef("update", RUN, 2).path / names.SITE_MODEL).unlink()
    code, output = cli("sent", "north", run.drop, "--json")
    assert (code, json.loads(output)[3]["files"][1]["state"]) == (1, "missing")


def test_a_file_that_was_changed_is_called_so_by_show_as_by_sent(copy: Path, tmp_path: Path) -> None:
    broken = tmp_path / "north"
    shutil.copytree(copy, broken)
    with (broken / MessageRef("update", RUN, 1).path / names.SITE_MODEL).open("ab") as file:
        file.write(b"x")
    code, output = cli("show", "1", broken, "--json")
    of_show = json.loads(output)["sites"]["north"]["answered"]["files"]
    _, output = cli("sent", "north", broken, "--json")
    answer = next(each for each in json.loads(output) if each["path"] == MessageRef("update", RUN, 1).path)
    of_sent = {file["name"]: file["state"] for file in answer["files"]}
    assert code == 1
    assert of_show[names.SITE_MODEL]["state"] == of_sent[names.SITE_MODEL] != "there"
    assert of_show[names.METRICS]["state"] == "there"


@pytest.mark.parametrize("lost", [f"runs/{RUN}/rounds/0002", f"runs/{RUN}/rounds/0001/verdict", "status.json"])
def test_no_command_passes_over_a_gap_and_nothing_is_signed_that_does_not_hold(
    copy: Path, tmp_path: Path, lost: str
) -> None:
    broken = tmp_path / "north"
    shutil.copytree(copy, broken)
    shutil.rmtree(broken / lost) if (broken / lost).is_dir() else (broken / lost).unlink()
    for command in (["timeline"], ["show", "1"], ["sent", "north"], ["diff", RUN, RUN], ["digest", RUN]):
        assert cli(*command, broken)[0] == 1, command
    SigningKey.made_at(tmp_path / "auditor.key")
    signed = tmp_path / "signed.json"
    assert cli("digest", RUN, broken, "--sign", tmp_path / "auditor.key", "--output", signed)[0] == 1
    assert not signed.exists()
    assert cli("digest", RUN, copy, "--sign", tmp_path / "auditor.key", "--output", signed)[0] == 0
    before = signed.read_bytes()
    assert cli("digest", RUN, copy, "--sign", tmp_path / "auditor.key", "--output", signed)[0] == 2
    assert signed.read_bytes() == before


def test_runs_differ_in_what_they_say(tmp_path: Path) -> None:
    run = Played(tmp_path)
    for name, score in (("octa-1", "0.9"), ("octa-2", "0.8")):
        run.run = name
        run.offer_and_consent(keep="all" if name == "octa-1" else "best")
        run.round(1, trains=True, score=score)
        run.finish()
    assert told("diff", "octa-1", "octa-2", run.drop) == {
        "configuration.keep": ["all", "best"],
        "outcome.round 1.north.score": ["0.9", "0.8"],
    }
    text = cli("diff", "octa-1", "octa-2", run.drop)[1]
    assert text.splitlines()[0] == "configuration.keep: all in octa-1, best in octa-2"
    assert "do not differ" in cli("diff", "octa-1", "octa-1", run.drop)[1]
    assert cli("diff", "octa-1", "octa-3", run.drop)[0] == 2


def test_the_tree_is_that_of_rfc_6962() -> None:
    """Roots published with certificate-transparency-go's reference tests, of its first entries."""
    entries = [b"", b"\x00", b"\x10", b"\x20\x21", b"\x30\x31", b"\x40\x41\x42\x43"]
    roots = {
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    }
    assert {count: tree_digest(entries[:count]) for count in roots} == roots


def test_a_digest_is_signed_and_compared(copy: Path, tmp_path: Path) -> None:
    key, signed = tmp_path / "auditor.key", tmp_path / "closing.json"
    code, public = cli("make-key", key)
    assert (code, public.strip()) == (0, SigningKey.at(key).public)
    assert cli("make-key", key)[0] == 2
    document = told("digest", RUN, copy)
    manifests = sorted(copy.glob("runs/**/manifest.json"), key=lambda path: path.relative_to(copy).as_posix())
    assert document["root"] == tree_digest([path.read_bytes() for path in manifests])
    assert document["sites"]["north"] == {"manifests": 9, "root": document["root"]}
    paper = cli("digest", RUN, copy)[1]
    assert document["root"] == "".join(paper.splitlines()[1].split() + paper.splitlines()[2].split())
    assert cli("digest", RUN, copy, "--sign", key, "--output", signed)[0] == 0
    assert cli("digest", RUN, copy, "--check", signed, "--signer", public.strip())[0] == 0
    assert cli("digest", RUN, copy, "--sign", key)[0] == 2
    no_key = CliRunner().invoke(main, ["digest", RUN, str(copy), "--sign", __file__, "--output", str(key) + ".json"])
    assert no_key.stderr.endswith("is no key; make one with `make-key`\n")
    assert cli("digest", "octa-9", copy)[0] == 2

    other = tmp_path / "north"
    shutil.copytree(copy, other)
    shutil.rmtree(other / MessageRef("final", RUN).path)
    result = CliRunner().invoke(main, ["digest", RUN, str(other), "--check", str(signed)])
    assert result.exit_code == 1
    assert f"{signed}: north: it covers 9 manifests" in result.stdout
    assert "has not ended" in result.stderr
    signed.write_bytes(signed.read_bytes().replace(b'"manifests":9', b'"manifests":8'))
    result = CliRunner().invoke(main, ["digest", RUN, str(copy), "--check", str(signed)])
    assert (result.exit_code, "signature does not hold" in result.stderr and str(signed) in result.stderr) == (1, True)


def test_a_statement_that_cannot_be_compared_is_no_finding(copy: Path, tmp_path: Path) -> None:
    signed, key = tmp_path / "closing.json", SigningKey.made_at(tmp_path / "auditor.key")
    found = Closing.model_validate(told("digest", RUN, copy))
    wider = found.model_copy(update={"sites": found.sites | {"south": found.sites["north"]}})
    for statement, code, said in (
        (found, 0, "is of these very manifests"),
        (wider, 2, "it covers south, whose folder is not here"),
        (found.model_copy(update={"run": "octa-9"}), 2, f"it is of run octa-9 of retina, here is {RUN} of retina"),
        (found.model_copy(update={"root": "0" * 64}), 1, f"its digest is {'0' * 64}, here it is {found.root}"),
    ):
        signed.write_bytes(key.sign(statement.model_dump()))
        result = CliRunner().invoke(main, ["digest", RUN, str(copy), "--check", str(signed)])
        assert (result.exit_code, result.stdout.endswith(f"{signed}: {said}\n")) == (code, True), result.output
    manifest = copy / MessageRef("offer", RUN).manifest
    for none in (manifest, tmp_path / "auditor.key", copy / "README.txt"):
        result = CliRunner().invoke(main, ["digest", RUN, str(copy), "--check", str(none)])
        said = f"{none}: is not a well-formed closing digest; name the file that `digest --sign` wrote\n"
        assert (result.exit_code, result.stderr) == (2, said)


def test_nobody_who_is_audited_signs_a_digest(played: Played, tmp_path: Path) -> None:
    home = played.drop.parent
    keys = [home / whose / name for whose in ("aggregator", "north") for name in ("signing.key", "encryption.key")]
    for key in keys:
        asked = ["digest", RUN, str(played.drop), "--sign", str(key), "--output", str(tmp_path / "closing.json")]
        result = CliRunner().invoke(main, asked)
        said = f"{key}: is a key of those who are audited; make one of your own with `make-key`\n"
        assert (result.exit_code, result.stderr) == (2, said)
    assert not [*tmp_path.iterdir()]


def test_findings_leave_untouched_what_they_are_not_about(copy: Path, tmp_path: Path) -> None:
    broken = tmp_path / "north"
    shutil.copytree(copy, broken)
    (broken / MessageRef("update", RUN, 1).path / names.METRICS).write_bytes(b"")
    (broken / "README.txt").write_text("another text")
    result = CliRunner().invoke(main, ["verify", str(broken)])
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 2)
    assert result.stderr.endswith("2 findings at 2 places; no finding is about 8 of 9 messages in 1 folder\n")
    (broken / names.FEDERATION).write_bytes(b"{}")
    result = CliRunner().invoke(main, ["verify", str(broken)])
    assert result.exit_code == 1
    assert "0 messages in 0 folders; 1 folder could not be checked at all" in result.stderr


def test_a_statement_is_worth_what_its_signer_is(copy: Path, tmp_path: Path) -> None:
    signed, keys = tmp_path / "closing.json", [SigningKey.made_at(tmp_path / name).public for name in ("one", "other")]
    assert cli("digest", RUN, copy, "--sign", tmp_path / "one", "--output", signed)[0] == 0

    def checked(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["digest", RUN, str(copy), *arguments])
        return result.exit_code, result.output

    code, said = checked("--check", str(signed))
    assert (code, f"by key {keys[0]}" in said, "nobody vouches for" in said) == (0, True, True)
    code, said = checked("--check", str(signed), "--signer", keys[0])
    assert (code, f"by key {keys[0]}" in said, "nobody vouches for" in said) == (0, True, False)
    code, said = checked("--check", str(signed), "--signer", keys[1])
    assert (code, f"another key than {keys[1]}" in said, "these very manifests" in said) == (1, True, False)
    assert checked("--signer", keys[0])[0] == 2
    code, said = checked("--check", str(signed), "--signer", "50d4 9b22")
    assert (code, said.startswith("--signer: must be the 64 hexadecimal digits")) == (2, True)


def test_a_digest_says_whose_folder_it_is_without(tmp_path: Path) -> None:
    run = Played(tmp_path)
    offer = run_configuration(run=RUN, sites=["north", "south"], quorum=1)
    sharing = Sharing(tensors=TENSORS.tensors, start={}, personal=[])
    run.send("offer", 0, {names.RUN_CONFIGURATION: dump_yaml(offer), names.TENSORS: dump_yaml(sharing)}, None)
    result = CliRunner().invoke(main, ["digest", RUN, str(run.drop)])
    assert "south: is of this run, and its folder is not here" in result.stderr
    assert "north: is of this run" not in result.stderr


@pytest.mark.parametrize(
    ("lost", "gap", "goes_on"),
    [
        (MessageRef("update", RUN, 1), ("north", 2, 2), MessageRef("update", RUN, 2).path),
        (MessageRef("verdict", RUN, 1), ("aggregator", 3, 3), MessageRef("round", RUN, 2).path),
        (MessageRef("final", RUN), ("aggregator", 6, 6), None),
    ],
)
def test_a_gap_stands_where_its_sender_goes_on(
    copy: Path, tmp_path: Path, lost: MessageRef, gap: tuple[str, int, int], goes_on: str | None
) -> None:
    broken = tmp_path / "north"
    shutil.copytree(copy, broken)
    shutil.rmtree(broken / lost.path)
    code, output = cli("timeline", broken, "--json")
    events = json.loads(output)
    (at,) = [at for at, event in enumerate(events) if event["kind"] == "gap"]
    assert (code, len(events)) == (1, 9)
    assert tuple(events[at][name] for name in ("sender", "first", "last")) == gap
    assert [event["path"] for event in events[at + 1 : at + 2]] == ([goes_on] if goes_on else [])
    text = cli("timeline", broken)[1].splitlines()
    assert f"number {gap[1]}: taken away, still on the way, or not right" in text[at]
    assert any("answers a message that is not here" in line for line in text) == (lost.kind == "update")


def test_an_aggregators_work_directory_has_every_folder(played: Played) -> None:
    work = played.drop.parent / "aggregator"
    assert cli("verify", work)[0] == 0
    assert told("timeline", work) == told("timeline", played.drop)
    assert cli("timeline", work, played.drop)[0] == 2


def test_what_an_aggregator_has_not_fetched_yet_is_on_its_way(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    heartbeat = (run.drop / names.STATUS).read_bytes()
    run.sign_and_publish("update", 1, run.from_site(1, trains=True))
    run.beat()
    beside = tmp_path / "aggregator" / "sites" / "north" / names.STATUS
    beside.write_bytes((run.drop / names.STATUS).read_bytes())
    code, said = cli("verify", tmp_path / "aggregator")
    assert (code, "3 messages, 1 on their way (message 2 of north)" in said) == (0, True)
    assert cli("timeline", tmp_path / "aggregator")[0] == 0
    shutil.rmtree(run.drop / MessageRef("update", RUN, 1).path)
    assert cli("verify", run.drop)[0] == 1  # in the folder itself a heartbeat never comes first
    status = Status.model_validate(json.loads(heartbeat)["body"])
    other = status.model_copy(update={"own_head": Head(seq=1, digest="0" * 64)})
    beside.write_bytes(SigningKey.at(tmp_path / "north" / "signing.key").sign(other.model_dump()))
    code, said = cli("verify", tmp_path / "aggregator")
    assert (code, f"{MessageRef('consent', RUN).manifest}: is not the number 1 of north that status.json" in said) == (
        1,
        True,
    )


def test_two_folders_of_one_site_are_refused(copy: Path, played: Played) -> None:
    result = CliRunner().invoke(main, ["timeline", str(copy), str(played.drop)])
    assert (result.exit_code, "second folder of north" in result.stderr) == (2, True)


def test_a_folder_that_does_not_hold_is_shown_and_said_to_be_so(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "north"
    shutil.copytree(copy, other)
    (other / "notes.txt").write_bytes(b"x")
    result = CliRunner().invoke(main, ["timeline", str(other)])
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 9)
    assert "run `dropfed-audit verify`" in result.stderr
    (other / names.FEDERATION).write_bytes(b"{}")
    result = CliRunner().invoke(main, ["timeline", str(other)])
    assert (result.exit_code, result.stdout) == (1, "")
