"""What became of a run: a document for scripts, text for the terminal, pages with figures and tables for people."""

import logging

from aggregator.report.document import document
from aggregator.report.heldout import Model, find_model
from aggregator.report.text import report_text

# it makes a folder of its own where it may not write into the home directory, and none of its settings matters here
logging.getLogger("matplotlib").setLevel(logging.ERROR)

__all__ = ["Model", "document", "find_model", "report_text"]
