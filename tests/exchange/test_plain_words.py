"""What is wrong with settings is said in this project's words, whatever is wrong with whichever of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from aggregator.configuration import AggregatorConfiguration
from aggregator.preparation import Begun
from shared.doors.schema import Faults, fill
from shared.errors import ConfigurationError
from shared.exchange.reading import OTHERWISE, PLAIN_WORDS, check_record, parse_json, problems_in
from shared.exchange.records.messages import Invite
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.values import Record
from shared.learning.apart import Question
from shared.learning.data.splits import SplitPlan
from shared.learning.methods import method_names, open_method
from shared.learning.tasks import TASK_NAMES, task_named
from site_client.configuration import SiteConfiguration
from studies.configuration import StudyConfiguration
from studies.matrix import CellConfiguration

FOREIGN = re.compile(
    r"(?i)input should|should (be|have)|valid (integer|number|string|bool|dict|list)|value error|pydan"
)
TEXTS = ("", "x", "1", "x" * 2000, "two\nlines", b"bytes")
NUMBERS = (-1, 0, 1, 2, 10**30, -0.5, 1.5, math.nan, math.inf)
HOLDING = ([], [1], ["x", "x"], [[]], [0] * 30, {}, {"x": 1}, {1: 2}, {"x": {"y": 1}}, {"shape": "x"}, {"rule": "x"})
_WRITERS = ("apart", "final", "folders", "outside", "torchrun", "train")
BETWEEN_PROCESSES = (
    *(f"site_client.{name}" for name in _WRITERS),
    *("shared.learning.apart", "shared.audit.replay.apart", "aggregator.model_work", "aggregator.model_card"),
)
"""What one process of a daemon writes for another."""
WRONG = (None, True, *TEXTS, *NUMBERS, *HOLDING)


def kinds(of: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """All that is loaded, but for what one process of a daemon writes for another."""
    for kind in of.__subclasses__():
        product = kind.__module__.partition(".")[0]
        is_between = kind.__module__ in BETWEEN_PROCESSES or _is_asked(kind)
        if product in ("aggregator", "shared", "site_client", "studies") and not is_between:
            yield kind
        yield from kinds(kind)


def _is_asked(kind: type[BaseModel]) -> bool:
    """Whether a process asks another by it, or answers; by name, for other tests load modules anew."""
    return not {Question.__name__, Begun.__name__}.isdisjoint(base.__name__.partition("[")[0] for base in kind.__mro__)


@pytest.fixture(scope="module")
def refusals() -> list[tuple[type[BaseModel], Faults]]:
    """Each setting of each kind with each wrong value."""
    _, _ = [task_named(task) for task in TASK_NAMES], [open_method(method, {}) for method in method_names()]
    found = []
    for kind in kinds():
        for name in kind.model_fields:
            for value in WRONG:
                try:
                    fill(kind, {name: value})
                except Faults as faults:
                    found.append((kind, faults))
    return found


def test_no_word_of_the_library_gets_through(refusals: list[tuple[type[BaseModel], Faults]]) -> None:
    met = {kind for kind, _ in refusals}
    assert len(met) > 50
    assert met >= {AggregatorConfiguration, SiteConfiguration, RunConfiguration, Invite, SplitPlan}
    assert met >= {StudyConfiguration, CellConfiguration}
    sentences = {sentence for kind, faults in refusals for sentence in problems_in(faults, kind, "RUN.yaml")}
    assert not [sentence for sentence in sentences if FOREIGN.search(sentence) or OTHERWISE in sentence]
    keys = {sentence.split(": ")[1] for sentence in sentences}
    assert not [key for key in keys if re.search(r"constrained|literal\[|function-|\[.*\]", key)]


def test_every_word_of_the_table_is_needed(refusals: list[tuple[type[BaseModel], Faults]]) -> None:
    met = {problem["type"] for _, faults in refusals for problem in faults.found}
    assert set(PLAIN_WORDS) - met == {"json_invalid"}  # of invites, which are no YAML


def test_what_nobody_foresaw_is_said_in_few_words() -> None:
    class Strange(Record):
        number: complex

    with pytest.raises(ConfigurationError, match=r"^F: number: cannot be this \(found 'x'\); correct it$"):
        check_record({"number": "x"}, Strange, "F")


def test_a_file_that_is_no_json_is_said_to_be_none() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^north.json: is not JSON \(.* line 1 column 5\); get the file anew$"
    ):
        parse_json(b'{"a":', Invite, "north.json")
