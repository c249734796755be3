"""What the site remembers: files in its work directory, nothing else.

site.yaml                                made by ``join``, as are
signing.key  encryption.key  password    what only their owner can read
signing.key.new                          while `rotate-key` makes it the next signing key
mirror/                                  what was exchanged: what we signed and what we accepted
ciphertext/                              what is encrypted in the folder and on its way there or here
decisions/RUN                            what a person here decided about a run: yes, no or withdraw, and why
decisions.lock                           held while that is written, or a yes is signed
paused                                   a person here paused this site; gone once it goes on
restored                                 a disk was lost; gone once a person accepted a new division
personal/RUN/0007.safetensors            what stayed here with the answer to round 7: head, BatchNorm, a method's state;
                                         when the next run is answered, only what the final model was made with
alone/RUN/0007.safetensors               the model that this site trains by itself beside a run, after round 7; gone
                                         when the next run is answered
first/RUN.safetensors                    round 1's global model of a run that is compared with it; gone when the next
                                         run is answered
weights/FILE                             published weights, put here by people for runs that have each site take its own
start/RUN.safetensors                    what a run begins with here where it takes those; gone when the next run is
                                         answered
noise/RUN                                the secret of a private run's noise; gone once the final model is here
final/RUN/model.safetensors  card.yaml   the chosen model with this site's own parts, ready to predict; its θ
scratch/                                 a round's models in the plain form, if they travel in another; gone with it
scratch/torchrun/                        what processes that train together are to do; gone with it
scratch/dropfed-question-*/              what the code of a plug-in is asked, and answers; gone with it
scratch/program-*/                       what a program that trains reads and writes; gone with it
external-trainer.log                     what that program said in the last round
torchrun.log                             what those processes said in the last round
torchrun-1.log                           the same of those on node 1
log-1.txt                                what `assist` said on node 1
status.json                              the last heartbeat, also when it could not be sent
running.yaml                             the settings that the daemon started with
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from filelock import Timeout

from shared.errors import ActionRequiredError, RejectedError, TransientError
from shared.exchange import names
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.records.answers import Abort
from shared.exchange.records.run import RunConfiguration, round_name
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import sentence
from shared.exchange.records.verdicts import Verdict
from shared.exchange.trust import Message
from shared.folder.durable import sync_folder, write_file
from shared.folder.lock import locked
from shared.folder.removal import remove_tree
from shared.learning.kept_card import CARD
from shared.plurals import pluralize
from site_client.configuration import require_here

logger = logging.getLogger(__name__)


Choice = Literal["yes", "no", "withdraw"]
DECIDING = "decisions.lock"
DECIDED_S = 10.0  # far longer than it takes
PAUSED = "paused"
RESTORED = "restored"
SCRATCH = "scratch"
RECEIVED, TRAINED = "received.safetensors", "trained.safetensors"
"""Names of files in ``scratch``: a round's models in the plain form."""
FINAL = "final"
WEIGHTS = "weights"


@dataclass(frozen=True)
class Decision:
    """What a person at the hospital decided about a run. To withdraw from one not agreed to yet is to say no."""

    answer: Choice
    reason: str = ""


def clear_scratch(work: Path) -> None:
    """Remove what one piece of work needs, and no other; where ``scratch`` leads to a disk of others, nothing else."""
    folder = work / SCRATCH
    for path in [*folder.glob("program-*"), folder / "torchrun"]:
        remove_tree(path)
    for name in (RECEIVED, TRAINED):
        with suppress(OSError):
            (folder / name).unlink()
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def deciding(work: Path) -> Iterator[None]:
    """Hold what people here decide: the daemon while it signs what they agreed to, a command while it writes down what
    was decided. So nobody is told that a no counts when the yes is signed already.

    Raises:
        TransientError: another holds it for long.
    """
    try:
        with locked(work / DECIDING, patience_s=DECIDED_S):
            yield
    except Timeout:
        raise TransientError(f"{work}: another command here writes down a decision just now; try again") from None


def write_decision(work: Path, run: str, decided: Decision) -> None:
    """Record what a person decided about a run that was offered."""
    write_file(work / "decisions" / run, f"{decided.answer}\n{decided.reason}".encode())


