"""What went wrong with a download, in one sentence: which repository, and what to do. For the child, which has the library."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import httpx2
from huggingface_hub import constants, errors

from server.hub.files import HubError, HubNotYet

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_NETWORK = (httpx2.ConnectError, httpx2.TimeoutException, httpx2.ProxyError)


def explain(error: BaseException, name: str, revision: str | None, cache: Path) -> str:
    """One sentence for anything that a download may raise. `name` is the repository's, `cache` where it was to go."""
    if isinstance(error, HubError):
        return str(error)
    chain = list(_chain(error))
    for one in chain:
        if sentence := _refusal(one, name, revision):
            return sentence
    for one in chain:
        if isinstance(one, OSError) and one.errno in _FULL:
            return (
                f"{name}: the disk of {cache} is full: make room and start again, which goes on where it "
                "stopped, or name another place with --download-dir"
            )
        if isinstance(one, OSError) and one.errno in _FORBIDDEN:
            return f"{name}: {cache} cannot be written to ({one.strerror}): name another place with --download-dir"
    if constants.HF_HUB_OFFLINE:
        return offline(name, revision, cache)
    return _no_connection(chain, name, cache) or _unknown(error, name)


def may_pass(error: BaseException) -> bool:
    """Whether the same download may succeed later, without a change of settings or of the repository."""
    if isinstance(error, HubError):
        return isinstance(error, HubNotYet)
    chain = list(_chain(error))
    if any(isinstance(one, OSError) and one.errno in _FULL for one in chain):
        return True
    if any(_refusal(one, "", None) or isinstance(one, errors.FileMetadataError) for one in chain):
        return False
    if any(isinstance(one, OSError) and one.errno in _FORBIDDEN for one in chain):
        return False
    return not constants.HF_HUB_OFFLINE


def offline(name: str, revision: str | None, cache: Path) -> str:
    """HF_HUB_OFFLINE is set, and something is missing."""
    which = f"revision {revision} of {name}" if revision else name
    return (
        f"{which} is not, or not completely, in the cache {cache}, and HF_HUB_OFFLINE forbids to fetch it: start once "
        "without HF_HUB_OFFLINE, or give a directory"
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _refusal(error: BaseException, name: str, revision: str | None) -> str | None:
    """What the hub itself answered, or what no hub would take."""
    hub, with_token = constants.ENDPOINT, bool(os.environ.get("HF_TOKEN"))
    match error:
        case errors.GatedRepoError():
            conditions = f"{name} is gated: accept its conditions at {hub}/{name}"
            if with_token:
                return f"{conditions} with the account of the token in HF_TOKEN, which has no access yet"
            return f"{conditions}, then set HF_TOKEN to a token of that account"
        case errors.RevisionNotFoundError():
            return f"{name} has no revision {revision or 'main'}: check --revision against {hub}/{name}"
        case errors.DisabledRepoError():
            return f"{name} was disabled by {hub}: take another repository"
        case errors.RepositoryNotFoundError():
            hint = "the token in HF_TOKEN may not see it" if with_token else "set HF_TOKEN if it is private"
            return f"no directory {name} here, and no repository {name} at {hub}: check the name, or {hint}"
        case errors.HfHubHTTPError() if error.response.status_code in (401, 403):
            advice = "check HF_TOKEN" if with_token else "set HF_TOKEN to a token that may read it"
            return f"{name}: {hub} denies access ({error.response.status_code}): {advice}"
        case errors.HFValidationError():
            return f"{name} is neither a directory nor a name that a hub repository can have: check the name"
    return None


def _no_connection(chain: list[BaseException], name: str, cache: Path) -> str | None:
    hub = constants.ENDPOINT
    for one in chain:
        if isinstance(one, errors.HfHubHTTPError):
            code = one.response.status_code
            return f"{name}: {hub} answered with status {code}: try again later, or give a directory"
        if isinstance(one, errors.FileMetadataError):
            return f"{name}: {hub} does not answer as a hub does: check HF_ENDPOINT and the proxy"
        if isinstance(one, _NO_NETWORK):
            return (
                f"{name} is not, or not completely, in the cache {cache}, and {hub} cannot be reached "
                f"({_first_line(one)}): check the network, or give a directory"
            )
        if isinstance(one, httpx2.TransportError) or "Consistency check" in str(one):
            return f"{name}: the connection to {hub} broke off: start again, which goes on where it stopped"
    return None


def _unknown(error: BaseException, name: str) -> str:
    return (
        f"{name} could not be fetched from {constants.ENDPOINT}: {type(error).__name__}: {_first_line(error)}"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
