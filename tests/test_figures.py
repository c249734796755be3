"""Every figure is told by which command it was measured, and marked when what it measures has changed since."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import (
    cross_tested,
    exchange,
    figures,
    methods,
    record,
    studies,
    tolerance,
    training_choices,
    vessel_objectives,
)
from benchmarks.figures import FIGURES, PAGE, Figure, is_current, page
from benchmarks.record import RESULTS, git
from benchmarks.studies import page as page_of_study

ROOT = Path(__file__).parent.parent


def test_every_result_is_one_of_the_figures() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} <= {figure.name for figure in FIGURES}


def test_every_command_beside_a_figure_is_measured_by_make_figures() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    told = {command for text in texts for command in re.findall(r"-m (benchmarks\.\w+)", text.read_text())}
    assert told - {"benchmarks.figures"} <= {figure.command.split()[0] for figure in FIGURES}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("study-*.json")), ids=lambda path: path.stem)
def test_a_study_s_page_has_its_record_s_tables_with_the_tests_on_other_sites_images(path: Path) -> None:
    told = path.with_suffix(".md").read_text()
    assert told == page_of_study(path.stem), "run `python -m benchmarks.studies --pages`"
    assert "\n## tests-external\n" in told


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_what_a_figure_measures_is_there(figure: Figure) -> None:
    for path in figure.measured:
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize(
    ("content", "is_still_current"),
    [
        ('def add(a, b):\n    """Return the sum."""\n    return a + b  # in either order\n', True),
        ("def add(a, b):\n    return b + a\n", False),
        (None, False),
    ],
    ids=["comments", "statements", "deleted"],
)
def test_a_figure_is_older_once_a_statement_of_what_it_measures_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, is_still_current: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (measured := tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add sums"]):
        git("-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)
    figure, at = Figure("sums", "benchmarks.sums", ("sums.py",)), git("rev-parse", "HEAD")
    assert is_current(figure, at)
    if content is None:
        measured.unlink()
    else:
        measured.write_text(content)
    assert is_current(figure, at) is is_still_current
    assert not is_current(figure, "0" * 40)


def test_what_was_recorded_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    monkeypatch.setattr(record, "RESULTS", results)
    (recorded := results / "sums.json").write_text("{}\n")
    (measured := tmp_path / "sums.py").write_text("one = 1\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add sums"]):
        git("-c", "user.name=a", "-c", "user.email=a@example.org", *arguments)
    at = git("rev-parse", "HEAD")
    recorded.write_text("{1}\n")
    assert record.commit() == at
    measured.write_text("one = 2\n")
    assert record.commit() == f"{at}{record.CHANGES}"


def is_known(line: str) -> bool:
    """Whether the commit that a line of the page names is in this history."""
    named = re.search(r", ([0-9a-f]{9})\b", line)
    if named is None:
        return True
    return subprocess.run(["git", "cat-file", "-e", named[1]], stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_figures_that_are_older_than_what_they_measure_are_marked() -> None:
    try:
        is_shallow = git("rev-parse", "--is-shallow-repository") == "true"
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no git history here")
    if is_shallow:
        pytest.skip("the git history here does not go back far enough")
    told, found = PAGE.read_text().splitlines(), page().splitlines()
    assert len(told) == len(found)
    for before, now in zip(told, found, strict=True):
        # of a commit that is not in this history nobody can tell
        assert before == now or not is_known(now), "run `python -m benchmarks.figures --mark`"


@pytest.mark.parametrize(
    ("benchmark", "arguments"),
    [
        (methods, ["--help"]),
        (methods, ["vessels"]),
        (methods, ["vessels", "nowhere"]),
        (methods, []),
        (vessel_objectives, ["octa"]),
        (vessel_objectives, ["octa", "nowhere"]),
        (vessel_objectives, ["octa", ".", "nobody"]),
        (training_choices, ["octa", "nowhere"]),
        (cross_tested, ["exudates", "nowhere"]),
        (studies, ["octa", "nowhere"]),
        (tolerance, ["--octa", "nowhere"]),
        (figures, ["--octa", "nowhere"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value.__name__.rpartition(".")[2],
)
def test_a_benchmark_that_is_called_wrongly_says_how_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit, match=r"python -m benchmarks\."):
        benchmark.main()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["0"], "1 MB or more"),
        (["1", "--pairs", "1"], "2 pairs of rounds or more"),
        (["1", "--servers", "embedded,iis"], "iis: not among embedded"),
    ],
)
def test_the_exchange_is_not_measured_as_it_cannot_be(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    with pytest.raises(SystemExit):
        exchange.main(arguments)
    assert said in capsys.readouterr().err
