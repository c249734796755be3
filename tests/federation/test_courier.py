"""The courier thread of one site, run by hand."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from aggregator.setup import initialise
from aggregator.site import Awaited, Site, read_invite
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import AGGREGATOR, Place
from shared.exchange.records import Consent
from shared.exchange.signing import SigningKey, canonical
from shared.exchange.trust import Correspondent
from shared.folder.local import LocalFolder
from site_client.setup import join
from site_client.setup import read_invite as read_invite_file


def test_an_accepted_message_is_never_looked_at_again(tmp_path: Path) -> None:
    """The daemon may be busy for long after a message came; a courier that keeps looking must not refuse it."""
    work, drop = tmp_path / "aggregator", tmp_path / "drop"
    drop.mkdir()
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    join(tmp_path / "north", read_invite_file(work / "invites" / "north.json"), data={}, url=None, password=None)
    LocalFolder(drop).create(names.SITE_CARD, (tmp_path / "north" / "mirror" / names.SITE_CARD).read_bytes())
    key = SigningKey.at(work / "signing.key")
    site = Site(
        work / "sites" / "north",
        LocalFolder(drop),
        invite=read_invite(work, "north"),
        key=key,
        stop=threading.Event(),
        longest_pause_s=0.01,
        on_news=lambda: None,
    )
    assert site._work()  # enrols
    assert site.channel is not None
    offer = site.channel.seal(
        Place("offer", "r"), {names.RUN_CONFIGURATION: b"x", names.TENSORS: b"y"}, in_reply_to=site.card_digest
    )
    assert site._work()  # publishes

    peer = Correspondent("retina", "north", AGGREGATOR, key.public)
    own_key = SigningKey.at(tmp_path / "north" / "signing.key")
    hospital = Channel(tmp_path / "north", LocalFolder(drop), me="north", key=own_key, peer=peer)
    place = Place("consent", "r")
    consent = Consent(run="r", agrees=True, reason="yes", images={"train": "12"})
    hospital.seal(place, {names.CONSENT: canonical(consent.model_dump())}, in_reply_to=offer.digest)
    hospital.publish()

    site.attend(Awaited(place, offer.digest))
    assert site._work()  # receives
    accepted = site.channel.message(place)
    assert accepted is not None
    for _ in range(5):
        assert not site._work()  # nothing has changed, whatever the daemon is busy with
    assert site.channel.message(place) == accepted
    assert site.channel.refusal(place) is None
    assert site.channel.path(place, names.CONSENT).exists()


def test_trouble_is_told_while_it_lasts_and_no_longer(tmp_path: Path) -> None:
    """A card that does not know the invite's secret is not accepted; the right one ends the trouble."""
    work, drop = tmp_path / "aggregator", tmp_path / "drop"
    drop.mkdir()
    initialise(work, "retina", {"north": "http://127.0.0.1/north/"}, AGGREGATOR)
    invite = read_invite_file(work / "invites" / "north.json")
    for name, secret in (("impostor", "00" * 32), ("north", invite.enrolment_secret)):
        told = invite.model_copy(update={"enrolment_secret": secret})
        join(tmp_path / name, told, data={}, url=None, password=None)
    site = Site(
        work / "sites" / "north",
        LocalFolder(drop),
        invite=read_invite(work, "north"),
        key=SigningKey.at(work / "signing.key"),
        stop=threading.Event(),
        longest_pause_s=0.01,
        on_news=lambda: None,
    )
    trouble = work / "sites" / "north" / "trouble.txt"
    shutil.copyfile(tmp_path / "impostor" / "mirror" / names.SITE_CARD, drop / names.SITE_CARD)
    assert not site._work()
    assert "does not prove knowledge of the invite's secret" in trouble.read_text()
    assert site.channel is None
    shutil.copyfile(tmp_path / "north" / "mirror" / names.SITE_CARD, drop / names.SITE_CARD)
    assert site._work()
    assert site.channel is not None
    assert not trouble.exists()
