"""Tasks, methods, encoders and scores of others: wheels with entry points, installed by hand at both ends.

No code comes through a folder. A run's offer names the wheel that it needs by distribution, version and hash; a
hospital's policy names what it allows by distribution and hash. Nothing of a wheel is imported before the three agree:

    1. what is installed here      ``fingerprint`` of its files as they lie on the disk
    2. what is allowed here        ``policy: plugins:`` of ``site.yaml``, ``plugins:`` of ``aggregator.yaml``
    3. what the run asks for       ``plugins`` of ``run.yaml``

Who has compared them calls ``permit``, and this process may ``load`` what the wheel provides. Only
processes without keys do: the child of ``apart.py``, those of ``torchrun``, and a researcher's own.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path, PurePosixPath
from typing import Literal

from shared.doors import Refusal, json_text
from shared.errors import ConfigurationError
from shared.escaping import escape
from shared.exchange.records.run import Plugin, RunConfiguration
from shared.folder.durable import hash_files

Group = Literal["tasks", "methods", "encoders", "scores"]
GROUPS: tuple[Group, ...] = ("tasks", "methods", "encoders", "scores")

_BY_THE_INSTALLER = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json"}
"""Files of ``*.dist-info`` that differ from one installation of a wheel to the next."""
_NOT_ITS_OWN = {
    *("aggregator", "configs", "deploy", "dropfed", "shared", "site_client", "studies"),
    *("sitecustomize", "usercustomize"),
}
"""Modules that no wheel may bring: dropfed's own, and those that Python imports whenever it starts."""
_LONGEST_ORIGIN = 10_000  # bytes of direct_url.json
_DIST_INFO = ".dist-info"
_INFO = (_DIST_INFO, ".egg-info")
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")

_permitted: set[str] = set()


