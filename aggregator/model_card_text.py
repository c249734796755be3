"""A model card for people, as Markdown: the same as the one for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aggregator.report.text import short, table_lines
from shared.escaping import escape
from shared.exchange.tables import SPLITS
from shared.plurals import pluralize

Card = dict[str, Any]
"""What ``model-card.json`` holds."""
NOT_REPORTED = "not reported"


def card_text(card: Card) -> str:
    """Return the card in words; what nobody told says so."""
    model, run = card["model"], card["run"]
    rounds, why = run["rounds"], run["chosen_because"]
    facts = {
        "task": run["task"],
        "method": run["method"],
        "trained": f"from {_or_missing(run['began'])} to {_or_missing(run['ended'])}",
        "rounds": f"{rounds['trained']} of {rounds['planned']} trained; the model is {run['chosen']} ({why})",
        "answers": ", ".join(f"{count} {status}" for status, count in run["verdicts"].items()) or NOT_REPORTED,
        "parameters": f"{model['parameters']:,} in {pluralize(model['tensors'], 'tensor')}",
        "file": f"{model['file']}, {model['bytes']:,} bytes",
        "SHA-256": model["sha256"],
        "licence": card["licence"] or f"{NOT_REPORTED}: it is for the PI to say, before the model is handed on",
    }
    outcome = [f"Outcome: {escape(run['outcome']['text'])}.", ""] if run["outcome"] else []
    lines = [f"# {escape(run['name'])}", "", *outcome, "## Use", "", card["intended_use"], ""]
    lines += [f"- {limit}" for limit in card["limits"]]
    lines += ["", "## Model", "", *_table(("", ""), facts.items())]
    if model["stays_at_sites"]:
        lines += ["", f"At the sites stay: {', '.join(model['stays_at_sites'])}."]
    if model["sent_instead"]:
        lines += ["", "Each of these sites was sent a model of its own:", ""]
        lines += _table(("site", "SHA-256"), model["sent_instead"].items())
    lines += ["", "## Who took part, with how many images", "", *_sites(card)]
    lines += ["", f"## {card['scores']['name']}, measured by each site on its own images", "", *_scores(card)]
    lines += ["", "All other scores are in the card for scripts.", "", "## Privacy", "", *_privacy(card)]
    lines += ["", "## What it was made of", "", "SHA-256 of the files and of the signed manifests.", "", *_inputs(card)]
    lines += ["", "## Software", "", "This card was written with:", ""]
    lines += _table(("", "version"), card["software"].items())
    lines += ["", "When the sites joined, they had:", ""]
    lines += _table(("site", ""), [(name, site["software"]) for name, site in card["sites"].items()])
    return "\n".join(lines) + "\n"


def _sites(card: Card) -> list[str]:
    rows = [
        (
            name,
            {True: "yes", False: "declined", None: NOT_REPORTED}[site["agreed"]],
            *(site["images"].get(split) for split in SPLITS),
            len(site["rounds_in_the_model"]),
            site["withdrew"] or "no",
        )
        for name, site in card["sites"].items()
    ]
    rows.append(("all in the model", "", *(card["images"][split] for split in SPLITS), "", ""))
    head = ("site", "agreed", "training images", "validation", "test", "rounds in the model", "withdrew")
    return _table(head, rows)


def _scores(card: Card) -> list[str]:
    splits = card["scores"]["validation"], card["scores"]["test"]
    rows = [(site, *(short(split["sites"][site]) or None for split in splits)) for site in card["sites"]]
    rows.append(("mean over the sites that told", *(short(split["mean"]) or None for split in splits)))
    return _table(("site", "validation", "test"), rows)


def _privacy(card: Card) -> list[str]:
    if card["privacy"] is None:
        return ["The run was not private: no noise was added, and no ε is known."]
    promise = ", ".join(f"{name} {value}" for name, value in card["privacy"].items() if value is not None)
    spent = [(name, site["epsilon"]) for name, site in card["sites"].items()]
    return [f"Trained by DP-SGD: {promise}. About one image, not one patient.", "", *_table(("site", "ε spent"), spent)]


def _inputs(card: Card) -> list[str]:
    inputs = card["inputs"]
    contributions = [
        (f"last answer of {site} in the model, round {found['round']}", found["manifest"])
        for site, found in inputs["contributions"].items()
        if found
    ]
    final = [(f"final message to {site}", digest) for site, digest in inputs["final_messages"].items() if digest]
    return _table(("", "SHA-256"), [*inputs["sha256"].items(), *contributions, *final])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return table_lines(head, ([_or_missing(value) for value in row] for row in rows))


def _or_missing(value: Any) -> Any:
    return NOT_REPORTED if value is None else value
