"""Who only verifies has no PyTorch: every command but ``replay`` does without it, and says so where one cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.lock import requirements
from shared.software import installing
from tests.audit.test_protocol_1 import unpacked
from tests.played import RUN, Played

TO_COMPUTE = ("PIL", "cv2", "imgaug", "matplotlib", "opacus", "scipy", "sklearn", "torch", "torchvision")
HIDDEN = f"import sys; sys.modules.update(dict.fromkeys({TO_COMPUTE}))\n"
"""Makes a Python that has none of them."""
ALL_COMMANDS = """
import json
from click.testing import CliRunner
from shared.audit.cli import main
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, (arguments, result.output)
"""
OLD = ("deep_ensembles", "fedee-over-fedap", "fedrep", "feduaa", "private", "sequential", "staging")


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDDEN + program, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_every_command_but_replay_does_without_it(played: Played, tmp_path: Path) -> None:
    north = str(played.drop)
    commands = [["verify"], ["timeline"], ["show", "1"], ["sent", "north"], ["diff", RUN, RUN], ["digest", RUN]]
    asked = [[*command, north] for command in [*commands, ["report", "--html", str(tmp_path / "page.html")]]]
    for name in OLD:
        unpacked(name, tmp_path / name)
        asked += [["verify", str(tmp_path / name / "north"), str(tmp_path / name / "south")]]
    finished = python(ALL_COMMANDS, json.dumps(asked))
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(
    ("program", "arguments", "extra", "code"),
    [
        ("shared.audit", ("replay", RUN, "."), "aggregator", 2),
        ("aggregator", ("launch", "RUN.yaml"), "aggregator", 1),
        ("site_client", ("run",), "site", 1),
    ],
)
def test_a_command_that_needs_it_says_what_to_install(
    program: str, arguments: tuple[str, ...], extra: str, code: int
) -> None:
    finished = python(f"from {program}.cli import main; main()", *arguments)
    sentence = f"this command needs torch, which is not installed here: run {installing(extra)}\n"
    assert (finished.returncode, finished.stdout, finished.stderr) == (code, "", sentence)


def test_only_who_computes_has_it_installed() -> None:
    def packages(*extras: str) -> set[str]:
        return {line.partition(">")[0] for line in requirements(*extras)}

    assert packages("audit") == {*packages(), "Jinja2"} and "torch" not in packages("audit")
    assert packages("site") >= packages("learning") >= {"torch", "torchvision"}
    assert packages("local") == packages("aggregator", "site") | {"wsgidav"} >= packages("audit")
