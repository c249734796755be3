"""A run played step by step on files: the aggregator's own daemon and folder-sync workers, and two played sites.

Nothing runs by itself: each step is a call. What the files hold at any moment is what a process that dies leaves.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from aggregator import rounds
from aggregator.daemon import Daemon
from aggregator.facts import awaited
from aggregator.folder_sync import FolderSync
from aggregator.model_work import Here
from aggregator.setup import initialise
from aggregator.site import read_invite
from aggregator.store import RunStore
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.records.answers import Consent, Withdrawal
from shared.exchange.records.tensors import Sharing
from shared.exchange.signing import KEY_FILE, SigningKey, canonical, digest_of
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.trust import Peer
from shared.exchange.weights import write_tensors
from shared.folder.local import LocalFolder
from shared.learning.aggregation import Aggregation
from shared.learning.methods import open_method
from shared.learning.methods.contract import Groups
from shared.learning.round_engine import RoundEngine
from site_client.configuration import read_configuration
from site_client.facts import may_answer
from site_client.heartbeat import Heartbeat
from site_client.setup import join
from site_client.setup import read_invite as read_invite_file
from tests.federation.running import run_configuration
from tests.played import RUN, TENSORS, work_later

SITES = ("north", "south")
ENDS = (MessageRef("final", RUN), MessageRef("abort", RUN))
Habit = Literal["accepted", "omitted", "refused", "silent", "declines"]


class Network(nn.Module):
    """What ``TENSORS`` lists."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3, 2))
        self.b = nn.Parameter(torch.zeros(1))


class HeldOut:
    """In place of held-out images: a model scores what its last number says."""

    def score(self, file: Path, shown_as: str) -> float:
        return 0.0 if file.read_bytes().endswith(b"\0\0\0\0") else 0.9


