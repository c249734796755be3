"""Every name that may stand in a drop folder (protocol 1.1, 1.2 and 1.3); no other module spells one.

    README.txt  federation.json  site.json  status.json
    keys/0002.json  keys/0003.json    the site's later signing keys               site
    surveys/0001.json                 what is asked about the site's images       aggregator
    sheets/0001.json                  the site's answer, a sheet of figures       site
    runs/RUN/offer/                   run.yaml  tensors.yaml  [start.safetensors] aggregator
    runs/RUN/consent/                 consent.json                                site
    runs/RUN/withdrawal/              withdrawal.json                             site
    runs/RUN/rounds/0007/to_site/     config.yaml  global.safetensors             aggregator
    runs/RUN/rounds/0007/from_site/   metrics.csv  [model.safetensors] [reliability.yaml]  site
    runs/RUN/rounds/0007/verdict/     verdict.json                                aggregator
    runs/RUN/final/                   card.json  model.safetensors                aggregator
    runs/RUN/abort/                   abort.json                                  aggregator

Each directory is one message and holds a ``manifest.json`` besides. Where a method has more travel than the model, a
round, its answer and the final model hold ``state-GROUP.safetensors`` as well. While somebody checks what the server
can do there is a scratch folder too, ``check-1`` to ``check-9``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from shared.doors.numbers import whole
from shared.exchange.forms import text_like

AGGREGATOR = "aggregator"
Sender = Literal["site", "aggregator"]

README = "README.txt"
FEDERATION = "federation.json"
SITE_CARD = "site.json"
STATUS = "status.json"
ROOT_FILES: Mapping[str, Sender] = {
    README: "aggregator",
    FEDERATION: "aggregator",
    SITE_CARD: "site",
    STATUS: "site",
}
"""Who writes each."""
KEYS = "keys"
AGGREGATOR_KEYS = "aggregator_keys"
SURVEYS = "surveys"
SHEETS = "sheets"
RECORD_FOLDERS: Mapping[str, Sender] = {
    KEYS: "site",
    AGGREGATOR_KEYS: "aggregator",
    SURVEYS: "aggregator",
    SHEETS: "site",
}
"""Folders of signed records that are part of no message, and who writes there."""
RUNS = "runs"

MIRROR = "mirror"
"""The copy of the drop folder, in what either side keeps of a site."""

SCRATCH = tuple(f"check-{number}" for number in range(1, 10))
"""Scratch folders, directly in the drop folder: so few names can tell nobody anything."""

MANIFEST = "manifest.json"
RUN_CONFIGURATION = "run.yaml"
TENSORS = "tensors.yaml"
START = "start.safetensors"
CONSENT = "consent.json"
WITHDRAWAL = "withdrawal.json"
ROUND_CONFIGURATION = "config.yaml"
GLOBAL_MODEL = "global.safetensors"
SITE_MODEL = "model.safetensors"
METRICS = "metrics.csv"
RELIABILITY = "reliability.yaml"
VERDICT = "verdict.json"
CARD = "card.json"
ABORT = "abort.json"
FINAL_MODEL = "model.safetensors"

WEIGHTS_SUFFIX = ".safetensors"
STATE_PATTERN = r"state-[a-z][a-z0-9_]{0,31}\.safetensors"
"""What a method has travel beside the model; a run's offer lists which, and what each holds."""

MAX_RECORD_BYTES = 1 << 20  # manifests, tables, YAML and JSON
MAX_START_BYTES = 4 << 30  # of what sites begin with and keep: it comes with the list of tensors that bounds the rest
MAX_ROUND = 9999

Kind = Literal["offer", "consent", "withdrawal", "round", "update", "verdict", "final", "abort"]
_DEVICES = r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)"
"""What Windows takes for a device, with any suffix; nor does it keep a dot at the end of a name."""
NAME_PATTERN = rf"^(?!{_DEVICES})[a-z0-9](?:[a-z0-9._-]{{0,62}}[a-z0-9_-])?$"
NAME_FORM = (
    "lower-case letters, digits, '-', '_' and '.', at most 64, of which the first is a letter or digit and the last no "
    "'.'; and not a name of Windows's own, such as con or nul"
)
Name = Annotated[str, text_like(NAME_PATTERN, NAME_FORM)]


