"""Settings from a YAML file, the environment (COHORT_*) and flags; flags win over the environment, which wins over the file.

All three use the names of the table and are checked by it: an unknown name or a value that does not fit raises SettingsError. API
keys in variables of other servers count where none of the three names any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from server.settings.config_file import from_file
from server.settings.environment import SettingsError, foreign_keys, from_environment, nearest
from server.settings.foreign.keys import PREFIXES
from server.settings.host_names import fault_of
from server.settings.readers import Unfit
from server.settings.table import CONFIG, TABLE, Settings

__all__ = ["DEFAULT_PRESET", "SettingsError", "load"]

DEFAULT_PRESET = "default"

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,*]+", re.IGNORECASE | re.ASCII)
_HTTP_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""What HTTP accepts as the name of a method or header."""


def load(flags: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The settings, and a line for the log about each variable that was ignored or belongs to another server.

    `flags` maps names of settings, and `config`, to what the command line has given for them; None and [] mean "not given".
    Raises SettingsError.
    """
    flag_values = {name: value for name, value in flags.items() if value is not None and value != []}
    from_env, notes = from_environment(environ)
    flag, variable = flag_values.pop(CONFIG.name, None), from_env.pop(CONFIG.name, None)
    config = flag or variable
    if config is None and "model" not in flag_values and "model" not in from_env:
        config = DEFAULT_PRESET
    file_values, on_file = from_file(config) if config is not None else ({}, [])
    notes += on_file
    for name in flag_values:
        if name not in TABLE:
            raise SettingsError(f"--{name.replace('_', '-')}: no such setting{nearest(name, TABLE)}")
    values: dict[str, Any] = {}
    for name, row in TABLE.items():
        for source, layer in (
            (row.flag, flag_values),
            (row.variable, from_env),
            (f"{config}: {name}", file_values),
        ):
            if name in layer:
                try:
                    values[name] = row.value_of(layer[name])
                except Unfit as fault:
                    quoted = "" if row.secret else f" (not {str(fault.value)[:100]!r})"
                    raise SettingsError(f"{source}: {fault}{quoted}") from None
                break
    has_keys = bool(values.get("api_key") or values.get("api_key_file"))
    from_others, on_keys = foreign_keys(environ, values.get("api_key", ()), has_keys=has_keys)
    values |= from_others
    notes += [*on_keys, *_foreign_notes(environ)]
    settings = Settings(**values, explicit=frozenset(values))
    if message := _conflict(settings):
        raise SettingsError(message)
    return settings, notes


def _foreign_notes(environ: Mapping[str, str]) -> list[str]:
    """Lines about variables of other servers. The tables are imported where there are any: clients wait for the port."""
    if not any(name.startswith(PREFIXES) or name in ("MODEL_ID", "API_KEY") for name in environ):
        return []
    from server.settings.foreign.variables import foreign_notes

    return foreign_notes(environ)


def _conflict(settings: Settings) -> str | None:
    """A sentence about settings that do not go together, None if all do."""
    tokens, seqs = settings.max_num_batched_tokens, settings.max_num_seqs
    if tokens is not None and seqs is not None and tokens < seqs:
        return (
            f"--max-num-batched-tokens {tokens} is less than --max-num-seqs {seqs}: a step has a token for every running "
            f"sequence"
        )
    if settings.cache_salt_per_key and not settings.needs_key:
        return "--cache-salt-per-key has no effect without --api-key or --api-key-file"
    return _cors_fault(settings) or _hosts_fault(settings)


def _cors_fault(settings: Settings) -> str | None:
    """What is wrong with the settings for pages of other origins, None if nothing is."""
    origins = settings.allowed_origins
    if not origins:
        for name in ("allowed_methods", "allowed_headers", "allow_credentials"):
            if name in settings.explicit and getattr(settings, name):
                return f"{TABLE[name].flag} has no effect without --allowed-origins"
        return None
    if settings.allow_credentials and "*" in origins:
        return "--allow-credentials with --allowed-origins '*': every page could act for its visitors; name the origins"
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            return f"--allowed-origins {origin[:100]!r}: it should be '*', or such as https://app.example.com, without a path"
    names = [("--allowed-methods", name) for name in settings.allowed_methods]
    names += [("--allowed-headers", name) for name in settings.allowed_headers]
    return next(
        (f"{flag} {name[:100]!r}: no such name" for flag, name in names if not _HTTP_NAME.fullmatch(name)),
        None,
    )


def _hosts_fault(settings: Settings) -> str | None:
    """What is wrong with --allowed-hosts, None if nothing is."""
    faults = ((name, fault_of(name)) for name in settings.allowed_hosts)
    return next((f"--allowed-hosts {name[:100]!r}: {fault}" for name, fault in faults if fault), None)
