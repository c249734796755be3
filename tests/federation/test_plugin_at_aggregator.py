"""A plug-in's code at the aggregator: in a process of its own, which can do the daemon and the run no harm."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.configuration import AggregatorConfiguration, SiteAccess
from aggregator.model_work import Apart, Decide, LimitBelow, RunHere, begin_work
from aggregator.preparation import Begun, prepare
from aggregator.store import RunStore, ToldByCode
from shared.errors import ConfigurationError, PluginError
from shared.exchange.names import RUN_CONFIGURATION
from shared.exchange.records.run import BelowLast, Plugin
from shared.exchange.records.tensors import Sharing, TensorList, TensorShape
from shared.exchange.records.verdicts import CameLate, Verdict
from shared.exchange.signing import KEY_FILE
from shared.exchange.weights import write_zeros
from shared.learning import plugins
from shared.learning.aggregation import Update
from shared.learning.answers import ClosedRound
from shared.learning.methods.contract import MODEL
from shared.learning.run_files import Late, Scored
from tests.canary import password_of
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, own_logins, run_configuration
from tests.folder.logins import AGGREGATOR
from tests.installed_wheel import install_wheel

MODULE = '''
import json, os, sys, time
from pathlib import Path

import numpy as np
import dropfed
from shared.learning.tolerance import HeldOutSet

PLACE = Path({place!r})
ASKED = Path(os.readlink("/proc/self/fd/1")).with_name("question.json")
PLACE_OF_WORK, _, WORK = json.loads(ASKED.read_text())["kind"].partition(":")
AT_AGGREGATOR = PLACE_OF_WORK.startswith("aggregator.")


def next_of(step):
    """What is to happen in a step of a piece of work, one after the other; in the end nothing more."""
    told = PLACE / f"{{WORK}}-{{step}}"
    if not AT_AGGREGATOR or not told.exists():
        return ""
    first, *rest = told.read_text().split() or [""]
    told.write_text(" ".join(rest))
    return first


def misbehave(step):
    match next_of(step):
        case "raises":
            raise RuntimeError("of its own")
        case "hangs":
            time.sleep(600)
        case "dies":
            os._exit(7)
        case "eats":
            kept = [np.empty(10**9, dtype=np.uint8) for _ in range(100)]
        case "nan":
            return float("nan")
        case "shapes":
            return np.zeros(3)
        case "boasts":
            HeldOutSet.score = lambda *_: 3.0
        case "looks":
            descriptors = {{name: os.path.realpath(f"/proc/self/fd/{{name}}") for name in os.listdir("/proc/self/fd")}}
            seen = {{"environment": dict(os.environ), "descriptors": descriptors, "arguments": sys.argv}}
            (PLACE / "seen.json").write_text(json.dumps(seen))


class Shaky(dropfed.Method):
    """The plain mean, but for what it is told to do."""

    name = "shaky"

    def network(self, build):
        misbehave("network")
        return build(0)

    def objective(self, round_no, rounds):
        misbehave("objective")
        return super().objective(round_no, rounds)

    def weights(self, accepted):
        value = misbehave("weights")
        return dict.fromkeys(accepted, value) if value is not None else super().weights(accepted)

    def combine(self, part):
        value = misbehave("combine")
        return {{"model": part.mean() if value is None else part.mean() * value if value != value else value}}
'''

RAISED = (
    "raised RuntimeError: of its own "
    f"(shaky.py, line {MODULE[: MODULE.index('of its own')].count(chr(10)) + 1}); ask who wrote it"
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the plug-in reads what it is to do."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def wheel(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """The wheel as it lies once it is installed, for this process and those that it starts; it is not permitted yet."""
    modules = {"shaky.py": MODULE.format(place=str(place))}
    entry_points = "[dropfed.methods]\nshaky = shaky:Shaky\n"
    install_wheel(place.parent / "installed", "shaky", modules, entry_points, monkeypatch)
    yield plugins.described(plugins.distributions()["dropfed-shaky"])
    assert "shaky" not in sys.modules, "the daemons' own process has imported it"


@contextmanager
def federation_of(root: Path, wheel: Plugin, **settings: object) -> Iterator[FederationInProcess]:
    run = run_configuration(method="shaky", sites=["north"], quorum=1)
    allowed = {wheel.name: wheel.sha256}
    policy = POLICY.model_copy(update={"plugins": allowed, "methods": ["shaky"]})
    with FederationInProcess(root, run, policy=policy) as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        federation.change(federation.aggregator / "aggregator.yaml", plugins=allowed, **settings)
        yield federation


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whatever_it_does_is_named_and_the_run_goes_on(
    wheel: Plugin, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "not for plug-ins")
    monkeypatch.setattr("aggregator.daemon.LONGEST_WAIT_S", 0.01)
    for step, does in {
        "Check-objective": "dies looks",
        "Check-network": "fine boasts",
        "Decide-weights": "raises raises raises nan",  # of the answer, of it alone, and of one that moves nothing
        "Combine-combine": "shapes nan",
    }.items():
        (place / step).write_text(does)
    with federation_of(tmp_path, wheel) as federation:
        federation.run_to_the_end()
    log = (federation.aggregator / "log.txt").read_text()
    who, again = "plug-in dropfed-shaky 0.1.0", "Trying again until it works."
    checking, weighing = f"{who}, checking north's answer of round 1", f"{who}, weighing the answers of round 1"
    combining = f"{who}, combining the models of round 1"
    for sentence in (
        f"{checking}: its process ended (exit status 7); ask who wrote it. {again}",
        f"{weighing}: {RAISED}. {again}",
        f"{checking}: came to the score 3.0, which is none from 0 to 1. {again}",
        f"{weighing}: method: shaky gave the weights north nan; correct weights() in its file: ",
        f"{combining}: combine() gave shape (3,) for ",
        f"{combining}: raised OverflowError: ",
    ):
        assert sentence in log
    store = RunStore(federation.aggregator, "test-run")
    assert (store.verdicts(1) or {})["north"].status == "accepted"
    assert not store.trouble
    seen = json.loads((place / "seen.json").read_text())
    key = (federation.aggregator / KEY_FILE).read_text().strip()
    everything = json.dumps(seen)
    assert "not for plug-ins" not in everything
    assert key not in everything
    assert password_of(AGGREGATOR) not in everything
    opened = [path for path in seen["descriptors"].values() if str(federation.root) in path]
    assert not opened


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_it_holds_up_neither_a_site_s_verdict_nor_a_run_that_is_stopped(
    wheel: Plugin, place: Path, tmp_path: Path
) -> None:
    with federation_of(tmp_path, wheel) as federation:
        prepared = prepare(federation.aggregator, federation.aggregator / "RUN.yaml")
    store = RunStore(federation.aggregator, "test-run")
    store.begin(prepared.begun.run, prepared.begun.division)
    work = begin_work(prepared, store, threading.Event())
    store.ask(1, ("north",), ("north",))
    first = store.aggregate_path(0)
    checked = {"north": Scored(score="0.9", theta=None, reason="")}

    def answer(_site: str) -> Update:
        return Update({MODEL: first}, images=10)

    # 1. What becomes no number with a site's answer, and not with one that moves nothing, is held against the site.
    (place / "Decide-combine").write_text("nan nan")  # with all answers, and with this one alone
    closed = ClosedRound(1, checked, 0.5, answer)
    spoilt = work.verdicts(closed)["north"]
    assert spoilt.status == "omitted"
    assert re.match("the answers cannot be worked on together with this one by shaky: .* would hold NaN", spoilt.reason)
    # 2. Once the run is stopped, nothing that fails is waited for.
    for question in ("LimitBelow", "Decide", "Combine"):
        (place / f"{question}-network").write_text("raises")
    store.request_stop()
    assert work.limit(first, BelowLast(below_last=0.5)) == 1
    omitted = work.verdicts(closed)["north"]
    assert (omitted.status, omitted.weight) == ("omitted", None)
    assert omitted.reason == f"plug-in dropfed-shaky 0.1.0, weighing the answers of round 1: {RAISED}"
    late = {"north": Late(update="ab" * 32, scored=checked["north"])}
    none = work.verdicts(replace(closed, checked={"north": None}, late=late))["north"]
    told = CameLate(update="ab" * 32, score="0.9", weight="1.0", reason="score 0.9000 exceeds the tolerance 0.5")
    assert (none.status, none.weight, none.late) == ("late", None, told)
    accepted = omitted.model_copy(update={"status": "accepted", "weight": "1.0"})
    with pytest.raises(OverflowError, match=re.escape(f"combining the models of round 1: {RAISED}")):
        work.combine(1, {"north": accepted}, answer)
    assert store.aggregate_path(1).read_bytes() == first.read_bytes()


def test_a_run_that_is_stopped_ends_without_it(wheel: Plugin, tmp_path: Path) -> None:
    with federation_of(tmp_path, wheel) as federation:
        work = federation.aggregator
        prepared = prepare(work, work / "RUN.yaml")
    store = RunStore(work, "test-run")
    store.begin(prepared.begun.run, prepared.begun.division, prepared.begun.told)
    begin_work(prepared, store, threading.Event())
    store.ask(1, ("north",), ("north",))
    next((tmp_path / "installed").glob("*.dist-info")).rename(tmp_path / "away")
    launched = (store.home / RUN_CONFIGURATION, work / "RUN.yaml")
    for run_yaml in launched:
        with pytest.raises(ConfigurationError, match=re.escape("plug-in dropfed-shaky 0.1.0: is not installed here")):
            prepare(work, run_yaml)
    store.request_stop()
    for run_yaml in launched:
        stopped = prepare(work, run_yaml)
        assert stopped.begun == prepared.begun.model_copy(update={"is_new": False, "remarks": []})
    checked = {"north": Scored(score="0.9", theta=None, reason="")}
    first = Update({MODEL: store.aggregate_path(0)}, images=10)
    ends = begin_work(stopped, store, threading.Event())
    verdict = ends.verdicts(ClosedRound(1, checked, 0.5, lambda _: first))["north"]
    assert (verdict.status, "is not installed here" in verdict.reason) == ("omitted", True)
    (store.home / "stop").unlink()
    store.abort("of its own")
    over = prepare(work, launched[0]).begun  # its sites are still told
    assert over.remarks[0].text.startswith("test-run has ended already")
    assert over == stopped.begun.model_copy(update={"remarks": over.remarks})


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("hangs", r"took more than the 0\.1 minutes that aggregator\.yaml allows one piece of its work"),
        ("eats", "the memory is full; see what it does, or allow more"),
    ],
)
def test_a_run_that_it_cannot_begin_is_not_begun(
    wheel: Plugin, place: Path, tmp_path: Path, does: str, said: str
) -> None:
    (place / "Begin-network").write_text(does)
    settings = {"plugin_minutes": 0.1 if does == "hangs" else 10.0, "plugin_memory_gb": 0.5}
    named = f"plug-in dropfed-shaky 0.1.0, beginning run test-run: ({said})"
    with federation_of(tmp_path, wheel, **settings) as federation, pytest.raises(PluginError, match=named):
        prepare(federation.aggregator, federation.aggregator / "RUN.yaml")
    assert not RunStore(federation.aggregator, "test-run").home.exists()


# --- what a child answers and makes, taken over or not ----------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> RunHere:
    access = SiteAccess(url="http://127.0.0.1/north/", user=AGGREGATOR, password_file="password")
    configuration = AggregatorConfiguration(federation="retina", sites={"north": access})
    return RunHere(work=tmp_path, configuration=configuration, run=run_configuration(sites=["north"], quorum=1))


@pytest.fixture
def apart(here: RunHere) -> Apart:
    begun = Begun(
        run=here.run,
        is_new=True,
        division=Sharing(tensors={}, start={}, personal=[]),
        told=ToldByCode(score_name="dice_mean", in_turn=False, at_aggregator={}),
        remarks=[],
        weights_sha256=None,
    )
    return Apart(here.work, here.configuration, begun, RunStore(here.work, here.run.run), threading.Event())


@pytest.mark.parametrize(
    ("changes", "limit", "said"),
    [
        (None, 0.5, "other verdicts than one on each site that was asked"),
        ({"weight": "0.4"}, 0.5, "other verdicts than one on each site that was asked"),
        ({"site": "south"}, 0.5, "another verdict on north than its check allows"),
        ({"score": "0.8"}, 0.5, "another verdict on north than its check allows"),
        ({}, 0.95, "another verdict on north than its check allows"),
    ],
    ids=["none", "part of the weight", "on another site", "another score", "a share below the limit"],
)
def test_a_verdict_of_its_own_is_not_taken(
    changes: dict[str, str] | None, limit: float, said: str, apart: Apart, here: RunHere
) -> None:
    accepted = Verdict(
        run=here.run.run,
        round=1,
        site="north",
        status="accepted",
        score="0.9",
        tolerance="0.5",
        theta=None,
        weight="1.0",
        reason="",
    )
    checked = {"north": Scored(score="0.9", theta=None, reason="")}
    question = Decide(
        here=here, round_no=1, checked=checked, limit=limit, updates={}, withdrawn=[], late={}, made=here.work
    )
    apart._require_verdicts({"north": accepted}, question.model_copy(update={"limit": 0.5}))
    told = {} if changes is None else {"north": accepted.model_copy(update=changes)}
    with pytest.raises(PluginError, match=f"weighing the answers of round 1: came to {said}"):
        apart._require_verdicts(told, question)


@pytest.mark.parametrize("made", [["w", "x"], None], ids=["a tensor too many", "nothing"])
def test_a_file_with_other_tensors_is_not_taken(
    made: list[str] | None, apart: Apart, here: RunHere, tmp_path: Path
) -> None:
    due, path = TensorList(tensors={"w": TensorShape(dtype="F32", shape=[2])}), tmp_path / "aggregate"
    if made:
        write_zeros(tmp_path / "made", TensorList(tensors=dict.fromkeys(made, due.tensors["w"])))
    question = LimitBelow(here=here, aggregate=path, tolerance=BelowLast(below_last=0.5))
    with pytest.raises(PluginError, match="what it made cannot be taken, aggregate "):
        apart._take(tmp_path / "made", path, due, question)
    assert not path.exists()
