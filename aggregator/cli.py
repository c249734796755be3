"""``dropfed-aggregator``: what the PI types.

Exit codes: 0 done, 1 a run or command failed, 2 wrong usage or input, 3 a run ended and its model did not improve.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from shared.commands import (
    AS_JSON,
    Commands,
    ask_password,
    asked,
    require_yes,
    say,
    show_status,
    status_options,
    values_by_name,
    work_option,
)
from shared.errors import ConfigurationError
from shared.escaping import quoted
from shared.plurals import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aggregator.daemon import Daemon
    from aggregator.provision_plan import Login
    from aggregator.store import RunStore

WORK = work_option("aggregator.yaml")
NOT_IMPROVED = 3
Answer = TypeVar("Answer")
UNASKED = "say it by an option, or take what is suggested with --defaults"
PASSWORD_VARIABLE = "DROPFED_AGGREGATOR_PASSWORD"  # noqa: S105  (the variable's name, not a password)
ADMIN_VARIABLE = "DROPFED_ADMIN_PASSWORD"
SECRET = click.Path(path_type=Path, exists=True, dir_okay=False)


def _admin_options(command: Callable[..., Any]) -> Callable[..., Any]:
    file = click.option(
        "--admin-password-file", type=SECRET, help=f"Its password; else {ADMIN_VARIABLE}, or it is asked. Never kept."
    )(command)
    return click.option("--admin", metavar="ACCOUNT", help="An administrator of the server.")(file)


@click.group(cls=Commands)
@click.version_option(package_name="dropfed")
def main() -> None:
    """Launch and watch federated-learning runs over drop folders."""


@main.command()
@WORK
@click.option("--federation", required=True, help="Name of the federation: lower-case letters, digits, '-', '_', '.'.")
@click.option(
    "--site", "sites", multiple=True, required=True, metavar="NAME=URL", help="A site and its folder; once per site."
)
@click.option("--user", default="aggregator", show_default=True, help="The aggregator's account on the server.")
@click.option(
    "--site-url",
    "site_urls",
    multiple=True,
    metavar="NAME=URL",
    help="The folder as its site reaches it, if elsewhere.",
)
def init(work: Path, federation: str, sites: tuple[str, ...], user: str, site_urls: tuple[str, ...]) -> None:
    """Make a work directory: configuration, signing key, one invite per site.

    Run it again with another --site to invite another site: it is added to aggregator.yaml, all else stays as it is.
    """
    from aggregator.setup import initialise, invite_path  # noqa: PLC0415  (keeps --help instant)
    from shared.folder.address import is_near  # noqa: PLC0415

    form = "NAME=URL, as in north=https://cloud.example.org/dav/north/"
    urls, theirs = values_by_name("--site", sites, form), values_by_name("--site-url", site_urls, form)
    made = initialise(work, federation, urls, user, theirs)
    for path in made:
        say(f"wrote {path}")
    for invite in (invite_path(work, name) for name, url in (urls | theirs).items() if is_near(url)):
        if invite in made:
            remedy = "write into it, as url, where the hospital reaches its folder"
            say(f"warning: {invite} has an address that other networks do not reach: {remedy}", err=True)
    if not made:
        say(f"nothing was missing in {work}, and nothing was changed")
        return
    say("next: put each folder's password into the password_file that aggregator.yaml names (owner-only),")
    say("      name the held-out images in aggregator.yaml, and give each site its file from invites/")


@main.command()
@click.argument("server")
@WORK
@click.option("--federation", required=True, help="Name of the federation: lower-case letters, digits, '-', '_', '.'.")
@click.option(
    "--site",
    "sites",
    multiple=True,
    required=True,
    metavar="NAME[=ACCOUNT]",
    help="A site, and its account if that has another name; once per site.",
)
@click.option(
    "--by",
    "shared_by",
    type=click.Choice(["account", "share", "link"]),
    help="How sites enter: by accounts made here, by accounts that are there already, by public links.",
)
@click.option(
    "--user", default="aggregator", show_default=True, help="The aggregator's account, which owns the folders."
)
@click.option(
    "--password-file", type=SECRET, help=f"Its password; else as kept in WORK, {PASSWORD_VARIABLE}, or it is asked."
)
@_admin_options
@click.option("--quota", metavar="AMOUNT", help="What all folders may hold together, as in '50 GB'.")
@click.option("--ca-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Trust this authority.")
@click.option("--passwords-in-invites", is_flag=True, help="Put each site's password into its invite.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
def provision(
    server: str,
    *,
    work: Path,
    federation: str,
    sites: tuple[str, ...],
    shared_by: Literal["account", "share", "link"] | None,
    user: str,
    password_file: Path | None,
    admin: str | None,
    admin_password_file: Path | None,
    quota: str | None,
    ca_file: Path | None,
    passwords_in_invites: bool,
    dry_run: bool,
) -> None:
    """Make each site's folder, share it with the site, and write the invites.

    SERVER is an ownCloud, a Nextcloud, or any other WebDAV server. What is there already stays as it is: run it again
    to add a site, or to go on where it was broken off.
    """
    from aggregator.hosts import OWN_PASSWORD  # noqa: PLC0415  (keeps --help instant)
    from aggregator.provision import provision as carry_out  # noqa: PLC0415
    from aggregator.provision import recognise  # noqa: PLC0415
    from aggregator.provision_plan import Login, Wish  # noqa: PLC0415

    accounts = {name: account or name for name, _, account in (site.partition("=") for site in sites)}
    if len(accounts) < len(sites):
        raise ConfigurationError(["--site: names a site twice; keep one"])
    wish = Wish(server, federation, accounts, shared_by, quota, tells_passwords=passwords_in_invites, ca_file=ca_file)
    product = recognise(wish, user, admin)  # before a password is asked for
    say(f"{server} is {product}" if product else f"{server}: WebDAV, but neither ownCloud nor Nextcloud")
    kept = work / OWN_PASSWORD
    if password_file is None and kept.exists():
        password_file = kept
    is_told = password_file is not None or os.environ.get(PASSWORD_VARIABLE)
    needs_none = dry_run and product is None and not is_told  # then the folders are not looked into
    owner = Login(user, "" if needs_none else _password("--password-file", password_file, PASSWORD_VARIABLE, user))
    administrator = _admin(admin, admin_password_file, owner) if product else None
    for line in carry_out(work, wish, product, owner, administrator, is_dry=dry_run):
        say(line)


@main.command()
@click.argument("site")
@WORK
@click.option("--disable-account", is_flag=True, help="Disable the site's account as well; needs --admin.")
@_admin_options
def revoke(
    site: str, *, work: Path, disable_account: bool, admin: str | None, admin_password_file: Path | None
) -> None:
    """Stop sharing SITE's folder, on ownCloud or Nextcloud. The folder and its files stay."""
    from aggregator.provision import revoke as carry_out  # noqa: PLC0415  (keeps --help instant)

    if disable_account != (admin is not None):
        raise ConfigurationError(["--disable-account and --admin: go together; give both or neither"])
    for line in carry_out(work, site, _admin(admin, admin_password_file, None)):
        say(line)


