"""A walk through a model, from its beginning to an end, or for as many steps as it may have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.model_check import director, hospital
from tests.model_check.explorer import beginning, steps
from tests.model_check.replay.compare import compare, compare_end
from tests.model_check.replay.play import OnDisk
from tests.model_check.replay.stubs import Clock, without_training
from tests.model_check.rules import Rules
from tests.model_check.state import State

LONGEST = 300  # steps, of each run
ACCIDENT = 0.05
ENDS = (0.001, 0.001, 0.001, 0.05)
LOOKS = (1.0, 1.0, 0.2)
"""How likely these steps are beside each other one: an accident; what ends the run, or a site's part in it; a look into
a folder. Of the last two each walk has one way or the other: in some much is ended early, or messages pile up.
"""

Step = tuple[str, bool, State]
"""What happens, whether it is an accident or a wish, and what is then there."""

_ENDING = ("the PI stops the run", "signs no consent", "poison", "has decided to withdraw")


class Walk:
    """One walk below ``home``.

    Args:
        rules: of the model; None: some of all.
        weigh: how likely a step is beside the others; None: as above.

    Attributes:
        told: the steps that were taken.
        been: the states that they led to.
        left_out: so many steps of the model could not be taken, for no daemon has them.
        has_ended: the run's end was reached.
    """

    def __init__(
        self, home: Path, rules: Rules | None, random: Random, weigh: Callable[[Step], float] | None = None
    ) -> None:
        self.rules = rules or some_rules(random)
        self.state = beginning(self.rules)
        self.told: list[str] = []
        self.left_out = 0
        self._random, self._clock = random, Clock()
        self._ends, self._looks = random.choice(ENDS), random.choice(LOOKS)
        self._weigh = weigh or self._weight
        self.been = {self.state}
        self._on_disk = OnDisk(home, self.rules, random, self._clock)

    def go(self) -> None:
        """Take steps at random.

        Raises:
            AssertionError: the daemons did otherwise than the model.
        """
        with without_training(self._clock):
            while not self.has_ended and len(self.told) < LONGEST * len(self.rules.runs):
                name, after = self._next()
                self.told.append(name)
                self._on_disk.play(name, self.state, after)
                self.state = after
                compare(self._on_disk.aggregator, self._on_disk.sites, after, self.rules)
            if self.has_ended:
                compare_end(self._on_disk.aggregator, self.state, self.rules)

    @property
    def has_ended(self) -> bool:
        """Whether the run is over, every folder says so, and every site has read it."""
        one, other = self.state.folders
        office = director.Office(self.state.director, (director.view_of(one), director.view_of(other)), self.rules)
        return (
            office.is_over
            and office.is_last
            and all(hospital.is_quiet(folder, self.rules) for folder in self.state.folders)
        )

    def _next(self) -> tuple[str, State]:
        """One of the steps that the daemons have: to where the walk has not been, if there is one."""
        every = list(steps(self.state, self.rules))
        found = [step for step in every if self._on_disk.can_play(step[0], self.state, step[2])]
        self.left_out += len(every) - len(found)
        new = [step for step in found if step[2] not in self.been] or found
        (chosen,) = self._random.choices(new, [self._weigh(step) for step in new])
        name, _, after = chosen
        self.been.add(after)
        return name, after

    def _weight(self, step: Step) -> float:
        name, is_accident, _ = step
        if any(what in name for what in _ENDING):
            return self._ends
        usual = self._looks if "folder-sync looks" in name else 1.0
        return usual * ACCIDENT if is_accident or "deadline" in name else usual


def some_rules(random: Random) -> Rules:
    """Some model of all, in which a run may start and end; each kind of accident is in two of three.

    Where a second run waits, as in half of those with one round, there are the accidents of the models that are
    explored with one.
    """
    has = [random.random() < 2 / 3 for _ in range(7)]
    sites = random.choice((1, 2, 2))
    quorum, rounds = random.choice((1, 2)) if sites == 2 else 1, random.choice((1, 2))
    queue = rounds == 1 and random.random() < 1 / 2
    return Rules(
        rounds=rounds,
        quorum=quorum,
        sites_per_round=random.choice((None, 1)) if quorum == 1 else None,
        sites=sites,
        poison=has[0] and not queue,
        rotations=has[1] and not queue,
        withdrawals=has[2],
        pauses=has[3] and not queue,
        stops=True,  # for which a run waits that has too few sites left
        deadlines=has[4] or sites == 1,  # until which a run waits for the other
        crashes=has[5] and not queue,
        trouble=has[6] and not queue,
        late_counts_next=rounds > 1,  # without two rounds that train there is no next
        queue=queue,
    )


def walked(seed: int, rules: Rules | None = None, weigh: Callable[[Step], float] | None = None) -> Walk:
    """Go one walk; ``rules`` and ``weigh`` as for ``Walk``.

    Raises:
        AssertionError: the daemons did otherwise than the model; with all that had happened.
    """
    with TemporaryDirectory() as home:
        walk = Walk(Path(home), rules, Random(seed), weigh)
        try:
            walk.go()
        except AssertionError as error:
            lines = [f"{number:4}  {name}" for number, name in enumerate(walk.told, 1)]
            raise AssertionError("\n".join([f"walk {seed} through {walk.rules}: {error}, after", *lines])) from error
    return walk
