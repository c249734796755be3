"""What a run needs before anything is offered: every mistake of RUN.yaml is found here, all at once, without network.

``launch`` and ``validate`` ask the same: what one refuses the other has said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict
from torch import nn

from aggregator.configuration import (
    FILE,
    MADE_BY,
    PUBLISHED_WEIGHTS,
    AggregatorConfiguration,
    allowed_plugins,
    bounds_of,
    open_folder,
    read_configuration,
)
from aggregator.facts import is_owed_end
from aggregator.largest_site import about_largest_site
from aggregator.same_images import begun_with, divides_alike
from aggregator.setup import kept_encryption_key
from aggregator.site import open_ledger, read_needed_invite
from aggregator.store import RunStore, ToldByCode, runs_in
from aggregator.warm_start import load_start
from shared.check import Finding, said_in_place
from shared.errors import ActionRequiredError, ConfigurationError, DataError, PluginError, told_of
from shared.escaping import quoted
from shared.exchange import names
from shared.exchange.encoding import weights_bytes
from shared.exchange.encryption import EncryptionKey
from shared.exchange.names import Kind
from shared.exchange.reading import check_record, parse_yaml
from shared.exchange.records.run import USUAL_TOLERANCE, BelowLast, Cosine, Plugin, RunConfiguration
from shared.exchange.records.tensors import Sharing
from shared.exchange.records.values import Digest, Record
from shared.exchange.signing import KEY_FILE, SigningKey
from shared.folder.lock import require_work
from shared.learning.answers import limit_below
from shared.learning.apart import Progress, Question, answered, names_of
from shared.learning.batch_norm import batch_norms, buffers_kept
from shared.learning.combine import checked_groups
from shared.learning.compute import EXACT, prepare_compute
from shared.learning.data.splits import SplitPlan
from shared.learning.measures import task_of
from shared.learning.methods import open_method
from shared.learning.methods.contract import Groups, Method
from shared.learning.model_files import load_tensors, round_tensors
from shared.learning.models import ENCODERS
from shared.learning.models.encoders import base_weights
from shared.learning.models.options import published_weights
from shared.learning.models.whole_networks import published_side
from shared.learning.new_runs import as_of_now
from shared.learning.plugins import required_by, wheel_behind
from shared.learning.requirements import Requirements, requirements
from shared.learning.run_checks import check_together
from shared.learning.schedules import scored_rounds
from shared.learning.sharing import ANY_CLASSES, learns_features, network_of, sharing
from shared.learning.targets import classes_text, target_counts
from shared.learning.tasks import task_named, task_names, words_of
from shared.learning.tasks.contract import Collection, Task
from shared.learning.tasks.terms import EXTERNAL, Options
from shared.learning.tolerance import HeldOutSet, score_name
from shared.plurals import pluralize
from shared.settings import read_named
from shared.sizes import size_text

_WRITTEN_OUT = {
    *("task_options", "method_options", "augmentation", "split"),
    *("tolerance_score", "scores", "plugins", "support"),
}
"""What a run says that is written out in full before it is offered."""
_SMALL = 20  # training images of a small site

Found = TypeVar("Found")


class Begun(Record):
    """What is known of a run's beginning by its task and its method, which may be a plug-in's.

    Args:
        run: with every default written out.
        is_new: whether it was never begun here.
        division: what of the network travels, and what stays.
        told: what else its end needs to be known.
        remarks: what a PI should know of it, and may want to change before its sites agree to it.
        weights_sha256: of the published weights in the first model, if it has such.
    """

    run: RunConfiguration
    is_new: bool
    division: Sharing
    told: ToldByCode
    remarks: list[Finding]
    weights_sha256: Digest | None


@dataclass(frozen=True)
class Learning:
    """What a run is computed with.

    Args:
        model: the first global model, until ``heldout`` scores another with it; of a run that goes on, one like it.
        heldout: the tolerance check.
        weights_sha256: of the published weights in ``model``, if it has such.
    """

    run: RunConfiguration
    task: Task
    method: Method
    model: nn.Module
    division: Sharing
    heldout: HeldOutSet
    weights_sha256: str | None

    def groups(self) -> Groups:
        """Return the tensors that the method has beside the model's."""
        return self.method.groups(self.model, self.division)


