"""Folders, shares of them and invites are made on servers, over real sockets; what is made is then used."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aggregator.cli import main as aggregator
from aggregator.configuration import open_folder, read_configuration
from aggregator.folder_sync import FolderSync
from aggregator.owncloud import OwnCloud as Client
from aggregator.owncloud import RefusedError, bytes_of, path_among_files, server_of
from aggregator.site import read_invite
from shared.errors import ActionRequiredError
from shared.exchange import names
from shared.exchange.channel import Channel
from shared.exchange.names import MessageRef
from shared.exchange.reading import dump_yaml
from shared.exchange.records.messages import Invite
from shared.exchange.signing import SigningKey
from shared.exchange.trust import Peer
from shared.folder import login
from shared.folder.durable import write_file
from shared.folder.webdav import WebDavFolder
from site_client.cli import main as site
from site_client.configuration import open_folder as open_site_folder
from site_client.configuration import read_configuration as read_site
from tests.canary import password_of
from tests.federation.running import run_configuration
from tests.folder.owncloud import OwnCloud
from tests.folder.owncloud_handler import Handler
from tests.folder.servers import embedded

AGGREGATOR, ADMIN = "aggregator", "root"
SITES = ("--site", "north", "--site", "south")


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[OwnCloud]:
    """An ownCloud with an administrator and the aggregator's account."""
    users = {user: password_of(user) for user in (AGGREGATOR, ADMIN)}
    with OwnCloud(tmp_path / "homes", users) as cloud:
        cloud.admins.add(ADMIN)
        yield cloud


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DROPFED_AGGREGATOR_PASSWORD", password_of(AGGREGATOR))
    monkeypatch.setenv("DROPFED_ADMIN_PASSWORD", password_of(ADMIN))
    return tmp_path / "work"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(aggregator, [str(argument) for argument in arguments])


def provision(work: Path, server: str, *options: str, sites: tuple[str, ...] = SITES) -> Result:
    return run("provision", server, "--work", work, "--federation", "retina", *sites, *options)


def by_accounts(work: Path, cloud: OwnCloud, *options: str, sites: tuple[str, ...] = SITES) -> Result:
    return provision(work, cloud.url, "--by", "account", "--admin", ADMIN, *options, sites=sites)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def changes(cloud: OwnCloud) -> list[str]:
    """What was asked of a server that may change it."""
    return [line for line in cloud.addresses if line.split()[0] not in ("GET", "HEAD", "PROPFIND")]


def password_for(work: Path, name: str) -> str:
    return (work / "passwords-for-sites" / name).read_text()


def enter(work: Path, name: str) -> WebDavFolder:
    """A site's folder, as its invite and its password lead into it."""
    invite = read_invite(work, name)
    return WebDavFolder(invite.url, invite.user, password_for(work, name))


def exchange(work: Path, home: Path, *join_options: str) -> None:
    """A site joins by its invite and answers the aggregator's first message, through the folder that was made."""
    joined = CliRunner().invoke(
        site, ["join", str(work / "invites" / "north.json"), "--work", str(home), *join_options]
    )
    assert "\nproblem " not in joined.output.replace("site.yaml: data", ""), joined.output
    own, configuration = open_site_folder(home, read_site(home)), read_configuration(work)
    own.create(names.SITE_CARD, (home / "mirror" / names.SITE_CARD).read_bytes())
    key = SigningKey.at(work / "signing.key")
    end = FolderSync(
        work / "sites" / "north",
        open_folder(work, configuration.sites["north"]),
        invite=read_invite(work, "north"),
        key=key,
        encryption_key=None,
        stop=threading.Event(),
        longest_interval_s=0.01,
        on_news=lambda: None,
    )
    assert end.work(), "enrols"
    assert end.channel is not None
    offered = dump_yaml(run_configuration(run="r", sites=["north"], quorum=1))
    offer = end.channel.outbox.sign(
        MessageRef("offer", "r"), {names.RUN_CONFIGURATION: offered, names.TENSORS: b"y"}, in_reply_to=end.card_digest
    )
    assert end.work(), "publishes"
    own_key = SigningKey.at(home / "signing.key")
    hospital = Channel(
        home, own, me="north", key=own_key, peer=Peer("retina", "north", AGGREGATOR, key.public), encryption_key=None
    )
    manifest = hospital.inbox.notice(MessageRef("offer", "r"))
    assert manifest is not None
    message = hospital.inbox.fetch(MessageRef("offer", "r"), manifest, answers=(end.card_digest,), max_weights_bytes=0)
    assert message is not None
    assert message.digest == offer.digest


