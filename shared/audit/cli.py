"""``dropfed-audit``: what an auditor types. Read-only. Exit codes: 0 all holds, 1 findings, 2 not to be checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shared.commands import Commands, ask_password, say
from shared.errors import ActionRequiredError, ConfigurationError, DropfedError, RejectedError
from shared.escaping import escape
from shared.plurals import pluralize

if TYPE_CHECKING:
    from shared.audit.archive import Archive
    from shared.audit.reading import Reading
    from shared.exchange.signing import SigningKey

KEY = re.compile(r"[0-9a-f]{64}")
KEY_BYTES = 80  # more than a file with a key has


class _Audit(Commands):
    """Exit codes: 0 all holds, 1 something does not, 2 wrong usage or input, or what hinders that it is looked at."""

    def code_of(self, trouble: DropfedError) -> int:
        return 1 if isinstance(trouble, RejectedError) else 2


@click.group(cls=_Audit)
@click.version_option(package_name="dropfed")
def main() -> None:
    """Check what left which hospital, when, under whose key, and what became of it.

    A FOLDER is a site's drop folder: a copy or its WebDAV address; a directory of such copies; or the work directory of
    the aggregator, which has a copy of each. Nothing is ever changed there, and copies need no network.
    """


def _on_folders(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument FOLDER..., given on as ``archive``, and the options that say how it is opened."""

    @wraps(command)
    def opened(
        folder: tuple[str, ...],
        *,
        user: str | None,
        ca_file: Path | None,
        key: str | None,
        secret_key: Path | None,
        **options: Any,
    ) -> Any:
        from shared.audit.archive import open_archive  # noqa: PLC0415  (keeps --help instant)

        _check_key("--key", key, "aggregator")
        ask = partial(ask_password, instead="set DROPFED_PASSWORD")
        archive = open_archive(folder, user=user, ca_file=ca_file, ask_password=ask, secret_key=secret_key)
        return command(archive=archive, key=key, **options)

    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="For scripts."),
        click.option("--ca-file", type=click.Path(path_type=Path, exists=True), help="Trust this authority."),
        click.option(
            "--secret-key",
            metavar="FILE",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="The encryption.key of the site or of the aggregator, to open what is encrypted.",
        ),
        click.option("--user", help="Account for WebDAV; the password: DROPFED_PASSWORD, or it is asked for."),
        click.option("--key", metavar="HEX", help="The aggregator's public key, if you know it from elsewhere."),
        click.argument("folder", nargs=-1, required=True),
    ):
        opened = decorate(opened)
    return opened


def _check_key(option: str, key: str | None, whose: str) -> None:
    if key is not None and KEY.fullmatch(key) is None:
        raise ConfigurationError(
            [f"{option}: must be the 64 hexadecimal digits, 0-9 and a-f, of the {whose}'s public key"]
        )


@main.command()
@_on_folders
def verify(archive: Archive, key: str | None, as_json: bool) -> None:
    """Check every signature, hash, chain, name and content.

    Exit 0 and one summary line when all holds; exit 1 and one line per finding otherwise; exit 2 when it could not be
    checked.
    """
    from shared.audit.sites import read_folders, remarks, titles  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.verify import lines, summary, verified  # noqa: PLC0415

    folders = read_folders(archive, key)
    audits = {name: verified(reading) for name, reading in folders.items()}
    is_used = any(audit.opened or audit.findings or not audit.encrypted for audit in audits.values())
    if archive.secret_key is not None and not is_used:
        raise ConfigurationError(["--secret-key: opens nothing here; it is the key of neither side of this folder"])
    if as_json:
        say(json.dumps({name: audit.as_json() for name, audit in audits.items()}, indent=2))
    called = titles(folders)
    for name, audit in audits.items():
        between = "/" if called[name] == name else ": "
        for line in lines(audit) if not as_json else ():
            say(escape(f"{called[name]}{between}{line}") if len(audits) > 1 else line)
    for remark in remarks(folders):
        say(escape(remark), err=True)
    if any(audit.findings for audit in audits.values()):
        raise SystemExit(1)
    if not as_json:
        say(summary({called[name]: audit for name, audit in audits.items()}, is_key_compared=key is not None))


@main.command()
@_on_folders
def timeline(archive: Archive, key: str | None, as_json: bool) -> None:
    """Show every message in order: when, who, what, how large, under which key, what it answers, what came of it.

    Times are by each sender's own clock, and inform only; the order is that of the chains.
    """
    from shared.audit.timeline import lines  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.timeline import timeline as timeline_of  # noqa: PLC0415

    folders, readings = _readings(archive, key)
    events = timeline_of(readings)
    _show([event.as_json() for event in events], lines(events), as_json=as_json)
    _end(_findings(folders))


