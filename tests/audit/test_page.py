"""The page for an ethics board: it says what the folders say, loads nothing, and obeys nothing that a folder holds."""

from __future__ import annotations

import json
import re
import shutil
from html import escape
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shared.audit.archive import open_archive
from shared.audit.cli import main
from shared.audit.closing import closing
from shared.audit.report import LEAVES, report
from shared.audit.report import page as render_page
from shared.audit.sent import sent
from shared.audit.sites import by_site, read_folders
from shared.audit.timeline import timeline
from shared.audit.verify import verified
from shared.errors import RejectedError, TransientError
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Abort, Consent, Withdrawal
from shared.exchange.records.messages import Head
from shared.exchange.records.run import Plugin
from shared.exchange.records.surveys import SignedSheet, Survey
from shared.exchange.signing import SigningKey, canonical, digest_of, fingerprint, in_groups
from shared.folder.durable import write_file
from shared.moments import moment_text
from tests.played import RUN, Played
from tests.test_survey_report import WHEN, sheet

GUIDE = Path(__file__).parents[2] / "docs" / "for-auditors.md"


def page_of(folder: Path, target: Path) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["report", "--html", str(target), str(folder)])
    assert "Traceback" not in result.output
    return result.exit_code, target.read_text(encoding="utf-8")


def test_it_tells_who_what_and_under_which_key(played: Played, tmp_path: Path) -> None:
    code, page = page_of(played.drop, tmp_path / "page.html")
    assert (code, "No finding" in page) == (0, True)
    federation = json.loads((played.drop / names.FEDERATION).read_bytes())["body"]
    for key in (federation["aggregator_key"], federation["site_key"]):
        assert key in page
        assert fingerprint(key) in page
    digest = CliRunner().invoke(main, ["digest", RUN, str(played.drop), "--json"])
    root = json.loads(digest.stdout)["root"]
    assert in_groups(root[:32]) in page
    for told in ("octa_segmentation", "accepted", "Aggregate 1 was chosen", names.METRICS, "no differential privacy"):
        assert told in page, told