@dataclass(frozen=True)
class Prepared:
    """A run that can be launched, and nothing of it was offered or written.

    Args:
        learning: what it is computed with; None where plug-ins are needed for that, which work apart.
    """

    work: Path
    configuration: AggregatorConfiguration
    begun: Begun
    learning: Learning | None


class Begin(Question[Begun]):
    """What does a run with plug-ins begin with?

    Args:
        written: the run as RUN.yaml says it.
        where: that file, as people are told it.
        besides: the problems that are known already.
        remark_again: whether a run that goes on is scored and remarked upon again.
    """

    work: Path
    configuration: AggregatorConfiguration
    written: RunConfiguration
    where: str
    besides: list[str]
    remark_again: bool

    @property
    def step(self) -> str:
        return f"beginning run {self.written.run}"

    def answer(self, on_progress: Progress) -> Begun:
        return begin(self)[0]


def prepare(work: Path, run_yaml: Path, *, waits: bool = False, remark_again: bool = True) -> Prepared:
    """Check everything that can be known before the run, and make the first global model.

    Args:
        waits: for its turn, so that another run may be open.
        remark_again: whether a run that goes on is scored and remarked upon again.

    Raises:
        ConfigurationError: every problem of RUN.yaml, aggregator.yaml, the held-out images, passwords and invites.
        PluginError: a plug-in that the run needs does what it must not.
    """
    require_work(work, MADE_BY)
    problems: list[str] = []
    configuration = _found(problems, lambda: read_configuration(work))
    written = _found(problems, lambda: read_run(run_yaml))
    if configuration is not None and written is None:
        problems += _problems_besides(run_yaml, configuration, work)
    if configuration is None or written is None:
        raise ConfigurationError(problems)
    where = str(run_yaml)
    store = RunStore(work, written.run)
    kept = store.begun()
    begun_as = written if kept is None or _differs(kept, written) else kept  # which names the wheels that it needs
    plugins = _found(problems, partial(allowed_plugins, configuration, begun_as), f"{where}: ")
    before = [] if waits else _open_runs(work, written, run_yaml, configuration.sites)
    besides = [*before, *_site_problems(work, written, configuration)]
    # A run's end does without its plug-ins: they may be gone, or fail.
    ends = begun_as is kept and begun_as.plugins and (store.stop_requested or (store.is_over and plugins is None))
    told = store.told_by_code() if ends and store.aggregate_path(0).exists() else None
    if told is not None and not besides:
        division, remarks = store.sharing(), []
        if store.is_over:
            remarks = [Finding("warning", ended_already(written.run))]
        begun = Begun(run=begun_as, is_new=False, division=division, told=told, remarks=remarks, weights_sha256=None)
        return Prepared(work, configuration, begun, None)
    if plugins is None:
        problems += run_problems(written, configuration, work, where)
        raise ConfigurationError([*problems, *besides])
    asked = Begin(
        work=work,
        configuration=configuration,
        written=written,
        where=where,
        besides=besides,
        remark_again=remark_again,
    )
    if plugins:
        begun = answered(asked, bounds_of(configuration), plugins)
        _require_as_written(begun.run, written, plugins, store)
        return Prepared(work, configuration, begun, None)
    return Prepared(work, configuration, *begin(asked))


def _differs(run: RunConfiguration, written: RunConfiguration) -> bool:
    """Return whether a run says something else than what was written, beyond what is written out in it."""
    return any(
        getattr(run, key) != getattr(written, key) for key in RunConfiguration.model_fields if key not in _WRITTEN_OUT
    )


def _require_as_written(
    run: RunConfiguration, written: RunConfiguration, plugins: list[Plugin], store: RunStore
) -> None:
    """Check that a run, as a plug-in's process has written it out, says nothing else than RUN.yaml does.

    Raises:
        PluginError: it does.
    """
    if (run.plugins != plugins or _differs(run, written)) and run != store.begun():
        raise PluginError(f"{names_of(plugins)}: made another run of {written.run} than it was told; ask who wrote it")


