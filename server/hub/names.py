"""What names a repository, or a GGUF file of one.

ORG/NAME                      the repository
ORG/NAME:Q4_K_M               its GGUF file in this quantization
ORG/NAME/FOLDER/FILE.gguf     this file of it
https://huggingface.co/...    the link to any of them
hf.co/ORG/NAME...             the same; Ollama's form
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*[A-Za-z0-9][\w.-]*", re.ASCII)
_QUANTIZATION = re.compile(r"\w[\w.-]*", re.ASCII)
_HOST = re.compile(r"(?:hf|(?:www\.)?huggingface)\.co/(?=[^/]+/)")
_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})


class HubName(NamedTuple):
    """A repository, the revision that a link names, and the quantization or file that is wanted of it; None: not named."""

    repository: str
    revision: str | None = None
    gguf: str | None = None


def hub_name(text: str) -> HubName | None:
    """Return what `text` names on the hub; None for anything else.

    The caller first checks whether it names something on this disk. A link is what the address bar shows on a model's page,
    `https://huggingface.co/ORG/NAME`, `.../tree/REVISION` or `.../blob/REVISION/FILE.gguf`, on the hub or on HF_ENDPOINT's host.
    """
    if (hub_name_read := _named(without_host(text))) is not None:
        return hub_name_read
    try:
        link = urlsplit(text)
        hostname = (link.hostname or "").lower()
        hosts = _HOSTS | {urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname}
    except ValueError:
        return None
    if link.scheme not in ("http", "https") or hostname not in hosts:
        return None
    revision, file = None, None
    match link.path.strip("/").split("/"):
        case [organisation, repository]:
            pass
        case [organisation, repository, "tree", last]:
            revision = unquote(last)
        case [organisation, repository, "blob" | "resolve", middle, *path] if path:
            revision, file = unquote(middle), unquote("/".join(path))
        case _:
            return None
    short_name = _named(f"{organisation}/{repository}" + (f"/{file}" if file else ""))
    return None if short_name is None else short_name._replace(revision=revision)


def without_host(text: str) -> str:
    """Return a name without the hub's host before it, as in `hf.co/ORG/NAME`; a link is left as it is."""
    return text[match.end() :] if (match := _HOST.match(text)) else text


def _named(text: str) -> HubName | None:
    if _NAME.fullmatch(text):
        return HubName(text)
    organisation, _, rest = text.partition("/")
    repository, slash, file = rest.partition("/")
    if slash:
        plain = file.endswith(".gguf") and not {"", ".", ".."} & set(file.split("/"))
        repository, selector = f"{organisation}/{repository}", file if plain else None
    else:
        repository, _, quantization = text.partition(":")
        selector = quantization if _QUANTIZATION.fullmatch(quantization) else None
    return HubName(repository, None, selector) if selector and _NAME.fullmatch(repository) else None
