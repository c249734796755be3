"""The task learns, in a whole federation in one process, tells its own score, and reads what has no label."""

from __future__ import annotations

from pathlib import Path

from my_task import MyOptions, MyTask
from my_task.synthetic import write_site

import dropfed

RUN = Path(__file__).parents[1] / "src" / "my_task" / "run.my_task.yaml"


def test_a_federation_learns_it(tmp_path: Path) -> None:
    sites = {"north": tmp_path / "north", "south": tmp_path / "south"}
    for seed, folder in enumerate(sites.values()):
        write_site(folder, images=60, seed=seed)
    scores = dropfed.simulate(RUN, sites=sites).metrics()
    received = scores[(scores["split"] == "validation") & (scores["epoch"] == 0)].groupby("round")
    auroc, brier = received["auroc"].mean(), received["brier"].mean()
    assert auroc.iloc[-1] > 0.8
    assert brier.iloc[-1] < brier.iloc[0]


def test_what_has_no_label_can_be_predicted(tmp_path: Path) -> None:
    write_site(tmp_path, images=4, seed=1)
    assert len(MyTask().open_unlabelled(tmp_path / "round", MyOptions())) == 2
