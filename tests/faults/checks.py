"""What must hold after a run, whatever went wrong on the way."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from shared.audit.verify import lines, verify
from shared.exchange.names import MANIFEST, RUNS, MessageRef
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from tests.canary import told_below
from tests.federation.running import RUN, Setting

_LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:+-]+ (?P<level>[A-Z]+) +(?P<text>.*)")
_TROUBLE = re.compile(r"(?P<name>[^:]+): (?P<what>.*)\. Trying again until it works\.")
ENDS = ("the folder can be used again", "the exchange goes on", "goes on")
_OVER = re.compile(rf"(?P<name>[^:]+): (?P<way>{'|'.join(ENDS)})\.")
_LAST = re.compile(rf"(?P<name>[^:]+): published {MessageRef('final', RUN).path}")
_NO_TROUBLE = (
    "keeps no such model out, in any round",  # the tiny task always gets these two warnings
    "which may be too few to learn from",
    "it is not believed, and the work goes on without it",  # of a heartbeat that was cut twice
    "surveys wait until that is mended, and all else goes on",  # until the next look, which may come after the run
)


@dataclass(frozen=True)
class Result:
    """What a run came to: SHA-256 of the final model, of each round's aggregate, and of what each site keeps."""

    final: str
    aggregates: tuple[str, ...]
    kept: tuple[str, ...]


def result_of(setting: Setting) -> Result:
    aggregates = sorted((setting.aggregator / "runs" / RUN / "rounds").glob("*/aggregate.safetensors"))
    kept = [setting.site(site) / "final" / RUN / "model.safetensors" for site in setting.run.sites]
    return Result(
        setting.final_sha256(),
        tuple(hash_file(path)[1] for path in aggregates),
        tuple(hash_file(path)[1] for path in kept),
    )


def problems(setting: Setting, expected: Result, *, killed: bool = False) -> list[str]:
    """Everything that is not as it must be after a run that had ``expected`` undisturbed.

    Args:
        killed: daemons were killed, so that they may not have said that trouble was over.
    """
    found = [] if result_of(setting) == expected else [f"the run came to {result_of(setting)}, not to {expected}"]
    for site in setting.run.sites:
        found += _problems_of_folder(setting, site)
    found += [f"a secret is told in {path}" for path in told_below(setting.root)]
    works = {"aggregator": setting.aggregator} | {site: setting.site(site) for site in setting.run.sites}
    for name, work in works.items():
        found += [f"{name}'s log: {problem}" for problem in _problems_of_log(work, killed)]
    return found


def _problems_of_folder(setting: Setting, site: str) -> Iterator[str]:
    """What the auditor finds; what is not the same in the folder and in both mirrors; what was refused."""
    folder = setting.folder(site)
    audit = verify(LocalFolder(folder))
    yield from (f"{site}: {line}" for line in lines(audit))
    yield from (f"{site}: {path} is still in progress" for path in audit.in_progress)
    ends = {"aggregator": setting.aggregator / "sites" / site, "site": setting.site(site)}
    messages = _messages(folder)
    for name, end in ends.items():
        mirror = _messages(end / "mirror")
        if mirror != messages:
            different = sorted(path for path, _ in mirror.items() ^ messages.items())
            yield f"{site}: the {name}'s mirror differs from the folder in {', '.join(sorted(set(different)))}"
        yield from (f"{site}: the {name} refused {path}" for path in (end / "quarantine").rglob("reason.txt"))


def _messages(root: Path) -> dict[str, str]:
    """Path and SHA-256 of every file of every signed message."""
    folders = [manifest.parent for manifest in (root / RUNS).rglob(MANIFEST)]
    files = (path for folder in folders for path in folder.iterdir() if not path.name.endswith(".new"))
    return {path.relative_to(root).as_posix(): hash_file(path)[1] for path in files}


def _problems_of_log(work: Path, killed: bool) -> Iterator[str]:
    content = (work / "log.txt").read_text()
    if "Traceback" in content:
        yield "holds a traceback"
    yield from (f"is not plain sentences: {line!r}" for line in content.splitlines() if not _LINE.fullmatch(line))
    said = _said(work)
    if not killed:
        yield from (f"says twice: {text}" for (_, before), (_, text) in pairwise(said) if text == before)
    troubles = _Troubles()
    left = set()  # folders that the aggregator has no more business with: it may leave them in trouble
    for level, text in said:
        if (begin := _TROUBLE.fullmatch(text)) is not None:
            if not troubles.begin(begin["name"], begin["what"]) and not killed:
                yield f"says twice in one trouble: {text}"
        elif (end := _OVER.fullmatch(text)) is not None:
            if not troubles.end(end["name"], end["way"]):
                yield f"says that there was trouble, but not which: {text}"
        elif (published := _LAST.fullmatch(text)) is not None:
            left.add(published["name"])
        elif level != "INFO" and not any(known in text for known in _NO_TROUBLE):
            yield f"says {level}: {text}"
    if not killed:
        yield from (f"never says that it is over: {text}" for name, text in troubles.open.items() if name not in left)


def is_over(work: Path) -> bool:
    """Whether the last that a log says of each trouble is that it is over."""
    troubles = _Troubles()
    for _, text in _said(work):
        if (begin := _TROUBLE.fullmatch(text)) is not None:
            troubles.begin(begin["name"], begin["what"])
        elif (end := _OVER.fullmatch(text)) is not None:
            troubles.end(end["name"], end["way"])
    return not troubles.open


def _said(work: Path) -> list[tuple[str, str]]:
    """Level and text of each line of a log."""
    matches = map(_LINE.fullmatch, (work / "log.txt").read_text().splitlines())
    return [(match["level"], match["text"]) for match in matches if match]


class _Troubles:
    """What a log says of troubles and their ends. Two things may have one name, a folder and its exchange."""

    def __init__(self) -> None:
        self.open: dict[str, str] = {}  # by name, the last trouble after which no end was told
        self._told: dict[str, list[str]] = defaultdict(list)  # by name, since the last end of any
        self._since: dict[tuple[str, str], int] = defaultdict(int)  # troubles of a name since an end told this way

    def begin(self, name: str, what: str) -> bool:
        """Return whether this is new."""
        is_new = what not in self._told[name]
        self._told[name].append(what)
        self.open[name] = f"{name}: {what}"
        for way in ENDS:
            self._since[name, way] += 1
        return is_new

    def end(self, name: str, way: str) -> bool:
        """Return whether there was trouble that this may be the end of."""
        self._told.pop(name, None)
        self.open.pop(name, None)
        return self._since.pop((name, way), 0) > 0
