"""A RUN.yaml to begin with: the template of its task in ``configs/``, comments and all, with a PI's answers in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from aggregator.configuration import FILE, AggregatorConfiguration
from aggregator.preparation import run_problems
from aggregator.store import runs_in
from shared.errors import ConfigurationError
from shared.exchange.reading import dump_values, parse_yaml
from shared.exchange.records import RunConfiguration
from shared.learning.methods import open_method
from shared.learning.tasks import TASK_NAMES

_LINE = re.compile(r"(?P<key> *\w+): +(?P<value>[^#]*?)(?P<comment> +#.*)?")
_QUORUM = 2  # answers to begin with, where there are so many sites


@dataclass(frozen=True)
class Answers:
    """What a PI says of a new run."""

    run: str
    task: str
    method: str
    sites: Sequence[str]
    rounds: int


def tasks_with_images(work: Path, configuration: AggregatorConfiguration) -> list[str]:
    """The tasks that this aggregator can have a run of: it has held-out images for them.

    Raises:
        ConfigurationError: there is none.
    """
    found = [task for task in TASK_NAMES if task in configuration.heldout]
    if not found:
        problem = f"{work / FILE}: heldout: names no folder of labelled images yet; add `heldout: {{TASK: DIR}}`"
        raise ConfigurationError([f"{problem} with {' or '.join(TASK_NAMES)}"])
    return found


def template(task: str) -> str:
    """The template of a task's runs.

    Raises:
        ConfigurationError: there is no such task.
    """
    if task not in TASK_NAMES:
        raise ConfigurationError([f"task: there is no '{task}'; the tasks are: {', '.join(TASK_NAMES)}."])
    return (files("configs") / f"run.{task}.yaml").read_text(encoding="utf-8")


def suggested(work: Path, configuration: AggregatorConfiguration, task: str) -> Answers:
    """What the template of a task says, over all sites, by a name that was not used here yet."""
    run = parse_yaml(template(task).encode(), RunConfiguration, f"configs/run.{task}.yaml")
    stem = run.run.partition("-")[0]
    used = {store.run for store in runs_in(work)} | {path.stem for path in work.glob("*.yaml")}
    numbers = (f"{stem}-{datetime.now(UTC).year}-{number:02d}" for number in range(1, len(used) + 2))
    name = next(name for name in numbers if name not in used)
    return Answers(name, task, run.method, sorted(configuration.sites), run.rounds)


def answered(work: Path, configuration: AggregatorConfiguration, answers: Answers, name: str, answer: Any) -> Answers:
    """Answers, one of them in place of what was suggested.

    Raises:
        ConfigurationError: as ``run_of``.
    """
    changed = replace(answers, **{name: answer})
    run_of(work, configuration, changed)
    return changed


def run_of(work: Path, configuration: AggregatorConfiguration, answers: Answers) -> bytes:
    """The RUN.yaml that these answers make.

    Raises:
        ConfigurationError: the name was used, or every problem of the answers.
    """
    content = filled_in(answers).encode()
    run = parse_yaml(content, RunConfiguration, "new run")
    problems = run_problems(run, configuration, work, "new run")
    if answers.run in {store.run for store in runs_in(work)}:
        problems.append(f"new run: run: {answers.run} was launched here already; give the new run a new name")
    if problems:
        raise ConfigurationError(problems)
    return content


def demand_free(output: Path) -> Path:
    """Demand that a new file can be written there.

    Raises:
        ConfigurationError: something is there already.
    """
    if output.exists():
        raise ConfigurationError([f"{output}: is there already and stays as it is; choose another name with --output"])
    return output


def filled_in(answers: Answers) -> str:
    """The template of the task with these answers and what follows from them, each comment in its place.

    Raises:
        ConfigurationError: there is no such task or method.
    """
    text = template(answers.task)
    method = open_method(answers.method, {})
    values = {
        "run": answers.run,
        "method": answers.method,
        "sites": list(answers.sites),
        "rounds": answers.rounds,
        "quorum": 1 if method.in_turn else max(1, min(_QUORUM, len(answers.sites))),
    }
    before, after, options = _parted(text.splitlines(), "method_options")
    lines = [line if line.startswith(" ") else _with_value(line, values) for line in before]
    lines += ["method_options:", *_options(options, method.options.model_dump(mode="json"), answers.method)]
    return "\n".join([*lines, *after]) + "\n"


def _parted(lines: Sequence[str], block: str) -> tuple[list[str], list[str], list[str]]:
    """What stands before a block of settings, after it, and in it."""
    start = lines.index(f"{block}:")
    end = next((number for number in range(start + 1, len(lines)) if not lines[number].startswith(" ")), len(lines))
    return list(lines[:start]), list(lines[end:]), list(lines[start + 1 : end])


def _options(lines: Iterable[str], wanted: Mapping[str, Any], method: str) -> list[str]:
    """A block of options: the template's line for each that has one, and a line like those for the others."""
    written = {line.partition(":")[0].strip(): _with_value(line, wanted) for line in lines}
    return [
        written.get(
            name, f"{f'  {name}: {_yaml(value)}':28} # of {method}; shared/learning/methods/{method}.py says what it is"
        )
        for name, value in wanted.items()
    ]


def _with_value(line: str, values: Mapping[str, Any]) -> str:
    """A line of settings with another value, where there is one for its key and it differs; its comment stays put."""
    found = _LINE.fullmatch(line)
    if found is None or (key := found["key"].strip()) not in values:
        return line
    text = _yaml(values[key])
    if text == found["value"]:
        return line
    comment = (found["comment"] or "").strip()
    column = len(line) - len(comment)
    said = f"{found['key']}: {text}"
    return f"{said:{column - 1}} {comment}".rstrip()


def _yaml(value: Any) -> str:
    """A value as it stands on one line of YAML."""
    return dump_values({"x": value}).decode().removeprefix("x: ").strip()
