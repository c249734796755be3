"""What a hospital lets the code of plug-ins do; ``shared/learning/apart.py`` holds it to that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shared.exchange.records.run import Plugin
from shared.learning import apart
from shared.learning.apart import AnswerT, Bounds, IsTime, Question
from site_client.configuration import FILE, SiteConfiguration

ALLOWED_IN = f"{FILE}, policy: plugins,"
"""Where the hospital's people say which plug-ins they allow."""


def bounds_of(site: SiteConfiguration) -> Bounds:
    """Return what plug-ins may do at a site."""
    policy = site.policy
    return Bounds(
        said_in=FILE,
        allowed=policy.plugins,
        allowed_in=ALLOWED_IN,
        minutes=policy.plugin_minutes,
        minutes_key="policy: plugin_minutes",
        memory_gb=policy.max_memory_gb if site.device == "cpu" else None,
        if_full=f"lower batch_size, or allow more ({FILE}: policy: max_memory_gb)",
        threads=site.threads,
    )


def answered(
    question: Question[AnswerT],
    site: SiteConfiguration,
    plugins: Sequence[Plugin],
    is_time: IsTime = lambda percent: True,
    scratch: Path | None = None,
) -> AnswerT:
    """Return the answer to a question that a site asks; arguments and errors as in ``shared/learning/apart.py``.

    What names images lies in the work directory's scratch folder meanwhile, which the daemon clears.
    """
    return apart.answered(question, bounds_of(site), plugins, is_time, scratch)
