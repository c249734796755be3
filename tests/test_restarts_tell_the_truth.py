"""Whenever a daemon dies, ``status`` and the dashboard, opened afresh, say what the files say, claim by claim."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st

from aggregator.daemon import LONGEST_RETURN_S
from aggregator.dashboard.state import page_state
from aggregator.overview import Overview, overview, overview_text
from aggregator.rounds import CloseRound, Score
from shared.exchange.names import MANIFEST, MessageRef
from shared.folder.lock import work_lock
from tests.at_length import held_to
from tests.model_check.replay.stubs import Clock
from tests.played import RUN
from tests.staged import ENDS, SITES, Habit, HeldOut, Staged


class Died(BaseException):
    """A daemon's process is gone."""


@contextmanager
def seams(told: Callable[[], None]) -> Iterator[None]:
    """Call ``told`` before and after each moment when a file takes its place."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Path, "replace"), (os, "link")):
            patch.setattr(owner, name, _between(getattr(owner, name), told))
        yield


def _between(act: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*arguments: Any, **options: Any) -> Any:
        told()
        result = act(*arguments, **options)
        told()
        return result

    return wrapped


class Files:
    """What the files of a staged run say, read by their names alone.

    Args:
        run: only its folders' places are used.
    """

    def __init__(self, run: Staged) -> None:
        self.home, self.work, self.drops = run.store.home, run.work, run.drops
        self.opened = {int(path.parent.name): self._json(path) for path in self.home.glob("rounds/*/opened.json")}
        self.closed = {int(path.parent.name): self._json(path) for path in self.home.glob("rounds/*/closed.json")}
        self.newest = max(self.opened, default=0)
        self.card = (self.home / "final" / "card.json").exists()
        self.aborted = (self.home / "aborted.txt").exists()
        self.stop, self.pause = (self.home / "stop").exists(), (self.home / "pause").exists()

    def _json(self, path: Path) -> Any:
        return json.loads(path.read_bytes())

    def asked(self, round_no: int) -> list[str]:
        """Who takes part in a round."""
        askings = self.opened[round_no]["askings"] if round_no in self.opened else []
        return [site for asking in askings for site in asking["asked"]]

    def here(self, site: str, ref: MessageRef) -> bool:
        """Whether the aggregator has a message."""
        return (self.work / "sites" / site / "mirror" / ref.path / MANIFEST).exists()

    def there(self, site: str, ref: MessageRef) -> bool:
        """Whether the site's folder has a message."""
        return (self.drops[site] / ref.path / MANIFEST).exists()

    def refused(self, site: str, ref: MessageRef) -> bool:
        """Whether the aggregator refused a message."""
        return (self.work / "sites" / site / "quarantine" / ref.path / "reason.txt").exists()

    def agreed(self, site: str) -> bool:
        """Whether the site said yes and has not withdrawn since."""
        return self.said(site) == "yes" and not self.has_left(site)

    def said(self, site: str) -> str | None:
        """The site's answer to the offer that was accepted, yes or no."""
        path = self.work / "sites" / site / "mirror" / MessageRef("consent", RUN).path
        if not (path / MANIFEST).exists():
            return None
        return "yes" if self._json(path / "consent.json")["agrees"] else "no"

    def has_left(self, site: str) -> bool:
        """Whether the site's withdrawal came."""
        return self.here(site, MessageRef("withdrawal", RUN)) or self.refused(site, MessageRef("withdrawal", RUN))

    def unpublished(self, site: str) -> list[MessageRef]:
        """What was signed for a site and is not in its folder."""
        refs = [MessageRef("offer", RUN), *ENDS]
        refs += [MessageRef(kind, RUN, number) for number in self.opened for kind in ("round", "verdict")]  # type: ignore[arg-type]
        return [ref for ref in refs if self.here(site, ref) and not self.there(site, ref)]

    def lacks(self, site: str) -> bool:
        """Whether a site's folder still has to take something when the run is over."""
        ends_it = self.said(site) == "no" or self.has_left(site)
        is_told = not self.here(site, MessageRef("offer", RUN)) or any(self.there(site, end) for end in ENDS)
        return bool(self.unpublished(site)) or not (ends_it or is_told)

    def owing(self) -> set[str]:
        """Who owes an answer while the run goes on."""
        if self.stop or self.newest in self.closed:
            return set()
        if not self.newest:
            return {site for site in SITES if not self.here(site, MessageRef("consent", RUN))}
        update = MessageRef("update", RUN, self.newest)
        return {
            site
            for site in self.asked(self.newest)
            if not (self.here(site, update) or self.refused(site, update) or self.has_left(site))
        }


