"""What the guides show as printed is what the commands of a small real federation print, but for names and numbers."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.cli import main as aggregator
from aggregator.new_run import Answers, filled_in
from shared.audit.cli import main as audit
from shared.exchange.names import SITE_MODEL
from shared.exchange.reading import dump_yaml, parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import write_file
from shared.learning.seeds import no_secret
from site_client.cli import main as site
from site_client.division import DIVISION, place
from tests.audit.test_contents import archive
from tests.federation.running import POLICY, TASK, WAIT_S, Federation
from tests.played import Played

DOCS = Path(__file__).parents[2] / "docs"
PROGRAMS = {"for-pis.md": aggregator, "for-it.md": site, "for-auditors.md": audit}
TYPED = re.compile(r"dropfed-|sudo |git |export |heldout:|limits:")
"""How what people type or write into a file begins, which is indented; what is printed is fenced as text."""
BLOCK = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
FENCE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHOSEN = re.compile(r"dropfed-\w+ (approve|decline|pause|resume|withdraw|stop)\b")
"""What people choose one of."""
LABEL = re.compile(r"^(\w[\w ]*):", re.MULTILINE)
"""The left column of what ``show`` prints."""
RUN = "octa-1"
SMALL = {
    "task_options": {"image_size": 32, "widths": [4, 8]},
    "augmentation": {"crops": {"size": 32, "per_image": 20, "per_epoch": 200, "foreground": 0.5}},
    "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
}
"""What the guide's own trial changes in what ``new-run`` writes, and fewer crops."""
MASKS = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d": "TIME",
    r"https?://[\w.:/-]+": "URL",
    r"/home/you/(retina|trial/aggregator)|/var/lib/dropfed|/data/octa": "DIR",
    r"\b[0-9a-f]{4}( [0-9a-f]{4}){3,}\b": "KEY",
    r"(?<!\.)\b[0-9a-f]{16,}\b|\b[0-9a-f]{8}(?=…)": "HASH",
    r"\b(octa-demo|octa-[12]|trial-1)\b": "RUN",
    r"\b(north|south|east)\b": "SITE",
    r"\bof demo\b": "of retina",
    r"\b\d+([.,]\d+)*\b": "#",
    r"# ([kMG]B|bytes?)\b": "SIZE",
    r"# (d|h|min|s)\b( # (d|h|min|s)\b)*": "DURATION",
    r"(# \w+?)s\b": r"\1",
    r"(SITE(?: #)?)(, \1)+": r"\1",
}
"""What varies from run to run, in this order; and whether a noun is one or many, and a list of sites is long."""


def masked(line: str) -> str:
    for pattern, mask in MASKS.items():
        line = re.sub(pattern, mask, line)
    return line


def shown(guide: str) -> list[str]:
    """Return the lines that a guide shows as printed."""
    printed = FENCE.findall((DOCS / guide).read_text())
    return [line for block in printed for line in block.splitlines() if line not in ("", "…")]


class Printed:
    """What the programs print, by the guide to each.

    Args:
        root: of all directories that are named in it.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._said = root, defaultdict[str, str](str)
        self.offer = ""

    def type(self, guide: str, *arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(PROGRAMS[guide], [*map(str, arguments)])
        assert result.exit_code == code, result.output
        self.add(guide, result.output)
        return result.output

    def add(self, guide: str, said: str) -> None:
        said = re.sub(rf"{self._root}/(init|aggregator|joined|sites/\w+|data/\w+)\b", "DIR", said)
        self._said[guide] += said.replace(f"{self._root}/", "")

    def lines(self, guide: str) -> set[str]:
        return {masked(line) for line in self._said[guide].splitlines()}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Printed:
    root = tmp_path_factory.mktemp("guides")
    printed = Printed(root)
    suggested = filled_in(Answers(RUN, TASK, "fedavg", ["north", "south"], 2))
    values = parse_yaml(suggested.encode(), RunConfiguration, "").model_dump()
    run = RunConfiguration.model_validate(values | {key: values[key] | value for key, value in SMALL.items()})
    with Federation(root, run, policy=POLICY.model_copy(update={"consent": "ask"})) as federation:
        _play(federation, printed)
    _audit(root, printed)
    return printed


def _play(federation: Federation, printed: Printed) -> None:
    """What a PI and the IT staff of north type, in the guides' order."""
    root, work, north = federation.root, federation.aggregator, federation.site("north")
    folders = [f"--site={name}=https://cloud.example.org/{name}/" for name in federation.run.sites]
    printed.type("for-pis.md", "init", "--work", root / "init", "--federation", "retina", *folders)
    write_file(run_yaml := work / f"{RUN}.yaml", dump_yaml(federation.run))
    printed.type("for-pis.md", "validate", run_yaml, "--work", work)
    login = ("--user", "north", "--url", f"http://127.0.0.1:{federation.port}/north", "--password-file")
    data = f"{TASK}={federation.data_of('north')}"
    invite = work / "invites" / "north.json"
    printed.type("for-it.md", "join", invite, "--work", root / "joined", "--data", data, *login, north / "password")

    (north / DIVISION).unlink()  # as it is before the first run
    for name in federation.run.sites:
        federation.start_site(name)
    launched = federation.start("aggregator.cli", "launch", str(run_yaml), "--accept-any", work=work)
    federation.wait_until((work / "runs" / RUN).exists, "the run")

    def says() -> str:
        return CliRunner().invoke(aggregator, ["status", "--work", str(work)]).output

    federation.wait_until(lambda: says().count("says: asked for consent") == 2, "the question at both sites")
    printed.type("for-pis.md", "status", "--work", work)
    printed.type("for-it.md", "status", "--work", north)
    printed.offer = printed.type("for-it.md", "show", RUN, "--work", north)
    place(north, no_secret(federation.run.seed, "north"))
    for name in federation.run.sites:
        printed.type("for-it.md", "approve", RUN, "--work", federation.site(name))
    assert launched.wait(WAIT_S) == 0, federation.output(work)
    federation.wait_for_finals()
    federation.stop_all()
    printed.add("for-pis.md", federation.output(work))
    printed.type("for-pis.md", "status", "--work", work)
    printed.type("for-it.md", "sent", "--work", north)


