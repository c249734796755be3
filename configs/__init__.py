"""Runs, studies and settings ready to copy; ``dropfed-aggregator new-run`` starts from the runs."""
