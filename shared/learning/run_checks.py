"""What a run must not put together, though each of its settings is right by itself."""

from __future__ import annotations

from shared.errors import ConfigurationError
from shared.exchange.records.run import RunConfiguration
from shared.learning.clashes import clashes_of
from shared.learning.combinations import open_rule
from shared.learning.methods import open_method, require_options
from shared.learning.methods.contract import Method
from shared.learning.models.options import WeightsFile
from shared.learning.outside import objections as objections_to_programs
from shared.learning.privacy import objections
from shared.learning.tasks import task_named
from shared.learning.tasks.contract import Task
from shared.learning.tasks.terms import EXTERNAL, Options
from shared.plurals import pluralize

_MOVES_ON = ("mean", "fedavg", "fedprox", "fedbn", "fedrep")
"""The methods whose aggregate is a mean of models, and nothing follows from an answer but that."""


def check_together(run: RunConfiguration) -> None:
    """Check that a run's method is for a federation, and fits the task's optimizer, the sites asked and the scoring.

    Raises:
        ConfigurationError: every problem; or an unknown task, method or option, or what a wheel or a method's file is
            at fault with.
    """
    _require_plain_names(run)
    task, method = task_named(run.task), open_method(run.method, run.method_options)
    options: Options = task.options(run.task_options)
    augmentation = task.augmentation(run.augmentation)
    problems = objections_to_programs(run, task, method)
    if method.reference:
        problems.append(f"method: {run.method} is a reference for comparisons on one machine; take a federated one")
    if method.in_turn and run.quorum > 1:
        problems.append(f"quorum: {run.method} asks one site a round, and {run.quorum} never answer; set it to 1")
    if method.in_turn and run.sites_per_round not in (None, 1):
        problems.append(f"sites_per_round: {run.method} asks one site a round, not {run.sites_per_round}; leave it out")
    if run.stop_after is not None and (method.in_turn or run.may_pass_over):
        why = "compares aggregates over the same sites, and not all are asked in each round"
        problems.append(f"stop_after: {why}: leave it out")
    problems += _against_baseline(run, method)
    problems += _against_pairs(run, task, method)
    problems += [] if run.late is None else _against_late(run)
    problems += [] if run.rounds else _against_scoring_alone(run, task, method)
    problems += _against_own_copies(options)
    if method.needs_sgd and options.optimizer != "sgd":
        why = "computes with step sizes, which SGD alone has"
        problems.append(f"task_options: {run.method} {why}: set `optimizer: sgd`")
    if method.needs_sgd and options.max_grad_norm is not None:
        why = "computes with step sizes, which clipping changes"
        problems.append(f"task_options: {run.method} {why}: leave max_grad_norm out")
    if augmentation.crops is not None and not task.labels_pixels:
        problems.append(f"augmentation: crops are parts of images with masks, and {run.task} has none; say null")
    if run.tolerance_score not in (None, *task.tolerance_scores):
        known = " or ".join(task.tolerance_scores)
        problems.append(f"tolerance_score: {run.task} has no {run.tolerance_score}; take {known}")
    if method.options.dice and not task.labels_pixels:
        problems.append(f"method_options: dice is the overlap of masks, and {run.task} has none; set `dice: false`")
    if run.privacy is not None:
        problems += objections(
            run.method,
            keeps_batch_norm=method.about_batch_norm,
            sends_features=method.sends_features,
            theta_from=method.options.theta_from if method.sends_reliability else None,
            augmentation=augmentation,
            balances=options.balances,
            weighs_classes=method.options.class_weights != "none",
            clips=options.max_grad_norm is not None,
            tells_images_apart=options.tells_images_apart,
        )
    if misfit := _misfit(run, method):
        problems.append(f"combination: {misfit}")
    if problems:
        raise ConfigurationError(problems)


def _require_plain_names(run: RunConfiguration) -> None:
    """Check that each name of a run means one thing, and that its method's options can be chosen.

    Raises:
        ConfigurationError: they do not.
    """
    if problems := clashes_of(run):
        raise ConfigurationError(problems)
    require_options(run.method)


def _against_baseline(run: RunConfiguration, method: Method) -> list[str]:
    """Return why sites cannot each train a model alone besides, a sentence each."""
    if run.baseline is None:
        return []
    problems = []
    if method.reference:
        problems.append(_no_federation(run))
    if method.in_turn or run.may_pass_over:
        why = "a site alone trains in as many rounds as the federation, and not all are asked in each round"
        problems.append(f"baseline: {why}; leave it out")
    if run.privacy is not None:
        why = "a model trained alone has no noise, so its scores would tell more of its images than ε allows"
        problems.append(f"baseline: {why}; leave it out")
    if run.trainer is not None:
        problems.append("baseline: dropfed cannot train what a program trains; leave out baseline, or trainer")
    return problems


