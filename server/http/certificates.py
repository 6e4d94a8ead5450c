"""A renewed certificate, served without a restart.

    every few seconds    stat of the files         -> the same: nothing
                         changed and settled       -> a new context of all files, in a thread
                                                      it holds together: new connections get it
                                                      it does not (a key of another certificate): the old one stays

certbot and Kubernetes replace links, so what is compared is the file at the end of them. Connections that are open keep what
they began with. Contexts are replaced as a whole: an authority that is taken out of the file is gone, and no session of an old
context is resumed.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any, Self

import structlog

from server.http.tls import server_context
from server.settings.load import SettingsError
from server.settings.table import Settings

log = structlog.get_logger("server")

INTERVAL = 2.0
"""Seconds between two looks at the files. A look takes some ten microseconds, in a thread."""
_SETTLED = 0.1
"""Age in seconds from which a file is taken for written to its end."""
_Signature = tuple[tuple[int, ...] | None, ...]


class RenewedContext(ssl.SSLContext):
    """Hands each new connection to the newest of several contexts."""

    newest: ssl.SSLContext

    def __new__(cls, first: ssl.SSLContext) -> Self:
        """An instance that begins with `first`."""
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.newest = first
        return context

    def __init__(self, first: ssl.SSLContext) -> None:
        pass

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection. See SSLContext."""
        return self.newest.wrap_bio(*arguments, **options)


class Certificates:
    """The certificate, key and authorities that settings name, as their files are now. One writer of `context.newest`: the look
    at the files."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError for what `server_context` raises it."""
        self._settings = settings
        names = (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs)
        self._paths = [name for name in names if name is not None]
        self._served = self._signature()
        first = server_context(settings)
        assert first is not None
        self.context = RenewedContext(first)
        self._fault: str | None = None
        self._faults = 0
        """Looks in a row that have met `_fault`."""

    async def run(self) -> None:
        """Look at the files until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            await asyncio.to_thread(self.look)

    def look(self) -> bool:
        """Serve what the files hold if they have changed. Returns whether new connections get something else now."""
        before = self._signature()
        if before == self._served:
            self._fault = None
            return False
        if self._is_being_written(before):
            return False
        try:
            context = server_context(self._settings)
        except (SettingsError, OSError) as error:
            self._complain(str(error))
            return False
        if context is None or self._signature() != before:
            return False  # of two versions perhaps: the next look sees one
        self.context.newest, self._served = context, before
        self._fault, self._faults = None, 0
        log.info("the certificate was read again: new connections get it", file=self._settings.ssl_certfile)
        return True

    def _complain(self, fault: str) -> None:
        """Certificate and key are replaced one after the other: what is wrong once is said when it is still wrong at the next
        look."""
        self._faults = self._faults + 1 if fault == self._fault else 1
        self._fault = fault
        if self._faults == 2:
            log.warning(f"{fault}; the certificate that was read before is served on")

    def _signature(self) -> _Signature:
        """What changes with the files; None for one that cannot be looked at."""
        return tuple(map(_stat, self._paths))

    def _is_being_written(self, signature: _Signature) -> bool:
        now = time.time_ns()
        return any(one is not None and abs(now - one[3]) < _SETTLED * 1e9 for one in signature)


def certificates_of(settings: Settings) -> Certificates | None:
    """The certificates of a server, None for plain HTTP. Raises SettingsError."""
    if settings.ssl_certfile is not None:
        return Certificates(settings)
    server_context(settings)  # raises where another setting asks for TLS
    return None


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        now = Path(path).stat()
    except OSError:
        return None
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
