"""Every command that needs a plug-in has it work in a process of its own, which is given no key and no password."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner, Result

from aggregator.cli import main as aggregator
from aggregator.configuration import AggregatorConfiguration
from aggregator.onnx_file import TOLERANCE
from shared.audit.cli import main as audit
from shared.exchange import names
from shared.exchange.reading import dump_values, parse_yaml
from shared.exchange.records.run import Plugin
from shared.folder.durable import write_file
from shared.learning import plugins
from shared.learning.apart import environment_of
from shared.learning.kept_model import untrained_network, with_weights
from shared.learning.methods import open_method
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from site_client.cli import main as site
from site_client.configuration import SiteConfiguration
from tests.federation.running import POLICY, TINY
from tests.installed_wheel import install_wheel
from tests.learning.exports import write_export
from tests.learning.small_sites import write_small
from tests.played import RUN, ended_run

WHO = "plug-in dropfed-watched 0.1.0"
SECRETS = {"DROPFED_PASSWORD": "the password of the folder", "OWNCLOUD_TOKEN": "the token of the cloud"}
WORKS, KEYS = ("aggregator", "north", "encrypted/aggregator", "encrypted/north"), ("signing.key", "encryption.key")
MODULE = '''
import json, os, sys, time
from pathlib import Path

import numpy as np
import dropfed
from shared.learning.tasks.octa_segmentation.task import OctaSegmentation

PLACE = Path({place!r})
descriptors = [os.path.realpath(f"/proc/self/fd/{{number}}") for number in os.listdir("/proc/self/fd")]
asked = Path(os.readlink("/proc/self/fd/1")).with_name("question.json")
question = asked.read_text() if asked.exists() else ""
seen = {{"environment": dict(os.environ), "arguments": sys.argv, "descriptors": descriptors, "question": question}}
(PLACE / f"{{os.getpid()}}.json").write_text(json.dumps(seen))
print("what a plug-in prints disturbs nobody")


class Watched(OctaSegmentation):
    """Vessels, but for what it is told to do with labelled images."""

    name = "watched"

    def open_images(self, root, options):
        match (PLACE / "does").read_text():
            case "raises":
                raise RuntimeError("of its own")
            case "hangs":
                time.sleep(600)
            case "eats":
                np.empty(8 << 30, np.uint8)
            case "exits":
                sys.exit(0)
            case "answers nonsense":
                return 3
        return super().open_images(root, options)


def compute(probabilities, truth):
    return 5.0 if (PLACE / "does").read_text() == "scores 5" else 0.25


quarter = dropfed.Measure(compute, dropfed.Range(lowest=0.0, highest=1.0))
'''
LINE = MODULE[: MODULE.index("of its own")].count("\n") + 1  # on which it raises


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A federation that has ended a run of the plug-in's task; the wheel is installed for every process of this one."""
    root = tmp_path_factory.mktemp("watched")
    (root / "place").mkdir()
    modules = {"watched.py": MODULE.format(place=str(root / "place"))}
    entry_points = "[dropfed.tasks]\nwatched = watched:Watched\n[dropfed.scores]\nquarter = watched:quarter\n"
    with pytest.MonkeyPatch.context() as patch:
        install_wheel(root / "installed", "watched", modules, entry_points, patch)
        for name, value in SECRETS.items():
            patch.setenv(name, value)
        _federation(root)
        yield root


def _federation(root: Path) -> None:
    network = write_export(root / "model", task="octa_segmentation", method="mean", task_options=TINY)
    listed = sharing(task_named("octa_segmentation"), open_method("mean", {}), network)
    run: dict[str, Any] = {
        "task": "watched",
        "plugins": [wheel()],
        "scores": {"quarter": {"lowest": 0.0, "highest": 1.0}},
    }
    _, store = ended_run(root, chosen=(listed, root / "model" / names.FINAL_MODEL), **run)
    write_file(store.aggregate_path(1), (root / "model" / names.FINAL_MODEL).read_bytes())
    ended_run(root / "encrypted", encrypt="all", **run)
    write_small("octa_segmentation", root / "data", images=10, size=64)
    allowed, folders = {wheel().name: wheel().sha256}, {"watched": str(root / "data")}
    _change(root / "aggregator" / "aggregator.yaml", AggregatorConfiguration, plugins=allowed, heldout=folders)
    policy = POLICY.model_copy(update={"plugins": allowed, "tasks": ["watched"]}).model_dump()
    _change(root / "north" / "site.yaml", SiteConfiguration, policy=policy, data=folders)
    (root / "aggregator" / "passwords" / "north").write_text("the aggregator's password")