def begin(asked: Begin) -> tuple[Begun, Learning]:
    """Return what a run begins with, or goes on with.

    Raises:
        ConfigurationError: every problem.
    """
    work, configuration, written, where = asked.work, asked.configuration, asked.written, asked.where
    store, run = RunStore(work, written.run), written
    run = _found([], partial(as_begun, store, written)) or written  # an unknown task or method is told below
    problems = [*run_problems(run, configuration, work, where), *asked.besides]
    parts = _parts(work, where, configuration, run, problems)
    run = as_begun(store, written)  # what it cannot be, if it cannot, is told now
    learning = _learning(work, where, run, parts)
    store.require_same(run, learning.division)
    is_new = not store.aggregate_path(0).exists()
    if is_new:
        checked_groups(learning.method, learning.groups())
    remarks: list[Finding] = []
    if is_new or asked.remark_again:
        untrained = _score_of_first(work, configuration, learning)
        remarks += _remarks(work, learning, untrained, tuple(_by_default(written, run)))
    begun = Begun(
        run=run,
        is_new=is_new,
        division=learning.division,
        told=ToldByCode(
            score_name=learning.task.selection_score,
            in_turn=learning.method.in_turn,
            at_aggregator=dict(learning.groups().at_aggregator),
        ),
        remarks=remarks,
        weights_sha256=learning.weights_sha256,
    )
    return begun, learning


def _score_of_first(work: Path, configuration: AggregatorConfiguration, learning: Learning) -> float | None:
    """Return the score in [0, 1] of the model that training begins with; None of a run without a tolerance.

    Raises:
        ConfigurationError: the held-out images are too few to score with.
    """
    try:
        with buffers_kept(learning.model):  # scoring measures BatchNorm's: those of our images are not the run's
            return learning.heldout.score_as_it_is()
    except ValueError as error:
        folder = work / configuration.heldout[learning.run.task]
        raise ConfigurationError([f"held-out set {folder}: {error}; add images"]) from None


def open_learning(work: Path, configuration: AggregatorConfiguration, run: RunConfiguration) -> Learning:
    """Return what a run is computed with that was prepared once.

    Raises:
        ConfigurationError: what it needs is not there any more.
    """
    where = str(RunStore(work, run.run).home / names.RUN_CONFIGURATION)
    return _learning(work, where, run, _parts(work, where, configuration, run, []))


def read_run(run_yaml: Path) -> RunConfiguration:
    """Return a RUN.yaml, by itself.

    Raises:
        ConfigurationError: it cannot be read, or every problem that it has by itself.
    """
    if run_yaml.name == FILE:
        remedy = "name a RUN.yaml, as `dropfed-aggregator new-run` writes it"
        raise ConfigurationError([f"{run_yaml}: holds this machine's settings, and is no run; {remedy}"])
    return parse_yaml(read_named(run_yaml, "correct the path"), RunConfiguration, str(run_yaml))


def run_problems(run: RunConfiguration, configuration: AggregatorConfiguration, work: Path, where: str) -> list[str]:
    """Return what is wrong with a run's settings, and with how they fit together: sites, options, privacy, ….

    Args:
        where: the file, as people are told it.
    """
    problems = _setting_problems(run, configuration, work, where)
    _found(problems, lambda: check_together(run), f"{where}: ")
    _found(problems, lambda: task_of(run), f"{where}: ")
    if run.task in task_names() and run.task not in configuration.heldout and run.tolerance is not None:
        problems.append(
            f"{work / FILE}: heldout: has no folder for {run.task}; "
            + (f"add `{run.task}: DIR` there" if configuration.heldout else said_in_place("heldout", run.task))
            + ", DIR holding labelled images, laid out like a site's, for the tolerance check"
        )
    return list(dict.fromkeys(problems))


class _Draft(Record):
    """Of a RUN.yaml that is no run yet: what can be looked at by itself."""

    model_config = ConfigDict(extra="ignore")

    task: str = ""
    method: str = ""
    sites: list[str] = []
    task_options: dict[str, Any] = {}
    method_options: dict[str, Any] = {}
    augmentation: dict[str, Any] = {}
    split: dict[str, Any] = {}


