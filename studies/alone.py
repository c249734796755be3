"""A site alone, in a process of its own: ``python -m studies.alone HOME SITE NAME=DATA...`` trains it as
``HOME/run.yaml`` says, on its own images and in as many rounds, and scores its model on the test images of all sites
that have its classes. ``HOME/alone.json`` comes last.

Whoever shows a federation shows beside it what a site comes to without the others: the difference is what the
federation is for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aggregator.report.before_after import Alone
from shared.commands import say
from shared.errors import ActionRequiredError, DropfedError
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import write_file
from shared.learning.compute import EXACT, prepare_compute
from shared.learning.methods.terms import MethodOptions
from shared.learning.training import evaluate
from shared.software import own_program
from studies.simulation import open_public, run_rounds

_RUN, _RESULT, _OUTPUT = "run.yaml", "alone.json", "output.txt"


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
            ActionRequiredError: it has failed.
        """
        if self.process.wait() != 0:
            raise ActionRequiredError(f"{self.site} could not be trained alone; {self.home / _OUTPUT} says why")
        scores = json.loads((self.home / _RESULT).read_bytes())
        return Alone(self.site, self.run.rounds, {tested: of_site.get(score) for tested, of_site in scores.items()})


@contextmanager
def training_alone(home: Path, run: RunConfiguration, site: str, data: Mapping[str, Path]) -> Iterator[TrainedAlone]:
    """Train a site by itself while the block runs.

    Args:
        home: a new folder.
        data: each site's images.
    """
    home.mkdir()
    write_file(home / _RUN, dump_yaml(run))
    command = [*own_program(__spec__.name), str(home), site]
    command += [f"{name}={folder}" for name, folder in data.items()]
    with (home / _OUTPUT).open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield TrainedAlone(home, run, site, process)
    finally:
        process.terminate()
        process.wait()


def _train(home: Path, site: str, data: Mapping[str, Path]) -> None:
    path = home / _RUN
    run = parse_yaml(path.read_bytes(), RunConfiguration, str(path))
    common = {name: value for name, value in run.method_options.items() if name in MethodOptions.model_fields}
    alone = run.model_copy(update={"method": "single_site", "method_options": common, "sites": [site], "quorum": 1})
    final = run_rounds(alone, {site: data[site]}, home / "rounds").finals[site]
    network, scores = final.network(), {}
    for name, folder in data.items():
        tested = open_public(final.task, folder, run, name)
        if tested.classes == final.dataset.classes:
            evaluation = evaluate(final.task, network, tested.test, final.objective)
            scores[name] = {column: score.value for column, score in evaluation.scores.items()}
    write_file(home / _RESULT, json.dumps(scores).encode())


def main(home: str, site: str, *data: str) -> int:
    """Train; what stands in the way is one sentence on standard error."""
    prepare_compute(EXACT, threads=1)
    try:
        folders = (each.split("=", 1) for each in data)
        _train(Path(home), site, {name: Path(folder) for name, folder in folders})
    except DropfedError as error:
        say(str(error), err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
