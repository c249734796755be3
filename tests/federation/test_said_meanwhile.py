"""What people at a hospital say while its images are read, which takes long: a yes is never signed over a no."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator import survey as surveys
from shared.errors import TransientError
from shared.exchange.names import MessageRef, sheet_path, survey_path
from shared.exchange.signing import SigningKey
from shared.folder.local import LocalFolder
from site_client import decisions, division, store, survey_work
from site_client.cli import main
from site_client.round_work import RoundWork
from tests.federation.hospital import Hospital
from tests.federation.running import POLICY, RUN, TASK, write_data

CONSENT = MessageRef("consent", RUN)


@pytest.fixture
def hospital(tmp_path: Path) -> Hospital:
    write_data(TASK, tmp_path / "images", 0, 20, seed=1)
    hospital = Hospital(tmp_path, tmp_path / "images")
    hospital.set_policy(POLICY.model_copy(update={"consent": "ask"}))
    hospital.offer()
    hospital.live()
    return hospital


def site(hospital: Hospital, *arguments: str, exits: int = 0) -> str:
    result = CliRunner().invoke(main, [*arguments, "--work", str(hospital.work)])
    assert result.exit_code == exits, result.output
    return result.output


def after(monkeypatch: pytest.MonkeyPatch, where: object, name: str, happens: Callable[[], object]) -> None:
    """Have something happen once, right after a function has done what it does."""
    real, has_happened = getattr(where, name), False

    def done(*arguments: object, **named: object) -> object:
        nonlocal has_happened
        found = real(*arguments, **named)
        if not has_happened:
            has_happened = True
            happens()
        return found

    monkeypatch.setattr(where, name, done)


@pytest.mark.parametrize("said", [("decline", RUN), ("withdraw", RUN, "--yes")])
def test_a_no_while_the_daemon_counts_the_images_is_what_is_signed(
    said: tuple[str, ...], hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    site(hospital, "approve", RUN)
    after(monkeypatch, RoundWork, "count", lambda: site(hospital, *said))
    hospital.live()
    consent = hospital.daemon.consent(RUN)
    assert consent is not None and not consent.agrees
    reserved = division.budget_here(hospital.work)
    assert reserved is not None and not any(reserved.runs[RUN].rows.values())


def test_a_command_that_hangs_holds_up_neither_the_daemon_nor_others_for_good(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "DECIDED_S", 0.1)
    site(hospital, "approve", RUN)
    with store.deciding(hospital.work):
        with pytest.raises(TransientError, match="another command here writes down a decision just now; try again"):
            hospital.live()
        assert "try again" in site(hospital, "decline", RUN, exits=1)
    hospital.live()
    assert hospital.is_signed(CONSENT)


def test_while_the_site_is_paused_no_yes_is_signed(hospital: Hospital, monkeypatch: pytest.MonkeyPatch) -> None:
    site(hospital, "approve", RUN)
    after(monkeypatch, RoundWork, "count", lambda: site(hospital, "pause"))
    hospital.live()
    assert not hospital.is_signed(CONSENT)
    assert "no, instead of the yes of before" in site(hospital, "decline", RUN)
    site(hospital, "resume")
    hospital.live()
    consent = hospital.daemon.consent(RUN)
    assert consent is not None and not consent.agrees


@pytest.mark.parametrize("said", ["decline", "approve"])
def test_an_approval_that_took_long_does_not_undo_what_others_decided(
    said: str, hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    def others() -> None:
        site(hospital, said, RUN)
        hospital.live()
        if said == "approve":
            site(hospital, "withdraw", RUN, "--yes")

    after(monkeypatch, decisions, "why_refused", others)
    refused = site(hospital, "approve", RUN, exits=2)
    assert ("has agreed to it already" if said == "approve" else "has declined it already") in refused
    hospital.live()
    assert hospital.is_signed(MessageRef("withdrawal", RUN)) == (said == "approve")


def test_an_approval_is_not_written_over_a_no_that_the_daemon_has_not_read(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(monkeypatch, decisions, "why_refused", lambda: site(hospital, "decline", RUN))
    assert "others here have decided meanwhile" in site(hospital, "approve", RUN, exits=2)
    hospital.live()
    consent = hospital.daemon.consent(RUN)
    assert consent is not None and not consent.agrees


def test_a_survey_declined_while_its_sheet_is_made_is_declined(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital.set_policy(POLICY.model_copy(update={"statistics": "auto", "statistics_minimum_count": 5}))
    asked = surveys._survey("retina", "north", 1, TASK, surveys.classes_of(TASK, None))
    key = SigningKey.at(hospital.home / "aggregator" / "signing.key")
    LocalFolder(hospital.drop).create(survey_path(1), key.sign(asked.model_dump(mode="json")))
    after(monkeypatch, survey_work, "make_sheet", lambda: site(hospital, "decline", "surveys/0001"))
    hospital.live()
    assert b'"agrees":false' in (hospital.drop / sheet_path(1)).read_bytes()


def test_a_check_beside_a_daemon_that_agrees_finds_nothing_amiss(
    hospital: Hospital, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both of its files are written anew between the reading of the one and of the other."""
    site(hospital, "approve", RUN)
    after(monkeypatch, division, "_read", hospital.live)
    assert "not as they were" not in CliRunner().invoke(main, ["check", "--work", str(hospital.work)]).output
    assert hospital.is_signed(CONSENT)