def decision(work: Path, run: str) -> Decision | None:
    """Return what a person decided, or None."""
    path = work / "decisions" / run
    if not path.exists():
        return None
    answer, _, reason = path.read_text("utf-8", errors="replace").partition("\n")
    return next((Decision(known, reason) for known in get_args(Choice) if known == answer), None)


def pause(work: Path) -> None:
    """Have the daemon do nothing until ``resume``."""
    write_file(work / PAUSED, b"")


def resume(work: Path) -> None:
    """Have the daemon go on."""
    (work / PAUSED).unlink(missing_ok=True)
    sync_folder(work)


def is_paused(work: Path) -> bool:
    """Return whether a person paused this site."""
    return paused_at(work) is not None


def paused_at(work: Path) -> float | None:
    """Return when a person paused this site, in seconds since 1970; None if it is not paused."""
    try:
        return (work / PAUSED).stat().st_mtime
    except FileNotFoundError:
        return None


def final_home(work: Path, run: str) -> Path:
    """Return where the final model of a run is kept, ready for use."""
    return work / FINAL / run


def named_model(work: Path, named: Path | None) -> Path:
    """Return the model that a person named, or where this site keeps the final ones.

    Raises:
        ConfigurationError: none was named, and the directory has none and is no site's.
    """
    if named is None and not (work / FINAL).exists():
        require_here(work)
    return named or work / FINAL


def has_final(work: Path, run: str) -> bool:
    """Return whether the final model of a run is ready for use."""
    return (final_home(work, run) / CARD).exists()


def note_restored(work: Path) -> None:
    """Remember that what this site said is known from the folder alone, where others may have removed some of it."""
    write_file(work / RESTORED, b"")


def is_restored(work: Path) -> bool:
    """Return whether this site lost its disk, and no person has accepted a new division yet."""
    return (work / RESTORED).exists()


def accept_restored(work: Path) -> None:
    """Have a site that lost its disk join private runs again."""
    (work / RESTORED).unlink(missing_ok=True)
    sync_folder(work)


def offers(ledger: Mirror) -> list[Message]:
    """Return the offers that were accepted, in their order."""
    return [message for message in ledger.peer_messages() if message.ref.kind == "offer"]


def offer(ledger: Mirror, run: str) -> tuple[RunConfiguration, Sharing]:
    """Return the contents of an accepted offer.

    Raises:
        RejectedError: they are not well-formed.
        ActionRequiredError: they are not as they were accepted, or not here any more.
    """
    ref = MessageRef("offer", run)
    return ledger.record(ref, RunConfiguration), ledger.record(ref, Sharing)


def answered(ledger: Mirror) -> list[RunConfiguration]:
    """Return the runs that this site has said yes or no to, as far as their offers hold here."""
    consents = [message.ref.run for message in ledger.own_messages() if message.ref.kind == "consent"]
    return [run for run in map(ledger.configuration, consents) if run is not None]


def round_name_of(ledger: Mirror, ref: MessageRef) -> str:
    """Return what people call a round; its number where what was offered is not here any more."""
    try:
        run, _ = offer(ledger, ref.run)
    except (RejectedError, ActionRequiredError):
        return f"round {ref.round_no}"
    return round_name(run, ref.round_no)


def offered_start(ledger: Mirror, run: str) -> Path | None:
    """Return what an accepted offer brings to begin with, or None if it brings nothing."""
    path = ledger.path(MessageRef("offer", run), names.START)
    return path if path.exists() else None


def start_path(work: Path, run: str) -> Path:
    """Return where the beginning of a run lies, together with this site's own copy of published weights."""
    return work / "start" / f"{run}{names.WEIGHTS_SUFFIX}"


def noise_path(work: Path, run: str) -> Path:
    """Return where the secret lies that the noise of a private run comes from."""
    return work / "noise" / run


def runs_with(work: Path, what: Literal["alone", "first", "noise", "personal", "start"]) -> list[str]:
    """Return the runs of which something is kept in one of these folders."""
    suffix = names.WEIGHTS_SUFFIX if what in ("first", "start") else ""
    return [path.name.removesuffix(suffix) for path in (work / what).glob(f"*{suffix}")]


def rounds_trained(ledger: Mirror, run: str, *, before: int) -> int:
    """Return how many rounds below ``before`` we answered with a model."""
    return len(_trained(ledger, run, before))


def personal_path(work: Path, run: str, round_no: int) -> Path:
    """Return where what stayed here with the answer to a round lies."""
    return work / "personal" / run / f"{round_no:04d}.safetensors"


