"""Every figure of README and docs: by which command it is measured, of what, and whether that has changed since.

    .venv/bin/python -m benchmarks.figures [--octa DIR] [--hrf DIR] [--fundus DIR] [--exudates DIR] [NAME ...]
    .venv/bin/python -m benchmarks.figures --mark

The first measures all of them, or those named, one after the other at one commit, which takes days; those of images
that are not at hand it leaves out. Either writes ``benchmarks/results/README.md``, where figures are marked that are
older than what they measure.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.record import CHANGES, RESULTS, commit, git, given_folder
from benchmarks.study_designs import UNEQUAL

PAGE = RESULTS / "README.md"
FOLDERS = {
    (OCTA := "OCTA"): "OCTA images: rossa_manual, rossa_semiautomatic, …",
    (HRF := "HRF"): "the HRF set: images and labels.csv",
    (FUNDUS := "FUNDUS"): "photographs with vessels: one folder per site",
    (EXUDATES := "EXUDATES"): "photographs with exudates: one folder per site",
}
"""What stands in a command for a folder, and the images in it."""
_DAEMONS = ("aggregator", "site_client", "shared")
_MODEL = tuple(
    f"tests/model_check/{name}.py"
    for name in (
        *("__main__", "director", "exchanges", "explorer", "folder_sync", "hospital", "numbered", "properties"),
        *("reduced", "rules", "state", "whole"),
    )
)
_DECISIONS = (
    "aggregator/rounds.py",
    "aggregator/facts.py",
    "aggregator/look.py",
    "site_client/rounds.py",
    "site_client/facts.py",
    "shared/exchange/order.py",
    *_MODEL,
)
_LEARNING = ("shared/learning", "studies/simulation.py", "deploy/local/scenarios.py", "benchmarks/comparison.py")
_DEMO = ("shared/learning", "studies", "deploy/local", "configs", "aggregator/new_run.py", "benchmarks/demo.py")
_STUDY = ("shared/learning", "studies", "benchmarks/studies.py", "benchmarks/study_designs.py")


@dataclass(frozen=True)
class Figure:
    """One result.

    Args:
        name: of its files in ``benchmarks/results``.
        command: what follows ``python -m``.
        measured: files and folders that decide what comes out.
    """

    name: str
    command: str
    measured: tuple[str, ...]


MODEL_CHECK = Figure("model-check", "tests.model_check", _DECISIONS)
FIGURES = (
    Figure(
        "exchange",
        "benchmarks.exchange",
        (
            "shared/exchange",
            "shared/folder",
            "shared/learning/combine.py",
            "shared/learning/aggregation.py",
            "aggregator/daemon.py",
            "aggregator/preparation.py",
            "aggregator/folder_sync.py",
            "site_client/daemon.py",
            "site_client/round_work.py",
            "site_client/heartbeat.py",
            "deploy/local/webdav_server.py",
            "deploy/local/atomic_files.py",
            "benchmarks/exchange*.py",
            "benchmarks/memory.py",
            "benchmarks/peers",
        ),
    ),
    Figure(
        "exchange-idle",
        "benchmarks.exchange_idle",
        (
            "shared/polling.py",
            "shared/exchange",
            "aggregator/daemon.py",
            "site_client/daemon.py",
            "site_client/heartbeat.py",
        ),
    ),
    Figure("soak", "tests.faults.soak --minutes 60", (*_DAEMONS, "tests/faults")),
    Figure("clouds", "tests.faults.soak --clouds 200", (*_DAEMONS, "tests/faults", "tests/folder/owncloud*.py")),
    Figure("fuzz", "tests.fuzz.run --minutes 60", ("shared/doors", "shared/exchange", "tests/fuzz")),
    Figure(
        "long-tests",
        "benchmarks.long_tests",
        (
            "shared/learning/plugins.py",
            "shared/learning/models/encoders.py",
            "configs/monai_networks",
            "tests/federation/test_monai_plugin.py",
        ),
    ),
    Figure(
        "monai-tests",
        "benchmarks.long_tests monai",
        (
            "shared/learning/plugins.py",
            "shared/learning/models/encoders.py",
            "shared/learning/shapes.py",
            "aggregator/monai_bundle.py",
            "configs/monai_networks",
            "tests/federation/test_monai_plugin.py",
            "tests/learning/test_shapes.py",
            "tests/test_export_forms.py",
        ),
    ),
    MODEL_CHECK,
    Figure(
        "model-check-replay", "tests.model_check.replay --walks 1000", (*_DAEMONS, *_MODEL, "tests/model_check/replay")
    ),
    Figure(
        "partial_training",
        "benchmarks.partial_training",
        ("shared/learning/models", "shared/learning/sharing.py", "benchmarks/partial_training.py"),
    ),
    Figure(
        "tolerance",
        f"benchmarks.tolerance --octa {OCTA} --fundus {FUNDUS}",
        (*_LEARNING, "benchmarks/tolerance.py"),
    ),
    *(
        Figure(
            f"training-choices-{name.lower()}",
            f"benchmarks.training_choices {name.lower()} {name}",
            (*_LEARNING, "benchmarks/training_choices.py"),
        )
        for name in (OCTA, FUNDUS, EXUDATES)
    ),
    Figure(
        "training-choices-staging",
        "benchmarks.training_choices staging",
        (*_LEARNING, "benchmarks/training_choices.py"),
    ),
    *(
        Figure(
            f"first-run-{name.lower()}",
            f"benchmarks.demo first-run-{name.lower()} --data {name} --as-suggested",
            _DEMO,
        )
        for name in (OCTA, FUNDUS, EXUDATES)
    ),
    Figure(
        "cross-tested-exudates",
        f"benchmarks.cross_tested exudates {EXUDATES}",
        (*_LEARNING, "aggregator/new_run.py", "benchmarks/cross_tested.py"),
    ),
    Figure("wire", "benchmarks.wire", ("shared/exchange", *_LEARNING, "benchmarks/wire.py")),
    Figure("training", "benchmarks.training", ("shared/learning", "benchmarks/training.py")),
    Figure("demo", "benchmarks.demo demo", _DEMO),
    Figure("demo-dr-staging", "benchmarks.demo demo-dr-staging --task dr_staging", _DEMO),
    Figure("dr-methods", "benchmarks.dr_methods", (*_LEARNING, "benchmarks/dr_methods.py")),
    Figure("methods-grading", "benchmarks.methods grading", (*_LEARNING, "benchmarks/methods.py")),
    Figure("methods-vessels", f"benchmarks.methods vessels {OCTA}", (*_LEARNING, "benchmarks/methods.py")),
    Figure(
        "real-octa-vessels",
        f"benchmarks.demo real-octa-vessels --data {OCTA} --rounds 4 --image-size 96",
        _DEMO,
    ),
    Figure(
        "vessel-objectives-octa",
        f"benchmarks.vessel_objectives octa {OCTA} rossa_manual rossa_semiautomatic",
        (*_LEARNING, "benchmarks/vessel_objectives.py"),
    ),
    Figure("study-octa", f"benchmarks.studies octa {OCTA}", _STUDY),
    Figure("study-retinopathy", f"benchmarks.studies retinopathy {HRF}", _STUDY),
    Figure("study-octa-at-length", f"benchmarks.studies octa-at-length {OCTA}", _STUDY),
    Figure("study-octa-comparators", f"benchmarks.studies octa-comparators {OCTA}", _STUDY),
    Figure("study-fundus-at-length", f"benchmarks.studies fundus-at-length {FUNDUS}", _STUDY),
    *(
        Figure(f"study-{name}", f"benchmarks.studies {name}", _STUDY)
        for name in ("feduaa-1", "feduaa-2", "theta", "theta-sound", "pays", "fedee", "fedee-signals", *UNEQUAL)
    ),
    Figure("neighbours", "benchmarks.neighbours", (*_STUDY, "benchmarks/neighbours.py", "benchmarks/break_even.py")),
)


def measure(figures: tuple[Figure, ...], folders: Mapping[str, Path]) -> list[str]:
    """Measure at the present commit; return the names of those that failed.

    Raises:
        SystemExit: files are changed, or become so: not all would be measured at one commit.
    """
    at = commit()
    failed = []
    for figure in figures:
        if at.endswith(CHANGES) or commit() != at:
            raise SystemExit(
                "all figures are measured at one commit: commit what is changed, and leave it until the end"
            )
        words = figure.command.split()
        if missing := set(FOLDERS) & set(words) - set(folders):
            print(f"{figure.name}: left out, because it needs --{missing.pop().lower()} DIR", flush=True)
            continue
        print(f"{figure.name} ...", flush=True)
        command = [str(folders.get(word, word)) for word in words]
        if subprocess.run([sys.executable, "-m", *command], check=False).returncode != 0:
            failed.append(figure.name)
    return failed


def page() -> str:
    """Return every figure, and whether what it measures is still as it was.

    Raises:
        OSError, CalledProcessError: there is no git.
    """
    return "\n".join(
        [
            "# Figures",
            "",
            "`make figures` measures all of them at one commit. `.venv/bin/python -m benchmarks.figures --mark` writes",
            "this page. A figure is current as long as none of the files that decide it has changed since its commit;",
            "`benchmarks/figures.py` lists them. An older one may still be right: nobody has measured it again.",
            "`earlier/` has records that a newer one does not replace as a whole.",
            "",
            "| figure | command, `python -m …` | measured | now |",
            "|---|---|---|---|",
            *(f"| {figure.name} | `{figure.command}` | {' | '.join(_state(figure))} |" for figure in FIGURES),
            "",
        ]
    )


def _state(figure: Figure) -> Iterator[str]:
    """Yield when a figure was measured, and whether it still holds."""
    path = RESULTS / f"{figure.name}.json"
    if not path.exists():
        yield from ("never", "not measured yet")
        return
    recorded = json.loads(path.read_bytes())
    at: str = recorded["commit"]
    yield f"{recorded['date']}, {at[:9]}" + (" with changes" if at.endswith(CHANGES) else "")
    yield "current" if is_current(figure, at) else "**older than what it measures**"


def is_current(figure: Figure, at: str) -> bool:
    """Return whether nothing that decides a figure has changed since a commit; comments and docstrings decide none."""
    if at.endswith(CHANGES):
        return False
    try:
        changed = git("diff", "--name-only", "--no-renames", at, "--", *(f":/{path}" for path in figure.measured))
    except subprocess.CalledProcessError:
        return False  # there is no such commit here
    return all(name.endswith(".py") and _does_the_same(name, at) for name in changed.splitlines())


def _does_the_same(name: str, at: str) -> bool:
    """Return whether a Python file, named from the repository's root, has the statements that it had at a commit."""
    path = Path(git("rev-parse", "--show-toplevel"), name)
    if not path.exists():
        return False
    try:
        before = git("show", f"{at}:{name}")
    except subprocess.CalledProcessError:
        return False  # there was none
    return _statements(before) == _statements(path.read_text())


def _statements(source: str) -> str:
    """Return what a Python file does, without its comments and strings that stand alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [  # type: ignore[attr-defined]
                statement
                for statement in body
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
            ]
    return ast.dump(tree)


def main() -> int:
    """Measure and mark; return 1 if something could not be measured."""
    options = ArgumentParser(prog="python -m benchmarks.figures")
    options.add_argument("names", nargs="*", metavar="NAME", help="of those to be measured (default: all)")
    for name, images in FOLDERS.items():
        options.add_argument(f"--{name.lower()}", type=partial(given_folder, doc=__doc__), metavar="DIR", help=images)
    options.add_argument("--mark", action="store_true", help="measure nothing")
    chosen = options.parse_args()
    known = {figure.name: figure for figure in FIGURES}
    if unknown := [name for name in chosen.names if name not in known]:
        options.error(f"{', '.join(unknown)}: not among {', '.join(known)}")
    folders = {name: path for name in FOLDERS if (path := getattr(chosen, name.lower())) is not None}
    wanted = tuple(known[name] for name in chosen.names) or FIGURES
    failed = [] if chosen.mark else measure(wanted, folders)
    PAGE.write_text(page())
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
