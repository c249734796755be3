"""A real drop folder: a whole run of one training round, played through the two ends' own code, with tiny tensors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from aggregator.daemon import Daemon
from aggregator.folder_sync import FolderSync
from aggregator.setup import encryption_key, initialise
from aggregator.site import read_invite
from aggregator.store import RunStore
from shared.errors import DropfedError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.encryption import EncryptionKey
from shared.exchange.names import AGGREGATOR, Kind, MessageRef
from shared.exchange.order import ANSWERS_NEWEST
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Consent
from shared.exchange.records.tensors import Groups, Sharing, TensorList, TensorShape
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.records.wire import PLAIN, Encrypt, Wire
from shared.exchange.signing import SigningKey, canonical
from shared.exchange.tables import MetricsRow, write_metrics
from shared.exchange.trust import Peer
from shared.exchange.weights import write_tensors
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.learning.schedules import round_configuration
from site_client.configuration import read_configuration
from site_client.heartbeat import Heartbeat
from site_client.setup import join
from site_client.setup import read_invite as read_invite_file
from tests.federation.running import run_configuration

RUN = "octa-1"
TENSORS = TensorList(tensors={"a": TensorShape(dtype="F32", shape=[3, 2]), "b": TensorShape(dtype="F32", shape=[1])})


def scored_verdict(run: str, round_no: int, weight: str | None) -> Verdict:
    """On an answer of north that is accepted with this weight, or omitted."""
    return Verdict(
        run=run,
        round=round_no,
        site="north",
        status="accepted" if weight else "omitted",
        score="0.5",
        tolerance="0.1",
        theta=None,
        weight=weight,
        reason="as the test says",
    )


_HOURS = count(1)


def work_later(folder_sync: FolderSync) -> bool:
    """Have a folder-sync worker do what can be done an hour later: it listens to the site's heartbeat anew."""
    hours = next(_HOURS)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * hours)
    with patch("aggregator.folder_sync.time", clock):
        return folder_sync.work()