# --- accounts ----------------------------------------------------------------------------------------------


def test_accounts_are_made_and_each_enters_its_own_folder_alone(work: Path, cloud: OwnCloud, tmp_path: Path) -> None:
    made = by_accounts(work, cloud, "--quota", "50 GB")
    assert made.exit_code == 0, made.output
    assert cloud.store.quotas == {AGGREGATOR: 50 << 30}
    assert {(share.account, share.permissions) for share in cloud.shares.values()} == {("north", 15), ("south", 15)}
    for name in ("north", "south"):
        folder = enter(work, name)
        folder.create("mark", name.encode())
        assert (cloud.store.root / AGGREGATOR / "retina" / name / "mark").read_bytes() == name.encode()
        assert open_folder(work, read_configuration(work).sites[name]).read("mark", max_bytes=9) == name.encode()
        assert read_invite(work, name).password is None
    assert password_for(work, "north") != password_for(work, "south")
    assert len(password_for(work, "north")) > 40
    secret = [*(work / "passwords-for-sites").iterdir(), *(work / "invites").iterdir(), work / "passwords" / AGGREGATOR]
    assert {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    write_file(tmp_path / "told", password_for(work, "north").encode(), private=True)
    exchange(work, tmp_path / "north", "--password-file", str(tmp_path / "told"))


def test_no_password_is_told_or_stands_in_an_address_and_the_administrators_is_not_kept(
    work: Path, cloud: OwnCloud
) -> None:
    told = by_accounts(work, cloud).output + by_accounts(work, cloud).output
    told += provision(work, cloud.url, "--by", "link", sites=("--site", "west")).output
    seen = told + "\n".join(cloud.addresses)
    for secret in (
        password_of(AGGREGATOR),
        password_of(ADMIN),
        *(password_for(work, name) for name in ("north", "west")),
    ):
        assert secret not in seen
    assert not any(password_of(ADMIN).encode() in content for content in contents(work).values())


@pytest.mark.parametrize("way", ["account", "link"])
def test_a_second_call_changes_nothing(work: Path, cloud: OwnCloud, way: str) -> None:
    options = ("--by", way, "--admin", ADMIN, "--quota", "50 GB")
    assert provision(work, cloud.url, *options).exit_code == 0
    before, asked = contents(work), len(changes(cloud))
    again = provision(work, cloud.url, *options)
    assert "nothing was missing" in again.output
    assert (contents(work), len(changes(cloud))) == (before, asked)
    for path in (work / "passwords-for-sites").iterdir():
        path.unlink()  # handed over
    again = provision(work, cloud.url, *options)
    assert "nothing was missing" in again.output, again.output
    assert len(changes(cloud)) == asked


@pytest.mark.parametrize("way", ["account", "share", "link"])
def test_a_dry_run_tells_all_and_changes_nothing(work: Path, cloud: OwnCloud, way: str) -> None:
    if way == "share":
        for name in ("north", "south"):
            cloud.users[name] = password_of(name)
    options = ("--by", way, "--admin", ADMIN, "--quota", "5 GB")
    dry = provision(work, cloud.url, *options, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert changes(cloud) == []
    assert not work.exists()
    announced = [line.strip() for line in dry.output.splitlines() if line.startswith("  ")]
    wet = provision(work, cloud.url, *options)
    done = [line.removeprefix("done: ") for line in wet.output.splitlines() if line.startswith("done: ")]
    assert done == [step for step in announced if "write " not in step]
    wrote = [line.removeprefix(f"wrote {work}/") for line in wet.output.splitlines() if line.startswith("wrote ")]
    assert sorted(set(wrote)) == sorted({step.rpartition("write ")[2] for step in announced if "write " in step})
    assert "nothing is missing" in provision(work, cloud.url, *options, "--dry-run").output


@pytest.mark.parametrize("way", ["account", "link"])
def test_what_was_broken_off_anywhere_is_completed(
    work: Path, cloud: OwnCloud, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server goes away after each of its changes in turn, its answer with it."""
    world, asked = cloud.ocs, type(cloud.ocs).answer
    left = 0

    def break_off(self: object, method: str, *rest: object) -> bytes:
        nonlocal left
        answer = asked(world, method, *rest)  # type: ignore[arg-type]
        if method != "GET":
            left -= 1
            if left == 0:
                raise ConnectionError
        return answer

    monkeypatch.setattr(type(world), "answer", break_off)
    options, tries = ("--by", way, "--admin", ADMIN, "--quota", "5 GB"), 0
    while True:
        left, tries = 1, tries + 1  # each call gets one change further
        result = provision(work, cloud.url, *options)
        if result.exit_code == 0:
            break
        assert "Traceback" not in result.output
        assert tries < 9
    assert tries == (6 if way == "account" else 4)
    assert len(cloud.shares) == 2
    for name in ("north", "south"):
        enter(work, name).create("mark", b"x")
    assert "nothing was missing" in provision(work, cloud.url, *options).output


def test_an_account_of_somebody_else_is_left_alone(work: Path, cloud: OwnCloud) -> None:
    cloud.users["south"] = password_of("somebody else")
    (cloud.store.root / "south").mkdir()
    refused = by_accounts(work, cloud)
    assert refused.exit_code == 2
    assert "account south is on the server already and was not made here" in refused.output
    assert changes(cloud) == []
    made = by_accounts(work, cloud, sites=("--site", "north", "--site", "south=retina-south"))
    assert made.exit_code == 0, made.output
    assert {share.account for share in cloud.shares.values()} == {"north", "retina-south"}
    assert read_invite(work, "south").user == "retina-south"
    assert not any((cloud.store.root / "south").iterdir())
    enter(work, "south").check()


def test_an_invite_to_the_aggregators_own_folder_does_not_make_an_account_ours(work: Path, cloud: OwnCloud) -> None:
    url = f"{cloud.url}/remote.php/dav/files/aggregator/retina/north"
    assert run("init", "--work", work, "--federation", "retina", "--site", f"north={url}").exit_code == 0
    cloud.users["north"] = password_of("somebody else")
    refused = by_accounts(work, cloud, sites=("--site", "north"))
    assert "was not made here" in refused.output
    made = by_accounts(work, cloud, sites=("--site", "north=clinic"))
    assert made.exit_code == 0, made.output
    assert read_invite(work, "north").url.endswith("/files/clinic/north")


@pytest.mark.parametrize("accepts", [True, False])
def test_a_folder_is_found_under_the_name_it_got_and_is_accepted_if_it_has_to_be(
    work: Path, cloud: OwnCloud, accepts: bool, tmp_path: Path
) -> None:
    cloud.accepts_shares = accepts
    (cloud.store.root / "north" / "north").mkdir(parents=True)  # what new accounts begin with
    made = by_accounts(work, cloud, sites=("--site", "north"))
    assert made.exit_code == 0, made.output
    assert read_invite(work, "north").url.endswith("/files/north/north%20%282%29")
    enter(work, "north").create("mark", b"x")
    assert (cloud.store.root / AGGREGATOR / "retina" / "north" / "mark").exists()
    assert "nothing was missing" in by_accounts(work, cloud, sites=("--site", "north")).output
    write_file(tmp_path / "told", password_for(work, "north").encode(), private=True)
    exchange(work, tmp_path / "north", "--password-file", str(tmp_path / "told"))


def test_a_share_that_waits_is_accepted_later(work: Path, cloud: OwnCloud) -> None:
    by_accounts(work, cloud, sites=("--site", "north"))
    (share,) = cloud.shares.values()
    share.state = 1
    dry = by_accounts(work, cloud, "--dry-run", sites=("--site", "north"))
    assert "north: accept the share as account north" in dry.output
    assert share.state == 1
    assert by_accounts(work, cloud, sites=("--site", "north")).exit_code == 0
    assert share.state == 0


def test_a_site_that_changed_its_password_is_no_hindrance(work: Path, cloud: OwnCloud) -> None:
    by_accounts(work, cloud)
    cloud.users["north"] = password_of("changed")
    again = by_accounts(work, cloud)
    assert "nothing was missing" in again.output, again.output


def test_passwords_travel_in_invites_if_asked(work: Path, cloud: OwnCloud, tmp_path: Path) -> None:
    made = by_accounts(work, cloud, "--passwords-in-invites", sites=("--site", "north"))
    assert "it holds one" in made.output
    path = work / "invites" / "north.json"
    assert json.loads(path.read_bytes())["password"] == password_for(work, "north")
    assert path.stat().st_mode & 0o777 == 0o600
    assert password_for(work, "north") not in repr(Invite.model_validate_json(path.read_bytes()))
    exchange(work, tmp_path / "north")
    assert (tmp_path / "north" / "password").read_text() == password_for(work, "north")
    assert (tmp_path / "north" / "password").stat().st_mode & 0o777 == 0o600
    other = ["join", str(path), "--work", str(tmp_path / "other"), "--user", "clinic"]
    assert "password of clinic" in CliRunner().invoke(site, other, input="typed\n").output
    assert (tmp_path / "other" / "password").read_text() == "typed"


def test_a_quota_is_corrected_and_only_then(work: Path, cloud: OwnCloud) -> None:
    cloud.store.quotas[AGGREGATOR] = 1 << 30
    made = by_accounts(work, cloud, "--quota", "2 GB", sites=("--site", "north"))
    assert "done: limit all folders together to 2 GB" in made.output
    assert cloud.store.quotas == {AGGREGATOR: 2 << 30}
    assert "limit" not in by_accounts(work, cloud, "--quota", "2 gb", sites=("--site", "north")).output
    assert "must be an amount" in by_accounts(work, cloud, "--quota", "a lot").output


@pytest.mark.parametrize("is_nextcloud", [False, True])
def test_a_quota_that_servers_round_is_refused_with_the_one_to_write(
    work: Path, cloud: OwnCloud, is_nextcloud: bool
) -> None:
    cloud.is_nextcloud = is_nextcloud
    assert "would keep 2500 GB as 2.4 TB; write that" in by_accounts(work, cloud, "--quota", "2500 GB").output
    assert "would keep 1740 MB as 1.7 GB; write that" in by_accounts(work, cloud, "--quota", "1740 MB").output
    assert changes(cloud) == []
    assert by_accounts(work, cloud, "--quota", "1.7 GB").exit_code == 0
    assert "nothing was missing" in by_accounts(work, cloud, "--quota", "1.7 GB").output


# --- accounts that were there before -----------------------------------------------------------------------


def test_folders_are_shared_with_accounts_that_are_there(work: Path, cloud: OwnCloud, tmp_path: Path) -> None:
    cloud.users["clinic"] = password_of("clinic")
    (cloud.store.root / "clinic").mkdir()
    made = provision(work, cloud.url, "--by", "share", sites=("--site", "north=clinic"))
    assert made.exit_code == 0, made.output
    assert not (work / "passwords-for-sites").exists()
    assert "account clinic keeps its password" in made.output
    (tmp_path / "told").write_text(password_of("clinic"))
    (tmp_path / "told").chmod(0o600)
    exchange(work, tmp_path / "north", "--password-file", str(tmp_path / "told"))
    refused = provision(work, cloud.url, "--by", "share", sites=("--site", "south=nobody"))
    assert refused.exit_code == 1
    assert "was asked to share retina/south with nobody and refuses: Please specify a valid user" in refused.output


def test_an_account_is_found_whatever_the_case_of_its_letters(work: Path, cloud: OwnCloud) -> None:
    cloud.users["North"] = password_of("north")
    (cloud.store.root / "North").mkdir()
    made = provision(work, cloud.url, "--by", "share", sites=("--site", "north"))
    assert made.exit_code == 0, made.output
    assert (read_invite(work, "north").url, read_invite(work, "north").user) == (
        f"{cloud.url}/remote.php/dav/files/North/north",
        "North",
    )
    assert "nothing was missing" in provision(work, cloud.url, "--by", "share", sites=("--site", "north")).output


def test_whoever_asks_may_enter_by_an_e_mail_address(
    work: Path, cloud: OwnCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which there are no files."""
    cloud.emails["root@example.org"] = "root"
    made = provision(work, cloud.url, "--by", "account", "--admin", "root@example.org", sites=("--site", "north"))
    assert made.exit_code == 0, made.output
    monkeypatch.setenv("DROPFED_ADMIN_PASSWORD", "wrong")
    refused = provision(work, cloud.url, "--by", "account", "--admin", "root@example.org", sites=("--site", "north"))
    assert "refuses user 'root@example.org' or the password" in refused.output


def test_why_an_administrator_is_not_let_in_is_said(work: Path, cloud: OwnCloud) -> None:
    """The server's interface says of each that it is "Unauthorised"."""
    cloud.tokens_alone.add(ADMIN)
    assert "by an app password alone" in by_accounts(work, cloud).output
    cloud.tokens_alone.clear()
    cloud.disabled.add(ADMIN)
    assert f"account '{ADMIN}' is disabled" in by_accounts(work, cloud).output


def test_an_account_of_ones_own_is_known_in_other_letters(work: Path, cloud: OwnCloud) -> None:
    assert by_accounts(work, cloud, sites=("--site", "north=North")).exit_code == 0
    cloud.users["North"] = password_of("another")  # the site's people have changed it
    again = by_accounts(work, cloud, sites=("--site", "north"))
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("other", ["South", "Aggregator"])
def test_no_account_is_given_twice_in_other_letters(work: Path, cloud: OwnCloud, other: str) -> None:
    sites = ("--site", f"north={other}", "--site", "south")
    refused = provision(work, cloud.url, "--by", "share", sites=sites)
    assert refused.exit_code == 2
    assert "give each its own" in refused.output
    assert not cloud.shares


# --- public links ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_nextcloud", [False, True])
def test_a_public_link_opens_one_folder_with_its_password(
    work: Path, cloud: OwnCloud, tmp_path: Path, is_nextcloud: bool
) -> None:
    cloud.is_nextcloud = is_nextcloud
    made = provision(work, cloud.url, "--by", "link")
    assert made.exit_code == 0, made.output
    assert ("Nextcloud" if is_nextcloud else "ownCloud") in made.output
    invite = read_invite(work, "north")
    assert invite.url == f"{cloud.url}/public.php/webdav"
    assert cloud.links[invite.user][1] == password_for(work, "north")
    assert "nothing was missing" in provision(work, cloud.url, "--by", "link").output
    write_file(tmp_path / "told", password_for(work, "north").encode(), private=True)
    exchange(work, tmp_path / "north", "--password-file", str(tmp_path / "told"))


def test_a_link_that_permits_too_little_is_corrected(work: Path, cloud: OwnCloud) -> None:
    provision(work, cloud.url, "--by", "link", sites=("--site", "north"))
    (share,) = cloud.shares.values()
    share.permissions = 1
    with pytest.raises(Exception, match="forbids PUT"):
        enter(work, "north").create("mark", b"x")
    made = provision(work, cloud.url, "--by", "link", sites=("--site", "north"))
    assert "done: north: permit everything to public link dropfed retina/north" in made.output
    enter(work, "north").create("mark", b"x")


def test_a_share_that_the_server_ends_by_itself_is_told_of(work: Path, cloud: OwnCloud) -> None:
    cloud.shares_end = "2031-01-31 00:00:00"
    made = provision(work, cloud.url, "--by", "link", sites=("--site", "north"))
    assert "warning: north: its share ends on 2031-01-31 00:00:00; have it prolonged" in made.output


def test_other_shares_of_a_folder_are_told_of(work: Path, cloud: OwnCloud) -> None:
    provision(work, cloud.url, "--by", "link", sites=("--site", "north"))
    own = Client(cloud.url, AGGREGATOR, password_of(AGGREGATOR), ca_file=None)
    own.open_link("retina/north", "other", "for my colleague")
    cloud.users["curious"] = password_of("curious")
    own.share("retina", "curious")
    told = provision(work, cloud.url, "--by", "link", sites=("--site", "north"))
    assert "warning: north: its folder is open to public link for my colleague too" in told.output
    assert "warning: retina, with all sites' folders, is open to account curious" in told.output
    assert "nothing was missing" in told.output


# --- taking back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_nextcloud", [False, True])
def test_an_account_is_shut_out_and_let_in_again(work: Path, cloud: OwnCloud, is_nextcloud: bool) -> None:
    cloud.is_nextcloud = is_nextcloud
    by_accounts(work, cloud)
    enter(work, "north").create("mark", b"x")
    kept = contents(cloud.store.root / AGGREGATOR)
    taken = run("revoke", "north", "--work", work, "--disable-account", "--admin", ADMIN)
    assert taken.exit_code == 0, taken.output
    assert "now only aggregator can enter" in taken.output
    assert "it stays, with all that is in it" in taken.output
    with pytest.raises(Exception, match="account 'north' is disabled: have whoever runs the server enable it"):
        enter(work, "north").check()
    assert contents(cloud.store.root / AGGREGATOR) == kept
    enter(work, "south").check()
    assert [share.account for share in cloud.shares.values()] == ["south"]
    assert run("revoke", "north", "--work", work, "--disable-account", "--admin", ADMIN).exit_code == 0
    secret = read_invite(work, "north").enrolment_secret
    again = by_accounts(work, cloud)
    assert "done: north: enable account north" in again.output, again.output
    assert enter(work, "north").read("mark", max_bytes=1) == b"x"
    assert read_invite(work, "north").enrolment_secret == secret
    cloud.disabled.add("south")
    again = by_accounts(work, cloud)
    assert "done: south: enable account south" in again.output, again.output


def test_a_link_is_taken_back_and_a_new_one_has_a_new_password(work: Path, cloud: OwnCloud) -> None:
    provision(work, cloud.url, "--by", "link")
    old, password = read_invite(work, "north"), password_for(work, "north")
    assert run("revoke", "north", "--work", work).exit_code == 0
    with pytest.raises(Exception, match="refuses user"):
        WebDavFolder(old.url, old.user, password).check()
    assert (
        "enters by a public link"
        in run("revoke", "north", "--work", work, "--disable-account", "--admin", ADMIN).output
    )
    again = provision(work, cloud.url, "--by", "link")
    assert "north: its invite has changed" in again.output
    new = read_invite(work, "north")
    assert new.user != old.user
    assert password_for(work, "north") != password
    assert new.model_copy(update={"user": old.user}) == old
    enter(work, "north").check()


def test_what_cannot_be_taken_back_is_said(work: Path, cloud: OwnCloud, tmp_path: Path) -> None:
    provision(work, cloud.url, "--by", "link")
    assert "the sites there are north, south" in run("revoke", "west", "--work", work).output
    assert "go together" in run("revoke", "north", "--work", work, "--disable-account").output
    other = tmp_path / "other"
    url = "https://dav.example.org/north/"
    assert run("init", "--work", other, "--federation", "retina", "--site", f"north={url}").exit_code == 0
    here = run("init", "--work", other, "--federation", "retina", "--site", f"south={tmp_path.as_uri()}")
    assert here.exit_code == 0 and "warning" not in here.output, "its invite has no address that could be warned of"
    refused = run("revoke", "south", "--work", other)
    told = f"{tmp_path.as_uri()} is a folder of this machine, which no server shares, and nothing was taken back"
    assert refused.exit_code == 1 and refused.output.startswith(told)
    refused = run("revoke", "north", "--work", other)
    assert refused.exit_code == 1
    assert "nothing was taken back: have whoever runs the server take account north's rights there" in refused.output


# --- what stands in the way --------------------------------------------------------------------------------


def test_refusals_are_sentences(work: Path, cloud: OwnCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--by: is missing" in provision(work, cloud.url).output
    assert "--admin: is missing" in provision(work, cloud.url, "--by", "account").output
    for sites, problem in (
        (("--site", "North"), "is not a name"),
        (("--site", "a=x", "--site", "b=x"), "has the account of a, x"),
        (("--site", "a=aggregator"), "has the account of the aggregator"),
        (("--site", "a=x/y"), "cannot be used"),
        (("--site", "a", "--site", "a"), "names a site twice"),
    ):
        assert problem in provision(work, cloud.url, "--by", "share", sites=sites).output
    for server, problem in (
        ("quark", "SERVER: The folder's address is malformed"),
        ("file:///srv", "is a folder of this"),
    ):
        refused = provision(work, server, "--by", "share")
        assert refused.exit_code == 2 and problem in refused.output
    assert "nobody here knows" in provision(work, cloud.url, "--by", "share", "--passwords-in-invites").output
    cloud.least_password = 100
    refused = by_accounts(work, cloud)
    assert "was asked to make account north and refuses: The password is too short" in refused.output
    cloud.least_password = 0
    monkeypatch.setattr(login, "LEFT_ALONE_S", (30.0,))
    cloud.admins.clear()
    assert "does not let root show account north: name an administrator with --admin" in by_accounts(work, cloud).output
    monkeypatch.setattr(login, "LEFT_ALONE_S", (0.0,))
    monkeypatch.setenv("DROPFED_ADMIN_PASSWORD", "wrong")
    assert "refuses user 'root' or the password" in by_accounts(work, cloud).output
    cloud.is_maintained = True
    assert "is under maintenance" in by_accounts(work, cloud).output
    cloud.stop()
    gone = by_accounts(work, cloud)
    assert (gone.exit_code, "failed" in gone.output) == (1, True)


def test_the_server_is_looked_at_before_a_password_is_asked_for(
    work: Path, cloud: OwnCloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("DROPFED_AGGREGATOR_PASSWORD", "DROPFED_ADMIN_PASSWORD"):
        monkeypatch.delenv(variable)
    assert f"{cloud.url} is ownCloud 11" in by_accounts(work, cloud).output
    assert "password of aggregator" in by_accounts(work, cloud).output
    cloud.is_maintained = True
    for told in (by_accounts(work, cloud), provision(work, cloud.url), by_accounts(work, cloud, "--quota", "a lot")):
        assert told.exit_code in (1, 2)
        assert "password" not in told.output
    monkeypatch.setenv("DROPFED_AGGREGATOR_PASSWORD", password_of(AGGREGATOR))
    (tmp_path / "root" / "north").mkdir(parents=True)
    with embedded(tmp_path / "root") as server:  # shows its status page to nobody without a password
        assert provision(work, server.url_of("north"), "--admin", ADMIN).exit_code == 0
        monkeypatch.setenv("DROPFED_AGGREGATOR_PASSWORD", "of somebody else")
        astray = provision(tmp_path / "other", server.url_of("north"))
        assert "or have whoever runs the server see whether that account may enter there" in astray.output


@pytest.mark.parametrize("product", ["Infinite Scale", "OpenCloud"])
def test_a_server_with_another_interface_for_accounts_is_refused(
    work: Path, cloud: OwnCloud, product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Handler._status
    monkeypatch.setattr(Handler, "_status", lambda handler: told(handler) | {"product": product})
    refused = by_accounts(work, cloud)
    assert refused.exit_code == 2
    assert f"is {product}: make accounts and shares there by hand" in refused.output
    assert changes(cloud) == []


def test_a_wrong_password_of_the_aggregator_is_not_kept(
    work: Path, cloud: OwnCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DROPFED_AGGREGATOR_PASSWORD", "wrong")
    refused = provision(work, cloud.url, "--by", "link")
    assert refused.exit_code == 1
    assert "refuses user 'aggregator' or the password" in refused.output
    assert not work.exists()


def test_a_server_that_wants_app_passwords_says_so_and_one_completes_it(work: Path, cloud: OwnCloud) -> None:
    cloud.tokens_alone.add("north")
    refused = by_accounts(work, cloud, sites=("--site", "north"))
    assert refused.exit_code == 1
    assert "north cannot enter its folder" in refused.output
    assert "by an app password alone" in refused.output
    assert not (work / "invites").exists()
    cloud.tokens_alone.clear()
    cloud.users["north"] = password_of("an app password")
    (work / "passwords-for-sites" / "north").write_text(password_of("an app password"))
    made = by_accounts(work, cloud, sites=("--site", "north"))
    assert made.exit_code == 0, made.output
    enter(work, "north").check()


def test_an_answer_of_another_form_is_no_success(work: Path, cloud: OwnCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Client(cloud.url, AGGREGATOR, password_of(AGGREGATOR), ca_file=None)
    own.files.make_folder("x")
    assert own.shares("x") == ()
    answers = iter(
        [b"<html>", b"[]", b'{"ocs": {"meta": {"status": "ok", "statuscode": 200}, "data": [{"id": "../1"}]}}']
    )
    monkeypatch.setattr(type(cloud.ocs), "answer", lambda *_: next(answers))
    for _ in range(3):
        with pytest.raises(Exception, match=r"not as a WebDAV|in a form that is not known"):
            own.shares("x")


def test_removing_a_share_twice_is_no_trouble_and_sharing_twice_is_refused(cloud: OwnCloud) -> None:
    own = Client(cloud.url, AGGREGATOR, password_of(AGGREGATOR), ca_file=None)
    own.files.make_folder("x")
    share = own.share("x", ADMIN)
    with pytest.raises(RefusedError, match="Path already shared with this user"):
        own.share("x", ADMIN)
    for _ in range(2):
        own.remove_share(share.id)
    assert own.shares("x") == ()


# --- any other server --------------------------------------------------------------------------------------


def test_on_plain_webdav_folders_are_made_and_people_are_told_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, root = tmp_path / "work", tmp_path / "root"
    (root / "north").mkdir(parents=True)
    with embedded(root) as server:
        address = server.url_of("north")
        sites = ("--site", "eye", "--site", "ward=eye-ward")
        unseen = provision(work, address, "--dry-run", sites=sites)
        assert unseen.exit_code == 0, unseen.output
        assert "eye: make folder eye" in unseen.output and "was not looked at, for want of" in unseen.output
        refused = provision(work, address, sites=sites)
        assert refused.exit_code == 2
        assert "; give --password-file FILE, or set DROPFED_AGGREGATOR_PASSWORD" in refused.output
        monkeypatch.setenv("DROPFED_AGGREGATOR_PASSWORD", password_of(AGGREGATOR))
        dry = provision(work, address, "--dry-run", sites=sites)
        assert dry.exit_code == 0, dry.output
        assert not work.exists()
        assert not any((root / "north").iterdir())
        made = provision(work, address, "--quota", "5 GB", "--admin", AGGREGATOR, sites=sites)
        assert made.exit_code == 0, made.output
        assert {path.name for path in (root / "north").iterdir()} == {"eye", "ward"}
        assert "WebDAV, but neither ownCloud nor Nextcloud" in made.output
        assert "cannot be set from here" in made.output
        assert "an account eye-ward with a password of its own, that may list, read, write," in made.output
        assert "all of these folders together limited to 5 GB" in made.output
        assert read_invite(work, "ward").user == "eye-ward"
        open_folder(work, read_configuration(work).sites["ward"]).check()
        assert "nothing was missing" in provision(work, address, sites=sites).output


def test_addresses() -> None:
    for address in ("/", "/remote.php/dav/files/a/", "/index.php/apps/files", "/ocs/v2.php/cloud", "/status.php", ""):
        assert server_of(f"https://example.org/cloud{address}") == "https://example.org/cloud"
    assert server_of("https://example.org") == "https://example.org"
    for shown in (
        "index.php/apps/files/?dir=/north&fileid=7",
        "apps/files/files/7?dir=/",
        "index.php?x=1",
        "index.php#a",
    ):
        assert server_of(f"https://example.org/cloud/{shown}") == "https://example.org/cloud"
    for other in ("https://example.org/?next=/index.php/", "https://a:b@example.org/index.php/"):
        with pytest.raises(ActionRequiredError, match="The folder's address"):
            server_of(other)
    files = "https://example.org/c/remote.php"
    assert path_among_files(f"{files}/dav/files/a%40b/r%20x/north/", "a@b") == "r x/north"
    assert path_among_files(f"{files}/webdav/north", "a") == "north"
    assert path_among_files(f"{files}/dav/files/other/north", "a") is None
    amounts = {"5 GB": 5 << 30, "512 mb": 512 << 20, "1073741824": 1 << 30, "none": None, "-3": None, "5 parsecs": None}
    assert {text: bytes_of(text) for text in amounts} == amounts
