"""What names a repository: ORG/NAME, or a link to its page."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*[A-Za-z0-9][\w.-]*", re.ASCII)
_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})


def hub_name(text: str) -> tuple[str, str | None] | None:
    """The repository that `text` names and the revision it names with it, if any; None for what looks like neither.

    Whether there is a directory called ORG/NAME is asked first, by the caller. A link is what the address bar shows on a
    model's page, `https://huggingface.co/ORG/NAME` or `.../ORG/NAME/tree/REVISION`, on the hub or on HF_ENDPOINT's host.
    """
    if _NAME.fullmatch(text):
        return text, None
    try:
        link = urlsplit(text)
        host = (link.hostname or "").lower()
        hosts = _HOSTS | {urlsplit(os.environ.get("HF_ENDPOINT", "")).hostname}
    except ValueError:
        return None
    if link.scheme not in ("http", "https") or host not in hosts:
        return None
    match link.path.strip("/").split("/"):
        case [organisation, repository]:
            revision = None
        case [organisation, repository, "tree", last]:
            revision = unquote(last)
        case _:
            return None
    name = f"{organisation}/{repository}"
    return (name, revision) if _NAME.fullmatch(name) else None
