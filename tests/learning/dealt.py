"""Sets of a run at a site that has dealt none of its images before, whose blocks are as small as the test says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shared.learning.data.division import deal, present
from shared.learning.data.sets import SetName, members_of, sets_of
from shared.learning.data.splits import SplitPlan
from shared.learning.data.units import Unit, settled
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Dataset, open_anew
from site_client.train import RequirementsOf, Trainer, as_offered

SECRET = b"no secret"


def image(name: str, kind: str | None = None, group: str | None = None) -> Unit:
    """An image whose bytes are those of its name."""
    return Unit(name, (hashlib.sha256(name.encode()).hexdigest(),), kind or "", kind, group)


def sets_anew(
    units: Iterable[Unit],
    root: Path,
    plan: SplitPlan,
    seed: int,
    *,
    pattern: str | None = None,
    least: int = 1,
) -> dict[SetName, tuple[str, ...]]:
    """The ids in each set."""
    found = settled(list(units), root, pattern)
    blocks = present(deal([], {"task": found}, least, SECRET), "task", found, least, SECRET).blocks
    return {name: tuple(sorted(ids)) for name, ids in members_of(sets_of(blocks, plan, seed), blocks).items()}


def opened_anew(
    task: str, folder: Path, options: Mapping[str, object], plan: SplitPlan | None = None, seed: int = 1
) -> Dataset[Any]:
    """A folder's images in the sets of a run."""
    found = task_named(task)
    return open_anew(found, folder, found.options(dict(options)), plan or SplitPlan(), seed, secret=SECRET)


def check_offer(trainer: Trainer) -> None:
    """Weigh an offer as the site of this trainer does."""
    as_offered(RequirementsOf(run=trainer.run).answer(lambda percent: None), trainer.policy, trainer.sharing)
