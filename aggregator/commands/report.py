"""Report on RUN, even while it goes on: every aggregate's scores at every site, verdicts, cost.

With --pages the best aggregate is also tried on the held-out images, which takes as long as scoring one site's update.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from aggregator.commands import WORK
from aggregator.launched import find_run
from aggregator.report import document, find_model, report_text
from aggregator.report.page import write_pages
from aggregator.run_view import view_run
from shared.commands import NamedPath, require_replaceable, say
from shared.errors import ConfigurationError
from shared.exchange.drop_folder import require_no_drop_folder_around
from shared.folder.durable import write_file


@click.command(help=__doc__)
@click.argument("run")
@WORK
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print everything as JSON, for scripts; without it, show the main score alone.",
)
@click.option(
    "--output",
    type=NamedPath(dir_okay=False, writable=True),
    help="File to write, as in report.json (default: standard output).",
)
@click.option(
    "--pages",
    type=NamedPath(file_okay=False, writable=True),
    help="Folder for report.html, which needs no other file, and for its figures and tables as files.",
)
def command(run: str, work: Path, as_json: bool, output: Path | None, pages: Path | None) -> None:
    if pages is not None:
        if as_json or output:
            raise click.UsageError("--pages writes files of its own: leave out --json and --output, or call twice")
        require_no_drop_folder_around(pages)
        say(f"wrote {write_pages(work, find_run(work, run), pages)}")
        return
    if output is not None:
        _require_report(output, work)
    view = view_run(work, find_run(work, run))
    model = find_model(work, view.configuration)
    if as_json:
        text = json.dumps(document(view, model), indent=2) + "\n"
    else:
        text = report_text(view, model, view.score, view.score)
    if output is None:
        say(text, nl=False)
    else:
        write_file(output, text.encode())
        say(f"wrote {output}")


def _require_report(output: Path, work: Path) -> None:
    """Check that a report takes the place of nothing but a report.

    Raises:
        ConfigurationError: another file is there.
    """
    require_replaceable(output, ".json", ".md", ".txt")
    if output.exists() and any(output.resolve().is_relative_to(work / name) for name in ("invites", "runs", "sites")):
        raise ConfigurationError([f"{output}: is a file that {work} needs; name another file"])