class Played:
    """Both ends of one folder below ``home``; the folder itself is ``drop``.

    Args:
        chosen: the model that the run ends with, where tiny tensors will not do.
    """

    def __init__(self, home: Path, chosen: Path | None = None) -> None:
        self.run = RUN
        self.chosen = chosen
        self.drop = home / "drop"
        self.drop.mkdir(parents=True)
        folder = LocalFolder(self.drop)
        work, north = home / "aggregator", home / "north"
        initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
        join(north, read_invite_file(work / "invites" / "north.json"), data={}, url=None, password=None)
        folder.create(names.SITE_CARD, (north / "mirror" / names.SITE_CARD).read_bytes())
        key = SigningKey.at(work / "signing.key")
        self._configuration = run_configuration(run=RUN, sites=["north"], quorum=1)
        self.stop = threading.Event()
        site = FolderSync(
            work / "sites" / "north",
            folder,
            invite=read_invite(work, "north"),
            key=key,
            encryption_key=encryption_key(work),
            stop=self.stop,
            longest_interval_s=0.01,
            on_news=lambda: None,
        )
        assert site.work()
        assert site.channel is not None
        self.folder_sync = site
        self.trouble = work / "sites" / "north" / "trouble.txt"
        self.card_digest = site.card_digest
        self.aggregator_key = key.public
        self.aggregator = site.channel
        own_key = SigningKey.at(north / "signing.key")
        peer = Peer("retina", "north", AGGREGATOR, key.public)
        (north / "mirror" / names.FEDERATION).write_bytes((self.drop / names.FEDERATION).read_bytes())
        own_encryption_key = EncryptionKey.at(north / "encryption.key")
        self.site = Channel(north, folder, me="north", key=own_key, peer=peer, encryption_key=own_encryption_key)
        self.heartbeat = Heartbeat(north, read_configuration(north), folder, own_key)
        self._models = home
        self._took_part: dict[str, list[str]] = {}

    def send(self, kind: Kind, round_no: int, files: dict[str, bytes | Path], answered: Kind | None) -> None:
        """One side signs and publishes a message, the other accepts it, and the site's heart beats."""
        ref = MessageRef(kind, self.run, round_no)
        sender, reader = (self.site, self.aggregator) if ref.is_from_site else (self.aggregator, self.site)
        of_round = round_no if answered in ("round", "update") else 0
        message = reader.ledger.message(MessageRef(answered, self.run, of_round)) if answered else None
        if kind in ANSWERS_NEWEST:
            message = self.aggregator.ledger.last_from_peer()
        in_reply_to = message.digest if message else self.card_digest
        sender.outbox.sign(ref, files, in_reply_to=in_reply_to)
        sender.outbox.publish()
        manifest = reader.inbox.notice(ref)
        assert manifest is not None
        assert reader.inbox.fetch(ref, manifest, answers=(in_reply_to,), max_weights_bytes=1 << 20) is not None
        reader.ledger.flush()  # others read it from the disk
        self.beat()

    def sign_and_publish(
        self,
        kind: Kind,
        round_no: int,
        files: dict[str, bytes | Path],
        *,
        answers_nothing: bool = False,
        wire: Wire = PLAIN,
    ) -> MessageRef:
        """One side puts a message into the folder; the other has not looked yet."""
        ref = MessageRef(kind, self.run, round_no)
        sender = self.site if ref.is_from_site else self.aggregator
        answered = sender.ledger.message(ref.answers) if ref.answers else self.aggregator.ledger.last_from_peer()
        sender.outbox.sign(
            ref, files, in_reply_to=answered.digest if answered and not answers_nothing else None, wire=wire
        )
        sender.outbox.publish()
        return ref

    def beat(self, trouble: DropfedError | None = None) -> None:
        """The site says where it stands."""
        self.heartbeat.note_trouble(trouble)
        self.heartbeat.beat("waiting", self.site, now=True)

    def model(self, value: float) -> Path:
        path = self._models / f"model-{value}.safetensors"
        write_tensors(path, TENSORS, lambda name: np.full(TENSORS.tensors[name].shape, value, dtype=np.float32))
        return path

    def offer_and_consent(
        self,
        keep: str = "all",
        wire: Wire = PLAIN,
        groups: Mapping[str, Groups] | None = None,
        rounds: int = 3,
        encrypt: Encrypt = "none",
        **settings: object,
    ) -> None:
        """As for ``offer``, and the site says yes."""
        self.offer(keep, wire, groups, rounds, encrypt, **settings)
        consent = Consent(run=self.run, agrees=True, reason="yes", images={"train": "12", "validation": "10"})
        self.send("consent", 0, {names.CONSENT: canonical(consent.model_dump())}, "offer")

    def offer(
        self,
        keep: str = "all",
        wire: Wire = PLAIN,
        groups: Mapping[str, Groups] | None = None,
        rounds: int = 3,
        encrypt: Encrypt = "none",
        **besides: object,
    ) -> None:
        """
        Args:
            groups: what travels beside the model, by the part of ``tensors.yaml``.
            besides: other settings of the run.
        """
        self._took_part = {}
        settings = {"rounds": rounds, "keep": keep, "wire": wire, "encrypt": encrypt}
        self.send("offer", 0, self.to_offer(groups, **settings | besides), None)

    def to_offer(self, groups: Mapping[str, Groups] | None = None, **settings: object) -> dict[str, bytes | Path]:
        """Return the files of an offer; arguments as for ``offer``."""
        sharing = Sharing(tensors=TENSORS.tensors, start={}, personal=[], **(groups or {}))
        own: dict[str, object] = {"run": self.run, "sites": ["north"], "quorum": 1}
        self._configuration = run_configuration(**own | settings)
        return {names.RUN_CONFIGURATION: dump_yaml(self._configuration), names.TENSORS: dump_yaml(sharing)}

    def round(
        self,
        round_no: int,
        trains: bool,
        to_site: Sequence[str] = (),
        from_site: Sequence[str] = (),
        score: str = "0.9",
    ) -> None:
        """
        Args:
            to_site: groups that come beside the model.
            from_site: groups that leave beside it.
        """
        self.send("round", round_no, self.to_site(round_no, to_site), "consent")
        self.send("update", round_no, self.from_site(round_no, trains, from_site), "round")
        self._took_part[str(round_no)] = ["north"] if trains else []
        verdict = Verdict(
            run=self.run,
            round=round_no,
            site="north",
            status="accepted" if trains else "validated",
            score=score if trains else None,
            tolerance="0.01",
            theta=None,
            weight="1.0" if trains else None,
            reason="ok",
        )
        self.send("verdict", round_no, {names.VERDICT: canonical(verdict.model_dump())}, "update")

    def to_site(self, round_no: int, groups: Sequence[str] = ()) -> dict[str, bytes | Path]:
        """The payloads of a round."""
        configuration = round_configuration(self._configuration, round_no, "north")
        return {
            names.ROUND_CONFIGURATION: dump_yaml(configuration),
            names.GLOBAL_MODEL: self.model(0.5 if round_no == 1 else 0.25),
            **{names.state_file(group): self.model(0.0) for group in groups},
        }

    def from_site(self, round_no: int, trains: bool, groups: Sequence[str] = ()) -> dict[str, bytes | Path]:
        """The payloads of its answer. The untrained model it tells nothing of, the others are equally good."""
        rate = round_configuration(self._configuration, round_no, "north").learning_rate
        score = None if round_no == 1 else 0.5
        row = MetricsRow(round_no, 0, "validation", "10", rate, 0.5, {"dice_mean": score, "dice_std": 0.1})
        model = {names.SITE_MODEL: self.model(0.25)} if trains else {}
        state = {names.state_file(group): self.model(0.125) for group in groups}
        return {names.METRICS: write_metrics([row]), **model, **state}

    def finish(self) -> None:
        card = FinalCard(
            run=self.run,
            task=self._configuration.task,
            method=self._configuration.method,
            chosen_round=1,
            score_name="dice_mean",
            validation={str(int(number) - 1): "0.5" for number in self._took_part if number != "1"},
            took_part=self._took_part,
            reason="best",
        )
        self.send(
            "final",
            0,
            {names.CARD: canonical(card.model_dump()), names.FINAL_MODEL: self.chosen or self.model(0.25)},
            "consent",
        )


