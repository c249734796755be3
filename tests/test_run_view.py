"""The view of a run: read once, shown as a table too, and what need not be loaded for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.run_view import Mean, RunView, view_run
from aggregator.site import open_ledger
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Abort
from shared.exchange.signing import canonical
from shared.folder.durable import hash_file
from tests.played import RUN, Played, begun, ended_run

TELL = """
import sys
from pathlib import Path
from aggregator.dashboard.state import page_state
from aggregator.overview import overview, overview_text
from shared.audit.verify import verify
from shared.folder.local import LocalFolder
work, drop = map(Path, sys.argv[1:])
overview_text(overview(work))
assert page_state(work)["problem"] is None
verify(LocalFolder(drop))
assert "pandas" not in sys.modules and "matplotlib" not in sys.modules
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Played, Path]:
    home = tmp_path_factory.mktemp("played")
    played, _ = ended_run(home)
    return played, home / "aggregator"


@pytest.fixture(scope="module")
def view(ended: tuple[Played, Path]) -> RunView:
    return view_run(ended[1], RunStore(ended[1], RUN))


def test_what_happened_is_in_the_view(view: RunView) -> None:
    assert view.card and (view.card.chosen_round, view.score, view.is_over) == (1, "dice_mean", True)
    assert [(each.round, each.trains, each.is_closed) for each in view.rounds] == [(1, True, True), (2, False, True)]
    assert dict(view.verdicts()) == {"accepted": 1, "validated": 1}
    north = view.receivers(1)["north"]
    assert north == view.rounds[1].sites["north"] and north.status == "validated"
    assert view.rounds[1].means["validation"]["dice_mean"] == Mean(sites=1, alike=0.5, by_images=0.5)
    assert (view.sites["north"].agrees, view.sites["south"].agrees) == (True, None)
    assert view.receivers(7) == {} and view.scoring(7) is None


def test_how_long_an_answer_took_is_by_the_aggregators_clock_and_not_until_the_round_closed(
    ended: tuple[Played, Path], tmp_path: Path
) -> None:
    work = tmp_path / "aggregator"
    shutil.copytree(ended[1], work)
    ledger, store = open_ledger(work / "sites" / "north"), RunStore(work, RUN)
    assert ledger is not None
    asked, _, settled = view_run(work, store).rounds[0].sites["north"].times
    assert asked is not None and settled is not None
    manifest = ledger.path(MessageRef("update", RUN, 1), names.MANIFEST)

    def told(here: float) -> int | None:
        os.utime(manifest, (here, here))
        return view_run(work, store).rounds[0].sites["north"].seconds_to_answer

    assert told(asked) == 0
    assert told(asked - 5) is None  # the clock was put back
    assert told(settled + 3600) is None  # what counted was here before that: the directory was copied


def test_an_abort_is_among_the_bytes_of_a_run(tmp_path: Path) -> None:
    played = Played(tmp_path)
    store = begun(played)
    played.offer_and_consent()
    before = view_run(tmp_path / "aggregator", store).bytes["north"].down
    abort = canonical(Abort(run=RUN, reason="nobody agreed").model_dump())
    played.send("abort", 0, {names.ABORT: abort}, "consent")
    manifest = hash_file(played.drop / MessageRef("abort", RUN).path / names.MANIFEST)[0]
    after = view_run(tmp_path / "aggregator", store).bytes["north"].down
    assert before is not None and after == before + len(abort) + manifest


def test_every_number_is_a_row_of_the_frame(view: RunView) -> None:
    frame = view.frame()
    assert [*frame.columns] == ["aggregate", "round", "site", "split", "images", "score", "value"]
    assert len(frame) == sum(
        len(row.numbers) for *_, part in view.parts() for row in (part.validation, part.test) if row
    )
    chosen = frame[(frame["aggregate"] == 1) & (frame["score"] == "dice_mean")]
    assert chosen[["site", "split", "value"]].to_numpy().tolist() == [["north", "validation", 0.5]]


def test_a_frame_of_nothing_has_its_columns(view: RunView) -> None:
    nothing = replace(view, rounds=[]).frame()
    assert nothing.empty and nothing["value"].dtype == float


def test_status_dashboard_and_audit_load_neither_pandas_nor_matplotlib(ended: tuple[Played, Path]) -> None:
    played, work = ended
    subprocess.run([sys.executable, "-c", TELL, str(work), str(played.drop)], check=True)
