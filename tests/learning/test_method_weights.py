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
    of_north: Mapping[str, float] | None = None

    def weights(self, accepted: Mapping[str, Contribution]) -> dict[str, float]:
        return dict(self.given)

    def rows(self, round_no: int, accepted: Mapping[str, Contribution]) -> dict[str, dict[str, float]]:
        return {} if self.of_north is None else {"north": dict(self.of_north)}


ACCEPTED = {site: Update({}, images=5) for site in ("north", "south")}


def aggregation_of(home: Path, given: Mapping[str, float], of_north: Mapping[str, float] | None = None) -> Aggregation:
    """The aggregation by a method that gives these weights."""
    store, method = RunStore(home, RUN), Given(MethodOptions())
    method.given, method.of_north = given, of_north
    store.begin(run_configuration(run=RUN), Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    return Aggregation(store, method, Groups())


def weights_of(home: Path, given: Mapping[str, float]) -> dict[str, float]:
    """What becomes of given weights of two accepted sites."""
    return aggregation_of(home, given).weights(ACCEPTED)


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


@pytest.mark.parametrize("row", [{"north": 1.0, "south": 1.0}, {"north": 0.5, "west": 0.5}, {"south": 0.5}, {}])
def test_so_is_a_row_for_one_sites_own_model(tmp_path: Path, row: Mapping[str, float]) -> None:
    with pytest.raises(ActionRequiredError, match=r"^method: given gave the weights .*; correct rows\(\) in its file"):
        aggregation_of(tmp_path, {"north": 0.5, "south": 0.5}, row).try_out(1, ACCEPTED)


@pytest.mark.parametrize("row", [{"south": 1.0}, {"north": 0.25, "south": 0.75}])
def test_a_row_may_be_of_some_of_the_accepted_sites(tmp_path: Path, row: Mapping[str, float]) -> None:
    aggregation_of(tmp_path, {"north": 0.5, "south": 0.5}, row).try_out(1, ACCEPTED)
