"""One hospital on this disk: its real daemon, run by hand, and an aggregator played by the test. Nothing waits."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
import yaml

from aggregator.folder_sync import FolderSync
from aggregator.setup import encryption_key, initialise
from aggregator.site import read_invite
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, MessageRef
from shared.exchange.order import ending_of
from shared.exchange.reading import dump_yaml
from shared.exchange.records.answers import Abort
from shared.exchange.records.run import RunConfiguration
from shared.exchange.records.verdicts import FinalCard, Verdict
from shared.exchange.signing import SigningKey, canonical
from shared.folder.contract import Entry
from shared.folder.durable import write_file
from shared.folder.local import LocalFolder
from shared.folder.meter import Direction
from shared.learning.methods import open_method
from shared.learning.model_files import save_tensors
from shared.learning.schedules import round_configuration
from shared.learning.seeds import no_secret
from shared.learning.sharing import build_network, sharing
from shared.learning.tasks import TERMS, task_named
from site_client.configuration import Policy, read_configuration
from site_client.daemon import Daemon
from site_client.division import place
from site_client.setup import join
from site_client.setup import read_invite as read_invite_file
from tests.federation.running import POLICY, TASK, TINY, WAIT_S, run_configuration
from tests.played import work_later


class Watched(LocalFolder):
    """A folder that notes the phases of its site's heartbeat, and counts all else that is asked of it.

    ``on_model`` is called where a real folder asks for its permit: while a model is on its way.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.phases: list[str] = []
        self.requests = 0
        self.on_heartbeat: Callable[[dict[str, object]], None] = lambda _: None
        self.on_model: Callable[[Direction], None] = lambda _: None

    def overwrite(self, path: str, content: bytes) -> None:
        super().overwrite(path, content)
        status = json.loads(content)["body"]
        self.phases.append(status["phase"])
        self.on_heartbeat(status)

    def upload(self, path: str, source: Path, *, sha256: str | None = None) -> None:
        if source.suffix == ".safetensors":
            self.on_model("up")
        super().upload(path, source, sha256=sha256)

    def download(self, path: str, target: Path, *, size: int) -> str:
        if target.suffix == ".safetensors":
            self.on_model("down")
        return super().download(path, target, size=size)

    def read(self, path: str, *, max_bytes: int) -> bytes:
        self.requests += 1
        return super().read(path, max_bytes=max_bytes)

    def list(self, path: str) -> list[Entry]:
        self.requests += 1
        return super().list(path)

    def create(self, path: str, content: bytes) -> None:
        self.requests += 1
        super().create(path, content)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as the daemon's process does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Hospital:
    """Site ``north`` below ``home``. Its daemon acts when told to ``live``; the aggregator when told what to send.

    Args:
        data: the hospital's images for the task.
        task: what runs are of; a plug-in's may stand in for the usual one, if its network is the same.
    """

    def __init__(self, home: Path, data: Path, *, task: str = TASK) -> None:
        self.home, self.work, self.data = home, home / "north", data
        self.drop = home / "drop"
        self.drop.mkdir(parents=True)
        self.folder = Watched(self.drop)
        self.daemon: Daemon
        self.task = task if task in TERMS else TASK
        aggregator = home / "aggregator"
        initialise(aggregator, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
        invite = read_invite_file(aggregator / "invites" / "north.json")
        join(self.work, invite, data={task: str(data)}, url=None, password=None)
        self.set_policy(POLICY)
        place(self.work, no_secret(7, "north"))
        self.live()
        self.site = self.launched()
        assert self.site.work()  # enrols it

    @property
    def channel(self) -> Channel:
        """The aggregator's end."""
        assert self.site.channel is not None
        return self.site.channel

    def set_policy(self, policy: Policy) -> None:
        path = self.work / "site.yaml"
        values = yaml.safe_load(path.read_bytes())
        write_file(path, yaml.safe_dump(values | {"policy": policy.model_dump()}).encode())

    def live(self) -> None:
        """Start the daemon, let it do what there is to do, and end it."""
        configuration, stop = read_configuration(self.work), threading.Event()
        with _one_thread():
            self.daemon = Daemon(self.work, configuration, self.folder, stop=stop, give_up_after_s=0)
            self.daemon.run(once=True)

    @contextmanager
    def living(self) -> Iterator[None]:
        """Have the daemon at work while the block runs."""
        configuration, stop = read_configuration(self.work), threading.Event()
        configuration = configuration.model_copy(update={"poll_seconds": 0.1})
        daemon = threading.Thread(target=Daemon(self.work, configuration, self.folder, stop=stop).run, daemon=True)
        with _one_thread():
            daemon.start()
            try:
                yield
            finally:
                stop.set()
                daemon.join(WAIT_S)
        assert not daemon.is_alive()

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    # --- the aggregator ------------------------------------------------------------------------------------

    def launched(self) -> FolderSync:
        """Return the aggregator's end as a new process begins it."""
        aggregator = self.home / "aggregator"
        return FolderSync(
            aggregator / "sites" / "north",
            LocalFolder(self.drop),
            invite=read_invite(aggregator, "north"),
            key=SigningKey.at(aggregator / "signing.key"),
            encryption_key=encryption_key(aggregator),
            stop=threading.Event(),
            longest_interval_s=0.01,
            on_news=lambda: None,
        )

    def offer(self, run: RunConfiguration | None = None, *, early: bool = False) -> RunConfiguration:
        """Offer a run; one that was offered before and never started is aborted first, unless this one comes early."""
        ledger = self.channel.ledger
        last = [message.ref for message in ledger.own_messages()][-1:]
        if not early and last and last[0].kind == "offer" and ending_of(ledger, last[0].run) is None:
            self.send_abort(last[0].run)
        run = run or run_configuration(sites=["north"], quorum=1, rounds=9)
        task, method = task_named(self.task), open_method(run.method, run.method_options)
        options = task.options(TINY if self.task == TASK else run.task_options)
        model = build_network(task, method, options, 2, run_seed=1, is_private=run.privacy is not None)
        division = sharing(task, method, model)
        save_tensors(model, division.shared, self.home / names.GLOBAL_MODEL)
        files: dict[str, bytes | Path] = {names.RUN_CONFIGURATION: dump_yaml(run), names.TENSORS: dump_yaml(division)}
        self.channel.outbox.sign(MessageRef("offer", run.run), files, in_reply_to=self.site.card_digest)
        self.channel.outbox.publish()
        return run

    def receive(self, ref: MessageRef) -> bool:
        """Take what the site sent, as the folder-sync worker does that waits for ``ref``; whether it has come."""
        self.site.attend(ref)
        work_later(self.site)
        return self.channel.ledger.message(ref) is not None

    def hears(self, run: str) -> bool:
        """Take the site's answer to an offer, under a later key if need be; whether it has come."""
        return any(self.receive(MessageRef("consent", run)) for _ in range(3))

    def send_round(
        self, run: RunConfiguration, round_no: int, beside: Mapping[str, bytes] = MappingProxyType({})
    ) -> MessageRef:
        """Send a round.

        Args:
            beside: further files by name.
        """
        ref = MessageRef("round", run.run, round_no)
        files: dict[str, bytes | Path] = {
            names.ROUND_CONFIGURATION: dump_yaml(round_configuration(run, round_no, "north")),
            names.GLOBAL_MODEL: self.home / names.GLOBAL_MODEL,
        }
        self._send(ref, files | dict(beside))
        return ref

    def send_verdict(self, run: RunConfiguration, round_no: int) -> None:
        verdict = Verdict(
            run=run.run,
            round=round_no,
            site="north",
            status="late",
            score=None,
            tolerance="0.01",
            theta=None,
            weight=None,
            reason="as the test says",
        )
        self._send(MessageRef("verdict", run.run, round_no), {names.VERDICT: canonical(verdict.model_dump())})

    def send_final(self, run: RunConfiguration) -> None:
        card = FinalCard(
            run=run.run,
            task=run.task,
            method=run.method,
            chosen_round=0,
            score_name="dice_mean",
            validation={},
            took_part={},
            reason="as the test says",
        )
        model = self.home / names.GLOBAL_MODEL
        self._send(MessageRef("final", run.run), {names.CARD: canonical(card.model_dump()), names.FINAL_MODEL: model})

    def send_abort(self, run: str) -> None:
        abort = Abort(run=run, reason="as the test says")
        self._send(MessageRef("abort", run), {names.ABORT: canonical(abort.model_dump())})

    def _send(self, ref: MessageRef, files: dict[str, bytes | Path]) -> None:
        answered = self.channel.ledger.message(ref.answers) if ref.answers else self.channel.ledger.last_from_peer()
        self.channel.outbox.sign(ref, files, in_reply_to=answered.digest if answered else None)
        self.channel.outbox.publish()

    # --- what there is -------------------------------------------------------------------------------------

    def is_signed(self, ref: MessageRef) -> bool:
        """Whether the site signed or accepted a message."""
        return (self.work / "mirror" / ref.manifest).exists()

    def is_published(self, ref: MessageRef) -> bool:
        return (self.drop / ref.manifest).exists()
