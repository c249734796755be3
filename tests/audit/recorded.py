"""A whole run in real folders without daemons or training: sites send what they are told to, and an aggregator's own
code decides about it and combines it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
from torch import nn

from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.encoding import decode, encode
from shared.exchange.names import AGGREGATOR, Kind, MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.readme import README_TEXT
from shared.exchange.records.answers import Consent
from shared.exchange.records.messages import Federation, Head, Manifest, SiteCard, Status
from shared.exchange.records.run import BelowLast, RunConfiguration
from shared.exchange.records.tensors import TensorList
from shared.exchange.records.values import now_text
from shared.exchange.records.verdicts import Verdict
from shared.exchange.records.wire import PLAIN, FileEntry
from shared.exchange.signing import SigningKey, canonical, digest_of
from shared.exchange.tables import MetricsRow, read_metrics, write_metrics
from shared.exchange.trust import Message
from shared.exchange.weights import TensorFile, entry_of, write_tensors
from shared.learning.aggregation import Aggregation, Update
from shared.learning.answers import ClosedRound, decide, limit_below, without_spoilers
from shared.learning.choice import choose
from shared.learning.late import move_on
from shared.learning.methods import open_method
from shared.learning.methods.contract import MODEL
from shared.learning.methods.scaffold import CONTROL
from shared.learning.model_files import round_tensors
from shared.learning.round_engine import given_weights
from shared.learning.run_files import Late, Scored
from shared.learning.schedules import round_configuration
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import task_named

FEDERATION = "retina"
SCORE, LAST = 0.75, 0.8


class Recorded:
    """The run as it is played; ``folders`` holds a drop folder of each site.

    Args:
        verdict: changes a verdict before it is signed, as an aggregator that lies would.
        aggregate: changes the next global model, likewise; a path of a plain file.
        agree_late: sites that agree only after the first round.
        late: answers that come only once their round is closed, each by its site and round.
    """

    def __init__(
        self,
        home: Path,
        run: RunConfiguration,
        *,
        verdict: Callable[[Verdict], Verdict] = lambda verdict: verdict,
        aggregate: Callable[[Path], None] = lambda path: None,
        agree_late: Collection[str] = (),
        late: Collection[tuple[str, int]] = (),
    ) -> None:
        self.home, self.run, self.folders = home, run, home / "folders"
        self._verdict, self._aggregate, self._agree_late, self._late = verdict, aggregate, agree_late, late
        self._came_late: dict[str, Path] = {}
        task, self._method = task_named(run.task), open_method(run.method, run.method_options)
        self._network: nn.Module = build_network(
            task, self._method, task.options(run.task_options), 2, run_seed=run.seed
        )
        self._listed = sharing(task, self._method, self._network)
        round_tensors(self._network, self._listed.shared, run.wire.numbers)
        self.store = RunStore(home / "work", run.run)
        self.store.begin(run, self._listed)
        self._aggregation = Aggregation(self.store, self._method, self._method.groups(self._network, self._listed))
        self._aggregation.begin(self._network)
        self._score_name = task.selection_score
        self.keys = {AGGREGATOR: SigningKey(b"\x01" * 32)}
        self.messages: dict[tuple[str, MessageRef], Message] = {}
        for number, site in enumerate(run.sites, 2):
            self._enrol(number, site)
        self._tables: dict[int, dict[str, list[MetricsRow]]] = {}
        self._verdicts: dict[int, dict[str, Verdict]] = {}

    def _enrol(self, number: int, site: str) -> None:
        drop = self.folders / site
        drop.mkdir(parents=True)
        key, readme = SigningKey(bytes([number]) * 32), README_TEXT
        card = SiteCard(
            federation=FEDERATION, site=site, key=key.public, software="dropfed", enrolment="0" * 64, created=now_text()
        )
        federation = Federation(
            federation=FEDERATION,
            site=site,
            aggregator_key=self.keys[AGGREGATOR].public,
            site_key=key.public,
            created=now_text(),
            files={names.README: FileEntry(size=len(readme), sha256=digest_of(readme))},
        )
        (drop / names.SITE_CARD).write_bytes(key.sign(card.model_dump()))
        (drop / names.FEDERATION).write_bytes(self.keys[AGGREGATOR].sign(federation.model_dump()))
        (drop / names.README).write_bytes(readme)
        self.keys[site] = key

    def play(self) -> Recorded:
        """All of it, to the final model."""
        for site in self.run.sites:
            self.send(site, MessageRef("offer", self.run.run), self.store.offer_files(self.run, self.store.sharing()))
        for site in self.run.sites:
            if site not in self._agree_late:
                self._consent(site)
        for number in range(1, self.run.rounds + 2):
            self._round(number)
            if number == 1:
                for site in self._agree_late:
                    self._consent(site)
        kept = range(self.run.rounds + 1)
        card = choose(
            self.run, self._tables, self._verdicts, kept=kept, score_name=self._score_name, ended="",
            in_turn=self._method.in_turn,
        )  # fmt: skip
        self._aggregation.choose(card.chosen_round)
        self.store.write_card(card)
        for site in self.run.sites:
            self.send(site, MessageRef("final", self.run.run), self.store.final_files(site))
        return self

    def beat(self, site: str) -> None:
        """A site says where it stands: at the newest messages of both sides."""
        heads = {site: Head(), AGGREGATOR: Head()}
        for (whose, _), message in self.messages.items():
            if whose == site:
                heads[message.manifest.sender] = message.head
        status = Status(
            federation=FEDERATION,
            site=site,
            time=now_text(),
            phase="waiting",
            run=None,
            round=0,
            progress_percent=0,
            trouble=None,
            own_head=heads[site],
            aggregator_head=heads[AGGREGATOR],
        )
        (self.folders / site / names.STATUS).write_bytes(self.keys[site].sign(status.model_dump()))

    def _consent(self, site: str) -> None:
        images = {"train": str(20 + 10 * self.run.sites.index(site)), "validation": "10"}
        consent = Consent(run=self.run.run, agrees=True, reason="", images=images)
        self.send(site, MessageRef("consent", self.run.run), {names.CONSENT: canonical(consent.model_dump())})

    def send(self, site: str, ref: MessageRef, files: dict[str, bytes | Path]) -> None:
        """Put a message into a folder, as its sender does."""
        sender = site if ref.is_from_site else AGGREGATOR
        sent = [message for message in self.messages.values() if message.manifest.site == site]
        read = [message for message in sent if message.ref.is_from_site]
        answered: str | None
        if ref.answers:
            answers = self.messages.get((site, ref.answers))
            answered = answers.digest if answers else None
        elif read:
            answered = read[-1].digest
        else:
            answered = digest_of((self.folders / site / names.SITE_CARD).read_bytes())
        before = [message for message in sent if message.manifest.sender == sender]
        target = self.folders / site / ref.path
        target.mkdir(parents=True)
        entries = {}
        for name, content in files.items():
            if isinstance(content, Path):
                shutil.copyfile(content, target / name)
            else:
                (target / name).write_bytes(content)
            entries[name] = entry_of(target / name).model_copy(update={"wire": self.run.wire.of(ref.kind, name)})
        manifest = Manifest(
            kind=ref.kind,
            federation=FEDERATION,
            site=site,
            sender=sender,
            run=ref.run,
            round=ref.round_no,
            seq=len(before) + 1,
            previous=before[-1].digest if before else None,
            in_reply_to=answered,
            created=now_text(),
            files=entries,
        )
        self.sign(site, ref, manifest)

    def sign(self, site: str, ref: MessageRef, manifest: Manifest) -> None:
        """Sign a manifest in its sender's name."""
        content = self.keys[manifest.sender].sign(manifest.model_dump())
        (self.folders / site / ref.manifest).write_bytes(content)
        self.messages[site, ref] = Message(ref, manifest, digest_of(content))

    def _round(self, number: int) -> None:
        run, trains = self.run, number <= self.run.rounds
        asked = tuple(site for site in run.sites if number > 1 or site not in self._agree_late)
        self.store.ask(number, asked, asked)
        answers: dict[str, Update] = {}
        scored: dict[str, Scored | None] = {}
        late: dict[str, Late] = {}
        for site in asked:
            self._ask(site, number)
            if (site, number) not in self._late:
                answers[site], scored[site] = self._answer(site, number, trains=trains)
                continue
            scored[site] = None
            if run.late and trains and site in self._came_late:
                answers[site], late[site] = self._counted_late(site, number)
        self._came_late.clear()
        closed = ClosedRound(number, scored, self._limit(trains=trains), answers.__getitem__, late=late)
        decided = decide(run, without_spoilers(run, closed, self._aggregation), self._aggregation)
        self._verdicts[number] = {site: self._verdict(verdict) for site, verdict in decided.items()}
        told = given_weights(self._verdicts[number])
        weights = {site: weight for site, weight in told.items() if site in answers}
        if trains and weights:
            self._aggregation.aggregate(number, {site: answers[site] for site in weights}, weights)
            self._aggregate(self.store.aggregate_path(number))
        elif trains:
            self._aggregation.leave(number)
        for site, verdict in self._verdicts[number].items():
            self.send(site, MessageRef("verdict", run.run, number), {names.VERDICT: canonical(verdict.model_dump())})
            if (site, number) in self._late:
                self._came_late[site] = self._answer(site, number, trains=trains)[0].files[MODEL]

    def _counted_late(self, site: str, number: int) -> tuple[Update, Late]:
        """Have an answer to the round before count in this one."""
        base, now = (self.store.aggregate_path(aggregate) for aggregate in (number - 2, number - 1))
        moved, update = self.store.late_path(number, site), MessageRef("update", self.run.run, number - 1)
        move_on(self._came_late[site], base, now, self._listed, moved, shown_as=site)
        scored = Scored(score=str(SCORE), theta=None, reason="")
        images = 20 + 10 * self.run.sites.index(site)
        return Update({MODEL: moved}, images), Late(update=self.messages[site, update].digest, scored=scored)

    def _limit(self, *, trains: bool) -> float | None:
        """What a score must exceed; of an aggregate, ``LAST`` is the score."""
        tolerance = self.run.tolerance
        if not isinstance(tolerance, BelowLast):
            return tolerance
        return limit_below(LAST, tolerance) if trains else None

    def _ask(self, site: str, number: int) -> None:
        """One site gets a round."""
        run, aggregate = self.run, self.store.aggregate_for(number - 1, site)
        to_site: dict[str, bytes | Path] = {
            names.ROUND_CONFIGURATION: dump_yaml(round_configuration(run, number, site)),
            names.GLOBAL_MODEL: self._encoded(aggregate, "round", names.GLOBAL_MODEL, None),
        }
        for group in self._listed.to_site:
            to_site[names.state_file(group)] = self.store.state_path(number - 1, group)
        self.send(site, MessageRef("round", run.run, number), to_site)

    def _answer(self, site: str, number: int, *, trains: bool) -> tuple[Update, Scored]:
        """It answers: every tensor moved by a draw of its own."""
        run, aggregate = self.run, self.store.aggregate_for(number - 1, site)
        rate = round_configuration(run, number, site).learning_rate
        row = MetricsRow(number, 0, "validation", "10", rate, 0.5, {self._score_name: 0.5 + 0.01 * number})
        table = write_metrics([row])
        from_site: dict[str, bytes | Path] = {names.METRICS: table}
        files: dict[str, Path] = {}
        if trains:
            plain = files[MODEL] = self.home / "made" / f"{number}-{site}.safetensors"
            random = np.random.default_rng([number, run.sites.index(site)])
            write_tensors(plain, self._listed.shared, lambda name: _moved(aggregate, name, random))
            from_site[names.SITE_MODEL] = self._encoded(plain, "update", names.SITE_MODEL, aggregate)
            files[MODEL] = self._decoded(from_site[names.SITE_MODEL], aggregate)
        for group, tensors in self._listed.groups("update", trains=trains).items():
            listed = TensorList(tensors=tensors)
            path = files[group] = self.home / "made" / f"{number}-{site}-{group}.safetensors"
            if group == CONTROL:
                control = self.store.state_path(number - 1, group)
                self._write_control(path, listed, before=aggregate, control=control, trained=files[MODEL])
            else:
                random = np.random.default_rng([number, run.sites.index(site), 7])
                write_tensors(path, listed, lambda name, listed=listed, random=random: _drawn(listed, name, random))  # type: ignore[misc]
            from_site[names.state_file(group)] = path
        self.send(site, MessageRef("update", run.run, number), from_site)
        self._tables.setdefault(number, {})[site] = read_metrics(table, names.METRICS)
        score = str(SCORE) if trains else None
        return Update(files, 20 + 10 * run.sites.index(site)), Scored(score=score, theta=None, reason="")

    def _write_control(self, path: Path, listed: TensorList, *, before: Path, control: Path, trained: Path) -> None:
        """How a control variate has changed, as after four steps of SGD."""
        w, x, c = TensorFile(before), TensorFile(trained), TensorFile(control)
        steps = 4 * self.run.learning_rate.initial
        write_tensors(path, listed, lambda name: (w.tensor(name) - x.tensor(name)) / np.float32(steps) - c.tensor(name))

    def _encoded(self, plain: Path, kind: Kind, name: str, received: Path | None) -> Path:
        wire = self.run.wire.of(kind, name)
        if wire == PLAIN:
            return plain
        target = self.home / "made" / f"encoded-{digest_of(str(plain).encode())[:8]}.safetensors"
        encode(plain, target, self._listed.shared, wire, received)
        return target

    def _decoded(self, sent: bytes | Path, received: Path) -> Path:
        assert isinstance(sent, Path)
        if self.run.wire == PLAIN:
            return sent
        target = sent.with_suffix(".decoded")
        decode(sent, target, self._listed.shared, self.run.wire, received, shown_as=sent.name)
        return target


def _moved(aggregate: Path, name: str, random: np.random.Generator) -> np.ndarray:
    """What a site makes of what it received; a variance stays above 0."""
    assert name in TensorFile(aggregate).names
    received = TensorFile(aggregate).tensor(name)
    return np.abs(received + random.normal(0, 0.01, received.shape)).astype(np.float32)


def _drawn(listed: TensorList, name: str, random: np.random.Generator) -> np.ndarray:
    return random.normal(0, 0.01, listed.tensors[name].shape).astype(np.float32)
