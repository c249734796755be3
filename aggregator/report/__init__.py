"""What became of a run: a document for scripts, text for the terminal, pages with figures and tables for people."""

from aggregator.report.document import Document, run_report
from aggregator.report.text import report_text

__all__ = ["Document", "report_text", "run_report"]
