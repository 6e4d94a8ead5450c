"""`cohort doctor --bundle FILE`: what a bug report needs, in one archive, without secrets.

    doctor.json packages.json environment.json    this installation and this machine
    server/NAME.json, server/metrics.txt          answers of a running server, as far as the keys allow
    missing.json                                  what is not there, and why

Every text goes through `Redactor` before it is written.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.settings.foreign.keys import is_secret
from server.settings.kinds import ENV_PREFIX
from server.settings.table import TABLE

REMOVED = "(removed)"
STORIES = 200
"""Number of the last requests whose stories are taken."""

ANSWERS = (
    ("version", "/version"), ("ready", "/ready"), ("health", "/health"), ("models", "/v1/models"),
    ("executors", "/v1/executors"), ("settings", "/v1/settings"), ("requests", f"/v1/requests?limit={STORIES}"),
)  # fmt: skip
"""Names of files, and paths of JSON answers."""
_ADMIN = frozenset({"settings", "requests"})
_OTHER_VARIABLES = (
    "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HOME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD", "MALLOC_ARENA_MAX", "LANG",
)  # fmt: skip
"""Variables besides COHORT_* that change what the server does. No others are read: any may be a secret."""
_SECRET_NAME = re.compile(
    r"(^|[_-])(api[_-]?key|keys?|token|secret|password|passwd|authorization|credentials?)$", re.IGNORECASE
)
_NOT_SECRET = frozenset({"key"})
"""In stories and metrics `key` is the name of an API key."""
_SECRETS = (
    re.compile(r"(?<=://)[^/@\s\"']+(?=@)"),
    re.compile(r"(?i)(?<=[?&])[\w.-]*(?:key|token|secret|password|signature|sig)=[^&\s\"'\\]+"),
    re.compile(r"\b(?:hf|sk|pk|ghp|gho|glpat|xox[abp])[_-][A-Za-z0-9_-]{6,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),
    re.compile(r"(?i)(?<=bearer )[^\s\"'\\]+"),
)
"""User and password of an address, secrets among its parameters, tokens of well-known services, JSON web tokens, and keys in
headers."""


class Redactor:
    """Removes known secrets, what looks like one, and the name of the home directory."""

    def __init__(self, secrets: Iterable[str], home: str | None = None) -> None:
        # The longest first: one may be part of another.
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        self._home = home

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._secrets:
            text = text.replace(secret, REMOVED)
        for pattern in _SECRETS:
            text = pattern.sub(REMOVED, text)
        return text.replace(self._home, "~") if self._home and self._home != "/" else text

    def data(self, value: Any, name: str = "") -> Any:
        """Plain data without secrets; `name` is that of the field."""
        if isinstance(value, Mapping):
            return {self.text(str(one)): self.data(inner, str(one)) for one, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(one, name) for one in value]
        if isinstance(value, str):
            secret = _SECRET_NAME.search(name) and name not in _NOT_SECRET
            return REMOVED if secret and value else self.text(value)
        return value


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """Keys for a server's paths; None: ask without one."""

    api: str | None = None
    admin: str | None = None
    metrics: str | None = None


def write_bundle(
    path: Path,
    facts: Mapping[str, Any],
    *,
    url: str,
    keys: ClientKeys,
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Write the archive, readable by its owner only. Returns what is missing, with reasons. Raises OSError, also if the
    file exists."""
    own_keys = (one or "" for one in (keys.api, keys.admin, keys.metrics))
    redactor = Redactor([*secrets_of(environ), *own_keys], str(Path.home()))
    answers, missing = _ask(url, keys)
    files: dict[str, Any] = {
        "doctor.json": facts,
        "packages.json": _packages(),
        "environment.json": environment(environ),
        **answers,
        "missing.json": missing,
    }
    root = f"cohort-bundle-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    with (
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
        tarfile.open(fileobj=out, mode="w:gz") as archive,
    ):
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{root}/{name}")
            written = _written(content, redactor)
            entry.size, entry.mtime, entry.mode = len(written), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(written))
    return {name: redactor.text(reason) for name, reason in missing.items()}


def _written(content: Any, redactor: Redactor) -> bytes:
    if isinstance(content, str):
        return redactor.text(content).encode()
    return json.dumps(redactor.data(content), indent=1, ensure_ascii=False).encode() + b"\n"


def secrets_of(environ: Mapping[str, str]) -> list[str]:
    """The values of variables that hold secrets, and of lists the parts."""
    names = [row.variable for row in TABLE.values() if row.secret] + [
        name for name in environ if is_secret(name)
    ]
    secrets = [environ[name] for name in (*names, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if environ.get(name)]
    return [*secrets, *(part.strip() for value in secrets for part in value.split(","))]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """COHORT_* and a few other variables; a secret's value is removed."""
    secret = {row.variable for row in TABLE.values() if row.secret}
    return {
        name: REMOVED if name in secret else environ[name]
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) or name in _OTHER_VARIABLES
    }


def _packages() -> dict[str, str]:
    from importlib import metadata

    return dict(sorted((one.metadata["Name"] or "", one.version) for one in metadata.distributions()))


def _ask(url: str, keys: ClientKeys) -> tuple[dict[str, Any], dict[str, str]]:
    """Answers of the server by names of files, and why others are missing."""
    import asyncio

    from clients.http import BenchFault, Client

    try:
        api = Client(url, keys.api)
        others = {"metrics": Client(url, keys.metrics)} | dict.fromkeys(_ADMIN, Client(url, keys.admin))
    except BenchFault as fault:
        return {}, {"server": str(fault)}
    return asyncio.run(_ask_all(api, others))


async def _ask_all(api: Any, others: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    from clients.http import Broken, Refused, complaint, reason

    files: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, path in (*ANSWERS, ("metrics", "/metrics")):
        try:
            body = await others.get(name, api).fetch("GET", path)
        except Refused as refused:
            if name in ("ready", "health"):  # a server that loads or recovers tells its stage so
                files[f"server/{name}.json"] = _decoded(refused.body)
                continue
            missing[name] = f"{path}: {refused.status} {complaint(refused.body)}"
        except (Broken, OSError) as error:
            missing[name] = f"{path}: {reason(error)}"
        else:
            file = f"server/{name}.txt" if name == "metrics" else f"server/{name}.json"
            files[file] = body.decode("utf-8", "replace") if name == "metrics" else _decoded(body)
    return files, missing


def _decoded(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