def _problems_besides(run_yaml: Path, configuration: AggregatorConfiguration, work: Path) -> list[str]:
    """Return what is wrong with the settings of a RUN.yaml, besides what keeps it from being a run at all."""
    draft = _found([], lambda: parse_yaml(run_yaml.read_bytes(), _Draft, str(run_yaml)))
    if draft is None:
        return []
    of_wheels = {  # a wheel is asked only about what is a run
        **({"task": ""} if wheel_behind("tasks", draft.task) else {}),
        **({"method": ""} if wheel_behind("methods", draft.method) else {}),
    }
    return _setting_problems(draft.model_copy(update=of_wheels), configuration, work, str(run_yaml))


def _setting_problems(
    run: RunConfiguration | _Draft, configuration: AggregatorConfiguration, work: Path, where: str
) -> list[str]:
    """Return what is wrong with each setting by itself; of a draft, as far as it says which task and method."""
    problems = [
        f"{where}: sites: {site} is not in {work / FILE}; add it there or correct the name"
        for site in run.sites
        if site not in configuration.sites
    ]
    checks: list[Callable[[], object]] = [lambda: check_record(run.split, SplitPlan, "split")]
    if run.method:
        checks.insert(0, lambda: open_method(run.method, run.method_options))
    if run.task:
        checks.insert(0, lambda: task_named(run.task).options(run.task_options))
        checks.append(lambda: task_named(run.task).augmentation(run.augmentation))
    for check in checks:
        _found(problems, check, f"{where}: ")
    return problems


def _remarks(
    work: Path,
    learning: Learning,
    untrained: float | None,
    by_default: Sequence[str],
) -> Iterator[Finding]:
    """Yield what a PI should know of a run that can be launched, and may want to change before its sites agree to it.

    Args:
        untrained: the score in [0, 1] of the first model on the held-out images; None of a run without a tolerance.
        by_default: what RUN.yaml does not say, each with what is taken for it.
    """
    run = learning.run
    store = RunStore(work, run.run)
    if store.is_over:
        yield Finding("warning", ended_already(run.run))
    elif store.aggregate_path(0).exists():
        begun = "is queued" if store.waits_in_queue else "was launched"
        yield Finding("note", f"{run.run} {begun} with just these settings; `launch` goes on with it")
    if (images := learning.heldout.images) is not None:
        counts = target_counts(learning.task, images.samples, len(images.classes))
        told = f"{pluralize(len(images.samples), words_of(run.task).input)}; {classes_text(counts, images.classes)}"
        yield Finding("note", f"held-out set: {told}")
    yield from _about_beginning(work, run, learning.division)
    yield from _about_size(learning.task.options(run.task_options))
    yield from _about_code(run)
    yield _about_tolerance(learning, untrained)
    yield from _about_method(learning)
    if by_default:
        yield Finding("note", f"default used (not set in RUN.yaml): {', '.join(by_default)}")
    if run.task != EXTERNAL:
        yield (
            _steps(requirements(run), words_of(run.task).input)
            if run.rounds
            else Finding("note", "rounds: 0; sites score the model, and nothing is trained")
        )
    yield from _about_batch_norm(learning)
    yield from _about_learning_rate(run)
    yield from _about_scoring(run)
    options = learning.method.options
    if getattr(options, "weighted", False):
        what_to_do = "set mean_images to about the mean of your sites' training images"
        yield Finding("note", f"weighted: a site of {options.mean_images} training images counts as one; {what_to_do}")
    if run.quorum == len(run.sites) > 1:
        waits = "a round waits for one that is away, past its deadline too, until it answers or withdraws"
        yield Finding("note", f"quorum: all {pluralize(run.quorum, 'site')}; {waits}")
    if run.quorum == 1 < len(run.sites) and not learning.method.in_turn:
        alone = "at its deadline a round may close with the answer of one site, whose weights are then the model"
        yield Finding("note", f"quorum: 1 of {len(run.sites)} sites; {alone}")
    if not learning.method.in_turn:
        yield from about_largest_site(work, run)
    absent = [site for site in run.sites if not (work / "sites" / site / names.MIRROR / names.SITE_CARD).exists()]
    if absent:
        yield Finding("note", f"not joined yet, as far as is known here: {', '.join(absent)}")
    yield _about_weights(run, learning.division)


