"""How runs end, by real daemons at both ends: the outcome comes first wherever people or scripts look."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from aggregator.cli import main
from aggregator.commands.launch import CANNOT_BEGIN, NOT_IMPROVED
from aggregator.dashboard.state import page_state
from aggregator.folder_sync import FolderSync
from aggregator.site import PUBLISHED
from aggregator.store import RunStore
from shared.audit.reading import Reading
from shared.audit.verify import verified
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.reading import dump_yaml
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from tests.federation.in_turns import as_before
from tests.federation.running import POLICY, TINY, WAIT_S, Federation, run_configuration

MOST_ROUNDS = 40
LEARNS: dict[str, Any] = {
    "rounds": 2,
    "task_options": TINY | {"optimizer": "adam", "dropout": 0.2},
    "method_options": {"dice": True, "refresh_batch_norm": "on_arrival"},
    "learning_rate": {"initial": 0.01, "factor": 1.0, "period": 1},
}
RESTS = LEARNS | {"learning_rate": {"initial": 1e-9, "factor": 1.0, "period": 1}}
"""Weights hardly move, and a site measures BatchNorm's statistics itself: every aggregate answers as the first one."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One, whose sites take part in run after run."""
    policy = POLICY.model_copy(update={"max_rounds": MOST_ROUNDS})
    with Federation(tmp_path_factory.mktemp("outcomes"), policy=policy) as federation:
        for site in federation.run.sites:
            federation.start_site(site)
        yield federation


class Ran:
    """A run from its launch on."""

    def __init__(self, federation: Federation, name: str, **settings: Any) -> None:
        self.name = name
        self.work = federation.aggregator
        self._federation = federation
        self._file = federation.root / f"{name}.yaml"
        write_file(self._file, dump_yaml(run_configuration(**settings | {"run": name})))
        self._launched = self._launch()

    def _launch(self, *options: str) -> Any:
        return self._federation.start("aggregator.cli", "launch", str(self._file), *options, work=self.work)

    def ends(self) -> tuple[int, str]:
        """The exit code, and the last line that was printed."""
        code = self._launched.wait(WAIT_S)
        return code, self._federation.output(self.work).strip().splitlines()[-1]

    def again(self) -> int:
        """The exit code of the same command for scripts."""
        code: int = self._launch("--accept-any").wait(WAIT_S)
        return code

    def says(self, *command: str) -> list[str]:
        result = CliRunner().invoke(main, [*command, "--work", str(self.work)])
        assert result.exit_code == 0, result.output
        return result.output.splitlines()

    def said_first(self) -> dict[str, str]:
        """Where people look, and what stands there first."""
        card = self._federation.root / f"{self.name}-card"
        self.says("export", self.name, "--output", str(card))
        return {
            "status": self.says("status")[0].removeprefix("outcome: "),
            "report": self.says("report", self.name)[2].removeprefix("Outcome: ").removesuffix("."),
            "card": (card / "model-card.md").read_text().splitlines()[2].removeprefix("Outcome: ").removesuffix("."),
        }


def assert_said_first(ran: Ran, line: str) -> None:
    """Every place begins with the sentence that ``launch`` has ended with."""
    outcome = line.partition("; the chosen model is ")[0]
    assert set(ran.said_first().values()) == {outcome}
    overview = json.loads("\n".join(ran.says("status", "--json")))
    state = page_state(ran.work)["run"]["overview"]
    assert overview["outcome"] == state["outcome"]
    assert overview["outcome"]["text"] == outcome


def test_a_run_whose_model_improved_ends_with_0(federation: Federation) -> None:
    ran = Ran(federation, "improved", **LEARNS)
    code, line = ran.ends()
    assert (code, line.partition(":")[0]) == (0, "improved"), line
    assert line.endswith("/runs/improved/final/model.safetensors")
    assert_said_first(ran, line)
    table = [line for line in ran.says("report", "improved") if line.startswith("| ")][:3]
    assert [cell.strip() for cell in table[0].split("|")[1:-1]] == [
        *("site", "before training", "after", "chosen model ± 1.96 standard errors", "test images"),
    ]
    for row in table[1:]:
        before, after = (float(cell) for cell in row.split("|")[2:4])
        assert 0 <= before < after <= 1


