"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from aggregator.store import RunStore
from shared.folder import login
from tests.canary import without_secrets
from tests.folder.faulty import FaultyServer
from tests.played import Played, begun

settings.register_profile("any machine", deadline=None)  # how long a test takes depends on what else runs
settings.load_profile("any machine")


REPOSITORY = Path(__file__).parents[1]
LONGEST = (
    "tests/test_study",
    "tests/test_demo",
    "tests/test_cells",
    "tests/test_faulty_plugins",
    "tests/learning/test_standby",
    "tests/federation/",
    "tests/faults/",
)


def pytest_xdist_auto_num_workers() -> int:
    """Two for each core: half of the time a test waits for a daemon or a server."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_configure() -> None:
    """Let Ctrl-C end what tests start: a shell's background job is told to ignore it, and so is all that it starts.
    That finds the tests, too: our programs take no code from the folder in which they start.
    Wrong passwords are tried one after another; ``tests/folder/test_login.py`` has for how long each is left alone.
    """
    login.LEFT_ALONE_S, login.LATER_S = (0.0,), 0.0
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole federations and studies first: a long file must not begin when the others are done."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs MONAI, before its fixtures are made."""
    if item.get_closest_marker("monai"):
        pytest.importorskip("monai", reason="MONAI is not installed: `pip install --no-deps monai`")


def pytest_collection_finish() -> None:
    """Leave what lives to the end, torch above all, out of all later collections: each took a quarter of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Have no test's name in the environment: a process that stands by has the environment of who asks it."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


pytest_pyfunc_call = pytest_fixture_setup


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return without_secrets((yield))


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A finished run. Tests copy ``drop`` before they touch it."""
    run = Played(tmp_path_factory.mktemp("played"))
    run.offer_and_consent(rounds=1)
    run.round(1, trains=True)
    run.round(2, trains=False)
    run.finish()
    return run


@pytest.fixture
def run(tmp_path: Path) -> Played:
    """A run of one round that is not played yet, and its site north."""
    return Played(tmp_path)


@pytest.fixture
def store(run: Played) -> RunStore:
    """What the aggregator keeps of that run, which it has just begun."""
    return begun(run)


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture(autouse=True)
def usual_umask() -> Generator[None]:
    """A daemon's command that runs in this process tightens the umask for good: no other test has it from there."""
    before = os.umask(0o022)
    yield
    os.umask(before)
