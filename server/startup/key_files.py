"""The keys of a server by its settings: those of clients, those of the administrator, and one that is made for a terminal."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from server.http.keys import KeyFileFault, Keys
from server.models.declared import serves_several
from server.settings.load import SettingsError
from server.settings.table import Settings


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """Keys of clients and of the administrator. `minted`: the admin key that was made for this start, to be shown once."""

    api: Keys
    admin: Keys
    minted: str | None = None

    def names(self) -> list[str]:
        """Names under which calls of clients may be counted: where clients need keys, the admin keys open their paths too."""
        keys = (*self.api.current(), *self.admin.current()) if self.api else ()
        return [key.name for key in keys]


def read_keys(settings: Settings, *, terminal: bool) -> ServerKeys:
    """The keys. Where no admin key is given, one is made if a person can see it: `terminal` says so of stderr. Logs are collected
    and kept by machines, so a key in them would be known to all who read logs.

    Raises SettingsError for a file without keys.
    """
    admin_key, minted = settings.admin_key, None
    if admin_key is None and settings.admin_key_file is None and terminal:
        admin_key = minted = secrets.token_urlsafe(24)
    admin = () if admin_key is None else (admin_key,)
    several = serves_several(settings)
    return ServerKeys(
        _keys("--api-key-file", settings.api_key, settings.api_key_file, "key", limits=several),
        _keys("--admin-key-file", admin, settings.admin_key_file, "admin"),
        minted,
    )


def worker_keys(settings: Settings, minted: str | None) -> ServerKeys:
    """The keys of an API worker, whose server has the admin key `minted`. A file that cannot be read has no keys: a worker that
    takes a dead one's place does not fail for it, since the server would not either."""
    admin = settings.admin_key or minted
    return ServerKeys(
        Keys(settings.api_key, settings.api_key_file, checked=False),
        Keys(() if admin is None else (admin,), settings.admin_key_file, label="admin", checked=False),
        minted,
    )


def _keys(flag: str, flag_keys: tuple[str, ...], file: str | None, label: str, limits: bool = False) -> Keys:
    try:
        return Keys(flag_keys, file, label=label, limits=limits)
    except KeyFileFault as fault:
        raise SettingsError(f"{flag} {fault}") from None
