"""The bundle for a machine without internet: made of a small package, checked, tampered with, installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st

from deploy.bundle import install, make, wheels
from deploy.bundle.install import SIGNED, SUMS, WHEELS, verify
from shared.exchange.signing import SigningKey, canonical, open_signed
from shared.folder.durable import hash_file
from tests.at_length import held_to

NAME = "standin-1.0-py3-none-any.whl"


def write_wheel(path: Path) -> None:
    """A package of one module and one command."""
    files = {
        "standin.py": "def main():\n    print('it works')\n",
        "standin-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n",
        "standin-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "standin-1.0.dist-info/entry_points.txt": "[console_scripts]\nstandin = standin:main\n",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr("standin-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))


def write_pip(folder: Path) -> None:
    """The pip that runs these tests, as a wheel."""
    pip = distribution("pip")
    with zipfile.ZipFile(folder / f"pip-{pip.version}-py3-none-any.whl", "w") as wheel:
        for file in pip.files or []:
            if file.parts[0].startswith("pip") and file.suffix != ".pyc":
                wheel.write(file.locate(), str(file))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small bundle and the key that signed it."""
    root = tmp_path_factory.mktemp("made")
    (root / "bundle" / WHEELS).mkdir(parents=True)
    write_wheel(root / "bundle" / WHEELS / NAME)
    write_pip(root / "bundle" / WHEELS)
    make.complete_and_sign(root / "bundle", SigningKey.made_at(root / "bundle.key"))
    return root


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """One to be damaged."""
    return Path(shutil.copytree(made / "bundle", tmp_path / "bundle"))


@pytest.fixture
def key(made: Path) -> str:
    return SigningKey.at(made / "bundle.key").public


def run(bundle: Path, key: str, folder: Path, *, typed: str = "python3 -I install.py") -> CompletedProcess[str]:
    """Install as a person does, by what the README says, with a bare Python."""
    _, *options, program = typed.split()
    command = [sys.executable, *options, *(["-S"] if options else []), program, "--key", key, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=bundle, umask=0o077)


@pytest.fixture(scope="module")
def installed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CompletedProcess[str]]:
    """A folder with a bundle and the ``environment`` that was made of it; its wheels were exchanged meanwhile."""
    root = tmp_path_factory.mktemp("installed")
    bundle, environment = Path(shutil.copytree(made / "bundle", root / "bundle")), root / "environment"
    for left_by_a_desktop in (".DS_Store", "._install.py", f"{WHEELS}/Thumbs.db"):
        (bundle / left_by_a_desktop).write_bytes(b"")

    def exchange() -> None:
        while not environment.exists() and not ended.is_set():
            ended.wait(0.001)
        for wheel in (bundle / WHEELS).iterdir():
            wheel.write_bytes(b"of another")

    ended = threading.Event()
    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    try:
        return root, run(bundle, SigningKey.at(made / "bundle.key").public, environment)
    finally:
        ended.set()
        exchanging.join()


def test_a_bundle_installs_without_internet(
    installed: tuple[Path, CompletedProcess[str]], bundle: Path, key: str
) -> None:
    root, ended = installed
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    programs = "Scripts" if sys.platform == "win32" else "bin"
    said = subprocess.run(
        [root / "environment" / programs / "standin"], capture_output=True, text=True, check=True
    ).stdout
    assert said == "it works\n"
    (module,) = (root / "environment").rglob("standin.py")
    for path in (root / "environment" / programs / "standin", module, *module.parents[:4]):  # whatever the umask was
        assert path.stat().st_mode & 0o044 == 0o044, path
    body, _ = open_signed((bundle / SIGNED).read_bytes())
    assert f"checked: {body['software']}, made {body['made']}\n" in ended.stdout
    assert [path.name for path in root.iterdir() if path.name.startswith(".dropfed-")] == []
    again = run(bundle, key, root / "environment")
    assert again.returncode == 1
    assert "is there and not empty" in again.stderr


