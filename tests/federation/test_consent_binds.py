"""A site does what it agreed to and nothing else: a real site daemon, an aggregator played by the test."""

from __future__ import annotations

import threading
from pathlib import Path

from aggregator.folder_sync import FolderSync
from aggregator.site import read_invite
from shared.exchange import names
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.run import RoundConfiguration
from shared.exchange.signing import SigningKey
from shared.folder.local import LocalFolder
from shared.learning.methods import open_method
from shared.learning.model_files import save_tensors
from shared.learning.schedules import round_configuration
from shared.learning.sharing import sharing
from shared.learning.tasks import task_named
from tests.federation.running import RUN, TASK, TINY, Federation, run_configuration


def test_a_round_that_asks_for_more_than_was_agreed_is_not_followed(tmp_path: Path) -> None:
    run = run_configuration(sites=["north"], quorum=1)
    with Federation(tmp_path, run) as federation:
        daemon = federation.start_site("north")
        aggregator = FolderSync(
            federation.aggregator / "sites" / "north",
            LocalFolder(federation.folder("north")),
            invite=read_invite(federation.aggregator, "north"),
            key=SigningKey.at(federation.aggregator / "signing.key"),
            encryption_key=None,
            stop=threading.Event(),
            longest_interval_s=0.05,
            on_news=lambda: None,
        )
        federation.wait_until(lambda: aggregator.work() and aggregator.channel is not None, "the site's card")
        channel = aggregator.channel
        assert channel is not None
        task = task_named(TASK)
        model = task.build_model(task.options(TINY), 2, seed=1)
        division = sharing(task, open_method("mean", {}), model)
        offer_files: dict[str, bytes | Path] = {
            names.RUN_CONFIGURATION: dump_yaml(run),
            names.TENSORS: dump_yaml(division),
        }
        channel.outbox.sign(MessageRef("offer", RUN), offer_files, in_reply_to=aggregator.card_digest)
        ref = MessageRef("consent", RUN)
        aggregator.attend(ref)
        federation.wait_until(lambda: not aggregator.work() and channel.ledger.message(ref) is not None, "the consent")
        consent = channel.ledger.message(ref)
        assert consent is not None

        agreed = round_configuration(run, 1, "north")
        asked = RoundConfiguration.model_validate(agreed.model_dump() | {"epochs": 900})
        save_tensors(model, division.shared, tmp_path / "global.safetensors")
        files: dict[str, bytes | Path] = {
            names.ROUND_CONFIGURATION: dump_yaml(asked),
            names.GLOBAL_MODEL: tmp_path / "global.safetensors",
        }
        channel.outbox.sign(MessageRef("round", RUN, 1), files, in_reply_to=consent.digest)
        channel.outbox.publish()
        status = federation.folder("north") / names.STATUS
        sentence = b"config.yaml: asks for something else than was agreed to"
        federation.wait_until(lambda: sentence in status.read_bytes(), "the refusal")
        assert daemon.poll() is None
        assert channel.inbox.notice(MessageRef("update", RUN, 1)) is None
