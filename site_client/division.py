"""What a site keeps of its division, and of what runs may take of its images: two files that only their owner can read.

``division.json`` holds the secret and the blocks, which know images by marks and not by names; it changes when images
are dealt. ``budget.json`` says of each run that the site agreed to which blocks it uses, how many rows of scores over
them may leave, and what it spends of their privacy; it changes with each yes, before that is signed. Both belong into
the backup: a site that has not the newest of both would make sets that differ from earlier ones by a few images, so it
joins no run until a person accepts that.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from shared.doors.json_text import canonical
from shared.errors import ActionRequiredError
from shared.escaping import quoted
from shared.exchange.names import Name
from shared.exchange.records.values import Count, DecimalText, Digest, Record
from shared.folder.durable import read_private, write_file
from shared.learning.data.division import Block
from shared.learning.data.sets import SetName
from shared.learning.privacy import Spent
from site_client.store import is_restored

DIVISION, BUDGET = "division.json", "budget.json"


class Division(Record):
    """``division.json``.

    Args:
        version: 1 has the names, hashes and labels of images, where 2 has marks of them.
        secret: decides which images come together; nobody else may know it.
        blocks: in the order in which they were dealt, which never changes.
    """

    version: Literal[1, 2] = 2
    secret: Digest
    blocks: list[Block] = []

    @property
    def key(self) -> bytes:
        """The secret's bytes."""
        return bytes.fromhex(self.secret)

    def marked(self) -> Division:
        """Return this division as it is written now."""
        return Division(secret=self.secret, blocks=[block.marked(self.key) for block in self.blocks])

    @property
    def mark(self) -> str:
        """What tells this division from every other, and says nothing about the secret."""
        return hmac.digest(self.key, b"dropfed: which division this is", "sha256").hex()


class Spending(Record):
    """Private steps of a run, as the accountant counts them; see ``privacy.Spent``."""

    noise_multiplier: DecimalText
    sampling_rate: DecimalText
    steps: Count

    def as_spent(self) -> Spent:
        return Spent(float(self.noise_multiplier), float(self.sampling_rate), self.steps)


class Agreed(Record):
    """What one run takes of a site's images: all that it may, until it is over, and then what it took.

    Args:
        sets: the numbers of the blocks in each set; None if they were of a division before this one.
        rows: of scores over each set, at most.
        private: what it spends of the privacy of its training images; None if it is not private.
        is_over: whether the site answers none of its rounds any more.
    """

    sets: dict[SetName, list[Count]] | None
    rows: dict[SetName, Count]
    private: Spending | None = None
    is_over: bool = False


class Budget(Record):
    """``budget.json``: by name, every run that this site agreed to.

    Args:
        division: the ``mark`` of the division that the numbers of blocks are of.
    """

    version: Literal[1] = 1
    division: Digest
    runs: dict[Name, Agreed] = {}

    def rows_of(self, blocks: Iterable[int], *, but: str = "") -> int:
        """Return the most rows taken over any one of these blocks; rows whose block is unknown count for all.

        Args:
            but: a run that is left out.
        """
        others = [agreed for run, agreed in self.runs.items() if run != but]
        of_all = sum(max(agreed.rows.values(), default=0) for agreed in others if agreed.sets is None)
        of_block: dict[int, int] = {}
        for agreed in others:
            for name, numbers in (agreed.sets or {}).items():
                for number in numbers:
                    of_block[number] = of_block.get(number, 0) + agreed.rows.get(name, 0)
        return of_all + max((of_block.get(number, 0) for number in blocks), default=0)

    def spent(self, *, but: str = "") -> list[Spent]:
        """Return what all private runs spend, without one."""
        return [
            agreed.private.as_spent() for run, agreed in self.runs.items() if agreed.private is not None and run != but
        ]

    def with_run(self, run: str, agreed: Agreed) -> Budget:
        """Return the budget in which a run takes this."""
        return self.model_copy(update={"runs": {**self.runs, run: agreed}})


