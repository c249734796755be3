"""A run that is begun now, where it does not say all: ``younger.py`` says why that is another than an older run."""

from __future__ import annotations

from shared.exchange.records.run import RunConfiguration
from shared.learning.methods import options_form
from shared.learning.tasks import task_named
from shared.learning.tasks.terms import Options
from shared.learning.younger import completed


def as_of_now(run: RunConfiguration) -> RunConfiguration:
    """Return a run with what it takes now for options that are younger than some runs; what it says itself stays.

    Raises:
        ConfigurationError: there is no such task or method.
    """
    task = task_named(run.task)
    return run.model_copy(
        update={
            "task_options": completed(run.task_options, getattr(task, "form", Options)),
            "method_options": completed(run.method_options, options_form(run.method, run.method_options)),
            "support": run.support or "support" not in run.model_fields_set,
            "augmentation": {**getattr(task, "augmentation_now", {}), **run.augmentation},
        }
    )
