"""Faults over a whole federation: random ones by a seed, or one kind for a while.

What goes wrong at random with a request depends on the seed, the client, the request's method and path, and how often
the client made it before; not on when it comes. So a seed replays, however the threads and processes take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from urllib.parse import unquote

from shared.exchange.names import STATUS
from shared.folder.contract import finished_name
from tests.faults.certificates import certificates
from tests.faults.exchange import Fault
from tests.faults.faults import HTML, PAGE, CutAnswer, Delay, Drip, Duplicate, LoseAnswer, Say, Stall, Truncate
from tests.faults.proxy import CutRequest, FaultProxy, PresentCertificate, Refuse, Schedule
from tests.federation.on_cloud import MOUNT, cloud_logins
from tests.federation.running import own_logins
from tests.folder.logins import AGGREGATOR, Login, Logins
from tests.folder.owncloud_locks import LockTable
from tests.folder.owncloud_refusal import Refusal

MAINTENANCE = (
    b'<?xml version="1.0" encoding="utf-8"?>\n<d:error xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns">'
    b"<s:exception>Sabre\\DAV\\Exception\\ServiceUnavailable</s:exception>"
    b"<s:message>System in maintenance mode.</s:message></d:error>"
)
XML = (("Content-Type", "application/xml; charset=utf-8"),)

KINDS: Mapping[str, Callable[[Random], Fault]] = {
    "refused": lambda chance: Refuse(chance.uniform(0.01, 0.2)),
    "delayed": lambda chance: Delay(chance.uniform(0.005, 0.08)),
    "stalled": lambda chance: Stall(),
    "dripping": lambda chance: Drip(chance.randint(2, 12), 0.004),
    "request cut": lambda chance: CutRequest(chance.random()),
    "answer cut": lambda chance: CutAnswer(chance.random()),
    "answer lost": lambda chance: LoseAnswer(),
    "truncated, right length": lambda chance: Truncate(chance.random(), "right"),
    "truncated, wrong length": lambda chance: Truncate(chance.random(), "wrong"),
    "truncated, no length": lambda chance: Truncate(chance.random(), "none"),
    "duplicated": lambda chance: Duplicate(chance.random() < 0.5),
    "401": lambda chance: Say(401, b"", (("WWW-Authenticate", 'Basic realm="ownCloud"'),)),
    "403": lambda chance: Say(403),
    "404": lambda chance: Say(404),
    "409": lambda chance: Say(409),
    "412": lambda chance: Say(412),
    "413": lambda chance: Say(413),
    "423": lambda chance: Say(423),
    "429": lambda chance: Say(429, b"", (("Retry-After", str(chance.randint(0, 2))),)),
    "500": lambda chance: Say(500),
    "502": lambda chance: Say(502),
    "maintenance": lambda chance: Say(503, MAINTENANCE, XML),
    "504": lambda chance: Say(504),
    "507": lambda chance: Say(507),
    "login page": lambda chance: Say(200, PAGE, HTML),
    "expired certificate": lambda chance: PresentCertificate("expired", chance.randint(1, 3)),
    "wrong host": lambda chance: PresentCertificate("wrong host", chance.randint(1, 3)),
}
OF_TLS = ("expired certificate", "wrong host")
RARE = {"stalled": 0.02}  # a stall costs the client's whole patience


class RandomSchedule:
    """One client's faults; see the module."""

    def __init__(self, seed: int, client: str, kinds: Iterable[str], often: float) -> None:
        self._name = f"{seed} {client}"
        self._kinds = list(kinds)
        self._often = often
        self._made: Counter[str] = Counter()
        self._goes_on: tuple[str, int] | None = None  # a kind, and with how many more requests it happens

    def __call__(self, method: str, path: str) -> tuple[str, Fault] | None:
        request = f"{method} {path}"
        self._made[request] += 1
        chance = Random(f"{self._name} {request} {self._made[request]}")
        if self._goes_on is not None:
            kind, more = self._goes_on
            self._goes_on = (kind, more - 1) if more > 1 else None
            return kind, KINDS[kind](chance)
        if chance.random() >= self._often:
            return None
        kind = chance.choices(self._kinds, [RARE.get(kind, 1.0) for kind in self._kinds])[0]
        if kind not in RARE and chance.random() < 0.2:
            self._goes_on = (kind, chance.randint(1, 4))
        return kind, KINDS[kind](chance)


