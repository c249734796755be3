"""``make demo``: a whole federation on this machine, with real processes, real files and a real WebDAV server.

Everything lies below ``demo-run/``, which is removed and made anew at each call:

    folders/SITE/            the drop folders as on the server
    aggregator/  sites/SITE/ the work directories of the daemons, with their logs
    data/SITE/               synthetic images (unless --data names real ones)
    alone/                   what the first site comes to by itself
    final/model.safetensors  report.md  summary.json
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import click
from rich.console import Console
from rich.table import Column, Table

from aggregator.new_run import Answers, filled_in
from aggregator.report import find_model, report_text
from aggregator.report.before_after import Alone, before_and_after
from aggregator.run_view import view_run
from aggregator.setup import misnamed
from aggregator.store import RunStore
from deploy.local.report import site_scores
from deploy.local.scenarios import SCENARIOS, Scenario
from deploy.local.webdav_server import Settings
from shared.commands import FOLDER_HERE, Program
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import hash_file, write_file
from shared.folder.lock import make_work
from shared.learning.methods import method_names
from shared.learning.tasks import task_named
from shared.plurals import pluralize
from shared.software import own_program
from site_client.configuration import Policy
from site_client.store import final_home, has_final
from studies.alone import training_alone
from studies.federation import set_up
from studies.simulation import open_public

HOME = Path("demo-run")
SITE_NAMES = ("north", "south", "east", "west", "coast", "hills", "lake", "plain")
POLL_S = 1.0
POLICY = Policy(consent="auto", minimum_count=1, minimum_training_images=1)
"""Of sites whose images nobody needs to protect: they are synthetic, or whoever runs the demo has all of them."""

console = Console(highlight=False)


Sites = Mapping[str, Path]
"""Each site's images, by its name."""


@click.group(cls=Program, extra="local", invoke_without_command=True)
@click.option("--task", type=click.Choice(sorted(SCENARIOS)), default="octa_segmentation", show_default=True)
@click.option("--method", type=click.Choice(method_names()), help="Default: mean; for dr_staging feduaa.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Default 4; for dr_staging 20; as suggested, its own.")
@click.option("--sites", "site_count", type=click.IntRange(1, 64), help="Default 3, or 4; with --data all there are.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=2021, show_default=True)
@click.option(
    "--image-size",
    type=click.IntRange(32, 512),
    help="Longer side in pixels. Default 96, or 64; as suggested, its own.",
)
@click.option("--data", type=FOLDER_HERE, help="One sub-folder per site.")
@click.option("--as-suggested", is_flag=True, help="Settings as new-run suggests them: for real images; takes longer.")
def main(
    *,
    task: str,
    method: str | None,
    rounds: int | None,
    site_count: int | None,
    seed: int,
    image_size: int | None,
    data: Path | None,
    as_suggested: bool,
) -> None:
    """Run a federation from nothing to the final model."""
    began = time.monotonic()
    scenario = SCENARIOS[task].as_suggested() if as_suggested else SCENARIOS[task]
    size = image_size or scenario.image_size
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "final").mkdir(parents=True)
    if data:
        sites = _real_sites(data, site_count)
    else:
        sites = _synthetic_sites(scenario, site_count or scenario.sites, seed, size)
    method, rounds = method or scenario.method, rounds or scenario.rounds
    run = run_configuration(scenario, list(sites), size, method=method, rounds=rounds, seed=seed)
    heldout = _heldout(scenario, data, sites, run, size)
    with _server(sites) as url:
        urls = {site: f"{url}/{site}/" for site in sites}
        set_up(HOME, run, sites, urls, federation="demo", heldout=heldout, poll_s=POLL_S, policy=POLICY)
        with training_alone(HOME / "alone", run, run.sites[0], sites) as trained:
            _federate(sites, run.run)
            if not trained.has_ended:
                console.print(f"waiting for {run.sites[0]} alone, which is trained to compare with")
            alone = trained.result(scenario.score)
    _finish(scenario, run, alone, time.monotonic() - began)


# --- data ------------------------------------------------------------------------------------------------------


def _synthetic_sites(scenario: Scenario, count: int, seed: int, size: int) -> Sites:
    images = f"{scenario.images_per_site} each, {size} × {size} pixels"
    console.print(f"making synthetic {scenario.images} for {pluralize(count, 'site')} ({images})")
    names = [*SITE_NAMES, *(f"site-{number:02d}" for number in range(len(SITE_NAMES), count))][:count]
    sites = {name: HOME / "data" / name for name in names}
    for number, root in enumerate(sites.values()):
        scenario.write_site(root, number, size, seed + 1 + number)
    return sites


def _real_sites(data: Path, count: int | None) -> Sites:
    folders = (path for path in sorted(data.iterdir()) if path.is_dir() and path.name != "heldout")
    sites = {path.name: path.resolve() for path in folders if _holds_images(path)}
    if problems := misnamed(sites):
        raise ConfigurationError([f"{data}/{problem}" for problem in problems])
    if not sites:
        raise ConfigurationError([f"{data}: has no sub-folder with images/; make one for each site"])
    return dict(islice(sites.items(), count))


