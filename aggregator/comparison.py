"""Runs side by side: what differs in their settings, how good the chosen models are, what became of answers, the cost.

All of it is taken from the runs' views. What was not reported, is undefined or has not come yet is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from aggregator.report.tables import NOT_REPORTED
from aggregator.report.text import NONE, short, size, table_lines
from aggregator.run_view import Bytes, RunView, Support
from aggregator.same_images import divides_alike
from shared.audit.difference import flat
from shared.exchange.tables import RECEIVED_SPLITS, Split
from shared.plurals import pluralize

_OTHER_IMAGES = (
    "These runs divide a site's images in different ways (seed, split): where no split.csv says the sets, their "
    "test images are not the same, and a model may be tested on images that another was trained on."
)


@dataclass(frozen=True)
class ChosenScores:
    """The main score of the chosen aggregate at each site, as far as reported, and the mean of those.

    Args:
        support: what each is over, where the site answered.
    """

    sites: Mapping[str, float | None]
    support: Mapping[str, Support | None]
    mean: float | None

    @property
    def reported(self) -> dict[str, float]:
        """The scores of the sites that reported one."""
        return {site: value for site, value in self.sites.items() if value is not None}

    def shown(self, site: str) -> str | None:
        """Return a site's score with what it is over, for people; None if it was not reported."""
        value, support = self.sites.get(site), self.support.get(site)
        return None if value is None or support is None else f"{short(value)} ({support.text})"


@dataclass(frozen=True)
class Summary:
    """What a run came to: state, scores of the chosen aggregate, verdicts, cost.

    Args:
        outcome: its name alone.
        rounds: how many trained.
        seconds: from signing a round to its last verdict, of all closed rounds; None where of one it is not known.
    """

    outcome: str | None
    state: str
    rounds: int
    score: str
    aggregate: int | None
    validation: ChosenScores
    test: ChosenScores
    verdicts: Mapping[str, int]
    bytes: Bytes
    seconds: int | None

    def on(self, split: Split) -> ChosenScores:
        """Return the scores on one of the splits."""
        return self.validation if split == "validation" else self.test


def settings_that_differ(views: Sequence[RunView]) -> dict[str, dict[str, Any]]:
    """Return of each setting that differs the runs that have it, and what it is there."""
    settings = {view.run: dict(flat("", view.configuration.model_dump(mode="json"))) for view in views}
    keys = dict.fromkeys(key for of_run in settings.values() for key in of_run if key != "run")
    found = {key: {run: of_run[key] for run, of_run in settings.items() if key in of_run} for key in keys}
    return {
        key: values
        for key, values in found.items()
        if len(values) < len(settings) or any(value != next(iter(values.values())) for value in values.values())
    }


def summary_of(view: RunView) -> Summary:
    """Return what a run came to."""
    took = [each.seconds for each in view.rounds if each.is_closed]
    return Summary(
        outcome=view.outcome.name if view.outcome else None,
        state="aborted" if view.aborted else "ended" if view.is_over else "open",
        rounds=sum(each.trains for each in view.rounds),
        score=view.score,
        aggregate=view.card.chosen_round if view.card else None,
        validation=_chosen_scores(view, "validation"),
        test=_chosen_scores(view, "test"),
        verdicts=dict(sorted(view.verdicts().items())),
        bytes=Bytes(*(_sum(getattr(each, way) for each in view.bytes.values()) for way in ("down", "up"))),
        seconds=None if None in took else _sum(took),
    )


