"""What an ethics board asks of a federation, answered from the folders alone, as one page.

Who took part and under which keys; what was asked, agreed to, declined and withdrawn; what left each hospital and what
never did; what became of every answer, and why; what privacy was spent; what was checked and what was found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shared.audit.closing import closing
from shared.audit.difference import final_model, flat
from shared.audit.reading import NOT_OPENED, UNKNOWN, Reading
from shared.audit.sites import (
    absent_sites,
    by_site,
    empty_sites,
    one_chain,
    remarks,
    rounds_of,
    settings_of,
    sharing_of,
    titles,
    unnamed,
)
from shared.audit.verify import Audit
from shared.doors.numbers import finite
from shared.exchange import names
from shared.exchange.ledger import readable_tables
from shared.exchange.names import MessageRef
from shared.exchange.order import Ending
from shared.exchange.records.answers import Abort, Withdrawal
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.surveys import SignedSheet
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import now_text
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.signing import fingerprint, in_groups
from shared.exchange.tables import SPLITS, epsilon_in
from shared.learning.outcome import outcome_by_tables
from shared.moments import moment_text
from shared.pages.render import render
from shared.sizes import size_text

Document = dict[str, Any]
FOLDED_FROM = 30
"""A page shows the table of so many answers of one run at once; what is longer is folded up."""
TEMPLATE = Path(__file__).with_name("report.html")

_HOLDS = {
    names.SITE_CARD: "the site's name, public key and software version",
    names.STATUS: "what the site is doing now, in a sentence what troubles it, and its software if that was updated; "
    "the newest is shown above",
    f"{names.KEYS}/….json": "a new public key of the site, signed by the one before",
    f"{names.SHEETS}/….json": "the site's yes or no to a survey, with a reason; with a yes figures about its images, "
    "of a closed list, and none about few of them",
    names.MANIFEST: "of each message the names, sizes and hashes of its files, what it answers and when it was signed",
    names.CONSENT: "the site's yes or no with a reason, and how many images it has in each split",
    names.WITHDRAWAL: "that the site leaves the run, with a reason",
    names.METRICS: "scores and losses over whole splits, of the shared model and, if the run has it, of one trained at "
    "the site alone; over how many images, and how many are of each class; standard errors, and differences to the "
    "first model; in a private run the ε spent",
    names.RELIABILITY: "how well the model's uncertainty tells wrong from right; θ is the uncertainty of one image",
    names.SITE_MODEL: "the trained weights, exactly the tensors listed in the run's offer",
    names.state_file("…"): "what the method needs beside the weights, exactly as listed in the run's offer",
    "check-…/…": "known texts, by which dropfed-site check tries the server; it removes them",
}
LEAVES = {name: _HOLDS[name] for name in names.files_of_sites()}
"""The closed list of what may leave a hospital: a folder that holds anything else does not pass."""
ENDED_AS: dict[Ending | None, str] = {
    "declined": "declined by the hospital",
    "withdrawn": "the hospital withdrew",
    "finished": "with a final model",
    "aborted": "aborted",
    None: "not yet",
}
CHECKED = (
    ("Names", "Nothing lies in the folders that the protocol does not name."),
    (
        "Keys",
        "Every message is signed: the hospital's by the key of its card, the aggregator's by the one that invited the "
        "hospital, and either by one to which that key handed over. No two of them sign with the same key.",
    ),
    ("Files", "Every file has the size and the SHA-256 that its signed message says, and none is missing or added."),
    (
        "Contents",
        "Every file that was opened is what its name says, from its first byte to its last: no image, DICOM, archive, "
        "program or pickle, no further column or key, and no free text but reasons and what troubles a site, which "
        "this page shows.",
    ),
    ("Chains", "Each side's messages are numbered without a gap, each naming the one before: none was taken away."),
    (
        "Replies",
        "Each message answers the one it must answer, no hospital answered after it had withdrawn, and the aggregator "
        "asked none after it had read that.",
    ),
)
UNKNOWABLE = (
    "What the numbers of a model reveal cannot be told by looking at them; differential privacy bounds it, where a run "
    "has it.",
    "Whether free text, such as a reason, names a patient, a file or a folder. The software puts none there, which no "
    "machine can check: read what this page shows of it.",
    "Whether the aggregator's key is the real one: compare its digits with those you know from elsewhere.",
    "Who has a key. Each hospital's software makes its own, and never sends it; that nobody copied it no folder shows.",
    "Times are by each sender's own clock. The order is certain, the hour is not.",
    "What happened outside these folders, and in folders that were not given to this check.",
)


def report(folders: Mapping[str, Reading], audits: Mapping[str, Audit], *, is_key_compared: bool) -> Document:
    """Return everything on the page, as plain values.

    Args:
        folders: by their names; one that does not say whose it is has its findings alone.
        audits: what ``verify`` says of each.
        is_key_compared: whether the aggregator's key is one that was known from elsewhere.

    Raises:
        RejectedError: no folder says whose it is.
    """
    readings, called = by_site(folders), titles(folders)
    of_site = {reading.federation.site: audits[name] for name, reading in folders.items() if reading.federation}
    # A folder that does not say whose it is may have the name of a hospital whose folder is another: both are told.
    shown_as = {
        name: reading.federation.site if reading.federation else called[name] for name, reading in folders.items()
    }
    keys = one_chain(reading.aggregator.keys for reading in readings.values())
    since = {each.key: each.created for reading in readings.values() for each in reading.aggregator.handovers}
    runs = {run for reading in readings.values() for run in reading.runs}
    return {
        "federation": next(iter(readings.values())).opened.federation,
        "made": now_text(),
        "aggregator_key": keys[0],
        "later_aggregator_keys": [{"key": key, "since": since[key]} for key in keys[1:]],
        "is_key_compared": is_key_compared,
        "remarks": list(remarks(folders)),
        "left_out": unnamed(folders),
        "sites": [_site(reading, of_site[site]) for site, reading in readings.items()],
        "runs": [_run(readings, run) for _, run in sorted((_began(readings, run), run) for run in runs)],
        "findings": [
            {"site": shown_as[name], "file": finding.file, "what": finding.what, "since": finding.since}
            for name, audit in audits.items()
            for finding in audit.findings
        ],
        "removed": {shown_as[name]: audit.removed for name, audit in audits.items() if audit.removed},
        "messages": sum(audit.messages for audit in audits.values()),
        "files": sum(audit.files for audit in audits.values()),
        "bytes": sum(audit.size_bytes for audit in audits.values()),
        "unopened": sum(audit.encrypted - audit.opened for audit in audits.values()),
    }


def page(document: Document) -> str:
    """Return the page, self-contained."""
    return render(
        TEMPLATE,
        title=f"Audit of the federation {document['federation']}",
        report=document,
        not_opened=NOT_OPENED,
        unknown=UNKNOWN,
        folded_from=FOLDED_FROM,
        moment=moment_text,
        leaves=LEAVES,
        ended_as=ENDED_AS,
        checked=CHECKED,
        unknowable=UNKNOWABLE,
        fingerprint=fingerprint,
        in_groups=in_groups,
        size=size_text,
    )


def _began(readings: Mapping[str, Reading], run: str) -> str:
    """Return when a run's first message was signed."""
    return min(reading.runs[run] for reading in readings.values() if run in reading.runs)


