"""The work directories of a whole federation on one machine: ``aggregator/`` and ``sites/SITE/`` below one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import yaml

from aggregator.configuration import FILE as AGGREGATOR_FILE
from aggregator.setup import initialise, invite_path
from shared.exchange.names import AGGREGATOR
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import write_file
from shared.learning.plugins import required_by
from shared.learning.seeds import no_secret
from site_client.configuration import FILE as SITE_FILE
from site_client.configuration import Policy
from site_client.division import place
from site_client.setup import join, read_invite

RUN_FILE = "RUN.yaml"


def aggregator_work(home: Path) -> Path:
    """Return the aggregator's work directory."""
    return home / "aggregator"


def site_work(home: Path, site: str) -> Path:
    """Return a site's work directory."""
    return home / "sites" / site


def set_up(
    home: Path,
    run: RunConfiguration,
    data: Mapping[str, Path],
    urls: Mapping[str, str],
    *,
    federation: str,
    heldout: Path | None,
    poll_s: float,
    policy: Policy,
    computing: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Do what the PI and each hospital's IT do by hand: init, join, settings. What was done before stays done.

    The plug-ins that the run needs are allowed at both ends: they are those of whoever calls this.

    The images are divided by what follows from the run's seed, so that the same run comes to the same bytes.

    Args:
        data, urls: each site's images and drop folder.
        heldout: the aggregator's labelled images, if it has some.
        computing: what ``site.yaml`` says of how the sites train.
    """
    work = aggregator_work(home)
    plugins = {each.name: each.sha256 for each in required_by(run)}
    initialise(work, federation, urls, AGGREGATOR)
    heldouts = {run.task: str(heldout.resolve())} if heldout else {}
    change_settings(work / AGGREGATOR_FILE, heldout=heldouts, plugins=plugins, poll_seconds=poll_s)
    write_file(work / RUN_FILE, dump_yaml(run))
    allowed = {
        "plugins": plugins,
        "tasks": sorted({*policy.tasks, run.task}),
        "methods": sorted({*policy.methods, run.method}),
    }
    for site, folder in data.items():
        of_site = site_work(home, site)
        invite = read_invite(invite_path(work, site))
        join(of_site, invite, data={run.task: str(folder.resolve())}, url=urls[site], password=None)
        place(of_site, no_secret(run.seed, site))
        change_settings(of_site / SITE_FILE, poll_seconds=poll_s, policy=policy.model_dump() | allowed, **computing)


def change_settings(path: Path, **settings: object) -> None:
    """Write these settings into a YAML file in place of what it says of them."""
    values = yaml.safe_load(path.read_bytes())
    write_file(path, yaml.safe_dump(values | settings, sort_keys=False).encode())
