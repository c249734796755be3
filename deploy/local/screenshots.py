"""Take the documentation's pictures of pages, from a small real run, by headless Chromium.

    .venv/bin/python -m deploy.local.screenshots [FOLDER [demo|path|staging|slurm]]

``demo`` is ``make demo`` with smaller images: the dashboard is pictured while it goes on, the other pages after its
end. ``path`` is a PI's path: a survey of three sites, and a run with ``baseline: local`` that ``stop_after`` ends.
``staging`` is a run on fundus photographs. ``slurm`` is one round at a site whose compute node has no network, as
``deploy/slurm`` has it.
"""

from __future__ import annotations

import html
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from PIL import Image

from aggregator.configuration import read_configuration
from aggregator.dashboard.server import serving
from aggregator.report.page import write_pages
from aggregator.store import RunStore
from aggregator.survey import ask, classes_of, collect
from aggregator.survey_report import report_text
from deploy.local.demo import POLICY, SITE_NAMES, run_configuration
from deploy.local.scenarios import SCENARIOS, Scenario
from shared.audit import report as audit_page
from shared.audit.archive import open_archive
from shared.audit.sites import read_folders
from shared.audit.verify import verified
from shared.commands import say
from shared.errors import ActionRequiredError
from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import write_file
from shared.software import own_program
from site_client.configuration import FILE, open_folder
from site_client.configuration import read_configuration as read_site
from site_client.daemon import Daemon
from studies.daemons import run_exchange
from studies.federation import RUN_FILE, set_up

PICTURES = Path("docs/pictures")
SHOTS = {
    "dashboard.png": 2000,
    "report.png": 1460,
    "report-heldout.png": 2280,
    "audit.png": 1800,
    "survey.png": 780,
    "report-gain.png": 1190,
    "report-staging.png": 2750,
    "slurm.png": 420,
}
"""The pictures, and how high each is in pixels."""
WIDTH, COLOURS = 1066, 128
IMAGE_SIZE, IN_ROUND = 64, 3
"""Side of an image in pixels; the round during which the dashboard is pictured."""
BEFORE_REFERRAL = ("confusion", "roc", "precision-recall", "risk-coverage")
"""Figures of the report that its second picture leaves out."""
PATH = {"rounds": 12, "baseline": "local", "stop_after": {"rounds": 1, "gain": 0.05}, "augmentation": {"copies": 2}}
"""What the run of a PI's path asks for besides; its net is small, for it trains three models twice."""
WIDTHS = [8, 16]
STAGING, IMAGES = {"rounds": 6}, 120
"""What the run on fundus photographs asks for besides, and how many a site has: less of both than in the demo."""
STYLE = "font: 12px/1.45 monospace; margin: 18px; white-space: pre-wrap"
TERMINAL = f"<!doctype html><meta charset=utf-8><pre style='{STYLE}'>{{}}"
NO_NETWORK = ("unshare", "--net", "--map-root-user")
"""What starts a process that reaches no other machine."""
SHARED = "/shared/dropfed"
"""What the picture calls the work directory that both nodes see."""
PAGE_TIME_MS, SHOT_WITHIN_S = 4000, 300.0
"""What a page has for its scripts, by its own clock; and the browser for all of it."""

Shoot = Callable[[str, str], None]
"""Takes a picture: (its name, the page's address)."""


def take_demo(browser: str, target: Path) -> None:
    """Play the demo, and write its pictures into a folder.

    Raises:
        ActionRequiredError: the run failed, or was over before its dashboard could be pictured.
    """
    with tempfile.TemporaryDirectory(prefix="dropfed-") as scratch:
        home, run = Path(scratch).resolve() / "demo-run", SCENARIOS["octa_segmentation"].run
        store = RunStore(home / "aggregator", run)
        shoot = _shooting(browser, target, Path(scratch))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
        demo = subprocess.Popen(
            [*own_program("deploy.local.demo"), "--image-size", str(IMAGE_SIZE)], cwd=scratch, env=environment
        )
        try:
            _picture_dashboard(shoot, home, store, demo)
        finally:
            if demo.wait() != 0:
                raise ActionRequiredError("the demo failed; what it printed above says why")
        report = write_pages(home / "aggregator", store, home / "report")
        shoot("report.png", report.as_uri())
        shoot("report-heldout.png", _heldout(report).as_uri())
        shoot("audit.png", _audit(home).as_uri())


