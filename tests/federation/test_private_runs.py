"""Runs that promise (ε, δ): what leaves, what it says it cost, where the noise comes from, and what is refused."""

import json
import stat
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from aggregator.cli import main
from shared.audit.verify import verify
from shared.errors import ConfigurationError
from shared.exchange import names
from shared.exchange.names import METRICS, MessageRef
from shared.exchange.tables import EPSILON, read_metrics
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from shared.learning.run_checks import check_together
from site_client.configuration import Policy
from site_client.policy import judge
from site_client.train import RequirementsOf
from studies.simulation import open_sites, run_rounds
from tests.federation.in_process import FederationInProcess
from tests.federation.running import RUN, make_data, own_logins, run_configuration, staging_run

EPSILON_WANTED = 6.0
PRIVACY = {"max_grad_norm": 1.0, "delta": 0.01, "target_epsilon": EPSILON_WANTED}
ONE_VIEW = {"copies": 1, "originals": False}


def private_run(**changes):
    return run_configuration(
        **({"method": "fedavg", "rounds": 2, "privacy": PRIVACY, "augmentation": ONE_VIEW} | changes)
    )


def private_staging(**changes):
    return staging_run(**({"method": "fedavg", "privacy": PRIVACY} | changes))


def data_of(run, root, images=20):
    make_data(run, root, images)
    return {site: root / site for site in run.sites}


@pytest.mark.parametrize(
    "run",
    [
        private_run(),
        private_staging(method="fedrep", batch_size=10),  # all images in each step: that ε is reckoned at once
        pytest.param(private_staging(method="fedrep"), marks=pytest.mark.long),
        pytest.param(private_run(method="scaffold", method_options={}), marks=pytest.mark.long),
        *(pytest.param(private_staging(method=name), marks=pytest.mark.long) for name in ("fedprox", "moon", "fedee")),
    ],
    ids=lambda run: f"{run.task}-{run.method}-{run.batch_size}",
)
def test_a_run_costs_in_the_end_what_it_promised_and_no_batchnorm_is_in_it(run, tmp_path):
    outcome = run_rounds(run, data_of(run, tmp_path / "data"), tmp_path / "home")
    for spent in outcome.spent.values():
        assert 0.9 * EPSILON_WANTED < spent <= EPSILON_WANTED
    sent = load_file(tmp_path / f"home/runs/{RUN}/rounds/0002/aggregate.safetensors")
    assert not [name for name in sent if "running" in name]
    assert all(np.isfinite(tensor).all() for tensor in sent.values())


def test_the_noise_is_the_sites_own_and_a_round_done_again_repeats_it(tmp_path):
    privacy = {"max_grad_norm": 1.0, "delta": 0.01, "noise_multiplier": 1.0}  # what keeps within ε is searched for long
    run = private_run(rounds=1, sites=["north"], quorum=1, privacy=privacy)
    data = data_of(run, tmp_path / "data")
    for home in ("one", "other"):
        run_rounds(run, data, tmp_path / home)
    trained = f"runs/{RUN}/sites/north/0001.trained.safetensors"
    models = [(tmp_path / home / trained).read_bytes() for home in ("one", "other")]
    assert stat.S_IMODE((tmp_path / "one/noise/north").stat().st_mode) == 0o600
    assert models[0] != models[1]  # the run's seed, which is in the folder, does not decide the noise
    (tmp_path / "again").mkdir()
    (tmp_path / "one" / "noise").rename(tmp_path / "again" / "noise")
    run_rounds(run, data, tmp_path / "again")
    assert (tmp_path / "again" / trained).read_bytes() == models[0]


def test_the_daemons_tell_what_was_spent_and_nothing_of_the_training_images(tmp_path):
    run = private_run()
    with FederationInProcess(tmp_path, run, images=20) as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        federation.change(federation.aggregator / "aggregator.yaml", track={"tensorboard": "curves"})
        secrets: dict[str, Path] = {site: federation.site(site) / "noise" / RUN for site in run.sites}
        federation.run_to_the_end(
            before_stop=lambda: federation.wait_until(lambda: not any(path.exists() for path in secrets.values()))
        )
        for site in run.sites:
            folder = federation.folder(site)
            assert not verify(LocalFolder(folder)).findings
            spent = []
            for round_no in (1, 2):
                table = read_metrics(
                    (folder / MessageRef("update", RUN, round_no).path / METRICS).read_bytes(), METRICS
                )
                assert {row.split for row in table} == {"validation", "test"}
                (told,) = [row.scores[EPSILON] for row in table if row.scores[EPSILON] is not None]
                verdict = json.loads((folder / MessageRef("verdict", RUN, round_no).path / names.VERDICT).read_bytes())
                assert float(verdict["epsilon"]) == told
                spent.append(told)
            assert 0 < spent[0] < spent[1] <= EPSILON_WANTED
            card = json.loads((folder / MessageRef("final", RUN).path / names.CARD).read_bytes())
            assert float(card["epsilon"][site]) == spent[1]
            assert (federation.site(site) / "final" / RUN / "card.yaml").exists()
            for path in folder.rglob("*"):
                assert "noise" not in path.name
        drawn = [path.name for path in (federation.aggregator / "curves").glob(f"{RUN}-*/*")]
        assert len(drawn) == (3 if find_spec("tensorboard") else 0)
        output = tmp_path / "exported"
        result = CliRunner().invoke(
            main, ["export", RUN, "--work", str(federation.aggregator), "--output", str(output)]
        )
        assert result.exit_code == 0, result.output
        found = json.loads((output / "model-card.json").read_bytes())
        assert {site: float(epsilon) for site, epsilon in card["epsilon"].items()} == {
            site: found["sites"][site]["epsilon"] for site in run.sites
        }
        assert hash_file(output / names.FINAL_MODEL)[1] == federation.final_sha256() == found["model"]["sha256"]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (private_staging(method="fedbn"), "BatchNorm"),
        (private_staging(method="feduaa"), "BatchNorm"),
        (private_staging(method="fedap"), "BatchNorm"),
        (private_staging(method="fedee", method_options={"base": "fedbn"}), "BatchNorm"),
        (private_staging(method="mdt"), "features of validation images"),
        (private_run(augmentation={"copies": 5}), "shows each image 6 times"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.method,
)
def test_what_would_void_the_promise_is_refused_at_both_ends(run, reason, tmp_path):
    with pytest.raises(ConfigurationError, match=reason):
        check_together(run)
    honest = run.model_copy(update={"privacy": None})
    site = open_sites(honest, {"north": data_of(run, tmp_path)["north"]}, tmp_path)[1]["north"]
    object.__setattr__(site.trainer, "run", run)
    with pytest.raises(ConfigurationError, match=reason):
        RequirementsOf(run=run).answer(lambda percent: None)


@pytest.mark.parametrize(
    ("privacy", "answer"),
    [
        (None, "no"),
        (PRIVACY, "yes"),
        (PRIVACY | {"target_epsilon": 7.0}, "no"),
        ({"max_grad_norm": 1.0, "delta": 0.01, "noise_multiplier": 1.0}, "no"),
    ],
)
def test_a_hospital_may_take_part_in_private_runs_alone(privacy, answer):
    policy = Policy(consent="auto", max_epsilon=EPSILON_WANTED, max_delta=0.01)
    assert judge(policy, private_run(privacy=privacy), None).answer == answer
    assert judge(Policy(consent="auto", max_delta=0.01), private_run(privacy=privacy), None).answer == "yes"
