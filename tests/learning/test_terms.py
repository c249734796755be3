"""What a run may say about a method or a task is the same to who computes and to who only verifies."""

from __future__ import annotations

import pytest

from shared.errors import ConfigurationError
from shared.learning.methods import REFERENCES, method_class, method_names, open_method, open_terms
from shared.learning.methods.fedavg import FedAvg
from shared.learning.methods.terms import TERMS
from shared.learning.requirements import requirements
from shared.learning.tasks import SELECTION_SCORES, TASK_NAMES, task_named, terms_of
from shared.learning.tasks import TERMS as TERMS_OF_TASKS
from tests.federation.running import run_configuration

METHODS = (*method_names(), *REFERENCES)
OVER = ("deep_ensembles", "fedee", "mc_dropout")


def test_every_method_and_every_task_has_its_terms() -> None:
    assert set(TERMS) == set(METHODS)
    assert set(TERMS_OF_TASKS) == set(SELECTION_SCORES) == set(TASK_NAMES)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_derives_from_its_terms(name: str) -> None:
    assert issubclass(method_class(name), TERMS[name])
    for chosen in ({"base": base} for base in ("fedavg", "fedprox", "fedbn", "fedap")) if name in OVER else ({},):
        method, terms = open_method(name, chosen), open_terms(name, chosen)
        assert method.options.model_dump() == terms.options.model_dump()
        assert (method.sends_reliability, method.in_turn) == (terms.sends_reliability, terms.in_turn)
        assert method.epochs(3) == terms.epochs(3)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_task_derives_from_its_terms(name: str) -> None:
    task, terms = task_named(name), terms_of(name)
    assert isinstance(task, TERMS_OF_TASKS[name]) and type(terms) is TERMS_OF_TASKS[name]
    assert (task.name, task.selection_score) == (name, SELECTION_SCORES[name])


def test_a_method_counts_as_many_epochs_as_it_has_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert requirements(run_configuration(method="fedrep", epochs=2, method_options={"head_epochs": 3})).epochs == 5
    monkeypatch.setattr(FedAvg, "epochs", lambda _, of_run: of_run + 1, raising=False)
    with pytest.raises(ConfigurationError, match="fedavg has 2 phases and 3 epochs; correct its file"):
        requirements(run_configuration(method="fedavg", epochs=2))
