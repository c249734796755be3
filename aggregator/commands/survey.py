"""Ask every site for a sheet of figures about its images of TASK, before any run. Exit 1 if one could not be asked.

With --report show the sheets that came. Each site decides, by its policy or a person. Nothing but the sheet leaves, and
no figure in it is about few images.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.configuration import read_configuration
from aggregator.survey import ask, classes_of, collect
from aggregator.survey_report import document, report_text, standing
from shared.commands import say
from shared.escaping import quoted
from shared.folder.lock import work_lock


@click.command(help=__doc__)
@click.argument("task", required=False)
@WORK
@click.option(
    "--classes", metavar="NAME,NAME", help="Classes by which images, or pixels, are counted (default: the task's own)."
)
@click.option("--report", "reports", is_flag=True, help="Show the sheets side by side, with warnings and proposals.")
@click.option("--json", "as_json", is_flag=True, help="With --report: print everything as JSON, for scripts.")
def command(task: str | None, work: Path, classes: str | None, reports: bool, as_json: bool) -> None:
    configuration = read_configuration(work)
    if reports == (task is not None):
        raise click.UsageError("name the TASK to ask about, or say --report to see what came, not both")
    if as_json and not reports:
        raise click.UsageError("--json prints what came: say --report with it")
    if task is None:
        asked = collect(work, configuration)
        say(json.dumps(document(asked), indent=2) if as_json else report_text(asked).rstrip("\n"))
        if not as_json and any(each.survey is None and each.trouble is None for each in asked):
            say(f"ask every site: `dropfed-aggregator survey TASK --work {quoted(work)}`")
        return
    named = None if classes is None else [name.strip() for name in classes.split(",") if name.strip()]
    by = classes_of(task, named)
    taken = "a daemon works in this directory; end it with Ctrl-C, ask, and start it again as before"
    with work_lock(work, taken):
        asked = ask(work, configuration, task, by)
    for each in asked:
        say(f"{each.site}: {'asked' if each.trouble is None else standing(each)}")
    say(f"counted by: {', '.join(by) if by else 'nothing; --classes names what'}")
    say(f"see what came: `dropfed-aggregator survey --report --work {quoted(work)}`")
    if any(each.trouble for each in asked):
        raise SystemExit(1)
