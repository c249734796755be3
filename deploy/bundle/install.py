"""Install dropfed from this bundle on a machine without internet: python3 -I install.py --key KEY FOLDER

Needs nothing but Python, which -I keeps from running any other file of this folder. Nothing is installed before
everything is checked, in this order: the signature over the list of checksums, under the KEY that you were told by
another way than this bundle; that each file is as the list says, and that there is no other; that the bundle is for
this Python. What was checked is copied meanwhile, and installed from there. Whoever does not trust this very file
compares its SHA-256 with what he was told, first.
"""

import sys

if __name__ == "__main__" and not sys.flags.isolated:
    sys.exit("not installed: type python3 -I install.py ..., for without -I Python may run other files of this folder")

import argparse
import hashlib
import json
import os
import re
import subprocess
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

SUMS, SIGNED, WHEELS = "SHA256SUMS", "SHA256SUMS.signed", "wheels"
BLOCK = 1 << 20
LEFT_BY_DESKTOPS = re.compile(r"\.DS_Store|\._.*|Thumbs\.db|desktop\.ini")

# Ed25519, RFC 8032, section 5.1: the curve -x² + y² = 1 + dx²y² modulo P, and the order L of its base point.
P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


class BundleError(Exception):
    """The bundle must not be installed; the text is one sentence with what to do."""


