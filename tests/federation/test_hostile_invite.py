"""An invite is a stranger's file until somebody trusts it: where it may lead, and which keys it may pin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aggregator.setup import initialise
from shared.errors import ActionRequiredError, RejectedError
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.messages import Invite, SiteCard
from shared.exchange.records.values import now_text
from shared.exchange.trust import open_site_card
from shared.folder.address import checked_address
from site_client.cli import main
from tests import SOME_KEY

SMALL_ORDER = [
    "01" + "00" * 31,
    "00" * 32,
    "00" * 31 + "80",
    "ec" + "ff" * 30 + "7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
"""Under each of these anybody can sign: RFC 8032's curve has eight such points."""
NON_CANONICAL = ["ed" + "ff" * 30 + "7f", "ee" + "ff" * 30 + "7f", "01" + "00" * 30 + "80", "ff" * 32]
"""Coordinates at or above the field's prime, and a sign where there is none."""
LEADS_ASTRAY = {
    "this-machine": "file:///etc",
    "another-machine": "file:////server/share",
    "unc": r"\\server\share",
    "plain-http": "http://cloud.example.org/dav/north/",
    "ftp": "ftp://cloud.example.org/dav/north/",
    "path": "/srv/folder",
    "password": "https://north:secret@cloud.example.org/dav/north/",
    "escape": "https://cloud.example.org/\x1b[2J/",
}


@pytest.fixture(scope="module")
def invite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    work = tmp_path_factory.mktemp("aggregator")
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    content: dict[str, object] = json.loads((work / "invites" / "north.json").read_bytes())
    return content


def joined(home: Path, invite: dict[str, object], *options: str) -> Result:
    (home / "invite.json").write_text(json.dumps(invite))
    (home / "password").write_text("of the folder")
    (home / "password").chmod(0o600)
    arguments = ["join", str(home / "invite.json"), "--work", str(home / "work"), *options]
    return CliRunner().invoke(main, [*arguments, "--password-file", str(home / "password")])


@pytest.mark.parametrize("url", LEADS_ASTRAY.values(), ids=LEADS_ASTRAY)
def test_an_invite_leads_to_no_file_and_sends_no_password_in_the_clear(
    tmp_path: Path, invite: dict[str, object], url: str
) -> None:
    result = joined(tmp_path, invite | {"url": url})
    assert result.exit_code == 2
    assert f"{tmp_path / 'invite.json'}: url: " in result.output
    assert "get the file anew from the aggregator's people" in result.output
    assert url not in result.output
    assert not (tmp_path / "work").exists()


def test_it_names_a_folder_of_this_machine_who_types_it_alone(tmp_path: Path, invite: dict[str, object]) -> None:
    (tmp_path / "drop").mkdir()
    del invite["url"]
    assert "the invite names no address: name the folder of this site with --url" in joined(tmp_path, invite).output
    result = joined(tmp_path, invite, "--url", (tmp_path / "drop").as_uri())
    assert "this is now site north of retina" in result.output
    assert f'url: "{(tmp_path / "drop").as_uri()}"' in (tmp_path / "work" / "site.yaml").read_text()


def test_an_aggregator_whose_folders_are_on_its_machine_puts_no_address_into_invites(tmp_path: Path) -> None:
    initialise(tmp_path, "retina", {"north": (tmp_path / "drop").as_uri()}, AGGREGATOR)
    assert "url" not in json.loads((tmp_path / "invites" / "north.json").read_bytes())


def test_a_folder_of_another_machine_is_none_even_if_it_is_typed() -> None:
    with pytest.raises(ActionRequiredError, match="is that of another machine's folder"):
        checked_address("file:////server/share")


def test_an_address_with_a_character_that_no_path_has_is_malformed() -> None:
    with pytest.raises(ActionRequiredError, match="is malformed"):
        checked_address("file:///drop%00folder")


@pytest.mark.parametrize("key", [*SMALL_ORDER, *NON_CANONICAL])
def test_a_key_under_which_anybody_can_sign_is_pinned_by_nobody(
    tmp_path: Path, invite: dict[str, object], key: str
) -> None:
    result = joined(tmp_path, invite | {"aggregator_key": key})
    assert result.exit_code == 2
    assert "aggregator_key: must be a public key that Ed25519 makes" in result.output
    card = SiteCard.model_construct(
        protocol=2, kind="site", federation="retina", site="north", key=key, encryption_key=None, software="",
        enrolment="0" * 64, created=now_text(),
    )  # fmt: skip
    with pytest.raises(RejectedError):
        open_site_card(signed_by_anybody(key, card), federation="retina", site="north", secret=None)


def signed_by_anybody(key: str, card: SiteCard) -> bytes:
    """The card with the signature that holds for a key of order 1: R is the key, S is 0."""
    from shared.exchange.signing import canonical

    return canonical({"body": card.model_dump(exclude_none=True), "key": key, "signature": key + "00" * 32})


@given(key=st.binary(min_size=32, max_size=32))
def test_whatever_a_key_is_it_is_a_key_or_a_sentence(key: bytes) -> None:
    values = {"federation": "retina", "site": "north", "user": "north", "enrolment_secret": "0" * 64}
    try:
        found = Invite.model_validate(values | {"aggregator_key": key.hex()})
    except ValidationError as error:
        assert "must be a public key that Ed25519 makes" in str(error)
    else:
        assert found.aggregator_key == key.hex()
    assert Invite.model_validate(values | {"aggregator_key": SOME_KEY}).url is None
