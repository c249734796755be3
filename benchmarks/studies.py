"""Two studies on real images, on small budgets.

    .venv/bin/python -m benchmarks.studies octa DIR
    .venv/bin/python -m benchmarks.studies retinopathy DIR

octa: vessels in OCTA images. DIR holds ``rossa_manual`` and ``rossa_semiautomatic``, each with ``images`` and
``masks``; every fourth image is taken.
retinopathy: healthy eyes against eyes with diabetic retinopathy in colour photographs. DIR is the HRF set, ``images``
and ``labels.csv`` with ``id`` and ``class``. There is one such set only: its photographs are dealt out to two sites in
turn, so the sites differ by chance alone.

Writes ``results/study-NAME.json``, ``.md`` (the tables) and ``.png`` (every arm's main score).
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks.record import RESULTS, record
from shared.folder.durable import link_file

SPLIT = {"train": 0.6, "validation": 0.2, "test": 0.2}
SEEDS = [1, 2, 3]
COMPARATORS = {
    "internal and external": {"method": "single_site"},
    "sequential": {"method": "sequential"},
    "combined": {"method": "centralised"},
}
VESSELS = {
    "task": "octa_segmentation",
    "run": {
        "rounds": 6,
        "batch_size": 4,
        "task_options": {"image_size": 64, "widths": [8, 16, 32, 64], "dropout": 0.1},
        "augmentation": {"copies": 2},
        "split": SPLIT,
    },
    "arms": COMPARATORS
    | {
        "combined, equal": {"method": "centralised", "images_per_site": 15},
        "mean": {"method": "mean"},
        "FedAvg": {"method": "fedavg"},
        "FedBN": {"method": "fedbn"},
    },
    "noise": [0.001, 0.01],
    "scores": [
        "dice_mean",
        "iou_mean",
        "accuracy_mean",
        "auroc_mean",
        "auprc_mean",
        "sensitivity_mean",
        "specificity_mean",
    ],
}
RETINOPATHY = {
    "task": "dr_staging",
    "run": {
        "rounds": 10,
        "batch_size": 4,
        "learning_rate": {"initial": 0.02, "factor": 1.0, "period": 1},
        "task_options": {"encoder": "small", "weights": "random", "image_size": 96},
    },
    "folds": {"outer": 3, "inner": 1},  # so few images: each is tested on once
    "seeds": [1, 2],
    "arms": COMPARATORS
    | {
        "combined, equal": {"method": "centralised", "images_per_site": 3},
        "FedAvg": {"method": "fedavg"},
        "FedBN": {"method": "fedbn"},
        "FedUAA": {"method": "feduaa"},
    },
}


def octa(source: Path, root: Path) -> list[str]:
    """Links every fourth image of both sites."""
    sites = []
    for name in ("rossa_manual", "rossa_semiautomatic"):
        sites.append(name.replace("_", "-"))
        for kind in ("images", "masks"):
            for path in sorted((source / name / kind).iterdir())[::4]:
                link_file(path, root / sites[-1] / kind / path.name)
    return sites


def retinopathy(source: Path, root: Path) -> list[str]:
    """Deals the photographs of two classes out to two sites."""
    grades = {"healthy": 0, "diabetic_retinopathy": 1}
    rows = [row for row in csv.DictReader((source / "labels.csv").open(encoding="utf-8")) if row["class"] in grades]
    files = {path.stem: path for path in (source / "images").iterdir()}
    for number, site in enumerate(("hrf-odd", "hrf-even")):
        own = [row for row in rows if int(row["id"].split("_")[0]) % 2 != number]
        for row in own:
            link_file(files[row["id"]], root / site / "images" / files[row["id"]].name)
        lines = [f"{row['id']},{grades[row['class']]}" for row in own]
        (root / site / "labels.csv").write_text("\n".join(["id,grade", *lines]) + "\n")
        (root / site / "grades.txt").write_text("healthy\nretinopathy\n")
    return ["hrf-odd", "hrf-even"]


STUDIES: dict[str, tuple[dict[str, object], Callable[[Path, Path], list[str]]]] = {
    "octa": (VESSELS, octa),
    "retinopathy": (RETINOPATHY, retinopathy),
}


def main() -> None:
    """Run one study and record it."""
    which, source = sys.argv[1:]
    settings, lay_out = STUDIES[which]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        sites = lay_out(Path(source).resolve(), root / "data")
        study = {"study": which, "data": {site: f"data/{site}" for site in sites}, "seeds": SEEDS, **settings}
        (root / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
        command = [sys.executable, "-m", "studies.cli", "run", str(root / "study.yaml")]
        subprocess.run(command, check=True)
        home, name = root / "study", f"study-{which}"
        tables = {
            path.stem: list(csv.reader(path.open(encoding="utf-8"))) for path in sorted((home / "tables").iterdir())
        }
        shown = f".venv/bin/python -m benchmarks.studies {which} DIR"
        record(name, shown, {"study": study, "tables": tables})
        (RESULTS / f"{name}.md").write_text(_markdown(name, shown, tables))
        shutil.copyfile(home / "figures" / "arms.png", RESULTS / f"{name}.png")
        print(json.dumps(tables["comparison"], indent=1))


def _markdown(name: str, command: str, tables: dict[str, list[list[str]]]) -> str:
    lines = [f"# {name}", "", f"`{command}`; machine, date and commit in `{name}.json`.", ""]
    lines += [f"![Every arm]({name}.png)", ""]
    for table in ("comparison", "by-site", "tests", "uncertainty", "elsewhere", "noise", "fairness", "cost"):
        if table in tables:
            header, *rows = tables[table]
            lines += [f"## {table}", "", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
            lines += ["| " + " | ".join(map(_short, row)) + " |" for row in rows]
            lines.append("")
    return "\n".join(lines)


def _short(cell: str) -> str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3f}"


if __name__ == "__main__":
    main()