def _chosen_scores(view: RunView, split: Split) -> ChosenScores:
    received = view.scoring(view.card.chosen_round) if view.card else None
    mean = received.means[split].get(view.score) if received else None
    rows = {site: part.row(split) if received and (part := received.sites.get(site)) else None for site in view.sites}
    return ChosenScores(
        sites={site: row.scores.get(view.score) if row else None for site, row in rows.items()},
        support={site: row.support(view.score) if row else None for site, row in rows.items()},
        mean=mean.alike if mean else None,
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


# --- for people --------------------------------------------------------------------------------------------


def comparison_text(views: Sequence[RunView]) -> str:
    """Return the runs as Markdown, with a column for each."""
    names, runs = [view.run for view in views], [summary_of(view) for view in views]
    lines = _table("", names, {"outcome": [run.outcome or NONE for run in runs], "state": [run.state for run in runs]})
    differing = {
        key: [_shown(values[run]) if run in values else "" for run in names]
        for key, values in settings_that_differ(views).items()
    }
    lines += _table("Settings that differ", names, differing) if differing else ["", "No setting differs."]
    lines += _table("The chosen aggregate", names, _score_rows(runs))
    if not all(divides_alike(view.configuration, views[0].configuration) for view in views):
        lines += ["", _OTHER_IMAGES]
    statuses = sorted({status for run in runs for status in run.verdicts})
    counts = {status: [str(run.verdicts.get(status, 0)) for run in runs] for status in statuses}
    lines += _table("Verdicts", names, counts)
    cost = {
        "rounds of training": [str(run.rounds) for run in runs],
        "sent to the sites": [size(run.bytes.down) for run in runs],
        "sent by the sites": [size(run.bytes.up) for run in runs],
        "seconds in rounds": [NONE if run.seconds is None else str(run.seconds) for run in runs],
    }
    return "\n".join([*lines, *_table("Cost", names, cost)]).lstrip("\n") + "\n"


def _score_rows(runs: Sequence[Summary]) -> dict[str, list[str]]:
    rows = {
        "of round": [NONE if run.aggregate is None else str(run.aggregate) for run in runs],
        "score": [run.score for run in runs],
    }
    for split in RECEIVED_SPLITS:
        for site in dict.fromkeys(site for run in runs for site in run.on(split).sites):
            rows[f"{split}, {site}"] = [_site_score(run, split, site) for run in runs]
        rows |= _mean_rows(runs, split)
    return rows


def _mean_rows(runs: Sequence[Summary], split: Split) -> dict[str, list[str]]:
    """Return the mean over the sites of each run; where these differ also whose they are, and that over the common."""
    reported = [run.on(split).reported for run in runs]
    scored = [scores.keys() for scores in reported if scores]
    is_over_others = any(sites != scored[0] for sites in scored)
    means = [_mean(run.on(split), names_sites=is_over_others) or _no_score(run) for run in runs]
    rows = {f"{split}, mean over sites": means}
    if is_over_others and (common := sorted(set[str].intersection(*map(set, scored)))):
        rows[f"{split}, mean over {', '.join(common)}"] = [
            short(fmean(scores[site] for site in common)) if scores else _no_score(run)
            for run, scores in zip(runs, reported, strict=True)
        ]
    return rows


def _site_score(run: Summary, split: Split, site: str) -> str:
    """Return a site's score in a run, or why there is none; nothing where the site is not in the run."""
    found = run.on(split)
    return (found.shown(site) or _no_score(run)) if site in found.sites else ""


def _mean(found: ChosenScores, *, names_sites: bool) -> str | None:
    """Return the mean of the reported scores, and how many or which sites' those are; None if none was reported."""
    over = ", ".join(found.reported) if names_sites else pluralize(len(found.reported), "site")
    return None if found.mean is None else f"{short(found.mean)} ({over})"


def _no_score(run: Summary) -> str:
    return NONE if run.aggregate is None else NOT_REPORTED.why


def _table(title: str, runs: Iterable[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    head = ["", f"## {title}", ""] if title else []
    return [*head, *table_lines(["", *runs], [[name, *values] for name, values in rows.items()])]


def _shown(value: Any) -> str:
    """Return a setting in a cell."""
    return ", ".join(map(str, value)) if isinstance(value, list) else "null" if value is None else str(value)