@dataclass(frozen=True, kw_only=True)
class MessageKind:
    """What one kind of message is. The same table: protocol 3.2; its files: the tree above protocol 1.1.

    Args:
        sender: who sends it.
        folder: the name of its directory, in that of its run or, if ``is_in_round``, of its round.
        answers: the kind that it answers; ``card``: the site's card; ``newest``: the site's newest message that the
            aggregator has accepted (``order.py``).
        files: what it must hold besides the manifest.
        optional: what it may hold.
        has_state: whether it also holds ``state-GROUP.safetensors``, where the method has such groups.
    """

    sender: Sender
    folder: str
    answers: Kind | Literal["card", "newest"]
    files: frozenset[str]
    optional: frozenset[str] = frozenset()
    is_in_round: bool = False
    has_state: bool = False


KINDS: Mapping[Kind, MessageKind] = {
    "offer": MessageKind(
        sender="aggregator",
        folder="offer",
        answers="card",
        files=frozenset({RUN_CONFIGURATION, TENSORS}),
        optional=frozenset({START}),
    ),
    "consent": MessageKind(sender="site", folder="consent", answers="offer", files=frozenset({CONSENT})),
    "withdrawal": MessageKind(sender="site", folder="withdrawal", answers="offer", files=frozenset({WITHDRAWAL})),
    "round": MessageKind(
        sender="aggregator",
        folder="to_site",
        answers="newest",
        files=frozenset({ROUND_CONFIGURATION, GLOBAL_MODEL}),
        is_in_round=True,
        has_state=True,
    ),
    "update": MessageKind(
        sender="site",
        folder="from_site",
        answers="round",
        files=frozenset({METRICS}),
        optional=frozenset({SITE_MODEL, RELIABILITY}),
        is_in_round=True,
        has_state=True,
    ),
    "verdict": MessageKind(
        sender="aggregator", folder="verdict", answers="update", files=frozenset({VERDICT}), is_in_round=True
    ),
    "final": MessageKind(
        sender="aggregator", folder="final", answers="newest", files=frozenset({CARD, FINAL_MODEL}), has_state=True
    ),
    "abort": MessageKind(sender="aggregator", folder="abort", answers="newest", files=frozenset({ABORT})),
}
"""Every kind of message: a new one is a row here, a record, and a handler on either side."""
_KIND_AT = {(kind.is_in_round, kind.folder): name for name, kind in KINDS.items()}


@dataclass(frozen=True)
class MessageRef:
    """Where one message lies: its kind, run, and round number (1-based; 0 for kinds outside rounds)."""

    kind: Kind
    run: str
    round_no: int = 0

    @property
    def path(self) -> str:
        """Folder path of the message, as in ``runs/RUN/rounds/0007/to_site``."""
        of_round = f"rounds/{self.round_no:04d}/" if self.round_no else ""
        return f"{RUNS}/{self.run}/{of_round}{KINDS[self.kind].folder}"

    @property
    def manifest(self) -> str:
        """Path of the message's manifest."""
        return f"{self.path}/{MANIFEST}"

    @property
    def is_from_site(self) -> bool:
        """Whether the site, not the aggregator, writes here."""
        return KINDS[self.kind].sender == "site"

    @property
    def answers(self) -> MessageRef | None:
        """Where the message lies that one here answers; None for what answers no fixed place (``order.py``)."""
        match KINDS[self.kind].answers:
            case "card" | "newest":
                return None
            case kind:
                return MessageRef(kind, self.run, self.round_no if KINDS[kind].is_in_round else 0)


