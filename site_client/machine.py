"""What ``check`` looks at on this machine: the daemon, its service, disk, memory, GPUs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shared.check import Finding
from shared.escaping import quoted
from shared.folder.durable import full_disk
from shared.folder.lock import is_at_work, work_lock
from shared.plurals import pluralize
from shared.sizes import size_text
from site_client.configuration import (
    FILE,
    SiteConfiguration,
    changed_settings,
    computing_of,
    require_here,
    running_configuration,
)
from site_client.installation import as_named, outdated_settings

LITTLE_DISK_BYTES = 10_000_000_000
LITTLE_MEMORY_BYTES = 3_700_000_000
"""4 GB without what the kernel keeps for itself of a machine's memory."""
_UNITS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "~/.config/systemd/user",
)
_NVIDIA = "/proc/driver/nvidia/version"
_MEMORY_OF_CONTAINER = "/sys/fs/cgroup/memory.max"


def look_at_daemon(work: Path, configuration: SiteConfiguration) -> Iterator[Finding]:
    """Check whether a daemon works in this directory, and whether systemd starts one with the machine."""
    if is_at_work(work):
        yield Finding("ok", "daemon: one works in this directory; a second one would not start")
        if (changed := changed_settings(work, running_configuration(work))) is not None:
            yield Finding("warning", f"daemon: {changed}")
    else:
        yield Finding(
            "note", f"daemon: none works in this directory; `dropfed-site run --work {quoted(work)}` starts one"
        )
    if Path("/run/systemd/system").is_dir():
        unit = unit_of(work)
        if unit is not None:
            yield Finding("ok", f"service: {unit} runs the daemon of this directory")
            if outdated := outdated_settings(unit, work, configuration):
                yield Finding(
                    "warning",
                    f"service: {unit} was written for other settings, or by another version: {', '.join(outdated)}; "
                    f"type `sudo {_program()} install-service --work {quoted(work)}` again",
                )
        else:
            yield Finding(
                "note",
                "service: no systemd unit names this directory, so no daemon starts with the machine by itself; "
                f"`dropfed-site install-service --work {quoted(work)}` makes one",
            )


def _program() -> str:
    """Return our program as sudo finds it, which looks into no environment of Python."""
    return quoted(Path(sys.executable).with_name("dropfed-site"))


@contextmanager
def site_lock(work: Path) -> Iterator[None]:
    """Hold a site's work directory until the block ends; in any other, nothing is left.

    Raises:
        ConfigurationError: there is no such directory, or it is no site's.
        ActionRequiredError: another daemon holds it.
    """
    require_here(work)
    with work_lock(work, _if_another_daemon(work)):
        yield


def _if_another_daemon(work: Path) -> str:
    """Return what to say where another daemon works."""
    unit = unit_of(work)
    by_hand = "Ctrl-C where it was typed, or `kill` the process that `pgrep -af 'run --work|dropfed-site'` shows"
    how = f"`sudo systemctl stop {unit.name}`, or, of one that was started by hand, {by_hand}" if unit else by_hand
    return f"another daemon works in this directory; stop it first: {how}"


def unit_of(work: Path, folders: tuple[str, ...] = _UNITS) -> Path | None:
    """Return the systemd unit that runs the daemon of a work directory, or None."""
    for folder in folders:
        try:
            texts = {
                unit: unit.read_text(errors="replace").replace("%%", "%")
                for unit in sorted(Path(folder).expanduser().glob("dropfed*.service"))
            }
        except (OSError, RuntimeError):  # not readable by us; a user without a home
            continue
        for unit, text in texts.items():
            if re.search(rf"{re.escape(str(as_named(work)))}/?[\"'\s]", text):
                return unit
    return None


def look_at_room(work: Path) -> Iterator[Finding]:
    """Check how much disk and memory there is."""
    free = shutil.disk_usage(work).free
    text = f"disk: {size_text(free)} left for {work}"
    if (full := full_disk(work)) is not None:
        yield Finding("problem", f"disk: {full}")
    elif free < LITTLE_DISK_BYTES:
        yield Finding(
            "warning", f"{text}; every round leaves two models there: make room, or move the directory to a larger disk"
        )
    else:
        yield Finding("ok", text)
    memory = memory_bytes()
    if memory is None:
        yield Finding("note", "memory: this system does not tell how much there is")
    elif memory < LITTLE_MEMORY_BYTES:
        yield Finding(
            "warning",
            f"memory: {size_text(memory)} in all; training keeps all images and the model in it: give the machine or "
            "the container more",
        )
    else:
        yield Finding("ok", f"memory: {size_text(memory)} in all")


def memory_bytes() -> int | None:
    """Return how much memory this machine has, or this container may use; None if the system does not tell."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(machine, int(Path(_MEMORY_OF_CONTAINER).read_text()))
    except (OSError, ValueError):  # "max", or no such file
        return machine


def look_at_computing(configuration: SiteConfiguration) -> Iterator[Finding]:
    """Check which GPUs PyTorch sees, and that this site can compute as its settings say.

    Raises:
        ActionRequiredError: it cannot.
    """
    import torch  # noqa: PLC0415  (for this alone)

    from shared.learning.compute import require_computing  # noqa: PLC0415

    device, count = configuration.device, torch.cuda.device_count()
    if configuration.launcher == "torchrun" and device == "cuda":
        device = f"cuda:{configuration.processes - 1}"  # the last process's
    require_computing(replace(computing_of(configuration), device=device))
    gpus = ", ".join(_gpu(torch.cuda.get_device_properties(number)) for number in range(count))
    if device != "cpu":
        yield Finding("ok", f"device: {device} is there; PyTorch sees {gpus}")
    elif count:
        yield Finding("note", f"GPU: PyTorch sees {gpus}; {FILE} says `device: cpu`, and `device: cuda` would use it")
    elif Path(_NVIDIA).exists():
        why = (
            "it was built without CUDA"
            if torch.version.cuda is None
            else f"it needs a driver for CUDA {torch.version.cuda}"
        )
        yield Finding("warning", f"GPU: this machine has one of NVIDIA's, but PyTorch does not see it; {why}")
    else:
        yield Finding("ok", "GPU: PyTorch sees none, and `device: cpu` needs none")
    if configuration.micro_batch is not None:
        at_once = f"training answers at most {pluralize(configuration.micro_batch, 'image')} of a batch at once"
        yield Finding("note", f"micro_batch: {at_once}; where a network has BatchNorm, that normalises by these alone")


def _gpu(properties: object) -> str:
    name, memory = getattr(properties, "name", "one"), getattr(properties, "total_memory", 0)
    return f"{name} ({memory / (1 << 30):.0f} GiB)"
