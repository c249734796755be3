"""What a server's certificate says, and what to do about one that is not valid."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from shared.doors.certificates import parse
from shared.errors import ActionRequiredError
from shared.escaping import escape
from shared.moments import moment_text

_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's numbers of what is wrong with a certificate
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_SIGNED_BY_ITSELF = 18
_WATCHERS = re.compile(
    r"zscaler|netskope|forti(net|gate)|palo ?alto|blue ?coat|broadcom|skyhigh|mcafee|forcepoint|websense|sophos|"
    r"check ?point|umbrella|ironport|barracuda|watchguard|sonicwall|trend ?micro|kaspersky|\beset\b|avast|bitdefender|"
    r"iboss|menlo|untangle|smoothwall|squid|mitmproxy|cloudflare gateway|"
    r"proxy|firewall|gateway|inspect|intercept|decrypt|filter|forward trust|web security",
    re.IGNORECASE,
)
"""What authorities are called that programs have which read along: makers of such programs, and plain words for it."""


@dataclass(frozen=True)
class Certificate:
    """What a server shows of itself.

    Args:
        issuer: who certifies it, as it is called there.
        ends: until when, UTC.
        names: for which servers, a few of them.
        reads_along: the issuer's name says that a program between here and the server opens what passes.
    """

    issuer: str
    begins: datetime
    ends: datetime
    names: tuple[str, ...]
    reads_along: bool

    @classmethod
    def of(cls, content: bytes) -> Certificate:
        """Read a certificate (DER).

        Raises:
            Refusal: it is none.
        """
        found = parse(content)
        called = escape(", ".join(found.issuers))[:200]
        names = tuple(escape(name)[:100] for name in found.names[:3])
        return cls(called, found.begins, found.ends, names, _WATCHERS.search(called) is not None)


def invalid(
    error: ssl.SSLCertVerificationError,
    found: Certificate | None,
    host: str,
    port: int,
    *,
    ca_file: Path | None,
    settings: str,
) -> ActionRequiredError:
    """Return what is wrong with a server's certificate, and what to do.

    Args:
        found: what the server showed; None if that could not be seen.
        ca_file: what was trusted instead of the public authorities.
        settings: the file that names address and ``ca_file``, as people should read it.
    """
    who, now = f"TLS: the certificate of {host}:{port}", datetime.now(UTC)
    if found is None:
        return ActionRequiredError(f"{who} is not valid ({error.verify_message}): have it renewed")
    if error.verify_code == _EXPIRED and found.ends < now:
        return ActionRequiredError(
            f"{who} ended on {found.ends:%Y-%m-%d}: have the server's people renew it (this machine's clock says "
            f"{now:%Y-%m-%d}; set it if that is wrong)"
        )
    if error.verify_code == _NOT_YET and found.begins > now:
        return ActionRequiredError(
            f"{who} begins only on {moment_text(found.begins.timestamp())}, and this machine's clock says "
            f"{moment_text(now.timestamp())}: set the clock"
        )
    if error.verify_code in (_OTHER_HOST, _OTHER_ADDRESS):
        return ActionRequiredError(
            f"{who} is for {', '.join(found.names) or 'nobody'}, not for {host}: correct url in {settings}, or ask who "
            "answers there"
        )
    if error.verify_code not in _UNKNOWN_AUTHORITY:
        return ActionRequiredError(f"{who} is not valid ({error.verify_message}): have it renewed")
    return ActionRequiredError(f"{who} {_unknown_authority(error.verify_code, found, host, ca_file, settings)}")


def _unknown_authority(code: int, found: Certificate, host: str, ca_file: Path | None, settings: str) -> str:
    """Return the rest of a sentence about a certificate whose authority is not trusted here."""
    by = f"is by an authority called {found.issuer!r}"
    pem = f"ask for that authority's certificate as a PEM file and set `ca_file: FILE` in {settings}"
    if ca_file is not None:
        return (
            f"{by}, which is not in {ca_file}: remove `ca_file` from {settings} if that is a public authority, or put "
            "the right one into the file"
        )
    if found.reads_along:
        return (
            f"{by}, as programs have that open what passes and close it again (TLS inspection by the network): have "
            f"{host} exempted from it; or {pem}, and the program can then read all that passes, the password too"
        )
    if code == _SIGNED_BY_ITSELF:
        return (
            f"is signed by itself: ask the server's people for it as a PEM file and set `ca_file: FILE` in {settings}"
        )
    return (
        f"{by}, which is no public one: if it is the hospital's own, or of a program of the network that reads along, "
        f"{pem}; if nobody knows it, do not go on"
    )
