"""Install dropfed from this bundle on a machine without internet: python3 install.py --key KEY FOLDER

Needs nothing but Python. Nothing is installed before everything is checked, in this order: the signature over the list
of checksums, under the KEY that you were told by another way than this bundle; that the bundle is for this Python; that
each file is as the list says, and that there is no other. Whoever does not trust this very file compares its SHA-256
with what he was told, first.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

SUMS, SIGNED, WHEELS = "SHA256SUMS", "SHA256SUMS.signed", "wheels"
BLOCK = 1 << 20

# Ed25519, RFC 8032, section 5.1: the curve -x² + y² = 1 + dx²y² modulo P, and the order L of its base point.
P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


class BundleError(Exception):
    """The bundle must not be installed; the text is one sentence with what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Check the bundle this file lies in and install it; return the exit status."""
    parser = argparse.ArgumentParser(description="Install dropfed from this bundle, without internet.")
    parser.add_argument("folder", type=Path, help="where it is installed; made anew")
    parser.add_argument("--key", required=True, help="the public key you were told, 64 hexadecimal digits")
    options = parser.parse_args(arguments)
    bundle = Path(__file__).resolve().parent
    try:
        made_for = check_signature(bundle, options.key)
        wheels = check_files(bundle)
        require_platform(made_for)
        install(wheels, options.folder)
    except BundleError as problem:
        print(f"not installed: {problem}", file=sys.stderr)
        return 1
    print(f"installed: {options.folder}; the commands are in {options.folder / _programs()}")
    return 0


def check_signature(bundle: Path, key: str) -> dict[str, Any]:
    """Return what was signed about the bundle, if ``key`` signed it and its list of checksums is that one.

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
    return dict(body)


def check_files(bundle: Path) -> list[Path]:
    """Return the wheels, if each file is as the list says and there is no other among them.

    Raises:
        BundleError: otherwise.
    """
    listed: dict[str, str] = {}
    for line in (bundle / SUMS).read_text("utf-8").splitlines():
        if (found := re.fullmatch(r"([0-9a-f]{64})  ((?:wheels/)?[A-Za-z0-9][A-Za-z0-9_.+!-]*)", line)) is None:
            raise BundleError(f"{SUMS} has a line of another form: copy the bundle anew")
        listed[found[2]] = found[1]
    there = {f"{WHEELS}/{path.name}" for path in (bundle / WHEELS).glob("*")}
    if strange := sorted(there - listed.keys()):
        raise BundleError(f"{strange[0]} is not on the signed list: copy the bundle anew")
    for name, sha256 in listed.items():
        path = bundle / name
        if not path.is_file() or path.is_symlink() or _sha256(path) != sha256:
            raise BundleError(f"{name} is missing, or not what was signed: copy the bundle anew")
    return [bundle / name for name in listed if name.endswith(".whl")]


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


def _decode(content: bytes) -> Point | None:
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


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _programs() -> str:
    return "Scripts" if os.name == "nt" else "bin"


if __name__ == "__main__":
    sys.exit(main())
