"""The HTTP server of the dashboard and of the embedded WebDAV server."""

from __future__ import annotations

import logging

from cheroot import wsgi

logger = logging.getLogger(__name__)


class QuietServer(wsgi.Server):
    """cheroot without tracebacks about clients that hang up."""

    def error_log(self, msg: str = "", level: int = 20, traceback: bool = False) -> None:
        """Log for developers only."""
        logger.debug("%s", msg)