def check(run: Staged, *, is_at_work: bool) -> None:
    """Open both afresh and hold every claim against the files."""
    now = time.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now)  # how long ago something was heard is said by it
        files, said, page = Files(run), overview(run.work), page_state(run.work)
    assert page["problem"] is None
    assert page["run"]["overview"] == asdict(said)
    assert overview_text(said)
    rounds = run.store.configuration().rounds
    assert (said.run, said.running, said.rounds) == (RUN, is_at_work, rounds)
    assert said.round == min(files.newest, rounds)
    assert said.is_closing_round == (files.newest > rounds)
    check_state(files, said)
    if said.expected_end is not None:
        assert is_at_work and files.newest > 1
    for site in SITES:
        check_site(files, site, said)
    check_rounds(files, rounds, page["run"]["rounds"])
    if not said.waits_for and said.state == "open" and is_settled(run):
        raise AssertionError(f"nobody is waited for, and nothing can be done: {said}")


def is_settled(run: Staged) -> bool:
    """Whether a daemon that starts from these files would find nothing to do."""
    fresh = Staged.__new__(Staged)
    fresh.work, fresh.drops, fresh.store = run.work, run.drops, run.store
    fresh.restart()
    return not fresh.decide()


def check_state(files: Files, said: Overview) -> None:
    """The run's state, and who is waited for."""
    waits_for = set(said.waits_for)
    if files.card or files.aborted:
        lacking = {site for site in SITES if files.lacks(site)}
        assert lacking <= waits_for  # what is in a folder may not be noted yet, never the other way round
        assert said.state == ("aborted" if files.aborted else "ending" if waits_for else "ended")
        assert said.final_model is None if files.aborted else Path(said.final_model or "").is_file()
        return
    assert waits_for == files.owing()
    assert said.final_model is None
    state = "being closed" if files.stop else "paused" if files.pause else "open"
    assert said.state == state


def check_site(files: Files, site: str, said: Overview) -> None:
    """What is said of one site."""
    phase, update = said.sites[site].phase, MessageRef("update", RUN, files.newest)
    if phase.startswith("works on"):
        assert files.there(site, MessageRef("round", RUN, files.newest)) and site in files.asked(files.newest)
        assert files.newest not in files.closed
    if phase.startswith("has answered"):
        assert files.here(site, update)
    if phase.startswith("its answer to"):
        assert files.refused(site, update)
    if phase.startswith("has not answered"):
        assert files.newest in files.closed
    if phase.startswith(("works on", "is being sent round", "is being sent the closing", "has not answered")):
        assert not (files.here(site, update) or files.refused(site, update))
    if phase.startswith("not asked in"):
        assert site not in files.asked(files.newest)
    if phase == "asked for consent":
        assert files.there(site, MessageRef("offer", RUN)) and not files.here(site, MessageRef("consent", RUN))
    if phase.startswith("finished"):
        assert files.card and not files.lacks(site) and files.there(site, MessageRef("final", RUN))
        assert ("withdrew" in phase) == files.has_left(site)
    if phase == "told that the run is over":
        assert (
            (files.card or files.aborted) and not files.lacks(site) and not files.there(site, MessageRef("final", RUN))
        )
    if phase.startswith("withdrew"):
        assert files.has_left(site)
    if phase.startswith("declined"):
        assert files.here(site, MessageRef("consent", RUN)) and not files.agreed(site)
    verdicts = [number for number in sorted(files.closed) if site in files.closed[number]["verdicts"]]
    last = said.sites[site].last_verdict
    if not verdicts:
        assert last is None
        return
    verdict = files.closed[verdicts[-1]]["verdicts"][site]
    which = f"round {verdicts[-1]}" if verdicts[-1] <= said.rounds else "the closing round"
    assert last == f"{which}: {verdict['status']}, {verdict['reason']}"


