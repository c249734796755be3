"""Every study of configs/studies, made small and played to its end: ``python -m tests.study_smoke``.

Of a template only sizes are changed (rounds, epochs, members, folds, seeds, networks, images), the data are synthetic,
and the command is a researcher's. One line for each study says how it ended.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from shared.learning.data import synthetic_octa
from tests.learning.small_sites import write_small

TEMPLATES = tuple(sorted((Path(__file__).parent.parent / "configs" / "studies").glob("*.yaml")))
SIDE = 32
MOST_SITES = {"dr_staging": 3}
ROUNDS = 2
BATCH = 8
IMAGES = {"octa_segmentation": 6, "dr_staging": 16, "rdr_classification": 15, "fundus_disease": 12}
GRADES = (5, 6, 5, 4, 5)
"""Of the sites of ``dr_staging``, as the public sets have them that the templates name."""
NETWORKS: dict[str, dict[str, object]] = {
    "octa_segmentation": {"widths": [4, 8]},
    "dr_staging": {"encoder": "small", "weights": "random"},
    "rdr_classification": {"encoder": "plain", "weights": "random", "hidden": [8]},
    "fundus_disease": {"encoder": "plain", "weights": "random", "hidden": [8]},
}
FEWER: dict[str, dict[str, int]] = {
    "run": {"rounds": ROUNDS, "batch_size": BATCH},
    "method_options": {"fine_tuning_epochs": 1, "passes": 2, "members": 2},
    "augmentation": {"copies": 1},
}
"""What is lowered wherever a template says it."""


def small(template: dict[str, Any]) -> dict[str, Any]:
    """A study like a template, with other sizes alone."""
    study = {**template, "seeds": template["seeds"][:1], "noise": template.get("noise", [])[:1]}
    run = _lowered(template["run"])
    run["task_options"] = {**run["task_options"], "image_size": SIDE, **NETWORKS[template["task"]]}
    study["run"] = run
    study["data"] = dict([*template["data"].items()][: MOST_SITES.get(template["task"])])
    study["ways"] = {label: _lowered(way) for label, way in template["ways"].items()}
    if "folds" in template:
        study["folds"] = {"outer": 3, "inner": 1}
    return study


def _lowered(settings: dict[str, Any]) -> dict[str, Any]:
    lowered = settings | {key: value for key, value in FEWER["run"].items() if key in settings}
    for group in ("method_options", "augmentation"):
        if group in settings:
            fewer = {key: value for key, value in FEWER[group].items() if key in settings[group]}
            lowered[group] = settings[group] | fewer
    return lowered


def write_data(study: dict[str, Any], root: Path) -> None:
    """Synthetic images where a study says that its sites' are."""
    for number, folder in enumerate(study["data"].values()):
        grades, images = GRADES[number], IMAGES[study["task"]]
        write_small(study["task"], root / folder, images=images, size=SIDE, seed=number, site=number, grades=grades)
    if "foreign" in study:
        octa = root / "octa"
        synthetic_octa.write_site(octa, style=synthetic_octa.STYLES[0], images=4, size=SIDE, seed=1)
        (octa / "images").rename(root / study["foreign"])


def play(template: Path, root: Path) -> str | None:
    """Play a template's small version.

    Returns:
        What is wrong; None where all is well.
    """
    study = small(yaml.safe_load(template.read_text(encoding="utf-8")))
    path = root / template.name
    write_data(study, root)
    path.write_text(yaml.safe_dump(study, sort_keys=False, allow_unicode=True), encoding="utf-8")
    command = [sys.executable, "-m", "aggregator.cli", "study", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"exit {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"
    home = path.with_suffix("")
    with (home / "results.csv").open(encoding="utf-8", newline="") as file:
        tested = {row["way"] for row in csv.DictReader(file) if row["split"] == "test"}
    if missing := sorted(study["ways"].keys() - tested):
        return f"no test scores of {', '.join(missing)}"
    return None if (home / "report.html").stat().st_size else "an empty page"


def main() -> int:
    """Play all templates; 1 where one failed."""
    failed = 0
    for template in TEMPLATES:
        began = time.monotonic()
        root = Path(tempfile.mkdtemp(prefix="dropfed-smoke-"))
        wrong = play(template, root)
        ways = len(yaml.safe_load(template.read_text(encoding="utf-8"))["ways"])
        how = f"FAILED: {wrong}; it lies in {root}" if wrong else "ok"
        print(f"{template.stem}, {ways} ways, {time.monotonic() - began:.0f} s: {how}", flush=True)
        if wrong:
            failed += 1
        else:
            shutil.rmtree(root)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
