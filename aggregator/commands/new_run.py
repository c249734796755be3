"""Write the settings of a new run, with a comment on each; asks for whatever no option gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.types import FuncParamType

from aggregator.commands import WORK
from aggregator.configuration import read_configuration
from aggregator.new_run import (
    Earlier,
    Said,
    drafted,
    methods_offered,
    require_free,
    tasks_with_images,
    with_answer,
)
from shared.commands import NamedPath, asked, say
from shared.errors import ConfigurationError
from shared.escaping import quoted
from shared.folder.durable import write_file
from shared.learning.methods import method_names

AnswerT = TypeVar("AnswerT")
UNASKED = "pass it as an option, or use --defaults"


def _names(text: str) -> list[str]:
    """Return names that have commas or spaces between them."""
    return text.replace(",", " ").split()


def _method(text: str) -> str:
    """Return a method's name; the methods are listed above the question, and not in it, as a ``Choice`` has them."""
    return click.Choice(method_names()).convert(text, None, None)


@click.command(help=__doc__)
@WORK
@click.option("--run", help="The run's name, used once.")
@click.option("--task", help="What is learnt.")
@click.option("--method", help="How the sites learn it together; docs/methods.md lists the methods.")
@click.option(
    "--preset",
    metavar="NAME",
    help="Settings as a paper published them (lo2021, feduaa, dataweightedfed, fedee), or for structures of the fundus "
    "(fundus_vessels, fundus_lesions, disc_and_cup).",
)
@click.option("--start", metavar="RUN", help="Begin with the model of an earlier run, or of an export in WORK/weights.")
@click.option("--rounds", type=int, help="Rounds of training.")
@click.option("--site", "sites", multiple=True, metavar="NAME", help="A site that is asked; once per site.")
@click.option("--output", type=NamedPath(dir_okay=False), help="File to write; it must not exist yet.")
@click.option("--defaults", is_flag=True, help="Ask nothing: take the suggested values where no option says otherwise.")
def command(
    *,
    work: Path,
    run: str | None,
    task: str | None,
    method: str | None,
    preset: str | None,
    start: str | None,
    rounds: int | None,
    sites: tuple[str, ...],
    output: Path | None,
    defaults: bool,
) -> None:
    configuration = read_configuration(work)
    earlier = Earlier.named(work, start) if start else None
    if earlier is not None:
        task = task or earlier.run.task
    if task is None:
        tasks = tasks_with_images(work, configuration)
        task = tasks[0] if defaults else _asked("Task", tasks[0], click.Choice(tasks), str)
    said = Said(task, preset, earlier, run, method, sites or None, rounds)
    draft = drafted(work, configuration, said)  # before anything is asked that cannot make it right
    if output is not None:
        require_free(output)
    answers = draft.answers
    questions: dict[str, tuple[str, Any, click.ParamType[Any]]] = {
        "run": ("Name of the run", answers.run, click.STRING),
        "method": ("Method", answers.method, FuncParamType(_method)),
        "sites": ("Sites", ", ".join(answers.sites), FuncParamType(_names)),
        "rounds": ("Rounds of training", answers.rounds, click.INT),
    }
    for name, question in questions.items():
        if name not in said.answers and not defaults:
            if name == "method":
                _list_methods(methods_offered(answers.method))
            said, draft = _asked(*question, partial(with_answer, work, configuration, said, name))
    if output is None:
        usual = work / f"{draft.answers.run}.yaml"
        output = require_free(usual) if defaults else _asked("File", usual, NamedPath(), require_free)
    write_file(output, draft.text.encode())
    say(f"wrote {output}")
    validate = f"`dropfed-aggregator validate {quoted(output)} --work {quoted(work)}`"
    say(f"next: read it, change what you like, then {validate}")


def _list_methods(offered: Mapping[str, str]) -> None:
    """Print the methods to choose from, a line each."""
    width = max(map(len, offered))
    say(
        "Methods: the first is suggested, `validate` says if this task does not support one, docs/methods.md says more:"
    )
    for name, summary in offered.items():
        say(f"  {name:{width}}  {summary}")


def _asked(what: str, usual: object, kind: click.ParamType[Any], take: Callable[[Any], AnswerT]) -> AnswerT:
    """Ask a person, again as long as ``take`` raises ConfigurationError; return what ``take`` makes of the answer."""

    def taken(text: str) -> AnswerT:
        try:
            return take(kind.convert(text, None, None))
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from None

    answer: AnswerT = asked(lambda: click.prompt(what, default=usual, type=kind, value_proc=taken), what, UNASKED)
    return answer
