"""What left this hospital, from the work directory alone: no daemon needs to run, and no folder is asked.

What is signed here leaves in the order of its numbers. That the folder has a message is certain where the daemon saw it
there, or where the aggregator's own signed message answers it or a later one; of anything else it is only not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import prod
from pathlib import Path
from typing import Any

from shared.doors import Refusal
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.escaping import escape
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.records.messages import Status
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import time_text
from shared.exchange.records.wire import PLAIN, FileEntry
from shared.exchange.signing import open_signed
from shared.exchange.trust import Message
from shared.exchange.weights import Layout, entry_of, layout_of
from shared.folder.address import checked_address, shown
from shared.moments import moment_text
from shared.plurals import pluralize
from site_client import store
from site_client.configuration import identity, read_configuration, require_here
from site_client.heartbeat import last_status
from site_client.rotation import read_ledger
from site_client.surveys import is_published

State = dict[str, Any]
_KINDS: dict[str, str] = {
    "card": "the site's card: its name, public key and software",
    "handover": "hand-over to a new key",
    "sheet": "sheet of figures about this site's images",
    **{name: name for name, kind in names.KINDS.items() if kind.sender == "site"},
}
HEARTBEAT = (
    "phase, run, round, progress, in one sentence what troubles the site, with no name of its images or folders, the "
    "software if it was updated, and the number and hash of the last message of either side"
)


def sent(work: Path, since: str | None = None) -> State:
    """Return every file that was signed to leave, as plain values.

    Args:
        since: a date, a time or a number of days, as people write it; None: everything.

    Raises:
        ConfigurationError: there is no such site, or ``since`` is none of these.
    """
    earliest = time_text(_moment(since, datetime.now(UTC)).timestamp()) if since is not None else ""
    require_here(work)
    us, ledger = identity(work), read_ledger(work)
    status = last_status(work)
    seen = _last_seen(ledger, status)
    messages = [*_records(work, ledger, seen), *(_message(ledger, message, seen) for message in ledger.own_messages())]
    messages.sort(key=lambda message: (message["number"], message["kind"] in ("handover", "sheet")))
    messages = [message for message in messages if message["signed"] >= earliest]
    files = [file for message in messages for file in message["files"]]
    return {
        "federation": us.federation,
        "site": us.site,
        "folder": _folder(work),
        "since": earliest or None,
        "messages": messages,
        "heartbeat": {"path": names.STATUS, "holds": HEARTBEAT, "last": status.time} if status else None,
        "total": {
            "messages": len(messages),
            "files": len(files),
            "bytes": sum(file["bytes"] for file in files),
            "not_known_to_be_in_the_folder": sum(not message["in_folder"] for message in messages),
        },
    }


def sent_text(state: State) -> str:
    """Return what left in words, for people; of tensors their count and that of their numbers."""
    since = f" since {moment_text(state['since'])}" if state["since"] else ""
    folder = (
        state["folder"] or "a folder that site.yaml does not name now: `dropfed-site check` says what is wrong there"
    )
    lines = [f"{state['site']} of {state['federation']}: what left this hospital{since}, into {folder}"]
    for message in state["messages"]:
        lines += [
            "",
            f"{moment_text(message['signed'])}  {_KINDS[message['kind']]}, answers {message['answers']}; "
            f"{'is in the folder' if message['in_folder'] else 'is not known to be in the folder yet'}",
            *(f"  {_file_text(file)}" for file in message["files"]),
        ]
    total = state["total"]
    in_all = (pluralize(total[name], name.removesuffix("s")) for name in ("messages", "files", "bytes"))
    lines += ["", f"in all {', '.join(in_all)}"]
    if total["not_known_to_be_in_the_folder"]:
        lines.append(f"not known to be in the folder yet: {total['not_known_to_be_in_the_folder']} of these messages")
    if (heartbeat := state["heartbeat"]) is not None:
        lines.append(
            f"and {heartbeat['path']}, the heartbeat, overwritten all the time: {heartbeat['holds']}; "
            f"last at {moment_text(heartbeat['last'])}"
        )
    return "\n".join(lines)


def _folder(work: Path) -> str | None:
    """Return the folder's address; None while ``site.yaml`` cannot be read: what has left can be told all the same."""
    try:
        return shown(checked_address(read_configuration(work).url))
    except ConfigurationError:
        return None


def _file_text(file: Mapping[str, Any]) -> str:
    parts = [f"{file['path']}: {pluralize(file['bytes'], 'byte')}, SHA-256 {file['sha256']}"]
    if (tensors := file["tensors"]) is not None:
        count = sum(prod(tensor["shape"]) for tensor in tensors)
        form = f" as {file['form']}" if file["form"] else ""
        parts.append(f"{pluralize(len(tensors), 'tensor')}, {pluralize(count, 'number')}{form}")
    if file["encrypted"]:
        parts.append("encrypted for the aggregator")
    if file["removed"]:
        parts.append("removed again, as the run's `keep` says")
    return ", ".join(parts)


# --- messages ----------------------------------------------------------------------------------------------


