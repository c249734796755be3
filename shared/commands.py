"""What the four programs have in common: errors become sentences and exit codes, never tracebacks."""

from __future__ import annotations

import ast
import getpass
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

import click

from shared.errors import ActionRequiredError, ConfigurationError, DropfedError, PluginError
from shared.escaping import escape
from shared.folder.durable import disk_trouble, require_folder_of
from shared.interrupts import STOPPED
from shared.software import installing

AnswerT = TypeVar("AnswerT")
State = TypeVar("State")
WATCHED_EVERY_S = 2.0
SETTINGS = {"aggregator.yaml": "the aggregator's", "site.yaml": "a site's"}
"""Whose work directory it is that holds a file of this name."""


class NamedPath(click.Path):
    """A path. Of an empty one, as of a variable that is not set, Python would make the present folder."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(path_type=Path, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            ConfigurationError: it is empty.
        """
        if value == "":
            name = "the path" if param is None else param.opts[0] if isinstance(param, click.Option) else param.name
            raise ConfigurationError([f"{name}: is empty; name a file or a folder"])
        return super().convert(value, param, ctx)


class _Here(NamedPath):
    """The path of something that must be there; of what is not, a sentence says so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            ConfigurationError: there is no such thing, or it cannot be read.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            kind = "file" if self.file_okay else "folder"
            what = f"there is no such {kind} that can be read"
            raise ConfigurationError([f"{value}: {what}; correct the path"]) from None


class _Work(NamedPath):
    """A work directory, which mostly belongs to a daemon's own user."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path.

        Raises:
            ConfigurationError: this user may not read what is there.
        """
        try:
            found: Path = super().convert(value, param, ctx)
            with suppress(FileNotFoundError, NotADirectoryError):
                found.stat()  # nor may the directory above perhaps
        except (click.BadParameter, PermissionError) as error:
            if isinstance(error, click.BadParameter) and not Path(value).is_dir():
                raise
            remedy = "type the command as the user who owns it"
            raise ConfigurationError([f"{value}: may not be read by this user: {remedy}"]) from None
        return found


FILE_HERE = _Here(exists=True, dir_okay=False)
FOLDER_HERE = _Here(exists=True, file_okay=False)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def say(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print lines; the one place where the commands do.

    What cannot be seen, or would move the cursor or turn the direction of writing, is printed as an escape, whoever
    wrote it. Texts from elsewhere are one line each already where they come in (``shared.errors``, ``Sentence``).

    Args:
        err: to standard error.
        nl: end the last line.
    """
    click.echo("\n".join(map(escape, text.split("\n"))), err=err, nl=nl)


