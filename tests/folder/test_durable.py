"""What is written is on the disk before it takes its name, and its name is before the caller goes on."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shared.errors import ActionRequiredError
from shared.exchange.encryption import EncryptionKey
from shared.folder.durable import (
    ARRIVING,
    copy_content,
    disk_trouble,
    link_file,
    put_where_nothing_is,
    read_private,
    temporary_name,
    write_file,
    writing,
)
from shared.folder.lock import LOCK, make_work, work_lock
from shared.folder.ownership import give_file
from shared.folder.partial import Partial
from shared.logs import _LogFile


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every fsync, of a file with what it held and of a folder, and every rename, in order."""
    found: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor: int) -> None:
        state = os.fstat(descriptor)
        found.append("folder" if stat.S_ISDIR(state.st_mode) else f"file of {state.st_size}")
        sync(descriptor)

    def noted_replace(source: Path, target: Path) -> Path:
        found.append(f"{source.name} becomes {target.name}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    return found


def test_a_file_is_on_the_disk_before_it_is_renamed_and_the_name_after(tmp_path: Path, steps: list[str]) -> None:
    write_file(tmp_path / "model", b"12345")
    assert steps == ["file of 5", f"{temporary_name('model')} becomes model", "folder"]
    assert (tmp_path / "model").read_bytes() == b"12345"


def test_what_could_not_be_written_leaves_what_was_there(tmp_path: Path, steps: list[str]) -> None:
    write_file(tmp_path / "model", b"old")
    steps.clear()
    with pytest.raises(OSError, match="full"), writing(tmp_path / "model") as file:
        file.write(b"new")
        raise OSError("full")
    assert (steps, [path.name for path in tmp_path.iterdir()]) == ([], ["model"])
    assert (tmp_path / "model").read_bytes() == b"old"


def test_what_only_tells_people_waits_for_no_disk(tmp_path: Path, steps: list[str]) -> None:
    write_file(tmp_path / "transfer.json", b"12345", durable=False)
    assert steps == [f"{temporary_name('transfer.json')} becomes transfer.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["transfer.json"]


def test_a_payload_that_is_linked_leaves_the_disk_to_its_manifest(tmp_path: Path, steps: list[str]) -> None:
    (tmp_path / "model").write_bytes(b"12345")
    link_file(tmp_path / "model", tmp_path / "payload", durable=False)
    assert steps == []
    link_file(tmp_path / "model", tmp_path / "final")
    assert steps == ["folder"]


@pytest.mark.parametrize("has_links", [True, False])
def test_a_name_that_is_taken_is_never_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:

        def refuse(*_: object) -> None:
            raise PermissionError("this disk has no links")

        monkeypatch.setattr(os, "link", refuse)
    target, first, second = (tmp_path / name for name in ("target", "first", "second"))
    first.write_bytes(b"first")
    put_where_nothing_is(first, target)
    second.write_bytes(b"second")
    with pytest.raises(FileExistsError):
        put_where_nothing_is(second, target)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"target": b"first", "second": b"second"}


WITHOUT_FSYNC = """
import os
from pathlib import Path
from shared.folder.durable import sync_folder
try:
    os.fsync(os.open("/proc/self", os.O_RDONLY))
except OSError as error:
    print(error)
sync_folder(Path("/proc/self"))
"""


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no file system here is without fsync of folders")
def test_a_disk_without_fsync_of_folders_does() -> None:
    """In a process of its own: where tests run without waiting for the disk, this one would answer as any does."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    said = subprocess.check_output([sys.executable, "-c", WITHOUT_FSYNC], env=environment, text=True)
    assert said == "[Errno 22] Invalid argument\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_root_makes_in_another_users_folder_is_that_users(tmp_path: Path) -> None:
    """As an answer that root types to a daemon for which systemd made a user."""
    work, mask = tmp_path / "work", os.umask(0o077)
    try:
        work.mkdir()
        os.chown(work, 4711, 4712)
        write_file(work / "decisions" / "retina" / "run-1", b"yes")
        link_file(work / "decisions" / "retina" / "run-1", work / "kept" / "run-1")
        with work_lock(work):
            pass
        make_work(work / "move")
        part = Partial(work / "mirror" / "model")
        with part.growing(None) as file:
            file.write(b"x")
        log = _LogFile(work / "log.txt")
        log.close()
    finally:
        os.umask(mask)
    for path in (*(found := sorted(work.rglob("*"))), work):
        assert (path.stat().st_uid, path.stat().st_gid) == (4711, 4712), path
    names = ["daemon.lock", "decisions", "retina", "run-1", "kept", "run-1", "log.txt", "mirror", "move"]
    assert [path.name for path in found if not path.name.endswith(ARRIVING)] == names
    assert tmp_path.stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_gives_away_no_file_that_another_user_has_put_there(tmp_path: Path) -> None:
    (secret := tmp_path / "secret").write_bytes(b"of root's")
    (work := tmp_path / "work").mkdir()
    os.chown(work, 4711, 4712)
    os.link(secret, work / LOCK)
    with work_lock(work):
        pass
    assert secret.stat().st_uid == 0
    (work / LOCK).unlink()
    (work / LOCK).symlink_to(secret)
    give_file(work / LOCK)
    part = Partial(work / "model")
    with part.growing(None) as file:
        file.write(b"x")
    (arriving,) = work.glob(f"*{ARRIVING}")
    arriving.unlink()
    arriving.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic link"), part.growing(None):
        pass
    assert (secret.stat().st_uid, secret.read_bytes()) == (0, b"of root's")


@pytest.mark.parametrize("size", [0, 5, 3 << 20])
@pytest.mark.parametrize("has_kernel", [True, False])
def test_a_copy_is_whole_whoever_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, has_kernel: bool
) -> None:
    if not has_kernel:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    content = os.urandom(size)
    (tmp_path / "source").write_bytes(content)
    with (tmp_path / "source").open("rb") as reader, writing(tmp_path / "copy") as writer:
        copy_content(reader, writer)
    assert (tmp_path / "copy").read_bytes() == content


def test_a_copy_to_another_disk_is_whole(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other disk")
    content = os.urandom(3 << 20)
    (tmp_path / "source").write_bytes(content)
    target = other / f"{tmp_path.name}-{os.getpid()}"
    try:
        link_file(tmp_path / "source", target)
        assert target.read_bytes() == content
    finally:
        target.unlink(missing_ok=True)


def test_of_a_disk_that_can_only_be_read_people_are_told_the_file_that_they_know(tmp_path: Path) -> None:
    error = OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / ".pause.writing"))
    told = (
        f"{tmp_path / 'pause'} cannot be written, its disk can only be read: have it mounted writable, or name another "
    )
    assert str(disk_trouble(error, tmp_path)) == f"{told}place."


def test_a_disk_that_gets_full_is_told_by_the_file_that_was_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space") as caught, writing(tmp_path / "card.json"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    told = disk_trouble(caught.value, Path("elsewhere"))
    assert str(told) == f"The disk with {tmp_path / 'card.json'} is full: free some space there."


def test_a_name_that_is_too_long_does_not_get_shorter_by_waiting(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long") as caught:
        (tmp_path / ("a" * 300)).read_bytes()
    assert str(disk_trouble(caught.value, tmp_path)).endswith("cannot be used (File name too long): check the path.")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file")
def test_nobody_is_asked_to_change_the_rights_of_a_device() -> None:
    with pytest.raises(ActionRequiredError, match=r"^/dev/null is not a file: correct the path$"):
        read_private(Path("/dev/null"))


def test_a_secret_may_come_through_a_pipe_that_somebody_names() -> None:
    """As by ``--password-file <(…)``."""
    reader, writer = os.pipe()
    os.write(writer, b"two")
    os.close(writer)
    assert read_private(Path(f"/dev/fd/{reader}")) == b"two"
    os.close(reader)


def test_a_pipe_where_a_key_may_lie_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "encryption.key", 0o600)
    assert EncryptionKey.found_at(tmp_path / "encryption.key") is None
