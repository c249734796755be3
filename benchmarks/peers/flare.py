"""A round's exchange through a deployed NVIDIA FLARE: a server and four clients, provisioned, in their own processes.

    .venv/bin/python -m benchmarks.peers.flare --megabytes 98

Prints one line of JSON. See README.md beside this file.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from benchmarks.peers.deployment import PATIENCE_S, ROUNDS, SITES, free_ports, run, start

VERSION = "2.9.0"
REQUIREMENTS = (f"nvflare=={VERSION}", "numpy==2.4.6")
JOB = Path(__file__).parent / "flare_app"
ADMIN = "admin@example.org"
SERVER = "localhost"
NAMES = [f"site-{number}" for number in range(1, SITES + 1)]


def provision(programs: Path, home: Path, quiet: dict[str, str]) -> Path:
    """Make every participant's startup kit, as for a real federation; returns the folder that holds them."""
    (port,) = free_ports(1)
    participants: list[dict[str, object]] = [
        {"name": SERVER, "type": "server", "org": "example", "fed_learn_port": port}
    ]
    participants += [{"name": name, "type": "client", "org": "example"} for name in NAMES]
    participants += [{"name": ADMIN, "type": "admin", "org": "example", "role": "project_admin"}]
    builders = ["workspace.WorkspaceBuilder", "static_file.StaticFileBuilder"]
    builders += ["cert.CertBuilder", "signature.SignatureBuilder"]
    project = {
        "api_version": 3,
        "name": "exchange",
        "description": "the exchange benchmark",
        "participants": [participant | {"connection_security": "clear"} for participant in participants],
        "builders": [{"path": f"nvflare.lighter.impl.{name}", "args": {}} for name in builders],
    }
    (home / "project.yml").write_text(json.dumps(project))  # JSON is YAML
    command: list[str | Path] = [
        programs / "nvflare",
        "provision",
        "-p",
        home / "project.yml",
        "-w",
        home / "workspace",
    ]
    if start(command, home / "log.txt", quiet).wait() != 0:
        raise SystemExit(f"no startup kits were made:\n{(home / 'log.txt').read_text()[-4000:]}")
    kits = home / "workspace" / "exchange" / "prod_00"
    local = kits / SERVER / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_allow_list"].append("round_trip.RoundTrip")  # a server's people allow a job's own class here
    (local / "resources.json").write_text(json.dumps(resources))
    return kits


def measure(programs: Path, megabytes: int, home: Path) -> list[float]:
    """Return the seconds of each measured round.

    Raises:
        SystemExit: the job failed, or takes half an hour.
    """
    log, results, job = home / "log.txt", home / "results.json", home / "job"
    quiet = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": ""}
    kits = provision(programs, home, quiet)
    shutil.copytree(JOB, job)
    settings = {"megabytes": megabytes, "sites": SITES, "rounds": 1 + ROUNDS, "results": str(results)}
    workflow = {"id": "round_trip", "path": "round_trip.RoundTrip", "args": settings}
    server = {"format_version": 2, "workflows": [workflow], "components": []}
    server |= {"task_data_filters": [], "task_result_filters": []}
    (job / "app" / "config" / "config_fed_server.json").write_text(json.dumps(server))
    for name in (SERVER, *NAMES):
        start([kits / name / "startup" / "sub_start.sh", "--once"], home / f"log-{name}.txt", quiet)
    deadline = time.monotonic() + PATIENCE_S
    submit: list[str | Path] = [programs / "nvflare", "job", "submit", "-j", job, "--startup-kit", kits / ADMIN]
    while start(submit, log, quiet).wait() != 0:
        if time.monotonic() > deadline - PATIENCE_S + 90:
            raise SystemExit(f"the server took no job:\n{log.read_text()[-4000:]}")
        time.sleep(1)
    while not results.exists():
        said = (home / f"log-{SERVER}.txt").read_text(errors="replace")
        if "FATAL" in said or "Traceback" in said or time.monotonic() > deadline:
            raise SystemExit(f"FLARE could not do it:\n{said[-4000:]}")
        time.sleep(0.5)
    return list(json.loads(results.read_text()))[1:]


if __name__ == "__main__":
    run("flare", "NVIDIA FLARE", VERSION, REQUIREMENTS, measure)
