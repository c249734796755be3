"""The report for people who read it on a terminal, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from aggregator.report.document import RECEIVED_SPLITS, Document


def report_text(report: Document, score: str, title: str) -> str:
    """The report for people, as Markdown: one score of every aggregate at every site, every verdict, what it cost.

    Args:
        score: a column of ``metrics.csv``.
        title: what people call it.
    """
    run, chosen = report["configuration"], report["chosen"]
    lines = [f"# Run {run['run']}: {run['task']} by {run['method']}", ""]
    if chosen:
        lines += [f"Chosen: the aggregate of round {chosen['aggregate']} ({chosen['reason']}).", ""]
    if report["given_up"]:
        lines += [f"Given up: {report['given_up']}.", ""]
    for split in RECEIVED_SPLITS:
        lines += [f"## {title} on each site's {split} images", ""]
        lines += ["| aggregate of round | " + " | ".join(run["sites"]) + " |", "|---" * (len(run["sites"]) + 1) + "|"]
        for of_round in report["rounds"]:
            rows = [of_round["sites"].get(site, {}).get(split) for site in run["sites"]]
            if any(rows):
                cells = " | ".join(_cell(row, score) for row in rows)
                lines.append(f"| {of_round['received_aggregate']} | {cells} |")
        lines.append("")
    lines += ["## Verdicts", "", "| round | site | status | score | θ | weight | reason |", "|---" * 7 + "|"]
    for of_round in report["rounds"]:
        for site, found in of_round["sites"].items():
            if found["status"]:
                numbers = " | ".join(_short(found[name]) for name in ("score", "theta", "weight"))
                reason = found["reason"].replace("|", r"\|")
                lines.append(f"| {of_round['round']} | {site} | {found['status']} | {numbers} | {reason} |")
    return "\n".join([*lines, "", *_cost_lines(report)]) + "\n"


def _cost_lines(report: Document) -> list[str]:
    cost = report["cost"]
    lines = ["## Cost", ""]
    if model := cost["model"]:
        size = " × ".join(map(str, model["image"]))
        lines.append(
            f"{model['parameters']:,} parameters ({model['with_statistics']:,} with BatchNorm's statistics); "
            f"{model['flops'] / 1e9:.3g} GFLOPs for one image of {size}."
        )
    else:
        lines.append(f"The model's own cost is not known: {cost['why_no_model']}.")
    lines += ["", "| site | MB to it | MB from it | in a training round: MB to it | MB from it | seconds |"]
    lines.append("|---" * 6 + "|")
    for site, total in cost["bytes"].items():
        trained = [each["sites"][site] for each in report["rounds"] if each["trains"] and site in each["sites"]]
        cells = [_megabytes(total["down"]), _megabytes(total["up"])]
        cells += [_megabytes(_mean(each["bytes"][way] for each in trained)) for way in ("down", "up")]
        seconds = _mean(each["seconds"] for each in trained)
        lines.append(f"| {site} | " + " | ".join([*cells, "" if seconds is None else f"{seconds:.0f}"]) + " |")
    return lines


def _mean(numbers: Iterable[int | None]) -> float | None:
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else None


def _megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:.3f}"


def _cell(row: Document | None, score: str) -> str:
    """The score; with its standard deviation over images, where it is a mean over images."""
    if row is None:
        return ""
    value, spread = row["scores"].get(score), row["scores"].get(score.replace("_mean", "_std"))
    if value is None:
        return "withheld"
    return f"{value:.3f} ± {spread:.3f}" if score.endswith("_mean") and spread is not None else f"{value:.3f}"


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"
