"""What an address means to the stand-in for ownCloud."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.folder.owncloud_store import UPLOADS

ASSEMBLED = ".file"  # in an upload's folder: what its chunks will be together


@dataclass(frozen=True)
class MessageRef:
    """What an address means.

    Attributes:
        endpoint: within which a MOVE or COPY must stay.
        prefix: the address of the tree's root, decoded.
        tree: the root on disk.
        inside: the path below the root, without slashes at its ends.
    """

    endpoint: str
    prefix: str
    tree: Path
    inside: str

    @property
    def disk(self) -> Path:
        return (self.tree / self.inside).resolve()

    @property
    def is_linked(self) -> bool:
        return self.endpoint.startswith("/public.php")

    @property
    def is_upload(self) -> bool:
        return self.tree.parent.name == UPLOADS

    @property
    def is_assembled(self) -> bool:
        return self.is_upload and self.inside.endswith(f"/{ASSEMBLED}")
