"""Programs that may train here instead of PyTorch: what the policy allows is compared with what lies on the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shared.check import Finding
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import hash_files
from site_client import sandbox
from site_client.configuration import FILE, Policy, Program

ALLOWED_IN = f"{FILE}, policy: external_trainers,"
"""Where the hospital's people say which programs they allow."""


def program_for(policy: Policy, run: RunConfiguration, site: str) -> Program | None:
    """Return the program that a site trains a run by; None if it trains by PyTorch, or its policy has no such one."""
    name = run.program_at(site)
    return next((program for program in policy.external_trainers if program.name == name), None)


def refusals(policy: Policy, run: RunConfiguration, site: str) -> list[str]:
    """Return why a site does not train a run by the program that the run asks for, each a sentence."""
    if (name := run.program_at(site)) is None:
        return []
    program = program_for(policy, run, site)
    if program is None:
        return [f"trainer {name}: {ALLOWED_IN} names no such program; if this hospital has it, list it there"]
    return _obstacles(program)


def runnable(policy: Policy, run: RunConfiguration, site: str) -> Program:
    """Return the program that a site trains a run by, as it was allowed.

    Raises:
        ActionRequiredError: there is none, it is another by now, or it cannot be shut in.
    """
    for told in refusals(policy, run, site):
        raise ActionRequiredError(told)
    program = program_for(policy, run, site)
    assert program is not None
    return program


def look_at_programs(policy: Policy) -> Iterator[Finding]:
    """See which programs may train here, and whether they are as they were allowed."""
    for program in policy.external_trainers:
        if problems := _obstacles(program):
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
        ConfigurationError: there is no such directory, or something in it is no file that can be read.
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
    for folder, folders, files in os.walk(root, onerror=_raised):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ConfigurationError(
                    [f"trainer {program.name}: {path} is no plain file, and has no hash; put the file itself there"]
                )
        yield from ((Path(folder, name).relative_to(root).as_posix(), Path(folder, name)) for name in files)


def _raised(error: OSError) -> None:
    raise error
