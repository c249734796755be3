"""Write a small project for a task of your own, NAME, into the folder NAME: a plug-in with its tests.

The project reads images, draws synthetic ones, has a score of its own and a run to begin with. `make test` there passes
at once.
"""

from __future__ import annotations

import ast
import keyword
import re
import shutil
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

import click

from shared.commands import NamedPath, say
from shared.errors import ConfigurationError
from shared.exchange.names import is_name
from shared.folder.durable import write_file
from shared.learning.tasks import TASK_NAMES

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SAMPLE = "my_task"


@click.command(help=__doc__)
@click.argument("name")
@click.option("--output", type=NamedPath(file_okay=False), help="The folder (default: ./NAME).")
def command(name: str, output: Path | None) -> None:
    home = output or Path(name)
    sample = files("configs") / "new_task"
    if (problem := _problem(name, sample)) is not None:
        raise ConfigurationError(
            [f"{name}: {problem}; take another name of lower-case letters, digits and _, as in corneal_ulcers"]
        )
    if home.exists():
        raise ConfigurationError([f"{home}: is there already and stays as it is; choose another with --output"])
    try:
        for path, text in _written(sample, name):
            write_file(home / path, text.encode(), durable=False)
    except OSError:  # a full disk perhaps: a part of it would be in the way of the next try
        shutil.rmtree(home, ignore_errors=True)
        raise
    say(f"{home}: a project for the task {name}; `make test` there runs it, and docs/adding-a-task.md goes through it")


def _problem(name: str, sample: Traversable) -> str | None:
    """Return why a task cannot have a name; None if it can."""
    if name in TASK_NAMES:
        return "is a task of dropfed already"
    if not _NAME.fullmatch(name) or not is_name(name) or keyword.iskeyword(name):
        return "cannot be a Python package's name"
    if find_spec(name) is not None:
        return "is a Python module already"
    if _class_of(name) in _bound_in((sample / "src" / _SAMPLE / "__init__.py").read_text(encoding="utf-8")):
        return f"would call its class {_class_of(name)}, as something else in the project is called"
    return None


def _class_of(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _bound_in(module: str) -> set[str]:
    """Return the names that a module's text imports, and those of its classes but the task's."""
    nodes = [*ast.walk(ast.parse(module))]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    return imported | {node.name for node in nodes if isinstance(node, ast.ClassDef)} - {_class_of(_SAMPLE)}


def _written(sample: Traversable, name: str) -> list[tuple[Path, str]]:
    """Return the project's files by their paths in it, with this name in place of the sample's."""
    words = {
        _SAMPLE: name,
        _SAMPLE.replace("_", "-"): name.replace("_", "-"),
        _class_of(_SAMPLE): _class_of(name),
    }
    found = []
    for path in _files(sample, Path()):
        text, place = sample.joinpath(*path.parts).read_text(encoding="utf-8"), str(path)
        for word, own in words.items():
            text, place = text.replace(word, own), place.replace(word, own)
        found.append((Path(place), text))
    return found


def _files(folder: Traversable, below: Path) -> list[Path]:
    found = []
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found += [] if each.name == "__pycache__" else _files(each, below / each.name)
        else:
            found.append(below / each.name)
    return found
