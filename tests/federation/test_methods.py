"""Every method through the real daemons: what travels, what stays, and the same bytes whoever dies when."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.numpy import load_file

from shared.audit.verify import lines, verify
from shared.exchange import names
from shared.exchange.names import Kind, MessageRef, ref_at
from shared.exchange.reading import parse_yaml
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import open_signed
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from shared.learning.kept_model import open_model
from shared.learning.methods import method_class, method_names, open_method
from shared.learning.new_runs import as_of_now
from shared.learning.predictions import predict
from studies.simulation import EVERYONE, run_rounds
from tests.at_length import shown_by
from tests.audit.replaying import not_same, replayed
from tests.federation.in_turns import in_turns
from tests.federation.running import RUN, Federation, Setting, make_data, run_configuration, staging_run
from tests.federation.test_crashes import run_killed_at_every_seam

IMAGES = {"octa_segmentation": 12, "dr_staging": 24}
STAGING = {"encoder": "small", "weights": "random", "image_size": 32}
ON_STAGING = ("fedap", "fedbn", "fedee", "fedrep", "feduaa", "moon")
"""Methods that look into the network, or leave parts of it at the sites: on staging, where heads are of many sizes."""
FURTHER: dict[str, dict[str, object]] = {
    "fedee over fedap": {
        "method": "fedee",
        "method_options": {"base": "fedap", "fine_tuning_epochs": 1},
        "task_options": STAGING | {"optimizer": "adam"},
    },
}
METHODS = [name for name in method_names() if not method_class(name).reference]
FEW = ("scaffold", "feduaa", "sequential", "fedee over fedap")
CASES = shown_by(FEW, [*METHODS, *FURTHER])
POLICY = EVERYONE.model_copy(update={"consent": "auto"})
KILLED = ("scaffold", "fedee over fedap")
"""Between them, all kinds of state there are."""
WITH_STATE = ("scaffold", "feddyn", "feddc", "moon", "fedap", "fedee over fedap")
"""What does not begin anew in each round: groups that travel or stay, and what an optimizer remembers."""


def run_of(case: str) -> RunConfiguration:
    """Rounds of two sites, every setting but the method's own as small as it can be.

    The second goes on from what the first has left. Those that are killed have a third.
    """
    settings: dict[str, object] = {"method": case, "rounds": 3 if case in KILLED else 2, "tolerance": 0.0}
    if method_class(case.partition(" ")[0]).in_turn:
        settings["quorum"] = 1
    if case.partition(" ")[0] not in ON_STAGING:
        return run_configuration(**settings)
    return staging_run(
        **(
            settings
            | {"task_options": STAGING, "learning_rate": {"initial": 0.05, "period": 1}}
            | FURTHER.get(case, {})
        )
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfiguration], Path]:
    """Each task's images, made once."""
    root = tmp_path_factory.mktemp("data")

    def of(run: RunConfiguration) -> Path:
        if not (root / run.task).exists():
            make_data(run, root / run.task, IMAGES[run.task])
        return root / run.task

    return of


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, data: Callable[[RunConfiguration], Path]
) -> Callable[[str], Setting]:
    """Each case's federation after a run that nothing disturbed."""
    ended: dict[str, Setting] = {}

    def of(case: str) -> Setting:
        if case not in ended:
            run, root = run_of(case), tmp_path_factory.mktemp(re.sub(r"\W", "-", case))
            ended[case] = in_turns(root, run, data=data(run), policy=POLICY)
        return ended[case]

    return of


def offered(federation: Setting) -> Sharing:
    content = {
        (federation.folder(site) / MessageRef("offer", RUN).path / names.TENSORS).read_bytes()
        for site in federation.run.sites
    }
    assert len(content) == 1
    return parse_yaml(content.pop(), Sharing, names.TENSORS)


def listed_in(listed: Sharing, kind: Kind, name: str, *, trains: bool) -> dict[str, list[int]]:
    """What ``tensors.yaml`` says of a message's tensor file: shapes by name."""
    if names.is_state(name):
        groups = listed.groups(kind, trains=trains)
        (group,) = (group for group in groups if names.state_file(group) == name)
        tensors = groups[group]
    else:
        tensors = listed.start if name == names.START else listed.tensors
    return {tensor: told.shape for tensor, told in tensors.items()}


