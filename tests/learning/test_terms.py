"""What a run may say about a method or a task is the same to who computes and to who only verifies."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shared
from shared.errors import ConfigurationError
from shared.learning.methods import REFERENCES, method_class, method_names, open_method, open_terms
from shared.learning.methods.fedavg import FedAvg
from shared.learning.methods.terms import TERMS
from shared.learning.requirements import requirements
from shared.learning.tasks import SELECTION_SCORES, TASK_NAMES, task_named, terms_of
from shared.learning.tasks import TERMS as TERMS_OF_TASKS
from shared.learning.tasks.terms import EXTERNAL
from tests.federation.running import run_configuration

METHODS = (*method_names(), *REFERENCES)
OVER = ("deep_ensembles", "fedee", "mc_dropout")


def test_every_method_and_every_task_has_its_terms() -> None:
    assert set(TERMS) == set(METHODS)
    assert set(TERMS_OF_TASKS) == set(SELECTION_SCORES) == {*TASK_NAMES, EXTERNAL}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_derives_from_its_terms(name: str) -> None:
    assert issubclass(method_class(name), TERMS[name])
    for chosen in ({"base": base} for base in ("fedavg", "fedprox", "fedbn", "fedap")) if name in OVER else ({},):
        method, terms = open_method(name, chosen), open_terms(name, chosen)
        assert method.options.model_dump() == terms.options.model_dump()
        assert (method.sends_reliability, method.in_turn) == (terms.sends_reliability, terms.in_turn)
        assert method.epochs(3) == terms.epochs(3)


@pytest.mark.parametrize("name", [*TASK_NAMES, EXTERNAL])
def test_a_task_derives_from_its_terms(name: str) -> None:
    task, terms = task_named(name), terms_of(name)
    assert isinstance(task, TERMS_OF_TASKS[name]) and type(terms) is TERMS_OF_TASKS[name]
    assert (task.name, task.selection_score) == (name, SELECTION_SCORES[name])


NEW_TASK = {
    "__init__.py": "",
    "terms.py": """
from shared.learning.tasks.image_classification.terms import ImageOptions
from shared.learning.tasks.terms import Terms

class NewOptions(ImageOptions):
    image_size: int = 32

class New(Terms[NewOptions]):
    name = "new"
    form = NewOptions
""",
    "task.py": """
from shared.learning.tasks.image_classification.task import OfLabels
from shared.learning.tasks.new import terms

class New(terms.New, OfLabels[terms.NewOptions]):
    pass
""",
}


def test_a_new_folder_is_a_new_task_and_its_terms_need_no_pytorch(tmp_path: Path) -> None:
    installed = Path(shared.__file__).parent
    shutil.copytree(installed, tmp_path / "shared", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in NEW_TASK.items():
        path = tmp_path / "shared" / "learning" / "tasks" / "new" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    asked = """
import sys
from shared.learning.tasks import SELECTION_SCORES, task_named, task_names, terms_of
assert "new" in task_names() and SELECTION_SCORES["new"] == "auroc"
assert terms_of("new").options({}).image_size == 32
assert "torch" not in sys.modules
assert task_named("new").options({"labels": ["a", "b", "c"]}).class_names == ("a", "b", "c")
"""
    python = [sys.executable, "-c", asked]
    said = subprocess.run(python, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, check=False)
    assert said.returncode == 0, said.stderr.decode()


def test_a_method_counts_as_many_epochs_as_it_has_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requirements(run_configuration(method="fedrep", epochs=2, method_options={"head_epochs": 3})).epochs == 5
    monkeypatch.setattr(FedAvg, "epochs", lambda _, of_run: of_run + 1, raising=False)
    with pytest.raises(ConfigurationError, match="fedavg has 2 phases and 3 epochs; correct its file"):
        requirements(run_configuration(method="fedavg", epochs=2))