def check_rounds(files: Files, rounds: int, shown: list[dict[str, Any]]) -> None:
    """The page's table of rounds."""
    assert len(shown) == len(files.opened)
    for number, found in zip(sorted(files.opened, reverse=True), shown, strict=True):
        assert found["name"] == (f"round {number}" if number <= rounds else "the closing round")
        assert list(found["sites"]) == files.asked(number)
        for site, part in found["sites"].items():
            update = MessageRef("update", RUN, number)
            has_answered = files.here(site, update) or files.refused(site, update)
            verdict = files.closed[number]["verdicts"][site] if number in files.closed else None
            assert part["status"] == (verdict["status"] if verdict else "answered" if has_answered else "asked")


@dataclass(frozen=True)
class Plan:
    """One run.

    Args:
        played: steps, before all go on to the end.
        every: of so many moments when a file takes its place one is looked at, the first of them is number ``first``.
        deaths: so often the aggregator dies when it is looked at.
    """

    habits: dict[str, Habit]
    rounds: int
    played: list[str]
    first: int
    every: int
    deaths: int
    is_at_work: bool


WORK = ("aggregator", "folder-sync north", "folder-sync south", "north", "south")
WISHES = ("pause", "resume", "stop", "north withdraws", "south withdraws", "restart")
habits: st.SearchStrategy[Habit] = st.sampled_from(["accepted", "accepted", "omitted", "refused", "silent", "declines"])
plans = st.builds(
    Plan,
    habits=st.fixed_dictionaries(dict.fromkeys(SITES, habits)),
    rounds=st.integers(1, 2),
    played=st.lists(st.sampled_from([*(WORK * 6), *WISHES]), max_size=60),
    first=st.integers(0, 36),
    every=st.integers(13, 37),
    deaths=st.integers(0, 5),
    is_at_work=st.booleans(),
)


def act(run: Staged, step: str) -> None:
    """Do one step; where nothing can be done, nothing happens."""
    match step.split():
        case ["aggregator"]:
            run.aggregator_acts()
        case ["folder-sync", site]:
            run.folder_sync_works(site)
        case [site, "withdraws"]:
            run.sites[site].withdraws()
        case ["pause"]:
            run.store.pause()
        case ["resume"]:
            run.store.resume()
        case ["stop"]:
            run.store.request_stop()
        case ["restart"]:
            run.restart()
        case [site]:
            run.sites[site].acts()


def to_the_end(run: Staged) -> Iterator[str]:
    """Steps until the run is over; whoever keeps it waiting for ever is not waited for."""
    yield "resume"
    for _ in range(40):
        if run.is_over:
            return
        yield from WORK
    yield "stop"
    for _ in range(40):
        if run.is_over:
            return
        yield from WORK
    raise AssertionError("the run does not end")


@held_to(3, 6, settings(phases=[Phase.explicit, Phase.reuse, Phase.generate]), plan=plans)
def test_at_any_moment(plan: Plan) -> None:
    """A run is played to its end; on the way both are asked at random moments, at some of which the aggregator dies."""
    passed, deaths, step = 0, 0, ""

    def pass_seam() -> None:
        nonlocal passed, deaths
        passed += 1
        if passed % plan.every == plan.first % plan.every:
            check(run, is_at_work=plan.is_at_work)
            if deaths < plan.deaths and step.startswith(("aggregator", "folder-sync")):
                deaths += 1
                raise Died

    with TemporaryDirectory() as home:
        run = Staged(Path(home), plan.habits, plan.rounds)
        with work_lock(run.work) if plan.is_at_work else nullcontext(), seams(pass_seam):
            for step in chain(plan.played, to_the_end(run)):
                try:
                    act(run, step)
                except Died:
                    run.restart()
            check(run, is_at_work=plan.is_at_work)
            assert overview(run.work).state in ("ended", "aborted")


def test_a_stop_while_the_aggregator_is_down_opens_no_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = Staged(tmp_path, {"north": "accepted", "south": "accepted"}, rounds=2)
    while run.store.verdicts(1) is None:
        for step in WORK:
            act(run, step)
    run.store.pause()
    for step in WORK * 3:
        act(run, step)
    assert run.store.round_no == 1 and run.store.aggregate_path(1).exists()
    run.store.resume()
    run.store.request_stop()
    run.restart()
    caplog.clear()
    with caplog.at_level("INFO"):
        while not run.is_over:
            for step in WORK:
                act(run, step)
    card = run.store.card()
    assert card is not None and run.store.round_no == 1 and card.chosen_round == 0
    assert "aggregate 1 was scored by no site, and so was not considered" in caplog.text
    assert "is open for" not in caplog.text


