"""What a server on loopback may show in the handshake: a good certificate, an expired one, one of another host."""

from __future__ import annotations

import ssl
import tempfile
from functools import lru_cache
from pathlib import Path

from tests.folder.certificates import Authority


class Certificates:
    """Contexts of a server by the certificate it shows; ``ca_file`` is what clients trust."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="dropfed-certificates-")  # removed with this
        authority, home = Authority(), Path(self._home.name)
        self.ca_file = home / "ca.pem"
        self.ca_file.write_bytes(authority.certificate)
        shown = {
            "good": authority.certify("127.0.0.1"),
            "expired": authority.certify("127.0.0.1", ends_in_days=-1),
            "wrong host": authority.certify("elsewhere.example"),
        }
        self.contexts: dict[str, ssl.SSLContext] = {}
        for number, (name, (certificate, key)) in enumerate(shown.items()):
            path = home / f"{number}.pem"
            path.write_bytes(certificate + key)
            self.contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.contexts[name].load_cert_chain(path)


@lru_cache(maxsize=1)
def certificates() -> Certificates:
    """Those of this process, made when first asked for."""
    return Certificates()
