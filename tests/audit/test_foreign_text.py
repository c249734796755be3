"""What others wrote is printed so that it can neither forge a line, nor move the cursor, nor turn what is read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from aggregator.cli import main as aggregator_command
from aggregator.store import RunStore
from shared import errors
from shared.audit.cli import main as audit_command
from shared.commands import say
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.signing import canonical
from site_client.cli import main as site_command
from tests.played import RUN, Played, work_later

ROOT = Path(__file__).parent.parent.parent
HOSTILE = {
    "escape": "\x1b[2J\x1b[1;1Hall holds",
    "one-byte-escape": "\x9b2Jall holds",
    "right-to-left": "\u202esdloh lla",
    "isolate": "\u2066all holds\u2069",
    "line-separator": "enough\u2028all holds",
    "next-line": "enough\x85all holds",
    "delete": "enough\x7f\x7f\x7fholds",
}
AUDITS = (["verify"], ["timeline"], ["show", "1", "--run", RUN], ["sent", "north"])


def is_harmless(output: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in output)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_withdrawals_reason_reaches_no_terminal_raw(run: Played, store: RunStore, hostile: str) -> None:
    run.offer_and_consent()
    store.ask(1, ("north",), ("north",))
    run.round(1, trains=True)
    content = canonical({"run": RUN, "reason": hostile})
    run.sign_and_publish("withdrawal", 0, {names.WITHDRAWAL: content})
    run.folder_sync.attend(MessageRef("withdrawal", RUN))
    assert work_later(run.folder_sync)
    home = run.drop.parent
    for command, arguments in (
        (aggregator_command, ["status", "--work", str(home / "aggregator")]),
        (aggregator_command, ["report", RUN, "--work", str(home / "aggregator")]),
        (site_command, ["status", "--work", str(home / "north")]),
        (site_command, ["sent", "--work", str(home / "north")]),
        *((audit_command, [*audit, str(run.drop)]) for audit in AUDITS),
    ):
        result = CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, SystemExit | None)
        assert is_harmless(result.output), arguments
    status = CliRunner().invoke(aggregator_command, ["status", "--work", str(home / "aggregator")]).output
    assert "withdrew" in status or "withdrawn" in status  # whatever its reason is, the site has left


@given(st.text())
def test_whatever_is_said_is_printed_harmlessly(text: str) -> None:
    with CliRunner().isolation() as (output, _, _):
        say(text)
        told = output.getvalue().decode()
    assert is_harmless(told)
    assert told.count("\n") == text.count("\n") + 1


@given(st.text())
def test_an_error_is_one_line_whatever_it_quotes(text: str) -> None:
    quoted = [
        errors.ActionRequiredError(text),
        errors.TransientError(text),
        errors.NotFoundError(text),
        errors.RejectedError(text, text),
        errors.ConfigurationError([text]),
        errors.DataError([text]),
    ]
    assert all(str(error).isprintable() for error in quoted)
    assert len(str(errors.DataError([text, text])).split("\n")) == 2


def test_the_commands_print_in_one_place() -> None:
    elsewhere = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("aggregator", "site_client", "shared", "studies")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo", "click.secho")
    ]
    assert [ref.partition(":")[0] for ref in elsewhere] == ["shared/commands.py"]
