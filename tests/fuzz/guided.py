"""One door in a process of its own, with inputs that atheris makes of those that reach new code; ``run.py`` starts it.

    python -m tests.fuzz.guided DOOR FOLDER --seconds 60

FOLDER holds the inputs to begin with, and gets those that reach more. It ends with 0 when time is up; at the first
finding with another status, and the input lies in the present folder.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import atheris

with atheris.instrument_imports(include=["aggregator", "shared", "site_client", "http", "email", "yaml"]):
    from tests.fuzz.doors import DOORS, BrokenError, judge

LONGEST_S = 1.0  # of the processor, for one input
MOST_MIB = 200  # for all inputs together, beyond what the process held when it began
LONGEST_INPUT = 1 << 16  # bytes


def peak_mib() -> float:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def guard(door: str, began_mib: float, content: bytes) -> None:
    """Bring an input to a door, and look at the clock and the memory afterwards."""
    began_s = time.process_time()
    judge(door, content)
    took_s, held_mib = time.process_time() - began_s, peak_mib() - began_mib
    if took_s > LONGEST_S:
        raise BrokenError(f"it took {took_s:.1f} s")
    if held_mib > MOST_MIB:
        raise BrokenError(f"{held_mib:.0f} MiB were held")


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz.guided")
    options.add_argument("door", choices=DOORS)
    options.add_argument("folder")
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    began_mib = peak_mib()
    print(f"began with {began_mib:.0f} MiB", file=sys.stderr, flush=True)
    settings = {
        "max_total_time": chosen.seconds,
        "max_len": LONGEST_INPUT,
        "seed": chosen.seed,
        "timeout": 10,
        "rss_limit_mb": round(began_mib) + 2 * MOST_MIB,
        "print_final_stats": 1,
        "verbosity": 1,
    }
    arguments = [f"-{name}={value}" for name, value in settings.items()]
    atheris.Setup([sys.argv[0], *arguments, chosen.folder], lambda content: guard(chosen.door, began_mib, content))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