@main.command()
@click.argument("which", metavar="ROUND")
@click.option("--run", metavar="RUN", help="The run, where ROUND is a number and there are several.")
@_on_folders
def show(which: str, run: str | None, archive: Archive, key: str | None, as_json: bool) -> None:
    """Show everything of one ROUND, a number or RUN/NUMBER: configuration, what came, metrics, verdicts."""
    from shared.audit.show import lines  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.show import show as show_round  # noqa: PLC0415
    from shared.audit.sites import the_run  # noqa: PLC0415
    from shared.doors.numbers import whole  # noqa: PLC0415

    named, _, number = which.rpartition("/")
    if not re.fullmatch(r"[0-9]{1,4}", number) or (named and run and named != run):
        raise ConfigurationError([f"{which}: name one round, as in 3, or octa-1/3"])
    folders, readings = _readings(archive, key)
    document = show_round(readings, the_run(readings, named or run), whole(number.lstrip("0") or "0"))
    _show(document, lines(document), as_json=as_json)
    _end(_findings(folders))


@main.command()
@click.argument("site")
@_on_folders
def sent(site: str, archive: Archive, key: str | None, as_json: bool) -> None:
    """Show what left the hospital SITE: every file, its bytes, hash and tensors, and which request it answers.

    With --json each tensor is listed by its name, type and shape.
    """
    from shared.audit.sent import lines  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.sent import sent as sent_by  # noqa: PLC0415

    folders, readings = _readings(archive, key)
    if site not in readings:
        raise ConfigurationError([f"{site}: these folders are of {', '.join(readings)}; name one of them"])
    found = sent_by(readings[site])
    _show([each.as_json() for each in found], lines(found), as_json=as_json)
    _end(_findings({name: reading for name, reading in folders.items() if reading is readings[site]}))


@main.command()
@click.argument("first", metavar="RUN")
@click.argument("second", metavar="RUN")
@_on_folders
def diff(first: str, second: str, archive: Archive, key: str | None, as_json: bool) -> None:
    """Show what differs between two RUNs: configuration, participants, outcomes."""
    from shared.audit.difference import difference, lines  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.sites import the_run  # noqa: PLC0415

    folders, readings = _readings(archive, key)
    found = difference(readings, the_run(readings, first), the_run(readings, second))
    _show({name: list(pair) for name, pair in found.items()}, lines(found, first, second), as_json=as_json)
    _end(_findings(folders))


@main.command()
@click.argument("run")
@click.option("--heldout", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Held-out images.")
@click.option("--threads", type=click.IntRange(1, 256), default=1, help="CPU threads for scores (default 1).")
@_on_folders
def replay(*, run: str, heldout: Path | None, threads: int, archive: Archive, key: str | None, as_json: bool) -> None:
    """Compute the tolerance decisions, weights and models of RUN again, and compare.

    With the aggregator's held-out images the scores too. What cannot be computed from the folders is said, and why.
    Exit 1 if anything differs.
    """
    import tempfile  # noqa: PLC0415  (keeps --help instant)

    from shared.audit.replay import counts, lines  # noqa: PLC0415
    from shared.audit.replay import replay as replay_run  # noqa: PLC0415
    from shared.audit.sites import the_run  # noqa: PLC0415
    from shared.learning.compute import EXACT, prepare_compute  # noqa: PLC0415

    folders, readings = _readings(archive, key)
    the_run(readings, run)
    prepare_compute(EXACT, threads)
    with tempfile.TemporaryDirectory(prefix="dropfed-replay-") as scratch:
        steps = replay_run(readings, run, scratch=Path(scratch), heldout=heldout)
    document = {"run": run, **counts(steps), "steps": [step.as_json() for step in steps]}
    _show(document, lines(steps), as_json=as_json)
    if counts(steps)["differs"]:
        raise SystemExit(1)
    _end(_findings(folders))


@main.command()
@click.argument("run")
@click.option("--sign", "key_file", type=click.Path(path_type=Path), help="Sign it with the key in this file.")
@click.option("--output", type=click.Path(path_type=Path), help="Where the signed statement goes.")
@click.option(
    "--check",
    "signed",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Compare a signed statement.",
)
@click.option("--signer", metavar="HEX", help="The public key that must have signed it: what `make-key` printed.")
@_on_folders
def digest(
    *,
    run: str,
    key_file: Path | None,
    output: Path | None,
    signed: Path | None,
    signer: str | None,
    archive: Archive,
    key: str | None,
    as_json: bool,
) -> None:
    """Show the closing digest of RUN, one number over all its manifests, to compare on paper."""
    from shared.audit import closing  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.archive import check_target  # noqa: PLC0415
    from shared.audit.sites import absent_sites, open_folders, the_run  # noqa: PLC0415
    from shared.exchange.names import MAX_RECORD_BYTES  # noqa: PLC0415
    from shared.folder.durable import write_file  # noqa: PLC0415

    if (key_file is None) != (output is None):
        raise ConfigurationError(["--sign and --output: give both, the key and where the signed statement goes"])
    if signer is not None and signed is None:
        raise ConfigurationError(["--signer: names whose a statement must be; name the statement with --check"])
    _check_key("--signer", signer, "auditor")
    if output is not None:
        check_target(output, archive.places)
    folders, readings = _readings(archive, key)
    found, findings = closing.closing(readings, the_run(readings, run)), _findings(folders)
    if key_file is not None and output is not None:
        if findings:
            see = "see what by `dropfed-audit verify`"
            say(f"nothing was signed: there is {findings} on these folders; {see}", err=True)
            raise SystemExit(1)
        if output.exists():
            raise ConfigurationError([f"{output}: is there already; name another file with --output"])
        write_file(output, closing.sign(found, _key_at(key_file)))
        say(f"wrote {output}", err=True)
    _show(found.model_dump(), closing.lines(found), as_json=as_json)
    for site in open_folders(readings, run):
        say(f"{site}: the run has not ended in this folder: its digest will change", err=True)
    for site in absent_sites(readings, run):
        say(f"{site}: is of this run, and its folder is not here: the digest is without it", err=True)
    if signed is not None:
        with signed.open("rb") as file:
            whose, problems = closing.check(file.read(MAX_RECORD_BYTES + 1), found, signer, shown_as=str(signed))
        for line in (whose, *(problems or ["is of these very manifests"])):
            say(f"{signed}: {line}", err=as_json)
        if problems:
            raise SystemExit(1)
    _end(findings)


@main.command()
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="The page to write.")
@_on_folders
def report(html: Path | None, archive: Archive, key: str | None, as_json: bool) -> None:
    """Write a page that an ethics board can read: who, what, when, consents, outcomes, what never left, findings.

    It is one file that loads nothing. Exit 1 if there are findings, which the page shows.
    """
    from shared.audit import report as report_of  # noqa: PLC0415  (keeps --help instant)
    from shared.audit.archive import check_target  # noqa: PLC0415
    from shared.audit.verify import verified  # noqa: PLC0415
    from shared.folder.durable import write_file  # noqa: PLC0415

    if html is None and not as_json:
        raise ConfigurationError(["--html: name the page to write, or ask for --json"])
    if html is not None:
        check_target(html, archive.places)
    folders = _readings(archive, key)[0]
    audits = {name: verified(reading) for name, reading in folders.items()}
    document = report_of.report(folders, audits, is_key_compared=key is not None)
    if html is not None:
        write_file(html, report_of.page(document).encode())
        say(f"wrote {html}", err=True)
    if as_json:
        say(json.dumps(document, indent=2))
    if document["findings"]:
        count = len(document["findings"])
        say(f"{pluralize(count, 'finding')}: the page shows them", err=True)
        raise SystemExit(1)


