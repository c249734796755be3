"""What became of a run: a document for scripts, text for the terminal, pages with figures and tables for people."""

import logging

from aggregator.report.document import Document, rounds_report, run_report
from aggregator.report.text import report_text

# it makes a folder of its own where it may not write into the home directory, and none of its settings matters here
logging.getLogger("matplotlib").setLevel(logging.ERROR)

__all__ = ["Document", "report_text", "rounds_report", "run_report"]
