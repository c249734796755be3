"""A model card: what it holds, and the same for people as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from aggregator.comparison import ChosenScores
from aggregator.onnx_file import OnnxFile
from aggregator.report.tables import NOT_REPORTED
from aggregator.report.text import table_lines
from aggregator.run_view import INTERVAL, Bytes, Row, signed_range
from aggregator.same_images import TestImages
from shared.escaping import escape
from shared.exchange.records.run import Plugin
from shared.exchange.tables import SPLITS, Split
from shared.learning.gain import Gain
from shared.learning.models.encoders import BaseWeights
from shared.learning.outcome import Outcome
from shared.learning.tasks import TASK_NAMES
from shared.moments import moment_text
from shared.plurals import pluralize


@dataclass(frozen=True)
class ModelFile:
    """The file, what is in it, and the SHA-256 of what a site was sent instead, where each has a model of its own."""

    file: str
    bytes: int
    sha256: str
    parameters: int
    tensors: int
    stays_at_sites: Sequence[str]
    sent_instead: Mapping[str, str]


@dataclass(frozen=True)
class Rounds:
    """How many were planned, how many were trained, and after which one the model was taken."""

    planned: int
    trained: int
    in_the_model: int


@dataclass(frozen=True)
class CardRun:
    """The run that the model comes from."""

    name: str
    outcome: Outcome | None
    task: str
    method: str
    began: str | None
    ended: str | None
    rounds: Rounds
    chosen: str
    chosen_because: str
    verdicts: Mapping[str, int]
    seconds_in_rounds: int | None
    bytes: Bytes
    configuration: Mapping[str, Any]


@dataclass(frozen=True)
class CardSite:
    """What one site brought and said; ``epsilon``: the most that it said it had spent of its images' privacy.
    ``gain``: over training alone, in a run with a baseline. ``test_images``: beside those of the run whose model a
    paired run began with.
    """

    agreed: bool | None
    withdrew: str | None
    images: Mapping[Split, str]
    rounds_in_the_model: Sequence[int]
    epsilon: float | None
    validation: Row | None
    test: Row | None
    software: str | None
    gain: Gain | None = None
    test_images: TestImages | None = None


@dataclass(frozen=True)
class Scores:
    """The main score of the chosen model."""

    name: str
    validation: ChosenScores
    test: ChosenScores


@dataclass(frozen=True)
class Contribution:
    """A site's last answer that is in the model: its manifest names the one before it, and so on to the first."""

    round: int
    manifest: str | None


@dataclass(frozen=True)
class Inputs:
    """What the model was made of, by SHA-256: files of the run, and by site signed manifests."""

    sha256: Mapping[str, str]
    contributions: Mapping[str, Contribution | None]
    final_messages: Mapping[str, str | None]


@dataclass(frozen=True)
class ModelCard:
    """Everything that is known about a run's chosen model; ``images`` are those of the sites that are in it."""

    model: ModelFile
    run: CardRun
    sites: Mapping[str, CardSite]
    images: Mapping[Split, int | None]
    scores: Scores
    privacy: Mapping[str, Any] | None
    inputs: Inputs
    software: Mapping[str, str]
    intended_use: str
    limits: Sequence[str]
    licence: str | None = None
    base_weights: BaseWeights | None = None
    onnx: OnnxFile | None = None
    input: str | None = None


def card_text(card: ModelCard) -> str:
    """Return the card in words; what was not reported says so."""
    model, run = card.model, card.run
    facts = {
        "task": run.task,
        "method": run.method,
        "trained": f"from {_moment(run.began)} to {_moment(run.ended)}",
        "rounds": f"{run.rounds.trained} of {run.rounds.planned} trained; the model is {run.chosen} "
        f"({run.chosen_because})",
        "answers": ", ".join(f"{count} {status}" for status, count in run.verdicts.items()) or NOT_REPORTED.why,
        "parameters": f"{model.parameters:,} in {pluralize(model.tensors, 'tensor')}",
        "file": f"{model.file}, {model.bytes:,} bytes",
        "SHA-256": model.sha256,
        "licence": card.licence or f"{NOT_REPORTED.why}: it is for the PI to say, before the model is handed on",
        "base weights": _base_weights(card),
        **({"input": card.input} if card.input else {}),
        **_began_with(run.configuration),
        **_trained_by(run.configuration),
        **_needs(run.configuration),
        **({"ONNX": _onnx(card.onnx)} if card.onnx else {}),
    }
    outcome = [f"Outcome: {escape(run.outcome.text)}.", ""] if run.outcome else []
    lines = [f"# {escape(run.name)}", "", *outcome, "## Use", "", card.intended_use, ""]
    lines += [f"- {limit}" for limit in card.limits]
    lines += ["", "## Model", "", *_table(("", ""), facts.items())]
    if model.stays_at_sites:
        lines += ["", f"At the sites stay: {', '.join(model.stays_at_sites)}."]
    if model.sent_instead:
        lines += ["", "Each of these sites was sent a model of its own:", ""]
        lines += _table(("site", "SHA-256"), model.sent_instead.items())
    lines += ["", "## Who took part, with how many images", "", *_sites(card)]
    lines += ["", f"## {card.scores.name}, measured by each site on its own images", "", *_scores(card)]
    lines += ["", "All other scores are in the card for scripts.", "", "## Privacy", "", *_privacy(card)]
    lines += ["", "## What it was made of", "", "SHA-256 of the files and of the signed manifests.", "", *_inputs(card)]
    lines += ["", "## Software", "", "This card was written with:", "", *_table(("", "version"), card.software.items())]
    lines += ["", "When the sites joined, they had:", ""]
    lines += _table(("site", ""), [(name, site.software) for name, site in card.sites.items()])
    return "\n".join(lines) + "\n"


