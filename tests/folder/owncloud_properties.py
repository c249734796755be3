"""What the stand-in for ownCloud says of a file or folder when it is asked for its properties."""

from __future__ import annotations

import mimetypes
from email.utils import formatdate
from pathlib import Path
from xml.sax.saxutils import escape

from tests.folder.owncloud_multistatus import DAV, OC, element, propstat, response
from tests.folder.owncloud_place import MessageRef
from tests.folder.owncloud_store import Store, size_below

USUAL_PROPERTIES = [
    f"{DAV}{name}"
    for name in (
        "getlastmodified",
        "getcontentlength",
        "resourcetype",
        "getetag",
        "getcontenttype",
        "quota-available-bytes",
        "quota-used-bytes",
    )
]


def described(store: Store, ref: MessageRef, wanted: list[str]) -> str:
    """Return what a listing says of one place."""
    known = _properties(store, ref)
    found = [element(tag, known[tag]) for tag in wanted if tag in known]
    missing = [element(tag, "") for tag in wanted if tag not in known]
    stats = propstat(found, 200) + (propstat(missing, 404) if missing else "")
    slash = "/" if ref.disk.is_dir() else ""
    return response(f"{ref.prefix}/{ref.inside}".rstrip("/") + slash, stats)


def _properties(store: Store, ref: MessageRef) -> dict[str, str]:
    if ref.is_assembled:
        size = str(size_below(ref.disk.parent))
        return {f"{DAV}getcontentlength": size, f"{DAV}resourcetype": ""}
    disk, node = ref.disk, store.node(ref.disk)
    received = "" if store.owner(disk) == ref.tree.name else "S"
    properties = {
        f"{DAV}getlastmodified": formatdate(disk.stat().st_mtime, usegmt=True),
        f"{DAV}getetag": escape(etag_of(store, ref)),
        f"{OC}fileid": str(node.id),
        f"{OC}size": str(size_below(disk)),
    }
    if disk.is_dir():
        available = store.available(disk)
        return properties | {
            f"{DAV}resourcetype": "<d:collection/>",
            f"{DAV}quota-available-bytes": str(-3 if available is None else available),
            f"{DAV}quota-used-bytes": str(store.used(disk)),
            f"{OC}permissions": f"{received}RDNVCK",
        }
    sums = " ".join(f"{kind}:{value}" for kind, value in (node.checksums or {}).items())
    return properties | {
        f"{DAV}resourcetype": "",
        f"{DAV}getcontentlength": str(disk.stat().st_size),
        f"{DAV}getcontenttype": content_type(disk),
        f"{OC}permissions": f"{received}RDNVW",
        **({f"{OC}checksums": f"<oc:checksum>{sums}</oc:checksum>"} if sums else {}),
    }


def etag_of(store: Store, ref: MessageRef) -> str:
    return f'"{store.node(ref.disk).etag}"'


def content_type(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"