def test_of_several_runs_each_follows_the_one_before_whatever_that_came_to(federation: Federation) -> None:
    runs = {"first": RESTS, "unknown-site": RESTS | {"sites": ["north", "west"]}, "second": LEARNS}
    files = [federation.root / f"{name}.yaml" for name in runs]
    for file, (name, settings) in zip(files, runs.items(), strict=True):
        write_file(file, dump_yaml(run_configuration(**settings | {"run": name})))
    launch = ["launch", *map(str, files)]
    launched = federation.start("aggregator.cli", *launch, work=federation.aggregator)
    assert launched.wait(WAIT_S) == NOT_IMPROVED  # the greatest of 3, 2 and 0
    said = (federation.aggregator / "output.txt").read_text().splitlines()
    ends = ["/runs/first/final/model.safetensors", "/runs/second/final/model.safetensors", "sites: west is not in "]
    assert any("cannot be offered yet, and is tried again when its turn comes: " in line for line in said)
    until = said.index("3 runs:")
    places = [max(place for place, line in enumerate(said[:until]) if end in line) for end in ends]
    assert places == sorted(places)
    assert said[places[0]].startswith("no better than ") and said[places[1]].startswith("improved: ")
    assert sum(ends[2] in line for line in said[:until] if line.startswith(str(files[1]))) == 2  # tried again
    summary = said[until + 1 :]
    assert [line.split(":")[0].strip() for line in summary] == ["first", "second", "unknown-site"]
    assert "sites: west is not in " in summary[2]

    # Both that can begin were offered before the first had a round, and the second's answers came meanwhile.
    for site in federation.run.sites:
        folder = LocalFolder(federation.folder(site))
        reading = Reading(folder, None, None)
        assert verified(reading).findings == []
        told = [message.ref for message in reading.sent_by(AGGREGATOR)]
        assert told.index(MessageRef("offer", "second")) < told.index(MessageRef("round", "first", 1))
        sent = [message.ref for message in reading.sent_by(site)]
        assert sent.index(MessageRef("consent", "second")) < sent.index(MessageRef("update", "first", 3))

    again = federation.start("aggregator.cli", *launch, "--accept-any", work=federation.aggregator)
    assert again.wait(WAIT_S) == CANNOT_BEGIN  # what has ended is not played again
    assert (federation.aggregator / "output.txt").read_text().splitlines()[-3:] == summary[-3:]

    twice = CliRunner().invoke(main, ["launch", str(files[2]), str(files[2]), "--work", str(federation.aggregator)])
    assert twice.exit_code == 2
    assert "run: second is that of " in twice.output and "name each run once" in twice.output