@main.command("make-key")
@click.argument("file", type=click.Path(path_type=Path))
def make_key(file: Path) -> None:
    """Make a signing key of your own in FILE, for `digest --sign`; print its public half, for who checks."""
    from shared.audit.archive import check_target  # noqa: PLC0415  (keeps --help instant)
    from shared.exchange.signing import SigningKey  # noqa: PLC0415

    if file.exists():
        raise ConfigurationError([f"{file}: is there already; name another file, a key is never overwritten"])
    check_target(file)
    say(SigningKey.made_at(file).public)


def _key_at(file: Path) -> SigningKey:
    from shared.exchange.signing import SigningKey  # noqa: PLC0415  (keeps --help instant)

    try:
        with file.open("rb") as opened:
            is_key = KEY.fullmatch(opened.read(KEY_BYTES).decode(errors="replace").strip()) is not None
    except OSError:
        is_key = False
    if not is_key:
        raise ActionRequiredError(f"{file}: is no key; make one with `make-key`")
    return SigningKey.at(file)


def _readings(archive: Archive, key: str | None) -> tuple[dict[str, Reading], dict[str, Reading]]:
    """Every folder by its name, and by its site those that say whose they are; of the others it is said why."""
    from shared.audit.sites import by_site, read_folders, unnamed  # noqa: PLC0415  (keeps --help instant)

    folders = read_folders(archive, key)
    readings = by_site(folders)
    for name, why in unnamed(folders).items():
        say(escape(f"{name}: is left out: federation.json {why}"), err=True)
    return folders, readings


def _show(document: object, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        say(json.dumps(document, indent=2))
        return
    for line in lines:
        say(line)


def _end(findings: str) -> None:
    """Say that something of these folders does not hold, though it was not what was asked for."""
    if findings:
        say(f"{findings} beside this: run `dropfed-audit verify` on these folders", err=True)
        raise SystemExit(1)


def _findings(folders: Mapping[str, Reading]) -> str:
    """How many findings ``verify`` has on these folders, as text; "" if there is none."""
    from shared.audit.verify import verified  # noqa: PLC0415  (keeps --help instant)

    count = sum(len(verified(reading).findings) for reading in folders.values())
    return pluralize(count, "finding") if count else ""


if __name__ == "__main__":
    main()
