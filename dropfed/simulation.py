"""A whole federation in one process, by the code that the daemons run, without folders in between."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aggregator.preparation import in_full, read_run
from aggregator.report.figures import Figure
from aggregator.run_view import RunView, view_of_tables
from dropfed.models import Model, load
from dropfed.paths import path_of
from dropfed.runs import figures
from dropfed.tables import metrics_frame
from shared.errors import ConfigurationError
from shared.exchange.reading import check_record
from shared.exchange.records.run import RunConfiguration
from shared.exchange.tables import SPLITS, MetricsRow
from shared.learning.blame import blaming
from shared.learning.kept_model import open_model
from shared.learning.new_runs import as_of_now
from shared.learning.plugins import permit_installed, required_by
from shared.learning.predictions import evaluate_kept
from shared.learning.run_checks import check_together
from shared.learning.tasks.contract import Evaluation
from studies.folders import same_folders
from studies.simulation import Final, run_rounds

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Simulation:
    """What a simulated run came to.

    Args:
        view: the run, as ``read_run`` returns one. Nobody knows times, bytes and consents: they are None.
        tests: by site, the scores of its final model, with its own parts, on its own test images.
        home: where the models lie: ``final/SITE`` as a hospital keeps its own.
        tables: by round and site, the table that the site would have sent.
    """

    view: RunView
    tests: Mapping[str, Evaluation] = field(repr=False)
    home: Path
    tables: Mapping[int, Mapping[str, list[MetricsRow]]] = field(repr=False)
    _scratch: tempfile.TemporaryDirectory[str] | None = field(repr=False)

    @property
    def chosen_round(self) -> int:
        """The round whose aggregate was chosen; 0: the model that the run began with."""
        return self.view.chosen_round or 0

    def frame(self) -> DataFrame:
        """Return a row for each number that a site reported of each aggregate, before it trained it further."""
        return self.view.frame()

    def decisions(self) -> DataFrame:
        """Return a row for each site in each round: its verdict, weight, θ, ε, score and tolerance."""
        return self.view.decisions()

    def metrics(self) -> DataFrame:
        """Return every row of every site's ``metrics.csv``, with its columns; ``site`` comes first."""
        told = (
            ({"site": site}, row)
            for _, of_round in sorted(self.tables.items())
            for site, table in of_round.items()
            for row in table
        )
        return metrics_frame(["site"], told)

    def figures(self) -> dict[str, Figure]:
        """Return the report's figures of the run, by name."""
        return figures(self.view)

    def model(self, site: str) -> Model:
        """Return a site's final model: the chosen aggregate with the site's own parts.

        Raises:
            ConfigurationError: there is no such site.
        """
        if site not in self.tests:
            raise ConfigurationError([f"site: the run has no {site}; name one of {', '.join(self.tests)}"])
        return load(_folder(self.home, site))


def simulate(
    run: Path | str | Mapping[str, Any] | RunConfiguration,
    sites: Mapping[str, Path | str],
    *,
    heldout: Path | str | None = None,
    home: Path | str | None = None,
    weights: Path | str | None = None,
) -> Simulation:
    """Play a run to its end in this process: every site's training, the checks, the aggregates and the choice.

    Each number comes from the code that the daemons run. Left out are signatures, transfer, consent and each hospital's
    policy: every site's is the one of public images, where a set may be one image and nothing is withheld. The same
    run and images give the same numbers on the same machine, as long as PyTorch uses as many threads.

    Args:
        run: a RUN.yaml; or the same as a mapping, in which ``run`` and ``sites`` may be left out; or a record.
        sites: each site's folder of images, laid out as docs/data.md says.
        heldout: the aggregator's labelled images, for the run's tolerance check; None: every sound model counts.
        home: a new folder for all models; None: a temporary one, which goes with the result.
        weights: where the files of published weights lie, if the run begins with some.

    Raises:
        ConfigurationError: settings that are wrong or do not fit together, other sites than the run's, a ``home`` that
            is in use, or published weights that are not there.
        DataError: every problem of some site's images, or of the held-out ones.
        ActionRequiredError: a plug-in that the run names does what it must not.
    """
    permit_installed()
    configuration = as_of_now(_configuration(run, sites))
    with blaming(required_by(configuration)):
        return _simulated(configuration, sites, heldout, home, weights)


def _simulated(
    configuration: RunConfiguration,
    sites: Mapping[str, Path | str],
    heldout: Path | str | None,
    home: Path | str | None,
    weights: Path | str | None,
) -> Simulation:
    check_together(configuration)
    if configuration.trainer is not None:
        raise ConfigurationError(["trainer: a simulation trains by PyTorch; leave it out"])
    folders = {name: path_of(folder, f"sites: {name}") for name, folder in sites.items()}
    held_out = path_of(heldout, "heldout") if heldout is not None else None
    named = [*folders.items(), *([("the held-out images", held_out)] if held_out else [])]
    if problems := [
        f"sites: {one} and {two} have the same folder; give each its own" for one, two in same_folders(named)
    ]:
        raise ConfigurationError(problems)
    configuration = in_full(configuration)  # as `launch` offers it to the sites
    scratch = None
    if home is None:
        scratch = tempfile.TemporaryDirectory(prefix="dropfed-")
        home = scratch.name
    root = path_of(home, "home")
    if root.is_file() or (root.is_dir() and any(root.iterdir())):
        raise ConfigurationError([f"home: {root} is there already; name a new folder, or leave it out"])
    outcome = run_rounds(
        configuration,
        folders,
        root,
        heldout=held_out,
        weights=path_of(weights, "weights") if weights is not None else None,
    )
    images = {name: _images(final) for name, final in outcome.finals.items()}
    view = view_of_tables(outcome.run, outcome.card, outcome.tables, outcome.verdicts, images)
    tests = {}
    for name, final in outcome.finals.items():
        with blaming(outcome.run.plugins, f"the final model of {name}"):
            tests[name] = _tested(root, name, final)
    return Simulation(view, tests, root, outcome.tables, scratch)


def _configuration(
    run: Path | str | Mapping[str, Any] | RunConfiguration, sites: Mapping[str, Path | str]
) -> RunConfiguration:
    if isinstance(run, Mapping):
        run = check_record({"run": "simulation", "sites": sorted(sites), **run}, RunConfiguration, "run")
    elif not isinstance(run, RunConfiguration):
        run = read_run(path_of(run, "run"))
    if set(run.sites) != set(sites):
        told, given = ", ".join(run.sites), ", ".join(sites) or "none"
        raise ConfigurationError(
            [f"sites: the run names {told}, and folders are given for {given}; make them the same"]
        )
    return run


def _images(final: Final) -> dict[Any, str]:
    return {split: str(len(getattr(final.dataset, split))) for split in SPLITS}


def _tested(home: Path, site: str, final: Final) -> Evaluation:
    final.keep(_folder(home, site))
    return evaluate_kept(open_model(_folder(home, site)), final.dataset.test)


def _folder(home: Path, site: str) -> Path:
    return home / "final" / site