def provided(group: Group) -> dict[str, EntryPoint]:
    """Return what installed wheels provide of a kind, by name. Nothing is imported for that.

    Raises:
        ConfigurationError: two wheels provide something by one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in _installed()[group]:
        other = found.setdefault(point.name, point)
        if _wheel_of(other) != _wheel_of(point):
            both = f"{_wheel_of(other)} and {_wheel_of(point)}"
            raise ConfigurationError([f"{group}: {both} both provide {escape(point.name)}; remove one of the two"])
    return found


def distributions() -> dict[str, Distribution]:
    """Return the installed wheels that provide something, by their normalised names."""
    points = (point for of_group in _installed().values() for point in of_group)
    return {_normal(point.dist.name): point.dist for point in points if point.dist is not None}


def provided_by(distribution: Distribution) -> list[str]:
    """Return what a wheel provides, by kind and name."""
    points = distribution.entry_points
    return [f"{group[:-1]} {point.name}" for group in GROUPS for point in points.select(group=f"dropfed.{group}")]


def wheel_behind(group: Group, name: str) -> str | None:
    """Return the normalised name of the wheel that provides something, or None."""
    point = provided(group).get(name)
    return None if point is None else _wheel_of(point)


def plugins_of(named: Iterable[tuple[Group, str]]) -> list[Plugin]:
    """Return the wheels that provide what is named by kind and name, as they are installed here.

    Raises:
        ConfigurationError: as for ``described``.
    """
    wheels = {wheel for group, name in named if (wheel := wheel_behind(group, name)) is not None}
    here = distributions() if wheels else {}
    return [described(here[wheel]) for wheel in sorted(wheels)]


def template_of(task: str) -> str | None:
    """Return the run that a wheel brings beside its task, ``run.TASK.yaml`` in the folder of the task's module, if it
    does. Nothing is imported for that.
    """
    point = provided("tasks").get(task)
    if point is None or point.dist is None:
        return None
    module = Path(str(point.dist.locate_file("")), *point.module.split("."))
    path = (module if module.is_dir() else module.parent) / f"run.{task}.yaml"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def described(distribution: Distribution) -> Plugin:
    """Return a wheel as offers name it.

    Raises:
        ConfigurationError: its files cannot be named.
    """
    return Plugin(
        name=_normal(distribution.name),
        version=distribution.version,
        sha256=fingerprint(distribution),
        requires=dict(sorted(_requirements(distribution))),
    )


def fingerprint(distribution: Distribution) -> str:
    """Return the SHA-256 (hex) of a line ``SHA-256  PATH`` for each of a wheel's files, sorted by path, as they lie on
    the disk. Compiled code, scripts, and what the installer writes about itself are not in it.

    Raises:
        ConfigurationError: it is installed in place, a file is a link or cannot be read, or Python imports one unasked.
    """
    name = _normal(distribution.name)
    if _is_in_place(distribution):
        raise ConfigurationError(
            [f"plug-in {name}: is installed in place (editable), so its files have no hash; install its wheel"]
        )
    try:
        return hash_files(_files(distribution, name))
    except OSError as error:
        raise ConfigurationError(
            [f"plug-in {name}: {error.filename} cannot be read ({error.strerror}); install it again"]
        ) from None


def _is_in_place(distribution: Distribution) -> bool:
    """Return whether a distribution was installed as a link to where it is written."""
    try:
        origin = json_text.parse_integers((distribution.read_text("direct_url.json") or "{}").encode(), _LONGEST_ORIGIN)
        return bool(origin["dir_info"]["editable"])
    except (Refusal, KeyError, TypeError):
        return False


def _files(distribution: Distribution, name: str) -> Iterator[tuple[str, Path]]:
    """Yield a wheel's files by path: those that it lists, and whatever else lies in its packages, for Python would
    import that, too.
    """
    root = Path(str(distribution.locate_file("")))
    listed = {str(path) for path in distribution.files or ()}
    packages = {PurePosixPath(path).parts[0] for path in listed if len(PurePosixPath(path).parts) > 1}
    for path in sorted(listed):
        first, *inner = PurePosixPath(path).parts
        if first.lower().partition(".")[0] in _NOT_ITS_OWN or (first.endswith(".pth") and not inner):
            raise ConfigurationError(
                [
                    f"plug-in {name}: {path} lies where Python imports it, allowed or not; remove the wheel, and ask "
                    "who wrote it for one with a package of its own"
                ]
            )
    for package in packages - {".."}:
        for folder, folders, files in os.walk(root / package):
            if links := [each for each in (*folders, *files) if Path(folder, each).is_symlink()]:
                raise ConfigurationError(
                    [f"plug-in {name}: {Path(folder, links[0])} is a link, which has no hash; install its wheel anew"]
                )
            listed |= {Path(folder, each).relative_to(root).as_posix() for each in files}
    for path in listed:
        parts = PurePosixPath(path).parts
        is_about_installing = parts[0].endswith(_DIST_INFO) and parts[-1] in _BY_THE_INSTALLER
        if ".." not in parts and not path.endswith(".pyc") and not is_about_installing:
            yield path, root / path


def path_in_wheel(file: Path, plugins: Iterable[Plugin]) -> str | None:
    """Return a file's path in the one of some wheels whose file it is; None if it is none's."""
    here = distributions()
    for plugin in plugins:
        for path, installed in _files(here[plugin.name], plugin.name):
            if installed == file:
                return path
    return None


def _requirements(distribution: Distribution) -> Iterator[tuple[str, str]]:
    """Yield the main dependencies of a wheel, each with the version that is installed."""
    for requirement in distribution.requires or ():
        found = _REQUIREMENT.match(requirement)
        if found is not None and "extra" not in requirement.partition(";")[2]:
            try:
                yield _normal(found[1]), version(found[1])
            except PackageNotFoundError:
                continue  # of another platform, or missing: importing the wheel tells


def required_by(run: RunConfiguration) -> list[Plugin]:
    """Return the wheels that a run needs, by the names that it says, as they are installed here.

    Raises:
        ConfigurationError: as for ``described``.
    """
    return plugins_of(named_by(run))


def named_by(run: RunConfiguration) -> list[tuple[Group, str]]:
    """Return what a run names that a wheel may provide, by kind and name."""
    return [
        ("tasks", run.task),
        ("methods", run.method),
        ("encoders", str(run.task_options.get("encoder"))),
        *(("scores", name) for name in run.scores),
    ]


def disagreements(asked: Collection[Plugin], allowed: Mapping[str, str], where: str) -> list[str]:
    """Return why wheels that a run asks for must not be imported here: a sentence for each.

    Args:
        allowed: SHA-256 by name, as this machine's people have written them down.
        where: the file and key in which they did.
    """
    here, problems = distributions() if asked else {}, []
    for plugin in asked:
        named = f"plug-in {plugin.name} {plugin.version}"
        version_here = here[plugin.name].version if plugin.name in here else "no version"
        if plugin.name not in allowed:
            problems.append(f"{named}: {where} does not name it; if you trust it, add `{plugin.name}: {plugin.sha256}`")
        elif allowed[plugin.name] != plugin.sha256:
            problems.append(
                f"{named}: {where} allows the files {allowed[plugin.name][:16]}…, and the run asks for "
                f"{plugin.sha256[:16]}… ({version_here} is installed here); install that version, and write down its "
                "hash, if you trust it"
            )
        elif plugin.name not in here:
            problems.append(f"{named}: is not installed here; install its wheel")
        elif (found := fingerprint(here[plugin.name])) != plugin.sha256:
            problems.append(
                f"{named}: the files that are installed here, of {version_here}, differ from the run's "
                f"({found[:16]}… and {plugin.sha256[:16]}…); install the same wheel"
            )
    return problems


def require_agreement(asked: Collection[Plugin], allowed: Mapping[str, str], where: str) -> None:
    """Check that wheels are installed, allowed and asked for with the same files.

    Args:
        allowed: SHA-256 by name, as this machine's people have written them down.
        where: the file and key in which they did.

    Raises:
        ConfigurationError: they are not.
    """
    if problems := disagreements(asked, allowed, where):
        raise ConfigurationError(problems)


def permit(asked: Iterable[Plugin], allowed: Mapping[str, str], where: str) -> None:
    """Let this process import wheels.

    Args:
        allowed: SHA-256 by name, as this machine's people have written them down.
        where: the file and key in which they did.

    Raises:
        ConfigurationError: they are not installed, allowed and asked for with the same files.
    """
    wanted = list(asked)
    require_agreement(wanted, allowed, where)
    _permitted.update(plugin.name for plugin in wanted)


def permit_installed() -> None:
    """Let this process import whatever is installed: on a researcher's own machine, for images of their own."""
    _permitted.update(distributions())