def take_path(browser: str, target: Path) -> None:
    """Play a PI's path, and write its pictures into a folder."""
    with tempfile.TemporaryDirectory(prefix="dropfed-") as scratch:
        home, shoot = Path(scratch).resolve(), _shooting(browser, target, Path(scratch))
        run = _play(SCENARIOS["octa_segmentation"], home, PATH, {"widths": WIDTHS})
        shoot("survey.png", _survey(home, run.task, run.sites).as_uri())
        report = write_pages(home / "aggregator", RunStore(home / "aggregator", run.run), home / "report")
        shoot("report-gain.png", report.as_uri())


def take_staging(browser: str, target: Path) -> None:
    """Play a run on fundus photographs, and write its picture into a folder."""
    with tempfile.TemporaryDirectory(prefix="dropfed-") as scratch:
        home, shoot = Path(scratch).resolve(), _shooting(browser, target, Path(scratch))
        run = _play(replace(SCENARIOS["dr_staging"], images_per_site=IMAGES), home, STAGING)
        report = write_pages(home / "aggregator", RunStore(home / "aggregator", run.run), home / "report")
        shoot("report-staging.png", report.as_uri())


def _play(
    scenario: Scenario, home: Path, changes: Mapping[str, object], options: Mapping[str, object] = MappingProxyType({})
) -> RunConfiguration:
    """Play a run of a scenario in this process, below ``home``; return it.

    Args:
        changes: settings that replace those of the scenario.
        options: task options that replace those of the scenario.
    """
    data = _drawn(scenario, home, SITE_NAMES[: scenario.sites])
    plain = run_configuration(scenario, list(data), IMAGE_SIZE, method=scenario.method, rounds=1, seed=2021)
    values = plain.model_dump() | {**changes, "task_options": {**plain.task_options, **options}}
    run = RunConfiguration.model_validate(values)
    run_exchange(run, data, home, heldout=home / "heldout")
    return run


def _drawn(scenario: Scenario, home: Path, sites: Sequence[str]) -> dict[str, Path]:
    """Draw each site's images, and the held-out ones, below ``home``; return the sites' folders."""
    data = {site: home / "data" / site for site in sites}
    for number, root in enumerate(data.values()):
        scenario.write_site(root, number, IMAGE_SIZE, number)
    scenario.write_heldout(home / "heldout", IMAGE_SIZE, seed=99)
    return data


