"""A site's daemon on real files, taken step by step. Nothing runs by itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import MessageRef
from site_client import rounds, store
from site_client.configuration import read_configuration
from site_client.daemon import Daemon, Turn
from site_client.rotation import rotate
from site_client.setup import join, read_invite
from tests.model_check.replay.line import Line


class SiteOnDisk:
    """A site's daemon below ``home``, joined and not started yet."""

    def __init__(self, home: Path, name: str) -> None:
        self._work, self._drop = home / name, home / "drops" / name
        invite = read_invite(home / "aggregator" / "invites" / f"{name}.json")
        join(self._work, invite, data={}, url=None, password=None)
        self.open()

    def open(self) -> None:
        """Begin anew with what the files say, as a process does that is started.

        What was read before is on the disk by then: of a site that dies earlier the model says that it has not read it.
        """
        if (before := getattr(self, "daemon", None)) is not None:
            before._channel.ledger.flush()
        self.line = Line(self._drop)
        configuration = read_configuration(self._work)
        self.daemon = Daemon(self._work, configuration, self.line, stop=threading.Event(), give_up_after_s=0)
        self.turn = Turn.IDLE

    @property
    def channel(self) -> Channel:
        """Its end of the exchange."""
        return self.daemon._channel

    @property
    def decided(self) -> rounds.Action:
        """What the daemon would do now."""
        return rounds.decide(self.daemon._facts(self.turn))

    @property
    def lacks_weights(self) -> bool:
        """Whether the newest message is a round whose model was not fetched, for its verdict was there."""
        last = self.channel.ledger.last_from_peer()
        is_round = last is not None and last.ref.kind == "round"
        return is_round and last is not None and not self.channel.ledger.path(last.ref, names.GLOBAL_MODEL).exists()

    def acts(self) -> None:
        """Do what the daemon would do now."""
        self.turn = self.daemon._act(self.decided)

    def looks_for_offers(self) -> None:
        """Have the next look go everywhere, as one of several does while something else is awaited."""
        self.daemon._arrivals._looks, self.daemon._arrivals._being_filled = 0, []

    def settles(self) -> None:
        """See how far the folder has what was signed, as a daemon does first that was begun anew."""
        if isinstance(self.decided, rounds.Publish):
            self.acts()

    def publishes(self, manifests: int) -> None:
        """Bring the next message's payloads into the folder, and its manifest, if one gets through."""
        with self.line.lets_through(manifests):
            self.acts()

    def rests(self) -> None:
        """Wait until it is time to look again."""
        assert isinstance(self.decided, rounds.Wait)
        self.turn = Turn.IDLE

    def is_told(self, answer: store.Answer, run: str) -> None:
        """A person decides on a run."""
        store.write_decision(self._work, run, store.Decision(answer))

    def signs_poison(self) -> None:
        """Do what the daemon would do now, but what is signed for it answers nothing: nobody may accept that."""
        sign = self.channel.outbox.sign

        def wrongly(ref: MessageRef, files: Mapping[str, bytes | Path], **rest: Any) -> object:
            return sign(ref, files, **rest | {"in_reply_to": None})

        with patch.object(self.channel.outbox, "sign", wrongly):
            self.acts()

    def rotates(self) -> None:
        """Stop, change the key, and be there to be started."""
        rotate(self._work)
        self.open()