def _against_own_copies(options: Options) -> list[str]:
    """Return why sites cannot take published weights from their own copy, a sentence each."""
    weights = getattr(options, "weights", None)
    if not isinstance(weights, WeightsFile) or not weights.at_sites or getattr(options, "train", "all") != "all":
        return []
    why = "at_sites leaves published weights out of what travels, and what trains travels"
    return [f"task_options: weights: {why}: set train to lora or head if the task has it, or leave at_sites out"]


def may_be_paired(task: Task, method: Method) -> bool:
    """Return whether every site receives whole models, the first one too, so that it can compare two of them."""
    return not (_stays_somewhere(method) or task.head_is_local or method.in_turn or task.name == EXTERNAL)


def _against_pairs(run: RunConfiguration, task: Task, method: Method) -> list[str]:
    """Return why sites cannot compare each model with the one that the run began with, a sentence each."""
    if not run.paired:
        return []
    problems = []
    if run.start is None or not run.rounds:
        problems.append("paired: compares what training comes to with the model of start; leave it out of other runs")
    if not may_be_paired(task, method) or run.may_pass_over:
        why = "each site scores whole models and the first, and here not all receive them whole, or in round 1"
        problems.append(f"paired: {why}; leave it out")
    return problems


def _against_late(run: RunConfiguration) -> list[str]:
    """Return why an answer that comes late cannot count in the next round, a sentence each."""
    problems = []
    if run.method not in _MOVES_ON:
        known = ", ".join(_MOVES_ON)
        why = f"by {run.method} more follows from an answer than a mean, and that of its own round"
        problems.append(f"late: {why}; leave it out, or take one of {known}")
    if run.combination.rule != "mean":
        why = f"{run.combination.rule} compares models of one round, and a late one began from another"
        problems.append(f"late: {why}; leave it out, or take mean")
    if run.keep == "last 1":
        why = "a late answer is a difference to the aggregate before the last, which `last 1` has removed"
        problems.append(f"keep: {why}; say `last 2`, or leave late out")
    if run.may_pass_over:
        why = "a site that the next round does not ask gets no verdict there that could say that its answer counts"
        problems.append(f"late: {why}; leave late, or sites_per_round, out")
    if run.rounds <= 1:
        problems.append("late: there is no next round that trains; leave it out, or set rounds to 2 or more")
    return problems


def _against_scoring_alone(run: RunConfiguration, task: Task, method: Method) -> list[str]:
    """Return why sites cannot score a model that nobody trains, a sentence each."""
    problems = []
    if run.start is None:
        problems.append("rounds: 0 trains nothing, and scores the model that start names; name one, or set rounds")
    if (stays := _stays_somewhere(method)) or task.head_is_local:
        whose = f"with {run.method}" if stays else f"in {run.task}"
        problems.append(f"rounds: 0 scores a whole model, and {whose} part of it stays at the sites; set rounds")
    trained = {"baseline": run.baseline, "privacy": run.privacy, "stop_after": run.stop_after, "trainer": run.trainer}
    problems += [
        f"{key}: rounds: 0 trains nothing; leave it out" for key, value in trained.items() if value is not None
    ]
    if method.options.fine_tuning_epochs:
        problems.append("method_options: rounds: 0 trains nothing; set fine_tuning_epochs to 0")
    return problems


def _stays_somewhere(method: Method) -> bool:
    """Return whether the method keeps part of the network at each site."""
    return any(getattr(type(method), hook) is not getattr(Method, hook) for hook in ("stays", "personal"))


def _no_federation(run: RunConfiguration) -> str:
    return f"baseline: {run.method} exchanges nothing, so there is no federation to compare with; leave it out"


def check_reference(run: RunConfiguration) -> None:
    """Check that a run by a reference, which exchanges nothing, asks for nothing that only a federation has.

    Raises:
        ConfigurationError: it does.
    """
    if run.baseline is not None:
        raise ConfigurationError([_no_federation(run)])


def _misfit(run: RunConfiguration, method: Method) -> str | None:
    """Return why the run's rule of combination cannot do what it is for, or None."""
    rule, name = open_rule(run.combination), run.combination.rule
    if method.in_turn and rule.fewest > 1:
        return f"{name} compares {rule.fewest} answers or more, and {run.method} asks one site a round; take mean"
    if name != "mean" and type(method).settle is not Method.settle:
        return f"{run.method} adds up what all sites tell, and {name} leaves no liar out of that; take mean"
    if not rule.weighs and type(method).rows is not Method.rows:
        return f"{run.method} makes each site an aggregate of its own by weights, and {name} knows none; take mean"
    needs = f"{name} needs {rule.fewest} answers in each round"
    if len(run.sites) < rule.fewest:
        return f"{needs}, and the run has {pluralize(len(run.sites), 'site')}; add sites, or take mean"
    if run.quorum < rule.fewest:
        return f"{needs}, and the quorum is {run.quorum}; raise quorum, and sites_per_round if it is lower"
    return None
