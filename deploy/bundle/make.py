"""Make what installs dropfed on a machine without internet, as that machine is: `make bundle`.

One folder: the wheels, a list of their checksums, the list's signature, and the program that checks both before it
installs anything. The key that signs is made at first use and stays with whoever makes bundles.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from deploy.bundle.install import SIGNED, SUMS, WHEELS, this_python
from deploy.bundle.wheels import collect, own_version
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError
from shared.exchange.records.values import now_text
from shared.exchange.signing import SigningKey, digest_of
from shared.folder.durable import disk_trouble, hash_file, write_file
from shared.sizes import size_text

HERE = Path(__file__).parent


def main() -> int:
    """Make a bundle; print what its receivers must be told; return the exit status."""
    parser = argparse.ArgumentParser(description="Bundle dropfed for a machine without internet.")
    place = "where the bundle's folder goes (default: dist)"
    parser.add_argument("--output", type=Path, default=Path("dist"), help=place)
    parser.add_argument("--key", type=Path, default=default_key(), help="the key that signs (default: %(default)s)")
    options = parser.parse_args()
    try:
        make(options.output, options.key)
    except DropfedError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(disk_trouble(error, options.output), file=sys.stderr)
        return 1
    return 0


def default_key() -> Path:
    """Return where a person's key lies unless he says otherwise: outside the code."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "dropfed" / "bundle.key"


def make(out: Path, key_file: Path) -> None:
    """Make the bundle.

    Raises:
        DropfedError: a bundle is there already, a key that cannot be used, or pip could not.
    """
    began = time.monotonic()
    tag = f"{sysconfig.get_platform().replace('-', '_')}-python{this_python()}"
    bundle = out / f"dropfed-{own_version()}-{tag}"
    if bundle.exists():
        raise ConfigurationError([f"{bundle}: is there already; move it away, or name another place with --output"])
    key = SigningKey.made_at(key_file)
    write_file(key_file.with_suffix(".pub"), f"{key.public}\n".encode())
    unfinished = bundle.with_name(f".{bundle.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    print("Collecting wheels: some minutes, for PyTorch is large", flush=True)
    try:
        collect(unfinished / WHEELS)
    except subprocess.CalledProcessError:
        raise ActionRequiredError(
            "pip could not collect all wheels (its reason is above): put it right and try again"
        ) from None
    size, made = complete_and_sign(unfinished, key)
    unfinished.rename(bundle)
    print(f"{bundle}: {size_text(size)}, made in {time.monotonic() - began:.0f} s")
    print("Tell who installs it, by another way than the bundle goes:")
    print(f"  key                    {key.public}")
    print(f"  SHA-256 of install.py  {hash_file(bundle / 'install.py')[1]}")
    print(f"  what it is             {made}")


def complete_and_sign(bundle: Path, key: SigningKey) -> tuple[int, str]:
    """Add to a folder with ``wheels`` what installs them, and a signed list of checksums; return the bytes of all, and
    what ``install.py`` calls the bundle.
    """
    for name in ("install.py", "README.txt"):
        shutil.copyfile(HERE / name, bundle / name)
    write_file(bundle / "signer.pub", f"{key.public}\n".encode())
    size, lines = 0, []
    for path in sorted(path for path in bundle.rglob("*") if path.is_file()):
        of_file, sha256 = hash_file(path)
        size += of_file
        lines.append(f"{sha256}  {path.relative_to(bundle).as_posix()}\n")
    content = "".join(lines).encode()
    body = {
        "kind": "bundle",
        "software": f"dropfed {own_version()}",
        "made": now_text(),
        "python": this_python(),
        "platform": sysconfig.get_platform(),
        "sha256": digest_of(content),
    }
    write_file(bundle / SUMS, content)
    write_file(bundle / SIGNED, key.sign(body))
    return size, f"{body['software']}, made {body['made']}"


if __name__ == "__main__":
    sys.exit(main())