def test_an_aggregator_that_was_away_while_it_scored_looks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("aggregator.daemon.time", clock)
    run = Staged(tmp_path, {"north": "accepted", "south": "accepted"}, rounds=1)
    while not (due := run.decide()) or not isinstance(due[0], Score):
        for action in due:
            run.daemon._act(action)
        for step in WORK[1:-1] if run.store.round_no else WORK[1:]:
            act(run, step)
    for _ in range(2):
        act(run, "south")
    clock.passes(run.store.configuration().round_deadline_hours * 3600 + 1)  # while the next line does its work
    run.daemon._act(due[0])
    assert run.decide() == []
    look(run)
    assert run.decide() == [Score("south", 1)]


@pytest.mark.parametrize("south", ["accepted", "silent", "out of reach"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_aggregator_that_was_away_at_the_deadline_looks_before_it_closes_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool, south: str
) -> None:
    """Its machine stood still, or it was started again just before: what came meanwhile came in time."""
    clock = Clock()
    monkeypatch.setattr("aggregator.daemon.time", clock)
    run = Staged(tmp_path, {"north": "accepted", "south": "silent" if south == "silent" else "accepted"}, rounds=1)
    while run.store.score(1, "north") is None:
        for step in WORK[:-1] if run.store.round_no else WORK:
            act(run, step)
    run.store.write_waited(1, run.store.configuration().round_deadline_hours * 3600 - 50)
    run.restart()
    assert run.decide() == []
    if not is_restarted:
        look(run)
        clock.passes(30)
        assert run.decide() == []
    for _ in range(2):  # takes the round, and answers it or not
        act(run, "south")
    for seconds in (30, 30) if is_restarted else (7200,):
        clock.passes(seconds)
        assert run.decide() == []
    began = clock.monotonic()
    if south == "out of reach":
        while run.decide() == []:
            clock.passes(30)
            run.folder_sync_works("north")
        assert abs(clock.monotonic() - began - LONGEST_RETURN_S) < 120
    else:
        look(run)
    if south == "silent":
        assert run.decide() == []
        clock.passes(50)
        assert run.decide() == [CloseRound(1)]
    for _ in SITES:  # the score, and the end of the round
        run.aggregator_acts()
    verdicts = run.store.verdicts(1)
    assert verdicts is not None and verdicts["south"].status == ("accepted" if south == "accepted" else "late")


def look(run: Staged) -> None:
    """Look into both folders, after what a worker does first that was begun anew."""
    for site in SITES * 2:
        run.folder_sync_works(site)


def test_what_else_is_due_when_a_stop_comes_is_left_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score may take minutes, and there is one for each site."""
    run = Staged(tmp_path, {"north": "accepted", "south": "accepted"}, rounds=1)
    while not (due := run.decide()) or not all(isinstance(action, Score) for action in due):
        for action in due:
            if not isinstance(action, Score):
                run.daemon._act(action)
        for step in WORK[1:]:
            act(run, step)
    assert len(due) == len(SITES)
    score = HeldOut.score

    def score_and_be_stopped(*model: Any) -> float:
        run.daemon._stop.set()
        return score(*model)

    with monkeypatch.context() as moment:
        moment.setattr(HeldOut, "score", score_and_be_stopped)
        run.daemon._goes_on()
    assert sum(run.store.score(1, site) is not None for site in SITES) == 1
    run.restart()
    run.daemon._goes_on()
    assert all(run.store.score(1, site) for site in SITES)


@pytest.mark.parametrize(("keep", "left"), [("all", {0, 1, 2}), ("best", {0})])
def test_of_the_aggregates_those_are_kept_that_the_rule_keeps(tmp_path: Path, keep: str, left: set[int]) -> None:
    run = Staged(tmp_path, {"north": "accepted", "south": "accepted"}, rounds=2, keep=keep)
    while not run.is_over:
        for step in WORK:
            act(run, step)
    card = run.store.card()
    assert card is not None and card.chosen_round == 0
    assert {number for number in range(4) if run.store.aggregate_path(number).exists()} == left