def test_our_own_wheel_has_the_files_of_its_checkout_alone_and_tells_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, settings = tmp_path / "source", ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
    wanted = {"shared/__init__.py", "shared/software.py"}
    for name in (*settings, *wanted, "shared/py.typed"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wheels.ROOT / name, source / name)
    monkeypatch.setattr(wheels, "ROOT", source)
    assert wheels.own_version().endswith(".dev0")
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    version = wheels.own_version()
    assert re.fullmatch(r"[0-9.]+\.dev1\+g[0-9a-f]{8}", version)
    (source / "build" / "lib" / "shared").mkdir(parents=True)
    (source / "build" / "lib" / "shared" / "gone.py").write_text("")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    wheels.build_own([*pip, "--wheel-dir", str(tmp_path)])
    with zipfile.ZipFile(tmp_path / f"dropfed-{version}-py3-none-any.whl") as wheel:
        assert {name for name in wheel.namelist() if name.endswith(".py")} == wanted
        assert "shared/py.typed" in wheel.namelist()
    (source / "LICENSE").write_text("another")
    assert wheels.own_version() == f"{version}.changed"


def test_no_other_file_of_the_bundle_is_run(bundle: Path, key: str, tmp_path: Path) -> None:
    """Python would take a module that lies beside ``install.py`` for its own."""
    ran = tmp_path / "ran"
    for module in ("__future__", "argparse", "json", "sitecustomize"):
        (bundle / f"{module}.py").write_text(f"open({str(ran)!r}, 'w')\n")
    (typed,) = re.findall(r"^ +(python3 .*) --key KEY /opt/dropfed ", (bundle / "README.txt").read_text(), re.MULTILINE)
    ended = run(bundle, key, tmp_path / "environment", typed=typed)
    assert (ended.returncode, ended.stderr) == (
        1,
        "not installed: __future__.py is not on the signed list: copy the bundle anew\n",
    )
    assert not ran.exists()
    told = "not installed: type python3 -I install.py ..., for without -I Python may run other files of this folder\n"
    assert run(bundle, key, tmp_path / "environment", typed="python3 install.py").stderr == told
    assert not (tmp_path / "environment").exists()


def test_what_is_installed_is_what_was_checked(installed: tuple[Path, CompletedProcess[str]]) -> None:
    """Also where somebody can exchange the bundle's files meanwhile."""
    root, ended = installed
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {path.read_bytes() for path in (root / "bundle" / WHEELS).iterdir()} == {b"of another"}


def test_the_list_is_one_that_other_programs_read(bundle: Path, key: str) -> None:
    body, signer = open_signed((bundle / SIGNED).read_bytes())
    assert signer == key == (bundle / "signer.pub").read_text().strip()
    assert body["sha256"] == hash_file(bundle / SUMS)[1]
    listed = dict(reversed(line.split("  ")) for line in (bundle / SUMS).read_text().splitlines())
    there = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert listed.keys() == there - {SUMS, SIGNED}
    assert all(hash_file(bundle / name)[1] == sha256 for name, sha256 in listed.items())


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


def claim(bundle: Path, **changes: str) -> None:
    """Change what the signature is over, and leave the signature."""
    record = json.loads((bundle / SIGNED).read_bytes())
    record["body"] |= changes
    (bundle / SIGNED).write_bytes(canonical(record))


def sign_anew(bundle: Path, **changes: str) -> None:
    """As another, who has a key too."""
    record = json.loads((bundle / SIGNED).read_bytes())
    (bundle / SIGNED).write_bytes(SigningKey(bytes(32)).sign(record["body"] | changes))


