"""What became of a run: a document for scripts, text for the terminal, pages with figures and tables for people."""

from aggregator.report.document import Document, rounds_report, run_report
from aggregator.report.text import report_text

__all__ = ["Document", "report_text", "rounds_report", "run_report"]
