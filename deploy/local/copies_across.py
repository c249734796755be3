"""COPY from one site's folder into another's, which wsgidav refuses. Only who may enter every folder may do this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote, urlsplit

from wsgidav import dav_error
from wsgidav.dav_error import DAVError
from wsgidav.mw.base_mw import BaseMiddleware

from deploy.local.atomic_files import AtomicFile, AtomicProvider

AGGREGATOR = "aggregator"
Respond = Callable[..., Any]


class CopiesAcross(BaseMiddleware):  # type: ignore[misc]  # wsgidav has no types
    """Stands between wsgidav's authentication and its request handling."""

    def __call__(self, environ: dict[str, Any], start_response: Respond) -> Iterable[bytes]:
        """Answer a COPY into another folder; pass everything else on."""
        if environ["REQUEST_METHOD"] == "COPY" and environ.get("wsgidav.auth.user_name") == AGGREGATOR:
            share, path = self._destination(environ.get("HTTP_DESTINATION", ""))
            if share != environ["SCRIPT_NAME"]:
                status = _copy(environ, self.wsgidav_app.provider_map.get(share), path)
                start_response(dav_error.get_http_status_string(status), [("Content-Length", "0")])
                return []
        answer: Iterable[bytes] = self.next_app(environ, start_response)
        return answer

    @staticmethod
    def _destination(address: str) -> tuple[str, str]:
        """Return the folder that an address names, as in ``/north``, and the path inside it."""
        _, site, *inside = unquote(urlsplit(address).path).split("/")
        if not site or not inside:
            raise DAVError(dav_error.HTTP_BAD_REQUEST, "Destination names no folder")
        return f"/{site}", "/" + "/".join(inside)


def _copy(environ: dict[str, Any], target_provider: AtomicProvider | None, path: str) -> int:
    """Copy the file that was asked for; return the status that says so."""
    source = environ["wsgidav.provider"].get_resource_inst(environ["PATH_INFO"], environ)
    if source is None:
        raise DAVError(dav_error.HTTP_NOT_FOUND)
    if target_provider is None or not isinstance(source, AtomicFile):
        raise DAVError(dav_error.HTTP_FORBIDDEN)
    existing = target_provider.get_resource_inst(path, environ)
    if existing is not None and (existing.is_collection or environ.get("HTTP_OVERWRITE") == "F"):
        raise DAVError(dav_error.HTTP_PRECONDITION_FAILED)
    if target_provider.get_resource_inst(path.rpartition("/")[0] or "/", environ) is None:
        raise DAVError(dav_error.HTTP_CONFLICT)
    source.copy_to(target_provider.place_of(path, environ))
    status: int = dav_error.HTTP_CREATED if existing is None else dav_error.HTTP_NO_CONTENT
    return status
