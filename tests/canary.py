"""The passwords of the tests. Each holds the canary, so that one which is told anywhere is found.

What a test prints or logs is searched for it (``tests/conftest.py``), and so is all that a federation leaves behind.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

CANARY = secrets.token_hex(16)
PLACES = (
    "password",
    "passwords",
    "passwords-for-sites",
    "signing.key",
    "server.json",
    "invites",
)  # files for secrets, and folders for them


def password_of(user: str) -> str:
    """A user's password, for this session."""
    return f"{user}-{CANARY}"


def _forms() -> Iterator[bytes]:
    """The canary as it is, and as it is found within the Base64 of whatever holds it."""
    yield CANARY.encode()
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + CANARY.encode())
        yield encoded[4 if before else 0 : -4]  # without what neighbours have a part in


FORMS = tuple(_forms())


def tells(content: bytes, others: Collection[bytes] = ()) -> bool:
    """Whether a password of the tests, or one of these other secrets, is in ``content``."""
    return any(secret in content for secret in (*FORMS, *others))


def told_below(root: Path) -> list[Path]:
    """The files below ``root`` that hold a password, enrolment secret or private key and are not there for that."""
    files = [path for path in root.rglob("*") if path.is_file()]
    others = [path.read_bytes().strip() for path in files if path.name == "signing.key"]
    others += [
        json.loads(path.read_bytes())["enrolment_secret"].encode() for path in files if path.parent.name == "invites"
    ]
    suspects = {}  # by content: models are linked, not copied
    for path in files:
        if not {path.name, path.parent.name} & set(PLACES):
            suspects[path.stat().st_dev, path.stat().st_ino] = path
    return sorted(path for path in suspects.values() if tells(path.read_bytes(), others))


def without_secrets(report: pytest.TestReport) -> pytest.TestReport:
    """Make a test fail whose output tells a password."""
    if report.passed and any(tells(text.encode(errors="replace")) for _, text in report.sections):
        report.outcome = "failed"
        report.longrepr = "a password is in what was printed or logged meanwhile"
    return report
