"""``aggregator.yaml``: what this machine knows and never sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from shared.errors import ConfigurationError, StandingError
from shared.exchange.names import Name
from shared.exchange.records import Record, parse_yaml
from shared.folder.contract import Folder
from shared.folder.durable import read_private
from shared.folder.webdav import WebDavFolder

FILE = "aggregator.yaml"


class SiteAccess(Record):
    """How to reach one site's folder. Paths are relative to the work directory."""

    url: str
    user: str
    password_file: str
    ca_file: str | None = None


class AggregatorConfiguration(Record):
    """The whole file. ``heldout``: by task, a folder with ``images/`` and ``masks/`` for the tolerance check."""

    federation: Name
    sites: Annotated[dict[Name, SiteAccess], Field(min_length=1)]
    heldout: dict[Name, str] = {}
    threads: Annotated[int, Field(ge=1, le=256, description="CPU threads for scoring")] = 1
    poll_seconds: Annotated[float, Field(gt=0, le=3600, description="longest pause between two looks")] = 30.0


def read_configuration(work: Path) -> AggregatorConfiguration:
    """Read ``aggregator.yaml`` in the work directory.

    Raises:
        ConfigurationError: it is missing, or every problem in it.
    """
    path = work / FILE
    try:
        content = path.read_bytes()
    except OSError:
        raise ConfigurationError(
            [f"{path}: cannot be read; run `dropfed-aggregator init` or name the work directory with --work"]
        ) from None
    return parse_yaml(content, AggregatorConfiguration, str(path))


def open_folder(work: Path, access: SiteAccess) -> Folder:
    """Connect to one site's folder.

    Raises:
        StandingError: the password file is missing or readable by others, or the address is unusable.
    """
    try:
        password = read_private(work / access.password_file).decode().strip("\r\n")
    except UnicodeDecodeError:
        raise StandingError(f"{access.password_file} does not hold text: put the password there") from None
    return WebDavFolder(access.url, access.user, password, ca_file=work / access.ca_file if access.ca_file else None)