# --- undisturbed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_what_tensors_yaml_lists_is_what_travels(case: str, undisturbed: Callable[[str], Setting]) -> None:
    federation = undisturbed(case)
    listed, method = offered(federation), open_method(federation.run.method, federation.run.method_options)
    for site in federation.run.sites:
        folder = federation.folder(site)
        assert list(lines(verify(LocalFolder(folder)))) == []
        for path in sorted(folder.glob(f"runs/{RUN}/**/{names.MANIFEST}")):
            ref = ref_at(path.parent.relative_to(folder).as_posix())
            assert ref is not None
            trains = ref.round_no <= federation.run.rounds
            states = {names.state_file(group) for group in listed.groups(ref.kind, trains=trains)}
            expected: dict[Kind, set[str]] = {
                "offer": {names.START} if listed.start else set(),
                "round": {names.GLOBAL_MODEL},
                "update": {names.SITE_MODEL} if trains else set(),
                "final": {names.FINAL_MODEL},
            }
            body, _ = open_signed(path.read_bytes())
            assert isinstance(body, dict) and isinstance(body["files"], dict)
            signed = set(body["files"])
            assert set(filter(names.is_weights, signed)) == expected.get(ref.kind, set()) | states
            assert (names.RELIABILITY in signed) == (ref.kind == "update" and method.sends_reliability)
            for name in filter(names.is_weights, signed):
                found = {tensor: list(array.shape) for tensor, array in load_file(path.with_name(name)).items()}
                assert found == listed_in(listed, ref.kind, name, trains=trains)


@pytest.mark.parametrize("case", CASES)
def test_what_stays_at_a_site_is_kept_there_and_never_sent(case: str, undisturbed: Callable[[str], Setting]) -> None:
    federation = undisturbed(case)
    listed = offered(federation)
    for site in federation.run.sites:
        kept = sorted((federation.site(site) / "personal" / RUN).glob("*.safetensors"))
        answered = sorted(federation.folder(site).glob(f"runs/{RUN}/rounds/*/from_site/{names.SITE_MODEL}"))
        rounds = [path.parent.parent.name for path in answered]
        if case in WITH_STATE or not listed.has_whole_model:
            # Of a whole model nothing older stays than the last round that counts; else the chosen round's is needed.
            assert [path.stem for path in kept] == (rounds[-1:] if listed.has_whole_model else rounds)
        else:
            assert kept == []
        own = {tensor for path in kept for tensor in load_file(path)}
        assert own >= {*listed.start, *listed.personal}
        assert not own & {tensor for path in answered for tensor in load_file(path)}


@pytest.mark.parametrize("case", CASES)
def test_the_kept_model_predicts(case: str, undisturbed: Callable[[str], Setting], tmp_path: Path) -> None:
    federation = undisturbed(case)
    assert federation.data is not None
    kept = open_model(federation.site("south") / "final" / RUN)
    table, count, problems = predict(kept, federation.data / "south" / "images", tmp_path)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert (count, problems) == (IMAGES[federation.run.task], []) and len(rows) == count
    assert all(0 <= float(row["uncertainty"]) <= 1 for row in rows)


def results(federation: Setting) -> dict[str, str]:
    """SHA-256 of every aggregate and what goes with it, and of everything that stays at a site, by what it is."""
    rounds = federation.aggregator / "runs" / RUN / "rounds"
    found = {path.relative_to(rounds).as_posix(): hash_file(path)[1] for path in rounds.glob("**/*.safetensors")}
    for site in federation.run.sites:
        for path in (federation.site(site) / "personal" / RUN).glob("*.safetensors"):
            found[f"{site}/{path.stem}"] = hash_file(path)[1]
    return found


def kept_models(federation: Setting) -> dict[str, str]:
    """SHA-256 of the model that each site keeps, and of its card."""
    return {
        f"{site}/{name}": hash_file(federation.site(site) / "final" / RUN / name)[1]
        for site in federation.run.sites
        for name in (names.FINAL_MODEL, "card.yaml")
    }


