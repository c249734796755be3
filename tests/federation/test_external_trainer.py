"""Sites that train by a program of their own, shut in: real federations, and programs that do what they must not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from aggregator.run_view import view_run
from aggregator.store import RunStore
from shared.audit.verify import lines, verify
from shared.exchange.names import METRICS, SITE_MODEL, MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.folder.durable import hash_file
from shared.folder.local import LocalFolder
from site_client import sandbox
from site_client.configuration import Policy, Program
from site_client.programs import fingerprint
from tests.audit.replaying import not_same, replayed
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, RUN, own_logins, run_configuration

pytestmark = pytest.mark.skipif(sandbox.obstacle() is not None, reason=f"no sandbox: {sandbox.obstacle()}")

EXAMPLE = Path(__file__).parents[2] / "configs" / "external_trainer"
CLASSES = ("normal", "glaucoma", "cataract")
SAME = "cp /round/received.safetensors /output/trained.safetensors\n"
TABLE = "printf 'epoch,split,loss,seconds,secret\\n1,train,0.25,3,7\\n1,validation,0.123456,2,7\\n' > /output/metrics.csv\n"


def installed(home: Path, script: str, *command: str, **limits: float) -> Program:
    """A program in a directory of its own, allowed as it is."""
    home.mkdir(parents=True)
    (home / "train.sh").write_text(f"set -e\n{script}")
    program = Program(name="own", directory=str(home), command=[*(command or ("/bin/sh", "train.sh"))], **limits)
    return program.model_copy(update={"sha256": fingerprint(program)})


def allowing(program: Program) -> Policy:
    return POLICY.model_copy(update={"external_trainers": [program]})


def test_one_site_trains_by_a_program_and_the_other_by_pytorch(tmp_path: Path) -> None:
    run = run_configuration(
        trainer={"name": "own", "sites": ["north"]}, scores={"seconds": {"lowest": 0.0}}, tolerance=None
    )
    with FederationInProcess(tmp_path, run) as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        program = installed(tmp_path / "program", SAME + TABLE)
        federation.change(federation.site("north") / "site.yaml", policy=allowing(program).model_dump())
        federation.run_to_the_end()
    update = federation.folder("north") / MessageRef("update", RUN, 1).path
    received = federation.folder("north") / MessageRef("round", RUN, 1).path / "global.safetensors"
    assert (update / SITE_MODEL).read_bytes() == received.read_bytes()
    rows = [row.split(",") for row in (update / METRICS).read_text().splitlines()]
    assert "secret" not in rows[0]
    at = rows[0].index("seconds")
    assert [(row[1:6], row[at]) for row in rows[3:]] == [
        (["1", "train", "10", "0.1", "0.25"], "3.0"),
        (["1", "validation", "5", "0.1", "0.1235"], "2.0"),
    ]
    assert all(row[at] == "" and row[6] for row in rows[1:3])  # what came is measured by dropfed, as at the other site
    for site in run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []


# --- a network that dropfed does not know -------------------------------------------------------------------------


def draw(folder: Path, images: int, seed: int) -> None:
    """A site of grey images, 8 by 8, whose brightest corner says the class."""
    drawn = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    lines = ["id,label\n"]
    for number in range(images):
        pixels = drawn.integers(0, 120, (8, 8), dtype=np.uint8)
        label = number % 3
        pixels[(label // 2) * 5 : (label // 2) * 5 + 3, (label % 2) * 5 : (label % 2) * 5 + 3] += 90
        (folder / "images" / f"Meier-{number}.pgm").write_bytes(b"P5\n8 8\n255\n" + pixels.tobytes())
        lines.append(f"Meier-{number},{CLASSES[label]}\n")
    (folder / "labels.csv").write_text("".join(lines))


@pytest.fixture(scope="module")
def softmax(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of the guide, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    home = tmp_path_factory.mktemp("softmax")
    compiler = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-std=c99", "-o", str(home / "train")]
    subprocess.run([*compiler, str(EXAMPLE / "softmax.c"), "-lm"], check=True)
    program = Program(name="softmax", directory=str(home), command=["./train"])
    return program.model_copy(update={"sha256": fingerprint(program)})


def test_sites_train_an_unknown_network_in_c(softmax: Program, tmp_path: Path) -> None:
    for seed, site in enumerate(("north", "south")):
        draw(tmp_path / "data" / site, 60, seed)
    zeros = tmp_path / "aggregator" / "weights" / "zeros" / "model.safetensors"
    example = yaml.safe_load((EXAMPLE / "RUN.yaml").read_bytes())
    run = RunConfiguration.model_validate(example | {"run": RUN, "rounds": 3})
    with FederationInProcess(tmp_path, run, data=tmp_path / "data") as federation:
        federation.set_up(own_logins(run.sites, f"http://127.0.0.1:{federation.server.port}"))
        zeros.parent.mkdir(parents=True)
        subprocess.run([f"{softmax.directory}/train", "zeros", "64", "3", str(zeros)], check=True)
        federation.change(
            federation.aggregator / "RUN.yaml", start={"name": "zeros", "sha256": hash_file(zeros)[1]}
        )
        tasks = [*POLICY.tasks, "external"]
        for site in run.sites:
            policy = allowing(softmax).model_copy(update={"tasks": tasks, "minimum_count": 5})
            federation.change(federation.site(site) / "site.yaml", policy=policy.model_dump())
        federation.run_to_the_end()
    view = view_run(federation.aggregator, RunStore(federation.aggregator, RUN))
    print(view)
    for site in run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
    assert not_same(replayed(tmp_path / "folders", RUN)) == []