def _site(reading: Reading, audit: Audit) -> Document:
    federation, card = reading.opened, reading.site_card
    return {
        "site": federation.site,
        "key": federation.site_key,
        "later_keys": [{"key": each.key, "since": each.created} for each in reading.site.handovers],
        "sheets": [
            {"path": path, "created": record.created, "agrees": record.agrees}
            for path, record in reading.surveys.items()
            if isinstance(record, SignedSheet)
        ],
        "joined": federation.created,
        "software": card.software if card else None,
        "heartbeat": reading.status.model_dump(include={"time", "phase", "run", "round", "trouble"})
        if reading.status
        else None,
        "messages": audit.messages,
        "files": audit.files,
        "bytes": audit.size_bytes,
        "findings": len(audit.findings),
    }


def _run(readings: Mapping[str, Reading], run: str) -> Document:
    offered = {site: reading for site, reading in readings.items() if MessageRef("offer", run) in reading.messages}
    settings = settings_of(offered, run)
    listed = sharing_of(offered, run)
    sites = {site: _participant(reading, run) for site, reading in offered.items()}
    rounds = [_round(offered, run, number, settings) for number in rounds_of(offered, run)]
    return {
        "run": run,
        "began": _began(readings, run),
        "settings": dict(flat("", settings.model_dump(mode="json"))) if settings else {},
        "hides_settings": settings is None and any(reading.hides_settings(run) for reading in offered.values()),
        "came_to": _came_to(offered, run, settings),
        "summary": _summary(settings),
        "stays": _stays(listed),
        "sites": sites,
        "not_here": absent_sites(readings, run),
        "empty": empty_sites(readings, run),
        "rounds": rounds,
        "answers": sum(found["answered"] is not None for each in rounds for found in each["sites"].values()),
        "verdicts": dict(sum((Counter(site["verdicts"]) for site in sites.values()), Counter())),
        "outcome": _outcome(offered, run),
        "digest": closing(offered, run).model_dump() if offered else None,
    }