def main(arguments: "list[str] | None" = None) -> int:
    """Check the bundle this file lies in and install it; return the exit status."""
    parser = argparse.ArgumentParser(description="Install dropfed from this bundle, without internet.")
    parser.add_argument("folder", type=Path, help="where it is installed; made anew")
    parser.add_argument("--key", required=True, help="the public key you were told, 64 hexadecimal digits")
    options = parser.parse_args(arguments)
    os.umask(0o022)  # whoever the daemon runs as must be able to run it
    bundle, folder = Path(__file__).resolve().parent, Path(options.folder).absolute()
    try:
        made_for, listed = check_signature(bundle, options.key)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".dropfed-", dir=folder.parent) as private:
            wheels = check_files(bundle, listed, Path(private))
            require_platform(made_for)
            print(f"checked: {made_for.get('software')}, made {made_for.get('made')}", flush=True)
            install(wheels, folder)
    except BundleError as problem:
        print(f"not installed: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"not installed: {problem.filename or folder}: {problem.strerror}; put that right", file=sys.stderr)
        return 1
    print(f"installed: {folder}; the commands are in {folder / _programs()}")
    return 0


def check_signature(bundle: Path, key: str) -> tuple[dict[str, Any], bytes]:
    """Return what was signed about the bundle, and its list of checksums, if ``key`` signed that.

    Raises:
        BundleError: otherwise.
    """
    if re.fullmatch(r"[0-9a-f]{64}", key) is None:
        raise BundleError("--key must be 64 hexadecimal digits, 0-9 and a-f: ask whoever sent the bundle")
    try:
        record = json.loads((bundle / SIGNED).read_bytes())
        body, signature = record["body"], bytes.fromhex(record["signature"])
        content = (bundle / SUMS).read_bytes()
        signed_by_key = record["key"] == key and verify(bytes.fromhex(key), canonical(body), signature)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise BundleError(f"{SIGNED} or {SUMS} is missing or damaged: copy the bundle anew") from None
    if not signed_by_key:
        raise BundleError("its list of checksums is not signed by that key: ask whoever sent the bundle for theirs")
    if body.get("sha256") != hashlib.sha256(content).hexdigest():
        raise BundleError(f"{SUMS} is not what was signed: copy the bundle anew")
    return dict(body), content


def check_files(bundle: Path, sums: bytes, private: Path) -> list[Path]:
    """Return copies of the wheels, if each file is as the list says and there is no other beside them.

    Args:
        sums: the list, as it was signed.
        private: takes the copies: nobody can change them any more.

    Raises:
        BundleError: otherwise.
    """
    listed: dict[str, str] = {}
    for line in sums.decode("ascii", "replace").splitlines():
        if (found := re.fullmatch(r"([0-9a-f]{64})  ((?:wheels/)?[A-Za-z0-9][A-Za-z0-9_.+!-]*)", line)) is None:
            raise BundleError(f"{SUMS} has a line of another form: copy the bundle anew")
        listed[found[2]] = found[1]
    there = {path.relative_to(bundle).as_posix() for folder in (bundle, bundle / WHEELS) for path in folder.glob("*")}
    left = {name for name in there if LEFT_BY_DESKTOPS.fullmatch(name.rpartition("/")[2])}
    if strange := sorted(there - listed.keys() - left - {SUMS, SIGNED, WHEELS}):
        raise BundleError(f"{strange[0]} is not on the signed list: copy the bundle anew")
    wheels = []
    for name, sha256 in listed.items():
        path, copy = bundle / name, private / Path(name).name
        if not path.is_file() or path.is_symlink() or _copied(path, copy) != sha256:
            raise BundleError(f"{name} is missing, or not what was signed: copy the bundle anew")
        if name.endswith(".whl"):
            wheels.append(copy)
    return wheels


def require_platform(made_for: dict[str, Any]) -> None:
    """Check that this is the Python and the machine that the bundle was made for.

    Raises:
        BundleError: this is another.
    """
    wanted = made_for.get("python"), made_for.get("platform")
    if wanted != (this_python(), sysconfig.get_platform()):
        here = f"Python {this_python()} on {sysconfig.get_platform()}"
        raise BundleError(f"it is for Python {wanted[0]} on {wanted[1]}, and this is {here}: have one made for that")


def this_python() -> str:
    """Return the major and minor number of the running Python."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def install(wheels: list[Path], folder: Path) -> None:
    """Make an environment in ``folder`` and put all wheels into it; nothing is fetched from anywhere.

    Raises:
        BundleError: it is there already, or pip could not.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BundleError(f"{folder} is there and not empty: name another, or move it away")
    pip = next((wheel for wheel in wheels if wheel.name.startswith("pip-")), None)
    if pip is None:
        raise BundleError("it holds no pip: have it made anew")
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    python = folder / _programs() / ("python.exe" if os.name == "nt" else "python")
    command = [str(python), str(pip / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    command += ["--find-links", str(pip.parent), "--no-deps"]  # all of it is there; see deploy/bundle/wheels.py
    # A wheel is a zip file, and Python runs those. Whatever pip is told elsewhere on this machine does not count.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    finished = subprocess.run(
        [*command, *map(str, wheels)], check=False, env=environment | {"PIP_CONFIG_FILE": os.devnull}
    )
    if finished.returncode != 0:
        raise BundleError(f"pip could not install it (its reason is above): put that right, and remove {folder}")


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether an Ed25519 signature of 64 bytes holds; see RFC 8032, section 5.1.7."""
    if len(key) != 32 or len(signature) != 64:
        return False
    public, commitment = _decode(key), _decode(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if public is None or commitment is None or scalar >= L:
        return False
    challenge = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    base = _decode((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    assert base is not None
    return _times(scalar, base) == _add(commitment, _times(challenge, public))


def canonical(body: dict[str, str]) -> bytes:
    """Return the RFC 8785 bytes of an object that holds only ASCII texts.

    Raises:
        ValueError: it holds something else.
    """
    if not all(
        isinstance(text, str) and text.isascii() and text.isprintable() for pair in body.items() for text in pair
    ):
        raise ValueError("more than ASCII texts")
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _decode(content: bytes) -> "Point | None":
    """Return the point that 32 bytes name, if they name one."""
    number = int.from_bytes(content, "little")
    y, is_odd = number % 2**255, number >> 255
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square or (x == 0 and is_odd):
        return None
    return (P - x if x % 2 != is_odd else x), y


def _add(one: Point, other: Point) -> Point:
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P


def _times(scalar: int, point: Point) -> Point:
    result = (0, 1)
    while scalar:
        if scalar % 2:
            result = _add(result, point)
        point, scalar = _add(point, point), scalar // 2
    return result


def _copied(path: Path, copy: Path) -> str:
    """Copy a file; return the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with path.open("rb") as file, copy.open("wb") as written:
        while block := file.read(BLOCK):
            digest.update(block)
            written.write(block)
    return digest.hexdigest()


def _programs() -> str:
    return "Scripts" if os.name == "nt" else "bin"


if __name__ == "__main__":
    sys.exit(main())
