"""docs/adding-a-method.md, followed word for word: its method runs through the real daemons, and is what it says."""

import math
import re
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from safetensors.numpy import load_file

from shared.audit.verify import verify
from shared.errors import PluginError
from shared.exchange.names import MessageRef
from shared.folder.local import LocalFolder
from shared.learning import methods
from shared.learning.methods import method_names, open_method
from shared.learning.methods.scaffold import Scaffold
from site_client.configuration import Policy
from studies.configuration import read_study
from studies.matrix import expand
from studies.simulation import run_rounds
from tests.federation.in_turns import in_turns
from tests.federation.running import POLICY, RUN, make_data, run_configuration

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The page's file, in its place."""
    (file,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "fedavgm.py").write_text(file, encoding="utf-8")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])


def run(method="fedavgm", **options):
    return run_configuration(method=method, rounds=3, method_options=options)


def test_it_is_a_method_once_its_file_is_there(added):
    assert "fedavgm" in method_names()
    assert open_method("fedavgm", {"beta": 0.5}).options.beta == 0.5


def test_its_study_is_one(added, tmp_path):
    assert methods_of(PAGE, tmp_path) == ["fedavg", "fedavgm"]


def test_the_study_to_begin_with_is_one(tmp_path):
    assert methods_of(PAGE.with_name("studies.md"), tmp_path) == ["fedavg", "fedbn"]


def methods_of(page, home):
    """Return the methods that the study on a page compares."""
    (study,) = re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (home / "STUDY.yaml").write_text(dedent(study), encoding="utf-8")
    chosen = read_study(home / "STUDY.yaml")
    for folder in chosen.data.values():
        (home / folder).mkdir(parents=True)
    return [cell.configuration.run.method for cell in expand(chosen, home)]


def test_the_velocity_is_the_papers_and_without_it_this_is_fedavg(added, tmp_path):
    make_data(run(), tmp_path / "data", 8)
    data = {site: tmp_path / "data" / site for site in run().sites}
    for home, chosen in (("with", run(beta=0.5)), ("without", run(beta=0.0)), ("fedavg", run("fedavg"))):
        run_rounds(chosen, data, tmp_path / home)

    def model(home, round_no):
        return load_file(tmp_path / home / f"runs/{RUN}/rounds/{round_no:04d}/aggregate.safetensors")

    name = "down.0.body.0.weight"
    v, w = 0.0, model("with", 0)[name].astype(np.float64)
    for round_no in (1, 2, 3):
        trained = (tmp_path / f"with/runs/{RUN}/sites").glob(f"*/{round_no:04d}.trained.safetensors")
        v = 0.5 * v + (w - np.mean([load_file(path)[name] for path in trained], axis=0))
        w = w - v
        assert model("with", round_no)[name] == pytest.approx(w, abs=1e-6)
    assert not np.allclose(model("with", 3)[name], model("fedavg", 3)[name])
    for tensor, expected in model("fedavg", 3).items():
        assert model("without", 3)[tensor] == pytest.approx(expected, abs=1e-6)


DECLARES = """
from shared.learning.methods.contract import Groups
from shared.learning.methods.fedavg import FedAvg
class Odd(FedAvg):
    name = "odd"
    def groups(self, network, sharing):
        return Groups(trained={"velocity": sharing.parameters})
"""
MEASURES = """    def measure(self, local):
        local.sent["wrong"] = {}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (DECLARES, r"groups\(\) left in local.sent\['velocity'\] no such tensor as .*\(odd.py, line 6\); ask who"),
        (DECLARES + MEASURES, r"measure\(\) wrote local.sent\['wrong'\], and groups\(\) .*\(odd.py, line 8\); ask who"),
    ],
)
def test_what_it_does_not_make_or_does_not_declare_is_told_with_its_own_line(tmp_path, monkeypatch, text, said):
    folder = tmp_path / "methods"
    folder.mkdir()
    (folder / "odd.py").write_text(text)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, f"{methods.__name__}.odd", raising=False)
    chosen = run_configuration(method="odd", rounds=1)
    make_data(chosen, tmp_path / "data", 8)
    with pytest.raises(PluginError, match=said):
        run_rounds(chosen, {site: tmp_path / "data" / site for site in chosen.sites}, tmp_path / "home")


def test_what_has_diverged_beside_a_model_does_not_count_in_a_simulation_either(tmp_path, monkeypatch, caplog):
    finish = Scaffold.finish

    def diverging(method, local):
        finish(method, local)
        for tensor in local.sent["control"].values():
            tensor.fill_(math.nan)

    monkeypatch.setattr(Scaffold, "finish", diverging)
    chosen = run_configuration(method="scaffold", rounds=1)
    make_data(chosen, tmp_path / "data", 8)
    outcome = run_rounds(chosen, {site: tmp_path / "data" / site for site in chosen.sites}, tmp_path / "home")
    for site, verdict in outcome.verdicts[1].items():
        assert verdict.status == "omitted"
        assert "state-control.safetensors: " in verdict.reason and "finite" in verdict.reason
        assert f"round 1: the answer of {site} does not count: {verdict.reason}" in caplog.messages


def test_it_runs_through_the_daemons(added, tmp_path):
    policy = Policy(**POLICY.model_dump(exclude={"methods"}))  # as joined now that the file is there
    federation = in_turns(tmp_path, run(), images=8, policy=policy)
    rounds = federation.aggregator / "runs" / RUN / "rounds"
    assert all((rounds / f"{number:04d}" / "state-velocity.safetensors").exists() for number in range(4))
    for site in federation.run.sites:
        folder = federation.folder(site)
        assert not verify(LocalFolder(folder)).findings
        sent = {path.name for path in (folder / MessageRef("round", RUN, 2).path).iterdir()}
        assert sent == {"config.yaml", "global.safetensors", "manifest.json"}
