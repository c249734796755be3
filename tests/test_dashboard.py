"""The dashboard: a page over a real socket, which shows what ``status`` says and lets nobody else look."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import requests
from click.testing import CliRunner

from aggregator.cli import main
from aggregator.dashboard import server as dashboard_server
from aggregator.dashboard.server import TOKEN_FILE, Dashboard, serving
from aggregator.dashboard.state import LOG_LINES, log_end, page_state
from aggregator.listing import list_runs
from aggregator.overview import overview
from aggregator.store import RunStore
from shared.errors import ActionRequiredError, ConfigurationError
from shared.exchange import names
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.tables import MetricsRow, write_metrics
from shared.folder.address import is_loopback_host
from shared.folder.lock import work_lock
from shared.learning.tasks import SELECTION_SCORES, TASK_NAMES, task_named
from shared.learning.tasks.terms import EXTERNAL
from tests.browser import ENTER, TAB, Browser, chromium
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, Played
from tests.ports import free_port

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;"
TIMEOUT_S = 60


@pytest.fixture
def run(tmp_path: Path) -> Played:
    return Played(tmp_path)


@pytest.fixture
def work(run: Played) -> Path:
    return run.drop.parent / "aggregator"


@pytest.fixture
def store(run: Played, work: Path) -> RunStore:
    store = RunStore(work, RUN)
    configuration = run_configuration(run=RUN, sites=["north", "south"], quorum=1, rounds=2)
    store.begin(configuration, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    return store


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_server, "SHORTEST_LOOK_S", 0.0)
    monkeypatch.setattr(dashboard_server, "REST_PER_LOOK", 0)


def answered_round(run: Played, store: RunStore, round_no: int, dice: float) -> None:
    """A round is asked, sent, and answered with this score of the model that it brought."""
    store.ask(round_no, ("north",), ("north",))
    run.send("round", round_no, {names.ROUND_CONFIGURATION: b"a: 1\n", names.GLOBAL_MODEL: run.model(0.5)}, "consent")
    row = MetricsRow(round_no, 0, "validation", "10", 0.1, round(1 - dice, 4), {"dice_mean": dice, "dice_std": 0.0})
    run.send("update", round_no, {names.METRICS: write_metrics([row]), names.SITE_MODEL: run.model(0.25)}, "round")


def verdict(store: RunStore, round_no: int, reason: str) -> None:
    said = Verdict(
        run=RUN,
        round=round_no,
        site="north",
        status="omitted",
        score="0.25",
        tolerance="0.3",
        theta=None,
        weight=None,
        reason=reason,
    )
    store.close_round(round_no, {"north": said})


def state_at(url: str, **headers: str) -> Any:
    answer = requests.get(f"{url}state.json", headers=headers, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- what it says ------------------------------------------------------------------------------------------------


def test_it_says_what_status_says(run: Played, store: RunStore, work: Path) -> None:
    run.offer_and_consent()
    answered_round(run, store, 1, 0.5)
    verdict(store, 1, "too low")
    answered_round(run, store, 2, 0.75)
    with serving(work, "127.0.0.1", 0) as url:
        found = state_at(url)
    assert found["problem"] is None
    assert found["runs"] == [asdict(listed) for listed in list_runs(work)] and found["runs"][0]["run"] == RUN
    assert found["run"]["overview"] | {"now": None} == asdict(overview(work)) | {"now": None}
    began = found["run"]["about"].pop("began")
    assert began == found["run"]["rounds"][-1]["began"] and began is not None
    assert found["run"]["about"] == {"federation": "retina", "task": "octa_segmentation", "method": "mean"}
    assert found["run"]["words"]["north"]["score"] is None  # no model was chosen yet
    newest, oldest = found["run"]["rounds"]
    assert (newest["name"], oldest["name"]) == ("round 2", "round 1")
    assert newest["sites"]["north"]["status"] == "answered"
    assert oldest["sites"]["north"] == {"status": "omitted", "score": 0.25, "weight": None, "reason": "too low"}
    dice, loss = found["run"]["curves"]
    assert dice == {
        "name": "dice_mean",
        "aggregates": [0, 1],
        "sites": {"north": [0.5, 0.75], "south": [None, None]},
        "mean": [0.5, 0.75],
    }
    assert loss["name"] == "loss" and loss["sites"]["north"] == [0.5, 0.25] and loss["mean"] is None


def choose(run: Played, store: RunStore, aggregate: int) -> None:
    """The run ends with this aggregate, and every site gets it."""
    run.finish()
    card = FinalCard(
        run=RUN,
        task="octa_segmentation",
        method="mean",
        chosen_round=aggregate,
        score_name="dice_mean",
        validation={"0": "0.5", "1": "0.75"},
        took_part={"1": ["north"]},
        reason="best",
    )
    store.write_card(card)


def test_the_chosen_model_s_score_is_told_of_each_site(run: Played, store: RunStore, work: Path) -> None:
    run.offer_and_consent()
    for round_no, dice in ((1, 0.5), (2, 0.75)):
        answered_round(run, store, round_no, dice)
        verdict(store, round_no, "too low")
    choose(run, store, 1)
    words = page_state(work)["run"]["words"]
    assert words["north"]["score"] == "dice_mean 0.750 (10 images), the chosen model on its validation images"
    assert words["south"]["score"] is None


def test_estimates_come_from_the_past_alone_and_only_while_time_counts(
    run: Played, store: RunStore, work: Path
) -> None:
    run.offer_and_consent()
    with work_lock(work):
        answered_round(run, store, 1, 0.5)
        assert overview(work).expected_end is None  # nothing was measured yet
        verdict(store, 1, "too low")
        store.ask(2, ("north",), ("north",))
        run.send("round", 2, {names.ROUND_CONFIGURATION: b"a: 1\n", names.GLOBAL_MODEL: run.model(0.5)}, "consent")
        said = overview(work)
        assert said.expected_end and said.expected_end >= said.now
        with patch("aggregator.overview.time", SimpleNamespace(time=lambda: time.time() - 60)):  # it is not past yet
            said = overview(work)
        assert said.sites["north"].expected and said.sites["south"].expected is None
        folder_sync = work / "sites" / "north" / names.STATUS
        run.heartbeat.beat("paused", run.site, now=True)
        folder_sync.write_bytes((run.drop / names.STATUS).read_bytes())
        assert overview(work).sites["north"].expected is None, "the site is paused"
        folder_sync.unlink()
        store.pause()
        assert overview(work).expected_end is None and overview(work).sites["north"].expected is None
        store.resume()
    assert overview(work).expected_end is None  # no daemon runs


def test_every_task_has_its_score_said() -> None:
    assert {name: task_named(name).selection_score for name in (*TASK_NAMES, EXTERNAL)} == SELECTION_SCORES


def test_what_stands_in_the_way_is_a_sentence(work: Path, run: Played) -> None:
    assert f"{work}: no run was launched here yet; start one with" in page_state(work)["problem"]
    with work_lock(work):
        assert "no run was launched here yet; an aggregator is at work here" in page_state(work)["problem"]
    assert "there is no such work directory" in page_state(work / "nowhere")["problem"]
    with pytest.raises(ConfigurationError), serving(work / "nowhere", "127.0.0.1", 0):
        pass
    nowhere = CliRunner().invoke(main, ["dashboard", "--work", str(work), "--host", ""])
    told = "--host: is empty; name an address of this machine, as in 127.0.0.1\n"
    assert (nowhere.exit_code, nowhere.output) == (2, told)


def test_a_damaged_run_is_told_and_the_log_goes_on(store: RunStore, work: Path) -> None:
    (store.home / "run.yaml").write_bytes(b"\xff")
    (work / "log.txt").write_text("one\n")
    found = page_state(work)
    assert "the file is damaged" in found["problem"] and found["run"] is None and found["log"] == ["one"]


def test_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert log_end(log) == []
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(60_000)))
    lines = log_end(log)
    assert len(lines) == LOG_LINES and lines[-1] == "line 59999" and lines[0] == f"line {60_000 - LOG_LINES}"
    log.write_bytes(b"\x1b[31mred\xff\n" + b"x" * 300_000)
    assert log_end(log) == []  # one line, longer than what is read
    log.write_bytes(b"\x1b[31mred\xff\n\nnext\n")
    assert log_end(log) == ["\\x1b[31mred\ufffd", "next"]


# --- who may look ------------------------------------------------------------------------------------------------


def test_on_loopback_names_from_elsewhere_and_other_methods_are_refused(store: RunStore, work: Path) -> None:
    with serving(work, "127.0.0.1", 0) as url:
        for host in ("127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:80", "127.0.0.2"):
            assert requests.get(url, headers={"Host": host}, timeout=TIMEOUT_S).status_code == 200, host
        for host in ("evil.example", "localhost.evil.example", "192.0.2.7", "[::1", "127.0.0.1@evil", ""):
            for path in ("", "state.json"):
                answer = requests.get(f"{url}{path}", headers={"Host": host}, timeout=TIMEOUT_S)
                assert answer.status_code in (400, 421) and RUN not in answer.text, host
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"):
            answer = requests.request(method, f"{url}state.json", timeout=TIMEOUT_S)
            assert answer.status_code == 405 and answer.headers["Allow"] == "GET, HEAD"
        head = requests.head(f"{url}state.json", timeout=TIMEOUT_S)
        assert head.status_code == 200 and not head.content and int(head.headers["Content-Length"]) > 100
        for path in ("aggregator.yaml", "../aggregator.yaml", "signing.key", "page.html", "%2e%2e/log.txt"):
            assert requests.get(f"{url}{path}", timeout=TIMEOUT_S).status_code == 404
    assert not (work / TOKEN_FILE).exists()


def test_the_report_of_each_run_is_what_the_command_says(run: Played, store: RunStore, work: Path) -> None:
    run.offer_and_consent()
    answered_round(run, store, 1, 0.5)
    RunStore(work, "octa-2").begin(
        run_configuration(run="octa-2", sites=["north"], quorum=1),
        Sharing(tensors=TENSORS.tensors, start={}, personal=[]),
    )
    with serving(work, "127.0.0.1", 0) as url:
        for name in (RUN, "octa-2"):
            told = requests.get(f"{url}report/{name}", timeout=TIMEOUT_S)
            said = CliRunner().invoke(main, ["report", name, "--work", str(work)]).output
            assert (told.status_code, told.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
            cost = "## Cost"
            assert told.text.partition(cost)[0] == said.partition(cost)[0]
            assert f"`dropfed-aggregator report {name}` tells it" in told.text
        for name in ("octa-3", "..%2faggregator.yaml", "", f"{RUN}/x"):
            assert requests.get(f"{url}report/{name}", timeout=TIMEOUT_S).status_code == 404


def test_no_page_from_elsewhere_has_it_work_and_what_cannot_be_told_is_said(
    run: Played, store: RunStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.offer_and_consent()
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    with serving(work, "127.0.0.1", 0) as url:
        for path in ("state.json", f"report/{RUN}"):
            for site in ("cross-site", "same-site"):  # the second is another port of this machine
                asked = requests.get(f"{url}{path}", headers={"Sec-Fetch-Site": site}, timeout=TIMEOUT_S)
                assert asked.status_code == 403
        assert requests.get(url, headers=elsewhere, timeout=TIMEOUT_S).status_code == 200  # a link that leads here
        (store.home / "run.yaml").unlink()
        (store.home / "run.yaml").mkdir()
        told = requests.get(f"{url}report/{RUN}", timeout=TIMEOUT_S)
        assert told.status_code == 200 and "Is a directory" in told.text and "\n" not in told.text.strip()


def test_every_answer_has_its_headers(store: RunStore, work: Path) -> None:
    with serving(work, "127.0.0.1", 0) as url:
        for path in ("", "page.js", "page.css", "state.json", "nothing"):
            headers = requests.get(f"{url}{path}", timeout=TIMEOUT_S).headers
            assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
            assert headers["X-Content-Type-Options"] == "nosniff" and headers["Referrer-Policy"] == "no-referrer"
            assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert not any(name.lower().startswith("access-control") for name in headers)
            assert "Set-Cookie" not in headers and headers["Server"] == "dropfed"


def test_elsewhere_nothing_is_told_without_the_token(
    store: RunStore, work: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    caplog.set_level("INFO", "urllib3")  # of the client, which tells what it asks for
    with serving(work, "0.0.0.0", 0) as url:
        here = url.replace("0.0.0.0", "127.0.0.1")
        token = (work / TOKEN_FILE).read_text().strip()
        assert len(token) >= 43
        if sys.platform != "win32":
            assert (work / TOKEN_FILE).stat().st_mode & 0o077 == 0
        assert requests.get(here, timeout=TIMEOUT_S).status_code == 200  # the page, which holds nothing of the run
        assert RUN not in requests.get(here, timeout=TIMEOUT_S).text
        assert requests.get(f"{here}report/{RUN}", timeout=TIMEOUT_S).status_code == 401
        wrong = (
            None,
            "",
            "Bearer",
            "Bearer ",
            f"Bearer {token[:-1]}",
            f"Bearer {token}x",
            f"Basic {token}",
            "Bearer é",
        )
        for authorization in wrong:
            headers = {} if authorization is None else {"Authorization": authorization.encode()}
            answer = requests.get(f"{here}state.json", headers=headers, timeout=TIMEOUT_S)
            assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            assert RUN not in answer.text
        assert requests.get(f"{here}state.json?token={token}", timeout=TIMEOUT_S).status_code == 401
        assert state_at(here, Authorization=f"Bearer {token}")["run"]["overview"]["run"] == RUN
        asked = requests.get(here, headers={"Host": "evil.example"}, timeout=TIMEOUT_S)
        assert asked.status_code == 421
    with serving(work, "0.0.0.0", 0):
        assert (work / TOKEN_FILE).read_text().strip() == token  # it outlives a restart
    output = capfd.readouterr()
    assert token not in caplog.text + output.out + output.err


def test_a_token_that_others_can_read_is_not_used(work: Path, store: RunStore) -> None:
    (work / TOKEN_FILE).write_text("short\n")
    (work / TOKEN_FILE).chmod(0o600)
    with pytest.raises(ActionRequiredError, match="holds no token: remove it"), serving(work, "0.0.0.0", 0):
        pass
    if sys.platform != "win32":
        (work / TOKEN_FILE).chmod(0o644)
        with pytest.raises(ActionRequiredError, match="can be read by others"), serving(work, "0.0.0.0", 0):
            pass


def test_what_loopback_is() -> None:
    assert all(map(is_loopback_host, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback_host, ("0.0.0.0", "::", "192.0.2.1", "localhost.example", "")))


def test_a_port_that_is_taken_is_a_sentence(store: RunStore, work: Path) -> None:
    port = free_port()
    with (
        serving(work, "127.0.0.1", port),
        pytest.raises(
            ActionRequiredError, match=r"cannot be listened at \(Address already in use\): choose another --port"
        ),
        serving(work, "127.0.0.1", port),
    ):
        pass


def test_a_long_look_serves_everybody_for_longer(store: RunStore, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_server, "REST_PER_LOOK", 1_000_000)
    looks = []
    monkeypatch.setattr(dashboard_server, "page_state", lambda work: looks.append(work) or {"looks": len(looks)})
    app = Dashboard(work, token=None)
    for _ in range(5):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/state.json", "HTTP_HOST": "localhost"}
        assert json.loads(b"".join(app(environ, lambda status, headers: None))) == {"looks": 1}


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_command_serves_until_it_is_ended(store: RunStore, work: Path) -> None:
    command = [sys.executable, "-m", "aggregator.cli", "dashboard", "--work", str(work), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as it:
        assert it.stdout is not None
        said = it.stdout.readline()
        assert state_at(said.split()[4])["run"]["overview"]["run"] == RUN
        it.send_signal(signal.SIGTERM)
        assert it.wait(TIMEOUT_S) == 0


# --- as a person sees it -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        browser.resize(1200, 900)
        yield browser


def test_the_page_shows_a_run_and_follows_it(run: Played, store: RunStore, work: Path, browser: Browser) -> None:
    run.offer_and_consent()
    (work / "log.txt").write_text("2026-01-01 00:00:00+00:00 WARNING something\n")
    with serving(work, "127.0.0.1", 0) as url:
        browser.open(url)
        browser.wait_for("before round 1 of 2", "#facts")
        assert "The aggregator is not running" in browser.text("#stopped")
        assert browser.text("h1") == f"Run {RUN}"
        assert "retina" in browser.text("#facts") and "octa_segmentation by mean" in browser.text("#facts")
        assert re.search(r"\b20\d\d\b", browser.text("#seen"))  # the day, not the time alone
        assert "not enrolled yet" in browser.text("#cards article:last-child")
        assert "WARNING something" in browser.text("#lines")

        with work_lock(work):
            answered_round(run, store, 1, 0.5)
            browser.wait_for("open, round 1 of 2", "#facts")
            browser.wait_for("the aggregator runs again", "#news")
            assert browser.text("#stopped") == ""
            browser.wait_for("has answered round 1", "#cards")
            verdict(store, 1, HOSTILE)
            with (work / "log.txt").open("a") as log:
                log.write(f"{HOSTILE}\n")
            across = browser.run(
                "const svg = document.querySelector('svg.chart');"
                "const north = [...svg.querySelectorAll('text')].find((at) => at.textContent === 'north');"
                "return north.getAttribute('x') / svg.viewBox.baseVal.width"
            )
            assert across < 0.5, "a name stands where its line ends: here at the first of two aggregates"
            browser.wait_for(HOSTILE, "#cards")
            browser.wait_for(HOSTILE, "#rounds-body")
            browser.wait_for(HOSTILE, "#lines")
            browser.wait_for("round 1: omitted", "#news")
            answered_round(run, store, 2, 0.75)
            browser.wait_for("open, round 2 of 2", "#facts")
        assert browser.run("return document.querySelectorAll('main img, main script').length") == 0
        assert browser.run("return document.querySelectorAll('svg.chart polyline').length") == 3  # north, mean; north
        written = browser.run("return [...document.querySelectorAll('svg.chart text')].map((at) => at.textContent)")
        assert [name for name in written if name in ("north", "south", "mean")] == ["mean", "north", "north"]
        assert written.count("aggregate of round") == 2
        assert "not the same ones" not in browser.text("#charts")
        curve = {"aggregates": [0, 1], "sites": {"north": [0.5, None], "south": [0.5, 0.75]}, "mean": [0.5, 0.75]}
        assert browser.run(f"return isMeanOverOthers({json.dumps(curve)})") is True
        choose(run, store, 1)
        browser.wait_for("dice_mean 0.750 (10 images), the chosen model", "#cards")
        assert "Verdict" not in browser.text("#cards article:first-child")
        browser.wait_for("stopped after round 1 of 2; improved: mean", "#runs-body")
        assert browser.text("#report") == ""
        browser.run("document.querySelector('#runs-body button').click()")
        browser.wait_for(f"# Run {RUN}: octa_segmentation by mean", "#report-text")
        assert browser.text("#report-title") == f"Report of run {RUN}" and "alert(1)" in browser.text("#report-text")
        assert {
            requested.startswith(url) for requested in browser.requested() if not requested.startswith("data:")
        } == {True}
        assert browser.complaints() == []
    browser.wait_for("The dashboard does not answer", "#cut")
    assert "last seen" in browser.text("#cut") and "round 2 of 2" in browser.text("#facts")
    browser.open("about:blank")
    browser.complaints()  # of the server that is gone


def test_the_page_names_runs_that_wait(store: RunStore, work: Path, browser: Browser) -> None:
    RunStore(work, "later").begin(run_configuration(run="later", sites=["north", "south"]), store.sharing())
    with serving(work, "127.0.0.1", 0) as url:
        browser.open(url)
        browser.wait_for("later, 0 of 2 sites agreed, 0 declined", "#facts")
        assert browser.text("h1") == f"Run {RUN}"
        browser.open("about:blank")
    assert browser.complaints() == []


def test_the_page_says_that_the_run_is_not_there_yet(run: Played, work: Path, browser: Browser) -> None:
    with serving(work, "127.0.0.1", 0) as url:
        browser.open(url)
        browser.wait_for("no run was launched here yet", "#problem")
        assert browser.text("#run") == ""
        store = RunStore(work, RUN)
        configuration = run_configuration(run=RUN, sites=["north"], quorum=1, rounds=2)
        store.begin(configuration, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
        browser.wait_for("before round 1 of 2", "#facts")
        assert browser.text("#problem") == ""
        ended = {"round": 0, "rounds": 0, "is_closing_round": True, "final_model": "model.safetensors"}
        assert browser.run(f"return where({json.dumps(ended)})") == "round 0 of 0", "as status says"
        many = "Array.from({ length: 300000 }, (_, each) => each % 3)"
        assert browser.run(f"return ticks({many})") == ["0.0", "0.5", "1.0", "1.5", "2.0"]
        browser.open("about:blank")
    assert browser.complaints() == []


def test_the_page_stands_still_while_updates_are_paused(store: RunStore, work: Path, browser: Browser) -> None:
    with serving(work, "127.0.0.1", 0) as url:
        browser.open(url)
        browser.wait_for("before round 1 of 2", "#facts")
        (work / "log.txt").write_text("2026-01-01 00:00:00+00:00 INFO something\n")
        shown = browser.run("look(); part('pause').click(); return document.body.innerText")
        assert "Updates are paused." in shown and browser.run("return part('pause').ariaPressed") == "true"
        browser.wait_until(lambda: not browser.run("return asking"), "the answer to what was asked before")
        browser.requested()
        time.sleep(2.5)  # more than from one look to the next
        browser.run("document.dispatchEvent(new Event('visibilitychange'))")
        assert (browser.text(), browser.requested()) == (shown, [])
        browser.run("part('pause').focus()")
        browser.press(ENTER)
        browser.wait_for("INFO something", "#lines")
        assert "Updates are paused." not in browser.text()
        assert browser.run("return part('pause').ariaPressed") == "false"
        browser.open("about:blank")
    assert browser.complaints() == []


def test_the_token_is_asked_for_and_kept_by_the_tab(store: RunStore, work: Path, browser: Browser) -> None:
    with serving(work, "0.0.0.0", 0) as url:
        browser.open(url.replace("0.0.0.0", "127.0.0.1"))
        browser.wait_until(lambda: browser.run("return document.activeElement.id") == "token", "the form")
        browser.press(f"wrong{ENTER}")
        browser.wait_for("This is not the token.", "#login")
        browser.press(f"{(work / TOKEN_FILE).read_text().strip()}{ENTER}")
        browser.wait_for("before round 1 of 2", "#facts")
        token = (work / TOKEN_FILE).read_text().strip()
        assert token not in browser.run("return location.href + document.cookie + document.documentElement.outerHTML")
        browser.open(url.replace("0.0.0.0", "127.0.0.1"))
        browser.wait_for("before round 1 of 2", "#facts")
        browser.open("about:blank")
    assert all("401" in complaint for complaint in browser.complaints())


def test_by_keyboard_on_a_phone_and_with_contrast(run: Played, store: RunStore, work: Path, browser: Browser) -> None:
    run.offer_and_consent()
    for round_no in (1, 2):
        answered_round(run, store, round_no, round_no / 4)
        verdict(store, round_no, "x" * 300)
    (work / "log.txt").write_text("2026-01-01 00:00:00+00:00 ERROR   " + "y" * 500 + "\n")
    with serving(work, "127.0.0.1", 0) as url:
        browser.resize(360, 740)
        browser.open(url)
        browser.wait_for("round 2 of 2", "#facts")
        assert browser.run("return document.documentElement.scrollWidth") <= 360
        assert browser.run(SMALLEST_TEXT_PX) >= 10

        reached = []
        for _ in range(13):
            browser.press(TAB)
            reached.append(
                browser.run("const at = document.activeElement; return at.id || at.textContent.trim().slice(0, 40)")
            )
        for stop in ("To the content", "pause", "Sites", "Rounds", "Curves", "Log", "numbers-of-dice_mean", "lines"):
            assert stop in reached, reached
        browser.run("document.querySelector('details[data-name=dice_mean] summary').focus()")
        browser.press(ENTER)
        assert "0.250" in browser.text("details[data-name=dice_mean] table")
        answered_round(run, store, 3, 0.9)
        browser.wait_for("0.900", "details[data-name=dice_mean] table")  # still open, and still in focus
        assert browser.run("return document.activeElement.tagName") == "SUMMARY"
        browser.run("document.querySelector('#runs-body button').focus()")
        choose(run, store, 1)
        browser.wait_for("stopped after round 1 of 2", "#runs-body")
        assert browser.run("return document.activeElement.closest('#runs-body') !== null")

        assert browser.run(LOW_CONTRAST) == []
        assert browser.run("return document.getAnimations().length") == 0
        assert browser.run(UNNAMED) == []
        assert browser.run(MISNAMED) == []
        browser.resize(1200, 900)
        browser.open("about:blank")
    assert browser.complaints() == []


SMALLEST_TEXT_PX = """
return Math.min(...[...document.querySelectorAll('main *')].filter((at) => at.checkVisibility())
  .map((at) => parseFloat(getComputedStyle(at).fontSize)));