def _holds_images(folder: Path) -> bool:
    """Return whether a folder is a site's: it holds ``images/``, or one folder for each grade."""
    return (folder / "images").is_dir() or any(path.is_dir() and path.name[:1].isdecimal() for path in folder.iterdir())


def _heldout(scenario: Scenario, data: Path | None, sites: Sites, run: RunConfiguration, size: int) -> Path:
    """Return the aggregator's labelled images: ``heldout/``, fresh synthetic ones, or a few of the first site."""
    target = (HOME / "data" / "heldout").resolve()
    if data is None:
        scenario.write_heldout(target, size, run.seed)
        return target
    if (data / "heldout").is_dir():
        return (data / "heldout").resolve()
    if not scenario.lends_heldout:
        raise ConfigurationError([f"{data}: has no heldout/; put labelled images there for the tolerance check"])
    first, root = next(iter(sites.items()))
    dataset = open_public(task_named(run.task), root, run, first)
    chosen = {sample.id for sample in dataset.validation[: scenario.heldout_images]}
    for kind in ("images", "masks"):
        (target / kind).mkdir(parents=True)
        for path in sorted((root / kind).iterdir()):
            if path.stem in chosen:
                shutil.copyfile(path, target / kind / path.name)
    console.print(f"no heldout/ in {data}: {len(chosen)} validation images of {first} serve for the tolerance check")
    return target


# --- setting up ------------------------------------------------------------------------------------------------


def run_configuration(
    scenario: Scenario, sites: Sequence[str], size: int, *, method: str, rounds: int, seed: int
) -> RunConfiguration:
    """Return what ``new-run`` suggests, but for what the scenario says."""
    text = filled_in(Answers(scenario.run, scenario.task, method, list(sites), rounds))
    suggested = parse_yaml(text.encode(), RunConfiguration, scenario.run).model_dump()
    own = {
        "seed": seed,
        "quorum": len(sites) if suggested["quorum"] > 1 else 1,  # in turn, one answers each round
        "task_options": {**suggested["task_options"], **scenario.task_options, "image_size": size},
        "augmentation": {**suggested["augmentation"], **scenario.augmentation},
    }
    return RunConfiguration.model_validate({**suggested, **scenario.settings, **own})


