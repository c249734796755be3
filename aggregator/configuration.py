"""``aggregator.yaml``: what this machine knows and never sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from shared.errors import ConfigurationError
from shared.exchange.names import RUNS, Name
from shared.exchange.records.run import DistributionName, Plugin, RunConfiguration
from shared.exchange.records.values import Digest, Record
from shared.folder.address import checked_address, folder_here, shown
from shared.folder.contract import Folder
from shared.folder.copies import Copies
from shared.folder.local import LocalFolder
from shared.folder.lock import require_work
from shared.folder.meter import Meter
from shared.folder.webdav import WebDavFolder
from shared.learning.apart import Bounds
from shared.learning.plugins import disagreements, required_by
from shared.logs import LogForm
from shared.settings import Address, PathText, kept_password, read_settings

FILE = "aggregator.yaml"
MADE_BY = "`dropfed-aggregator init`"
PLUGINS_ALLOWED_IN = f"{FILE}, plugins,"
PUBLISHED_WEIGHTS = "weights"
"""Where in the work directory published weights, such as ImageNet's, are looked for first, and exported models."""


class SiteAccess(Record):
    """How to reach one site's folder. Paths are relative to the work directory."""

    url: Address
    user: str
    password_file: PathText
    ca_file: PathText | None = None


def _without_password(uri: str) -> str:
    if "@" in uri.partition("://")[2].partition("/")[0]:
        raise ValueError("must hold no user or password; MLFLOW_TRACKING_USERNAME and _PASSWORD are for those")
    return uri


class Tracking(Record):
    """Where curves are drawn beside: a folder for TensorBoard, a server of MLflow."""

    tensorboard: PathText | None = None
    mlflow: Annotated[str | None, AfterValidator(lambda uri: uri and _without_password(uri))] = None


class AggregatorConfiguration(Record):
    """The whole file. ``heldout``: by task, labelled images for the tolerance check."""

    federation: Name
    sites: Annotated[dict[Name, SiteAccess], Field(min_length=1)]
    heldout: dict[Name, PathText] = {}
    plugins: Annotated[
        dict[DistributionName, Digest], Field(max_length=100, description="wheels of others that may run here")
    ] = {}
    plugin_minutes: Annotated[float, Field(gt=0, description="that one piece of a plug-in's work may take")] = 60.0
    plugin_memory_gb: Annotated[float, Field(gt=0, description="that it may take, and 4 GB more for PyTorch")] = 16.0
    threads: Annotated[int, Field(ge=1, le=256, description="CPU threads for scoring")] = 1
    poll_seconds: Annotated[float, Field(ge=0.01, le=3600, description="longest pause between two looks")] = 30.0
    log: LogForm = "text"
    track: Tracking = Tracking()

    @model_validator(mode="after")
    def _each_site_has_its_own_folder(self) -> AggregatorConfiguration:
        first: dict[tuple[str, str], str] = {}
        for name, access in sorted(self.sites.items()):
            url = checked_address(access.url)
            other = first.setdefault((url, access.user), name)
            if other != name:
                raise ValueError(f"sites: {other} and {name} have one folder, {shown(url)}; give each its own")
        return self


def is_aggregator(work: Path) -> bool:
    """Return whether a directory is an aggregator's, whatever has become of its settings since."""
    return (work / FILE).exists() or (work / RUNS).is_dir()


def require_aggregator(work: Path) -> None:
    """Check that a directory, which a person named by an option, is an aggregator's.

    Raises:
        ConfigurationError: there is no such directory, or it is none.
    """
    require_work(work, MADE_BY)
    if not is_aggregator(work):
        raise ConfigurationError(
            [f"{work}: is no aggregator's work directory: {FILE} is not in it; name that with --work, or run {MADE_BY}"]
        )


def read_configuration(work: Path) -> AggregatorConfiguration:
    """Read ``aggregator.yaml`` in the work directory.

    Raises:
        ConfigurationError: it is missing, or every problem in it.
    """
    return read_settings(work / FILE, AggregatorConfiguration, f"run {MADE_BY}")


def bounds_of(configuration: AggregatorConfiguration) -> Bounds:
    """Return what plug-ins may do at this machine."""
    return Bounds(
        said_in=FILE,
        allowed=configuration.plugins,
        allowed_in=PLUGINS_ALLOWED_IN,
        minutes=configuration.plugin_minutes,
        minutes_key="plugin_minutes",
        memory_gb=configuration.plugin_memory_gb,
        if_full=f"allow more ({FILE}: plugin_memory_gb)",
        threads=configuration.threads,
    )


def allowed_plugins(configuration: AggregatorConfiguration, run: RunConfiguration) -> list[Plugin]:
    """Return the plug-ins that a run needs, which this machine's people allow. None is imported.

    Raises:
        ConfigurationError: they do not, or other files are installed.
    """
    needed = required_by(run)
    if run.plugins and [each.wheel for each in run.plugins] != [each.wheel for each in needed]:
        problems = disagreements(run.plugins, configuration.plugins, PLUGINS_ALLOWED_IN)
        named = ", ".join(each.in_full for each in run.plugins)
        others = f"plugins: {named}: are not those that the run's names need here; leave the key out of a new run"
        raise ConfigurationError(problems or [others])
    if problems := disagreements(needed, configuration.plugins, PLUGINS_ALLOWED_IN):
        raise ConfigurationError(problems)
    return needed


def open_folder(work: Path, access: SiteAccess, *, meter: Meter | None = None, copies: Copies | None = None) -> Folder:
    """Connect to one site's folder.

    Args:
        meter, copies: as for ``WebDavFolder``; a folder of this machine does without.

    Raises:
        ActionRequiredError: the password file is missing or readable by others, or the address is unusable.
    """
    if (root := folder_here(access.url)) is not None:
        return LocalFolder(root)
    ca_file = work / access.ca_file if access.ca_file else None
    password = kept_password(work / access.password_file, FILE)
    return WebDavFolder(access.url, access.user, password, ca_file=ca_file, meter=meter, copies=copies)
