"""A model card for people, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aggregator.report import Document
from aggregator.report.text import table_lines
from shared.escaping import escape
from shared.plurals import pluralize

NOT_REPORTED = "not reported"


def card_text(card: Document) -> str:
    """The card in words; what nobody told says so."""
    model, run, rounds = card["model"], card["run"], card["run"]["rounds"]
    verdicts = ", ".join(f"{count} {status}" for status, count in run["verdicts"].items())
    facts = {
        "task": run["task"],
        "method": run["method"],
        "trained": f"from {_or_missing(run['began'])} to {_or_missing(run['ended'])}",
        "rounds": f"{rounds['trained']} of {rounds['planned']} trained; the model is {run['chosen']} "
        f"({run['chosen_because']})",
        "answers": verdicts or NOT_REPORTED,
        "parameters": f"{model['parameters']:,} in {pluralize(model['tensors'], 'tensor')}",
        "file": f"{model['file']}, {model['bytes']:,} bytes",
        "SHA-256": model["sha256"],
        "licence": card["licence"] or f"{NOT_REPORTED}: it is for the PI to say, before the model is handed on",
    }
    lines = [f"# {escape(run['name'])}", "", f"Outcome: {escape(run['outcome']['text'])}.", ""]
    lines += ["## Use", "", card["intended_use"], ""]
    lines += [f"- {limit}" for limit in card["limits"]]
    lines += ["", "## Model", "", *_table(("", ""), list(facts.items()))]
    if model["stays_at_sites"]:
        lines += ["", f"At the sites stay: {', '.join(model['stays_at_sites'])}."]
    if model["sent_instead"]:
        lines += ["", "Each of these sites was sent a model of its own:", ""]
        lines += _table(("site", "SHA-256"), list(model["sent_instead"].items()))
    lines += ["", "## Who took part, with how many images", "", *_sites(card)]
    lines += ["", f"## {card['scores']['name']}, measured by each site on its own images", "", *_scores(card)]
    lines += ["", "All other scores are in the card for scripts.", "", "## Privacy", "", *_privacy(card)]
    lines += ["", "## What it was made of", "", "SHA-256 of the files and of the signed manifests.", "", *_inputs(card)]
    software = list(card["software"].items())
    lines += ["", "## Software", "", "This card was written with:", "", *_table(("", "version"), software), ""]
    lines += ["When the sites joined, they had:", ""]
    lines += _table(("site", ""), [(name, site["software"]) for name, site in card["sites"].items()])
    return "\n".join(lines) + "\n"


def _sites(card: Document) -> list[str]:
    rows = [
        (
            name,
            "yes" if site["agreed"] else NOT_REPORTED if site["agreed"] is None else "declined",
            *(site["images"].get(split) for split in ("train", "validation", "test")),
            len(site["rounds_in_the_model"]),
            site["withdrew"] or "no",
        )
        for name, site in card["sites"].items()
    ]
    total = card["images"]
    rows.append(("all in the model", "", total["train"], total["validation"], total["test"], "", ""))
    head = ("site", "agreed", "training images", "validation", "test", "rounds in the model", "withdrew")
    return _table(head, rows)


def _scores(card: Document) -> list[str]:
    validation, test = card["scores"]["validation"], card["scores"]["test"]
    rows = [(site, _score(validation["sites"][site]), _score(test["sites"][site])) for site in card["sites"]]
    rows.append(("mean over the sites that told", _score(validation["mean"]), _score(test["mean"])))
    return _table(("site", "validation", "test"), rows)


def _privacy(card: Document) -> list[str]:
    if card["privacy"] is None:
        return ["The run was not private: no noise was added, and no ε is known."]
    promise = ", ".join(f"{name} {value}" for name, value in card["privacy"].items() if value is not None)
    spent = [(name, site["epsilon"]) for name, site in card["sites"].items()]
    return [f"Trained by DP-SGD: {promise}. About one image, not one patient.", "", *_table(("site", "ε spent"), spent)]


def _inputs(card: Document) -> list[str]:
    inputs = card["inputs"]
    rows: list[tuple[Any, ...]] = list(inputs["sha256"].items())
    for site, found in inputs["contributions"].items():
        if found:
            rows.append((f"last answer of {site} in the model, round {found['round']}", found["manifest"]))
    rows += [(f"final message to {site}", digest) for site, digest in inputs["final_messages"].items() if digest]
    return _table(("", "SHA-256"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return table_lines(head, ([_or_missing(value) for value in row] for row in rows))


def _or_missing(value: Any) -> Any:
    return NOT_REPORTED if value is None else value


def _score(score: float | None) -> str | None:
    return None if score is None else f"{score:.3f}"
