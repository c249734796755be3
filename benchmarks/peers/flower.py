"""A round's exchange through a deployed Flower: one SuperLink, four SuperNodes, each in its own process, on loopback.

    .venv/bin/python -m benchmarks.peers.flower --megabytes 98

Prints one line of JSON. See README.md beside this file.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from benchmarks.peers.deployment import PATIENCE_S, ROUNDS, SITES, free_ports, run, start

VERSION = "1.41.0"
REQUIREMENTS = (f"flwr=={VERSION}", "numpy==2.4.6")
APP = Path(__file__).parent / "flower_app"


def measure(programs: Path, megabytes: int, home: Path) -> list[float]:
    """Return the seconds of each measured round.

    Raises:
        SystemExit: the run failed, or takes half an hour.
    """
    link, *nodes = free_ports(1 + SITES)
    quiet = {
        "FLWR_HOME": str(home / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{programs}:/usr/bin:/bin",
    }
    (home / "flower").mkdir()
    (home / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    log, results = home / "log.txt", home / "results.json"
    options = ["--insecure", "--disable-runtime-dependency-installation", "--port", str(link)]
    started = [start([programs / "flower-superlink", *options], log, quiet)]
    for port in nodes:
        options = ["--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port)]
        started.append(start([programs / "flower-supernode", *options], log, quiet))
    settings = f'megabytes={megabytes} sites={SITES} rounds={1 + ROUNDS} results="{results}"'
    deadline = time.monotonic() + PATIENCE_S
    while start([programs / "flwr", "run", APP, "--run-config", settings], log, quiet).wait() != 0:
        if time.monotonic() > deadline - PATIENCE_S + 60:
            raise SystemExit(f"the SuperLink took no run:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(1)
    while not results.exists():
        ended = any(process.poll() is not None for process in started)
        if ended or "Traceback" in log.read_text(errors="replace") or time.monotonic() > deadline:
            raise SystemExit(f"Flower could not do it:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(0.5)
    return list(json.loads(results.read_text()))[1:]


if __name__ == "__main__":
    run("flower", "Flower", VERSION, REQUIREMENTS, measure)
