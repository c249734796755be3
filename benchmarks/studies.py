"""Studies whose tables the documentation shows.

    .venv/bin/python -m benchmarks.studies NAME [DIR]
    .venv/bin/python -m benchmarks.studies --pages

The second plays nothing: it writes every study's tables anew, from its record.

octa: vessels in OCTA images on a small budget. DIR holds ``rossa_manual`` and ``rossa_semiautomatic``, each with
``images`` and ``masks``; every fourth image is taken.
octa-at-length: the same with the third site, ``synthetic``, every other image, crops at full resolution, half the
published widths, and as many rounds as it takes; octa-comparators: beside the same arms the plain mean, one site
after the other, and all images in one place but equally many of each site.
retinopathy: healthy eyes against eyes with diabetic retinopathy in colour photographs. DIR is the HRF set, ``images``
and ``labels.csv`` with ``id`` and ``class``. There is one such set only: its photographs are dealt out to two sites in
turn, so the sites differ by chance alone.
theta: what θ is worth on synthetic photographs: of five sites one has 40 % wrong grades, one blurs, one has a scale of
its own; theta-sound: the same sites without these troubles.
fedee, fedee-signals: whether models know when they should be unsure, after FedEE: on theta-sound's photographs, and on
synthetic recordings under much noise.
feduaa-1, feduaa-2: after Tables 1 and 2 of FedUAA, on five synthetic sites of the paper's relative sizes.
fundus-at-length: vessels in photographs; DIR holds ``chase_db1``, ``hrf`` and ``fives``.
pays: when federating pays: four sites of synthetic photographs with 10 to 320 training images each.
unequal-0, ..., unequal-3: the same sites with 10, 40, 160 and 320 images, in each of them another site with 10.

Writes ``results/study-NAME.json``, ``.md`` (the tables) and ``.png`` (every arm's main score); of ``pays`` the score by
number of images too, and from where a site does as well alone. Cells lie in ``build/studies/NAME``; the same command
goes on where an earlier one was stopped. Of a study that was stopped ``results/cells/NAME`` keeps what its finished
cells came to, each with its machine, date and commit, so that another machine goes on.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks.break_even import break_even_table, draw
from benchmarks.finished_cells import FinishedCells
from benchmarks.record import RESULTS, given_folder, record
from benchmarks.study_designs import DESIGNS
from studies.analysis import cost_caption
from studies.configuration import Energy
from studies.results import CELLS

BUILD = Path("build/studies")
TABLES = (
    *("break-even", "comparison", "tuned", "by-site", "weights", "thetas", "chosen", "tests", "tests-external"),
    *("uncertainty", "elsewhere", "noise", "fairness", "cost"),
)


def main() -> None:
    """Run one study and record it."""
    which, *source = sys.argv[1:] or [""]
    if (which, source) == ("--pages", []):
        for path in RESULTS.glob("study-*.json"):
            path.with_suffix(".md").write_text(page(path.stem))
        return
    design = DESIGNS.get(which)
    if design is None or design.needs_images != bool(source):
        raise SystemExit(__doc__)
    images = given_folder(source[0] if source else ".", __doc__).resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what is finished is kept, as after Ctrl-C
    root = (BUILD / which).resolve()
    sites = _laid_out(which, root / "data", images)
    study = {"study": which, "data": {site: f"data/{folder}" for site, folder in sites.items()}, **design.settings}
    (root / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    command = [sys.executable, "-m", "studies.cli", "run", str(root / "study.yaml")]
    home, name = root / "study", f"study-{which}"
    cells = FinishedCells(home / CELLS, RESULTS / CELLS / which)
    cells.put_back()
    try:
        subprocess.run(command, check=True)
    finally:
        cells.keep()
    tables = {path.stem: list(csv.reader(path.open(encoding="utf-8"))) for path in sorted((home / "tables").iterdir())}
    shown = f".venv/bin/python -m benchmarks.studies {which}" + (" DIR" if design.needs_images else "")
    if design.by_images:
        tables["break-even"] = break_even_table(tables["comparison"], design.by_images)
        draw(tables["comparison"], design.by_images, RESULTS / f"{name}-by-images.png")
    record(name, shown, {"study": study, "tables": tables, "cells": cells.by_machine()})
    (RESULTS / f"{name}.md").write_text(page(name))
    shutil.copyfile(home / "figures" / "arms.png", RESULTS / f"{name}.png")
    cells.remove()  # the tables have what they came to
    print(json.dumps(tables["comparison"], indent=1))


def _laid_out(which: str, data: Path, source: Path) -> dict[str, str]:
    """Return the sites' folders, laid out anew: what is the same again is known by its names and sizes."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    return dict(DESIGNS[which].lay_out(data, source))


def page(name: str) -> str:
    """Return the tables that ``results/NAME.json`` has, as Markdown."""
    recorded = json.loads((RESULTS / f"{name}.json").read_bytes())
    return _markdown(name, recorded["command"], recorded["figures"]["study"], recorded["figures"]["tables"])


def _markdown(name: str, command: str, study: Mapping[str, object], tables: dict[str, list[list[str]]]) -> str:
    lines = [f"# {name}", "", f"`{command}`; machine, date and commit in `{name}.json`.", ""]
    lines += [f"![Every arm]({name}.png)", ""]
    if "break-even" in tables:
        lines += [f"![Score by number of images]({name}-by-images.png)", ""]
    for table in TABLES:
        if table in tables:
            header, *rows = tables[table]
            lines += [f"## {table}", ""]
            if table == "cost":
                lines += [cost_caption(Energy.model_validate(study.get("energy", {}))), ""]
            lines += ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
            lines += ["| " + " | ".join(map(_short, row)) + " |" for row in rows]
            lines.append("")
    return "\n".join(lines)


def _short(cell: str) -> str:
    try:
        number = float(cell)
    except ValueError:
        return cell
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    rounded = f"{number:.3f}"
    return rounded if float(rounded) or not number else f"{number:.2g}"


if __name__ == "__main__":
    main()