"""

LOW_CONTRAST = """
const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
const light = (colour) => {
  const linear = (n) => (n <= 0.04045 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = numbers(colour).map((n) => linear(n / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (at) => {
  for (let one = at; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (numbers(colour)[3] !== 0) return colour;
  }
  return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll('body *')].filter((at) => at.checkVisibility()
    && [...at.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())).map((at) => {
  const style = getComputedStyle(at);
  const [one, other] = [light(at.closest('svg') ? style.fill : style.color), light(ground(at))].sort((a, b) => b - a);
  return [at.tagName, at.textContent.slice(0, 30), (one + 0.05) / (other + 0.05)];
}).filter(([, , ratio]) => !(ratio >= 4.5));
"""
"""Elements whose text has less than the 4.5 to 1 that WCAG 2 AA asks for."""

UNNAMED = """
const named = (at) => at.getAttribute('aria-label') || at.textContent.trim()
  || document.querySelector(`label[for="${at.id}"]`) || at.querySelector('caption');
return [...document.querySelectorAll('a, button, input, progress, summary, table, svg[role=img], [tabindex]')]
  .filter((at) => !named(at) || (at.tagName === 'TABLE' && !at.caption)).map((at) => at.outerHTML);
"""
"""What a keyboard or a screen reader comes to, and finds without a name."""

MISNAMED = """
const name = (at) => at.ariaLabel ?? at.textContent;
return [...document.querySelectorAll('button')].filter((at) => !name(at).startsWith(at.textContent)).map(name);
"""
"""Buttons whose name does not begin with what is to be read on them, by which who speaks to the machine calls them."""
