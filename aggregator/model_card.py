"""The chosen model of a run, to be handed on: its file as every site got it, and a card that says where it comes from.

    DIR/model.safetensors  [state-GROUP.safetensors]     byte for byte what the final message brought
    DIR/run.yaml  tensors.yaml  [start.safetensors]      what was offered to the sites, likewise
    DIR/model.onnx  monai/                               the model in other forms, if they were asked for
    DIR/model-card.json  model-card.md                   the card, for scripts and for people

The card holds what was measured or said in the run and nothing else; what nobody reported is null, and "not reported"
for people. The same work directory and the same software give the same bytes.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from math import prod
from pathlib import Path

from aggregator.comparison import summary_of
from aggregator.configuration import bounds_of, read_configuration
from aggregator.model_card_text import (
    CardRun,
    CardSite,
    Contribution,
    Inputs,
    ModelCard,
    ModelFile,
    Rounds,
    Scores,
    card_text,
)
from aggregator.monai_bundle import FOLDER as BUNDLE
from aggregator.monai_bundle import write_bundle
from aggregator.onnx_file import FILE as ONNX_FILE
from aggregator.onnx_file import OnnxFile, write_onnx
from aggregator.run_view import Part, Participant, open_run_files, view_of
from aggregator.store import RunStore
from shared.errors import ActionRequiredError, ConfigurationError, RejectedError
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.encryption import ENCRYPTION_KEY_FILE, EncryptionKey
from shared.exchange.mirror import Mirror
from shared.exchange.names import MessageRef
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.tensors import Sharing, TensorList
from shared.exchange.records.values import Record, time_text
from shared.exchange.records.verdicts import FinalCard
from shared.exchange.tables import SPLITS, Split
from shared.exchange.trust import open_site_card
from shared.exchange.weights import TensorFile, write_tensors
from shared.folder.durable import copy_content, hash_file, sync_folder, temporary_name, write_file, writing
from shared.learning.apart import Progress, Question, answered
from shared.learning.kept_model import MODEL_CARD, open_parts
from shared.learning.models.encoders import BaseWeights, base_weights
from shared.learning.outcome import chosen_text
from shared.learning.tasks import task_named
from shared.learning.tasks.inputs import input_text
from shared.learning.tasks.terms import EXTERNAL

CARD_TEXT = "model-card.md"

INTENDED_USE = (
    "Research on images like those that it was trained on. It is no medical device and not for diagnosis: no decision "
    "about a patient may rest on it."
)
NOT_ANONYMOUS = (
    "Its weights are computed from images of patients and are not anonymous: they may reveal that an image was trained "
    "on, or parts of one. Differential privacy bounds that, where the run had it."
)
LIMITS = (
    NOT_ANONYMOUS,
    "How it does on images of other cameras, clinics or patients than the sites' is not known.",
    "Scores are what each site measured on its own images and reported; small numbers are withheld.",
    "Who the patients are and which devices took the images was not reported.",
)
NOT_WHOLE = (
    "It is not a whole model: the tensors listed under stays_at_sites stay at each site, which has its own. "
    "Elsewhere they must be trained before it answers anything."
)
SOFTWARE = ("dropfed", "torch", "torchvision", "numpy", "safetensors")


class Formed(Record):
    """What only the model's network can tell of it.

    Args:
        onnx: of the file that was written, if it was asked for.
        base_weights: the published weights that training began from, if any.
        input: what it takes, in words; None where only programs outside dropfed know that.
    """

    onnx: OnnxFile | None
    base_weights: BaseWeights | None
    input: str | None


class Form(Question[Formed]):
    """Write the model that lies in a folder in other forms beside it, and say what it began from."""

    run: RunConfiguration
    folder: Path
    onnx: bool
    monai: bool

    @property
    def step(self) -> str:
        """See ``Question``."""
        return f"writing the model of {self.run.run}"

    def answer(self, on_progress: Progress) -> Formed:
        """See ``Question``."""
        onnx = None
        if self.onnx or self.monai:
            kept = open_parts(self.folder)
            onnx = write_onnx(kept, self.folder / ONNX_FILE) if self.onnx else None
            if self.monai:
                write_bundle(kept, self.folder / BUNDLE, INTENDED_USE, NOT_ANONYMOUS)
        task = task_named(self.run.task)
        options = task.options(self.run.task_options)
        given = None if task.name == EXTERNAL else input_text(task, options)
        return Formed(onnx=onnx, base_weights=base_weights(options), input=given)


def _why_none(work: Path, store: RunStore) -> str:
    """Return why a run has no final model, with what leads to one."""
    if aborted := store.aborted():
        return aborted
    if store.stop_requested:
        return f"it is being closed, and {store.goes_on_by} does that if no aggregator is at work"
    ends = f"`dropfed-aggregator stop {store.run} --work {quoted(work)}` ends it with the best model so far"
    return f"it has not ended, and {ends}"


def export(work: Path, store: RunStore, output: Path, *, onnx: bool = False, monai: bool = False) -> list[Path]:
    """Write the chosen model of a run and its card into a new folder, all or nothing.

    Args:
        onnx: whether the model is written as ONNX too.
        monai: whether it is written as a MONAI bundle too.

    Returns:
        What was written.

    Raises:
        ConfigurationError: the run has chosen no model, ``output`` is there already, or the model cannot be written so.
        DropfedError: what is kept of the run is damaged, or a package is missing.
    """
    if (card := store.card()) is None:
        raise ConfigurationError([f"{store.run} has no final model: {_why_none(work, store)}"])
    if output.exists():
        raise ConfigurationError([f"{output}: is there already and stays as it is; choose another folder"])
    if (onnx or monai) and card.task == EXTERNAL:
        raise ConfigurationError(["--onnx, --monai: dropfed does not know this run's network; leave them out"])
    found = model_card(work, store, card)
    made = output.absolute().with_name(temporary_name(output.name))
    shutil.rmtree(made, ignore_errors=True)  # of an export that was cut off
    try:
        _copy_files(store, card, made, found.model.sha256)
        run = store.configuration()
        asked = Form(run=run, folder=made, onnx=onnx, monai=monai)
        formed = answered(asked, bounds_of(read_configuration(work)), run.plugins)
        found = replace(found, onnx=formed.onnx, base_weights=formed.base_weights, input=formed.input)
        write_file(made / MODEL_CARD, (json.dumps(asdict(found), indent=2, ensure_ascii=False) + "\n").encode())
        write_file(made / CARD_TEXT, card_text(found).encode())
        made.rename(output)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    sync_folder(output.absolute().parent)
    return sorted(output.iterdir())


def _copy_files(store: RunStore, card: FinalCard, made: Path, sha256: str) -> None:
    """Put what travelled into a folder, and what never changes of the model.

    Raises:
        ActionRequiredError: the model is not what its card says.
    """
    sharing = store.sharing()
    files = {names.FINAL_MODEL: store.final_model}
    for group in sharing.with_final:
        files[names.state_file(group)] = store.settled_path(card.chosen_round + 1, group)
    files |= {name: store.home / name for name in (names.RUN_CONFIGURATION, names.TENSORS)}
    for name, source in files.items():
        with source.open("rb") as reader, writing(made / name) as writer:
            copy_content(reader, writer)
    if hash_file(made / names.FINAL_MODEL)[1] != sha256:
        raise ActionRequiredError(
            f"{store.final_model} changed while it was copied: the disk may be failing, try again"
        )
    if sharing.frozen:
        frozen = TensorList(tensors={name: sharing.start[name] for name in sharing.frozen})
        write_tensors(made / names.START, frozen, TensorFile(store.start).tensor)


def model_card(work: Path, store: RunStore, card: FinalCard) -> ModelCard:
    """Return everything that is known about a run's chosen model without its network.

    Raises:
        DropfedError: what is kept of the run is damaged.
    """
    reading = open_run_files(work, store, EncryptionKey.found_at(work / ENCRYPTION_KEY_FILE))
    view, sharing, run, ledgers = view_of(reading), store.sharing(), reading.run, reading.ledgers
    summary, chosen = summary_of(view), view.receivers(card.chosen_round)
    software = {site: _software(work, site) for site in ledgers}
    sites = {
        site: replace(
            _site(said, chosen.get(site, Part()), software.get(site), card, site),
            gain=view.gains.get(site),
            test_images=view.test_images.get(site),
        )
        for site, said in view.sites.items()
    }
    inputs = [name for name in (names.RUN_CONFIGURATION, names.TENSORS, names.START) if (store.home / name).exists()]
    final = MessageRef("final", run.run)
    return ModelCard(
        model=_model(store, card, sharing, ledgers),
        run=CardRun(
            name=run.run,
            outcome=view.outcome,
            task=run.task,
            method=run.method,
            began=time_text(began) if view.rounds and (began := view.rounds[0].began) else None,
            ended=max(_signed(ledgers, final), default=None),
            rounds=Rounds(planned=run.rounds, trained=summary.rounds, in_the_model=card.chosen_round),
            chosen=chosen_text(card),
            chosen_because=card.reason,
            verdicts=summary.verdicts,
            seconds_in_rounds=summary.seconds,
            bytes=summary.bytes,
            configuration=run.model_dump(mode="json"),
        ),
        sites=sites,
        images={split: _total(sites, split) for split in SPLITS},
        scores=Scores(view.score, summary.validation, summary.test),
        privacy=run.privacy.model_dump(mode="json") if run.privacy else None,
        inputs=Inputs(
            sha256={name: hash_file(store.home / name)[1] for name in inputs},
            contributions={site: _contribution(store, ledgers.get(site), site, found) for site, found in sites.items()},
            final_messages={site: _digest(ledgers.get(site), final) for site in run.sites},
        ),
        software={"python": platform.python_version()} | {name: version(name) for name in SOFTWARE},
        intended_use=INTENDED_USE,
        limits=[*LIMITS, *([] if sharing.has_whole_model else [NOT_WHOLE])],
    )


def _model(store: RunStore, card: FinalCard, sharing: Sharing, ledgers: Mapping[str, Mirror]) -> ModelFile:
    """Return what the file is.

    Raises:
        ActionRequiredError: it is not what the sites were sent.
    """
    size, sha256 = hash_file(store.final_model)
    final, sent_instead = MessageRef("final", store.run), {}
    for site in sorted(name for name, ledger in ledgers.items() if ledger.message(final)):
        own = store.own_aggregate_path(card.chosen_round, site)
        model, sent = (own, hash_file(own)) if own.exists() else (store.final_model, (size, sha256))
        if not ledgers[site].says(final, names.FINAL_MODEL, *sent):
            where = f"sites/{site}/mirror/{final.path}"
            raise ActionRequiredError(
                f"{model}: the file is damaged, it is not what {site} was sent; put it back from {where}"
            )
        if own.exists():
            sent_instead[site] = sent[1]
    return ModelFile(
        file=names.FINAL_MODEL,
        bytes=size,
        sha256=sha256,
        parameters=sum(prod(listed.shape) for listed in sharing.parameters.tensors.values()),
        tensors=len(sharing.tensors),
        stays_at_sites=sorted([*(sharing.start.keys() - sharing.frozen), *sharing.personal]),
        sent_instead=sent_instead,
    )


def _site(said: Participant, part: Part, software: str | None, card: FinalCard, site: str) -> CardSite:
    """Return what one site brought and said.

    Args:
        part: in the round that brought it the chosen aggregate.
    """
    took_part = sorted(int(number) for number, sites in card.took_part.items() if site in sites)
    return CardSite(
        agreed=said.agrees,
        withdrew=said.withdrew,
        images=said.images,
        rounds_in_the_model=[round_no for round_no in took_part if round_no <= card.chosen_round],
        epsilon=float(card.epsilon[site]) if site in card.epsilon else None,
        validation=part.validation,
        test=part.test,
        software=software,
    )


def _software(work: Path, site: str) -> str:
    """Return what a site's card said of its software when it joined.

    Raises:
        ActionRequiredError: the card is damaged.
    """
    path = work / "sites" / site / names.MIRROR / names.SITE_CARD
    try:
        federation = read_configuration(work).federation
        return open_site_card(path.read_bytes(), federation=federation, site=site, secret=None).software
    except RejectedError as error:
        raise ActionRequiredError(f"{path}: {error.reason}: the file is damaged; put it back from a backup") from None


def _total(sites: Mapping[str, CardSite], split: Split) -> int | None:
    """Return the images of those sites whose answers are in the model; None where one of them tells no exact number."""
    counts = [site.images.get(split, "") for site in sites.values() if site.rounds_in_the_model]
    return sum(map(int, counts)) if counts and all(count.isdecimal() for count in counts) else None


def _contribution(store: RunStore, ledger: Mirror | None, site: str, found: CardSite) -> Contribution | None:
    """Return a site's last update in the model; one that came late belongs to the round before it counted."""
    if not found.rounds_in_the_model:
        return None
    last = max(found.rounds_in_the_model)
    verdict = (store.verdicts(last) or {}).get(site)
    if verdict and verdict.late and verdict.late.weight:
        return Contribution(last - 1, verdict.late.update)
    return Contribution(last, _digest(ledger, MessageRef("update", store.run, last)))


def _digest(ledger: Mirror | None, ref: MessageRef) -> str | None:
    message = ledger.message(ref) if ledger else None
    return message.digest if message else None


def _signed(ledgers: Mapping[str, Mirror], ref: MessageRef) -> list[str]:
    """Return when the messages at a place were signed."""
    return [message.manifest.created for ledger in ledgers.values() if (message := ledger.message(ref))]