def _about_method(learning: Learning) -> Iterator[Finding]:
    """Yield a finding for what a run's method is for, and cannot do with this network, or these sites."""
    run, method = learning.run, learning.method
    if method.about_batch_norm and not batch_norms(learning.model):
        rest = "all that learns but the head" if learning.division.personal else "all that learns"
        none = "this network has none that learns"
        yield Finding("note", f"method: {run.method} keeps each site's BatchNorm there, and {none}: {rest} travels")
    if method.compares_features and not learns_features(learning.model):
        told = f"{run.method} compares features, and nothing that makes them learns: it does what fedavg does"
        yield Finding("warning", f"method: {told}; set projection, or train all or lora")
    if run.may_pass_over and getattr(method.options, "common_model", False):
        told = "each site measures the first model that it receives, which is the same one only where all are asked"
        yield Finding("warning", f"common_model: {told}; set it to false, or leave sites_per_round out")


def _about_beginning(work: Path, run: RunConfiguration, division: Sharing) -> Iterator[Finding]:
    """Yield a finding: with which model training begins, and which file each site must have for that."""
    if run.start is not None:
        what = "training begins with" if run.rounds else "sites score"
        yield Finding("note", f"start: {what} the model of {run.start.name}, SHA-256 {run.start.sha256}")
        yield from _about_pairs(work, run)
    if division.from_file:
        weights = published_weights(run.task_options)
        which = f"{weights.file}, SHA-256 {weights.sha256}, from {weights.source}"
        yield Finding(
            "note", f"weights: each site needs {which}, in its WORK/{PUBLISHED_WEIGHTS}; nothing of it is sent"
        )


def _about_size(options: Options) -> Iterator[Finding]:
    """Yield a finding if images have another size than those that published weights come from."""
    encoder, side = getattr(options, "encoder", None), getattr(options, "image_size", None)
    if encoder is None or encoder in ENCODERS or base_weights(options) is None:
        return
    published = published_side(encoder)
    if published not in (None, side):
        text = f"image_size: {encoder} was published for {published} × {published} pixels, and the run has {side}"
        yield Finding("note", f"{text}; its weights may do better at their own size")


def _about_pairs(work: Path, run: RunConfiguration) -> Iterator[Finding]:
    """Warn where the model to compare with may have been trained on the images on which it is compared."""
    earlier = begun_with(work, run) if run.paired else None
    if earlier is not None and not divides_alike(run, earlier):
        yield Finding(
            "warning",
            f"paired: seed or split is not that of {earlier.run}, whose model may so have been trained on images that "
            f"this run tests on; take `seed: {earlier.seed}` and its split",
        )


def _about_batch_norm(learning: Learning) -> Iterator[Finding]:
    """Yield a finding about the batches by which BatchNorm normalises: a site with little memory divides them."""
    size = learning.run.batch_size
    if learning.run.rounds and size > 1 and batch_norms(learning.model):
        divided = f"a site that sets micro_batch uses smaller ones, whose size {names.METRICS} reports"
        yield Finding("note", f"BatchNorm: uses batches of up to {pluralize(size, 'image')}; {divided}")


def _about_code(run: RunConfiguration) -> Iterator[Finding]:
    """Yield a finding about each piece of code in a run beside dropfed's own."""
    for plugin in run.plugins:
        needs = "each site needs these very files, and a policy that allows them"
        yield Finding("note", f"plug-in: {plugin.in_full}; {needs}")
    if run.trainer is not None:
        who = ", ".join(run.trainer.sites or run.sites)
        again = "after a crash its bytes may differ, and `replay` computes all but the training"
        yield Finding("note", f"trainer: {who} by the program {run.trainer.name} that is installed there; {again}")


def _about_learning_rate(run: RunConfiguration) -> Iterator[Finding]:
    """Yield a finding if a cosine does not fall just once."""
    rate = run.learning_rate
    if isinstance(rate, Cosine) and rate.period != run.rounds and run.rounds:
        does = "begins anew after each of its periods" if rate.period < run.rounds else "has not fallen to its final"
        rounds = pluralize(run.rounds, "round")
        text = f"learning_rate: the cosine's period is {rate.period} and the run has {rounds}, so that it {does}"
        yield Finding("note", f"{text}; `period: {run.rounds}` lets it fall once")


