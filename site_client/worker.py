"""One of the processes that train together: ``torchrun`` starts it with the folder of the job; see ``torchrun.py``."""

from __future__ import annotations

import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch._C._distributed_c10d import FileStore

from shared.errors import PLEASE_REPORT, DropfedError
from shared.folder.durable import write_file
from shared.learning.apart import REST, REST_S, Obstacle, confine, tell_percent
from shared.learning.blame import blaming
from shared.learning.compute import prepare_compute
from shared.learning.plugins import permit
from shared.learning.processes import Processes, ProcessLostError, joined
from shared.lifeline import end, end_with_starter
from site_client.apart import ALLOWED_IN, bounds_of
from site_client.configuration import computing_of
from site_client.torchrun import JOB, STORE, TROUBLE, WORKED, Job
from site_client.train import trainer_at
from site_client.trouble import as_trouble

logger = logging.getLogger(__name__)

TROUBLES = (DropfedError, OSError, MemoryError, torch.OutOfMemoryError)
"""What is told, and is no mistake in a program."""


def main(folder: Path) -> None:
    """Work the job through, or say what stands in the way."""
    end_with_starter()
    logging.basicConfig(level=logging.WARNING)
    job = Job.model_validate_json((folder / JOB).read_bytes())
    try:
        if job.run.plugins:
            confine(bounds_of(job.site))
            permit(job.run.plugins, job.site.policy.plugins, ALLOWED_IN)
        with blaming(job.run.plugins):
            _work(job, folder)
    except ProcessLostError as error:  # the other one has said why it ended, if it could
        logger.error("%s", error)
        end(1)
    except TROUBLES as error:
        trouble = error if isinstance(error, DropfedError) else as_trouble(error, job.work)
        logger.error("%s", trouble)
        write_file(folder / TROUBLE, Obstacle.of(trouble).model_dump_json().encode())
        end(1)
    except Exception:
        logger.exception("ended by an error that nobody expected; %s", PLEASE_REPORT)
        end(1)


def _work(job: Job, folder: Path) -> None:
    rank, count, place = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    site = job.site
    computing = replace(computing_of(site), device=f"cuda:{place}" if site.device == "cuda" else "cpu")
    prepare_compute(computing, site.threads)
    if has_gpu := computing.device != "cpu":
        torch.cuda.set_device(place)
    # Machines meet where torchrun does.
    meeting = FileStore(str(folder / STORE), count) if site.nodes == 1 else None
    with joined(rank, count, meeting, gpu=has_gpu) as processes:
        trainer = replace(
            trainer_at(job.work, site, job.run, job.sharing), computing=replace(computing, processes=processes)
        )
        dataset = trainer.open_dataset(job.members)

        def on_progress(percent: int) -> None:
            _tell_and_rest(folder, processes, percent)

        worked = trainer.work(dataset, job.round, job.files, on_progress)
        if processes.leads:
            write_file(folder / WORKED, Job.form().dump_json(worked))


def _tell_and_rest(folder: Path, processes: Processes, percent: int) -> None:
    """Report how far the work is; all rest together, in short waits, so that none loses patience with another."""
    if processes.leads:
        tell_percent(folder, percent)
    while processes.lead_says((folder / REST).exists()):
        time.sleep(REST_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
