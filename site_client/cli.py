"""``dropfed-site``: what IT staff type. Exit codes: 0 done, 1 something stands in the way, 2 wrong usage or input."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click

from shared.commands import (
    AS_JSON,
    Commands,
    ask_password,
    require_yes,
    say,
    show_status,
    status_options,
    values_by_name,
    work_option,
)
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError
from shared.escaping import quoted
from shared.learning.tasks import TASK_NAMES
from shared.plurals import pluralize

WORK = work_option("site.yaml")
MODEL = click.option(
    "--model", type=click.Path(path_type=Path), help="Default: the newest in the work directory's final/."
)
FOR = click.option(
    "--for", "duration", metavar="TIME", help="Stop cleanly after a time, as in 90m or 24h (batch jobs)."
)


@click.group(cls=Commands)
@click.version_option(package_name="dropfed")
def main() -> None:
    """Take part in federated-learning runs through one drop folder."""


@main.command()
@click.argument("invite", type=click.Path(path_type=Path))
@WORK
@click.option("--data", metavar="TASK=DIR", multiple=True, help="This hospital's images for a task; for each task one.")
@click.option("--url", help="Where the folder is reached from here, if not as the invite says.")
@click.option("--user", help="Who enters the folder, if not as the invite says: of a public link, its token.")
@click.option(
    "--ca-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Trust this certificate authority."
)
@click.option(
    "--password-file", type=click.Path(path_type=Path, exists=True), help="Take the password from this file's text."
)
def join(
    invite: Path,
    *,
    work: Path,
    data: tuple[str, ...],
    url: str | None,
    user: str | None,
    ca_file: Path | None,
    password_file: Path | None,
) -> None:
    """Set this site up from INVITE, the file the aggregator's people sent.

    Asks for the folder's password without echo, unless --password-file, DROPFED_PASSWORD, a systemd credential called
    password, or INVITE gives it; it is kept in WORK/password, unless systemd will give it to `run` too.
    """
    from shared.folder.address import is_public_link, shown, shown_user  # noqa: PLC0415  (keeps --help instant)
    from shared.settings import read_password  # noqa: PLC0415
    from site_client.configuration import FILE, PASSWORD_VARIABLE, has_credential  # noqa: PLC0415
    from site_client.setup import join as make_site  # noqa: PLC0415
    from site_client.setup import joined, read_invite, require_unused, settings_of  # noqa: PLC0415

    content = read_invite(invite)
    folders = values_by_name("--data", data, "TASK=DIR, as in dr_staging=/data/fundus")
    if strange := sorted(folders.keys() - set(TASK_NAMES)):
        tasks = ", ".join(TASK_NAMES)
        raise ConfigurationError([f"--data {task}: there is no such task; the tasks are {tasks}" for task in strange])
    folders = {task: str(Path(folder).resolve()) for task, folder in folders.items()}
    if missing := [(task, folder) for task, folder in folders.items() if not Path(folder).is_dir()]:
        raise ConfigurationError(
            [f"--data {task}: there is no folder {folder}; correct the path" for task, folder in missing]
        )
    known, asked = joined(work, content), settings_of(content, data=folders, url=url, user=user, ca_file=ca_file)
    password = None
    if password_file is not None:
        password = read_password(password_file)
        if not (password or is_public_link(asked.url)):
            raise ActionRequiredError(f"{password_file} is empty: put the folder's password there")
    elif not has_credential() and not (password := os.environ.get(PASSWORD_VARIABLE)):
        instead = f"give --password-file FILE, or set {PASSWORD_VARIABLE}"
        is_told = content.password is not None and user in (None, content.user)
        password = content.password if is_told else ask_password(shown_user(asked.url, asked.user), instead)
    if known is None:
        require_unused(work, asked, password)
    made = make_site(work, content, data=folders, url=url, password=password, user=user, ca_file=ca_file)
    if known is None:
        say(f"this is now site {content.site} of {content.federation}; its settings are in {work / FILE}")
    else:
        say(f"this was site {content.site} already: {work / FILE} and the keys stay as they are")
        asked = asked.model_copy(update={"data": {**made.data, **folders}})
        given = {"data": data, "url": url, "user": user, "ca_file": ca_file}
        for key in (key for key, value in given.items() if value and getattr(asked, key) != getattr(made, key)):
            told = {"url": shown(asked.url), "user": shown_user(asked.url, asked.user)}.get(key, getattr(asked, key))
            line = f"{key}: {json.dumps(told, ensure_ascii=False)}"
            remedy = f"write `{line}` in place of `{key}:` and all that belongs to it, and start the daemon anew"
            say(f"{work / FILE}: {key}: is not what you gave just now, and stays as it was: {remedy}")
    if password is not None:
        say(f"the password is kept in {work / made.password_file}, for its owner alone to read")
    say(f"pinned the aggregator's key {content.aggregator_key[:16]}…; no other is ever believed")
    _check(work)


@main.command()
@WORK
@click.option("--quick", is_flag=True, help="Leave out the round trip of 16 MB and the images.")
@AS_JSON
def check(work: Path, quick: bool, as_json: bool) -> None:
    """Look at this machine, the way to the folder, its server, the keys and the data; say what is wrong and what to do.

    In the folder a scratch folder, check-…, is made and removed again; nothing else is changed.
    """
    _check(work, quick=quick, as_json=as_json)


def _check(work: Path, *, quick: bool = False, as_json: bool = False) -> None:
    from shared.check import report  # noqa: PLC0415  (keeps --help instant)
    from site_client.configuration import read_configuration  # noqa: PLC0415
    from site_client.doctor import examine  # noqa: PLC0415

    report(examine(work, read_configuration(work), quick=quick), as_json=as_json)


@main.command()
@WORK
@click.option("--once", is_flag=True, help="Do what there is to do now, then end.")
@FOR
def run(work: Path, once: bool, duration: str | None) -> None:
    """Run the daemon. Ctrl-C or TERM stops it cleanly; the next start goes on where it was."""
    from shared.folder.lock import require_private, work_lock  # noqa: PLC0415  (keeps --help instant)
    from shared.learning.compute import prepare_compute  # noqa: PLC0415
    from shared.logs import log_to  # noqa: PLC0415
    from shared.service import find_manager  # noqa: PLC0415
    from site_client.configuration import MADE_BY, computing_of, open_folder, read_configuration  # noqa: PLC0415
    from site_client.daemon import Daemon  # noqa: PLC0415
    from site_client.limits import be_nice  # noqa: PLC0415
    from site_client.machine import if_another_daemon  # noqa: PLC0415

    find_manager()
    work = work.absolute()
    with work_lock(work, if_another_daemon(work), MADE_BY):
        require_private(work)
        os.umask(0o077)
        stop = _stop_event(duration)
        configuration = read_configuration(work)
        log_to(work / "log.txt", configuration.log)
        with _end_logged():
            prepare_compute(computing_of(configuration), configuration.threads)
            be_nice(configuration.limits.nice)
            folder = open_folder(
                work,
                configuration,
                lambda direction: daemon.permit(direction),  # noqa: PLW0108  (it is made after its folder)
            )
            daemon = Daemon(work, configuration, folder, stop=stop, give_up_after_s=60.0 if once else None)
            daemon.run(once=once)


@contextmanager
def _end_logged() -> Iterator[None]:
    """Have the log say why the daemon ends: what a batch job prints is soon lost."""
    try:
        yield
    except DropfedError as error:
        logging.getLogger("site_client").error("the daemon ends: %s", error)
        raise


@main.command()
@click.argument("node", type=click.IntRange(min=1))
@WORK
@FOR
def assist(node: int, work: Path, duration: str | None) -> None:
    """Train with the daemon on another machine, as number NODE of `nodes` in its site.yaml; the daemon's is 0.

    WORK and the images lie on a disk that both machines reach by the same paths.
    """
    from shared.logs import log_to  # noqa: PLC0415  (keeps --help instant)
    from site_client.configuration import read_configuration  # noqa: PLC0415
    from site_client.limits import be_nice  # noqa: PLC0415
    from site_client.torchrun import assist as assist_daemon  # noqa: PLC0415

    stop = _stop_event(duration)
    work = work.absolute()
    configuration = read_configuration(work)
    log_to(work / f"log-{node}.txt", configuration.log)
    be_nice(configuration.limits.nice)
    assist_daemon(work, node, stop)


@main.command()
@WORK
@status_options
def status(work: Path, as_json: bool, watch: bool) -> None:
    """Show where this site stands: what it waits for, since when, what comes next, what is on its way, its limits."""
    from site_client.overview import overview, overview_text  # noqa: PLC0415  (keeps --help instant)

    show_status(lambda: overview(work), overview_text, as_json=as_json, watch=watch)


@main.command()
@WORK
@click.option("--since", metavar="DATE|DAYS", help="Only what was signed since a date, or in so many days (UTC).")
@click.option("--json", "as_json", is_flag=True, help="For scripts; with every tensor's name and shape.")
def sent(work: Path, since: str | None, as_json: bool) -> None:
    """Show what left this hospital: every file with its hash, what it answers, and whether the folder has it.

    Read from the work directory alone; no daemon needs to run.
    """
    from site_client.sent import sent as all_sent  # noqa: PLC0415  (keeps --help instant)
    from site_client.sent import sent_text  # noqa: PLC0415

    state = all_sent(work, since)
    say(json.dumps(state, indent=2) if as_json else sent_text(state))


@main.command()
@click.argument("run")
@WORK
def show(run: str, work: Path) -> None:
    """Show what RUN asks of this site, and exactly what would leave it and what would stay."""
    from site_client.offer import describe  # noqa: PLC0415  (keeps --help instant)

    say(describe(work, run))


@main.command()
@click.argument("images", type=click.Path(path_type=Path, exists=True))
@WORK
@MODEL
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("predictions"),
    show_default=True,
    help="Folder for the answers.",
)
def predict(images: Path, work: Path, model: Path | None, output: Path) -> None:
    """Say what the final model sees in IMAGES, a file or a folder, and how sure it is. Nothing leaves this machine."""
    from site_client.final import FINAL, open_final  # noqa: PLC0415  (keeps --help instant)
    from site_client.predict import predict as write_predictions  # noqa: PLC0415

    kept = open_final(model or work / FINAL)
    if kept.card.personal_round == 0:
        say("warning: no part of this model was ever trained at this site", err=True)
    if kept.card.theta_status != "measured":
        say(f"warning: θ could not be measured here ({kept.card.theta_status}); advice is given from 0.5", err=True)
    table, count, problems = write_predictions(kept, images, output)
    by = f"by the model of {kept.card.run}, θ {kept.card.theta:.4f}"
    say(f"{pluralize(count, 'image')} {by}: {table}")
    if problems:
        say("\n".join(problems), err=True)
        raise SystemExit(1)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@WORK
@MODEL
@AS_JSON
@click.option("--all", "shows_all", is_flag=True, help="Show every score, not only those that matter most.")
def evaluate(folder: Path, work: Path, model: Path | None, as_json: bool, shows_all: bool) -> None:
    """Show how the final model does on FOLDER, labelled like this site's data. Nothing leaves this machine."""
    from site_client.final import FINAL, open_final  # noqa: PLC0415  (keeps --help instant)
    from site_client.predict import evaluate_labelled  # noqa: PLC0415

    kept = open_final(model or work / FINAL)
    evaluation = evaluate_labelled(kept, folder)
    scores: dict[str, float | None] = {"images": evaluation.images, "loss": evaluation.loss}
    scores |= {name: score.value for name, score in sorted(evaluation.scores.items())}
    if as_json:
        say(json.dumps(scores, indent=2))
        return
    first = ("images", *kept.task.main_scores)
    for name in [*first, *(name for name in scores if shows_all and name not in first)]:
        value = scores[name]
        text = "absent" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
        say(f"{name:28} {text}")
    if not shows_all:
        say(f"(--all shows {len(scores) - len(first)} more)")