def _about_scoring(run: RunConfiguration) -> Iterator[Finding]:
    """Yield findings: what scoring only some rounds saves, and what a model trained alone at each site costs."""
    if run.baseline is not None:
        twice = "sites train about twice as long; one that misses the first round has no model alone"
        yield Finding("note", f"baseline: {twice}")
    if run.score_every is None:
        return
    scored = scored_rounds(run) + 1
    saved = run.rounds + 1 - scored
    text = (
        f"score_every: sites score validation and test images in {pluralize(scored, 'round')} of {run.rounds + 1}, the "
        f"first and the closing one among them, which saves {saved / (run.rounds + 1):.0%} of the scoring; the model "
        "is chosen among the aggregates that are scored"
    )
    yield Finding("note", text)


def _steps(required: Requirements, what: str) -> Finding:
    """Return how long a small site trains in the whole run.

    Args:
        what: people call one input of the model.
    """
    steps = required.steps(_SMALL)
    takes = f"training: for example, a site with {_SMALL} training {what}s takes {steps} steps in the whole run"
    if not required.takes_few_steps(_SMALL):
        return Finding("note", takes)
    more = "raise rounds, epochs, or how often `augmentation` shows an image, or lower batch_size"
    return Finding("warning", f"{takes}, which may be too few to learn from: {more}")


def ended_already(run: str, outcome: str = "") -> str:
    """Return what is said of a run that is launched once more."""
    return f"{run} has ended already{outcome and f': {outcome}'}; to run it again, give it a new name"


def _about_tolerance(learning: Learning, score: float | None) -> Finding:
    """Return what the run's tolerance does to the initial model, and which tolerance to take if that is not good."""
    tolerance = learning.run.tolerance
    if not learning.run.rounds:
        return Finding("note", "tolerance: rounds: 0 trains nothing, so that no model is compared with it")
    if score is None or tolerance is None:
        return Finding("warning", "tolerance: null; a site's model enters the aggregate however bad it is")
    whole = score_name(learning.task, learning.run)
    by = whole if learning.division.has_whole_model else "balanced accuracy of a linear probe"
    said = f"tolerance: the model that training begins with scores {score:.4f} on the held-out set ({by})"
    if isinstance(tolerance, BelowLast):
        limit = limit_below(score, tolerance)
        later = f"later it must come within {tolerance.below_last:g} of the last aggregate"
        counts = "counts" if score > limit else "is omitted"
        which = "one that has learnt nothing yet" if learning.run.start is None else "the model of start itself"
        more = f"in round 1 a model counts if it scores above {limit:.4f}, so {which} {counts}"
        return Finding("note", f"{said}; {more}; {later}")
    proposed = f"take `tolerance: {{below_last: {USUAL_TOLERANCE.below_last:g}}}`"
    if score > tolerance:
        more = f"so {tolerance:g} keeps no such model out, in any round; {proposed}, which rises with the aggregate"
        return Finding("warning", f"{said}, {more}")
    more = f"so {tolerance:g} omits every site that one round does not take above it; {proposed}, which does not"
    return Finding("warning", f"{said}, {more}")


def _about_weights(run: RunConfiguration, division: Sharing) -> Finding:
    """Return how many bytes of weights go to a site and come back: in a training round, and in the whole run."""
    kinds: tuple[Kind, ...] = ("offer", "round", "update", "final")
    offer, down, up, final = (weights_bytes(division, kind, run.wire) for kind in kinds)
    # Every training round and the closing one send the model, and so does the end.
    to_site = offer + (run.rounds + 1) * down + final
    from_site = run.rounds * up + weights_bytes(division, "update", run.wire, trains=False)
    once = f" ({size_text(offer)} of it once, with the offer)" if offer else ""
    form = f" as {run.wire.numbers}" + (", before compression" if run.wire.compression != "none" else "")
    return Finding(
        "note",
        f"weights: each round sends {size_text(down)} to a site and {size_text(up)} back{form}, the whole run "
        f"up to {size_text(to_site)} to each site{once} and {size_text(from_site)} back; {_kept(run)}",
    )


