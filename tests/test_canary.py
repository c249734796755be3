"""What is told is found: in a file, in output, as it is or in the header of a request."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from shared.exchange.signing import SigningKey
from tests.canary import password_of, tells, told_below, without_secrets

SECRET = "5e" * 32


@pytest.mark.parametrize("user", ["a", "no", "one", "north", "aggregator", "zoë"])
def test_a_password_is_found_as_it_is_and_in_base64(user: str) -> None:
    password = password_of(user)
    assert tells(f"said: {password}!".encode())
    for account in (password, f"{user}:{password}", f"another-user:{password}"):
        assert tells(b"Basic " + base64.b64encode(account.encode()))
    assert not tells(b"Basic " + base64.b64encode(f"{user}:another password of that length".encode()))


def report(said: str) -> pytest.TestReport:
    where = ("tests/test_x.py", 1, "test_x")
    return pytest.TestReport("x", where, {}, "passed", None, "call", sections=[("Captured log call", said)])


def test_a_test_that_tells_a_password_fails() -> None:
    assert without_secrets(report("all is well")).passed
    assert without_secrets(report(f"logging in with {password_of('north')}\n")).failed


def test_secrets_are_found_where_they_do_not_belong(tmp_path: Path) -> None:
    """In the places for them they may lie."""
    key = tmp_path / "sites" / "north" / "signing.key"
    SigningKey.made_at(key)
    (tmp_path / "invites").mkdir()
    (tmp_path / "invites" / "north.json").write_text(json.dumps({"enrolment_secret": SECRET}))
    (tmp_path / "passwords").mkdir()
    for name in ("passwords/north", "sites/north/password", "server.json"):
        (tmp_path / name).write_text(password_of("north"))
    (tmp_path / "sites" / "north" / "model.safetensors").write_bytes(bytes(1000))
    assert told_below(tmp_path) == []
    told = {
        "log.txt": f"north: {password_of('north')}",
        "status.json": base64.b64encode(f"north:{password_of('north')}".encode()).decode(),
        "sites/north/site.json": f'"secret":"{SECRET}"',
        "sites/north/output.txt": key.read_text(),
    }
    for name, text in told.items():
        (tmp_path / name).write_text(text)
    assert told_below(tmp_path) == sorted(tmp_path / name for name in told)