def _admin(name: str | None, file: Path | None, owner: Login | None) -> Login | None:
    """The administrator, if one is named; it may be the aggregator's account itself."""
    from aggregator.provision_plan import Login  # noqa: PLC0415  (keeps --help instant)

    if name is None:
        return None
    if owner is not None and name == owner.user:
        return owner
    return Login(name, _password("--admin-password-file", file, ADMIN_VARIABLE, name))


def _password(option: str, file: Path | None, variable: str, user: str) -> str:
    """A password from a file, from the environment, or from the keyboard, without echo."""
    from shared.settings import read_password  # noqa: PLC0415  (keeps --help instant)

    if file is not None:
        return read_password(file)
    return os.environ.get(variable) or ask_password(user, f"give {option} FILE, or set {variable}")


@main.command()
@WORK
@AS_JSON
def check(work: Path, as_json: bool) -> None:
    """Look at every site's folder, its server, the invites and the held-out images; say what is wrong.

    In each folder a scratch folder, check-…, is made and removed again; nothing else is changed.
    """
    from aggregator.configuration import read_configuration  # noqa: PLC0415  (keeps --help instant)
    from aggregator.doctor import examine  # noqa: PLC0415
    from shared.check import report  # noqa: PLC0415

    report(examine(work, read_configuration(work)), as_json=as_json)