class Staged:
    """A federation below ``home``, where the run is begun and nobody is asked yet.

    Args:
        habits: what becomes of each site's answers.
        rounds: that train; one more closes the run.
        changes: further settings of the run.
    """

    def __init__(self, home: Path, habits: dict[str, Habit], rounds: int, quorum: int = 1, **changes: object) -> None:
        self.work = home / "aggregator"
        self.drops = {site: home / "drops" / site for site in SITES}
        urls = {site: f"http://127.0.0.1/{site}/" for site in SITES}
        initialise(self.work, "retina", urls, AGGREGATOR)
        self.sites = {site: StagedSite(home, site, habits[site]) for site in SITES}
        self.store = RunStore(self.work, RUN)
        own: dict[str, object] = {
            "run": RUN,
            "sites": list(SITES),
            "quorum": quorum,
            "rounds": rounds,
            "tolerance": 0.3,
        }
        run = run_configuration(**(own | changes))
        self.store.begin(run, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
        self.restart()
        self._aggregation().begin(Network())

    def restart(self) -> None:
        """Begin anew with what the files say, as a daemon that is started does."""
        stop, self._run = threading.Event(), self.store.configuration()
        key = SigningKey.at(self.work / KEY_FILE)
        self.folder_syncs = {
            site: FolderSync(
                self.work / "sites" / site,
                LocalFolder(self.drops[site]),
                invite=read_invite(self.work, site),
                key=key,
                encryption_key=None,
                stop=stop,
                longest_interval_s=0.01,
                on_news=lambda: None,
            )
            for site in SITES
        }
        heldout: Any = HeldOut()
        self.daemon = Daemon(
            self.store,
            list(self.folder_syncs.values()),
            work=Here(RoundEngine(self.store, open_method("mean", {}), self._aggregation()), heldout),
            in_turn=False,
            score_name="dice_mean",
            stop=stop,
            news=threading.Event(),
        )

    def _aggregation(self) -> Aggregation:
        return Aggregation(self.store, open_method("mean", {}), Groups())

    def decide(self) -> list[rounds.Action]:
        """What the daemon would do now."""
        return rounds.decide(self.daemon._facts())

    def aggregator_acts(self) -> None:
        """Do all that can be done now."""
        for action in self.decide():
            self.daemon._act(action)

    def folder_sync_works(self, site: str) -> None:
        """One look into a site's folder."""
        folder_sync = self.folder_syncs[site]
        if folder_sync.channel is not None:
            folder_sync.attend(awaited(folder_sync.channel.ledger, RUN, self.store.round_no))
        work_later(folder_sync)
        if folder_sync.channel is not None:
            folder_sync.channel.ledger.flush()  # others read it from the disk

    @property
    def is_over(self) -> bool:
        return self.daemon._is_over()


class StagedSite:
    """A site's end of its folder."""

    def __init__(self, home: Path, name: str, habit: Habit) -> None:
        self.name, self.habit = name, habit
        self.home, drop = home / name, home / "drops" / name
        drop.mkdir(parents=True)
        self.folder = LocalFolder(drop)
        invite = read_invite_file(home / "aggregator" / "invites" / f"{name}.json")
        join(self.home, invite, data={}, url=None, password=None)
        self.card = (self.home / "mirror" / names.SITE_CARD).read_bytes()
        self.folder.create(names.SITE_CARD, self.card)
        key = SigningKey.at(self.home / "signing.key")
        peer = Peer("retina", name, AGGREGATOR, invite.aggregator_key)
        self.channel = Channel(self.home, self.folder, me=name, key=key, peer=peer, encryption_key=None)
        self.heartbeat = Heartbeat(self.home, read_configuration(self.home), self.folder, key)

    def acts(self) -> None:
        """Take one message that has come, or else give one answer that is owed."""
        for ref in self._refs():
            if self.channel.ledger.message(ref) is None and (manifest := self.channel.inbox.notice(ref)) is not None:
                answers = may_answer(self.channel.ledger, ref, digest_of(self.card))
                message = self.channel.inbox.fetch(ref, manifest, answers=answers, max_weights_bytes=1 << 20)
                assert message is not None
                self.channel.ledger.flush()  # others read it from the disk
                self.heartbeat.beat("training", self.channel, percent=40, now=True)
                return
        owed = next((ref for ref in self._owed() if self.channel.ledger.message(ref) is None), None)
        if owed is None:
            return
        answered = self.channel.ledger.message(owed.answers) if owed.answers else None
        is_refused = self.habit == "refused" and owed.kind == "update"
        in_reply_to = answered.digest if answered and not is_refused else None
        self.channel.outbox.sign(owed, self._files(owed), in_reply_to=in_reply_to)
        self.channel.outbox.publish()
        self.heartbeat.beat("waiting", self.channel, now=True)

    def withdraws(self) -> None:
        """Leave the run, if it is one to leave: agreed to, and not over."""
        is_over = any(self.channel.ledger.message(end) for end in ENDS)
        if self.channel.ledger.message(MessageRef("consent", RUN)) is None or self.habit == "declines" or is_over:
            return
        offer, ref = self.channel.ledger.message(MessageRef("offer", RUN)), MessageRef("withdrawal", RUN)
        assert offer is not None
        record = Withdrawal(run=RUN, reason="as the test says")
        self.channel.outbox.sign(ref, {names.WITHDRAWAL: canonical(record.model_dump())}, in_reply_to=offer.digest)
        self.channel.outbox.publish()

    def _rounds(self) -> list[int]:
        sent = (round_no for round_no in range(1, 9) if self.channel.ledger.message(MessageRef("round", RUN, round_no)))
        return list(sent)

    def _refs(self) -> list[MessageRef]:
        newest = max(self._rounds(), default=0)
        of_rounds = (MessageRef(kind, RUN, number) for number in range(1, newest + 2) for kind in ("round", "verdict"))
        return [MessageRef("offer", RUN), *of_rounds, MessageRef("final", RUN), MessageRef("abort", RUN)]  # type: ignore[list-item]

    def _owed(self) -> list[MessageRef]:
        """Answers that this site gives, in order."""
        if self.channel.ledger.message(MessageRef("offer", RUN)) is None or self.channel.ledger.message(
            MessageRef("withdrawal", RUN)
        ):
            return []
        consent = MessageRef("consent", RUN)
        if self.habit == "silent" or any(self.channel.ledger.message(end) for end in ENDS):
            return [consent]
        return [consent, *(MessageRef("update", RUN, round_no) for round_no in self._rounds())]

    def _files(self, ref: MessageRef) -> dict[str, bytes | Path]:
        if ref.kind == "consent":
            agrees = self.habit != "declines"
            images: Any = {"train": "12"} if agrees else {}
            consent = Consent(run=RUN, agrees=agrees, reason="as the test says", images=images)
            return {names.CONSENT: canonical(consent.model_dump())}
        scores: dict[str, float | None] = {"dice_mean": 0.5, "dice_std": 0.1}
        row = MetricsRow(ref.round_no, 0, "validation", "10", 0.1, 0.5, scores)
        files: dict[str, bytes | Path] = {names.METRICS: write_metrics([row])}
        text = self.channel.ledger.path(MessageRef("round", RUN, ref.round_no), names.ROUND_CONFIGURATION).read_text()
        if "epochs: 0" not in text:
            model, value = self.home / "model.safetensors", 0.0 if self.habit == "omitted" else 0.25
            write_tensors(model, TENSORS, lambda name: torch.full(TENSORS.tensors[name].shape, value).numpy())
            files[names.SITE_MODEL] = model
        return files