def prune_personal(work: Path, run: str, *, kept: Path | None) -> None:
    """Remove what stayed here with the rounds of a run, except one file of it."""
    _prune(work / "personal" / run, kept)


def prune_before(kept: Path) -> None:
    """Remove what stayed here with rounds of a run before that of one file."""
    for path in kept.parent.iterdir():
        if path.name < kept.name:
            path.unlink()


def _prune(folder: Path, kept: Path | None) -> None:
    for path in folder.glob("*"):
        if path != kept:
            path.unlink()


def alone_path(work: Path, run: str, round_no: int) -> Path:
    """Return where the model lies that this site trained by itself up to a round."""
    return work / "alone" / run / f"{round_no:04d}.safetensors"


def first_path(work: Path, run: str) -> Path:
    """Return where round 1's global model of a run lies that is compared with it."""
    return work / "first" / f"{run}.safetensors"


def prune_alone(work: Path, run: str, *, kept: Path | None) -> None:
    """Remove what this site trained by itself beside a run, except one file of it."""
    _prune(work / "alone" / run, kept)


def newest_alone(work: Path, ledger: Mirror, run: str, *, before: int) -> Path | None:
    """Return what this site trained by itself up to its newest trained and signed answer below ``before``, or None."""
    paths = (alone_path(work, run, round_no) for round_no in _trained(ledger, run, before))
    return next((path for path in paths if path.exists()), None)


def newest_personal(work: Path, ledger: Mirror, run: str, *, before: int) -> Path | None:
    """Return what stayed here with our newest trained answer to a round below ``before``; None if there is none.

    Only a signed answer counts, and what stays is written before the answer is signed. So after a crash a head is never
    a round ahead of the encoder it was trained with, nor behind it. What had diverged in a round was not kept; where
    whole models travel, nothing is.
    """
    signed = _trained(ledger, run, before)
    if kept := _newest(work, run, signed):
        return kept
    if signed and not offer(ledger, run)[1].has_whole_model:
        logger.warning("nothing of what stayed here after %s is left: beginning anew", pluralize(len(signed), "round"))
    return None


def newest_accepted(work: Path, ledger: Mirror, run: str, *, before: int) -> Path | None:
    """Return what stayed here with our newest answer, to a round below ``before``, that entered an aggregate; or None.

    Of what the aggregator has the counterpart of, such as a control variate: an answer that it left out changed nothing
    there, and changes nothing here.
    """
    return _newest(work, run, _accepted(ledger, run, before))


def lost_round(work: Path, ledger: Mirror, run: str, *, before: int) -> int | None:
    """Return our newest round below ``before`` that the aggregate was made of, if nothing that stayed here with it is
    left, as of a lost disk or in an old work directory; None otherwise.
    """
    newest = next(iter(_accepted(ledger, run, before)), None)
    return newest if newest is not None and not personal_path(work, run, newest).exists() else None


def _accepted(ledger: Mirror, run: str, before: int) -> list[int]:
    """Return the rounds below ``before`` that we answered with a model that the aggregate was made of, newest first."""

    def was_accepted(round_no: int) -> bool:
        ref = MessageRef("verdict", run, round_no)
        if ledger.message(ref) is None:
            return False
        weight = ledger.record(ref, Verdict).weight
        return weight is not None and float(weight) > 0

    return [round_no for round_no in _trained(ledger, run, before) if was_accepted(round_no)]


def _trained(ledger: Mirror, run: str, before: int) -> list[int]:
    """Return the rounds below ``before`` that we answered with a model, newest first."""
    updates = {round_no: ledger.message(MessageRef("update", run, round_no)) for round_no in range(before - 1, 0, -1)}
    return [round_no for round_no, update in updates.items() if update and names.SITE_MODEL in update.manifest.files]


def _newest(work: Path, run: str, rounds: list[int]) -> Path | None:
    paths = (personal_path(work, run, round_no) for round_no in rounds)
    return next((path for path in paths if path.exists()), None)


def why_aborted(ledger: Mirror, run: str) -> str:
    """Return why the aggregator says that a run is over.

    Raises:
        ActionRequiredError: what it said is not as it was accepted.
    """
    try:
        reason = ledger.record(MessageRef("abort", run), Abort).reason
    except RejectedError as error:
        return sentence(str(error))
    return reason or "no reason was given"