@main.command()
@click.argument("run")
@WORK
def approve(run: str, work: Path) -> None:
    """Agree to RUN, where the policy asks a person."""
    _decide(work, run, "yes")


@main.command()
@click.argument("run")
@WORK
def decline(run: str, work: Path) -> None:
    """Say no to RUN."""
    _decide(work, run, "no")


@main.command()
@click.argument("run")
@WORK
@click.option("--reason", default="", help="Why, in one sentence; the aggregator's people read it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def withdraw(run: str, work: Path, reason: str, yes: bool) -> None:
    """Leave RUN for good, after this site agreed to it; before that, decline it. What it gave stays in the run."""
    from shared.exchange.records import sentence  # noqa: PLC0415  (keeps --help instant)
    from site_client.offer import standing, why_over  # noqa: PLC0415
    from site_client.store import Decision, decision, write_decision  # noqa: PLC0415

    now = standing(work, run)
    if (over := why_over(work, run)) is not None:
        raise ConfigurationError([f"{run}: {over}: there is nothing to withdraw from"])
    when = _when_sent(work)
    decided = decision(work, run)
    if decided is not None and decided.answer == "withdraw":
        kept = f"for this reason: {decided.reason}" if decided.reason else "without a reason"
        say(f"{run}: a person here has withdrawn already, {kept}; the daemon says so in the folder {when}")
        return
    if not yes:
        what = "Leave" if now == "agreed" else "This site has not agreed yet, so this declines. Decline"
        require_yes(f"{what} {run} for good? No later round will ask this site, and no final model comes.")
    write_decision(work, run, Decision("withdraw", sentence(reason)))
    how = "this site withdraws" if now == "agreed" else "this site has not agreed yet, so this declines"
    say(f"{run}: {how}; the daemon says so in the folder {when}")


@main.command("rotate-key")
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def rotate_key(work: Path, yes: bool) -> None:
    """Make this site a new signing key, handed over to by the present one. The daemon must be stopped for it.

    The folder shows the hand-over from the daemon's next start on, and the aggregator follows it by itself.
    """
    from shared.exchange.names import handover_path  # noqa: PLC0415  (keeps --help instant)
    from shared.folder.lock import require_private, work_lock  # noqa: PLC0415
    from site_client.configuration import MADE_BY  # noqa: PLC0415
    from site_client.machine import if_another_daemon  # noqa: PLC0415
    from site_client.rotation import require_rotatable, rotate  # noqa: PLC0415
    from site_client.setup import KEY_FILE  # noqa: PLC0415

    with work_lock(work, if_another_daemon(work), MADE_BY):
        require_private(work)
        require_rotatable(work)
        if not yes:
            require_yes("Make a new signing key? The present one signs nothing any more.")
        handover = rotate(work)
    say(
        f"{handover.site} signs with key {handover.key} from its message {handover.after.seq + 1} on, and says so in "
        f"{handover_path(handover.number)} at the daemon's next start: `dropfed-site run --work {quoted(work)}`; then, "
        f"not before, put {work / KEY_FILE} into the backup in place of the old one"
    )


@main.command("accept-division")
@WORK
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_division(work: Path, yes: bool) -> None:
    """Have this site's images divided anew, if division.json or budget.json is lost. The daemon must be stopped for it.

    Sets of the new division can differ from earlier ones by few images, or by one. Whoever compares what was told about
    both may find out about single images. So put the two files back from a backup if there is any.
    """
    from shared.folder.lock import work_lock  # noqa: PLC0415  (keeps --help instant)
    from site_client.commitment import divide_anew  # noqa: PLC0415
    from site_client.configuration import MADE_BY  # noqa: PLC0415
    from site_client.division import BUDGET, DIVISION  # noqa: PLC0415
    from site_client.machine import if_another_daemon  # noqa: PLC0415
    from site_client.offer import read_channel  # noqa: PLC0415

    with work_lock(work, if_another_daemon(work), MADE_BY):
        channel = read_channel(work)
        if not yes:
            require_yes(
                "Divide the images anew? What was told about earlier sets of images, together with what is told about "
                "new ones, can give single images away."
            )
        divide_anew(work, channel)
    say(
        f"all images are divided anew when this site agrees to its next run; then put {DIVISION} and {BUDGET} into the "
        "backup. A run that this site has agreed to before, and that goes on, is answered no more: withdraw from it"
    )


@main.command()
@WORK
def pause(work: Path) -> None:
    """Have the daemon do nothing until `resume`: read nothing, train nothing, send nothing but its heartbeat.

    A training or a transfer that is going on is broken off, and repeated or resumed later.
    """
    from site_client import store  # noqa: PLC0415  (keeps --help instant)
    from site_client.configuration import require_site  # noqa: PLC0415

    require_site(work)
    store.pause(work)
    say(f"paused; go on with `dropfed-site resume --work {quoted(work)}`")


@main.command()
@WORK
def resume(work: Path) -> None:
    """Go on after `pause`."""
    from site_client import store  # noqa: PLC0415  (keeps --help instant)
    from site_client.configuration import require_site  # noqa: PLC0415

    require_site(work)
    was_paused = store.is_paused(work)
    store.resume(work)
    say(f"the daemon goes on {_when_sent(work)}" if was_paused else "it was not paused; nothing was changed")


@main.command("install-service")
@WORK
@click.option("--user", help="Who runs the daemon; else the owner of WORK, or in /var/lib a user of systemd's making.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
    help="What systemd hands the password from; readable by root alone. Default: the file in WORK.",
)
@click.option("--print", "only_print", is_flag=True, help="Show the unit; change nothing.")
def install_service(work: Path, user: str | None, password_file: Path | None, only_print: bool) -> None:
    """Have systemd run the daemon, from now on and after each start of this machine."""
    from site_client.configuration import read_configuration  # noqa: PLC0415  (keeps --help instant)
    from site_client.installation import install, unit_name, unit_text  # noqa: PLC0415

    configuration = read_configuration(work)
    unit, text = unit_name(configuration), unit_text(work, configuration, user=user, password_file=password_file)
    if only_print:
        say(text, nl=False)
        return
    say(f"the daemon runs, and is started with this machine: {install(unit, text)}; `systemctl status {unit}`")


@main.command("uninstall-service")
@WORK
def uninstall_service(work: Path) -> None:
    """Undo `install-service`. The work directory stays as it is."""
    from site_client.configuration import read_configuration  # noqa: PLC0415  (keeps --help instant)
    from site_client.installation import uninstall, unit_name  # noqa: PLC0415

    say(f"stopped, and removed: {uninstall(unit_name(read_configuration(work)))}")


def _decide(work: Path, run: str, answer: Literal["yes", "no"]) -> None:
    from site_client.configuration import FILE  # noqa: PLC0415  (keeps --help instant)
    from site_client.offer import standing, why_over, why_refused  # noqa: PLC0415
    from site_client.store import Decision, decision, write_decision  # noqa: PLC0415

    now = standing(work, run)  # nobody agrees to what was not offered, now or under that name later
    if (over := why_over(work, run)) is not None:
        raise ConfigurationError([f"{run}: {over}"])
    if now == "agreed":
        leave = f"`dropfed-site withdraw {run} --work {quoted(work)}` leaves it"
        raise ConfigurationError([f"{run}: this site has agreed to it already; {leave}"])
    if answer == "yes" and (refused := why_refused(work, run)) is not None:
        remedy = (
            f"see policy: in {work / FILE} and the images; a change there holds once the daemon is started anew, then "
            f"approve again, or `dropfed-site decline {run} --work {quoted(work)}`"
        )
        raise ConfigurationError([f"{run}: cannot be agreed to, for the daemon would decline it: {refused}; {remedy}"])
    before = decision(work, run)
    write_decision(work, run, Decision(answer))
    instead = f", instead of the {before.answer} of before" if before and before.answer != answer else ""
    say(f"{run}: {answer}{instead}; the daemon says so in the folder {_when_sent(work)}")


def _when_sent(work: Path) -> str:
    """When the daemon acts on what a person decided, as the end of a sentence."""
    from shared.folder.lock import is_at_work  # noqa: PLC0415  (keeps --help instant)
    from site_client.store import is_paused  # noqa: PLC0415

    if is_paused(work):
        return "once it is resumed: it is paused now"
    return (
        "at its next look" if is_at_work(work) else f"once it runs: `dropfed-site run --work {quoted(work)}` starts it"
    )


def _stop_event(duration: str | None) -> threading.Event:
    """An event that Ctrl-C, TERM or the end of a time sets."""
    stop = threading.Event()
    seconds = _seconds(duration) if duration else None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if seconds is not None:
        timer = threading.Timer(seconds, stop.set)
        timer.daemon = True
        timer.start()
    return stop


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        raise ConfigurationError([f"--for {text}: must be a number and s, m, h or d, as in 90m or 24h"])
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


if __name__ == "__main__":
    main()