def unpermitted(asked: Iterable[Plugin]) -> list[str]:
    """Return what people call those of some wheels that may not be imported in this process."""
    return [f"{plugin.name} {plugin.version}" for plugin in asked if plugin.name not in _permitted]


def is_permitted(group: Group, name: str) -> bool:
    """Return whether a wheel that provides something by this name may be imported in this process."""
    return wheel_behind(group, name) in _permitted


def load(group: Group, name: str) -> object | None:
    """Return what a permitted wheel provides by this name; None if no wheel does.

    Raises:
        ConfigurationError: its wheel is not permitted here, or cannot be imported.
    """
    point = provided(group).get(name)
    if point is None:
        return None
    wheel = _wheel_of(point)
    if wheel not in _permitted:
        raise ConfigurationError(
            [f"{group[:-1]}: {name} is of the plug-in {wheel}, which is not allowed here; list it under `plugins:`"]
        )
    try:
        return point.load()  # type: ignore[no-any-return]
    except Exception as error:  # whatever a module may do wrong
        told = escape(f"{type(error).__name__}: {error}")
        raise ConfigurationError([f"plug-in {wheel}: {name} cannot be imported ({told}); install it again"]) from error


def _installed() -> Mapping[Group, Sequence[EntryPoint]]:
    """Return what all installed wheels provide, read anew only where one came, changed or went since."""
    return _read(tuple((folder, *_distributions_in(folder or ".")) for folder in sys.path))


@lru_cache(maxsize=1)
def _read(lying_there: object) -> Mapping[Group, Sequence[EntryPoint]]:
    """Read the list of every installed distribution: a hundred files and more.

    Args:
        lying_there: what distributions lie in the folders in which Python looks, and since when.
    """
    points = entry_points()
    return {group: tuple(points.select(group=f"dropfed.{group}")) for group in GROUPS}


def _distributions_in(folder: str) -> list[tuple[str, int]]:
    """Return the folders of distributions, each with the moment in which it was last changed (ns)."""
    try:
        with os.scandir(folder) as entries:
            return [(each.name, each.stat().st_mtime_ns) for each in entries if each.name.endswith(_INFO)]
    except OSError:  # a zip file, or no longer there
        return []


def _wheel_of(point: EntryPoint) -> str:
    return _normal(point.dist.name) if point.dist is not None else ""


def _normal(name: str) -> str:
    """Return a distribution's name as the packaging standards normalise it."""
    return re.sub(r"[-_.]+", "-", name).lower()
