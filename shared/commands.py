"""What the three commands have in common: errors become sentences and exit codes, never tracebacks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shared.errors import ConfigurationError, DropfedError
from shared.folder.durable import disk_trouble


class Commands(click.Group):
    """Exit codes: 0 done, 1 something stands in the way, 2 wrong usage or input."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; print our errors, one sentence a line."""
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            click.echo(str(error), err=True)
            ctx.exit(2)
        except DropfedError as error:
            click.echo(str(error), err=True)
            ctx.exit(1)
        except BrokenPipeError:  # whoever read our output, `head` perhaps, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except OSError as error:
            click.echo(str(disk_trouble(error, Path.cwd())), err=True)
            ctx.exit(1)


def work_option() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--work DIR``."""
    return click.option(
        "--work",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path(),
        envvar="DROPFED_WORK",
        help="Work directory (default: the current one, or DROPFED_WORK).",
    )