def _message(ledger: Mirror, message: Message, seen: int) -> State:
    ref, manifest = message.ref, message.manifest
    path = ledger.path(ref, names.MANIFEST)
    files = [
        _file(ledger, message, name, entry, was_published=manifest.seq <= seen)
        for name, entry in sorted(manifest.files.items())
    ]
    return {
        "signed": manifest.created,
        "number": manifest.seq,
        "kind": ref.kind,
        "run": ref.run,
        "round": ref.round_no,
        "answers": _answered(ledger, message),
        "in_reply_to": manifest.in_reply_to,
        "in_folder": manifest.seq <= seen,
        "files": [*files, _plain_file(ref.manifest, FileEntry(size=path.stat().st_size, sha256=message.digest))],
    }


def _answered(ledger: Mirror, message: Message) -> str:
    """Return what a message of ours answers, in words."""
    ref = message.ref.answers
    if message.manifest.in_reply_to is None or ref is None:
        return "nothing"
    asked = ledger.message(ref)
    if asked is None or asked.digest != message.manifest.in_reply_to:
        return f"a message that is not kept here, {message.manifest.in_reply_to}"
    if not ref.round_no:
        return f"the offer of run {ref.run}"
    return f"{store.round_name_of(ledger, ref)} of run {ref.run}"


def _records(work: Path, ledger: Mirror, seen: int) -> list[State]:
    """Return what leaves beside messages and heartbeat: the site's card, later keys and sheets, as far as it is."""
    is_enrolled = seen > 0 or (ledger.root / names.FEDERATION).exists()
    below = [path.relative_to(ledger.root).as_posix() for path in sorted(ledger.root.glob("*/*.json"))]
    records = []
    handovers = [path for path in below if names.is_handover(path, ledger.own.sender)]
    for path in (names.SITE_CARD, *handovers, *filter(names.is_sheet, below)):
        try:
            body, _ = open_signed((ledger.root / path).read_bytes())
        except (FileNotFoundError, Refusal):  # lost; the daemon takes it back from the folder, or says so
            continue
        if path == names.SITE_CARD:
            kind, number, answers, in_folder = "card", 0, "the invite", is_enrolled
        elif path in handovers:
            kind, number, answers = "handover", int(body["after"]["seq"]), "nothing"
            in_folder = seen > number
        else:
            kind, number, answers = "sheet", int(body["own_head"]["seq"]), names.survey_path(int(body["number"]))
            in_folder = is_published(work, int(body["number"]))
        records.append(
            {
                "signed": str(body["created"]),
                "number": number,
                "kind": kind,
                "run": None,
                "round": 0,
                "answers": answers,
                "in_reply_to": body.get("in_reply_to"),
                "in_folder": in_folder,
                "files": [_plain_file(path, entry_of(ledger.root / path))],
            }
        )
    return records


def _plain_file(path: str, entry: FileEntry) -> State:
    return {
        "path": path,
        "bytes": entry.size,
        "sha256": entry.sha256,
        "form": None,
        "encrypted": entry.encrypted is not None,
        "removed": False,
        "tensors": None,
    }


def _file(ledger: Mirror, message: Message, name: str, entry: FileEntry, *, was_published: bool) -> State:
    file = _plain_file(f"{message.ref.path}/{name}", entry)
    if not names.is_weights(name):
        return file
    path = ledger.path(message.ref, name)
    layout = _layout(ledger, message.ref, name, path if path.exists() and entry.wire == PLAIN else None)
    tensors = layout and [{"name": key, "dtype": dtype, "shape": shape} for key, (dtype, shape) in layout.items()]
    return file | {
        "form": None if entry.wire == PLAIN else str(entry.wire),
        "removed": was_published and not path.exists(),
        "tensors": tensors,
    }


def _layout(ledger: Mirror, ref: MessageRef, name: str, path: Path | None) -> Layout | None:
    """Return what a tensor file holds: by its own header, or by the run's list where it is gone or in another form."""
    if path is not None:
        try:
            return layout_of(path, name)
        except RejectedError:
            return None
    try:
        _, sharing = store.offer(ledger, ref.run)
    except (ActionRequiredError, RejectedError):
        return None
    return _listed(sharing, name)


def _listed(sharing: Sharing, name: str) -> Layout | None:
    listed = {names.state_file(group): tensors for group, tensors in sharing.groups("update").items()}
    tensors = (listed | {names.SITE_MODEL: sharing.tensors}).get(name)
    return None if tensors is None else {key: (tensors[key].dtype, tensors[key].shape) for key in sorted(tensors)}


# --- what is certain ---------------------------------------------------------------------------------------


def _last_seen(ledger: Mirror, status: Status | None) -> int:
    """Return the number of our last message that the folder has for certain."""
    answered = {message.manifest.in_reply_to for message in ledger.peer_messages()}
    if status is not None:
        answered.add(status.own_head.digest)
    return max((own.manifest.seq for own in ledger.own_messages() if own.digest in answered), default=0)


def _moment(text: str, now: datetime) -> datetime:
    """Return the time that a person means: by this machine's clock, if it names no zone.

    Raises:
        ConfigurationError: it is none.
    """
    if re.fullmatch(r"[0-9]{1,5}", text):
        return now - timedelta(days=int(text))
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            [f"--since {escape(text)}: must be a date, as 2026-01-31, or a number of days, as 30"]
        ) from None
