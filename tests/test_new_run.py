"""``new-run`` writes a RUN.yaml that ``validate`` takes; ``validate`` says all for which ``launch`` would refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import setuptools.build_meta
from click.testing import CliRunner, Result

from aggregator.cli import main
from aggregator.configuration import AggregatorConfiguration
from aggregator.new_run import Answers, filled_in, template
from aggregator.preparation import as_begun, in_full
from aggregator.setup import initialise
from aggregator.store import RunStore, run_in_turn, take_turn
from shared.errors import ConfigurationError
from shared.exchange.reading import dump_values, dump_yaml, parse_yaml
from shared.exchange.records.run import BelowLast, Cosine, Falling, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.folder.durable import write_file
from shared.folder.lock import work_lock
from shared.interrupts import STOPPED
from shared.learning.answers import limit_below
from shared.learning.methods import method_names, open_method, usual_options
from shared.learning.model_files import save_tensors
from shared.learning.run_checks import check_together
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import TASK_NAMES, task_named
from shared.learning.tasks.terms import EXTERNAL
from tests.federation.running import TASK, run_configuration, write_data
from tests.played import RUN as PLAYED
from tests.played import Played

SITES = {"north": "http://127.0.0.1/north/", "1e3": "http://127.0.0.1/like-a-number/"}


def command(*arguments: object, answers: str | None = None) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], input=answers)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work directory with two sites, their passwords, and held-out images of one task."""
    work = tmp_path_factory.mktemp("work")
    initialise(work, "retina", SITES, "aggregator")
    for site in SITES:
        write_file(work / "passwords" / site, b"x", private=True)
    write_data(TASK, work / "heldout", 0, 4, seed=1)
    change(work, heldout={TASK: "heldout"})
    return work


def change(work: Path, **changes: object) -> None:
    path = work / "aggregator.yaml"
    settings = parse_yaml(path.read_bytes(), AggregatorConfiguration, path.name).model_dump()
    path.write_bytes(dump_values(settings | changes))


def written(path: Path) -> RunConfiguration:
    return parse_yaml(path.read_bytes(), RunConfiguration, path.name)


def comments(text: str) -> list[str]:
    return [line.partition("#")[2] for line in text.splitlines() if "#" in line]


CHOSEN = {
    "octa_segmentation": {"dice": True, "refresh_batch_norm": "on_arrival"},
    "segmentation": {"dice": True, "refresh_batch_norm": "on_arrival"},
    "dr_staging": {"refresh_batch_norm": "on_arrival"},
}
"""What templates suggest for any method."""


@pytest.mark.parametrize("task", TASK_NAMES)
@pytest.mark.parametrize("method", method_names())
def test_every_method_gets_its_options_and_keeps_every_comment(task: str, method: str) -> None:
    text = filled_in(Answers("1e3", task, method, list(SITES), 5))
    run = parse_yaml(text.encode(), RunConfiguration, "run")
    assert (run.run, run.method, run.sites, run.rounds) == ("1e3", method, list(SITES), 5)
    assert run.quorum == (1 if method == "sequential" else 2)
    as_it_is = parse_yaml(template(task).encode(), RunConfiguration, "template")
    assert run.method_options == usual_options(method) | CHOSEN.get(task, {})
    gone = tuple(f"  {option}: " for option in as_it_is.method_options.keys() - run.method_options.keys())
    kept = "\n".join(line for line in template(task).splitlines() if not line.startswith(gone))
    assert comments(kept) == [each for each in comments(text) if f" of {method};" not in each]
    changed = {"run", "method", "sites", "rounds", "quorum", "method_options", "learning_rate", "task_options"}
    assert run.model_dump(exclude=changed) == as_it_is.model_dump(exclude=changed)
    needs_sgd = open_method(method, {}).needs_sgd
    assert run.task_options == as_it_is.task_options | ({"optimizer": "sgd"} if needs_sgd else {})
    rate, suggested = run.learning_rate.model_dump(), as_it_is.learning_rate.model_dump()
    if rate["shape"] == "cosine":
        suggested["period"] = 5
    if not needs_sgd or as_it_is.task_options["optimizer"] == "sgd":
        assert rate == suggested
    else:
        assert rate["initial"] == pytest.approx(30 * suggested["initial"])
    if not open_method(method, {}).reference:
        check_together(run)