def _change(file: Path, form: Any, **changes: object) -> None:
    file.write_bytes(dump_values(parse_yaml(file.read_bytes(), form, file.name).model_dump() | changes))


def wheel() -> Plugin:
    """As offers name it."""
    return plugins.described(plugins.distributions()["dropfed-watched"])


@pytest.fixture(autouse=True)
def does(home: Path) -> Iterator[Path]:
    """The file that says what the plug-in is to do. Whatever it was asked was in another process, and showed no key."""
    told = home / "place" / "does"
    told.write_text("")
    yield told
    assert "watched" not in sys.modules
    seen = {path.stem: path.read_text() for path in (home / "place").glob("*.json")}
    assert seen or told.read_text() == "hangs"  # its minutes may be over before it is asked anything
    assert str(os.getpid()) not in seen
    kept = [(home / who / key).read_text().strip() for who in WORKS for key in KEYS]
    for text in seen.values():
        assert not [secret for secret in (*kept, *SECRETS.values(), "the aggregator's password") if secret in text]
        assert not [path for path in json.loads(text)["descriptors"] if str(home) in path]
    for path in (home / "place").glob("*.json"):
        path.unlink()


@pytest.fixture(scope="module")
def exported(home: Path) -> tuple[Path, Result]:
    """What ``export`` writes of the plug-in's model, and what it says."""
    (home / "place" / "does").write_text("")
    output = home / "exported"
    asked = ["export", RUN, "--work", str(home / "aggregator"), "--output", str(output), "--onnx", "--monai"]
    return output, CliRunner().invoke(aggregator, asked)


# --- the commands -------------------------------------------------------------------------------------------------


def test_export_writes_onnx_that_answers_as_pytorch(home: Path, exported: tuple[Path, Result]) -> None:
    folder, result = exported
    assert result.exit_code == 0, result.output
    card = json.loads((folder / "model-card.json").read_text(encoding="utf-8"))
    assert card["onnx"]["inputs_compared"] == 10 and card["onnx"]["largest_difference"] < TOLERANCE
    task = task_named("octa_segmentation")  # whose network it is
    network = untrained_network(task.name, TINY, "mean", {}, classes=2, is_private=False)
    with_weights(network, str(folder / names.FINAL_MODEL))
    images = task.open_images(home / "data", task.options(TINY)).samples
    inputs, _ = task.collate(images)
    assert len(inputs) == 10
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    probabilities, _ = session.run(None, {"inputs": inputs.numpy()})
    with torch.no_grad():
        expected = network(inputs).softmax(dim=1)
    assert np.abs(probabilities - expected.numpy()).max() < TOLERANCE


def test_evaluate_tells_what_the_plugin_measures(home: Path, exported: tuple[Path, Result]) -> None:
    asked = ["evaluate", str(home / "data"), "--model", str(exported[0]), "--json", "--with-plugins"]
    result = CliRunner().invoke(aggregator, asked)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["images"], told["quarter"]) == (10, 0.25)


def test_predict_at_a_site(home: Path, exported: tuple[Path, Result], tmp_path: Path) -> None:
    asked = ["predict", str(home / "data" / "images"), "--work", str(home / "north"), "--model", str(exported[0])]
    result = CliRunner().invoke(site, [*asked, "--output", str(tmp_path / "answers"), "--with-plugins"])
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        f"10 images by the model of {RUN}, θ 0.5000: {tmp_path / 'answers' / 'predictions.csv'}\n"
        "For research only, not for diagnosis: no decision about a patient may rest on these answers.\n"
    )
    assert len(list((tmp_path / "answers" / "masks").iterdir())) == 10


@pytest.mark.long
def test_check_at_a_site(home: Path) -> None:
    result = CliRunner().invoke(site, ["check", "--work", str(home / "north")])
    lines = result.stdout.splitlines()
    assert f"ok       plug-in {wheel().in_full}: allowed; provides task watched, score quarter" in lines
    assert f"ok       watched: 10 labelled images in {home / 'data'}; classes: background, vessel" in lines
    assert any(line.startswith(f"ok       watched: run {RUN} divides them into train") for line in lines)


@pytest.mark.long
def test_the_pages_of_a_report(home: Path, tmp_path: Path) -> None:
    asked = ["report", RUN, "--work", str(home / "aggregator"), "--pages", str(tmp_path / "pages")]
    result = CliRunner().invoke(aggregator, asked)
    assert (result.exit_code, result.output) == (0, f"wrote {tmp_path / 'pages' / 'report.html'}\n")
    page = (tmp_path / "pages" / "report.html").read_text(encoding="utf-8")
    assert "10, classes: background, vessel" in page


