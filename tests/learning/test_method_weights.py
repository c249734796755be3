"""What a method gives as weights is looked at before it counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aggregator.store import RunStore
from shared.errors import ActionRequiredError
from shared.exchange.records.tensors import Sharing
from shared.learning.aggregation import Aggregation, Update
from shared.learning.methods.contract import Contribution, Groups, Method
from shared.learning.methods.terms import MethodOptions
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS


class Given(Method):
    """Gives the weights that a test wants."""

    name = "given"
    given: Mapping[str, float]

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        return dict(self.given)


def weights_of(home: Path, given: Mapping[str, float]) -> dict[str, float]:
    """What becomes of given weights of two accepted sites."""
    store, method = RunStore(home, RUN), Given(MethodOptions())
    method.given = given
    store.begin(run_configuration(run=RUN), Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    accepted = {site: Update({}, images=5) for site in ("north", "south")}
    return Aggregation(store, method, Groups()).weights(accepted)


@pytest.mark.parametrize(
    "given",
    [
        {"north": 5.0, "south": 3.0},
        {"north": 0.5, "south": 0.4},
        {"north": 1.5, "south": -0.5},
        {"north": float("nan"), "south": 0.5},
        {"north": 0.0, "south": 0.0},
        {"north": 1.0},
        {"north": 0.5, "south": 0.25, "west": 0.25},
        {},
    ],
)
def test_what_is_no_weight_is_refused_by_the_name_of_the_method(tmp_path: Path, given: Mapping[str, float]) -> None:
    with pytest.raises(
        ActionRequiredError, match=r"^method: mean gave the weights .*; correct weights\(\) in its file"
    ):
        weights_of(tmp_path, given)


@pytest.mark.parametrize("north", [0.0, 1 / 3, 1.0])
def test_weights_are_taken_as_they_are(tmp_path: Path, north: float) -> None:
    assert weights_of(tmp_path, {"north": north, "south": 1 - north}) == {"north": north, "south": 1 - north}
