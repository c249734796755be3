"""What a plug-in does wrong in a researcher's own process is one sentence: whose it is, where it came about, and in
which file and line.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import dropfed
from shared.errors import ActionRequiredError, PluginError
from shared.exchange import names
from shared.exchange.records.run import RunConfiguration
from shared.learning import plugins
from site_client.offer import describe
from studies.cli import main as study
from studies.daemons import run_exchange
from tests.federation.running import make_data, run_configuration
from tests.installed_wheel import install_wheel
from tests.played import RUN, Played

WHO = "plug-in dropfed-faulty 0.1.0"
MODULE = '''
from pathlib import Path

import numpy as np
import torch
import dropfed


def does():
    return Path({does!r}).read_text()


def misbehave(hook, given):
    """What a hook gives: as it should, or as it is told to do wrong."""
    if does() == f"{{hook}} raises":
        raise RuntimeError("of its own")
    return given


class Faulty(dropfed.Method):
    """The plain mean, but for what it is told to do."""

    name = "faulty"

    def groups(self, network, sharing):
        given = misbehave("groups", super().groups(network, sharing))
        return {{"a": 1}} if does() == "groups nonsense" else given

    def answer(self, local, inputs):
        logits, term = misbehave("answer", super().answer(local, inputs))
        match does():
            case "answer nonsense":
                return logits
            case "answer shape":
                return logits.mean(), None
            case "answer term":
                return logits, "a term"
        return logits, term

    def correction(self, local):
        given = misbehave("correction", super().correction(local))
        match does():
            case "correction nonsense":
                return None
            case "correction unknown":
                return {{"nowhere": torch.zeros(1)}}
            case "correction shape":
                return {{name: torch.zeros(77) for name in local.x}}
        return given

    def combine(self, part):
        given = misbehave("combine", super().combine(part))
        match does():
            case "combine nan":
                return {{"model": part.mean() * float("nan")}}
            case "combine shape":
                return {{"model": np.zeros(3)}}
            case "combine nonsense":
                return part.mean()
            case "combine moved":
                if (part.mean() != part.before()).any():
                    raise RuntimeError("of its own")
        return given


def compute(probabilities, truth):
    given = misbehave("score", 1.0)
    match does():
        case "score range":
            return 3.0
        case "score nonsense":
            return "good"
    return given


odd = dropfed.Measure(compute, dropfed.Range(lowest=0.0, highest=2.0))
'''
LINES = MODULE.split("\n")
RAISED = f"faulty.py, line {next(at for at, line in enumerate(LINES, 1) if 'raise RuntimeError' in line)}"


def line_of(hook: str) -> str:
    return f"faulty.py, line {next(at for at, line in enumerate(LINES, 1) if f'def {hook}(' in line)}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file that says what a wheel does wrong; it is installed once, and so one process stands by for all tests."""
    root = tmp_path_factory.mktemp("faulty")
    modules = {"faulty.py": MODULE.format(does=str(root / "does"))}
    entry_points = "[dropfed.methods]\nfaulty = faulty:Faulty\n[dropfed.scores]\nodd = faulty:odd\n"
    with pytest.MonkeyPatch.context() as patch:
        install_wheel(root / "installed", "faulty", modules, entry_points, patch)
        yield root / "does"
    sys.modules.pop("faulty", None)


@pytest.fixture
def does(installed: Path) -> Path:
    """That file, which says nothing yet."""
    installed.write_text("")
    return installed


def asked(**changes: object) -> RunConfiguration:
    return run_configuration(
        **{"method": "faulty", "sites": ["north"], "quorum": 1, "tolerance": None, "scores": {"odd": {}}} | changes
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_data(asked(), root, 8)
    return root


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("groups raises", f": raised RuntimeError: of its own ({RAISED})"),
        (
            "groups nonsense",
            f": groups() gave something else than Groups, with a TensorList for each group ({line_of('groups')})",
        ),
        ("answer raises", f", round 1 at north: raised RuntimeError: of its own ({RAISED})"),
        (
            "answer nonsense",
            ", round 1 at north: answer() gave something else than logits, and what is added to the loss or None "
            f"({line_of('answer')})",
        ),
        (
            "answer shape",
            f", round 1 at north: answer() gave logits of shape () for 4 images ({line_of('answer')})",
        ),
        (
            "answer term",
            ", round 1 at north: answer() gave to be added to the loss what is neither one number nor None "
            f"({line_of('answer')})",
        ),
        ("correction raises", f", round 1 at north: raised RuntimeError: of its own ({RAISED})"),
        (
            "correction nonsense",
            f", round 1 at north: correction() gave something else than tensors by name ({line_of('correction')})",
        ),
        (
            "correction unknown",
            f", round 1 at north: correction() gave nowhere, which is no shared parameter ({line_of('correction')})",
        ),
        ("correction shape", ", round 1 at north: correction() gave no tensor of shape ("),
        ("combine raises", f", weighing the answers of round 1: raised RuntimeError: of its own ({RAISED})"),
        ("combine nan", ", weighing the answers of round 1: raised OverflowError: "),
        ("combine shape", ", weighing the answers of round 1: combine() gave shape (3,) for "),
        (
            "combine nonsense",
            f", weighing the answers of round 1: combine() gave nothing by the name model ({line_of('combine')})",
        ),
        ("score raises", f", round 1 at north: raised RuntimeError: of its own ({RAISED})"),
        ("score nonsense", f", round 1 at north: compute() gave str, not a number or None ({line_of('compute')})"),
    ],
)
def test_a_simulation_ends_with_one_sentence(does: Path, data: Path, wrong: str, said: str) -> None:
    does.write_text(wrong)
    with pytest.raises(PluginError) as raised:
        dropfed.simulate(asked(), {"north": data / "north"})
    assert re.fullmatch(f"{WHO}{re.escape(said)}.*; ask who wrote it", str(raised.value))


