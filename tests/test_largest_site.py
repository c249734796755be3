"""Whether a PI is warned that rounds may close without the largest site: by what this machine knows, and only then."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.cli import main
from aggregator.largest_site import about_largest_site
from aggregator.setup import initialise
from shared.exchange import names
from shared.exchange.names import MIRROR, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Consent
from shared.exchange.records.messages import Federation, Head, Manifest, SiteCard
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.surveys import SignedSheet, Survey
from shared.exchange.records.wire import FileEntry
from shared.exchange.signing import KEY_FILE, SigningKey, canonical, digest_of
from shared.folder.durable import hash_file, write_file
from tests.federation.running import run_configuration, staging_run
from tests.test_survey_report import WHEN, sheet

SECRET = bytes([1]) * 32
OURS, THEIRS = SigningKey(SECRET), SigningKey(bytes([2]) * 32)
README = {names.README: FileEntry(size=1, sha256="0" * 64)}
SITES = ["east", "north", "south"]
RUN = run_configuration(sites=SITES, quorum=2, task="dr_staging")


def enrolled(work: Path, site: str) -> Path:
    """Write what is kept of a site that has joined; return its mirror."""
    mirror = work / "sites" / site / MIRROR
    mirror.mkdir(parents=True)
    who = {"federation": "retina", "site": site, "created": WHEN}
    card = SiteCard(**who, key=THEIRS.public, software="dropfed", enrolment="0" * 64)
    (mirror / names.SITE_CARD).write_bytes(THEIRS.sign(card.model_dump(mode="json")))
    federation = Federation(**who, aggregator_key=OURS.public, site_key=THEIRS.public, files=README)
    (mirror / names.FEDERATION).write_bytes(OURS.sign(federation.model_dump(mode="json")))
    return mirror


def surveyed(work: Path, images: Mapping[str, str]) -> None:
    """Keep a survey's answer of each site; a site without a number declined."""
    for site, count in images.items():
        mirror = enrolled(work, site)
        survey = Survey(federation="retina", site=site, number=1, task=RUN.task, classes=["0", "1"], created=WHEN)
        content = OURS.sign(survey.model_dump(mode="json"))
        answer = SignedSheet(
            federation="retina",
            site=site,
            number=1,
            in_reply_to=digest_of(content),
            agrees=bool(count),
            reason="so it is",
            sheet=sheet(images=count) if count else None,
            own_head=Head(),
            created=WHEN,
        )
        for path, signed in (
            (names.survey_path(1), content),
            (names.sheet_path(1), THEIRS.sign(answer.model_dump(mode="json"))),
        ):
            (mirror / path).parent.mkdir()
            (mirror / path).write_bytes(signed)


def consented(work: Path, run: RunConfiguration, images: Mapping[str, str]) -> None:
    """Keep a run, and each site's consent to it."""
    home = work / "runs" / run.run
    home.mkdir(parents=True)
    (home / names.RUN_CONFIGURATION).write_bytes(dump_yaml(run))
    for site, count in images.items():
        folder = enrolled(work, site) / MessageRef("consent", run.run).path
        folder.mkdir(parents=True)
        consent = Consent(run=run.run, agrees=True, reason="so it is", images={"train": count})
        (folder / names.CONSENT).write_bytes(canonical(consent.model_dump(mode="json")))
        size, sha256 = hash_file(folder / names.CONSENT)
        manifest = Manifest(
            kind="consent",
            federation="retina",
            site=site,
            sender=site,
            run=run.run,
            round=0,
            seq=1,
            previous=None,
            in_reply_to="0" * 64,
            created=WHEN,
            files={names.CONSENT: FileEntry(size=size, sha256=sha256)},
        )
        (folder / names.MANIFEST).write_bytes(THEIRS.sign(manifest.model_dump(mode="json")))


def warned(work: Path, **changes: object) -> list[str]:
    run = RunConfiguration.model_validate(RUN.model_dump() | changes)
    return [finding.text for finding in about_largest_site(work, run)]


LARGEST_IS_NORTH = {"east": "200", "north": "600", "south": "200"}


def test_the_last_sheets_name_the_largest_site_and_its_share(tmp_path: Path) -> None:
    surveyed(tmp_path, LARGEST_IS_NORTH)
    assert warned(tmp_path) == [
        "quorum: 2 of 3 sites may close a round without north, which has 60% of the images; with `quorum: 3` a round "
        "waits for every site"
    ]


def test_validate_prints_it(tmp_path: Path) -> None:
    work, run = tmp_path / "work", staging_run(sites=SITES, method="fedavg", tolerance=None)
    initialise(work, "retina", {site: f"http://127.0.0.1/{site}/" for site in SITES}, "aggregator")
    for site in SITES:
        write_file(work / "passwords" / site, b"x", private=True)
    write_file(work / KEY_FILE, SECRET.hex().encode(), private=True)
    surveyed(work, LARGEST_IS_NORTH)
    (tmp_path / "RUN.yaml").write_bytes(dump_yaml(run))
    result = CliRunner().invoke(main, ["validate", str(tmp_path / "RUN.yaml"), "--work", str(work)])
    assert result.exit_code == 0, result.output
    assert "warning  quorum: 2 of 3 sites may close a round without north" in result.output
    assert "quorum: 1 of " not in result.output
    (tmp_path / "RUN.yaml").write_bytes(dump_yaml(run.model_copy(update={"quorum": 1})))
    result = CliRunner().invoke(main, ["validate", str(tmp_path / "RUN.yaml"), "--work", str(work)])
    assert "note     quorum: 1 of 3 sites; at its deadline a round may close with the answer of one" in result.output


def test_a_quorum_that_needs_the_largest_site_is_not_warned_of(tmp_path: Path) -> None:
    surveyed(tmp_path, LARGEST_IS_NORTH)
    assert warned(tmp_path, quorum=3) == []
    assert warned(tmp_path, sites_per_round=2) == []
    assert warned(tmp_path, sites=["east", "south"], quorum=1) == []


def test_an_earlier_run_tells_where_no_survey_does(tmp_path: Path) -> None:
    consented(tmp_path, RUN, {"east": "300", "north": "fewer than 5", "south": "100"})
    assert [text[:57] for text in warned(tmp_path)] == ["quorum: 2 of 3 sites may close a round without east, whic"]
    assert "74% of the images" in warned(tmp_path)[0]
    assert warned(tmp_path, task="octa_segmentation") == []


def test_an_earlier_run_tells_nothing_of_a_site_that_was_not_asked_in_it(tmp_path: Path) -> None:
    enrolled(tmp_path, "south")
    consented(tmp_path, run_configuration(run=RUN.run, sites=SITES[:2], task=RUN.task), {"east": "300", "north": "100"})
    assert warned(tmp_path) == []


@pytest.mark.parametrize(
    "images",
    [
        {"east": "200", "north": "600"},
        {"east": "200", "north": "600", "south": ""},
        {"east": "200", "north": "200", "south": "100"},
    ],
    ids=["one has not joined", "one declined", "two are the largest"],
)
def test_nothing_is_said_where_no_site_is_known_to_be_the_largest(tmp_path: Path, images: dict[str, str]) -> None:
    surveyed(tmp_path, images)
    assert warned(tmp_path) == []
