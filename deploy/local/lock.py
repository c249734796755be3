"""Print `requirements.lock`: what pip chooses today for the ranges in `setup.cfg`, pinned. `make lock` runs it."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

HEAD = """\
# All that dropfed runs and is developed with, on Linux. Made by `make lock` from the ranges in setup.cfg; not edited.
# `make setup` installs it: PyTorch first, with the CUDA libraries its build may bring, then the rest with --no-deps.
"""

TAKEN_ALONE = (
    "imgaug",  # its OpenCV needs a screen and its plots matplotlib; what it computes with, setup.cfg names
    "timm",  # it asks for huggingface_hub to download weights, and works without
)
BROUGHT_BY_TORCH = ("cuda-", "nvidia-", "triton")  # they differ from one build of PyTorch to another


def main() -> None:
    """Resolve with the pip of the running Python and print the lock."""
    wanted = requirements("dev")
    alone = [requirement for requirement in wanted if requirement.startswith(TAKEN_ALONE)]
    pins = resolve([requirement for requirement in wanted if requirement not in alone]) | resolve(["--no-deps", *alone])
    conditions = {re.split("[<>=!~]", each)[0]: each[each.index(";") :] for each in wanted if ";" in each}
    print(HEAD)
    for name in sorted(pins, key=str.lower):
        if not name.startswith(BROUGHT_BY_TORCH):
            print(f"{name}=={pins[name]}{conditions.get(name, '')}")


def requirements(*extras: str) -> list[str]:
    """Return what dropfed needs with some extras, as `setup.cfg` says it; an extra may hold others."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    found = config["options"]["install_requires"].strip().splitlines()
    for extra in extras:
        for line in config["options.extras_require"][extra].strip().splitlines():
            others = re.fullmatch(r"dropfed\[(.*)\]", line)
            found += requirements(*others[1].split(",")) if others else [line]
    return list(dict.fromkeys(found))


def resolve(wanted: list[str]) -> dict[str, str]:
    """Return name and version of all that pip would install, without a build's local label such as `+cpu`."""
    command = [sys.executable, "-m", "pip", "install", "-qq", "--dry-run", "--ignore-installed", "--report", "-"]
    finished = subprocess.run([*command, *wanted], check=True, stdout=subprocess.PIPE)
    chosen = [item["metadata"] for item in json.loads(finished.stdout)["install"]]
    return {package["name"]: package["version"].partition("+")[0] for package in chosen}


if __name__ == "__main__":
    main()
