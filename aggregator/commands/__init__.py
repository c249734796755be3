"""What the PI types, a file for each command: its name is that of the file, its help the file's docstring."""

from __future__ import annotations

from shared.commands import work_option

WORK = work_option("aggregator.yaml")
