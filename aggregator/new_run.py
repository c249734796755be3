"""A RUN.yaml to begin with: the template of its task in ``configs/``, comments and all, with a PI's answers in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from aggregator.configuration import FILE, PUBLISHED_WEIGHTS, AggregatorConfiguration, bounds_of
from aggregator.preparation import run_problems
from aggregator.store import runs_in
from aggregator.warm_start import earlier_run, start_of
from shared.check import said_in_place
from shared.doors import Refusal, yaml_text
from shared.errors import ConfigurationError, PluginError
from shared.exchange.reading import KEPT_BYTES, check_record, dump_values, parse_yaml
from shared.exchange.records.run import RunConfiguration, Start
from shared.learning import apart, plugins
from shared.learning.apart import Progress, Question
from shared.learning.methods import file_of, method_names, open_method, usual_options
from shared.learning.methods.contract import Method
from shared.learning.methods.terms import MethodOptions
from shared.learning.new_runs import as_of_now
from shared.learning.run_checks import may_be_paired
from shared.learning.tasks import TASK_NAMES, task_named
from shared.learning.tasks.terms import EXTERNAL, Options

_LINE = re.compile(r"(?P<key> *\w+):(?: +[^#]*?)?(?P<comment> +#.*)?")
_BLOCK = re.compile(r" *\w+:(?: +#.*)?")  # whose values stand below
_SGD_FOR_ADAM = 30  # times Adam's learning rate is about what SGD takes
_ANY_IMAGES = "image_classification"
_QUORUM = 2  # answers to begin with, where there are so many sites


@dataclass(frozen=True)
class Earlier:
    """A run here whose chosen model a new one begins with, or what was exported of one, and its settings."""

    name: str
    run: RunConfiguration

    @classmethod
    def named(cls, work: Path, said: str) -> Earlier:
        """Return what a PI says: a run's name, or the folder of an export.

        Raises:
            ConfigurationError: there is no such model here.
        """
        folder, place = Path(said), work / PUBLISHED_WEIGHTS
        if folder.name != said and folder.absolute().parent != place.absolute():
            raise ConfigurationError([f"start: {said}: put that folder into {place}, and name it by its place there"])
        return cls(folder.name, earlier_run(work, folder.name))

    def network_of(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new run's options of the task: the network is the earlier run's, how it is trained is chosen anew.

        Args:
            chosen: what is suggested for a run without a beginning.
        """
        return self.run.task_options | {name: chosen[name] for name in Options.model_fields if name in chosen}


@dataclass(frozen=True)
class Answers:
    """What a PI says of a new run."""

    run: str
    task: str
    method: str
    sites: Sequence[str]
    rounds: int
    preset: str | None = None
    start: Earlier | None = None


@dataclass(frozen=True)
class Said:
    """What a PI has said of a new run so far; what they have not is suggested."""

    task: str
    preset: str | None = None
    start: Earlier | None = None
    run: str | None = None
    method: str | None = None
    sites: Sequence[str] | None = None
    rounds: int | None = None

    @property
    def answers(self) -> dict[str, Any]:
        """What they were asked and have answered, by name."""
        asked = {"run": self.run, "method": self.method, "sites": self.sites, "rounds": self.rounds}
        return {name: answer for name, answer in asked.items() if answer is not None}


@dataclass(frozen=True)
class Draft:
    """A RUN.yaml, and what it answers."""

    answers: Answers
    text: str


def tasks_with_images(work: Path, configuration: AggregatorConfiguration) -> list[str]:
    """Return the tasks that this aggregator can have a run of: it has held-out images for them.

    Raises:
        ConfigurationError: there is none.
    """
    found = [task for task in (*TASK_NAMES, *plugins.provided("tasks")) if task in configuration.heldout]
    if not found:
        problem = f"{work / FILE}: heldout: names no folder of labelled images yet; {said_in_place('heldout', 'TASK')}"
        raise ConfigurationError([f"{problem} with {' or '.join(TASK_NAMES)}"])
    return found


def template(task: str) -> str:
    """Return the template of a task's runs.

    Raises:
        ConfigurationError: there is no such task, or its plug-in's template is no run or has lines of another form.
    """
    if task == EXTERNAL:
        return (files("configs") / "external_trainer" / "RUN.yaml").read_text(encoding="utf-8")
    if task in TASK_NAMES:
        return (files("configs") / f"run.{task}.yaml").read_text(encoding="utf-8")
    text = plugins.template_of(task)
    if text is None:
        return _general(task)
    file = f"plug-in {plugins.wheel_behind('tasks', task)}: run.{task}.yaml"
    parse_yaml(text.encode(), RunConfiguration, file)
    form = "`KEY: VALUE` on one line, or a block indented by two spaces"
    if unclear := [*_unclear(text.splitlines(), yaml_text.parse(text.encode(), KEPT_BYTES))]:
        problem = f"`new-run` cannot change this value; ask its author for {form}"
        raise ConfigurationError([f"{file}: {key}: {problem}" for key in unclear])
    return text