@contextmanager
def _server(sites: Sites) -> Iterator[str]:
    """Run the embedded WebDAV server as a process of its own; yield its address."""
    own, passwords = secrets.token_urlsafe(24), {site: secrets.token_urlsafe(24) for site in sites}
    root, path = str((HOME / "folders").resolve()), HOME / "server.json"
    settings = Settings(root=root, host="127.0.0.1", port=0, aggregator_password=own, sites=passwords)
    write_file(path, settings.model_dump_json().encode(), private=True)
    make_work(HOME / "aggregator")
    for site, password in passwords.items():
        make_work(HOME / "sites" / site)
        write_file(HOME / "sites" / site / "password", password.encode(), private=True)
        write_file(HOME / "aggregator" / "passwords" / site, own.encode(), private=True)
    command = [*own_program("deploy.local.webdav_server"), str(path)]
    with (HOME / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        found = re.search(r"http://\S+:\d+", line)
        if found is None:
            raise ActionRequiredError(f"the WebDAV server did not start; {HOME / 'server.log'} says why")
        yield found[0]
    finally:
        process.terminate()
        process.wait()


# --- running ---------------------------------------------------------------------------------------------------


def _federate(sites: Sites, run: str) -> None:
    """Start one aggregator and all sites as processes, show how they get on, and end them."""
    launch = ("launch", str(HOME / "aggregator" / "RUN.yaml"), "--accept-any")
    aggregator = _daemon("aggregator.cli", *launch, work=HOME / "aggregator")
    daemons = {site: _daemon("site_client.cli", "run", work=HOME / "sites" / site) for site in sites}
    try:
        console.print("training; for each site its round (r) and how far it is")
        progress = _Progress(sites)
        while aggregator.poll() is None or not all(has_final(HOME / "sites" / site, run) for site in sites):
            if aggregator.poll():
                raise ActionRequiredError(f"the aggregator failed; {HOME / 'aggregator' / 'output.txt'} says why")
            if aborted := RunStore(HOME / "aggregator", run).aborted():
                logs = HOME / "sites" / "SITE" / "output.txt"
                raise ActionRequiredError(f"the run was aborted: {aborted}; {logs} tells what each site said")
            for name, process in daemons.items():
                if process.poll() is not None:
                    log = HOME / "sites" / name / "output.txt"
                    raise ActionRequiredError(f"site {name} ended early; {log} says why")
            progress.show()
            time.sleep(0.5)
    finally:
        for process in (*daemons.values(), aggregator):
            process.terminate()
        for process in (*daemons.values(), aggregator):
            process.wait()


def _daemon(module: str, *arguments: str, work: Path) -> subprocess.Popen[bytes]:
    command = [*own_program(module), *arguments, "--work", str(work)]
    with (work / "output.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


class _Progress:
    """One line whenever a site's heartbeat in its folder says something new."""

    def __init__(self, sites: Sites) -> None:
        self._began = time.monotonic()
        self._sites = sites
        self._shown = ""

    def show(self) -> None:
        line = "  ".join(f"{site} {self._state(site)}".ljust(len(site) + 15) for site in self._sites).rstrip()
        if line != self._shown:
            self._shown = line
            console.print(f"{time.monotonic() - self._began:4.0f} s  {line}", markup=False, soft_wrap=True)

    def _state(self, site: str) -> str:
        try:
            status = json.loads((HOME / "folders" / site / "status.json").read_bytes())["body"]
        except (OSError, ValueError):
            return "starting"
        if not status["round"]:
            return str(status["phase"])
        fifths = status["progress_percent"] // 20 * 20 if status["phase"] == "training" else 0
        return f"r{status['round']} {fifths} %" if fifths else f"r{status['round']}"


# --- the end ---------------------------------------------------------------------------------------------------


def _finish(scenario: Scenario, run: RunConfiguration, alone: Alone, seconds: float) -> None:
    """Copy the model, write report and summary, print the outcome, the table and where to look."""
    work = HOME / "aggregator"
    final = HOME / "final" / "model.safetensors"
    shutil.copyfile(work / "runs" / run.run / "final" / "model.safetensors", final)
    view = view_run(work, RunStore(work, run.run))
    if view.card is None or view.outcome is None:
        raise ValueError("the run has not ended")
    scores = site_scores(view, view.card, scenario.score)
    summary = {
        "outcome": view.outcome.name,
        "sites": scores,
        "alone": {alone.site: alone.tests},
        "final_sha256": hash_file(final)[1],
        "rounds": run.rounds,
        "seconds": round(seconds, 1),
    }
    write_file(HOME / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    text = report_text(view, find_model(work, run), scenario.score, scenario.score_title, alone)
    write_file(HOME / "report.md", text.encode())
    console.print(f"\n{view.outcome.text}\n", markup=False, soft_wrap=True)
    compared = before_and_after(view, view.card.chosen_round, scenario.score, scenario.score_title, alone)
    told = [name for name in _COLUMNS if any(score[name] is not None for score in scores.values())]
    last = " and ".join(_COLUMNS[name] for name in ("theta", "weight") if name in told)
    console.print(f"{compared.caption}; {last} of the last training round")
    rows = [
        [*(cell.text for cell in row), *(_shown(scores.get(row[0].text, {}).get(name)) for name in told)]
        for row in compared.shown
    ]
    console.print(table_of_sites((*compared.header, *(_COLUMNS[name] for name in told)), rows, console.width))
    for note in compared.notes:
        console.print(f"{note}.", markup=False, soft_wrap=True)
    console.print(f"{pluralize(run.rounds, 'round')} in {seconds:.0f} s", markup=False)
    console.print(f"  drop folders   {HOME / 'folders'}/")
    console.print(f"  final model    {final}")
    console.print(f"  report         {HOME / 'report.md'}   numbers: {HOME / 'summary.json'}")
    _try_next(HOME / "sites" / run.sites[0], HOME / "data" / run.sites[0] / "images", run.run)


def table_of_sites(header: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> Table:
    """Return a table in which each site keeps to one line, as far as that is possible.

    Args:
        columns: of the terminal.
    """
    # Headers take further lines for that; where it is not enough, cells stand close to each other.
    widths = [max(map(len, (*name.split(), *cells))) for name, *cells in zip(header, *rows, strict=True)]
    is_wide = sum(width + 3 for width in widths) + 1 > columns
    table = Table(Column(header[0], overflow="fold"), padding=0 if is_wide else (0, 1))
    for name, width in zip(header[1:], widths[1:], strict=True):
        table.add_column(name, width=width, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _try_next(site: Path, images: Path, run: str) -> None:
    """Print commands that look at what the demo left."""
    bin_folder = Path(sys.executable).parent
    if bin_folder.is_relative_to(Path.cwd()):
        bin_folder = bin_folder.relative_to(Path.cwd())
    commands = [
        f"audit verify {HOME / 'folders'}",
        f"aggregator status --work {HOME / 'aggregator'}",
        f"site status --work {site}",
    ]
    if images.is_dir():
        commands.append(f"site predict {images} --model {final_home(site, run)} --output {HOME / 'predictions'}")
    console.print("try next:")
    for command in commands:
        console.print(f"  {bin_folder}/dropfed-{command}", markup=False, soft_wrap=True)


_COLUMNS = {"classes": "grades", "theta": "θ", "weight": "weight"}
"""What is told of each site beside its scores, and its headline."""


def _shown(value: object) -> str:
    return "" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(prog_name="make demo")