def test_replay_of_an_encrypted_run(home: Path) -> None:
    """The process is given what opens this run, and nothing that opens another."""
    key = home / "encrypted" / "aggregator" / "encryption.key"
    asked = ["replay", RUN, str(home / "encrypted" / "drop"), "--secret-key", str(key)]
    lacking = CliRunner().invoke(audit, asked)
    assert lacking.exit_code == 2
    assert f"({wheel().sha256}); install its wheel, and pass --with-plugins to run it" in lacking.output
    result = CliRunner().invoke(audit, [*asked, "--with-plugins"])
    assert "offer, what travels: this software would offer other tensors for this run" in result.stdout, result.output
    assert result.exit_code == 1


# --- what a plug-in must not do -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forms", "said"),
    [
        ("raises", f"raised RuntimeError: of its own (watched.py, line {LINE}); ask who wrote it"),
        pytest.param(
            "hangs",
            "took more than the 0.2 minutes that the command line allows one piece of its work ",
            marks=pytest.mark.long,
        ),
        (
            "eats",
            "the memory is full; see what it does, or allow more (--plugin-memory-gb), or give it less to do at a time",
        ),
        pytest.param("scores 5", "came to the score quarter = 5.0, which is none of its range", marks=pytest.mark.long),
    ],
)
def test_evaluate_ends_with_one_sentence(
    home: Path, exported: tuple[Path, Result], does: Path, forms: str, said: str
) -> None:
    does.write_text(forms)
    asked = ["evaluate", str(home / "data"), "--model", str(exported[0]), "--with-plugins", "--plugin-memory-gb", "1"]
    result = CliRunner().invoke(aggregator, [*asked, "--plugin-minutes", "0.2" if forms == "hangs" else "10"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(f"{WHO}: {re.escape(said)}.*\n", result.stderr)


@pytest.mark.long
def test_check_tells_it_and_goes_on(home: Path, does: Path) -> None:
    does.write_text("answers nonsense")
    result = CliRunner().invoke(aggregator, ["check", "--work", str(home / "aggregator")])
    found = [line for line in result.stdout.splitlines() if "looking at the images of watched" in line]
    assert len(found) == 1 and found[0].startswith(f"problem  {WHO}, looking at the images of watched: raised ")
    assert result.exit_code == 1 and result.stdout.splitlines()[-1].startswith("in all ")


@pytest.mark.long
def test_a_report_is_made_without_it(home: Path, does: Path) -> None:
    does.write_text("exits")
    result = CliRunner().invoke(aggregator, ["report", RUN, "--work", str(home / "aggregator")])
    assert result.exit_code == 0, result.output
    unknown = f"The model's own cost is not known: {WHO}, looking at the model of {RUN}: what it came to cannot be read"
    assert unknown in result.stdout


# --- the bundle ---------------------------------------------------------------------------------------------------


OPENED = """
import json, sys
from shared.errors import ConfigurationError
from shared.learning.apart import environment_of
from shared.learning.kept_model import untrained_network, with_weights

described, weights = json.loads(sys.argv[1]), sys.argv[2]
try:
    untrained_network(**described, plugins=[{"name": "dropfed-watched", "version": "0.1.0", "sha256": "0" * 64}])
except ConfigurationError as error:
    print(error)
print("watched" in sys.modules)
with_weights(untrained_network(**described, plugins=json.loads(sys.argv[3])), weights)
print("watched" in sys.modules)
"""


@pytest.mark.long
def test_a_bundle_names_the_wheel_and_opens_where_just_that_is_installed(exported: tuple[Path, Result]) -> None:
    root = exported[0] / "monai"
    metadata = json.loads((root / "configs" / "metadata.json").read_text(encoding="utf-8"))
    assert metadata["required_packages_version"]["dropfed-watched"] == "0.1.0"
    described = json.loads((root / "configs" / "inference.json").read_text(encoding="utf-8"))["network_def"]
    assert described.pop("_target_").endswith("kept_model.untrained_network")
    needed, weights = json.dumps(described.pop("plugins")), root / "models" / "model.safetensors"
    command = [sys.executable, "-c", OPENED, json.dumps(described), str(weights), needed]
    opened = subprocess.run(command, env=environment_of(1), capture_output=True, text=True, check=False)
    assert opened.returncode == 0, opened.stderr
    differ, before, *_, after = opened.stdout.splitlines()
    assert differ.startswith(f"{WHO}: the files that are installed here, of 0.1.0, differ from the run's")
    assert (before, after) == ("False", "True")