def files_of_sites() -> list[str]:
    """Return every file that a site may write; "…" stands for a number, or for the name of a group."""
    kinds = [kind for kind in KINDS.values() if kind.sender == "site"]
    return [
        *(name for name, sender in ROOT_FILES.items() if sender == "site"),
        *(f"{folder}/….json" for folder, sender in RECORD_FOLDERS.items() if sender == "site"),
        MANIFEST,
        *(name for kind in kinds for name in sorted(kind.files | kind.optional)),
        *([state_file("…")] if any(kind.has_state for kind in kinds) else []),
        "check-…/…",
    ]


def is_name(text: str) -> bool:
    """Return whether ``text`` is lower-case ASCII, digits, '-', '_', '.', at most 64 characters: ``NAME_PATTERN``."""
    return re.fullmatch(NAME_PATTERN[1:-1], text) is not None


def state_file(group: str) -> str:
    """Return the name of the file that holds one group of a method's state."""
    return f"state-{group}{WEIGHTS_SUFFIX}"


def is_state(name: str) -> bool:
    """Return whether a file holds a group of a method's state."""
    return re.fullmatch(STATE_PATTERN, name) is not None


def may_hold(kind: Kind, name: str) -> bool:
    """Return whether a file of this name may be part of a message of this kind."""
    of_kind = KINDS[kind]
    return name in of_kind.files | of_kind.optional or (of_kind.has_state and is_state(name))


def is_weights(name: str) -> bool:
    """Return whether a payload is a tensor file: large, and what a run's rule may prune."""
    return name.endswith(WEIGHTS_SUFFIX)


def keys_of(sender: str) -> str:
    """Return the folder of the records by which a sender hands over to its later keys."""
    return AGGREGATOR_KEYS if sender == AGGREGATOR else KEYS


def handover_path(number: int, sender: str) -> str:
    """Return where the record lies that hands over to a sender's key of a number.

    A site's card shows its first, and ``federation.json`` the aggregator's.
    """
    return f"{keys_of(sender)}/{number:04d}.json"


def is_handover(path: str, sender: str) -> bool:
    """Return whether a record that hands over to a later key may lie at ``path``."""
    return re.fullmatch(rf"{keys_of(sender)}/(?!000[01])[0-9]{{4}}\.json", path) is not None


def survey_path(number: int) -> str:
    """Return where a survey of a number lies."""
    return f"{SURVEYS}/{number:04d}.json"


def sheet_path(number: int) -> str:
    """Return where the site's answer to a survey lies."""
    return f"{SHEETS}/{number:04d}.json"


def is_survey(path: str) -> bool:
    """Return whether a survey may lie at ``path``."""
    return re.fullmatch(rf"{SURVEYS}/(?!0000)[0-9]{{4}}\.json", path) is not None


def is_sheet(path: str) -> bool:
    """Return whether the answer to a survey may lie at ``path``."""
    return re.fullmatch(rf"{SHEETS}/(?!0000)[0-9]{{4}}\.json", path) is not None


def is_lasting_record(path: str) -> bool:
    """Return whether a signed record that is part of no message, and never changes, may lie below the root there."""
    return any(is_handover(path, sender) for sender in ("site", AGGREGATOR)) or is_survey(path) or is_sheet(path)


def is_scratch(path: str) -> bool:
    """Return whether ``path`` is that of a scratch folder."""
    return path in SCRATCH


def ref_at(path: str) -> MessageRef | None:
    """Return the message place that ``path`` names, or None if no message may lie there."""
    match path.split("/"):
        case [root, run, folder] if root == RUNS and is_name(run) and (kind := _KIND_AT.get((False, folder))):
            return MessageRef(kind, run)
        case [root, run, "rounds", number, folder] if (
            root == RUNS and is_name(run) and (kind := _KIND_AT.get((True, folder)))
        ):
            if re.fullmatch(r"[0-9]{4}", number) and number != "0000":
                return MessageRef(kind, run, whole(number.lstrip("0")))
    return None