def _unclear(lines: Sequence[str], said: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the keys of settings whose lines cannot be told from those of the others, as ``_settled`` does.

    Args:
        said: what they say.
        indent: of the lines.
    """
    entries = dict(_entries(lines, indent))
    for key, value in said.items():
        entry = entries.get(key, [])
        try:
            is_whole = yaml_text.parse("\n".join(entry).encode(), KEPT_BYTES) == {key: value}
        except Refusal:
            is_whole = False
        if not is_whole:
            yield key
        elif _is_block(entry[0], value):
            yield from (f"{key}.{each}" for each in _unclear(entry[1:], value, f"{indent}  "))


def _general(task: str) -> str:
    """Return a template for a task of a plug-in that brings none: that of any images, with what the task itself takes.

    Raises:
        ConfigurationError: there is no such task.
    """
    found, text = task_named(task), template(_ANY_IMAGES)
    said = yaml_text.parse(text.encode(), KEPT_BYTES)
    run = check_record(said | {"task": task, "task_options": {}, "augmentation": {}}, RunConfiguration, "new run")
    usual = as_of_now(run)
    options = found.options(usual.task_options).model_dump(mode="json")
    wanted = said | {
        "run": f"{task.replace('_', '-')}-2026-01",
        "task": task,
        "tolerance_score": found.tolerance_scores[0],
        "task_options": options,
        "augmentation": found.augmentation(usual.augmentation).model_dump(mode="json"),
    }
    if options.get("optimizer") == "sgd":
        wanted["learning_rate"] = _for_sgd(said["learning_rate"])
    first, *lines = text.splitlines()
    score = next(number for number, line in enumerate(lines) if line.startswith("tolerance_score:"))
    lines[score] = lines[score].partition(" #")[0]  # what is said there is of another score
    told = f"# A run of {task}, with what its plug-in takes where nobody says otherwise. Change what you like, then"
    return "\n".join([told if first else first, *_settled(lines, said, wanted, "")]) + "\n"


def preset_names(task: str) -> list[str]:
    """Return the papers whose settings for a task are kept."""
    return [name for name, tasks in _presets().items() if task in tasks]


def preset_of(task: str, name: str) -> dict[str, Any]:
    """Return what a paper's settings of a task are, where its template may say something else.

    Raises:
        ConfigurationError: there is none by this name.
    """
    if task not in (tasks := _presets().get(name, {})):
        known = " or ".join(preset_names(task))
        raise ConfigurationError([f"preset: there is no '{name}' for {task}; take {known}, or leave it out"])
    return dict(tasks[task])


def _presets() -> dict[str, Any]:
    """Return the presets by name and by task."""
    folder = files("configs") / "presets"
    return {
        path.name.removesuffix(".yaml"): yaml_text.parse(path.read_bytes(), KEPT_BYTES)
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
    }


def drafted(work: Path, configuration: AggregatorConfiguration, said: Said) -> Draft:
    """Return the RUN.yaml that a PI's answers make; a child process does, where the task or the method is a plug-in's.

    Raises:
        ConfigurationError: the name was used, every problem of the answers, or the plug-in is not allowed here.
        PluginError: it does what it must not.
    """
    needed = plugins.plugins_of([("tasks", said.task), ("methods", said.method or "")])
    draft = apart.answered(Write(work=work, configuration=configuration, said=said), bounds_of(configuration), needed)
    run = parse_yaml(draft.text.encode(), RunConfiguration, "new run").model_dump()
    if any(run[name] != ([*answer] if name == "sites" else answer) for name, answer in said.answers.items()):
        raise PluginError(f"{apart.names_of(needed)}: wrote another run than it was asked for; ask who wrote it")
    return draft


class Write(Question[Draft]):
    """What is the RUN.yaml of a PI's answers?"""

    work: Path
    configuration: AggregatorConfiguration
    said: Said

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"writing a run of {self.said.task}"

    def answer(self, on_progress: Progress) -> Draft:
        """See ``Question``."""
        work, answers = self.work, replace(self._suggested(), start=self.said.start, **self.said.answers)
        text = filled_in(answers)
        run = parse_yaml(text.encode(), RunConfiguration, "new run")
        if answers.start is not None:  # its hash is taken once nothing else is wrong
            run = run.model_copy(update={"start": Start(name=answers.start.name, sha256="0" * 64)})
        problems = run_problems(run, self.configuration, work, "new run")
        if answers.start is not None and not problems:
            start = start_of(work, run, answers.start.name)
            text = filled_in(answers, start.model_dump(exclude_none=True))
        if answers.run in {store.run for store in runs_in(work)}:
            problems.append(f"new run: run: {answers.run} was launched here already; give the new run a new name")
        if problems:
            raise ConfigurationError(problems)
        return Draft(answers, text)

    def _suggested(self) -> Answers:
        """Return what the task's template says, or a preset, over all sites, by a name that was not used here yet."""
        task, preset = self.said.task, self.said.preset
        usual = settings(task, preset)
        stem = usual["run"].partition("-")[0]
        used = {store.run for store in runs_in(self.work)} | {path.stem for path in self.work.glob("*.yaml")}
        numbers = (f"{stem}-{datetime.now(UTC).year}-{number:02d}" for number in range(1, len(used) + 2))
        name = next(name for name in numbers if name not in used)
        return Answers(name, task, usual["method"], sorted(self.configuration.sites), usual["rounds"], preset)


def with_answer(
    work: Path, configuration: AggregatorConfiguration, said: Said, name: str, answer: Any
) -> tuple[Said, Draft]:
    """Return what a PI has said once they have answered one question more, and what comes of it.

    Raises:
        DropfedError: as for ``drafted``.
    """
    more = replace(said, **{name: answer})
    return more, drafted(work, configuration, more)


def methods_offered(suggested: str) -> dict[str, str]:
    """Return the methods, each with a line about it: the suggested one first."""
    return {name: _summary(name) for name in sorted(method_names(), key=lambda name: (name != suggested, name))}


def _summary(method: str) -> str:
    """Return the first sentence of a method's file, which names what it is and whose."""
    told = ast.get_docstring(ast.parse(file_of(method).read_bytes())) or ""
    return re.split(r"\.(?=\s+[A-Z]|$)", " ".join(told.partition("\n\n")[0].split()))[0]


def require_free(output: Path) -> Path:
    """Check that a new file can be written at this path; return the path.

    Raises:
        ConfigurationError: something is there already.
    """
    if output.exists():
        raise ConfigurationError([f"{output}: is there already and stays as it is; choose another name with --output"])
    return output


def filled_in(answers: Answers, start: Mapping[str, str] | None = None) -> str:
    """Return the template of the task with these answers and what follows from them, each comment in its place.

    Args:
        start: what the run says of the model that it begins with.

    Raises:
        ConfigurationError: there is no such task, preset or method.
    """
    earlier, text = answers.start, template(answers.task)
    if earlier is not None and earlier.run.task != answers.task:
        raise ConfigurationError(
            [f"start: {earlier.name} is a model of {earlier.run.task}; take that task, or another start"]
        )
    said = yaml_text.parse(text.encode(), KEPT_BYTES)
    chosen = settings(answers.task, answers.preset)
    if earlier is not None:
        chosen["task_options"] = earlier.network_of(chosen["task_options"])
    method = open_method(answers.method, {})
    is_known = answers.task != EXTERNAL  # a program is told no options of the method
    options = usual_options(answers.method) | _own_choices(chosen) if is_known else {}
    wanted = chosen | {
        "run": answers.run,
        "method": answers.method,
        "method_options": options,
        "sites": list(answers.sites),
        "rounds": answers.rounds,
        "quorum": 1 if method.in_turn else max(1, min(_QUORUM, len(answers.sites))),
        "learning_rate": _over_rounds(chosen.get("learning_rate", {}), answers.rounds),
        "start": start or (None if is_known else chosen["start"]),
        **({} if earlier is None else _as_in(earlier.run, answers, method)),
    }
    if method.needs_sgd and chosen["task_options"].get("optimizer", "sgd") != "sgd":
        wanted["task_options"] = chosen["task_options"] | {"optimizer": "sgd"}
        wanted["learning_rate"] = _for_sgd(wanted["learning_rate"])
    file = f"; shared/learning/methods/{answers.method}.py says what it is" if answers.method in method_names() else ""
    reason = f"# of {answers.method}{file}"
    wanted = {key: value for key, value in wanted.items() if key in said or value}
    return "\n".join(_settled(text.splitlines(), said, wanted, reason)) + "\n"


def _as_in(earlier: RunConfiguration, answers: Answers, method: Method) -> dict[str, Any]:
    """Return what a run that begins with an earlier one's model takes from it: which images are tested on, so that the
    model was not trained on them, and whether sites compare the two.
    """
    paired = answers.rounds > 0 and may_be_paired(task_named(answers.task), method)
    return {"seed": earlier.seed, "split": earlier.split, "paired": paired}


def settings(task: str, preset: str | None) -> dict[str, Any]:
    """Return what the template of a task says, or a preset in its place.

    Raises:
        ConfigurationError: there is no such task, or no such preset of it.
    """
    said = yaml_text.parse(template(task).encode(), KEPT_BYTES)
    published = preset_of(task, preset) if preset else {}
    blocks = {
        key: said[key] | published[key]
        for key in ("task_options", "method_options", "augmentation")
        if key in published
    }
    return {"task_options": {}, "method_options": {}, **said, **published, **blocks}


def _over_rounds(rate: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return a learning rate; one along a cosine falls once, in all rounds of the run."""
    return {**rate, "period": max(rounds, 1)} if rate.get("shape") == "cosine" else dict(rate)


def _for_sgd(rate: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a learning rate of Adam, whose steps are as long as it says, for SGD, whose gradients are small."""
    longer = {name: float(f"{_SGD_FOR_ADAM * rate[name]:.2g}") for name in ("initial", "final") if name in rate}
    return {**rate, **longer}


def _own_choices(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what settings say about all methods, apart from what theirs takes by default: any method takes it."""
    usual = usual_options(said["method"])
    options = said["method_options"].items()
    return {name: value for name, value in options if name in MethodOptions.model_fields and value != usual[name]}


def _settled(
    lines: Sequence[str], said: Mapping[str, Any], wanted: Mapping[str, Any], reason: str, indent: str = ""
) -> list[str]:
    """Return the lines of settings with other values, each comment in its place.

    Args:
        said: what they say.
        wanted: what they are to say: what else is said goes.
        reason: the comment on an option of the method that is not in the template.
        indent: of the lines.
    """
    made = []
    for key, entry in _entries(lines, indent):
        if not key or (key in wanted and wanted[key] == said[key]):
            made += entry
        elif key in wanted and wanted[key] and isinstance(wanted[key], Mapping) and _is_block(entry[0], said[key]):
            of_block = reason if key == "method_options" else ""
            made += [entry[0], *_settled(entry[1:], said[key], wanted[key], of_block, f"{indent}  ")]
        elif key in wanted and isinstance(wanted[key], Mapping):  # in the place of a word, or of a block on one line
            made += _block(key, wanted[key], indent)
        elif key in wanted:
            explained = [] if isinstance(said[key], Mapping) else entry[1:]
            comments = [line for line in explained if line.lstrip().startswith("#")]
            made += [_with_value(entry[0], wanted[key]), *comments]
    # Before the blank line of a block, of which perhaps no line stays.
    end = next((number for number in range(len(made), 0, -1) if made[number - 1]), 0)
    note = reason if indent else ""
    for key in reversed([key for key in wanted if key not in said]):
        value = wanted[key]
        line = f"{f'{indent}{key}: {_yaml(value)}':28} {note}".rstrip()
        made[end:end] = _block(key, value, indent) if isinstance(value, Mapping) else [line]
    return made


def _is_block(line: str, value: Any) -> bool:
    """Return whether a value stands in lines of their own below that of its key."""
    return isinstance(value, Mapping) and _BLOCK.fullmatch(line) is not None


def _block(key: str, values: Mapping[str, Any], indent: str) -> list[str]:
    return [f"{indent}{line}" for line in dump_values({key: values}).decode().splitlines()]


def _entries(lines: Iterable[str], indent: str) -> list[tuple[str, list[str]]]:
    """Return each key with its lines: its own, and those that continue its value or its comment.

    Blank lines and comments that are no further in, and what follows them, have no key.
    """
    entries: list[tuple[str, list[str]]] = [("", [])]
    for line in lines:
        found = re.match(rf"{indent}(\w+):", line)
        if found or not line or line.startswith(f"{indent}#"):
            entries.append((found[1] if found else "", []))
        entries[-1][1].append(line)
    return entries


def _with_value(line: str, value: Any) -> str:
    """Return a line of settings with another value; its comment stays put."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise AssertionError(f"no `key: value` on one line: {line}")
    comment = (found["comment"] or "").strip()
    column = len(line) - len(comment)
    said = f"{found['key']}: {_yaml(value)}"
    return f"{said:{column - 1}} {comment}".rstrip()


def _yaml(value: Any) -> str:
    """Return a value as it stands on one line of YAML."""
    return dump_values({"x": value}).decode().removeprefix("x: ").strip()