def test_a_score_beyond_its_range_leaves_no_simulated_site(does: Path, data: Path) -> None:
    """As it leaves no site of a federation."""
    does.write_text("score range")
    said = (
        f"{WHO}, at north: what it made of round 1 stays here, for the offer says otherwise "
        "(metrics.csv: has odd 3.0, which is not in its range); ask who wrote it"
    )
    with pytest.raises(ActionRequiredError, match=re.escape(said)):
        dropfed.simulate(asked(), {"north": data / "north"})


def test_what_fails_with_a_sites_answer_alone_names_the_method(does: Path, data: Path) -> None:
    """A sound answer that moves nothing can be worked on, so it may be the site's doing, or not."""
    does.write_text("combine moved")
    found = dropfed.simulate(asked(), {"north": data / "north"})
    (reason,) = found.decisions().query("round == 1")["reason"]
    assert reason == "the answers cannot be worked on together with this one by faulty: of its own"


def test_a_kept_model_is_scored_within_the_ranges_too(does: Path, data: Path) -> None:
    model = dropfed.simulate(asked(), {"north": data / "north"}).model("north")
    images = model.task.open_images(data / "heldout", model._kept.options).samples
    for wrong, said in (
        ("score range", "came to the score odd = 3.0, which is none of its range; ask who wrote it"),
        ("score raises", f"raised RuntimeError: of its own ({RAISED}); ask who wrote it"),
    ):
        does.write_text(wrong)
        with pytest.raises(PluginError, match=re.escape(f"{WHO}: {said}")):
            model.evaluate(images)


# --- offers -------------------------------------------------------------------------------------------------------


def test_an_offer_says_of_an_allowed_method_whether_theta_leaves(does: Path, run: Played) -> None:
    """As it says it of dropfed's own; no model of such a method was asked for it."""
    wheel = plugins.described(plugins.distributions()["dropfed-faulty"])
    work = run.drop.parent / "north"
    site = yaml.safe_load((work / "site.yaml").read_text())
    site["policy"] = {**site.get("policy", {}), "plugins": {wheel.name: wheel.sha256}, "methods": ["faulty"]}
    (work / "site.yaml").write_text(yaml.safe_dump(site))
    run.offer(method="faulty", plugins=[wheel])
    told = describe(work, RUN)
    assert "what it takes:      cannot be told" not in told
    assert names.METRICS in told and names.RELIABILITY not in told


# --- studies ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("correction nonsense", f"north: {WHO}: correction() gave something else than tensors by name ("),
        ("combine raises", f"{WHO}, weighing the answers of round 1: raised RuntimeError: of its own ({RAISED})"),
    ],
)
def test_daemons_of_a_study_end_with_one_sentence(
    does: Path, data: Path, tmp_path: Path, wrong: str, said: str
) -> None:
    does.write_text(wrong)
    plugins.permit_installed()
    with pytest.raises(ActionRequiredError) as raised:
        run_exchange(asked(), {"north": data / "north"}, tmp_path / "cell")
    assert re.fullmatch(f"{re.escape(said)}.*; ask who wrote it", str(raised.value))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("score raises", f"round 1 at north: raised RuntimeError: of its own ({RAISED}); ask who wrote it"),
        ("score range", "(metrics.csv: has odd 3.0, which is not in its range); ask who wrote it"),
    ],
)
def test_a_reference_of_a_study_fails_with_one_sentence(
    does: Path, data: Path, tmp_path: Path, wrong: str, said: str
) -> None:
    does.write_text(wrong)
    settings = {"rounds": 1, "batch_size": 4, "task_options": asked().task_options, "tolerance": None}
    values = {"study": "small", "task": asked().task, "data": {"north": str(data / "north")}, "run": settings}
    values |= {"arms": {"alone": {"method": "single_site"}}, "scores": ["dice_mean", "odd"]}
    (tmp_path / "STUDY.yaml").write_text(yaml.safe_dump(values))
    result = CliRunner().invoke(study, ["run", str(tmp_path / "STUDY.yaml")])
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if WHO in line]
    assert said in line