def begun(run: Played) -> RunStore:
    """Begin, at the aggregator, a run of one round with two sites of which one never joins."""
    store = RunStore(run.drop.parent / "aggregator", RUN)
    configuration = run_configuration(run=RUN, sites=["north", "south"], quorum=1, rounds=1)
    store.begin(configuration, Sharing(tensors=TENSORS.tensors, start={}, personal=[]))
    return store


def ended_run(
    home: Path, encrypt: Encrypt = "none", chosen: tuple[Sharing, Path] | None = None, **settings: object
) -> tuple[Played, RunStore]:
    """A run that has ended, as the aggregator remembers it too; of its two sites one never joined.

    Args:
        chosen: the model that it ends with, and what its run shares, where tiny tensors will not do.
        settings: others of the run.
    """
    played, store = Played(home, chosen[1] if chosen else None), RunStore(home / "aggregator", RUN)
    sharing = chosen[0] if chosen else Sharing(tensors=TENSORS.tensors, start={}, personal=["head.weight"])
    run = run_configuration(**({"run": RUN, "sites": ["north", "south"], "quorum": 1} | settings), encrypt=encrypt)
    store.begin(run, sharing)
    played.offer_and_consent(encrypt=encrypt, **settings)
    for round_no, trains in ((1, True), (2, False)):
        store.ask(round_no, ("north",), ("north",))
        played.round(round_no, trains)
        verdict = Verdict(
            run=RUN,
            round=round_no,
            site="north",
            status="accepted" if trains else "validated",
            score="0.9" if trains else None,
            tolerance="0.3",
            theta="0.25",
            weight="1.0" if trains else None,
            reason="",
        )
        store.close_round(round_no, {"north": verdict})
    played.finish()
    write_file(store.final_model, (played.chosen or played.model(0.25)).read_bytes())
    card = FinalCard(
        run=RUN,
        task=run.task,
        method=run.method,
        chosen_round=1,
        score_name="dice_mean",
        validation={"1": "0.5"},
        took_part={"1": ["north"], "2": []},
        reason="best | of all",
    )
    store.write_card(card)
    return played, store


def daemon_of(
    run: Played, store: RunStore, *waiting: RunStore, others_wait: Callable[[], bool] = lambda: False
) -> Daemon:
    """The aggregator's daemon over a played run's one site, without what rounds are computed with."""
    nothing: Any = None
    return Daemon(
        store,
        [run.folder_sync],
        work=nothing,
        in_turn=False,
        score_name="",
        stop=run.stop,
        news=threading.Event(),
        waiting=lambda: waiting,
        others_wait=others_wait,
    )