def test_a_signal_while_a_run_is_brought_to_its_close_begins_no_other(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, join = federation.aggregator, FolderSync.join
    files = [federation.root / f"{name}.yaml" for name in ("over", "not-begun")]
    for file in files:
        write_file(file, dump_yaml(run_configuration(**RESTS | {"run": file.stem, "rounds": 1})))
    launch = ["launch", *map(str, files), "--work", str(work), "--accept-any"]

    def join_when_signalled(site: FolderSync) -> None:
        signal.raise_signal(signal.SIGTERM)
        join(site)

    with as_before(), monkeypatch.context() as moment:
        moment.setattr(FolderSync, "join", join_when_signalled)
        *_, ended, interrupted = CliRunner().invoke(main, launch).stdout.splitlines()
        assert ended.startswith("no better than ") and ended.endswith("/runs/over/final/model.safetensors")
        assert interrupted == f"interrupted; go on with the same command (work directory {work})"
        moment.undo()
        result = CliRunner().invoke(main, launch)
    assert result.exit_code == 0
    names, first, second = result.stdout.splitlines()[-3:]
    assert (names, first.split(":")[0], second.split(":")[0]) == ("2 runs:", "  over", "  not-begun")


def test_a_run_that_is_queued_while_another_goes_on_is_offered_at_once_and_played_after_it(
    federation: Federation,
) -> None:
    """Its site takes part in that run alone, and its file may be gone by its turn."""
    work = federation.aggregator
    queue = ["queue", "--work", str(work)]
    assert CliRunner().invoke(main, ["launch", "--work", str(work)]).output.startswith(f"{work}: no run waits here; ")
    before = Ran(federation, "before", **RESTS | {"rounds": MOST_ROUNDS, "sites": ["north"], "quorum": 1})
    opened = work / "runs" / "before" / "rounds" / "0001" / "opened.json"
    federation.wait_until(opened.exists, "the first round")
    file = federation.root / "queued.yaml"
    write_file(file, dump_yaml(run_configuration(**LEARNS | {"run": "queued", "sites": ["south"], "quorum": 1})))
    assert before.says("queue", str(file))[0] == "ok       queued is queued"
    file.unlink()

    def agreed() -> str:
        return CliRunner().invoke(main, queue).output

    federation.wait_until(lambda: agreed() == "queued, 1 of 1 site agreed, 0 declined\n", "its site to agree")
    before.says("stop", "before", "--yes")
    code, line = before.ends()
    assert code == NOT_IMPROVED and line.strip().startswith("queued: improved: ")
    assert agreed() == f"{work}: no run waits\n"
    ended = CliRunner().invoke(main, ["queue", str(work / "runs/queued/run.yaml"), "--work", str(work)])
    assert (ended.exit_code, ended.output) == (2, "queued has ended already; to run it again, give it a new name\n")


@pytest.mark.long
def test_queued_runs_are_played_by_a_launch_that_names_none(federation: Federation) -> None:
    """What cannot begin is refused at once; what was stopped while it waited is over when its turn comes."""
    work = federation.aggregator
    for name, settings in {"taken-back": LEARNS, "alone": LEARNS, "west": LEARNS | {"sites": ["west"]}}.items():
        file = federation.root / f"{name}.yaml"
        write_file(file, dump_yaml(run_configuration(**settings | {"run": name, "quorum": 1})))
        said = CliRunner().invoke(main, ["queue", str(file), "--work", str(work)])
        if name == "west":
            assert said.exit_code == 2 and "sites: west is not in " in said.output
        else:
            starts = f"; the aggregator is not running: `dropfed-aggregator launch --work {work}` starts it"
            assert said.output.splitlines()[0] == f"ok       {name} is queued{starts}"
            again = CliRunner().invoke(main, ["queue", str(file), "--work", str(work)]).output
            assert again.startswith(f"ok       {name} is queued already; ")
            status = CliRunner().invoke(main, ["status", "--work", str(work)]).output
            assert "why: the run is queued, and the next `launch` plays it\n" in status
            other = federation.root / "other.yaml"
            write_file(other, dump_yaml(run_configuration(**settings | {"run": name, "quorum": 1, "seed": 99})))
            changed = CliRunner().invoke(main, ["queue", str(other), "--work", str(work)])
            assert changed.exit_code == 2
            assert f"run {name} is queued with another configuration (seed)" in changed.output
            assert f"take that back with `dropfed-aggregator stop {name} --work {work}`" in changed.output
            assert f"note     {name} is queued with just these settings; `launch` goes on with it" in again
    assert CliRunner().invoke(main, ["stop", "taken-back", "--yes", "--work", str(work)]).exit_code == 0
    launched = federation.start("aggregator.cli", "launch", "--accept-any", work=work)
    code = launched.wait(WAIT_S)
    said = federation.output(work).strip().splitlines()[-3:]
    assert said[0] == "2 runs:" and said[1].strip().startswith("taken-back: ")
    assert said[2].strip().startswith("alone: improved: ")
    assert code == 0


def test_a_queued_run_whose_site_is_gone_holds_up_nobody_and_can_be_taken_back(federation: Federation) -> None:
    work = federation.aggregator
    file, configuration = federation.root / "astray.yaml", work / "aggregator.yaml"
    write_file(file, dump_yaml(run_configuration(**LEARNS | {"run": "astray", "sites": ["south"], "quorum": 1})))
    assert CliRunner().invoke(main, ["queue", str(file), "--work", str(work)]).exit_code == 0
    sites = yaml.safe_load(before := configuration.read_bytes())["sites"]
    federation.change(configuration, sites={"north": sites["north"]})
    passes = Ran(federation, "passes", **LEARNS | {"sites": ["north"], "quorum": 1})
    code, _ = passes.ends()
    said = federation.output(work)
    gone = f"sites: south: not in {configuration}; add what is missing there"
    assert f"astray cannot be offered yet, and is tried again when its turn comes: {gone}" in said
    assert code == CANNOT_BEGIN and "  passes: improved: " in said and f"astray: {work}" in said
    passes.says("stop", "astray", "--yes")
    assert CliRunner().invoke(main, ["launch", "--work", str(work)]).exit_code == CANNOT_BEGIN
    assert passes.says("queue") == [f"{work}: no run waits"]
    write_file(configuration, before)  # and it can be ended as any other
    ended = federation.start("aggregator.cli", "launch", str(work / "runs/astray/run.yaml"), work=work)
    assert ended.wait(WAIT_S) == NOT_IMPROVED
    assert federation.output(work).strip().splitlines()[-1].startswith("stopped ")
    # As if that hospital had not been told of the end, and is gone for good.
    (work / "sites" / "south" / PUBLISHED).unlink()
    RunStore(work, "astray").queue()
    assert passes.says("queue")[0].startswith("astray: has ended; ")
    assert "leaves the queue" in passes.says("stop", "astray")[0]
    assert passes.says("queue") == [f"{work}: no run waits"]


@pytest.mark.long
def test_a_run_whose_model_is_no_better_ends_with_3(federation: Federation) -> None:
    ran = Ran(federation, "rested", **RESTS)
    code, line = ran.ends()
    assert (code, line.partition(":")[0]) == (3, "no better than before training"), line
    assert_said_first(ran, line)
    assert ran.again() == 0


@pytest.mark.long
def test_a_run_without_an_accepted_answer_says_so_though_what_stays_at_the_sites_got_better(
    federation: Federation,
) -> None:
    """No score reaches the tolerance; BatchNorm stays at each site, is trained there, and lifts the scores."""
    ran = Ran(federation, "omitted", **LEARNS | {"method": "fedbn", "method_options": {}, "tolerance": 0.9999})
    code, line = ran.ends()
    assert (code, line.partition(":")[0]) == (3, "nothing was accepted"), line
    assert_said_first(ran, line)
    ran.says("report", "omitted", "--pages", str(pages := federation.root / "pages"))
    page = (pages / "report.html").read_text()
    assert page.partition('<p class="lead">')[2].startswith("Nothing was accepted: ")
    everything = "\n".join([*ran.says("status"), *ran.says("report", "omitted"), page])
    assert "best mean validation" not in everything and "chosen: the aggregate" not in everything.lower()
    assert "no model was accepted in 2 rounds in a row, 1 to 2" in (ran.work / "log.txt").read_text()


@pytest.mark.long
def test_a_run_that_was_stopped_says_what_it_came_to_by_then(federation: Federation) -> None:
    ran = Ran(federation, "cut", **LEARNS | {"rounds": MOST_ROUNDS})
    opened = ran.work / "runs" / "cut" / "rounds" / "0003" / "opened.json"
    federation.wait_until(opened.exists, "the third round")
    ran.says("stop", "cut", "--yes")
    code, line = ran.ends()
    assert code == 3 and line.startswith("stopped after round 3 of 40; improved: "), line
    assert_said_first(ran, line)


def test_a_run_that_no_site_agrees_to_is_aborted_and_ends_with_1(federation: Federation) -> None:
    ran = Ran(federation, "refused", rounds=MOST_ROUNDS + 1)
    code, line = ran.ends()
    assert code == 1 and re.fullmatch(
        "aborted: only 0 of 2 sites agreed(, 1 more could)?, the quorum is 2",  # which no second answer would change
        line,
    )
    assert ran.says("status")[0] == f"outcome: {line}"
    assert f"Outcome: {line}." in ran.says("report", "refused")
    assert ran.again() == 0