def test_it_tells_first_what_each_run_came_to(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.round(1, trains=True)
    _, going_on = page_of(run.drop, tmp_path / "page.html")
    assert "by the signed tables" not in going_on
    run.round(2, trains=True)
    run.finish()
    _, page = page_of(run.drop, tmp_path / "page.html")
    came_to = "stopped after round 2 of 3; cannot be told whether the model improved: no site reported a validation"
    assert f'<h2 id="run-1">Run {RUN}</h2>\n<p><strong>{came_to}' in page
    aborted = Played(tmp_path / "aborted")
    aborted.offer_and_consent()
    abort = Abort(run=RUN, reason="too few said yes")
    aborted.send("abort", 0, {names.ABORT: canonical(abort.model_dump())}, "consent")
    assert "<strong>aborted: too few said yes</strong>" in page_of(aborted.drop, tmp_path / "page.html")[1]


def test_every_file_that_a_site_may_send_is_in_the_closed_list(tmp_path: Path) -> None:
    run = Played(tmp_path)
    answer_a_survey(run)
    run.offer_and_consent()
    run.round(1, trains=True)
    (run.drop / names.SCRATCH[0]).mkdir()
    (run.drop / names.SCRATCH[0] / "one").touch()
    code, page = page_of(run.drop, tmp_path / "page.html")
    assert code == 0
    (reading,) = read_folders(open_archive([str(run.drop)])).values()
    by_sites = {file.name if each.run else each.path for each in sent(reading) for file in each.files}
    assert names.sheet_path(1) in by_sites and names.MANIFEST in by_sites
    closed = [re.compile(re.escape(name).replace("…", "[a-z0-9]+")) for name in LEAVES]
    for path in (*by_sites, f"{names.SCRATCH[0]}/one"):
        assert any(name.fullmatch(path) for name in closed), path
    for name in LEAVES:
        assert f'class="file"><code>{name}</code>' in page


def answer_a_survey(run: Played, own_head: Head | None = None) -> None:
    """The aggregator asks about the site's images, and the site answers with a sheet.

    Args:
        own_head: the site's last message before it.
    """
    survey = Survey(federation="retina", site="north", number=1, task="dr_staging", classes=["0", "1"], created=WHEN)
    asked = SigningKey.at(run.drop.parent / "aggregator" / "signing.key").sign(survey.model_dump(mode="json"))
    answer = SignedSheet(
        federation="retina",
        site="north",
        number=1,
        in_reply_to=digest_of(asked),
        agrees=True,
        reason="this hospital agreed",
        sheet=sheet(),
        own_head=own_head or Head(),
        created=WHEN,
    )
    answered = SigningKey.at(run.drop.parent / "north" / "signing.key").sign(answer.model_dump(mode="json"))
    for path, content in ((names.survey_path(1), asked), (names.sheet_path(1), answered)):
        (run.drop / path).parent.mkdir()
        write_file(run.drop / path, content)


def test_a_request_that_was_not_answered_is_no_answer(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent()
    run.send("round", 1, run.to_site(1), "consent")
    assert "<summary>1 request in 1 round, 0 of them answered</summary>" in page_of(run.drop, tmp_path / "page.html")[1]


def test_a_message_of_which_only_a_sheet_speaks_is_found_missing(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.beat()
    before = (run.drop / names.STATUS).read_bytes()
    run.offer_and_consent()
    answer_a_survey(run, run.site.ledger.own_head)
    assert CliRunner().invoke(main, ["verify", str(run.drop)]).exit_code == 0
    shutil.rmtree(run.drop / names.RUNS)
    (run.drop / names.STATUS).write_bytes(before)
    result = CliRunner().invoke(main, ["verify", str(run.drop)])
    missed = f"{names.sheet_path(1)}: speaks of message 1 of north, which is not there\n"
    assert (result.exit_code, result.stdout) == (1, missed)


def test_what_is_changed_while_an_audit_reads_is_noticed_or_not_read_again(tmp_path: Path) -> None:
    run = Played(tmp_path)
    answer_a_survey(run)
    run.offer_and_consent()
    readings = by_site(read_folders(open_archive([str(run.drop)])))
    before, manifest = timeline(readings), run.drop / MessageRef("consent", RUN).manifest
    assert {event.kind for event in before} >= {"survey", "sheet"}
    for path in (names.survey_path(1), names.sheet_path(1)):
        (run.drop / path).write_bytes(b"{}")
    assert timeline(readings) == before
    body = json.loads(manifest.read_bytes())["body"] | {"created": WHEN}
    manifest.write_bytes(SigningKey.at(tmp_path / "north" / "signing.key").sign(body))
    with pytest.raises(RejectedError, match="was changed while the folder was read"):
        closing(readings, RUN)


def test_a_run_with_a_plugin_is_told_with_its_files_and_what_they_need(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(plugins=[Plugin(name="grown", version="1.2", sha256="ab" * 32, requires={"monai": "1.5"})])
    run.round(1, trains=True)
    told = f"grown 1.2, {'ab' * 32} (beside monai 1.5)"
    _, page = page_of(run.drop, tmp_path / "page.html")
    assert f"<dt>Needs the plug-in</dt><dd>{told}</dd>" in page
    shown = CliRunner().invoke(main, ["show", "1", str(run.drop)])
    assert shown.output.startswith(f"run {RUN}, round 1\nneeds the plug-in {told}\n\n")
    assert json.loads(CliRunner().invoke(main, ["show", "1", str(run.drop), "--json"]).stdout)["plugins"] == [told]


def test_it_loads_nothing(played: Played, tmp_path: Path) -> None:
    page = page_of(played.drop, tmp_path / "page.html")[1]
    assert "default-src 'none'" in page
    assert not re.findall(r"<(?:script|link|img|iframe|object)|src=|https?://|url\(", page)


def test_what_a_site_writes_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer()
    reason = "<script>alert(1)</script> {{ 7 * 7 }}"
    consent = Consent(run=RUN, agrees=True, reason=reason, images={"train": "12"})
    run.send("consent", 0, {names.CONSENT: canonical(consent.model_dump())}, "offer")
    withdrawal = Withdrawal(run=RUN, reason="<b>enough</b>")
    run.send("withdrawal", 0, {names.WITHDRAWAL: canonical(withdrawal.model_dump())}, "offer")
    code, page = page_of(run.drop, tmp_path / "page.html")
    assert code == 0
    assert "<script" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; {{ 7 * 7 }}" in page
    assert "&lt;b&gt;enough&lt;/b&gt;" in page
    assert "No final model was sent" in page


def test_the_newest_heartbeat_is_shown_with_the_trouble_that_it_tells(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer()
    run.heartbeat.note_trouble(TransientError("the folder does not answer <i>"))
    run.heartbeat.beat("waiting", run.site, now=True)
    status = json.loads((run.drop / names.STATUS).read_bytes())["body"]
    _, page = page_of(run.drop, tmp_path / "page.html")
    assert f">{escape(status['trouble'])}<" in page and f"<td>{status['phase']}</td>" in page
    assert moment_text(status["time"]) in page


def test_it_claims_no_more_than_was_checked(played: Played, tmp_path: Path) -> None:
    _, page = page_of(played.drop, tmp_path / "page.html")
    assert "minimum count" not in page and "without any image, name or path" not in page
    assert "scores of single images" not in page and "is computed from images of patients and is not anonymous" in page
    assert "which no machine can check: read what this page shows of it" in page
    assert page.index("are not judged here, but by <code>dropfed-audit replay</code> alone") < page.index('id="who"')


def test_settings_are_folded_up_and_so_are_the_answers_of_several_runs(played: Played, tmp_path: Path) -> None:
    _, page = page_of(played.drop, tmp_path / "page.html")
    assert re.search(
        r"<details><summary>\d+ settings</summary>\s*<div[^>]* aria-label=\"Settings of run octa-1\">", page
    )
    assert (
        "<details open><summary>2 requests in 2 rounds, 2 of them answered: 1 accepted, 1 validated</summary>" in page
    )
    readings = read_folders(open_archive([str(played.drop)]))
    document = report(readings, {name: verified(each) for name, each in readings.items()}, is_key_compared=True)
    twice = render_page(document | {"runs": document["runs"] * 2})
    assert (
        twice.count("<details><summary>2 requests in 2 rounds, 2 of them answered: 1 accepted, 1 validated</summary>")
        == 2
    )


def test_what_is_encrypted_is_no_warning_as_such(tmp_path: Path) -> None:
    run = Played(tmp_path)
    run.offer_and_consent(encrypt="weights", rounds=1)
    run.round(1, trains=True)
    run.round(2, trains=False)
    run.finish()
    shutil.copytree(run.drop, tmp_path / "copy" / "north")
    code, page = page_of(tmp_path / "copy" / "north", tmp_path / "page.html")
    assert "encrypted files were not opened: they are the signed bytes" in page
    assert 'class="warn"' not in page.partition('id="who"')[0]
    assert code == 0 and 'class="say good">No finding in what was opened' in page


def test_findings_stand_at_its_top(played: Played, tmp_path: Path) -> None:
    copy = tmp_path / "north"
    shutil.copytree(played.drop, copy)
    (copy / MessageRef("update", RUN, 1).path / names.METRICS).write_bytes(b"names of patients")
    code, page = page_of(copy, tmp_path / "page.html")
    assert code == 1
    assert page.index("1 finding") < page.index('id="who"')
    assert f"{MessageRef('update', RUN, 1).path}/{names.METRICS}" in page
    assert "No finding" not in page
    assert "what follows is not proven" in page


def test_every_row_has_a_name_and_as_many_cells_as_its_table_has_columns(tmp_path: Path) -> None:
    run = Played(tmp_path)
    private = {"max_grad_norm": 1.0, "delta": 0.001, "target_epsilon": 4.0, "noise_multiplier": None}
    run.offer_and_consent(rounds=1, privacy=private, sites=["north", "south"])
    run.round(1, trains=True)
    (run.drop / MessageRef("update", RUN, 1).path / names.METRICS).write_bytes(b"names of patients")
    _, page = page_of(run.drop, tmp_path / "page.html")
    assert "nothing of it is in the folders given" in page and "1 finding" in page
    for table in re.findall(r"<table>.*?</table>", page, re.DOTALL):
        rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
        spans = [sum(int(span) - 1 for span in re.findall(r'colspan="(\d+)"', row)) for row in rows]
        assert len({row.count("</td>") + row.count("</th>") + more for row, more in zip(rows, spans, strict=True)}) == 1
        assert all(row.startswith('<tr><th scope="') for row in rows), table


def test_a_folder_that_does_not_say_whose_it_is_keeps_its_findings_beside_the_hospital_of_its_name(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(played.drop, tmp_path / "east")
    shutil.copytree(played.drop, tmp_path / "north")
    (tmp_path / "north" / names.FEDERATION).unlink()
    monkeypatch.chdir(tmp_path)
    for places in (["north", "east"], ["east", "north"]):
        result = CliRunner().invoke(main, ["report", "--json", "--html", "page.html", *places])
        document = json.loads(result.stdout)
        assert (result.exit_code, document["messages"]) == (1, 9)
        assert [each["site"] for each in document["findings"] if each["file"] == names.FEDERATION] == ["north"]
        assert [(each["site"], each["findings"]) for each in document["sites"]] == [("north", 0)]
        assert "north: federation.json is missing" in Path("page.html").read_text(encoding="utf-8")


def test_every_command_of_the_guide_is_there_and_every_command_is_in_the_guide() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    told = set(re.findall(r"^    dropfed-audit ([a-z-]+)", text, re.MULTILINE))
    context = click.Context(main)
    assert told == set(main.list_commands(context))
    for command, options in re.findall(r"^    dropfed-audit ([a-z-]+)(.*)$", text, re.MULTILINE):
        found = main.get_command(context, command)
        assert found is not None
        known = {option for parameter in found.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", options)) <= known, command