def take_slurm(browser: str, target: Path) -> None:
    """Play a run with a site whose compute node has no network, and picture its second round on a terminal."""
    scenario, (here, other) = SCENARIOS["octa_segmentation"], SITE_NAMES[:2]
    with tempfile.TemporaryDirectory(prefix="dropfed-") as scratch:
        home, shoot = Path(scratch).resolve(), _shooting(browser, target, Path(scratch))
        data = _drawn(scenario, home, (here, other))
        run = run_configuration(scenario, list(data), IMAGE_SIZE, method=scenario.method, rounds=2, seed=2021)
        for site in data:
            (home / "folders" / site).mkdir(parents=True)
        urls = {site: (home / "folders" / site).as_uri() for site in data}
        set_up(home, run, data, urls, federation="retina", heldout=home / "heldout", poll_s=1.0, policy=POLICY)
        work = home / "sites" / here
        write_file(work / FILE, (work / FILE).read_bytes().replace(b"exchange: null", b"exchange: exchange"))
        daemons = [
            subprocess.Popen([*own_program(module), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for module, *arguments in (
                ("aggregator.cli", "launch", str(home / "aggregator" / RUN_FILE), "--work", str(home / "aggregator")),
                ("site_client.cli", "run", "--work", str(home / "sites" / other)),
            )
        ]
        try:
            shoot("slurm.png", _on_terminal(work, MessageRef("update", run.run, 2)).as_uri())
        finally:
            for daemon in daemons:
                daemon.terminate()
            for daemon in daemons:
                daemon.wait()


def _on_terminal(work: Path, answer: MessageRef) -> Path:
    """Have the site's commands take turns until one of them has signed an answer; write that turn as a page."""
    said = ""
    while not (work / "mirror" / answer.manifest).exists():
        lines = []
        for command, *before in (("move --once",), ("run --once", *NO_NETWORK), ("status",)):
            called = [*before, *own_program("site_client.cli"), *command.split(), "--work", str(work)]
            done = subprocess.run(called, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
            lines += [f"$ dropfed-site {command} --work {work}", done.stdout]
        said = "\n".join(lines).replace(str(work), SHARED)
    write_file(work.parent / "slurm.html", TERMINAL.format(html.escape(said)).encode())
    return work.parent / "slurm.html"


def _survey(home: Path, task: str, sites: list[str]) -> Path:
    """Ask the sites about their images, have them answer, and write what the PI then reads on a terminal as a page."""
    work = home / "aggregator"
    configuration = read_configuration(work)
    ask(work, configuration, task, classes_of(task, None))
    for site in sites:
        path = home / "sites" / site / FILE
        write_file(path, path.read_bytes().replace(b"statistics: ask", b"statistics: auto"))
        Daemon(path.parent, own := read_site(path.parent), open_folder(path.parent, own), stop=threading.Event()).step()
    text = f"$ dropfed-aggregator survey --report\n{report_text(collect(work, configuration))}"
    write_file(home / "survey.html", TERMINAL.format(html.escape(text)).encode())
    return home / "survey.html"


def _shooting(browser: str, target: Path, scratch: Path) -> Shoot:
    return lambda name, address: _shoot(browser, address, target / name, SHOTS[name], profile=scratch / "profile")


PLAYS = {"demo": take_demo, "path": take_path, "staging": take_staging, "slurm": take_slurm}


def _picture_dashboard(shoot: Shoot, home: Path, store: RunStore, demo: subprocess.Popen[bytes]) -> None:
    """Wait until a site trains in the round, and picture the dashboard."""
    while not _trains(home, IN_ROUND):
        if demo.poll() is not None or store.round_no > IN_ROUND:
            raise ActionRequiredError(f"no site was seen training in round {IN_ROUND}; try again")
        time.sleep(0.1)
    with serving(home / "aggregator", "127.0.0.1", 0) as address:
        shoot("dashboard.png", address)


def _trains(home: Path, round_no: int) -> bool:
    """Return whether some site's heartbeat tells of progress in a round."""
    for path in home.glob("folders/*/status.json"):
        try:
            status = json.loads(path.read_bytes())["body"]
        except (OSError, ValueError):  # it is being replaced just now
            continue
        if status["round"] == round_no and status["progress_percent"]:
            return True
    return False


def _heldout(report: Path) -> Path:
    """Write the report's page once more, with nothing but what its model says of held-out images from referral on."""
    hidden = ", ".join(["header", "main > :not(#heldout)", *(f"#{name}" for name in BEFORE_REFERRAL)])
    page = report.read_text(encoding="utf-8").replace("</head>", f"<style>{hidden} {{ display: none }}</style></head>")
    write_file(report.with_name("heldout.html"), page.encode())
    return report.with_name("heldout.html")


def _audit(home: Path) -> Path:
    """Write the auditor's page of the drop folders."""
    folders = read_folders(open_archive([str(home / "folders")]))
    audits = {name: verified(reading) for name, reading in folders.items()}
    page = audit_page.page(audit_page.report(folders, audits, is_key_compared=False))
    write_file(home / "audit.html", page.encode())
    return home / "audit.html"


def _shoot(browser: str, address: str, target: Path, height: int, *, profile: Path) -> None:
    """Write what a window shows of a page as PNG of few colours."""
    whole = profile.with_name("whole.png")
    options = [
        "--headless=new",
        "--no-sandbox",  # which root, as in a container, cannot have
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
        "--no-proxy-server",
        f"--user-data-dir={profile}",
        f"--window-size={WIDTH},{height}",
        f"--virtual-time-budget={PAGE_TIME_MS}",
        f"--screenshot={whole}",
    ]
    subprocess.run([browser, *options, address], check=True, capture_output=True, timeout=SHOT_WITHIN_S)
    with Image.open(whole) as picture:
        picture.convert("RGB").quantize(COLOURS).save(target, optimize=True)


if __name__ == "__main__":
    folder, *wanted = sys.argv[1:] or [str(PICTURES)]
    if not Path(folder).is_dir() or set(wanted) - set(PLAYS):
        sys.exit(f"usage: python -m deploy.local.screenshots [FOLDER [{'|'.join(PLAYS)}]]")
    if (found := shutil.which("chromium")) is None:
        say("no picture was taken: Chromium is not installed; `apt-get install chromium` brings it", err=True)
    else:
        for play in wanted or PLAYS:
            PLAYS[play](found, Path(folder))
