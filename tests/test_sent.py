"""``dropfed-site sent``: what left a hospital, from its work directory alone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Withdrawal
from shared.exchange.signing import canonical
from site_client.cli import main
from tests.played import RUN, TENSORS, Played


def sent(work: Path, *options: str) -> Result:
    result = CliRunner().invoke(main, ["sent", "--work", str(work), *options])
    assert "Traceback" not in result.output
    return result


def of_files(result: Result) -> dict[str, dict[str, object]]:
    return {file["path"]: file for message in json.loads(result.output)["messages"] for file in message["files"]}


@pytest.fixture
def played(tmp_path: Path) -> Played:
    """A round that trains and one that does not."""
    both = Played(tmp_path)
    (tmp_path / "north" / "mirror" / names.FEDERATION).write_bytes((both.drop / names.FEDERATION).read_bytes())
    both.offer_and_consent(groups={"trained": {"control": TENSORS.tensors}}, rounds=1)
    both.round(1, trains=True, from_site=["control"])
    both.round(2, trains=False)
    return both


def test_every_file_of_the_site_in_the_folder_is_told_with_its_hash(played: Played, tmp_path: Path) -> None:
    files = of_files(sent(tmp_path / "north", "--json"))
    there = {
        path.relative_to(played.drop).as_posix(): path.read_bytes()
        for path in played.drop.rglob("*")
        if path.is_file()
        and (path.name == names.SITE_CARD or path.parent.name in ("consent", "from_site", "withdrawal"))
    }
    assert {path: (file["bytes"], file["sha256"]) for path, file in files.items()} == {
        path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in there.items()
    }
    assert {path.rpartition("/")[2] for path in there} == {
        "site.json",
        "consent.json",
        "manifest.json",
        "metrics.csv",
        "model.safetensors",
        "state-control.safetensors",
    }


def test_weights_are_told_by_name_and_shape(played: Played, tmp_path: Path) -> None:
    result = sent(tmp_path / "north", "--json")
    model = of_files(result)[f"{MessageRef('update', RUN, 1).path}/model.safetensors"]
    assert model["tensors"] == [
        {"name": "a", "dtype": "F32", "shape": [3, 2]},
        {"name": "b", "dtype": "F32", "shape": [1]},
    ]
    assert ", 2 tensors, 7 numbers\n" in sent(tmp_path / "north").output


def test_each_message_names_the_request_it_answers(played: Played, tmp_path: Path) -> None:
    state = json.loads(sent(tmp_path / "north", "--json").output)
    assert [(message["kind"], message["answers"], message["in_folder"]) for message in state["messages"]] == [
        ("card", "the invite", True),
        ("consent", f"the offer of run {RUN}", True),
        ("update", f"round 1 of run {RUN}", True),
        ("update", f"the closing round of run {RUN}", True),
    ]
    assert state["folder"] == "http://127.0.0.1/north"
    assert state["heartbeat"]["path"] == names.STATUS and "what troubles the site" in state["heartbeat"]["holds"]
    assert state["total"]["not_known_to_be_in_the_folder"] == 0


def test_what_was_only_signed_is_not_said_to_be_in_the_folder(played: Played, tmp_path: Path) -> None:
    withdrawal = canonical(Withdrawal(run=RUN, reason="").model_dump())
    asked = played.site.ledger.message(MessageRef("offer", RUN))
    assert asked is not None
    played.site.outbox.sign(MessageRef("withdrawal", RUN), {names.WITHDRAWAL: withdrawal}, in_reply_to=asked.digest)
    last = json.loads(sent(tmp_path / "north", "--json").output)["messages"][-1]
    assert (last["kind"], last["in_folder"]) == ("withdrawal", False)
    text = sent(tmp_path / "north").output
    assert "; is not known to be in the folder yet\n" in text
    assert "not known to be in the folder yet: 1 of these messages" in text
    played.site.outbox.publish()
    played.beat()
    assert json.loads(sent(tmp_path / "north", "--json").output)["messages"][-1]["in_folder"]


def test_an_answer_by_the_aggregator_is_certain_without_a_heartbeat(played: Played, tmp_path: Path) -> None:
    (tmp_path / "north" / names.STATUS).write_bytes(b"{torn")
    state = json.loads(sent(tmp_path / "north", "--json").output)
    assert state["heartbeat"] is None
    assert [message["in_folder"] for message in state["messages"]] == [True] * 4


def test_weights_that_were_pruned_are_still_listed(tmp_path: Path) -> None:
    both = Played(tmp_path)
    both.offer_and_consent(keep="last 1")
    both.round(1, trains=True)
    both.round(2, trains=True)
    both.site.outbox.prune(RUN)
    files = of_files(sent(tmp_path / "north", "--json"))
    first, second = (files[f"{MessageRef('update', RUN, number).path}/model.safetensors"] for number in (1, 2))
    assert (first["removed"], second["removed"]) == (True, False)
    assert first["tensors"] == second["tensors"] and len(first["sha256"]) == 64  # type: ignore[arg-type]
    assert "removed again, as the run's `keep` says" in sent(tmp_path / "north").output


@pytest.mark.parametrize("since", ["2999-01-01", "2999-01-01T00:00:00+02:00"])
def test_since_a_date_to_come_nothing_left(played: Played, tmp_path: Path, since: str) -> None:
    result = sent(tmp_path / "north", "--json", "--since", since)
    assert json.loads(result.output)["messages"] == []
    assert "in all 0 messages" in sent(tmp_path / "north", "--since", since).output


@pytest.mark.parametrize("since", ["1", "2020-01-31", "2020-01-31T10:00:00Z"])
def test_since_a_date_past_everything_left(played: Played, tmp_path: Path, since: str) -> None:
    assert len(json.loads(sent(tmp_path / "north", "--json", "--since", since).output)["messages"]) == 4


@pytest.mark.parametrize("since", ["yesterday", "", "-1", "0001-01-01T00:00:00+23:00"])
def test_since_something_else_is_a_sentence(played: Played, tmp_path: Path, since: str) -> None:
    result = sent(tmp_path / "north", "--since", since)
    assert result.exit_code == 2
    assert "must be a date, as 2026-01-31, or a number of days, as 30" in result.output


def test_a_token_in_the_address_is_not_shown(played: Played, tmp_path: Path) -> None:
    path = tmp_path / "north" / "site.yaml"
    url = "https://cloud.example.org/public.php/dav/files/sEcReT/"
    path.write_text(path.read_text().replace("http://127.0.0.1/north/", url))
    assert json.loads(sent(tmp_path / "north", "--json").output)["folder"] == (
        "https://cloud.example.org/public.php/dav/files/…"
    )
    assert "sEcReT" not in sent(tmp_path / "north").output


def test_a_directory_without_a_site_is_a_sentence(tmp_path: Path) -> None:
    assert "dropfed-site join" in sent(tmp_path).output
    assert sent(tmp_path / "none").exit_code == 2


def test_what_is_encrypted_is_told_as_it_left_and_by_what_it_holds(tmp_path: Path) -> None:
    both = Played(tmp_path)
    both.offer_and_consent(encrypt="weights")
    both.round(1, trains=True)
    path = f"{MessageRef('update', RUN, 1).path}/model.safetensors"
    model = of_files(sent(tmp_path / "north", "--json"))[path]
    left = (both.drop / path).read_bytes()
    assert (model["bytes"], model["sha256"]) == (len(left), hashlib.sha256(left).hexdigest())
    assert model["encrypted"] and len(model["tensors"]) == 2  # type: ignore[arg-type]
    assert ", 2 tensors, 7 numbers, encrypted for the aggregator\n" in sent(tmp_path / "north").output


def test_a_new_key_is_told_where_it_begins(played: Played, tmp_path: Path) -> None:
    work = tmp_path / "north"
    assert CliRunner().invoke(main, ["rotate-key", "--yes", "--work", str(work)]).exit_code == 0
    messages = json.loads(sent(work, "--json").output)["messages"]
    assert [message["kind"] for message in messages] == ["card", "consent", "update", "update", "handover"]
    content = (work / "mirror" / "keys" / "0002.json").read_bytes()
    (file,) = messages[-1]["files"]
    assert (file["path"], file["sha256"]) == ("keys/0002.json", hashlib.sha256(content).hexdigest())
    assert not messages[-1]["in_folder"]