def relist(bundle: Path) -> None:
    change(bundle / WHEELS / NAME)
    lines = [line for line in (bundle / SUMS).read_text().splitlines() if NAME not in line]
    (bundle / SUMS).write_text("\n".join([*lines, f"{hash_file(bundle / WHEELS / NAME)[1]}  {WHEELS}/{NAME}"]) + "\n")


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (lambda bundle: change(bundle / WHEELS / NAME), f"{NAME} is missing, or not what was signed"),
        (lambda bundle: (bundle / WHEELS / NAME).unlink(), f"{NAME} is missing"),
        (lambda bundle: change(bundle / "README.txt"), "README.txt is missing, or not"),
        (
            lambda bundle: write_wheel(bundle / WHEELS / "evil-1.0-py3-none-any.whl"),
            "evil-1.0-py3-none-any.whl is not on",
        ),
        (lambda bundle: (bundle / WHEELS / "folder").mkdir(), "folder is not on the signed list"),
        (lambda bundle: (bundle / "sub").mkdir(), "sub is not on the signed list"),
        (lambda bundle: (bundle / SUMS).unlink(), "missing or damaged"),
        (lambda bundle: (bundle / SIGNED).unlink(), "missing or damaged"),
        (lambda bundle: (bundle / SIGNED).write_text("[]"), "missing or damaged"),
        (lambda bundle: (bundle / SIGNED).write_text('{"body": [], "signature": "", "key": ""}'), "not signed by"),
        (lambda bundle: (bundle / SIGNED).write_text('{"body": {}, "signature": "x", "key": ""}'), "damaged"),
        (lambda bundle: change(bundle / SUMS), f"{SUMS} is not what was signed"),
        (relist, f"{SUMS} is not what was signed"),
        (lambda bundle: claim(bundle, python="2.7"), "is not signed by that key"),
        (sign_anew, "is not signed by that key"),
    ],
)
def test_what_was_tampered_with_is_not_installed(
    tamper: Callable[[Path], None], told: str, bundle: Path, key: str, tmp_path: Path
) -> None:
    tamper(bundle)
    ended = run(bundle, key, tmp_path / "environment")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("not installed: ")
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "environment").exists()


@pytest.mark.parametrize("wrong", ["", "0" * 63, "G" * 64])
def test_a_key_that_is_none(wrong: str, bundle: Path, tmp_path: Path) -> None:
    assert "64 hexadecimal digits" in run(bundle, wrong, tmp_path / "environment").stderr


def test_another_key_is_refused(bundle: Path, tmp_path: Path) -> None:
    assert "not signed by that key" in run(bundle, SigningKey(bytes(32)).public, tmp_path / "environment").stderr


def test_a_bundle_for_another_python(bundle: Path, tmp_path: Path) -> None:
    sign_anew(bundle, python="2.7")
    ended = run(bundle, SigningKey(bytes(32)).public, tmp_path / "environment")
    assert "it is for Python 2.7" in ended.stderr


def test_a_link_is_no_file(bundle: Path, key: str, tmp_path: Path) -> None:
    (bundle / WHEELS / NAME).rename(tmp_path / NAME)
    (bundle / WHEELS / NAME).symlink_to(tmp_path / NAME)
    assert f"{NAME} is missing, or not" in run(bundle, key, tmp_path / "environment").stderr


@held_to(5, 20, seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200), data=st.data())
def test_signatures_hold_where_a_library_says_so(seed: bytes, message: bytes, data: st.DataObject) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert verify(key, message, signature)
    assert not verify(key, message + b"x", signature)
    bit = data.draw(st.integers(0, 511))
    changed = (int.from_bytes(signature, "little") ^ (1 << bit)).to_bytes(64, "little")
    assert not verify(key, message, changed)
    assert not verify(bytes(key[:-1]) + bytes([key[-1] ^ 0x80]), message, signature)


def test_a_signature_of_the_standard() -> None:
    """RFC 8032, section 7.1, test 2; and the same with the order of the base point added to its scalar."""
    key = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert verify(key, b"\x72", signature)
    malleable = signature[:32] + (int.from_bytes(signature[32:], "little") + install.L).to_bytes(32, "little")
    assert not verify(key, b"\x72", malleable)
    assert not verify(key, b"\x72", signature[:63])
    assert not verify(b"\xff" * 32, b"\x72", signature)


def test_the_key_stays_outside_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert make.default_key() == tmp_path / "dropfed" / "bundle.key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert not make.default_key().is_relative_to(Path(__file__).parent.parent)
