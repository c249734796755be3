"""A method's file with a mistake is told in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.check import look_at_plugins
from shared.errors import ConfigurationError
from shared.learning import methods
from shared.learning.clashes import SCORES, clashes, clashes_of
from shared.learning.measures import OF_SHAPES
from shared.learning.methods import method_class, open_method, require_options
from shared.learning.run_checks import check_together
from tests.federation.running import run_configuration
from tests.installed_wheel import install_wheel

NAME = "newcomer"
PLAIN = "from shared.learning.methods.contract import Method\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a method of that name is looked for beside the product's own."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(f"{methods.__name__}.{NAME}", None)


def assert_told_with(file: Path, sentence: str, look: Callable[[str], object]) -> None:
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        look(NAME)
    (problem,) = raised.value.problems
    assert problem.startswith(str(file)) and "\n" not in problem


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            PLAIN + "class New(Method):\n    name = 'other'\n",
            "the class New must say name = 'newcomer', as its file is",
        ),
        (PLAIN + "class New(Method):\n    pass\n", "the class New must say name = 'newcomer'"),
        (PLAIN, "there is no method in it; derive a class from Method, with name = 'newcomer'"),
        ("class New:\n    name = 'newcomer'\n", "there is no method in it"),
        (
            "class New(:\n",
            r"the file cannot be loaded \(SyntaxError: invalid syntax \(newcomer.py, line 1\)\); correct",
        ),
        ("import nothing_like_this\n", "line 1: the file cannot be loaded .*No module named 'nothing_like_this'"),
        (PLAIN + "\nclass New(Metod):\n    pass\n", "line 3: the file cannot be loaded .*'Metod' is not defined"),
    ],
)
def test_a_mistake_is_told_with_its_file(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    assert_told_with(file, sentence, method_class)


HEAD = f"""from shared.learning.methods.contract import Method
from shared.learning.methods.terms import MethodOptions, Over
from pydantic import BaseModel
class New(%s):
    name = {NAME!r}
    class Options(%s):
        plain: float = 1.0
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (HEAD % ("Method", "BaseModel"), "Options of New must be derived from MethodOptions"),
        (HEAD % ("Over, Method", "MethodOptions"), "Options of New must be derived from Over.Options"),
        (
            HEAD % ("Method", "MethodOptions") + "        beta: float\n",
            r"\(ValidationError: .*beta.*\); give each option one",
        ),
        (
            HEAD % ("Method", "MethodOptions") + "        beta: 'Bata' = 1\n",
            r"\(PydanticUserError: .*\); give each option one",
        ),
    ],
)
def test_options_that_no_run_could_choose_are_told_with_their_file(file: Path, text: str, sentence: str) -> None:
    file.write_text(text)
    assert_told_with(file, sentence, require_options)


def test_a_check_of_an_option_that_fails_is_told_as_that(file: Path) -> None:
    text = HEAD % ("Method", "MethodOptions") + (
        "        beta: float = 0.5\n"
        "        @field_validator('beta')\n"
        "        @classmethod\n"
        "        def _check(cls, beta):\n"
        "            return beta.no_such_thing\n"
    )
    file.write_text("from pydantic import field_validator\n" + text)
    with pytest.raises(ConfigurationError, match="method_options: cannot be checked: what checks it fails on it"):
        open_method(NAME, {"beta": 1})


@pytest.mark.parametrize(
    ("group", "name"),
    [("methods", "fedavg"), ("tasks", "dr_staging"), ("encoders", "small"), ("scores", "hausdorff_95")],
)
def test_a_wheel_that_provides_what_is_here_already_is_told(
    group: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_configuration(
        task="dr_staging", task_options={"encoder": "small"}, scores={"hausdorff_95": {}}, method="fedavg"
    )
    assert clashes() == clashes_of(run) == []
    install_wheel(tmp_path, "rival", {"rival.py": ""}, f"[dropfed.{group}]\n{name} = rival:Rival\n", monkeypatch)
    said = f"plug-in dropfed-rival: provides the {group[:-1]} {name}, which dropfed has itself"
    with pytest.raises(ConfigurationError, match=said):
        check_together(run)
    assert any(said in found.text for found in look_at_plugins({}, "site.yaml") if found.grade == "problem")
    other = run_configuration(task="octa_segmentation", method="fedbn", task_options={})
    assert clashes_of(other) == []


def test_the_scores_that_need_no_wheel_are_known_without_pytorch() -> None:
    assert set(SCORES) == OF_SHAPES.keys()


def test_a_file_whose_class_has_its_name_is_a_method(file: Path) -> None:
    file.write_text(PLAIN + f"class New(Method):\n    name = {NAME!r}\n")
    assert method_class(NAME).name == NAME
