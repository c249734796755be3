"""What cannot be read, or is no file at all, is a finding; the rest is verified, and nothing keeps an audit waiting."""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from shared.audit.cli import main
from shared.audit.verify import Audit, verify
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.signing import SigningKey
from shared.folder.contract import MAX_ENTRIES
from shared.folder.local import LocalFolder
from tests.played import RUN, Played

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights, links and pipes of POSIX")

ROUND, UPDATE = MessageRef("round", RUN, 1), MessageRef("update", RUN, 1)
FILES = [
    *sorted(names.ROOT_FILES),
    UPDATE.manifest,
    f"{UPDATE.path}/{names.METRICS}",
    f"{UPDATE.path}/{names.SITE_MODEL}",
    f"{MessageRef('offer', RUN).path}/{names.RUN_CONFIGURATION}",
]
NAMES = (b"\x1b[2J\nall holds", b"\xff\xfe", b"x" * 255, b"\\ ;?")
COMMANDS = (["verify"], ["timeline"], ["show", "1"], ["sent", "north"], ["diff", RUN, RUN], ["digest", RUN])


@pytest.fixture
def copy(played: Played) -> Iterator[Path]:
    """Where another user may look, too."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        shutil.copytree(played.drop, Path(home) / "north")
        yield Path(home) / "north"


@contextmanager
def without_roots_rights() -> Iterator[None]:
    """Root may read everything; anybody else never could."""
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        yield
    finally:
        os.seteuid(was)


def looked_at(folder: Path) -> tuple[Audit, dict[str, str]]:
    audit = verify(LocalFolder(folder))
    return audit, {finding.file: finding.what for finding in audit.findings}


def cli(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize("path", [*FILES, f"runs/{RUN}/rounds/0002", "runs"])
def test_what_may_not_be_read_is_a_finding_and_the_rest_is_verified(copy: Path, path: str) -> None:
    verify(LocalFolder(copy))  # whatever is imported for it is imported as root
    other = copy / ROUND.path / names.ROUND_CONFIGURATION
    other.write_bytes(b"round: 9\n")
    is_there = path not in ("runs", names.FEDERATION)
    mode = (copy / path).stat().st_mode
    (copy / path).chmod(0)
    try:
        with without_roots_rights():
            audit, found = looked_at(copy)
            assert found[path].startswith("cannot be read: Permission denied")
            assert (other.relative_to(copy).as_posix() in found) == is_there
            assert audit.messages >= 5 or not is_there
            for command in COMMANDS:
                assert cli(*command, copy)[0] == (
                    2 if path == "runs" and command[0] in ("show", "diff", "digest") else 1
                )
    finally:
        (copy / path).chmod(mode)


@pytest.mark.parametrize("mode", [0, 0o400, 0o100])
def test_a_folder_that_may_not_be_looked_into_is_a_finding_beside_others_and_alone_could_not_be_checked(
    copy: Path, mode: int
) -> None:
    verify(LocalFolder(copy))
    shut = copy.with_name("south")
    shutil.copytree(copy, shut)
    shut.chmod(mode)
    try:
        with without_roots_rights():
            for refs in ([copy.parent], [shut, copy]):
                code, output = cli("verify", *refs)
                assert (code, f"{shut}/.: cannot be read: Permission denied\n" in output) == (1, True)
                assert f"{copy}/" not in output  # which was checked, and holds
                assert cli("timeline", *refs)[0] == 1
            code, output = cli("verify", shut)
            assert (code, output.startswith(f"{shut}: may not be read here; have a copy made")) == (2, True)
    finally:
        shut.chmod(0o755)


def test_what_hinders_an_audit_is_not_a_finding(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DROPFED_PASSWORD", "wrong")
    key = tmp_path / "auditor.key"
    key.write_text("no key")
    key.chmod(0o644)
    for command in (
        ["verify", "https://127.0.0.1:9/north", "--user", "auditor"],  # nobody listens on the port of `discard`
        ["verify", copy, "--secret-key", key],
        ["digest", RUN, copy, "--sign", key, "--output", tmp_path / "closing.json"],
    ):
        code, output = cli(*command)
        assert code == 2, output


def link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.name)


def link_out(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def link_inside(path: Path) -> None:
    path.symlink_to(path.with_name(names.FEDERATION))


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, link_to_nowhere, link_out, link_inside, listener])
@pytest.mark.parametrize("path", [names.FEDERATION, names.STATUS, UPDATE.manifest, f"{UPDATE.path}/{names.SITE_MODEL}"])
def test_what_is_no_file_where_one_belongs_is_a_finding(
    copy: Path, make: Callable[[Path], None], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy)
    (copy / path).unlink()
    make(copy / path)
    audit, found = looked_at(copy)
    assert [finding.file for finding in audit.findings].count(path) == 1
    assert ("folder that does not belong" if make is Path.mkdir else "no plain file") in found[path]
    assert audit.messages >= 8 or path == names.FEDERATION
    code, output = cli("verify", copy)
    assert (code, path in output) == (1, True)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, link_to_nowhere, link_out, Path.touch])
@pytest.mark.parametrize("where", ["", "runs", UPDATE.path])
def test_no_name_and_no_kind_of_entry_ends_an_audit(copy: Path, make: Callable[[Path], None], where: str) -> None:
    for name in NAMES:
        make(copy / where / os.fsdecode(name))
    audit, found = looked_at(copy)
    assert (len(found), audit.messages) == (len(NAMES), 9)
    for command in (["verify"], ["report", "--html", copy.parent / "page.html"]):
        code, output = cli(*command, copy)
        lines = len(output.splitlines())  # one for each finding, and what else holds
        assert (code, "\x1b" in output, lines <= len(NAMES) + 1) == (1, False, True)
    assert f"{len(NAMES)} findings" in (copy.parent / "page.html").read_text(encoding="utf-8")


def test_a_link_to_the_folder_above_is_not_followed(copy: Path) -> None:
    (copy / "runs" / "octa-2").symlink_to("..")
    assert looked_at(copy)[1] == {"runs/octa-2": "is no plain file, but a link, a pipe or the like"}


def test_what_is_endless_is_not_read_to_its_end(copy: Path) -> None:
    for path in (UPDATE.manifest, names.STATUS, f"{UPDATE.path}/{names.SITE_MODEL}"):
        os.truncate(copy / path, 1 << 40)
    found = looked_at(copy)[1]
    assert "larger than" in found[UPDATE.manifest] and "larger than" in found[names.STATUS]


def test_a_signed_table_of_any_size_is_not_read_whole(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    table = tmp_path / names.METRICS
    table.write_bytes(b"\n" * (2 << 20))
    run.sign_and_publish("update", 1, {names.METRICS: table})
    assert looked_at(run.drop)[1][f"{UPDATE.path}/{names.METRICS}"] == (
        "has 2097152 bytes, at most 1048576 are expected"
    )


@pytest.mark.parametrize("name", [names.METRICS, names.SITE_MODEL])
def test_what_a_manifest_says_is_endless_is_not_read_either(tmp_path: Path, name: str) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    run.sign_and_publish("update", 1, run.from_site(1, trains=True))
    body = json.loads((run.drop / UPDATE.manifest).read_bytes())["body"]
    body["files"][name] |= {"size": 1 << 40, "sha256": "0" * 64}
    (run.drop / UPDATE.manifest).write_bytes(SigningKey.at(tmp_path / "north" / "signing.key").sign(body))
    os.truncate(run.drop / UPDATE.path / name, 1 << 40)
    said = looked_at(run.drop)[1][f"{UPDATE.path}/{name}"]
    assert said.startswith("has 1099511627776 bytes, at most ") and said.endswith(" are expected")


def test_a_folder_of_too_many_files_is_one_finding(copy: Path) -> None:
    for number in range(MAX_ENTRIES):
        os.close(os.open(copy / UPDATE.path / f"{number}", os.O_CREAT))
    audit, found = looked_at(copy)
    assert found[UPDATE.path] == f"holds more than {MAX_ENTRIES} entries"
    assert audit.messages == 8