def _summary(settings: RunConfiguration | None) -> Document | None:
    if settings is None:
        return None
    privacy, trainer = settings.privacy, settings.trainer
    return {
        "task": settings.task,
        "method": settings.method,
        "rounds": settings.rounds,
        "tolerance": settings.model_dump()["tolerance"],
        "keep": settings.keep,
        "start": settings.start.model_dump() if settings.start else None,
        "privacy": privacy.model_dump() if privacy else None,
        "plugins": [plugin.in_full for plugin in settings.plugins],
        "trainer": {"name": trainer.name, "sites": trainer.sites or settings.sites} if trainer else None,
    }


def _stays(listed: Sharing | None) -> Document | None:
    """Return what of a model travels, and what stays at each hospital by the signed offer."""
    if listed is None:
        return None
    return {
        "travels": len(listed.tensors),
        "frozen": len(listed.frozen),
        "from_file": len(listed.from_file),
        "start": sorted(listed.start.keys() - listed.frozen),
        "personal": sorted(listed.personal),
    }


def _participant(reading: Reading, run: str) -> Document:
    ref, left = MessageRef("consent", run), MessageRef("withdrawal", run)
    consent = reading.consent(run)
    withdrawal = reading.record_or_none(left, Withdrawal)
    verdicts = [
        verdict
        for number in rounds_of({"": reading}, run)
        if (verdict := reading.record_or_none(MessageRef("verdict", run, number), Verdict))
    ]
    hidden = NOT_OPENED if reading.is_hidden(left, names.WITHDRAWAL) else None
    return {
        "offered": reading.messages[MessageRef("offer", run)].manifest.created,
        "answered": reading.messages[ref].manifest.created if ref in reading.messages else None,
        "hides_answer": reading.is_hidden(ref, names.CONSENT),
        "agrees": consent.agrees if consent else None,
        "reason": consent.reason if consent else None,
        "images": {split: consent.images[split] for split in SPLITS if split in consent.images} if consent else {},
        "withdrew": reading.messages[left].manifest.created if left in reading.messages else None,
        "why_withdrew": withdrawal.reason if withdrawal else hidden,
        "ended": reading.ending(run),
        "why_aborted": _why_aborted(reading, run),
        "verdicts": dict(Counter(verdict.status for verdict in verdicts)),
        "epsilon": _most_spent(reading, run, verdicts),
        "sent": _sent(reading, run),
    }