@main.command("new-run")
@WORK
@click.option("--run", help="The run's name, used once.")
@click.option("--task", help="What is learnt.")
@click.option("--method", help="How it is learnt together; README.md lists the methods.")
@click.option(
    "--preset", metavar="PAPER", help="Settings as a paper published them: lo2021, feduaa, dataweightedfed, fedee."
)
@click.option("--rounds", type=int, help="Rounds of training.")
@click.option("--site", "sites", multiple=True, metavar="NAME", help="A site that is asked; once per site.")
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write; never one that is there."
)
@click.option("--defaults", is_flag=True, help="Ask nothing: where no option says otherwise, take what is suggested.")
def new_run(
    *,
    work: Path,
    run: str | None,
    task: str | None,
    method: str | None,
    preset: str | None,
    rounds: int | None,
    sites: tuple[str, ...],
    output: Path | None,
    defaults: bool,
) -> None:
    """Write the settings of a new run, with a comment on each; asks for what no option says."""
    from aggregator.configuration import read_configuration  # noqa: PLC0415  (keeps --help instant)
    from aggregator.new_run import answered, require_free, run_of, suggested, tasks_with_images  # noqa: PLC0415
    from shared.folder.durable import write_file  # noqa: PLC0415
    from shared.learning.methods import method_names  # noqa: PLC0415

    configuration = read_configuration(work)
    tasks = tasks_with_images(work, configuration)
    if task is None:
        task = tasks[0] if defaults else _asked("Task", tasks[0], click.Choice(tasks), str)
    given: dict[str, Any] = {"run": run, "method": method, "sites": sites or None, "rounds": rounds}
    answers = suggested(work, configuration, task, preset)
    answers = replace(answers, **{name: value for name, value in given.items() if value is not None})
    run_of(work, configuration, answers)  # before anything is asked that cannot make it right
    if output is not None:
        require_free(output)
    questions: dict[str, tuple[str, Any, click.ParamType[Any]]] = {
        "run": ("Name of the run", answers.run, click.STRING),
        "method": ("Method", answers.method, click.Choice(method_names())),
        "sites": ("Sites", ", ".join(answers.sites), _Names()),
        "rounds": ("Rounds of training", answers.rounds, click.INT),
    }
    for name, question in questions.items():
        if given[name] is None and not defaults:
            answers = _asked(*question, partial(answered, work, configuration, answers, name))
    if output is None:
        usual = work / f"{answers.run}.yaml"
        output = require_free(usual) if defaults else _asked("File", usual, click.Path(path_type=Path), require_free)
    write_file(output, run_of(work, configuration, answers))
    say(f"wrote {output}")
    validate = f"`dropfed-aggregator validate {quoted(output)} --work {quoted(work)}`"
    say(f"next: read it, change what you like, then {validate}")


class _Names(click.ParamType[list[str]]):
    """Names with commas or spaces between them."""

    name = "names"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        return value.replace(",", " ").split()


def _asked(what: str, usual: object, kind: click.ParamType[Any], take: Callable[[Any], Answer]) -> Answer:
    """What ``take`` makes of a person's answer; asked again as long as it raises ConfigurationError."""

    def taken(text: str) -> Answer:
        try:
            return take(kind.convert(text, None, None))
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from None

    answer: Answer = asked(lambda: click.prompt(what, default=usual, type=kind, value_proc=taken), what, UNASKED)
    return answer


