"""A method's file with a mistake is told in one sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.errors import ConfigurationError
from shared.learning import methods
from shared.learning.methods import method_class

NAME = "newcomer"
PLAIN = "from shared.learning.methods.contract import Method\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a method of that name is looked for beside the product's own."""
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(f"{methods.__name__}.{NAME}", None)


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
    with pytest.raises(ConfigurationError, match=sentence) as raised:
        method_class(NAME)
    (problem,) = raised.value.problems
    assert problem.startswith(str(file)) and "\n" not in problem


def test_a_file_whose_class_has_its_name_is_a_method(file: Path) -> None:
    file.write_text(PLAIN + f"class New(Method):\n    name = {NAME!r}\n")
    assert method_class(NAME).name == NAME
