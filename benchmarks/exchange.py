"""A round's exchange without training, beside plain curl moving the same bytes through the same server.

    .venv/bin/python -m benchmarks.exchange [MB ...] [--servers NAME,...] [--pairs N]

Four sites and models of 1, 98 and 548 MB (10^6 bytes), or of those named. A round is: publish to all, fetch by all,
publish back, fetch all. dropfed does it with its daemons, which run already; curl does it in four phases with one
process per transfer, and once more with what dropfed does to each file that it fetches: its SHA-256, and waiting until
it is on the disk. They take turns, round by round: while curl moves its bytes, the daemons are halted. One pair of
rounds warms up; of seven more each has a ratio, and their median counts, with the quartiles beside it. So what else
the machine does, and how its disk does, is much the same for both.

Then requests of a round at each end (``benchmarks/exchange_idle.py`` counts those of an idle hour). Then the
aggregator's memory with 4, 16 and 64 sites (``benchmarks/memory.py``),
and the same exchange through Flower and NVIDIA FLARE where ``build/peers`` holds them (``benchmarks/peers/README.md``).

Takes well over an hour on two cores and 30 GB of disk, and wants a machine that does nothing else. Writes
benchmarks/results/exchange.json and exchange.md. With ``--servers`` (of embedded, apache, nginx) or ``--pairs`` (2 or
more) it is a trial of minutes, which measures the rounds alone and records nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, quantiles

from benchmarks import memory
from benchmarks.exchange_curl import PHASES, Curl
from benchmarks.exchange_federation import RUN, Home, end_all_when_ended, exchange, set_up
from benchmarks.exchange_idle import POLL_SECONDS, SITES
from benchmarks.exchange_rounds import STEPS, Round, by_kind, read_requests, read_round, sums, tally
from benchmarks.exchange_servers import Served, Server, known
from benchmarks.record import RESULTS, record
from shared.exchange.names import AGGREGATOR
from shared.exchange.records.run import RunConfiguration

OF_CURL = tuple(f"curl-{site}" for site in SITES)
SIZES_MB = (1, 98, 548)
PAIRS = 7  # measured, after one that warms up
PEERS = {"flower": Path("build/peers/flower"), "flare": Path("build/peers/flare")}
MOST_TIMES_CURL = 1.3
MOST_SECONDS_SMALL = 1.5  # of a model of 1 MB, where requests count and not bytes
MOST_REQUESTS = 10  # of one end, for one site, in a round

Servers = Mapping[str, Mapping[str, Mapping[str, object]]]
"""What was found, by server and by size in MB."""


def dropfed(
    home: Home, served: Served, size: int, between: Callable[[], None] = lambda: None, *, measured: int = PAIRS
) -> tuple[list[Round], float]:
    """Return the measured rounds, and the aggregator's peak memory in MB.

    Args:
        between: called after each round, also the one that warms up.
        measured: how many rounds are.
    """
    run = RunConfiguration(
        run=RUN,
        task="octa_segmentation",  # in name; ``exchange_ends`` says what stands in for it
        method="mean",
        sites=list(SITES),
        rounds=1 + measured,
        quorum=len(SITES),
        task_options={"bytes": size},
    )
    set_up(home, served, run, poll_seconds=POLL_SECONDS)
    peak = exchange(home, 1 + measured, between)
    requests = read_requests(home, served, SITES)
    return [read_round(home, SITES, number, requests) for number in range(2, 2 + measured)], peak


def compare(server: Server, megabytes: int, pairs: int = PAIRS, *, is_careful: bool = True) -> dict[str, object]:
    """Measure curl and dropfed through one server, with one size of model; careful curl if it is asked for."""
    with tempfile.TemporaryDirectory(prefix="dropfed-exchange-") as directory:
        root = Path(directory)
        root.chmod(0o755)  # a server that runs as another user passes through
        with server(root / "server", (*SITES, *OF_CURL)) as served:
            curl = Curl(root / "curl", served, OF_CURL, megabytes * 10**6, is_careful=is_careful)
            rounds, peak = dropfed(Home(root), served, megabytes * 10**6, curl.play, measured=pairs)
    by_curl = curl.rounds[1:]
    curl_s, dropfed_s = [sum(phases.values()) for phases in by_curl], [played.seconds for played in rounds]
    careful_s = [sum(phases.values()) for phases in curl.careful_rounds[1:]]
    ratios = [ours / theirs for ours, theirs in zip(dropfed_s, curl_s, strict=True)]
    lower, ratio, upper = quantiles(ratios, n=4, method="inclusive")
    is_small = megabytes == min(SIZES_MB)
    requests = tally(rounds[:-1], len(SITES))  # the run ends before the last one's verdicts
    return {
        "curl_s": _rounded(curl_s),
        "curl_phases_s": {phase: round(median(phases[phase] for phases in by_curl), 2) for phase in PHASES},
        "dropfed_s": _rounded(dropfed_s),
        **(_beside_careful(dropfed_s, careful_s) if is_careful else {}),
        "ratios": _rounded(ratios),
        "times_curl": round(ratio, 2),
        "times_curl_quartiles": _rounded([lower, upper]),
        "floor": f"{MOST_SECONDS_SMALL} s" if is_small else f"{MOST_TIMES_CURL} × curl",
        "held": median(dropfed_s) <= MOST_SECONDS_SMALL if is_small else ratio <= MOST_TIMES_CURL,
        "steps_s": dict(zip(STEPS, _rounded(_step_lengths(rounds)), strict=True)),
        "peak_mb": round(peak),
        "requests": requests,
        "requests_per_round": sums(requests),
    }


def _beside_careful(dropfed_s: Sequence[float], careful_s: Sequence[float]) -> dict[str, object]:
    ratios = [ours / theirs for ours, theirs in zip(dropfed_s, careful_s, strict=True)]
    return {"careful_curl_s": _rounded(careful_s), "times_careful_curl": round(median(ratios), 2)}


def _step_lengths(rounds: Sequence[Round]) -> list[float]:
    """Return how long each step took, as the mean over sites and rounds."""
    lengths = []
    for played in rounds:
        for ends in played.steps.values():
            lengths.append([end - before for before, end in zip((0.0, *ends), ends, strict=False)])
    return [fmean(step) for step in zip(*lengths, strict=True)]


def peer(name: str, environment: Path, megabytes: int) -> dict[str, object]:
    """Measure the same exchange through another system; return its figures, or why it could not be measured."""
    command = [sys.executable, "-m", f"benchmarks.peers.{name}", "--environment", str(environment)]
    with subprocess.Popen(
        [*command, "--megabytes", str(megabytes)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            told, trouble = process.communicate()
        except BaseException:
            process.terminate()  # it ends what it started; killed, it could not
            raise
    if process.returncode == 0:
        return dict(json.loads(told))
    return {"peer": name, "megabytes": megabytes, "failed": trouble.strip().splitlines()}


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [round(second, 2) for second in seconds]


def _announced(what: str, measure: Callable[[], Mapping[str, object]]) -> Mapping[str, object]:
    """Measure, and say so: it takes a while."""
    print(f"{what} ...", flush=True)
    return measure()


def markdown(figures: Mapping[str, object]) -> str:
    """Return the figures as tables."""
    servers: Servers = figures["servers"]  # type: ignore[assignment]
    lines = [
        "# exchange",
        "",
        "`python -m benchmarks.exchange`; machine, date and commit in `exchange.json`. One round without training,",
        f"{len(SITES)} sites, seconds, medians of {PAIRS} rounds each, by turns, after one that warms up; the daemons",
        "run already. Of the ratios of each two rounds the median counts; half of them lie between the quartiles.",
        "Careful curl fetches as dropfed does: with each file's SHA-256, and waiting until it is on the disk.",
        "",
        *_rounds(servers),
        *_peers(figures),
        *_memory(figures),
        *_requests(servers),
    ]
    return "\n".join(lines) + "\n"


def _cells(servers: Servers) -> list[tuple[str, str, Mapping[str, object]]]:
    return [(server, size, found) for server, sizes in servers.items() for size, found in sizes.items()]


def _rounds(servers: Servers) -> list[str]:
    cells = _cells(servers)
    lines = [
        "| server | MB | curl | careful curl | dropfed | times curl | quartiles | floor | held | times careful curl |",
        "|---|---:|---:|---:|---:|---:|---|---|---|---:|",
    ]
    for server, size, found in cells:
        keys = ("curl_s", "careful_curl_s", "dropfed_s")
        seconds = " | ".join(f"{_median(found, key):.2f}" if key in found else "" for key in keys)
        seconds += f" | {found['times_curl']:.2f}"
        seconds += " | {:.2f} to {:.2f}".format(*found["times_curl_quartiles"])  # type: ignore[misc]
        held = f"{found['floor']} | {_yes(found['held'])} | {found.get('times_careful_curl', '')}"
        lines.append(f"| {server} | {size} | {seconds} | {held} |")
    lines += ["", "Where dropfed's time goes, seconds, mean over sites and rounds:", ""]
    lines += ["| | " + " | ".join(f"{server}, {size} MB" for server, size, _ in cells) + " |"]
    lines += ["|---|" + "---:|" * len(cells)]
    for step in STEPS:
        lines.append(f"| {step} | " + " | ".join(f"{found['steps_s'][step]:.2f}" for *_, found in cells) + " |")  # type: ignore[index]
    return lines


def _peers(figures: Mapping[str, object]) -> list[str]:
    if not figures["peers"]:
        return ["", "No peer was measured beside it (`benchmarks/peers`)."]
    lines = ["", "The same exchange through a deployed peer (`benchmarks/peers`), seconds:", ""]
    lines += ["| peer | MB | seconds | quicker than it |", "|---|---:|---:|---|"]
    servers: Servers = figures["servers"]  # type: ignore[assignment]
    for found in figures["peers"]:  # type: ignore[attr-defined]
        size = str(found["megabytes"])
        if "failed" in found:
            why = (found["failed"] or ["it said nothing"])[-1]
            lines.append(f"| {found['peer']} | {size} | could not: {why} | |")
            continue
        quicker = [name for name, sizes in servers.items() if _median(sizes[size], "dropfed_s") < _median(found)]
        name = f"{found['peer']} {found['version']}"
        through = f"dropfed through {', '.join(quicker)}" if quicker else "no"
        lines.append(f"| {name} | {size} | {_median(found):.2f} | {through} |")
    return lines


def _memory(figures: Mapping[str, object]) -> list[str]:
    lines = ["", "Peak memory of the aggregator, MB:", "", "| | sites | model | peak | floor | held |"]
    lines += ["|---|---:|---:|---:|---:|---|"]
    for kind, by_sites in figures["memory"].items():  # type: ignore[attr-defined]
        for sites, found in by_sites.items():
            numbers = f"{sites} | {found['model_mb']} | {found['peak_mb']} | {found['floor_mb']}"
            lines.append(f"| {kind} | {numbers} | {_yes(found['held'])} |")
    return lines


def _requests(servers: Servers) -> list[str]:
    cells = _cells(servers)
    lines = ["", f"Requests of one end for one site, at most {MOST_REQUESTS} in a round:", ""]
    lines += ["| server | MB | aggregator | site | held |", "|---|---:|---:|---:|---|"]
    for server, size, found in cells:
        sums: Mapping[str, float] = found["requests_per_round"]  # type: ignore[assignment]
        held = _yes(max(sums.values()) <= MOST_REQUESTS)
        lines.append(f"| {server} | {size} | {sums[AGGREGATOR]:.1f} | {sums['site']:.1f} | {held} |")
    server, size, found = cells[0]
    lines += ["", f"In a round, {server}, {size} MB; paths in the round's folder are without it:", ""]
    return lines + by_kind(found["requests"])  # type: ignore[arg-type]


def _median(found: Mapping[str, object], key: str = "seconds") -> float:
    return median(found[key])  # type: ignore[arg-type]


def _yes(held: object) -> str:
    return "yes" if held else "**no**"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange")
    parser.add_argument("sizes", metavar="MB", type=int, nargs="*", default=list(SIZES_MB))
    parser.add_argument("--servers", type=lambda names: names.split(","), metavar="NAME,...", help=", ".join(known()))
    parser.add_argument("--pairs", type=int, metavar="N", help="2 or more")
    options = parser.parse_args(arguments)
    if unknown := set(options.servers or ()) - set(known()):
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(known())}, the servers that are here")
    if min(options.sizes) < 1 or (options.pairs is not None and options.pairs < 2):
        parser.error("a model has 1 MB or more, and there are 2 pairs of rounds or more")
    return options


def main(arguments: Sequence[str]) -> None:
    """Measure and record; a trial is printed alone."""
    end_all_when_ended()
    options = _options(arguments)
    sizes, pairs, is_trial = options.sizes, options.pairs or PAIRS, bool(options.servers or options.pairs)

    def compared(name: str, size: int) -> Mapping[str, object]:
        return _announced(
            f"{name}, {size} MB", lambda: compare(known()[name], size, pairs=pairs, is_careful=not is_trial)
        )

    servers = {name: {str(size): compared(name, size) for size in sizes} for name in options.servers or known()}
    if is_trial:
        print("\n".join([*_rounds(servers), *_requests(servers)]))
        return
    figures: dict[str, object] = {
        "sites": len(SITES),
        "pairs_of_rounds": PAIRS,
        "longest_poll_s": POLL_SECONDS,
        "servers": servers,
        "peers": [
            _announced(f"{name}, {size} MB", lambda: peer(name, environment, size))  # noqa: B023
            for name, environment in PEERS.items()
            if environment.exists()
            for size in sizes
        ],
        "memory": _announced("memory", memory.measure),
    }
    named = [str(size) for size in sizes] if sizes != list(SIZES_MB) else []
    print(record("exchange", " ".join(["python -m benchmarks.exchange", *named]), figures))
    (RESULTS / "exchange.md").write_text(text := markdown(figures))
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
