"""The same content in several folders of one server: sent once, and copied there by the server itself.

The aggregator gives every site the same model. Where its account may enter several folders of one server, one folder
gets the model by upload and the others by COPY; who comes while the upload goes on waits for it. A server that cannot
copy from folder to folder is found out once and not asked again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from threading import Lock

from shared.errors import NotFoundError

Account = tuple[str, str]
"""A server, and a user on it."""


class Copies:
    """What was uploaded, and where; shared by the folders of one process and safe between its threads."""

    def __init__(self) -> None:
        self._places: dict[tuple[Account, str], str] = {}
        self._turns: defaultdict[tuple[Account, str], Lock] = defaultdict(Lock)
        self._unable: set[Account] = set()
        self._lock = Lock()

    def put(
        self, account: Account, sha256: str, place: str, *, upload: Callable[[], None], copy: Callable[[str], bool]
    ) -> None:
        """Bring content to ``place``, a path on the server.

        Args:
            sha256: of the content.
            upload: sends it.
            copy: given a place with the same content, has the server copy it; False if the server cannot. Raises
                ``NotFoundError`` if that content is not there any more.
        """
        key = (account, sha256)
        with self._lock:
            turn = self._turns[key]
        while account not in self._unable:
            with turn:
                original = self._places.get(key)
                if original in (None, place):
                    upload()
                    self._places[key] = place
                    return
            try:
                if copy(original):
                    return
                upload()
                self._unable.add(account)
                return
            except NotFoundError:  # removed or changed meanwhile: one sends it again
                with turn:
                    if self._places.get(key) == original:
                        del self._places[key]
        upload()