def _kept(run: RunConfiguration) -> str:
    if run.keep == "all":
        return f"keep: the models of {pluralize(run.rounds, 'round')} stay in each folder"
    return f"keep: {run.keep}"


# --- the parts of it ---------------------------------------------------------------------------------------


def _found(problems: list[str], look: Callable[[], Found], where: str = "") -> Found | None:
    """Return what ``look`` finds; or None, and what is wrong is among the problems."""
    try:
        return look()
    except (ConfigurationError, DataError) as error:
        problems += [f"{where}{problem}" for problem in error.problems]
    except ActionRequiredError as error:
        problems.append(str(error))
    return None


def _open_runs(work: Path, run: RunConfiguration, run_yaml: Path, sites: Iterable[str]) -> list[str]:
    """Return why the run would come too early: rounds of two runs never interleave, and each ends for all its sites.

    Args:
        sites: those that can be told.
    """
    others = [store for store in runs_in(work) if store.run != run.run]
    over = [store for store in others if store.is_over]
    ledgers = {site: open_ledger(work / "sites" / site) for site in sites} if over else {}
    ended = [
        f"{run_yaml}: run {store.run} has ended, and {', '.join(owed)} must still be told: finish it by "
        f"{store.goes_on_by}"
        for store in over
        if (owed := [site for site, of in ledgers.items() if of and is_owed_end(site, of, store, store.run)])
    ]
    return ended + [
        f"{run_yaml}: run {store.run} is still open in {work}, and runs go on one after the other: have yours follow "
        f"it by `dropfed-aggregator queue {quoted(run_yaml)} --work {quoted(work)}`, and finish it by "
        f"{store.goes_on_by}; to end it with the best model so far, call "
        f"`dropfed-aggregator stop {store.run} --work {quoted(work)}` before that"
        for store in others
        if store.round_no and not store.is_over
    ]


def _site_problems(work: Path, run: RunConfiguration, configuration: AggregatorConfiguration) -> list[str]:
    """Return what stands in the way of reaching the run's sites, as far as this machine knows without asking them."""
    problems: list[str] = []
    key = _found(problems, lambda: SigningKey.at(work / KEY_FILE))
    encryption_key = _found(problems, lambda: kept_encryption_key(work))
    has_keys = not problems
    for name, access in sorted(configuration.sites.items()):
        if name in run.sites:
            _found(problems, partial(open_folder, work, access))
            _found(problems, partial(read_needed_invite, work, name))
            if key is not None and has_keys:
                _found(problems, partial(_require_keys, work, run, name, key, encryption_key))
    return list(dict.fromkeys(problems))  # a key that is not the right one is so for every site


def _require_keys(work: Path, run: RunConfiguration, site: str, key: SigningKey, own: EncryptionKey | None) -> None:
    """Check that the keys here are those that a site, if it is enrolled, knows: of an encrypted run both.

    Raises:
        ConfigurationError: one has shown no key.
        ActionRequiredError: a key that this machine has shown is not here.
    """
    ledger = open_ledger(work / "sites" / site, key=key.public, encryption_key=own)
    if ledger is not None and run.encrypt != "none":
        ledger.require_keys(run.run)


@dataclass(frozen=True)
class _Parts:
    """What a run begins with; ``weights_sha256``: of published weights in the untrained model."""

    task: Task
    method: Method
    model: nn.Module
    images: Collection | None
    weights_sha256: str | None


def _parts(
    work: Path, where: str, configuration: AggregatorConfiguration, run: RunConfiguration, problems: list[str]
) -> _Parts:
    """Return what a run begins with, or goes on with.

    Args:
        problems: what is wrong already, with the settings too; what is wrong with images and weights is added.

    Raises:
        ConfigurationError: every problem.
    """
    settings = _found([], lambda: _opened(run))
    if settings is None:
        raise ConfigurationError(problems)
    task, options, method = settings
    prepare_compute(EXACT, configuration.threads)
    wants_images = run.tolerance is not None
    images = _found(problems, lambda: _held_out(work, configuration, task, options)) if wants_images else None
    is_new = not RunStore(work, run.run).aggregate_path(0).exists()
    hashes: list[str | None] = []

    def begin(model: nn.Module) -> None:
        if is_new:
            hashes.append(task.load_initial_weights(model, options, [work / PUBLISHED_WEIGHTS]))

    classes = len(images.classes) if images else ANY_CLASSES
    model = _found(problems, lambda: network_of(run, task, method, classes, prepare=begin), f"{where}: ")
    if problems or model is None:
        raise ConfigurationError(problems)
    return _Parts(task, method, model, images, next(filter(None, hashes), None))


