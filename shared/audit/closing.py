"""The closing digest of a run: one number over all its manifests in all folders, to print, sign and compare on paper.

A Merkle tree as in RFC 6962. The entries are the manifests' bytes, in the order of the names SITE/PATH, compared byte
by byte, as in ``north/runs/octa-1/consent/manifest.json``.

    leaf    SHA-256(00 ‖ manifest)
    node    SHA-256(01 ‖ left ‖ right)      of n > 1 entries; left has the largest power of two below n, right the rest

Every manifest names its payloads' hashes, so the digest together with ``verify``, which holds the files against them,
fixes every byte that was exchanged in the run, also of what a run's own rule has pruned since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from shared.audit.reading import Reading
from shared.doors import Refusal
from shared.doors.schema import fill
from shared.errors import ConfigurationError, RejectedError
from shared.exchange.names import Name
from shared.exchange.records.values import PROTOCOL, Digest, Protocol, Record, Time, now_text
from shared.exchange.signing import fingerprint, in_groups, open_signed, parse_signed
from shared.moments import moment_text
from shared.plurals import pluralize

_LEAF, _NODE = b"\x00", b"\x01"


class Closing(Record):
    """What an auditor signs.

    Args:
        sites: the digest of each site's own manifests, and how many they are.
        root: the digest over all of them.
        created: when it was signed; it informs people.
    """

    class OfSite(Record):
        """One site's share."""

        manifests: Annotated[int, Field(ge=1)]
        root: Digest

    protocol: Protocol = PROTOCOL
    kind: Literal["closing"] = "closing"
    federation: Name
    run: Name
    sites: dict[Name, OfSite]
    manifests: Annotated[int, Field(ge=1)]
    root: Digest
    created: Time


def closing(readings: Mapping[str, Reading], run: str) -> Closing:
    """Return the closing digest of a run, over the folders that are here.

    Raises:
        ConfigurationError: no folder has a message of the run.
        NotFoundError, RejectedError: a manifest went, or is another, since the folder was read.
    """
    entries: dict[str, dict[str, bytes]] = {}
    for site, reading in readings.items():
        for place, message in reading.messages.items():
            if place.run == run:
                entries.setdefault(site, {})[f"{site}/{place.manifest}"] = reading.manifest(message)
    if not entries:
        raise ConfigurationError([f"there is no run {run} in these folders"])
    of_sites = {
        site: Closing.OfSite(manifests=len(found), root=tree_digest(_in_order(found)))
        for site, found in sorted(entries.items())
    }
    everything = {name: content for found in entries.values() for name, content in found.items()}
    return Closing(
        federation=next(iter(readings.values())).opened.federation,
        run=run,
        sites=of_sites,
        manifests=len(everything),
        root=tree_digest(_in_order(everything)),
        created=now_text(),
    )


def tree_digest(entries: Sequence[bytes]) -> str:
    """Return the root of the tree over one or more entries, 64 hex digits."""
    return _root([hashlib.sha256(_LEAF + entry).digest() for entry in entries]).hex()


def _root(leaves: Sequence[bytes]) -> bytes:
    if len(leaves) == 1:
        return leaves[0]
    left = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(_NODE + _root(leaves[:left]) + _root(leaves[left:])).digest()


def _in_order(entries: Mapping[str, bytes]) -> list[bytes]:
    return [entries[name] for name in sorted(entries, key=str.encode)]


@dataclass(frozen=True)
class Compared:
    """A signed statement beside what is here.

    Args:
        whose: who signed it, and when.
        differs: what is not as it says, a sentence each.
        unchecked: what of it cannot be compared with what is here, a sentence each.
    """

    whose: str
    differs: Sequence[str]
    unchecked: Sequence[str]


def check(
    content: bytes, found: Closing, signer: str | None = None, *, here: Collection[str], shown_as: str
) -> Compared:
    """Compare a signed statement with what is here.

    Args:
        here: the sites whose folders are here, whether they have anything of the run or not.
        signer: the public key that must have signed it, if it is known from elsewhere.
        shown_as: the name of its file.

    Raises:
        RejectedError: its signature does not hold.
        ConfigurationError: it is no closing digest, whoever signed it.
    """
    try:
        said = fill(Closing, parse_signed(content)["body"])
    except Refusal:
        remedy = "name the file that `digest --sign` wrote"
        raise ConfigurationError([f"{shown_as}: is not a well-formed closing digest; {remedy}"]) from None
    try:
        _, key = open_signed(content)
    except Refusal as refusal:
        raise RejectedError(shown_as, str(refusal)) from None
    whose = f"signed at {moment_text(said.created)} by key {key} ({fingerprint(key)})"
    if signer is None:
        whose += "; nobody vouches for that key: compare it with what the auditor gave you, or name that with --signer"
    strange = [f"it is signed by another key than {signer}"] if signer not in (None, key) else []
    return Compared(whose, [*strange, *_differences(said, found, here)], [*_unchecked(said, found, here)])


def _is_of_another(said: Closing, found: Closing) -> bool:
    return (said.federation, said.run) != (found.federation, found.run)


def _unchecked(said: Closing, found: Closing, here: Collection[str]) -> Iterator[str]:
    if _is_of_another(said, found):
        yield f"it is of run {said.run} of {said.federation}, here is {found.run} of {found.federation}"
        return
    for site in sorted(said.sites.keys() - {*here}):
        yield f"it covers {site}, whose folder is not here"


def _differences(said: Closing, found: Closing, here: Collection[str]) -> Iterator[str]:
    if _is_of_another(said, found):
        return
    for site in sorted(said.sites.keys() | found.sites.keys()):
        one, other = said.sites.get(site), found.sites.get(site)
        if other is None:
            if site in here:  # of what is not here nothing differs
                yield f"it covers {site}, whose folder has no manifest of the run"
        elif one is None:
            yield f"it does not cover {site}, whose folder is here"
        elif one != other:
            here = f"here are {other.manifests} under {other.root}"
            yield f"{site}: it covers {pluralize(one.manifests, 'manifest')} under {one.root}, {here}"
    if said.root != found.root and set(said.sites) == set(found.sites):
        yield f"its digest is {said.root}, here it is {found.root}"


def lines(found: Closing) -> Iterator[str]:
    """Yield the lines to be printed on paper: every digest whole, in groups of four."""
    yield f"closing digest of run {found.run} of {found.federation}, over {pluralize(found.manifests, 'manifest')}"
    for half in (found.root[:32], found.root[32:]):
        yield f"    {in_groups(half)}"
    for site, of_site in found.sites.items():
        yield f"of which {site}, {pluralize(of_site.manifests, 'manifest')}"
        for half in (of_site.root[:32], of_site.root[32:]):
            yield f"    {in_groups(half)}"
