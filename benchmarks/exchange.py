"""A round's exchange without training, beside plain curl moving the same bytes through the same server.

    .venv/bin/python -m benchmarks.exchange
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.exchange_federation import Home, Round, exchange, read_requests, read_round, set_up, tally, write_model
from benchmarks.exchange_servers import SERVERS, Served
from shared.folder.durable import write_file

SITES = ("north", "south", "east", "west")
ROUNDS = 3  # measured, after one that warms everything up
POLL_SECONDS = 30.0


def curl(home: Path, served: Served, model: Path) -> dict[str, float]:
    """Seconds of curl's four phases: each site's copy up, down, up and down again, one process per transfer."""
    login = home / "curl.txt"
    write_file(login, f'user = "{served.user}:{served.password}"\n'.encode(), private=True)
    common = ["curl", "-sSf", "--config", str(login)]
    seconds = {}
    for phase in ("publish", "fetch", "publish back", "fetch back"):
        back = phase.endswith("back")
        commands = []
        for site in SITES:
            name = "answer" if back else "global"
            url = f"{served.url_of(site)}{name}.safetensors"
            local = home / "curl" / site / f"{name}.safetensors"
            local.parent.mkdir(parents=True, exist_ok=True)
            source = home / "curl" / site / "global.safetensors" if back else model
            commands.append([*common, *(["-T", str(source), url] if "publish" in phase else ["-o", str(local), url])])
        began = time.perf_counter()
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
        if any([process.wait() for process in running]):
            raise SystemExit("curl failed")
        seconds[phase] = time.perf_counter() - began
    return seconds


def dropfed(home: Home, served: Served, model: Path) -> list[Round]:
    """The measured rounds."""
    set_up(home, served, SITES, model, rounds=1 + ROUNDS, poll_seconds=POLL_SECONDS)
    exchange(home, 1 + ROUNDS)
    requests = read_requests(home, served, SITES)
    return [read_round(home, SITES, number, requests) for number in range(2, 2 + ROUNDS)]


def main(arguments: Sequence[str]) -> None:
    for megabytes in [int(argument) for argument in arguments] or (1, 98, 548):
        for name, start in SERVERS.items():
            with tempfile.TemporaryDirectory(prefix="dropfed-exchange-") as directory:
                root = Path(directory)
                model = root / "model.safetensors"
                write_model(model, megabytes * 10**6)
                home = Home(root)
                with start(root, home.folders, SITES) as served:
                    curls = [curl(root, served, model) for _ in range(3)]
                    print(megabytes, name, "curl", [round(sum(c.values()), 2) for c in curls], [{k: round(v, 2) for k, v in c.items()} for c in curls])
                    try:
                        rounds = dropfed(home, served, model)
                    except SystemExit:
                        print((root / "output-aggregator.txt").read_text()[-3000:])
                        print((root / "output-sites.txt").read_text()[-3000:])
                        raise
                    print("dropfed", [round(r.seconds, 2) for r in rounds])
                    for r in rounds:
                        for field in ("sealed", "published", "noticed", "received", "answer_sealed", "answer_published", "answer_noticed", "accepted"):
                            print(f"   {field:18s}", [round(v, 2) for v in getattr(r, field).values()])
                        print()
                    for end, t in tally(rounds, len(SITES)).items():
                        print(end)
                        for k, v in t.items():
                            print(f"    {v:6.2f}  {k}")


if __name__ == "__main__":
    main(sys.argv[1:])
