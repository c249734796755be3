"""Programs that may train here instead of PyTorch: what the policy allows is compared with what lies on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from shared.check import Finding
from shared.errors import ActionRequiredError, ConfigurationError
from shared.escaping import escape, quoted
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import hash_files
from site_client import sandbox
from site_client.configuration import FILE, Policy, Program, SiteConfiguration

ALLOWED_IN = f"{FILE}, policy: external_trainers,"
"""Where the hospital's people say which programs they allow."""


def program_for(policy: Policy, run: RunConfiguration, site: str) -> Program | None:
    """Return the program that a site trains a run by; None if it trains by PyTorch, or its policy has no such one."""
    name = run.program_at(site)
    return next((program for program in policy.external_trainers if program.name == name), None)


def own_places(work: Path, configuration: SiteConfiguration) -> list[Path]:
    """Return what no program may see unless it is handed it: the work directory, and the folders of data."""
    folders = (*configuration.data.values(), *configuration.out_of_distribution.values())
    return [work, *(work / folder for folder in folders)]


def refusals(policy: Policy, run: RunConfiguration, site: str, places: Sequence[Path]) -> list[str]:
    """Return why a site does not train a run by the program that the run asks for, each a sentence.

    These go to the aggregator, whom paths and hashes of this machine do not concern.

    Args:
        places: see ``own_places``.
    """
    if (name := run.program_at(site)) is None:
        return []
    program = program_for(policy, run, site)
    if program is None:
        return [f"trainer {name}: {ALLOWED_IN} names no such program; if this hospital has it, list it there"]
    if not _obstacles(program) and not exposed(program, places):
        return []
    return [f"trainer {name}: is not as this hospital allows it; `dropfed-site check` says there what is the matter"]


def runnable(policy: Policy, run: RunConfiguration, site: str) -> Program:
    """Return the program that a site trains a run by, as it was allowed.

    Raises:
        ActionRequiredError: there is none, it is another by now, or it cannot be shut in.
    """
    program = program_for(policy, run, site)
    for problem in refusals(policy, run, site, ()) if program is None else _obstacles(program):
        raise ActionRequiredError(problem)
    assert program is not None
    return program


def exposed(program: Program, places: Iterable[Path]) -> list[str]:
    """Return which of this hospital's own places a program would see without being handed them, each a sentence.

    Args:
        places: see ``own_places``.
    """
    return [
        f"trainer {program.name}: sees {place}, which lies in {program.directory} or among the system's own programs; "
        "move the one or the other"
        for place in places
        if sandbox.shows(program, place)
    ]


def look_at_programs(work: Path, configuration: SiteConfiguration) -> Iterator[Finding]:
    """Check which programs may train here, and that they are as they were allowed."""
    places = own_places(work, configuration)
    for program in configuration.policy.external_trainers:
        if problems := [*_obstacles(program), *exposed(program, places)]:
            yield from (Finding("problem", problem) for problem in problems)
        else:
            yield Finding("ok", f"trainer {program.name}: {told(program)}; allowed, and shut in by bubblewrap")


def told(program: Program) -> str:
    """Return what a program is, in words."""
    return f"`{' '.join(program.command)}` in {program.directory}, {program.sha256}"


def _obstacles(program: Program) -> list[str]:
    name, problems = f"trainer {program.name}", []
    try:
        found = fingerprint(program)
    except ConfigurationError as error:
        return list(error.problems)
    if program.sha256 is None:
        problems.append(
            f"{name}: is not allowed yet; if you trust what is in {program.directory}, add `sha256: {found}`"
        )
    elif program.sha256 != found:
        problems.append(
            f"{name}: the files in {program.directory} are not those that {ALLOWED_IN} allows ({found[:16]}… and "
            f"{program.sha256[:16]}…); put those back, or, if you trust these, write `sha256: {found}`"
        )
    if (why := sandbox.obstacle()) is not None:
        problems.append(f"{name}: {why}")
    return problems


def fingerprint(program: Program) -> str:
    """Return the SHA-256 (hex) of a line ``SHA-256  PATH`` for each file of a program's directory, sorted by path.

    Raises:
        ConfigurationError: there is no such directory, something in it is no file that can be read, or anybody can
            change it.
    """
    try:
        return hash_files(_files(program))
    except OSError as error:
        raise ConfigurationError(
            [f"trainer {program.name}: {error.filename} cannot be read ({error.strerror}); correct its rights"]
        ) from None


def _files(program: Program) -> Iterator[tuple[str, Path]]:
    root = Path(program.directory)
    if not root.is_dir():
        raise ConfigurationError([f"trainer {program.name}: there is no directory {root}; correct the path"])
    for above in (root.resolve(), *root.resolve().parents):
        _require_kept(program, above)
    for folder, folders, files in os.walk(root, onerror=_raised):
        for name in (*folders, *files):
            path = Path(folder, name)
            if not name.isprintable():  # two lists of files could look like one
                raise ConfigurationError(
                    [f"trainer {program.name}: {escape(str(path))} has no name that can be printed; rename it"]
                )
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ConfigurationError(
                    [f"trainer {program.name}: {path} is no plain file, and has no hash; put the file itself there"]
                )
            _require_kept(program, path)
        yield from ((Path(folder, name).relative_to(root).as_posix(), Path(folder, name)) for name in files)


def _require_kept(program: Program, path: Path) -> None:
    """Check that not everybody can change a file, or put others into a directory; in `/tmp` nobody moves another's."""
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigurationError(
            [f"trainer {program.name}: {path} can be changed by everybody; run `chmod o-w {quoted(path)}`"]
        )


def _raised(error: OSError) -> None:
    raise error
