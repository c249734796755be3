"""Everything of one round: what was asked, what came, what it measured, and what became of it, site by site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.audit.contents import form_of
from shared.audit.reading import NOT_OPENED, Reading
from shared.audit.sent import files_of
from shared.audit.sites import rounds_of, settings_of
from shared.audit.timeline import verdict_text
from shared.errors import ConfigurationError, RejectedError
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.names import Kind, MessageRef
from shared.exchange.records.verdicts import Verdict
from shared.moments import moment_text

Document = dict[str, Any]
_PARTS: tuple[tuple[Kind, str], ...] = (("round", "asked"), ("update", "answered"), ("verdict", "settled"))
_OF_A_ROW = ("epoch", "split", "images", "learning_rate", "loss", "scores")


def show(readings: Mapping[str, Reading], run: str, round_no: int) -> Document:
    """Return one round as plain values.

    Raises:
        ConfigurationError: no folder has anything of this round.
    """
    known = rounds_of(readings, run)
    if round_no not in known:
        there = f"its rounds are {known[0]} to {known[-1]}" if known else "it has no rounds"
        raise ConfigurationError([f"run {run} has no round {round_no} in these folders; {there}"])
    sites = {
        site: of_site
        for site, reading in readings.items()
        if (of_site := _of_site(reading, run, round_no))["asked"] or of_site["settled"]
    }
    settings = settings_of(readings, run)
    plugins = [plugin.in_full for plugin in settings.plugins] if settings else []
    return {"run": run, "round": round_no, "plugins": plugins, "sites": sites}


def lines(document: Document) -> Iterator[str]:
    """Yield the lines for people."""
    yield f"run {document['run']}, round {document['round']}"
    for plugin in document["plugins"]:
        yield f"needs the plug-in {plugin}"
    for site, found in document["sites"].items():
        yield ""
        yield escape(f"{site}")
        for part in ("asked", "answered", "settled"):
            message = found[part]
            if message is None:
                yield f"  {part}: no message"
                continue
            yield f"  {part}: {moment_text(message['created'])}  manifest {message['digest']}"
            for name, file in message["files"].items():
                yield escape(f"    {name}  {file['bytes']:,} bytes  sha256 {file['sha256']}  {file['state']}")
        for key, value in (found["configuration"] or {}).items():
            yield escape(f"  configuration {key}: {f'{value:g}' if isinstance(value, float) else value}")
        if found["reliability"]:
            yield escape(
                "  reliability " + ", ".join(f"{name} {value}" for name, value in found["reliability"].items())
            )
        yield from _table(found["metrics"])
        verdict = found["verdict"]
        if found["unopened"]:
            yield f"  {NOT_OPENED}: {', '.join(found['unopened'])}; name a key that opens them with --secret-key"
        if verdict or not found["unopened"]:
            yield escape(f"  verdict: {found['verdict_text'] or 'none'}")
        for name in ("score", "tolerance", "theta", "weight", "epsilon"):
            if verdict and verdict[name] is not None:
                yield f"    {name} {verdict[name]}"
        for problem in found["problems"]:
            yield escape(f"  does not hold: {problem}")


def _of_site(reading: Reading, run: str, round_no: int) -> Document:
    asked, answered, settled = (MessageRef(kind, run, round_no) for kind, _ in _PARTS)
    problems: list[str] = []
    try:
        rows = reading.table(run, round_no)
    except RejectedError as error:
        rows = []
        problems.append(str(error))
    verdict = reading.record_or_none(settled, Verdict)
    configuration, reliability = (
        reading.record_or_none(ref, form_of(reading, name))
        for ref, name in ((asked, names.ROUND_CONFIGURATION), (answered, names.RELIABILITY))
    )
    unopened = [f"{answered.path}/{names.METRICS}"] if reading.is_hidden(answered, names.METRICS) else []
    for ref, name, record in (
        (asked, names.ROUND_CONFIGURATION, configuration),
        (answered, names.RELIABILITY, reliability),
        (settled, names.VERDICT, verdict),
    ):
        if reading.is_hidden(ref, name):
            unopened.append(f"{ref.path}/{name}")
        elif record is None and reading.has(ref, name):
            problems.append(f"{ref.path}/{name} is not a record of this kind")
    return {
        **{part: _message(reading, MessageRef(kind, run, round_no)) for kind, part in _PARTS},
        "configuration": configuration.model_dump() if configuration else None,
        "reliability": reliability.model_dump() if reliability else None,
        "metrics": [{name: getattr(row, name) for name in _OF_A_ROW} for row in rows],
        "verdict": verdict.model_dump() if verdict else None,
        "verdict_text": verdict_text(verdict) if verdict else None,
        "unopened": unopened,
        "problems": problems,
    }


def _message(reading: Reading, ref: MessageRef) -> Document | None:
    message = reading.messages.get(ref)
    if message is None:
        return None
    files = {
        each.name: {
            "bytes": each.bytes,
            "sha256": each.sha256,
            "form": str(message.manifest.files[each.name].wire),
            "state": each.state,
        }
        for each in files_of(reading, message)
        if each.name in message.manifest.files
    }
    return {"created": message.manifest.created, "digest": message.digest, "files": files}


def _table(rows: list[Document]) -> Iterator[str]:
    """Yield one line per row."""
    for row in rows:
        told = ", ".join(f"{name} {value:.4g}" for name, value in row["scores"].items() if value is not None)
        loss = "not reported" if row["loss"] is None else f"{row['loss']:.4g}"
        what = "as received" if row["epoch"] == 0 else f"epoch {row['epoch']}"
        yield escape(
            f"  metrics {what}, {row['split']}, {row['images']} images: loss {loss}{', ' if told else ''}{told}"
        )
