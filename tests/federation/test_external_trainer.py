"""Sites that train by a program of their own, shut in: real federations, and programs that do what they must not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.audit.verify import lines, verify
from shared.exchange.names import METRICS, SITE_MODEL, MessageRef
from shared.exchange.records.run import ExternalTrainer, RunConfiguration
from shared.exchange.weights import TensorFile
from shared.folder.local import LocalFolder
from site_client import sandbox
from site_client.configuration import Policy, Program
from site_client.programs import fingerprint
from tests.federation.in_process import FederationInProcess
from tests.federation.running import POLICY, RUN, own_logins, run_configuration

pytestmark = pytest.mark.skipif(sandbox.obstacle() is not None, reason=f"no sandbox: {sandbox.obstacle()}")

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
    print((update / METRICS).read_text())
    for site in run.sites:
        assert list(lines(verify(LocalFolder(federation.folder(site))))) == []
