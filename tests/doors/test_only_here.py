"""What came from elsewhere is parsed in shared/doors and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.doors import Refusal, door

ROOT = Path(__file__).parents[2]
PRODUCT = ("aggregator", "dropfed", "shared", "site_client", "studies")
DOORS = ROOT / "shared" / "doors"
PARSERS = {
    "json.load",
    "json.loads",
    "csv.reader",
    "csv.DictReader",
    "yaml",
    "zstandard",
    "safetensors",
    "defusedxml",
    "xml",
    "nacl.bindings.crypto_secretstream_xchacha20poly1305_pull",
    "nacl.bindings.crypto_core_ed25519_is_valid_point",
    "nacl.bindings.crypto_aead_xchacha20poly1305_ietf_decrypt",
    "cryptography.x509",
    "cryptography.hazmat.primitives.asymmetric.ed25519.Ed25519PublicKey",
    "cryptography.hazmat.primitives.asymmetric.x25519.X25519PublicKey",
    "email",
    "pandas.read_csv",
    "pickle",
    "struct.unpack",
    "tomllib",
}
METHODS = {"model_validate", "model_validate_json", "validate_python", "validate_json"}
NUMBERS = {"int", "float"}
OF_THIS_MACHINE = {
    "shared/folder/meter.py": {"json.loads"},  # what another process of this daemon wrote a moment ago
    "shared/learning/data/tables.py": {"csv.DictReader"},  # a hospital's own labels,
    "shared/learning/data/time_series.py": {"csv.reader"},  # and recordings
    "shared/learning/models/encoders.py": {"pickle"},  # of published weights, whose hash is known, what is wrong
    "shared/learning/models/weights.py": {"pickle", "safetensors"},  # likewise
    "site_client/division.py": {"model_validate_json"},  # what this site has divided and spent
    "site_client/torchrun.py": {"model_validate_json", "validate_json"},  # what processes that train together told
    "site_client/worker.py": {"model_validate_json"},
    "studies/alone.py": {"json.loads"},  # what a study on this machine wrote
    "studies/federation.py": {"yaml"},
    "studies/results.py": {"json.loads"},
    "studies/voting.py": {"pandas.read_csv"},
}
"""Files that nobody else writes, by the module that reads them."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.is_relative_to(DOORS):
                yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def used(tree: ast.Module) -> set[str]:
    """Of ``PARSERS`` and ``METHODS``, what a module uses."""
    called: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            called |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            called |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    names = set(called.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id in called:
                names.add(f"{called[node.value.id]}.{node.attr}")
            names.add(node.attr if node.attr in METHODS else "")
    found = {parser for parser in PARSERS for name in names if name == parser or name.startswith(f"{parser}.")}
    return found | (names & METHODS)


def test_nothing_from_elsewhere_is_parsed_anywhere_else() -> None:
    found = {path: used(tree) - OF_THIS_MACHINE.get(path, set()) for path, tree in modules()}
    assert len(found) > 200
    assert {path: names for path, names in found.items() if names} == {}


def test_no_exception_to_that_is_forgotten() -> None:
    found = dict(modules())
    assert {
        path: names - used(found[path]) for path, names in OF_THIS_MACHINE.items() if names - used(found[path])
    } == {}


@pytest.mark.parametrize("room", ["shared/exchange", "shared/folder", "shared/audit"])
def test_rooms_that_read_what_came_make_no_number_of_a_text_themselves(room: str) -> None:
    made = {
        f"{path}:{node.lineno}"
        for path, tree in modules()
        if path.startswith(f"{room}/")
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name != "decimal_text"  # which makes a text of a number
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NUMBERS
    }
    assert made == set()


def test_a_door_lets_nothing_through_but_refusals() -> None:
    class PanicException(BaseException):
        """As pyo3 has it, which is no ``Exception``."""

    PanicException.__module__ = "pyo3_runtime"
    for error in (KeyError("x"), MemoryError(), RecursionError(), UnicodeError(), OverflowError(), PanicException()):
        with pytest.raises(Refusal, match="is not it"), door("is not it"):
            raise error
    for passing in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(passing), door("is not it"):
            raise passing
    with pytest.raises(Refusal, match="is too large"), door("is not it"):
        raise Refusal("is too large")
