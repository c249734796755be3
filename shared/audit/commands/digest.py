"""Show the closing digest of RUN, one number over all its manifests, to compare on paper.

With --check: exit 1 if these manifests are not those that were signed, or if there are findings; exit 2 if the
statement is about another run, or also covers folders that are not here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import click

from shared.audit import closing
from shared.audit.archive import Archive, check_target
from shared.audit.on_folders import KEY, check_key, end_with, findings_of, on_folders, readings_of, show_document
from shared.audit.reading import Reading
from shared.audit.sites import absent_sites, empty_sites, open_folders, the_run
from shared.commands import FILE_HERE, NamedPath, say
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.encryption import EncryptionKey
from shared.exchange.names import MAX_RECORD_BYTES
from shared.exchange.signing import SigningKey
from shared.folder.durable import write_file

_DIFFERS, _UNCHECKED = 1, 2  # exit codes
KEY_BYTES = 80  # more than a file with a key has


@click.command(help=__doc__)
@click.argument("run")
@click.option("--sign", "key_file", type=NamedPath(), help="Sign the digest with the key in this file.")
@click.option("--output", type=NamedPath(), help="File to write the signed statement to.")
@click.option("--check", "signed", type=FILE_HERE, help="Compare with the signed statement in this file.")
@click.option("--signer", metavar="HEX", help="The public key that must have signed it: what `make-key` printed.")
@on_folders
def command(
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
    if (key_file is None) != (output is None):
        raise ConfigurationError(["--sign and --output: give both, the key and where the signed statement goes"])
    if signer is not None and signed is None:
        raise ConfigurationError(["--signer: names whose a statement must be; name the statement with --check"])
    check_key("--signer", signer, "auditor")
    if output is not None:
        check_target(output, archive.places)
    folders, readings = readings_of(archive, key)
    found, findings = closing.closing(readings, the_run(readings, run)), findings_of(folders)
    if key_file is not None and output is not None:
        if findings:
            see = "see what by `dropfed-audit verify`"
            say(f"nothing was signed: there is {findings} on these folders; {see}", err=True)
            raise SystemExit(1)
        if output.exists():
            raise ConfigurationError([f"{output}: is there already; name another file with --output"])
        write_file(output, _key_at(key_file, readings).sign(found.model_dump()))
        say(f"wrote {output}", err=True)
    show_document(found.model_dump(), closing.lines(found), as_json=as_json)
    for site in open_folders(readings, run):
        say(f"{site}: the run has not ended in this folder: its digest will change", err=True)
    for site in absent_sites(readings, run):
        say(f"{site}: is of this run, and its folder is not here: the digest is without it", err=True)
    for site in empty_sites(readings, run):
        say(f"{site}: is of this run, and its folder has nothing of it: the digest is without it", err=True)
    code = 0 if signed is None else _compare(signed, found, signer, here=readings, as_json=as_json)
    if code != _DIFFERS:
        end_with(findings)
    raise SystemExit(code)


def _compare(signed: Path, found: closing.Closing, signer: str | None, *, here: Collection[str], as_json: bool) -> int:
    """Print how a signed statement compares with these manifests; return the exit code."""
    with signed.open("rb") as file:
        compared = closing.check(file.read(MAX_RECORD_BYTES + 1), found, signer, here=here, shown_as=str(signed))
    for line in (compared.whose, *([*compared.differs, *compared.unchecked] or ["is of these very manifests"])):
        say(f"{signed}: {line}", err=as_json)
    return _DIFFERS if compared.differs else _UNCHECKED if compared.unchecked else 0


def _key_at(file: Path, readings: Mapping[str, Reading]) -> SigningKey:
    """Read an auditor's signing key.

    Raises:
        ActionRequiredError: the file holds none, or one of those who are audited.
    """
    try:
        with file.open("rb") as opened:
            is_key = KEY.fullmatch(opened.read(KEY_BYTES).decode(errors="replace").strip()) is not None
    except OSError:
        is_key = False
    if not is_key:
        raise ActionRequiredError(f"{file}: is no key; make one with `make-key`")
    key = SigningKey.at(file)
    of_folders = {each for reading in readings.values() for each in _keys_in(reading)}
    if {key.public, EncryptionKey.at(file).public} & of_folders:
        raise ActionRequiredError(f"{file}: is a key of those who are audited; make one of your own with `make-key`")
    return key


def _keys_in(reading: Reading) -> Iterator[str | None]:
    """Yield the public keys, to sign and to encrypt, of the site of a folder and of the aggregator."""
    yield from (*reading.aggregator.keys, *reading.site.keys, reading.opened.aggregator_encryption_key)
    if reading.site_card is not None:
        yield reading.site_card.encryption_key