def _learning(work: Path, where: str, run: RunConfiguration, parts: _Parts) -> Learning:
    """Return what a run is computed with; the model holds what every site begins with.

    Raises:
        ConfigurationError: the model to begin with is not there or another, or does not fit into the run's numbers.
    """
    task, method, model = parts.task, parts.method, parts.model
    store, division = RunStore(work, run.run), sharing(task, method, model)
    if not store.aggregate_path(0).exists():
        if run.start is not None:
            load_start(model, division, run.start, work)
        try:
            round_tensors(model, division.shared, run.wire.numbers)
        except ValueError as error:
            problem = f"{where}: wire: numbers: {run.wire.numbers} cannot hold {error} of the initial model"
            raise ConfigurationError([f"{problem}; take bfloat16 or float32"]) from None
    elif division.start:
        load_tensors(model, division.beginning, store.start)
    heldout = HeldOutSet.of_run(run, task, method, model, images=parts.images, sharing=division)
    return Learning(run, task, method, model, division, heldout, parts.weights_sha256)


def _opened(run: RunConfiguration) -> tuple[Task, Options, Method]:
    task = task_named(run.task)
    return task, task.options(run.task_options), open_method(run.method, run.method_options)


def _held_out(work: Path, configuration: AggregatorConfiguration, task: Task, options: Options) -> Collection | None:
    """Return the images for the tolerance check; None where no folder is named.

    Raises:
        DataError: every problem of every file.
    """
    if task.name not in configuration.heldout:
        return None
    folder = work / configuration.heldout[task.name]
    with told_of(f"held-out set {folder}"):
        return task.open_images(folder, options)


def _by_default(written: RunConfiguration, run: RunConfiguration) -> Iterator[str]:
    """Yield the values that count in a run and were not written.

    A block is named if nothing of it was written, others with their value. Plug-ins are reported by themselves.
    """
    said = written.model_dump(mode="json", exclude_unset=True)
    for key, value in run.model_dump(mode="json", exclude={"plugins"}).items():
        inner = value if isinstance(value, dict) else {}
        if key in said:
            unsaid = {f"{key}.{name}": each for name, each in inner.items() if name not in said[key]}
        else:
            unsaid = {key: value}
        for name, each in unsaid.items():
            if each is not None:  # else nothing is done there
                yield name if isinstance(each, dict) else f"{name} {json.dumps(each)}"


def as_begun(store: RunStore, run: RunConfiguration) -> RunConfiguration:
    """Return the configuration to go on with, be it as a version began it in which runs said less; or to begin with.

    What a newer version takes by default, and the one that began the run did not know, makes it no other run.
    """
    if store.was_begun_as(run):
        return run
    new, begun = in_full(as_of_now(run)), store.begun()
    if begun is None or begun.scores != new.scores:
        return new
    if [each.wheel for each in begun.plugins] != [each.wheel for each in new.plugins]:
        return new
    return begun if in_full(begun) in (in_full(run), new) else new


def in_full(run: RunConfiguration) -> RunConfiguration:
    """Return the run with every default written out: who agrees to it can read all that decides the result."""
    task = task_of(run)
    checked = {
        "task_options": task.options(run.task_options),
        "method_options": open_method(run.method, run.method_options).options,
        "augmentation": task.augmentation(run.augmentation),
        "split": check_record(run.split, SplitPlan, "split"),
    }
    usual = None if run.tolerance is None else task.tolerance_scores[0]
    said = {name: options.model_dump(mode="json") for name, options in checked.items()}
    of_plugins = {
        "plugins": required_by(run),
        "scores": {**task.scores, **(run.scores if run.trainer else {})},
    }
    return run.model_copy(update={"tolerance_score": run.tolerance_score or usual, **said, **of_plugins})
