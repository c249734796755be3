"""A site alone, in a process of its own: ``python -m deploy.local.alone HOME SITE DATA`` trains it as ``HOME/run.yaml``
says, on its own images and in as many rounds, and writes ``HOME/alone.json``, which comes last.

Whoever shows a federation shows beside it what a site comes to without the others: the difference is what the
federation is for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aggregator.report.before_after import Alone
from deploy.local.rounds import run_rounds
from shared.errors import DropfedError, StandingError
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records import RunConfiguration
from shared.folder.durable import write_file
from shared.learning.compute import EXACT, prepare_compute

_RUN, _RESULT, _OUTPUT = "run.yaml", "alone.json", "output.txt"
_NICENESS = 19  # the federation beside it goes first


@dataclass(frozen=True)
class TrainedAlone:
    """That process, as whoever started it sees it."""

    home: Path
    run: RunConfiguration
    site: str
    process: subprocess.Popen[bytes]

    @property
    def has_ended(self) -> bool:
        """Whether it is done, or has failed."""
        return self.process.poll() is not None

    def result(self, score: str) -> Alone:
        """Wait for its end, and return this score.

        Raises:
            StandingError: it has failed.
        """
        if self.process.wait() != 0:
            raise StandingError(f"{self.site} could not be trained alone; {self.home / _OUTPUT} says why")
        scores = json.loads((self.home / _RESULT).read_bytes())
        return Alone(self.site, self.run.rounds, scores.get(score))


@contextmanager
def training_alone(home: Path, run: RunConfiguration, site: str, data: Path) -> Iterator[TrainedAlone]:
    """Train a site by itself while the block runs.

    Args:
        home: a new folder.
        data: the site's images.
    """
    home.mkdir()
    write_file(home / _RUN, dump_yaml(run))
    command = [sys.executable, "-m", __spec__.name, str(home), site, str(data)]
    with (home / _OUTPUT).open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield TrainedAlone(home, run, site, process)
    finally:
        process.terminate()
        process.wait()


def _train(home: Path, site: str, data: Path) -> None:
    path = home / _RUN
    run = parse_yaml(path.read_bytes(), RunConfiguration, str(path))
    alone = run.model_copy(update={"method": "single_site", "method_options": {}, "sites": [site], "quorum": 1})
    outcome = run_rounds(alone, {site: data}, home / "rounds")
    scores = {name: score.value for name, score in outcome.tests[site].scores.items()}
    write_file(home / _RESULT, json.dumps(scores).encode())


def main(home: str, site: str, data: str) -> int:
    """Train; what stands in the way is one sentence on standard error."""
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    prepare_compute(EXACT, threads=1)
    try:
        _train(Path(home), site, Path(data))
    except DropfedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
