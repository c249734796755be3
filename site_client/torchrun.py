"""A round's training by several processes, which ``torchrun`` starts on this machine, or on several of the hospital.

The daemon writes what is to be done into ``WORK/scratch/torchrun/`` and reads there how far it is and what came of it:

job.json        what to do, on which images: the secrets of keys and of the division are not in it
percent         how far it is
rest            there while it is not the hour for training: the processes wait
worked.json     what the work came to
trouble.json    what stood in the way of a process
rendezvous      where torchrun and, in ``store``, the processes find each other, if all are on one machine

When the work is not wanted any more, or the daemon dies, every process ends at once, whatever it is doing: see
``shared/lifeline.py``.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from shared.errors import ConfigurationError, TransientError
from shared.folder.durable import write_file
from shared.folder.ownership import make_folder
from shared.learning.apart import IsTime, Obstacle, environment_of, rest_or_go_on
from shared.software import own_program
from site_client import store
from site_client.configuration import FILE, SiteConfiguration
from site_client.train import Train, Worked

logger = logging.getLogger(__name__)

JOB, WORKED, TROUBLE, STORE = "job.json", "worked.json", "trouble.json", "store"
LOOK_S = 0.2  # between two looks at how far it is
END_S = 10.0  # how long torchrun may take to end once it is not wanted


class Job(Train):
    """``job.json``: one attempt at a round's work. Its paths mean the same to all machines."""

    attempt: str


def job_folder(work: Path) -> Path:
    """Return where a job is."""
    return work / store.SCRATCH / "torchrun"


def work_together(asked: Train, is_time: IsTime) -> Worked:
    """Work one round through, as ``Trainer.work`` does, by the processes that ``site.yaml`` says.

    Raises:
        Stopped: by ``is_time``.
        TransientError: a process ended before the work did.
        DropfedError: what stood in the way of one.
    """
    folder = job_folder(asked.work)
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder.parent)
    folder.mkdir(mode=0o700)
    job = Job(attempt=secrets.token_hex(8), **dict(asked))
    write_file(folder / JOB, job.model_dump_json().encode())
    try:
        with _started(job, 0) as torchrun:
            while torchrun.poll() is None:
                rest_or_go_on(folder, is_time)
                time.sleep(LOOK_S)
        return _outcome(folder, torchrun.returncode, _log(job, 0))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def assist(work: Path, node: int, stop: threading.Event) -> None:
    """Run this machine's processes of every job that appears in a work directory that machines share, until stopped.

    Args:
        node: this machine's number, from 1; the daemon's is 0.

    Raises:
        ConfigurationError: a job is for fewer machines, as after the daemon began anew with other settings.
    """
    folder, last = job_folder(work), ""
    while not stop.is_set():
        job = _read_job(folder)
        if job is not None and job.attempt != last:
            last = job.attempt
            require_node(node, job.site)
            logger.info("round %d: this machine takes part as node %d", job.round.round, node)
            with _started(job, node) as torchrun:
                while torchrun.poll() is None and not stop.wait(LOOK_S):
                    if (now := _read_job(folder)) is None or now.attempt != last:
                        break
            logger.info("round %d: done here; what was said is in %s", job.round.round, _log(job, node))
        stop.wait(LOOK_S)


def require_node(node: int, site: SiteConfiguration) -> None:
    """Check that a machine of this number trains together with the daemon's, whose number is 0.

    Raises:
        ConfigurationError: it does not.
    """
    if node >= site.nodes:
        machines = f"{FILE}: nodes: {site.nodes} has no node {node}, for the daemon's machine is number 0"
        raise ConfigurationError([f"{machines}: raise it, or leave this machine out"])


def _read_job(folder: Path) -> Job | None:
    """Return the job that is there; None if there is none, or not yet a whole one."""
    with suppress(OSError, ValidationError):
        return Job.model_validate_json((folder / JOB).read_bytes())
    return None


def _log(job: Job, node: int) -> Path:
    """Return where all that one machine's processes have to say is kept until the next round."""
    return job.work / (f"torchrun-{node}.log" if node else "torchrun.log")


@contextmanager
def _started(job: Job, node: int) -> Iterator[subprocess.Popen[bytes]]:
    """Have torchrun run this machine's processes; none is left when the block ends."""
    with _log(job, node).open("wb") as log:
        torchrun = subprocess.Popen(  # noqa: S603  (our own program, with nothing of others in its arguments)
            _command(job, node),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(job.site),
            start_new_session=True,  # Ctrl-C is the daemon's to hear
        )
    assert torchrun.stdin is not None
    try:
        yield torchrun
    finally:
        torchrun.stdin.close()
        try:
            torchrun.wait(END_S)
        except subprocess.TimeoutExpired:
            torchrun.kill()
            torchrun.wait()


def _command(job: Job, node: int) -> list[str]:
    site = job.site
    if site.nodes == 1:
        # By files that nobody else can reach: a server for it would listen on every network.
        meeting = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file"]
        meeting += [f"--rdzv-endpoint={job_folder(job.work) / 'rendezvous'}"]
    else:
        meeting = ["--rdzv-backend=static", f"--rdzv-endpoint={site.rendezvous}", f"--node-rank={node}"]
    return [
        *own_program("shared.lifeline"),
        *(f"--nnodes={site.nodes}", f"--nproc-per-node={site.processes}", "--max-restarts=0"),
        *(*meeting, f"--rdzv-id={job.attempt}"),
        *("-m", "site_client.worker", str(job_folder(job.work))),
    ]


def _environment(site: SiteConfiguration) -> dict[str, str]:
    # The processes that torchrun starts, too, take no code from the folder that the daemon was started in.
    environment = environment_of(site.threads) | {"PYTHONSAFEPATH": "1"}
    if site.nodes == 1:
        # Within this machine: torchrun serves its processes no store, which would listen on every network, and they
        # speak by the loopback.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        environment |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    return environment


def _outcome(folder: Path, code: int, log: Path) -> Worked:
    if code == 0:
        worked: Worked = Job.form().validate_json((folder / WORKED).read_bytes())
        return worked
    if (path := folder / TROUBLE).exists():
        raise Obstacle.model_validate_json(path.read_bytes()).error()
    raise TransientError(f"a training process ended before its round did: what all of them said is in {log}")