class Outage:
    """One kind of fault happens to some requests in a row, from the first one of ``method`` to ``name`` on.

    Heartbeats are left in peace: they are dropped without a word when they cannot be sent.
    """

    def __init__(self, kind: str, method: str, name: str, requests: int) -> None:
        self.kind = kind
        self._first = (method, name)
        self._left = requests
        self._has_begun = False

    def __call__(self, method: str, path: str) -> tuple[str, Fault] | None:
        self._has_begun |= (method, path.rpartition("/")[2]) == self._first
        if not self._has_begun or self._left == 0 or STATUS in path:
            return None
        self._left -= 1
        return self.kind, KINDS[self.kind](Random(self._left))


def undisturbed(_method: str, _path: str) -> None:
    """The schedule of nothing."""


@dataclass(frozen=True)
class Weather:
    """What will go wrong, by client, whether clients speak TLS, and whether the server is a cloud whose locks leak."""

    schedule_of: Callable[[str], Schedule]
    tls: bool = False
    is_cloud: bool = False


CALM = Weather(lambda client: undisturbed)


def random_weather(seed: int, *, is_cloud: bool = False) -> Weather:
    """What the seed decides."""
    chance = Random(f"weather {seed}")
    tls = chance.random() < 0.5
    kinds = [kind for kind in KINDS if tls or kind not in OF_TLS]
    if chance.random() < 0.5:  # much of little, rather than little of everything
        kinds = chance.sample(kinds, 3)
    often = chance.choice((0.02, 0.05, 0.1, 0.2))
    return Weather(lambda client: RandomSchedule(seed, client, kinds, often), tls, is_cloud)


class LeavingLocks:
    """A schedule whose lost answers are those of a cloud that was stopped meanwhile, so that it leaves its locks.

    Left are the lock of the name in the request, and for a MOVE that of the name that it was moved to: all that this
    project moves is called as it will be, and ``.new``.
    """

    def __init__(self, schedule: Schedule, locks: LockTable) -> None:
        self._schedule = schedule
        self._locks = locks

    def __call__(self, method: str, path: str) -> tuple[str, Fault] | None:
        found = self._schedule(method, path)
        if found is not None and found[0] == "answer lost" and method in ("GET", "PUT", "MOVE"):
            name = unquote(path).removeprefix("/remote.php/dav/files/")
            site = name.partition("/")[0]
            if site != AGGREGATOR:
                name = name.replace(f"{site}/{MOUNT}", f"{AGGREGATOR}/{site}", 1)
            with suppress(Refusal):  # somebody is just writing it
                self._locks.leak(finished_name(name) if method == "MOVE" else name)
        return found


class Storm:
    """A proxy for each client of a federation: each site, and for each site's folder the aggregator.

    Args:
        locks: of the cloud, in its weather.
    """

    def __init__(
        self, weather: Weather, server_port: int, sites: Sequence[str], locks: LockTable | None = None
    ) -> None:
        shown = certificates() if weather.tls else None
        self._sites = sites
        self._is_cloud = weather.is_cloud

        def schedule_of(client: str) -> Schedule:
            schedule = weather.schedule_of(client)
            return LeavingLocks(schedule, locks) if locks is not None else schedule

        self._ca_file = shown.ca_file if shown else None
        self.proxies = {
            client: FaultProxy(server_port, schedule_of(client), shown)
            for site in sites
            for client in (site, aggregator_at(site))
        }

    def logins(self) -> Logins:
        """How the clients reach the server: each through its proxy."""
        own = cloud_logins(self._sites) if self._is_cloud else own_logins(self._sites, "")
        return Logins(
            {site: self._through(self.proxies[site], login) for site, login in own.sites.items()},
            {site: self._through(self.proxies[aggregator_at(site)], login) for site, login in own.aggregator.items()},
        )

    def _through(self, proxy: FaultProxy, login: Login) -> Login:
        return replace(login, url=f"{proxy.url}{login.url}", ca_file=self._ca_file)

    @property
    def requests(self) -> int:
        """How many came so far."""
        return sum(proxy.requests for proxy in self.proxies.values())

    @property
    def faults(self) -> Counter[str]:
        """How often each kind happened so far."""
        return sum((proxy.counts for proxy in self.proxies.values()), Counter())

    def journal(self) -> str:
        """Everything that went wrong, one line each."""
        return "\n".join(
            f"{client}, request {happened.number}: {happened.method} {happened.path}: {happened.name} {happened.fault}"
            for client, proxy in self.proxies.items()
            for happened in list(proxy.journal)
        )

    def calm(self) -> None:
        """From now on nothing goes wrong."""
        for proxy in self.proxies.values():
            proxy.schedule = undisturbed

    def close(self) -> None:
        """End every proxy."""
        for proxy in self.proxies.values():
            proxy.close()


def aggregator_at(site: str) -> str:
    """The aggregator as a client of one site's folder."""
    return f"aggregator at {site}"