@pytest.mark.parametrize("case", CASES)
def test_the_rounds_in_one_process_end_at_the_same_bytes(
    case: str, undisturbed: Callable[[str], Setting], tmp_path: Path
) -> None:
    """So studies on one machine are about what hospitals run."""
    federation = undisturbed(case)
    assert federation.data is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run = as_of_now(federation.run)  # as `launch` has it
        outcome = run_rounds(run, {site: federation.data / site for site in federation.run.sites}, tmp_path)
    finally:
        torch.set_num_threads(threads)
    home = tmp_path / "runs" / RUN
    found = {
        path.relative_to(home / "rounds").as_posix(): hash_file(path)[1]
        for path in home.glob("rounds/**/*.safetensors")
    }
    for path in home.glob("sites/*/*.kept.safetensors"):
        found[f"{path.parent.name}/{path.name[:4]}"] = hash_file(path)[1]
    stayed, is_whole = results(federation), offered(federation).has_whole_model
    older = {f"{site}/{number:04d}" for site in federation.run.sites for number in range(1, federation.run.rounds)}
    assert found.keys() - stayed.keys() <= (older if is_whole else set())
    assert {name: found[name] for name in stayed} == stayed
    card = yaml.safe_load((federation.site("north") / "final" / RUN / "card.yaml").read_bytes())
    assert set(outcome.chosen.values()) == {card["chosen_round"]}
    final = f"final/{names.FINAL_MODEL}"
    assert hash_file(home / final) == hash_file(federation.aggregator / "runs" / RUN / final)


@pytest.mark.parametrize("case", CASES)
def test_an_auditor_computes_the_same_from_the_folders_alone(case: str, undisturbed: Callable[[str], Setting]) -> None:
    """Scores, decisions, weights, every aggregate, what is each site's own, and what goes with the final model."""
    federation = undisturbed(case)
    assert federation.data is not None
    steps = replayed(federation.root / "folders", RUN, heldout=federation.data / "heldout")
    assert not_same(steps) == []
    what = {step.what for step in steps}
    assert {f"aggregate {number}" for number in range(1, federation.run.rounds + 1)} <= what
    assert {f"final model of {site}" for site in federation.run.sites} <= what


# --- removed --------------------------------------------------------------------------------------------------------


def test_what_travels_beside_a_model_is_removed_with_it(undisturbed: Callable[[str], Setting], tmp_path: Path) -> None:
    calm = undisturbed("scaffold")
    run = calm.run.model_copy(update={"keep": "last 1"})
    federation = in_turns(tmp_path, run, data=calm.data, policy=POLICY)
    assert federation.final_sha256() == calm.final_sha256()
    control = names.state_file("control")
    closing = {f"{MessageRef('round', RUN, run.rounds + 1).path}/{name}" for name in (names.GLOBAL_MODEL, control)}
    gone = {
        f"{ref.path}/{name}"
        for round_no in range(1, run.rounds + 1)
        for ref, model in (
            (MessageRef("round", RUN, round_no), names.GLOBAL_MODEL),
            (MessageRef("update", RUN, round_no), names.SITE_MODEL),
        )
        for name in (model, control)
    }
    for site in run.sites:
        for folder in (
            federation.folder(site),
            federation.site(site) / "mirror",
            federation.aggregator / "sites" / site / "mirror",
        ):
            left = {path.relative_to(folder).as_posix() for path in folder.glob("runs/*/rounds/**/*.safetensors")}
            assert left == closing, folder
        audit = verify(LocalFolder(federation.folder(site)))
        assert (audit.findings, set(audit.removed)) == ([], gone)
    assert {step.what for step in not_same(replayed(federation.root / "folders", RUN))} >= {
        f"aggregate {number}" for number in range(1, run.rounds + 1)
    }
    card = yaml.safe_load((federation.site("north") / "final" / RUN / "card.yaml").read_bytes())
    rounds = federation.aggregator / "runs" / RUN / "rounds"
    kept = {int(path.parent.name) for path in rounds.glob("*/state-*.safetensors")}
    assert kept == {0, card["chosen_round"], run.rounds}


# --- killed ---------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", shown_by(["fedee over fedap"], KILLED))
def test_killed_anywhere_it_ends_at_the_same_bytes(
    case: str, undisturbed: Callable[[str], Setting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregator and a site die at moments drawn by the method's name, in rounds that go on from earlier ones."""
    calm = undisturbed(case)
    monkeypatch.setenv("DIES_AT", r"rounds/000[23]/.*(state-|own/|model|aggregate|closed|manifest)|personal/")
    monkeypatch.setenv("DIES_SHARE", "0.25")
    monkeypatch.setenv("DIES_SEED", f"killed {case}")
    with Federation(tmp_path, calm.run, data=calm.data) as federation:
        for site in calm.run.sites:
            federation.change(federation.site(site) / "site.yaml", policy=POLICY.model_dump())
        died_at = run_killed_at_every_seam(federation, ["aggregator", "south"])
        assert results(federation) == results(calm)
        assert kept_models(federation) == kept_models(calm)
        for site in calm.run.sites:
            assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
    assert all(len(seams.splitlines()) > 1 for seams in died_at.values()), died_at
    assert re.search("state-|personal/", died_at["south"]), died_at
