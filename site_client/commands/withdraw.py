"""Leave RUN for good. What this site gave stays in the run.

If this site has not agreed to RUN yet, this declines it.
"""

from __future__ import annotations

from pathlib import Path

import click

from shared.commands import require_yes, say
from shared.errors import ConfigurationError
from shared.exchange.records.values import sentence
from site_client.commands import WORK
from site_client.decisions import when_sent
from site_client.offer import Standing, read_offer, standing, why_over
from site_client.store import Decision, deciding, decision, write_decision


@click.command(help=__doc__)
@click.argument("run")
@WORK
@click.option(
    "--reason",
    default="",
    help="Why, in one sentence. It stays for good, and whoever reads the folder or an audit sees it: name no person.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(run: str, work: Path, reason: str, yes: bool) -> None:
    now = _open_standing(work, run)
    if now == "offered":
        read_offer(work, run)
    when = when_sent(work)
    decided = decision(work, run)
    if decided is not None and decided.answer == "withdraw":
        kept = f"for this reason: {decided.reason}" if decided.reason else "without a reason"
        say(f"{run}: a person here has withdrawn already, {kept}; the daemon says so in the folder {when}")
        return
    if not yes:
        said = " The reason stays in the folder for good." if reason else ""
        what = "Leave" if now == "agreed" else "This site has not agreed yet, so this declines. Decline"
        require_yes(f"{what} {run} for good? No later round will ask this site, and no final model comes.{said}")
    with deciding(work):
        now = _open_standing(work, run)  # the daemon, and others here, went on while the question stood
        write_decision(work, run, Decision("withdraw", sentence(reason)))
    how = "this site withdraws" if now == "agreed" else "this site has not agreed yet, so this declines"
    say(f"{run}: {how}; the daemon says so in the folder {when}")


def _open_standing(work: Path, run: str) -> Standing:
    now = standing(work, run)
    if (over := why_over(work, run)) is not None:
        raise ConfigurationError([f"{run}: {over}: there is nothing to withdraw from"])
    return now