def _audit(root: Path, printed: Printed) -> None:
    """What an auditor types about the folders; and about two that show what this run does not."""
    folders, page = root / "folders", root / "audit.html"
    key, statement, digest = root / "auditor.key", root / "closing.json", ("digest", RUN, folders)
    for command in (
        ("verify", folders),
        ("verify", folders / "north"),
        ("report", "--html", page, folders),
        ("timeline", folders / "north"),
        ("show", 1, folders / "north"),
        ("sent", "north", folders),
        ("replay", RUN, folders),
        digest,
    ):
        printed.type("for-auditors.md", *command)
    public = printed.type("for-auditors.md", "make-key", key).strip()
    printed.type("for-auditors.md", *digest, "--sign", key, "--output", statement)
    printed.type("for-auditors.md", *digest, "--check", statement, "--signer", public)

    with_archive = Played(root / "with-archive")
    with_archive.offer_and_consent()
    with_archive.send("round", 1, with_archive.to_site(1), "consent")
    write_file(model := root / SITE_MODEL, with_archive.model(0.25).read_bytes() + archive())
    with_archive.sign_and_publish("update", 1, with_archive.from_site(1, trains=True) | {SITE_MODEL: model})
    printed.type("for-auditors.md", "verify", with_archive.drop, code=1)

    two = Played(root / "two")
    for name, keep, score in ((RUN, "all", "0.9"), ("octa-2", "best", "0.8")):
        two.run = name
        two.offer_and_consent(keep=keep)
        two.round(1, trains=True, score=score)
        two.finish()
    printed.type("for-auditors.md", "diff", RUN, "octa-2", two.drop)


@pytest.mark.parametrize("guide", PROGRAMS)
def test_a_guide_shows_what_is_printed(guide: str, printed: Printed) -> None:
    lines, guides = printed.lines(guide), [masked(line) for line in shown(guide)]
    assert len(guides) > 15
    patterns = {line: ".*".join(map(re.escape, line.split("…"))) for line in guides}
    unlike = [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, said) for said in lines)]
    assert not unlike, "\n".join(["nothing prints:", *unlike, "", "what is printed:", *sorted(lines)])


def test_a_hospital_sees_the_whole_offer_in_its_guide(printed: Printed) -> None:
    (sample,) = (block for block in FENCE.findall((DOCS / "for-it.md").read_text()) if "leaves with a yes:" in block)
    assert LABEL.findall(sample) == LABEL.findall(printed.offer)


@pytest.mark.parametrize("guide", PROGRAMS)
def test_what_is_printed_is_not_copied_with_what_is_typed(guide: str) -> None:
    """A block of code is copied whole: it holds no line that is printed, and one of what people choose between."""
    indented = BLOCK.findall(FENCE.sub("", (DOCS / guide).read_text()))
    assert indented and [block for block in indented if not TYPED.match(block.strip())] == []
    assert [block for block in indented if len(set(CHOSEN.findall(block))) > 1] == []


def test_a_line_that_nobody_prints_is_noticed() -> None:
    """The masks leave the words."""
    assert masked("run octa-1: open, round 0 of 2") == "run RUN: open, round # of #"
    assert masked("waits for: north, south, since 2026-11-22 01:15:42+01:00") == "waits for: SITE, since TIME"
    assert masked("4 files, 8,152,904 bytes, key ca9c 2ccf d632 5547") == "# file, SIZE, key KEY"