def _most_spent(reading: Reading, run: str, verdicts: Sequence[Verdict]) -> float | None:
    """Return the greatest ε that the site's own tables or the verdicts on them tell: of a late answer, which counts too
    (protocol 6.4), no verdict tells it.
    """
    spent = [epsilon_in(reading.readable_table(run, number)) for number in rounds_of({"": reading}, run)]
    spent += [None if verdict.epsilon is None else finite(verdict.epsilon) for verdict in verdicts]
    return max((epsilon for epsilon in spent if epsilon is not None), default=None)


def _why_aborted(reading: Reading, run: str) -> str | None:
    ref = MessageRef("abort", run)
    abort = reading.record_or_none(ref, Abort)
    return abort.reason if abort else NOT_OPENED if reading.is_hidden(ref, names.ABORT) else None


def _sent(reading: Reading, run: str) -> list[Document]:
    """Return what left the hospital in a run, by the name of the file."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for message in reading.sent_by(reading.opened.site):
        if message.ref.run == run:
            for name, entry in message.manifest.files.items():
                counts[name] += 1
                sizes[name] += entry.size
    return [{"name": name, "count": count, "bytes": sizes[name]} for name, count in sorted(counts.items())]


def _round(readings: Mapping[str, Reading], run: str, number: int, settings: RunConfiguration | None) -> Document:
    sites = {}
    for site, reading in readings.items():
        asked, answered, settled = (MessageRef(kind, run, number) for kind in ("round", "update", "verdict"))
        if asked not in reading.messages and settled not in reading.messages:
            continue
        verdict = reading.record_or_none(settled, Verdict)
        created: Document = {
            name: reading.messages[ref].manifest.created if ref in reading.messages else None
            for name, ref in (("asked", asked), ("answered", answered), ("settled", settled))
        }
        sites[site] = created | {
            "hides_verdict": reading.is_hidden(settled, names.VERDICT),
            "status": verdict.status if verdict else None,
            "score": finite(verdict.score) if verdict and verdict.score else None,
            "weight": verdict.share if verdict and (verdict.weight or verdict.share) else None,
            "reason": verdict.why if verdict else None,
        }
    return {"round": number, "trains": settings is None or number <= settings.rounds, "sites": sites}


def _came_to(readings: Mapping[str, Reading], run: str, settings: RunConfiguration | None) -> str | None:
    """Return the run's outcome by the tables that can be read here; None while it goes on, or if it is encrypted."""
    if settings is None:
        return None
    card = _card(readings, run)
    # Where there is a final model, a site that never answered was sent an abort all the same.
    aborts = () if card else filter(None, (_why_aborted(reading, run) for reading in readings.values()))
    outcome = outcome_by_tables(settings, card, next(iter(aborts), None), partial(readable_tables, readings, run))
    return outcome.text if outcome else None


def _card(readings: Mapping[str, Reading], run: str) -> FinalCard | None:
    """Return what the first folder that tells it says of the final model."""
    cards = (reading.record_or_none(MessageRef("final", run), FinalCard) for reading in readings.values())
    return next(filter(None, cards), None)


def _outcome(readings: Mapping[str, Reading], run: str) -> Document | None:
    """Return what is said of the final model; None if none was sent."""
    final = MessageRef("final", run)
    sent = {site: reading for site, reading in readings.items() if final in reading.messages}
    if not sent:
        return None
    card = _card(sent, run)
    return {
        "hides_card": card is None and any(reading.is_hidden(final, names.CARD) for reading in sent.values()),
        "chosen": card.chosen_round if card else None,
        "reason": card.reason if card else None,
        "models": {site: final_model(reading, run) for site, reading in sent.items()},
        "epsilon": card.epsilon if card else {},
    }
