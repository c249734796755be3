"""Every study of configs/studies, made small and played to its end: ``python -m tests.study_smoke``.

Of a template only sizes are changed (rounds, epochs, members, folds, seeds, networks, images), the data are synthetic,
and the command is a researcher's. One line for each study says how it ended. ``comparators-TASK ...`` plays that
template for other tasks, which takes minutes.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from deploy.local import synthetic_octa
from shared.learning.tasks import TASK_NAMES
from tests.learning.small_sites import LABELS, SIGNALS, write_small

TEMPLATES = tuple(sorted((Path(__file__).parent.parent / "configs" / "studies").glob("*.yaml")))
FOR_ANY_TASK = "comparators"
"""The template that may be played for every task, with noise and out-of-distribution images besides."""
SIDE = 32
MOST_SITES = {"dr_staging": 2}
IMAGES = {
    "octa_segmentation": 6,
    "segmentation": 6,
    "dr_staging": 16,
    "image_classification": 12,
    "rdr_classification": 15,
    "fundus_disease": 12,
    "time_series": 18,
    "spectrograms": 12,
}
ROWS = {"time_series": 96, "spectrograms": 64}
"""Of each recording."""
GRADES = {"aptos": 5, "ddr": 6}
"""Of the sites of ``dr_staging``, as the public sets have them that the templates name; of others 4."""
OPTIONS: dict[str, dict[str, object]] = {
    "octa_segmentation": {"image_size": SIDE, "widths": [4, 8]},
    "segmentation": {"image_size": SIDE, "widths": [4, 8]},
    "dr_staging": {"image_size": SIDE, "encoder": "small", "weights": "random"},
    "image_classification": {"image_size": SIDE, "encoder": "small", "weights": "random", "labels": [*LABELS]},
    "rdr_classification": {"image_size": SIDE, "encoder": "plain", "weights": "random", "hidden": [8]},
    "fundus_disease": {"image_size": SIDE, "encoder": "plain", "weights": "random", "hidden": [8]},
    **SIGNALS,
}
FEWER: dict[str, dict[str, int]] = {
    "run": {"rounds": 2, "epochs": 2, "batch_size": 8, "images_per_site": 4},
    "method_options": {"fine_tuning_epochs": 1, "passes": 2, "members": 2},
    "augmentation": {"copies": 1},
}
"""What is lowered wherever a template says more."""


def small(template: dict[str, Any]) -> dict[str, Any]:
    """A study like a template, with other sizes alone."""
    study = {**template, "seeds": template["seeds"][:1], "noise": template.get("noise", [])[:1]}
    run = _lowered(template["run"])
    run["task_options"] = {**run["task_options"], **OPTIONS[template["task"]]}
    study["run"] = run
    study["data"] = dict([*template["data"].items()][: MOST_SITES.get(template["task"])])
    study["arms"] = {label: _lowered(arm) for label, arm in template["arms"].items()}
    if "folds" in template:
        study["folds"] = {"outer": 3, "inner": 1}
    return study


def for_task(template: dict[str, Any], task: str) -> dict[str, Any]:
    """The template for any task, for this one."""
    run = {**template["run"], "task_options": {}}
    return {**template, "task": task, "run": run, "out_of_distribution": "data/out_of_distribution", "noise": [0.01]}


def _lowered(settings: dict[str, Any]) -> dict[str, Any]:
    lowered = {**settings, **_fewer("run", settings)}
    for group in ("method_options", "augmentation"):
        if group in settings:
            lowered[group] = {**settings[group], **_fewer(group, settings[group])}
    return lowered


def _fewer(group: str, settings: dict[str, Any]) -> dict[str, int]:
    numbers = {key: settings[key] for key in FEWER[group] if isinstance(settings.get(key), int)}
    return {key: min(number, FEWER[group][key]) for key, number in numbers.items()}


def write_data(study: dict[str, Any], root: Path) -> None:
    """Synthetic images, or recordings, where a study says that its sites' are."""
    task = study["task"]
    images, size = IMAGES[task], ROWS.get(task, SIDE)
    for number, (site, folder) in enumerate(study["data"].items()):
        grades = GRADES.get(site, 4)
        write_small(task, root / folder, images=images, size=size, seed=number, site=number, grades=grades)
    if "out_of_distribution" in study:
        other = root / "other"
        if task in SIGNALS:
            write_small(task, other, images=4, size=size, seed=9)
        else:
            synthetic_octa.write_site(other, style=synthetic_octa.STYLES[0], images=4, size=SIDE, seed=1)
        (other / ("recordings" if task in SIGNALS else "images")).rename(root / study["out_of_distribution"])


def studies() -> dict[str, dict[str, Any]]:
    """By what it is called here, every template made small."""
    found = {}
    for path in TEMPLATES:
        template = yaml.safe_load(path.read_text(encoding="utf-8"))
        found[path.stem] = small(template)
        if path.stem == FOR_ANY_TASK:
            found |= {f"{path.stem}-{task}": small(for_task(template, task)) for task in TASK_NAMES}
    return found


def play(name: str, study: dict[str, Any], root: Path) -> str | None:
    """Play a template's small version.

    Returns:
        What is wrong; None where all is well.
    """
    path = root / f"{name}.yaml"
    write_data(study, root)
    path.write_text(yaml.safe_dump(study, sort_keys=False, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "studies.cli", "run", str(path), "--at-a-time", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"exit {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"
    home = path.with_suffix("")
    rows = _table(home / "results.csv")
    tested = {row["arm"] for row in rows if row["split"] == "test"}
    if missing := sorted(study["arms"].keys() - tested):
        return f"no test scores of {', '.join(missing)}"
    tables = ["comparison", "by-site", "uncertainty", "fairness", "cost"]
    tables += ["noise"] if study["noise"] else []
    tables += ["elsewhere"] if "out_of_distribution" in study else []
    if empty := [table for table in tables if not any(map(_has_number, _table(home / "tables" / f"{table}.csv")))]:
        return f"no number in {', '.join(empty)}"
    return None if (home / "report.html").stat().st_size else "an empty page"


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _has_number(row: dict[str, str]) -> bool:
    return any(text[:1].isdecimal() for name, text in row.items() if name not in ("arm", "tested on"))


def play_and_tell(name: str, study: dict[str, Any]) -> bool:
    """Play a study in a folder of its own, which stays where it failed; whether all is well."""
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="dropfed-smoke-"))
    wrong = play(name, study, root)
    how = f"FAILED: {wrong}; it lies in {root}" if wrong else "ok"
    print(f"{name}, {len(study['arms'])} arms, {time.monotonic() - began:.0f} s: {how}", flush=True)
    if not wrong:
        shutil.rmtree(root)
    return not wrong


def main() -> int:
    """Play each template once, or those that are named; 1 where one failed. Each waits now and then."""
    found = studies()
    if unknown := set(sys.argv[1:]) - set(found):
        sys.exit(f"{', '.join(sorted(unknown))}: not among {', '.join(found)}")
    chosen = {name: found[name] for name in sys.argv[1:] or [path.stem for path in TEMPLATES]}
    largest_first = sorted(chosen.items(), key=lambda item: -len(item[1]["arms"]))
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        return int(not all([*pool.map(lambda item: play_and_tell(*item), largest_first)]))


if __name__ == "__main__":
    sys.exit(main())