@dataclass(frozen=True)
class Kept:
    """Both files, as they are here."""

    division: Division
    budget: Budget


def kept(work: Path, agreed: Collection[str]) -> Kept:
    """Return the division and the budget of this site; new ones, not written yet, of one that has agreed to no run.

    A division by which images were dealt for a survey is missed where a disk was lost.

    Args:
        agreed: the runs that this site has agreed to, by its own messages.

    Raises:
        ActionRequiredError: one of them is missing, damaged, readable by others, or older than the last yes.
    """
    budget = _read(work / BUDGET, Budget)  # first: a newer division, which a daemon may write now, fits an older budget
    division = _read_division(work)
    unknown = sorted(set(agreed).difference(budget.runs if budget else ()))
    has_agreed, is_lost = bool(unknown or (budget is not None and budget.runs)), division is None and is_restored(work)
    if not (has_agreed or is_lost):
        division = division_here(work)
        return Kept(division, Budget(division=division.mark))
    if division is None or budget is None or unknown or not _belong_together(division, budget):
        since = "lost its disk" if is_lost else f"agreed to {f'run {unknown[0]}' if unknown else 'its last run'}"
        raise ActionRequiredError(
            f"{work / DIVISION} and {BUDGET} are not as they were when this site {since}: put the newest of "
            f"both back from the backup; if there is none, `dropfed-site accept-division --work {quoted(work)}` says "
            "what it would mean to divide the images anew"
        )
    return Kept(division, budget)


def keep(work: Path, found: Kept) -> None:
    """Write both files; the division first, for the budget speaks of its blocks."""
    _write(work / DIVISION, found.division)
    _write(work / BUDGET, found.budget)


def place(work: Path, secret: bytes) -> None:
    """Put a division that nothing was dealt in where there is none, by a secret that comes from elsewhere."""
    if not (work / DIVISION).exists():
        _write(work / DIVISION, Division(secret=secret.hex()))


def renew(work: Path, taken: Mapping[str, Agreed]) -> None:
    """Begin a new division, in which nothing is dealt yet. What was taken by earlier runs counts for all its blocks.

    Args:
        taken: what the runs took, or may have taken, that this site agreed to.
    """
    division = Division(secret=secrets.token_hex(32))
    runs = {run: agreed.model_copy(update={"sets": None, "is_over": True}) for run, agreed in taken.items()}
    # The budget first: cut off here, it does not belong to the old division, and the site goes on joining no run.
    _write(work / BUDGET, Budget(division=division.mark, runs=runs))
    _write(work / DIVISION, division)


def division_here(work: Path) -> Division:
    """Return the division as it is kept; a new one, which is not, where there is none.

    Raises:
        ActionRequiredError: it is damaged, or readable by others.
    """
    return _read_division(work) or Division(secret=secrets.token_hex(32))


def budget_here(work: Path) -> Budget | None:
    """Return the budget as it is kept, whatever division is here; None if there is none, or none that can be read."""
    try:
        return _read(work / BUDGET, Budget)
    except ActionRequiredError:
        return None


def _belong_together(division: Division, budget: Budget) -> bool:
    used = [numbers for agreed in budget.runs.values() for numbers in (agreed.sets or {}).values()]
    newest = max((number for numbers in used for number in numbers), default=-1)
    return budget.division == division.mark and newest < len(division.blocks)


def _read_division(work: Path) -> Division | None:
    found = _read(work / DIVISION, Division)
    return found.marked() if found is not None and found.version == 1 else found


Kind = TypeVar("Kind", bound=Record)


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    if not path.exists():
        return None
    content = read_private(path)
    try:
        found = kind.model_validate_json(content)
    except ValidationError:
        found = None
    if found is None or _content(found) != content:
        raise ActionRequiredError(f"{path} is damaged: put it back from the backup")
    return found


def _write(path: Path, record: Record) -> None:
    write_file(path, _content(record), private=True)


def _content(record: Record) -> bytes:
    return canonical(record.model_dump(mode="json"))