def _began_with(run: Mapping[str, Any]) -> dict[str, str]:
    """Return which earlier model training began with, if it did."""
    start = run.get("start")
    return {} if start is None else {"began with": f"the model of {start['name']}, SHA-256 {start['sha256']}"}


def _trained_by(run: Mapping[str, Any]) -> dict[str, str]:
    """Return which sites trained by a program of their own, if some did."""
    trainer = run.get("trainer")
    if trainer is None:
        return {}
    who = ", ".join(trainer["sites"] or run["sites"])
    return {"trained outside dropfed": f"{who}, each by its own program called {trainer['name']}"}


def _needs(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the plug-ins without which nothing opens the model, if it has such."""
    plugins = [Plugin(**each).in_full for each in run.get("plugins", ())]
    return {"needs": f"plug-in {' and '.join(plugins)}"} if plugins else {}


def _base_weights(card: ModelCard) -> str:
    base = card.base_weights
    if base is None:
        if card.run.configuration.get("start") is not None:
            return "those of the model that it began with; see its card"
        if card.run.task not in TASK_NAMES or card.run.configuration.get("plugins"):
            return "not known: only the code of the task, or of a plug-in, knows with which weights its network begins"
        return "none: training began from random weights"
    return f"{base.file} from {base.source}, its SHA-256 begins {base.sha256_begins}; licence: {base.licence}"


def _onnx(onnx: OnnxFile) -> str:
    shape = " × ".join(map(str, onnx.input))
    outputs = "; ".join(f"{name}: {what}" for name, what in onnx.outputs.items())
    compared = f"over {onnx.inputs_compared} random inputs by at most {onnx.largest_difference:.1g}"
    allowed = f"{onnx.tolerance:g} would have been an error"
    return f"{onnx.file}, inputs: {shape}; {outputs}; onnxruntime differs from PyTorch {compared}, more than {allowed}"


def _sites(card: ModelCard) -> list[str]:
    rows = [
        (
            name,
            {True: "yes", False: "declined", None: NOT_REPORTED.why}[site.agreed],
            *(site.images.get(split) for split in SPLITS),
            len(site.rounds_in_the_model),
            site.withdrew or "no",
        )
        for name, site in card.sites.items()
    ]
    rows.append(("all in the model", "", *(card.images[split] for split in SPLITS), "", ""))
    head = ("site", "agreed", "training images", "validation", "test", "rounds in the model", "withdrew")
    return _table(head, rows)


def _scores(card: ModelCard) -> list[str]:
    validation, test = card.scores.validation, card.scores.test
    rows = [[site, validation.shown(site), _tested(card, site)] for site in card.sites]
    rows.append(["mean over the sites that reported it", _score(validation.mean), _score(test.mean)])
    if card.run.configuration.get("baseline") is None:
        return _table(("site", "validation", "test"), rows)
    alone = {name: site.gain.alone for name, site in card.sites.items() if site.gain}
    means = [*map(alone.get, card.sites), fmean(alone.values()) if alone else None]
    rows = [[*row, _score(told)] for row, told in zip(rows, means, strict=True)]
    return _table(("site", "validation", "test", "test, trained alone"), rows)


def _tested(card: ModelCard, site: str) -> str | None:
    """Return a site's test score with what it is over, and how it compares with the last run's."""
    row, shown = card.sites[site].test, card.scores.test.shown(site)
    return shown if row is None or shown is None else f"{shown}{_against_last(card, site, row)}"


def _against_last(card: ModelCard, site: str, row: Row) -> str:
    """Return how a site's test score compares with that of the model that the run began with, if it does."""
    found, start = row.difference(card.scores.name), card.run.configuration.get("start")
    if found is None or start is None:
        return ""
    others = "; its test images were others" if card.sites[site].test_images == "others" else ""
    interval = f", {signed_range(found[1])} by {INTERVAL}" if found[1] else ""
    return f"; against {start['name']} {found[0]:+.3f}{interval}{others}"


def _privacy(card: ModelCard) -> list[str]:
    if card.privacy is None:
        return ["The run was not private: no noise was added, and no ε is known."]
    promise = ", ".join(f"{name} {value}" for name, value in card.privacy.items() if value is not None)
    spent = [(name, site.epsilon) for name, site in card.sites.items()]
    return [f"Trained by DP-SGD: {promise}. About one image, not one patient.", "", *_table(("site", "ε spent"), spent)]


def _inputs(card: ModelCard) -> list[str]:
    inputs = card.inputs
    contributions = [
        (f"last answer of {site} in the model, round {found.round}", found.manifest)
        for site, found in inputs.contributions.items()
        if found
    ]
    final = [(f"final message to {site}", digest) for site, digest in inputs.final_messages.items() if digest]
    return _table(("", "SHA-256"), [*inputs.sha256.items(), *contributions, *final])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return table_lines(head, ([_or_missing(value) for value in row] for row in rows))


def _or_missing(value: Any) -> Any:
    return NOT_REPORTED.why if value is None else value


def _moment(time: str | None) -> str:
    return NOT_REPORTED.why if time is None else moment_text(time)


def _score(score: float | None) -> str | None:
    return None if score is None else f"{score:.3f}"
