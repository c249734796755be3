"""What docs/exchange.md says a round costs is what a round costs: the exchange benchmark, with a small model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import exchange, exchange_federation
from benchmarks.exchange_federation import Home
from benchmarks.exchange_rounds import tally
from benchmarks.exchange_servers import embedded
from tests.federation.forked import Forked

DOCUMENT = Path(__file__).parents[1] / "docs" / "exchange.md"
MODEL_BYTES = 2 * 10**6


@contextmanager
def forked(home: Home, end: str, command: Sequence[str]) -> Iterator[Forked]:
    """As the benchmark runs a process, but forked from one that has PyTorch."""
    process = Forked(["tests.federation.own_group", *command], home.root / f"output-{end}.txt")
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("fresh", [False, pytest.param(True, marks=pytest.mark.long)])
def test_requests_of_a_round_are_those_of_the_document(
    fresh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its processes are those of the benchmark, each of which imports PyTorch, or forked."""
    if not fresh:
        monkeypatch.setattr(exchange_federation, "running", forked)
    with embedded(tmp_path / "server", exchange.SITES) as served:
        rounds, _ = exchange.dropfed(Home(tmp_path), served, MODEL_BYTES, measured=3)
    counted = {
        (end, request): times
        for end, found in tally(rounds[:-1], len(exchange.SITES)).items()
        for request, times in found.items()
    }
    rows = re.findall(r"^\| (aggregator|site) \| `([^`]+)` \| ([^|]+?) \|", DOCUMENT.read_text(), re.MULTILINE)
    told = {(end, request): float(times) for end, request, times in rows if re.fullmatch(r"[\d.]+", times)}
    looks = {(end, request) for end, request, times in rows} - told.keys()
    assert len(told) > 20
    assert {kind: times for kind, times in counted.items() if kind not in looks} == told