@main.command()
@click.argument("run_yaml", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@WORK
@AS_JSON
def validate(run_yaml: Path, work: Path, as_json: bool) -> None:
    """Say everything for which `launch` would refuse RUN_YAML, and what to think of first; nothing is sent or written.

    The initial model is made and scored on the held-out images, as `launch` does it, which may take a minute.
    """
    from aggregator.preparation import prepare, remarks  # noqa: PLC0415  (keeps --help instant)
    from shared.check import Finding, report  # noqa: PLC0415

    prepared = prepare(work, run_yaml)
    run = prepared.run
    what = f"{run_yaml}: {run.run} can be launched: {run.task} by {run.method}, {pluralize(run.rounds, 'round')}"
    report([Finding("ok", what), *remarks(prepared)], as_json=as_json)


@main.command()
@click.argument("run_yaml", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@WORK
@click.option("--accept-any", is_flag=True, help="Exit with 0 however the run has ended; for scripts.")
def launch(run_yaml: Path, work: Path, accept_any: bool) -> None:
    """Start the run that RUN_YAML describes, or go on with it; ends with the run, and says what it came to.

    Exits with 0 if the model improved, with 1 if the run was aborted, and with 3 if it ended in any other way.
    Ctrl-C or TERM ends it cleanly before that, with 0: the same command goes on.
    """
    from aggregator.configuration import MADE_BY  # noqa: PLC0415  (keeps --help instant)
    from aggregator.launch import prepare_daemon  # noqa: PLC0415
    from aggregator.store import if_another_launch  # noqa: PLC0415
    from shared.folder.lock import require_private, work_lock  # noqa: PLC0415

    stop = threading.Event()
    with work_lock(work, if_another_launch(work), MADE_BY):
        require_private(work)
        os.umask(0o077)
        daemon = prepare_daemon(work, run_yaml, stop)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        _run(daemon, work, accept_any=accept_any)


def _run(daemon: Daemon, work: Path, *, accept_any: bool) -> None:
    daemon.run()
    outcome, model = daemon.outcome, daemon.final_model
    if outcome is None:
        say(f"interrupted; go on with the same command (work directory {work})")
        return
    say(f"{outcome.text}; the chosen model is {model}" if model else outcome.text, err=model is None)
    if outcome.name != "improved" and not accept_any:
        sys.exit(1 if outcome.name == "aborted" else NOT_IMPROVED)


@main.command()
@WORK
@status_options
def status(work: Path, as_json: bool, watch: bool) -> None:
    """Show where the newest run stands: who is waited for, since when and why, what comes next, what is on its way."""
    from aggregator.overview import overview, overview_text  # noqa: PLC0415  (keeps --help instant)

    show_status(lambda: overview(work), overview_text, as_json=as_json, watch=watch)


@main.command()
@WORK
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; not loopback: by a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=8642, show_default=True, help="0: any that is free.")
def dashboard(work: Path, host: str, port: int) -> None:
    """Show where the newest run stands as a web page, live and read-only, until Ctrl-C."""
    from aggregator.dashboard.server import TOKEN_FILE, is_loopback, serving  # noqa: PLC0415  (keeps --help instant)

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with serving(work, host, port) as address:
        say(f"the dashboard is at {address} (Ctrl-C ends it)")
        if not is_loopback(host):
            say(f"it asks for the token in {work / TOKEN_FILE}")
            say("the connection is not encrypted: on a network that you do not trust, use an ssh tunnel")
        stop.wait()


@main.command()
@click.argument("run")
@WORK
@click.option("--json", "as_json", is_flag=True, help="Everything, for scripts; without it the main score alone.")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="File to write, as in report.json (default: standard output).",
)
@click.option(
    "--pages",
    type=click.Path(path_type=Path, file_okay=False, writable=True),
    help="Folder for report.html, which needs no other file, and its figures and tables as files.",
)
def report(run: str, work: Path, as_json: bool, output: Path | None, pages: Path | None) -> None:
    """Report on RUN, also while it goes on: every aggregate's scores at every site, every verdict, what it cost.

    With --pages the best aggregate also answers about the held-out images: that takes as long as to score a site's.
    """
    from aggregator.report import report_text, run_report  # noqa: PLC0415  (keeps --help instant)
    from shared.folder.durable import write_file  # noqa: PLC0415

    if pages is not None:
        from aggregator.report.page import write_pages  # noqa: PLC0415

        if as_json or output:
            raise click.UsageError("--pages writes files of its own: leave out --json and --output, or call twice")
        say(f"wrote {write_pages(work, _find_run(work, run), pages)}")
        return
    if output is not None and not output.parent.is_dir():
        raise ConfigurationError([f"{output}: there is no folder {output.parent}; make it, or name another file"])
    found = run_report(work, _find_run(work, run))
    text = json.dumps(found, indent=2) + "\n" if as_json else report_text(found, found["score"], found["score"])
    if output is None:
        say(text, nl=False)
    else:
        write_file(output, text.encode())
        say(f"wrote {output}")


@main.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@WORK
@AS_JSON
def compare(runs: tuple[str, ...], work: Path, as_json: bool) -> None:
    """Show runs side by side: settings that differ, scores of the chosen models, verdicts, cost."""
    from aggregator.comparison import compare_runs, comparison_text  # noqa: PLC0415  (keeps --help instant)

    if len(set(runs)) < max(len(runs), 2):
        raise ConfigurationError([f"compare: {' '.join(runs)}: name two runs or more, each once; {_runs_here(work)}"])
    found = compare_runs(work, [_find_run(work, run) for run in runs])
    say(json.dumps(found, indent=2) if as_json else comparison_text(found), nl=as_json)


