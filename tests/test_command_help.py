"""What README.md and docs/ tell people to type is there, and docs/commands.md is what --help prints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from deploy.local.commands import PAGE, PROGRAMS, commands, page, program
from shared.errors import ConfigurationError
from shared.learning.methods import method_names
from shared.learning.tasks import TASK_NAMES

ROOT = Path(__file__).parent.parent
GUIDES = ("for-it.md", "for-pis.md", "for-auditors.md")
PAGES = [ROOT / "README.md", *sorted(path for path in PAGE.parent.rglob("*.md") if path != PAGE)]
CODE = re.compile(r"`([^`]+)`|^ {4,}(.+)$", re.MULTILINE)
FENCE = re.compile(r"^ *```\w*$", re.MULTILINE)
TYPED = re.compile(rf"\b({'|'.join(PROGRAMS)})[ ]+([a-z][a-z-]*)\b(.*)")
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")

OPTIONS = {
    typed: {option for parameter in (*program(typed.split()[0]).params, *command.params) for option in parameter.opts}
    for name in PROGRAMS
    for typed, command in commands(name)
}


def told(text: str) -> Iterator[tuple[str, set[str]]]:
    """The commands in the code of a page, each with the options behind it."""
    for found in CODE.finditer(FENCE.sub("", text).replace("\\\n", " ")):
        for typed in TYPED.finditer(found[1] or found[2]):
            yield f"{typed[1]} {typed[2]}", set(OPTION.findall(typed[3]))


def test_the_page_of_commands_is_what_help_prints() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_to_be_typed_is_there(path: Path) -> None:
    for typed, options in told(path.read_text()):
        assert typed in OPTIONS, f"{path.name}: there is no {typed}"
        assert options - {"--help"} <= OPTIONS[typed], f"{path.name}: {typed} has no {options - OPTIONS[typed]}"


def test_a_command_or_an_option_that_is_not_there_is_noticed() -> None:
    text = "Type `dropfed-site joyn X`, then\n\n    .venv/bin/dropfed-audit verify FOLDER \\\n"
    text += "        --colour red --json\n\n```text\nprinted: `dropfed-site sent`\n```\n\n`dropfed-site show`\n"
    typed = [("dropfed-site joyn", set()), ("dropfed-audit verify", {"--colour", "--json"})]
    assert list(told(text)) == [*typed, ("dropfed-site sent", set()), ("dropfed-site show", set())]
    assert "dropfed-site joyn" not in OPTIONS
    assert "--colour" not in OPTIONS["dropfed-audit verify"]


def test_the_guides_tell_of_every_command() -> None:
    guides = "".join(
        (PAGE.parent / name).read_text() for name in (*GUIDES, "several-gpus.md", "studies.md", "adding-a-task.md")
    )
    assert not set(OPTIONS) - {typed for typed, _ in told(guides)}


def test_every_option_has_a_help_text() -> None:
    silent = [
        f"{typed} {parameter.name}"
        for name in PROGRAMS
        for typed, command in commands(name)
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert not silent


def test_no_command_takes_an_empty_path_for_the_present_folder() -> None:
    paths = [
        (parameter, click.Context(command))
        for name in PROGRAMS
        for _, command in commands(name)
        for parameter in command.params
        if isinstance(parameter.type, click.Path)
    ]
    assert len(paths) > 50
    for parameter, context in paths:
        with pytest.raises(ConfigurationError, match=r": is empty; name a file or a folder$"):
            parameter.type.convert("", parameter, context)


def test_where_a_command_writes_is_named_alike_everywhere() -> None:
    assert "--output" in OPTIONS["dropfed-site predict"]
    assert not [typed for typed, options in OPTIONS.items() if options & {"--out", "--to", "--into"}]


def test_a_page_says_how_the_data_of_every_task_look() -> None:
    page = (PAGE.parent / "data.md").read_text()
    assert not [task for task in TASK_NAMES if f"`{task}`" not in page]


def test_the_readme_is_one_page_that_names_every_task_and_method() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert not [name for name in (*TASK_NAMES, *method_names()) if f"`{name}`" not in text]


def test_what_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", text)
    assert len(named) > 15
    code = [path for room in ROOT.glob("*/__init__.py") for path in room.parent.rglob("*.py")]
    for file, name in named:
        assert any(path.as_posix().endswith(f"/{file}") for path in code), file
        for part in name.split(".") if name else ():
            assert re.search(rf"^ *(?:class|def) {part}\b", (ROOT / file).read_text(), re.MULTILINE), f"{file}: {name}"


def test_the_security_page_names_code_and_tests_that_are_there() -> None:
    text = (PAGE.parent / "security.md").read_text()
    named = re.findall(r"`((?:shared|aggregator|site_client|studies|deploy|tests)/[\w/.]*)(?:::(\w+))?`", text)
    assert len(named) > 50
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"
