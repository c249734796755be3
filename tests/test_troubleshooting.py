"""docs/troubleshooting.md names every error, verdict, phase and finding that there is in the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from shared import errors
from shared.exchange.records.messages import Phase
from shared.exchange.records.verdicts import Verdict
from shared.folder.answers import RangeError

ROOT = Path(__file__).parent.parent
ERRORS = {
    "ActionRequiredError",
    "PluginError",
    "FaultError",
    "TransientError",
    "NotFoundError",
    "AlreadyExistsError",
    "RejectedError",
    "RangeError",
    "_refuse",
    "Refusal",
    "NotWhole",
    "TooLong",
    "door",
    "_refused",
}
LAST = {"RejectedError", "_refuse", "FaultError"}
"""Those whose last argument is the sentence."""
FINDINGS = {"find", "_find"}
LOCAL = ROOT / "shared" / "folder" / "local.py"  # of folders on this machine, which only the auditor opens
SHORTEST = 10  # letters that can be looked for; a sentence made of less is put together from others


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("`", "")).lower()


PAGE = plain((ROOT / "docs" / "troubleshooting.md").read_text())


def fragments(node: ast.expr) -> list[str]:
    """The fixed parts of a sentence in the code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [part.value for part in node.values if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    if isinstance(node, ast.BinOp):
        return fragments(node.left) + fragments(node.right)
    if isinstance(node, ast.IfExp):
        return fragments(node.body)
    return []


def calls(folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Call, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    called = node.func
                    name = getattr(called, "id", None) or getattr(called, "attr", "")
                    yield path, node, name


def sentences() -> Iterator[tuple[str, list[str]]]:
    """Where each sentence stands in the code, and its fixed parts."""
    for path, call, name in calls(("shared", "aggregator", "site_client", "studies", "dropfed")):
        arguments = call.args
        where = f"{path.relative_to(ROOT)}:{call.lineno}"
        if name in ERRORS and arguments and path != LOCAL:
            yield where, fragments(arguments[-1] if name in LAST else arguments[0])
        elif name in FINDINGS and len(arguments) > 1 and "audit" in path.parts:
            yield where, fragments(arguments[1])
        elif name == "Finding" and len(arguments) > 1 and isinstance(arguments[0], ast.Constant):
            yield where, fragments(arguments[1]) if arguments[0].value in ("warning", "problem") else []
    for node in ast.walk(ast.parse((ROOT / "shared" / "audit" / "verify.py").read_text())):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "what":
            yield f"shared/audit/verify.py:{node.lineno}", fragments(node.value)


def test_every_sentence_of_an_error_or_a_finding_is_there() -> None:
    found = {where: max(map(plain, parts), key=len, default="").strip(" :;,.") for where, parts in sentences()}
    told = {where: part for where, part in found.items() if len(part) >= SHORTEST}
    assert len(told) > 150  # the code is still read as it is written
    missing = {where: part for where, part in told.items() if part not in PAGE}
    assert not missing


def test_every_kind_of_error_is_there() -> None:
    kinds = {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.DropfedError) and not name.startswith("_")
    }
    assert "RejectedError" in kinds
    assert not {kind for kind in kinds | {RangeError.__name__} if f"| {kind.lower()} |" not in PAGE}


def test_every_verdict_phase_and_exit_code_has_a_row() -> None:
    statuses = get_args(Verdict.model_fields["status"].annotation)
    assert not [word for word in (*statuses, *get_args(Phase), "0", "1", "2") if f"| {word} |" not in PAGE]


@pytest.mark.parametrize("status", [401, 403, 404, 405, 409, 412, 413, 416, 423, 429, 500, 502, 503, 504, 507, 407])
def test_what_a_server_answers_has_a_row(status: int) -> None:
    assert re.search(rf"\| ([0-9]+, )*{status}(, [0-9]+)* \|", PAGE)


def test_every_status_that_the_client_knows_is_there() -> None:
    tree = ast.parse((ROOT / "shared" / "folder" / "answers.py").read_text())
    known = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, int)}
    statuses = {status for status in known if 400 < status < 600 and status % 100}
    assert {401, 403, 404, 413, 416, 507} <= statuses
    assert not {status for status in statuses if not re.search(rf"\b{status}\b", PAGE)}