@main.command()
@click.argument("run")
@WORK
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Folder to make; never one that is there."
)
def export(run: str, work: Path, output: Path) -> None:
    """Write the final model of RUN and its card: data, method, who took part, scores, ε, hashes of its origins."""
    from aggregator.model_card import export as write  # noqa: PLC0415  (keeps --help instant)

    for path in write(work, _find_run(work, run), output):
        say(f"wrote {path}")


@main.command()
@click.argument("run")
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def stop(run: str, work: Path, yes: bool) -> None:
    """End RUN for good: the open round ends with the answers there are, the best model so far becomes the final one."""
    store = _open_run(work, run)
    if not (yes or store.stop_requested):
        require_yes(f"End {run} for good? It cannot go on after that; `pause` holds it up for as long as you like.")
    store.request_stop()
    say(f"{run} is being closed with the best model so far{_unless_running(store, work)}")


@main.command()
@click.argument("run")
@WORK
def pause(run: str, work: Path) -> None:
    """Pause RUN: no site is asked for anything new and no deadline comes nearer; open answers are still taken."""
    store = _open_run(work, run)
    if store.stop_requested:
        raise ConfigurationError([f"{run} is being closed, and cannot be paused any more"])
    store.pause()
    say(f"{run} is paused; go on with `dropfed-aggregator resume {run} --work {quoted(work)}`")


@main.command()
@click.argument("run")
@WORK
def resume(run: str, work: Path) -> None:
    """Go on with RUN after `pause`."""
    store = _open_run(work, run)
    was_paused = store.paused
    store.resume()
    say(f"{run} {'goes on' if was_paused else 'was not paused'}{_unless_running(store, work)}")


@main.command()
@click.argument("study_yaml", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Where results go (default: beside it)."
)
@click.option(
    "--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True, help="Processes, or Ray tasks."
)
@click.option("--at-a-time", type=click.IntRange(min=1), help="Cells at a time (default: what this machine bears).")
def study(study_yaml: Path, output: Path | None, engine: Literal["local", "ray"], at_a_time: int | None) -> None:
    """Play the study that STUDY_YAML describes, or go on with it: every arm, fold and seed, and their table.

    Ctrl-C or SIGTERM ends it; the same command goes on, and plays nothing twice.
    """
    from aggregator.studies.play import play_study  # noqa: PLC0415  (keeps --help instant)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not play_study(study_yaml, output, engine, at_a_time):
        sys.exit(1)


def _unless_running(store: RunStore, work: Path) -> str:
    """What else has to be done where no aggregator is at work, as the end of a sentence."""
    from shared.folder.lock import is_at_work  # noqa: PLC0415  (keeps --help instant)

    if is_at_work(work):
        return ""
    return f"; the aggregator is not running: {store.goes_on_by} starts it"


def _find_run(work: Path, run: str) -> RunStore:
    """A run that was launched here.

    Raises:
        ConfigurationError: there is no such directory, or no such run here.
    """
    from aggregator.store import runs_in  # noqa: PLC0415  (keeps --help instant)

    here = _runs_here(work)
    store = next((store for store in runs_in(work) if store.run == run), None)
    if store is None:
        raise ConfigurationError([f"{work}: there is no run {run} here; {here}"])
    return store


def _runs_here(work: Path) -> str:
    """The runs that were launched here, as the end of a sentence.

    Raises:
        ConfigurationError: there is no such directory.
    """
    from aggregator.configuration import MADE_BY  # noqa: PLC0415  (keeps --help instant)
    from aggregator.store import runs_in  # noqa: PLC0415
    from shared.folder.lock import require_work  # noqa: PLC0415

    require_work(work, MADE_BY)
    runs = [store.run for store in runs_in(work)]
    return f"the runs here are {', '.join(runs)}" if runs else "no run was launched here yet"


def _open_run(work: Path, run: str) -> RunStore:
    """A run that has not ended.

    Raises:
        ConfigurationError: there is no such directory, no such run here, or it has ended.
    """
    store = _find_run(work, run)
    if (card := store.card()) is not None:
        raise ConfigurationError([f"{run} has ended already: {card.reason}; its model is {store.final_model}"])
    if (reason := store.aborted()) is not None:
        raise ConfigurationError([f"{run} was aborted: {reason}; launch a new run"])
    return store


if __name__ == "__main__":
    main()
