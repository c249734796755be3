"""Inputs for every door, until time is up; as many doors at a time as there are cores.

    python -m tests.fuzz.run --minutes 60          # as `make fuzz` does
    python -m tests.fuzz.run --door yaml --input tests/fuzz/corpus/yaml/escape

An input with which something goes wrong is kept in ``tests/fuzz/corpus/DOOR``, where the tests find it from then on.
Writes benchmarks/results/fuzz.json.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom

from benchmarks.record import record
from tests.fuzz.doors import DOORS, judge
from tests.fuzz.seeds import CORPUS, inputs

COMMAND = "python -m tests.fuzz.run"
ROOT = Path(__file__).parents[2]
_SHOWN = 3000  # characters of what a process said last


@dataclass(frozen=True)
class Outcome:
    """What came of one door.

    Args:
        reached: inputs that reached new code, those to begin with included.
        began_mib, peak_mib: the most memory of the process before its first input, and in all.
        finding: where the input lies with which something went wrong; None if nothing did.
    """

    inputs: int
    seconds: int
    reached: int
    began_mib: int
    peak_mib: int
    finding: str | None


def fuzz(door: str, seconds: int, seed: int) -> Outcome:
    """Bring inputs to one door for so long, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix=f"dropfed-fuzz-{door}-") as scratch:
        corpus, work = Path(scratch) / "corpus", Path(scratch) / "work"
        corpus.mkdir()
        work.mkdir()
        for content in inputs(door):
            (corpus / hashlib.sha256(content).hexdigest()).write_bytes(content)
        command = [sys.executable, "-m", "tests.fuzz.guided", door, str(corpus)]
        command += ["--seconds", str(seconds), "--seed", str(seed)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": scratch}
        ended = subprocess.run(
            command, cwd=work, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
        finding = None
        if ended.returncode != 0:
            finding = _kept(door, work)
            print(f"{door}: {finding}", ended.stderr[-_SHOWN:], sep="\n", flush=True)
        return Outcome(
            inputs=_told(r"stat::number_of_executed_units: (\d+)", ended.stderr),
            seconds=_told(r"Done \d+ runs in (\d+) second", ended.stderr),
            reached=len(list(corpus.iterdir())),
            began_mib=_told(r"began with (\d+) MiB", ended.stderr),
            peak_mib=_told(r"stat::peak_rss_mb:\s+(\d+)", ended.stderr),
            finding=finding,
        )


def _told(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def _kept(door: str, work: Path) -> str:
    """Keep the input that a process has left in its folder."""
    left = sorted(work.glob("*-*"))
    if not left:
        return "the process ended without leaving an input"
    target = CORPUS / door / left[0].name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(left[0].read_bytes())
    return target.relative_to(ROOT).as_posix()


def fuzz_all(minutes: float, first_seed: int) -> dict[str, Outcome]:
    """Bring inputs to all doors, which have the same share of the time."""
    lanes = os.cpu_count() or 1
    seconds = max(1, round(60 * minutes * lanes / len(DOORS)))

    def lane(door: str) -> tuple[str, Outcome]:
        outcome = fuzz(door, seconds, first_seed)
        held = outcome.peak_mib - outcome.began_mib
        print(f"{door}: {outcome.inputs} inputs in {outcome.seconds} s, {held} MiB", flush=True)
        return door, outcome

    with ThreadPoolExecutor(lanes) as pool:
        return dict(pool.map(lane, DOORS))


def main() -> int:
    """Fuzz, or bring one input to its door; return 0 if nothing went wrong."""
    options = argparse.ArgumentParser(prog=COMMAND)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=SystemRandom().randrange(1, 10**9), help="makes all inputs")
    options.add_argument("--door", choices=DOORS, help="with --input: where it is brought")
    options.add_argument("--input", type=Path, help="with --door: one input")
    options.add_argument("--no-record", action="store_true", help="leave benchmarks/results as it is")
    chosen = options.parse_args()
    if (chosen.door is None) != (chosen.input is None):
        options.error("--door and --input go together")
    if chosen.input is not None:
        judge(chosen.door, chosen.input.read_bytes())
        return 0
    outcomes = fuzz_all(chosen.minutes, chosen.seed)
    total = sum(outcome.inputs for outcome in outcomes.values())
    findings = {door: outcome.finding for door, outcome in outcomes.items() if outcome.finding}
    print(f"{total} inputs, {len(findings)} findings")
    if not chosen.no_record:
        figures = {"minutes": chosen.minutes, "seed": chosen.seed, "inputs": total, "findings": findings}
        doors = {door: asdict(outcome) for door, outcome in outcomes.items()}
        print(
            record("fuzz", f"{COMMAND} --minutes {chosen.minutes:g} --seed {chosen.seed}", figures | {"doors": doors})
        )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