ORDINARY = """\
run: shapes-2026-01
task: shapes
method: fedavg
# as in aggregator.yaml
sites:            # all of them
  - north
  - south
quorum: 2
rounds: 4
learning_rate: {shape: cosine, initial: 0.003,
                final: 0.0001, period: 4}
# of the task
task_options:
  optimizer: adam
"""


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The template of a wheel that is installed and provides the task ``shapes``."""
    (tmp_path / "shapes").mkdir()
    info = tmp_path / "shapes_of_ours-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes-of-ours\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[dropfed.tasks]\nshapes = shapes:Shapes\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "shapes" / "run.shapes.yaml"
    path.write_text(ORDINARY)
    return path


def test_a_wheels_template_may_have_lists_in_lines_and_leave_out_the_learning_rate(brought: Path) -> None:
    text = filled_in(Answers("mine", "shapes", "scaffold", ["east"], 6))
    run = parse_yaml(text.encode(), RunConfiguration, "run")
    assert (run.sites, run.quorum, run.rounds, run.task_options) == (["east"], 1, 6, {"optimizer": "sgd"})
    assert run.learning_rate == Cosine(shape="cosine", initial=0.09, final=0.003, period=6)
    assert comments(text)[:3] == comments(ORDINARY)
    brought.write_text(re.sub(r"(?s)learning_rate.*(?=# of)", "", ORDINARY))
    run = parse_yaml(filled_in(Answers("mine", "shapes", "fedavg", ["east"], 6)).encode(), RunConfiguration, "run")
    assert run.learning_rate == Falling()
    brought.write_text(re.sub(r"method: \w+", "method: fedprox", ORDINARY) + "method_options:\n  mu: 0.1\n")
    run = parse_yaml(filled_in(Answers("mine", "shapes", "fedavg", ["east"], 6)).encode(), RunConfiguration, "run")
    assert run.method == "fedavg" and "mu" not in run.method_options, "no line of the block stays"


@pytest.mark.parametrize(
    "now, then, told",
    [
        ("rounds: 4\n", "", "rounds: is missing; add it"),
        ("  - south", "\n  - south", "sites: `new-run` cannot change this value; ask its author for"),
        (
            "  optimizer",
            "    optimizer",
            "task_options.optimizer: `new-run` cannot change this value; ask its author for",
        ),
        ("quorum:", '"quorum":', "quorum: `new-run` cannot change this value; ask its author for"),
    ],
)
def test_a_wheels_template_that_cannot_be_filled_in_is_named(brought: Path, now: str, then: str, told: str) -> None:
    brought.write_text(ORDINARY.replace(now, then))
    with pytest.raises(ConfigurationError) as refused:
        filled_in(Answers("mine", "shapes", "fedavg", ["east"], 6))
    assert any(
        problem.startswith(f"plug-in shapes-of-ours: run.shapes.yaml: {told}") for problem in refused.value.problems
    )


def test_a_run_of_programs_says_what_to_fill_in() -> None:
    text = filled_in(Answers("1e3", EXTERNAL, "fedavg", list(SITES), 5))
    run = parse_yaml(text.encode(), RunConfiguration, "run")
    assert (run.run, run.task, run.sites, run.rounds, run.tolerance) == ("1e3", EXTERNAL, list(SITES), 5, None)
    assert run.trainer and run.start and run.scores.keys() == {"score"}
    assert comments(text) == comments(template(EXTERNAL))
    assert sum("fill in: " in comment for comment in comments(text)) == 4
    check_together(run)


def test_a_new_run_of_programs_needs_no_heldout_images(prepared: Path, tmp_path: Path) -> None:
    result = command("new-run", "--work", prepared, "--task", EXTERNAL, "--defaults", "--output", tmp_path / "RUN.yaml")
    assert result.exit_code == 0, result.output
    assert written(tmp_path / "RUN.yaml").sites == sorted(SITES)


def test_a_cosine_lasts_as_long_as_the_run_and_sgd_takes_longer_steps_than_adam() -> None:
    def rate(method: str) -> object:
        text = filled_in(Answers("a", TASK, method, list(SITES), 7))
        return parse_yaml(text.encode(), RunConfiguration, "run").learning_rate

    assert rate("mean") == Cosine(shape="cosine", initial=0.002, final=0.00002, period=7)
    assert rate("scaffold") == Cosine(shape="cosine", initial=0.06, final=0.0006, period=7)


def test_a_preset_is_written_out_and_one_of_another_task_is_told(prepared: Path, tmp_path: Path) -> None:
    output = tmp_path / "RUN.yaml"
    flags = ("new-run", "--work", prepared, "--defaults", "--task", TASK, "--output", output)
    result = command(*flags, "--preset", "feduaa")
    assert (result.exit_code, output.exists()) == (2, False)
    assert result.output == f"preset: there is no 'feduaa' for {TASK}; take lo2021, or leave it out\n"
    assert command(*flags, "--preset", "lo2021").exit_code == 0
    run = written(output)
    assert (run.rounds, run.learning_rate) == (60, Falling(initial=0.1, factor=0.1, period=3))
    assert (run.tolerance_score, run.task_options["optimizer"], run.augmentation["crops"]) == ("accuracy", "sgd", None)
    own = command(*flags[:-1], tmp_path / "own.yaml", "--preset", "lo2021", "--method", "fedavg", "--rounds", 9)
    assert own.exit_code == 0
    run = written(tmp_path / "own.yaml")
    assert (run.rounds, run.method, run.learning_rate) == (9, "fedavg", Falling(initial=0.1, factor=0.1, period=3))


def test_what_is_asked_and_written_is_valid(prepared: Path, tmp_path: Path) -> None:
    output = tmp_path / "RUN.yaml"
    result = command("new-run", "--work", prepared, answers=f"\nmine\nfedavg\n\n1\n{output}\n")
    assert result.exit_code == 0, result.output
    listed = dict(re.findall(r"^  (\w+) +(.*)$", result.output, re.MULTILINE))
    first, *others = listed.items()
    assert first == ("mean", "The plain mean of Lo et al. 2021: every accepted site counts the same")
    assert [name for name, _ in others] == sorted({*method_names()} - {"mean"})
    assert all(listed.values())
    for asked in (f"Task ({TASK}) [{TASK}]", "Method [mean]", "Sites [1e3, north]", "Rounds of training [20]"):
        assert asked in result.output
    run = written(output)
    assert (run.run, run.method, run.sites, run.rounds) == ("mine", "fedavg", ["1e3", "north"], 1)
    small = output.read_text().replace("image_size: 384", "image_size: 32").replace("[16, 32, 64, 128, 256]", "[4, 8]")
    output.write_text(small)
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    result = command("validate", output, "--work", prepared)
    assert result.exit_code == 0, result.output
    assert f"ok       {output}: mine can be launched: {TASK} by fedavg, 1 round\n" in result.output
    assert "score_every" not in result.output
    assert (
        "training: for example, a site with 20 training images takes 60 steps in the whole run, which may be too"
        in result.output
    )
    assert re.search(
        r"note     held-out set: 4 images; background: \d\d% of pixels, vessel: [\d.]+% of pixels\n", result.output
    )
    assert "note     tolerance: the model that training begins with scores 0." in result.output
    assert " on the held-out set (macro_dice); in round 1 a model counts if it scores above 0." in result.output
    assert "note     BatchNorm: uses batches of up to 4 images; a site that sets micro_batch uses " in result.output
    assert "quorum: all 2 sites; " in result.output
    assert "not joined yet, as far as is known here: 1e3, north\n" in result.output
    assert "default used" not in result.output
    weights = (
        "weights: each round sends 7.45 kB to a site and 7.45 kB back as float32, the whole run up to 22.3 kB to each "
    )
    assert f"{weights}site and 7.45 kB back; keep: the models of 1" in result.output
    assert result.output.splitlines()[-1] == "in all   0 problems, 1 warning"
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before
    told = json.loads(command("validate", output, "--work", prepared, "--json").output)
    assert (told["problems"], told["findings"][0]["grade"]) == (0, "ok")
    (stopped := RunStore(prepared, "mine")).request_stop()
    told = f"ok       {output}: mine can be launched: it was stopped, and is closed with the best model so far\n"
    assert told in command("validate", output, "--work", prepared).output
    shutil.rmtree(stopped.home)


def test_what_a_file_that_was_cut_off_leaves_to_the_defaults_is_told(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "RUN.yaml"
    run = run_configuration(run="half", sites=["north"], quorum=1, keep="best")
    path.write_bytes(dump_yaml(run).partition(b"\nkeep:")[0] + b"\ntask_options:\n  image_size: 32\n")
    result = command("validate", path, "--work", prepared)
    assert result.exit_code == 0, result.output
    (told,) = (line for line in result.output.splitlines() if "default used" in line)
    assert told.startswith('note     default used (not set in RUN.yaml): tolerance_score "macro_dice", keep "all", ')
    assert ", method_options, augmentation, split, wire, " in told and "rounds" not in told


def test_what_comes_once_with_the_offer_counts_among_the_bytes_of_the_whole_run(prepared: Path, tmp_path: Path) -> None:
    path, small = tmp_path / "RUN.yaml", {"image_size": 32, "widths": [4, 8]}
    run = run_configuration(run="kept", sites=["north"], quorum=1, rounds=3, method="fedbn", task_options=small)
    path.write_bytes(dump_yaml(run))
    result = command("validate", path, "--work", prepared)
    assert result.exit_code == 0, result.output
    (told,) = re.findall(
        r"each round sends ([\d.]+) kB to .* up to ([\d.]+) kB to .* \((\d+) bytes of it once", result.output
    )
    each, whole, offer = map(float, told)
    assert whole == pytest.approx(5 * each + offer / 1000, abs=0.1)


def test_an_answer_that_cannot_be_is_asked_for_again_at_once(prepared: Path, tmp_path: Path) -> None:
    output, there = tmp_path / "RUN.yaml", tmp_path / "there.yaml"
    there.write_text("mine")
    said = ("Mine", "mine", "magic", "centralised", "fedavg", "atlantis", "north north", "north", "0", "three", "3")
    result = command("new-run", "--work", prepared, "--task", TASK, answers="\n".join([*said, str(there), str(output)]))
    assert result.exit_code == 0, result.output
    asked = [line.partition(" [")[0].split(" (")[0] for line in result.output.splitlines() if "]: " in line]
    times = {"Name of the run": 2, "Method": 3, "Sites": 3, "Rounds of training": 3, "File": 2}
    assert asked == [question for question, count in times.items() for _ in range(count)]
    for objection in (
        "new run: run: ",
        "is not one of",
        "sites: atlantis is not in",
        "a site is named twice",
        "new run: rounds: ",
        "'three' is not a valid integer",
        f"{there}: is there already",
    ):
        assert objection in result.output
    assert (written(output).sites, written(output).rounds, there.read_text()) == (["north"], 3, "mine")


def test_flags_alone_ask_nothing_and_nothing_is_written_over(prepared: Path, tmp_path: Path) -> None:
    output = tmp_path / "RUN.yaml"
    flags = ("--task", TASK, "--method", "fedprox", "--site", "north", "--rounds", 2, "--output", output, "--defaults")
    result = command("new-run", "--work", prepared, *flags)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"wrote {output}\nnext: ")
    run = written(output)
    assert (run.run[:5], run.sites, run.quorum, run.method_options["mu"]) == ("octa-", ["north"], 1, 0.01)
    content = output.read_bytes()
    again = command("new-run", "--work", prepared, *flags)
    assert (again.exit_code, output.read_bytes()) == (2, content)
    assert again.output == f"{output}: is there already and stays as it is; choose another name with --output\n"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--task", "hearts"), "there is no 'hearts'; the tasks are"),
        (("--task", "dr_staging"), "heldout: has no folder for dr_staging; add `dr_staging: DIR` there, DIR holding"),
        (("--method", "magic"), "there is no method magic; use one of"),
        (("--method", "centralised"), "is a reference for comparisons"),
        (("--site", "atlantis"), "new run: sites: atlantis is not in"),
        (("--rounds", "0"), "new run: rounds: "),
        (("--run", "Mine"), "new run: run: "),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    prepared: Path, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    output = tmp_path / "RUN.yaml"
    result = command("new-run", "--work", prepared, "--defaults", "--output", output, *flags)
    assert result.exit_code == 2
    assert sentence in result.output
    assert not output.exists()


def test_an_ended_run_holds_up_the_next_until_its_sites_are_told_whichever_was_begun_last(run: Played) -> None:
    """Runs are begun when they are queued, and end in their turn; a clock may have been set back, too."""
    work, path = run.drop.parent / "aggregator", run.drop.parent / "NEXT.yaml"
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, "aggregator")
    run.offer_and_consent()
    for name in (PLAYED, "begun-later"):
        store = RunStore(work, name)
        store.begin(run_configuration(run=name, sites=["north"], quorum=1), Sharing(tensors={}, start={}, personal=[]))
        store.abort("as the test says")
        assert store.is_over
    path.write_bytes(dump_yaml(run_configuration(run="next", sites=["north"], quorum=1)))
    told = f"{path}: run {PLAYED} has ended, and north must still be told: finish it by `dropfed-aggregator launch"
    assert told in command("validate", path, "--work", work).output
    assert run_in_turn(work).run == "begun-later"  # type: ignore[union-attr]
    take_turn(work, PLAYED)
    assert run_in_turn(work).run == PLAYED  # type: ignore[union-attr]
    waits = RunStore(work, "waits")
    waits.begin(run_configuration(run="waits", sites=["north"], quorum=1), Sharing(tensors={}, start={}, personal=[]))
    assert run_in_turn(work).run == "waits"  # type: ignore[union-attr]
    with work_lock(work):  # a daemon is at work, and tells that run's end
        assert run_in_turn(work).run == PLAYED  # type: ignore[union-attr]


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    work, path = tmp_path / "work", tmp_path / "RUN.yaml"
    initialise(work, "retina", SITES, "aggregator")
    write_file(work / "passwords" / "north", b"x")
    (work / "passwords" / "north").chmod(0o644)
    (work / "invites" / "1e3.json").unlink()
    (work / "heldout").mkdir()
    change(work, heldout={"dr_staging": "heldout"})
    other = RunStore(work, "other")
    other.begin(run_configuration(run="other"), Sharing(tensors={}, start={}, personal=[]))
    other.ask(1, ("north",), ("north",))
    privacy = {"target_epsilon": 8.0, "delta": 0.001, "max_grad_norm": 1.0}
    staging = {"task": "dr_staging", "method": "fedbn", "task_options": {}, "augmentation": {}, "split": {"train": 0.9}}
    run = run_configuration(**staging, sites=["north", "1e3", "atlantis"], privacy=privacy)
    path.write_bytes(dump_yaml(run))
    result = command("validate", path, "--work", work)
    assert result.exit_code == 2
    for sentence in (
        f"{path}: sites: atlantis is not in {work / 'aggregator.yaml'}",
        "must add up to 1",
        "privacy: ",
        f"{path}: run other is still open in {work}, and runs go on one after the other: have yours "
        f"follow it by `dropfed-aggregator queue {path} --work {work}`, and finish it by "
        f"`dropfed-aggregator launch {work}/runs/other/run.yaml --work {work}`; to end it with the best model so far, "
        f"call `dropfed-aggregator stop other --work {work}` before that",
        f"{work / 'passwords' / 'north'} can be read by others than its owner",
        f"{work / 'passwords' / '1e3'} is missing",
        f"{work / 'invites' / '1e3.json'} is missing",
        f"held-out set {work / 'heldout'}: ",
        f"{path}: weights: resnet50-",
    ):
        assert sentence in result.output, (sentence, result.output)
    assert not (work / "log.txt").exists()
    (work / "aggregator.yaml").write_text("sites: {}\n")
    path.write_text("run: Mine\n")
    both = command("validate", path, "--work", work).output
    assert f"{work / 'aggregator.yaml'}: federation: is missing" in both and f"{path}: method: is missing" in both


def test_what_scoring_fewer_rounds_saves_is_told(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "RUN.yaml"
    path.write_bytes(dump_yaml(run_configuration(run="rare", sites=["north"], quorum=1, rounds=19, score_every=10)))
    output = command("validate", path, "--work", prepared).output
    assert (
        "score_every: sites score validation and test images in 3 rounds of 20, the first and the closing one" in output
    )
    assert "which saves 85% of the scoring" in output
    assert "weighted" not in output
    weighted = run_configuration(run="weighted", method="feddc", sites=["north"], quorum=1)
    path.write_bytes(dump_yaml(weighted))
    output = command("validate", path, "--work", prepared).output
    assert "weighted: a site of 100 training images counts as one; set mean_images" in output


def test_the_guide_shows_what_validate_says_of_a_run_as_it_is_written() -> None:
    guide = (Path(__file__).parent.parent / "docs" / "for-pis.md").read_text()
    run = parse_yaml(filled_in(Answers("octa-1", TASK, "fedavg", ["north", "south"], 2)).encode(), RunConfiguration, "")
    assert isinstance(run.tolerance, BelowLast)
    shown, below_last = re.search(r"scores (0\.\d+) on the held-out set \((\w+)\)", guide), run.tolerance.below_last
    assert shown is not None and shown[2] == run.tolerance_score
    assert f"counts if it scores above {limit_below(float(shown[1]), run.tolerance):.4f}, so one" in guide
    assert f"later it must come within {below_last:g} of the last aggregate" in guide


@pytest.mark.parametrize(
    "period, told",
    [
        (3, "so that it begins anew after each of its periods; `period: 6` lets it fall once"),
        (6, None),
        (9, "so that it has not fallen to its final; `period: 6` lets it fall once"),
    ],
)
def test_a_cosine_that_does_not_fall_just_once_is_told(
    prepared: Path, tmp_path: Path, period: int, told: str | None
) -> None:
    path, rate = tmp_path / "RUN.yaml", {"shape": "cosine", "initial": 0.1, "final": 0.001, "period": period}
    run = run_configuration(run="cosine", sites=["north"], quorum=1, rounds=6, learning_rate=rate)
    path.write_bytes(dump_yaml(run))
    found = [
        line for line in command("validate", path, "--work", prepared).output.splitlines() if " learning_rate: " in line
    ]
    begins = f"note     learning_rate: the cosine's period is {period} and the run has 6 rounds, "
    assert found == ([] if told is None else [begins + told])


def test_what_is_no_run_yet_is_looked_at_as_far_as_it_goes(prepared: Path, tmp_path: Path) -> None:
    path, run = tmp_path / "RUN.yaml", run_configuration(sites=["north", "west"]).model_dump()
    path.write_bytes(dump_values(run | {"encrypt": True, "method": "fedagv", "split": {"train": 0.9}}))
    result = command("validate", path, "--work", prepared)
    assert result.exit_code == 2
    for sentence in (
        f"{path}: encrypt: must be 'none', 'weights' or 'all' (found true, which YAML also reads in yes and on)",
        f"{path}: sites: west is not in {prepared / 'aggregator.yaml'}",
        "there is no method fedagv",
        "must add up to 1",
    ):
        assert result.output.count(sentence) == 1, (sentence, result.output)
    settings = command("validate", prepared / "aggregator.yaml", "--work", prepared)
    assert (settings.exit_code, "is no run" in settings.output, settings.output.count("\n")) == (2, True, 1)


def test_where_nobody_answers_that_is_said(prepared: Path) -> None:
    result = command("new-run", "--work", prepared, answers="")
    assert result.exit_code == 2
    said = "Task cannot be asked for without a terminal; pass it as an option, or use --defaults\n"
    assert said in result.output


def test_where_standard_input_is_closed_nobody_answers(prepared: Path) -> None:
    asks = [sys.executable, "-m", "aggregator.cli", "new-run", "--work", str(prepared)]
    result = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *asks], capture_output=True, text=True, check=False)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False), result.stderr
    assert "Task cannot be asked for without a terminal" in result.stderr


def test_a_name_that_was_used_is_refused(prepared: Path, tmp_path: Path) -> None:
    path, store = tmp_path / "RUN.yaml", RunStore(prepared, "used-1")
    run = run_configuration(run="used-1", sites=["north"], quorum=1)
    store.begin(run, Sharing(tensors={}, start={}, personal=[]))
    try:
        path.write_bytes(dump_yaml(run.model_copy(update={"seed": 8})))
        result = command("validate", path, "--work", prepared)
        assert result.exit_code == 2
        kept = store.home / "run.yaml"
        assert result.output == (
            "run used-1 was begun with another configuration (seed, tolerance_score, task_options and 4 more), "
            f"which is in {kept}: give the new run a new name, or go on with this one as it was begun: "
            f"`dropfed-aggregator launch {kept} --work {prepared}`\n"
        )
        result = command("new-run", "--work", prepared, "--defaults", "--run", "used-1", "--output", tmp_path / "new")
        assert (result.exit_code, "used-1 was launched here already" in result.output) == (2, True)
    finally:
        store.abort("only a test")


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_is_not_there_is_told_in_a_sentence(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "RUN.yaml"
    if there:
        path.mkdir()
    result = CliRunner().invoke(main, ["validate", str(path), "--work", str(tmp_path)])
    assert (result.exit_code, result.output) == (
        2,
        f"{path}: there is no such file that can be read; correct the path\n",
    )


def test_a_run_goes_on_to_its_end_as_it_was_begun_though_it_says_less_than_runs_do_now(prepared: Path) -> None:
    """An earlier version began it: its run.yaml has no ``tolerance_score``, and answers were scored by accuracy."""
    run = run_configuration(run="old-1", sites=["north"], quorum=1)
    task, method = task_named(run.task), open_method(run.method, {})
    network = build_network(task, method, task.options(run.task_options), 2, run_seed=run.seed, is_private=False)
    store = RunStore(prepared, "old-1")
    store.begin(run, listed := sharing(task, method, network))
    save_tensors(network, listed.shared, store.aggregate_path(0))
    try:
        result = command("validate", store.home / "run.yaml", "--work", prepared)
        assert result.exit_code == 0, result.output
        assert "old-1 was launched with just these settings; `launch` goes on with it" in result.output
        assert " on the held-out set (accuracy)" in result.output
    finally:
        store.abort("only a test")
    result = command("validate", store.home / "run.yaml", "--work", prepared)
    assert "warning  old-1 has ended already; to run it again, give it a new name\n" in result.output
    assert "goes on with it" not in result.output


def test_a_run_goes_on_after_an_upgrade_that_knows_more_settings(prepared: Path, tmp_path: Path) -> None:
    path = tmp_path / "RUN.yaml"
    run = run_configuration(run="old-2", sites=["north"], quorum=1)
    task, method = task_named(run.task), open_method(run.method, {})
    network = build_network(task, method, task.options(run.task_options), 2, run_seed=run.seed, is_private=False)
    full, store = in_full(run), RunStore(prepared, "old-2")
    known = {name: value for name, value in full.task_options.items() if name != "max_grad_norm"}
    store.begin(begun := full.model_copy(update={"task_options": known}), listed := sharing(task, method, network))
    save_tensors(network, listed.shared, store.aggregate_path(0))
    try:
        path.write_bytes(dump_yaml(run))
        result = command("validate", path, "--work", prepared)
        assert result.exit_code == 0, result.output
        assert "old-2 was launched with just these settings; `launch` goes on with it" in result.output
        assert as_begun(store, run) == begun != full
        for other in ({"seed": 8}, {"task_options": {**run.task_options, "max_grad_norm": 1.0}}):
            path.write_bytes(dump_yaml(run.model_copy(update=other)))
            result = command("validate", path, "--work", prepared)
            assert (result.exit_code, "old-2 was begun with another configuration" in result.output) == (2, True)
    finally:
        store.abort("only a test")


def test_the_templates_are_in_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).resolve().parents[1]
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "configs"):
        (copy / name).symlink_to(source / name)
    monkeypatch.chdir(copy)
    wheel = tmp_path / setuptools.build_meta.build_wheel(str(tmp_path))
    inside = zipfile.ZipFile(wheel).namelist()
    assert {f"configs/run.{task}.yaml" for task in TASK_NAMES} | {"configs/presets/lo2021.yaml"} <= set(inside)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_ctrl_c_before_anything_has_begun_is_a_sentence(prepared: Path, tmp_path: Path) -> None:
    os.mkfifo(run_yaml := tmp_path / "RUN.yaml")
    command = [sys.executable, "-m", "aggregator.cli", "launch", str(run_yaml), "--work", str(prepared)]
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        launched = subprocess.Popen(command, stdout=output, stderr=output)
    with launched, run_yaml.open("wb"):  # opened once it is read from
        while launched.poll() is None:  # between opening and reading one is not seen before something is read
            if not said.stat().st_size:
                launched.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                launched.wait(timeout=5)
    assert launched.returncode == 1
    assert said.read_text() == f"\n{STOPPED}\n"
