"""Settings from the environment: COHORT_*, and the API keys of other servers. An empty variable counts as one that is not set.

Compose files and scripts pass `COHORT_PORT=${PORT:-}`, which is empty where there is no PORT. The exception: an empty API key is
a secret that was not filled in, and a server without it would stand open.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from server.settings.foreign.keys import ForeignAccess, UnknownSecret, foreign_access
from server.settings.kinds import ENV_PREFIX
from server.settings.table import CONFIG, TABLE

NEVER_EMPTY = ("api_key", "api_key_file", "metrics_key")
"""Settings without which something stands open."""

_KUBERNETES = re.compile(r"(\w+_)?SERVICE_(HOST|PORT)(_\w+)?|PORT_\w+|\w+_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?")
_KUBERNETES_PORT = re.compile(r"(\w+_)?PORT")
_KUBERNETES_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")
"""What Kubernetes sets in every pod for a Service called "cohort" or "cohort-something", such as
COHORT_PORT=tcp://10.0.0.1:8000."""


class SettingsError(Exception):
    """One line that says which setting is wrong and which values it accepts."""


def from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The values of variables by name of the setting, and a line for the log about each that is ignored.

    Raises SettingsError.
    """
    values: dict[str, Any] = {}
    notes = []
    by_variable = {row.variable: row.name for row in (*TABLE.values(), CONFIG)}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX):
            continue
        rest, value = variable.removeprefix(ENV_PREFIX), environ[variable]
        is_address = _KUBERNETES_PORT.fullmatch(rest) and _KUBERNETES_ADDRESS.fullmatch(value)
        if is_address or _KUBERNETES.fullmatch(rest):
            notes.append(f"{variable} is a Kubernetes service link, not a setting: ignored")
        elif not value and by_variable.get(variable) not in NEVER_EMPTY:
            continue
        elif not value:
            raise SettingsError(f"{variable}: it is given but empty; leave it out to serve without a key")
        elif variable in by_variable:
            values[by_variable[variable]] = value
        else:
            names = [name.upper() for name in by_variable.values()]
            raise SettingsError(f"{variable}: no such setting{nearest(rest.upper(), names, ENV_PREFIX)}")
    return values, notes


def foreign_keys(
    environ: Mapping[str, str], own: Collection[str], *, has_keys: bool
) -> tuple[dict[str, Any], list[str]]:
    """API keys of other servers' variables as values of settings, and lines for the log.

    `own`: API keys of the server's own settings; `has_keys`: whether these name keys or a file of keys, which then are in force
    alone. Raises SettingsError.
    """
    try:
        access = foreign_access(environ)
    except UnknownSecret as error:
        raise SettingsError(str(error)) from None
    if has_keys:
        differing = [name for name in access.names if not set(access.keys.get(name, (name,))) <= set(own)]
        return {}, [f"{name} is not in force: --api-key or --api-key-file is" for name in differing]
    notes = [
        f"{name} is taken as the API key; its name here is {_own_name(name, access)}" for name in access.names
    ]
    if not access.names:
        notes += [f"{name} is empty: requests need no key" for name in access.empty]
    values: dict[str, Any] = {}
    if access.keys:
        values["api_key"] = tuple(dict.fromkeys(key for keys in access.keys.values() for key in keys))
    if access.file:
        values["api_key_file"] = access.file
    return values, notes


def _own_name(variable: str, access: ForeignAccess) -> str:
    return TABLE["api_key" if variable in access.keys else "api_key_file"].variable


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """A hint, or "" where nothing is near. `prefix` is what all names have in common, which makes none of them nearer."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
