"""A function's docstring begins with a verb in the imperative."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("aggregator", "site_client", "shared", "studies", "dropfed", "deploy", "benchmarks")
A_THING = "A|An|By|Demand|How|Of|The|This|What|When|Where|Whether|Which|Who|Whom|Why"
WHAT_IT_DOES = (
    "Adds|Asks|Builds|Checks|Draws|Fills|Gives|Has|Keeps|Makes|Opens|Plays|Puts|Raises|Reads|Removes|Returns|Runs|"
    "Sends|Sets|Shows|Takes|Writes|Yields"
)
OTHERWISE = re.compile(rf"({A_THING}|{WHAT_IT_DOES})\b")


def beginnings() -> Iterator[tuple[str, str]]:
    """The place and the docstring of each function; what a property is, a noun may say."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        functions = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.FunctionDef))
        for function in functions:
            is_property = any(ast.unparse(each).endswith("property") for each in function.decorator_list)
            if not is_property and (text := ast.get_docstring(function)):
                yield f"{path.relative_to(ROOT)}:{function.lineno} {function.name}", text


def test_they_begin_with_an_imperative() -> None:
    found = [f"{place}: {text.split()[0]}" for place, text in beginnings() if OTHERWISE.match(text)]
    assert not found, f"begin these docstrings with a verb in the imperative: {'; '.join(found)}"