class Program(click.Group):
    """A program whose errors are sentences.

    Exit codes: 0 done, 1 something stands in the way, 2 wrong usage or input.

    Args:
        extra: what of dropfed must be installed for all of its commands.
    """

    def __init__(self, *args: Any, extra: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._extra = extra

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; print our errors, one sentence a line."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # what a file on Windows cannot hold, as θ, is escaped
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except click.Abort:  # Ctrl-C at a question, or a no
            say("\nstopped here: nothing was done", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:  # before, or without, an end of its own for Ctrl-C
            say(f"\n{STOPPED}", err=True)
            ctx.exit(1)
        except BrokenPipeError:  # whoever read our output, `head` perhaps, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except (DropfedError, ModuleNotFoundError, OSError) as error:
            trouble = self._as_trouble(error)
            say(str(trouble), err=True)
            ctx.exit(2 if isinstance(trouble, ConfigurationError | PluginError) else self.code_of(trouble))

    def _as_trouble(self, error: DropfedError | ModuleNotFoundError | OSError) -> DropfedError:
        """Return an error as one of ours, with what to do."""
        if isinstance(error, ModuleNotFoundError):
            needed = f"this command needs {error.name}, which is not installed here"
            return ActionRequiredError(f"{needed}: run {installing(self._extra)}")
        return disk_trouble(error, Path("the present directory")) if isinstance(error, OSError) else error

    def code_of(self, _trouble: DropfedError) -> int:
        """Return the exit code where something stands in the way."""
        return 1


class Commands(Program):
    """The commands of a package, one in each of its files; nothing of a file is imported before its command is called.

    The file ``new_run.py`` holds the command ``new-run`` as ``command``, and its docstring is the command's help.

    Args:
        package: where the files are.
    """

    def __init__(self, *args: Any, package: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, as people type them, sorted."""
        files = iter_modules(import_module(self._package).__path__)
        return sorted(file.name.replace("_", "-") for file in files)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if there is none of this name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(self._module(cmd_name)).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands with the first sentence of each, read from its file."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names))
        rows = [(name, click.Command(name, help=self._help(name)).get_short_help_str(width)) for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _module(self, name: str) -> str:
        return f"{self._package}.{name.replace('-', '_')}"

    def _help(self, name: str) -> str | None:
        spec = find_spec(self._module(name))
        return ast.get_docstring(ast.parse(Path(spec.origin).read_bytes())) if spec and spec.origin else None


def work_option(settings: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--work DIR``; absolute, so that a command that we tell people works wherever they are.

    Args:
        settings: the file in the work directory of who has these commands. A directory that holds another's in its
            place is refused.
    """

    def own(context: click.Context, _option: click.Parameter, work: Path) -> Path:
        other = next((file for file in SETTINGS if file != settings and (work / file).exists()), None)
        names_model = context.params.get("model") is not None  # which is all that such a command needs
        if other is None or (work / settings).exists() or names_model:
            return work
        whose, wanted = SETTINGS[other], SETTINGS[settings]
        raise ConfigurationError(
            [f"{work}: is {whose} work directory, and this command is for {wanted}: name that one with --work"]
        )

    return click.option(
        "--work",
        type=_Work(file_okay=False, resolve_path=True),
        default=Path(),
        envvar="DROPFED_WORK",
        callback=own,
        help="Work directory (default: the current one, or DROPFED_WORK).",
    )


def values_by_name(option: str, texts: Sequence[str], form: str) -> dict[str, str]:
    """Return what an option that is given again and again as NAME=VALUE says.

    Args:
        form: how it is written, with an example.

    Raises:
        ConfigurationError: it is not of that form, or says two things of one name. Values are not repeated: an address
            may hold a password.
    """
    values: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name or not value or set(name) & set("/:@"):
            raise ConfigurationError([f"{option}: must be {form}"])
        if name in values:
            raise ConfigurationError([f"{option} {name}: is given twice; keep one"])
        values[name] = value
    return values


def require_replaceable(path: Path, *endings: str) -> None:
    """Check that a file which a command writes anew each time takes the place of nothing but such a file.

    Raises:
        ConfigurationError: what is there has another ending, or there is no folder for the file.
    """
    require_folder_of(path)
    if path.exists() and path.suffix.lower() not in endings:
        kinds = " or ".join(endings)
        raise ConfigurationError([f"{path}: is there already, and does not end in {kinds}; name another file"])


def ask_password(user: str, instead: str) -> str:
    """Return a password from the keyboard, without echo; what is asked does not get into the output.

    Args:
        instead: how the command is given without a question.

    Raises:
        ConfigurationError: there is no terminal to ask at.
    """
    try:
        question = partial(click.prompt, f"password of {user}", hide_input=True, err=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return asked(question, f"the password of {user}", instead)
    except getpass.GetPassWarning:
        raise _nobody(f"the password of {user}", instead) from None


def asked(ask: Callable[[], AnswerT], what: str, instead: str) -> AnswerT:
    """Return what a person answers at the keyboard.

    Args:
        ask: asks, and raises ``click.Abort`` where no answer comes.
        what: is asked for, as people are told it.
        instead: how the command is given without a question.

    Raises:
        ConfigurationError: there is nobody to answer.
    """
    try:
        return ask()
    except (click.Abort, RuntimeError):  # the latter where standard input is closed
        if sys.stdin is not None and sys.stdin.isatty():  # Ctrl-C
            raise
        say(err=True)  # ends the question's line
        raise _nobody(what, instead) from None


def _nobody(what: str, instead: str) -> ConfigurationError:
    return ConfigurationError([f"{what} cannot be asked for without a terminal; {instead}"])


def require_yes(question: str) -> None:
    """Have a person say yes before what cannot be undone.

    Raises:
        ConfigurationError: there is nobody to answer.
    """
    if not asked(lambda: click.confirm(question, err=True), "a yes", "nothing was done: to go on, give --yes"):
        raise click.Abort


def show(found: State, text: Callable[[State], str], *, as_json: bool, indent: int | None = 2) -> None:
    """Print plain values and dataclasses, as JSON or in words."""
    say(json.dumps(found, indent=indent, default=asdict) if as_json else text(found))


def status_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the options ``--json`` and ``--watch``."""
    return AS_JSON(click.option("--watch", is_flag=True, help="Look again every two seconds, until Ctrl-C.")(command))


def show_status(look: Callable[[], State], text: Callable[[State], str], *, as_json: bool, watch: bool) -> None:
    """Print where things stand, as JSON or in words; with ``watch`` again and again.

    A terminal is cleared between two looks; elsewhere an empty line parts them, and JSON is one line each. Ctrl-C
    ends a watch, and is no failure.
    """
    looks = 0
    try:
        while True:
            state = look()
            if not as_json and looks and not sys.stdout.isatty():
                say()
            elif not as_json and watch:
                click.clear()
            looks += 1
            show(state, text, as_json=as_json, indent=None if watch else 2)
            if not watch:
                return
            time.sleep(WATCHED_EVERY_S)
    except KeyboardInterrupt:
        if not watch:
            raise
