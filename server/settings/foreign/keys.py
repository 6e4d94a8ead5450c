"""API keys in variables of other servers: a server that came with one must not stand open.

A key that a known server reads is taken as the API key. Another variable that looks like a server's secret ends the start, for
its meaning is unknown. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

API_KEYS: Mapping[str, str | None] = {
    "VLLM_API_KEY": None, "SGLANG_API_KEY": None, "APHRODITE_API_KEY": None, "INFINITY_API_KEY": None,
    "LLAMA_API_KEY": ",", "LLAMA_ARG_API_KEY": ",", "LOCALAI_API_KEY": ",",
}  # fmt: skip
"""Variables of API keys, each with what separates several in it."""
_FILE = "LLAMA_ARG_API_KEY_FILE"
"""Names a file with a key in each line, which is the form of --api-key-file."""
_TGI = "API_KEY"
"""The key of Text Generation Inference and of Text Embeddings Inference, whose variables have no prefix: it is theirs beside
MODEL_ID, which they need."""
_SERVERS = (
    "VLLM", "SGLANG", "SGL", "LLAMA", "LLAMACPP", "LLAMA_CPP", "LLAMAFILE", "OLLAMA", "TGI", "TEI", "LMDEPLOY", "APHRODITE",
    "TABBY", "TABBYAPI", "LOCALAI", "INFINITY", "XINFERENCE", "TRTLLM", "KOBOLDCPP", "MISTRALRS",
)  # fmt: skip
_SECRET = rf"({'|'.join(_SERVERS)})_(\w+_)?(API_KEYS?|API_KEYS?_FILE|ADMIN_KEYS?|MASTER_KEY|AUTH_TOKEN|API_TOKEN|PASSWORD)"
"""Compiled at the first name that begins so: most starts have none, and clients wait for the port."""
PREFIXES = ("VLLM_", "SGLANG_", "LLAMA_ARG_", "OLLAMA_")
"""Of variables of other servers."""
_OF_CLIENTS = frozenset({"OLLAMA_API_KEY"})
"""Keys that a client sends: Ollama's own server asks for none, and its client opens ollama.com with this one."""


class UnknownSecret(ValueError):
    """One line about a variable that looks like the secret of another server."""


@dataclass(frozen=True, slots=True)
class ForeignAccess:
    """What the environment says of access, in variables of other servers. `keys` and `file` are in force unless the
    server has keys of its own."""

    keys: Mapping[str, tuple[str, ...]]
    """API keys by the name of their variable."""
    file: str | None
    """File of API keys."""
    empty: tuple[str, ...]
    """Variables of keys that are there without a value."""

    @property
    def names(self) -> tuple[str, ...]:
        """Variables that are in use, in alphabetical order."""
        return tuple(sorted([*self.keys, *((_FILE,) if self.file else ())]))


def foreign_access(environ: Mapping[str, str]) -> ForeignAccess:
    """Read keys from the variables of other servers. Raises UnknownSecret."""
    separated = dict(API_KEYS)
    if environ.get("MODEL_ID"):
        separated[_TGI] = None
    keys, empty = {}, []
    for name in sorted(separated.keys() & environ.keys()):
        value = environ[name]
        parts = (value,) if separated[name] is None else value.split(separated[name])
        if values := tuple(part.strip() for part in parts if part.strip()):
            keys[name] = values
        else:
            empty.append(name)
    for name in sorted(environ):
        if environ[name].strip() and is_secret(name) and name not in (*separated, _FILE, _TGI, *_OF_CLIENTS):
            raise UnknownSecret(
                f"{name} looks like a key of another server, and its meaning here is unknown: set COHORT_API_KEY or "
                f"COHORT_ADMIN_KEY, and unset {name}"
            )
    return ForeignAccess(keys, environ.get(_FILE, "").strip() or None, tuple(empty))


def is_secret(name: str) -> bool:
    """True for a variable that may hold a secret of another server: it is neither shown nor left to child processes."""
    if name in API_KEYS or name == _TGI:
        return True
    return name.startswith(_SERVERS) and re.fullmatch(_SECRET, name) is not None


def client_key(environ: Mapping[str, str]) -> str | None:
    """The first API key of the environment that a server started from it would accept, None without any."""
    own = environ.get("COHORT_API_KEY", "").partition(",")[0].strip()
    if own:
        return own
    try:
        return next((keys[0] for keys in foreign_access(environ).keys.values()), None)
    except UnknownSecret:
        return None


def remove_secrets(environ: MutableMapping[str, str]) -> None:
    """Take keys of other servers out of the environment, so that no child process inherits them."""
    for name in server_secrets(environ):
        del environ[name]


def server_secrets(environ: Mapping[str, str]) -> list[str]:
    """Variables that may hold a secret of another server, without those that only clients read."""
    return [name for name in environ if is_secret(name) and name not in _OF_CLIENTS]
