"""API keys and their names: keys given at the start, and those of a file that is read again when it changes.

    # a comment
    KEY
    NAME KEY
    NAME KEY models=chat,embed-*

A line is a key, with or without a name before it. `models`: patterns of the names of models that the key's client may know; all
others do not exist for it. Several keys may have one name, so that a client can change its key without a
moment in which neither works. Files are compared by what `stat` says of them, which takes microseconds, on every request: a key
that is taken out of the file fails on the request after.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

log = structlog.get_logger("server")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MODELS = "models="
_MAX_BYTES = 1 << 20
_SETTLED = 0.1
"""Age in seconds from which a file's times tell it apart from the next version: those of two writes within one tick of the
kernel's clock are equal."""


class KeyFileFault(Exception):
    """A key file that cannot be used. The message is one line and repeats no key."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its name for logs and metrics, its hash, and the identity of its owner."""

    name: str
    digest: bytes
    tenant: str
    """Hash of the name that the operator gave, or of the key where it has none: two keys of one name are one tenant."""
    models: tuple[str, ...] | None = None
    """Patterns of the names of models that it is limited to; None: all."""


class Keys:
    """The keys that one kind of path accepts."""

    def __init__(
        self,
        flag_keys: Iterable[str] = (),
        file: str | None = None,
        *,
        label: str = "key",
        checked: bool = True,
        limits: bool = False,
    ) -> None:
        """`flag_keys`: keys of flags or variables, named `LABEL-1`, `LABEL-2`, ... in the logs. `limits`: whether keys may be
        limited to models. Raises KeyFileFault if the file cannot be read or holds no key; without `checked` it is read with the
        first request."""
        self._label = label
        self._limits = limits
        self._from_flags = tuple(
            _unnamed(f"{label}-{number}", key.encode("utf-8", "surrogateescape"))
            for number, key in enumerate(flag_keys, 1)
        )
        self._path = None if file is None else Path(file)
        self._last_signature: tuple[int, ...] | None = None
        self._from_file: tuple[Key, ...] = ()
        self._faults: list[str] = []
        if self._path is not None and checked:
            try:
                self._last_signature = _signature(self._path)
                self._from_file, faults = parse_keys(_read(self._path), label, limits)
            except (KeyFileFault, OSError) as fault:
                raise KeyFileFault(f"{self._path}: {fault}") from None
            if faults or not self._from_file:
                raise KeyFileFault(f"{self._path}: {faults[0] if faults else 'it holds no key'}")

    def __bool__(self) -> bool:
        """True if keys are required. A file requires them also while it holds none."""
        return bool(self._from_flags) or self._path is not None

    def current(self) -> tuple[Key, ...]:
        """The keys that are valid now."""
        if self._path is not None:
            self._look(self._path)
        return self._from_flags + self._from_file

    def find(self, key: bytes) -> Key | None:
        """The key that a request carries, None if it is not valid."""
        digest, match = _hash(key), None
        # Every key is compared, so that the time does not tell which one came close.
        for key_here in self.current():
            if hmac.compare_digest(digest, key_here.digest):
                match = key_here
        return match

    def _look(self, path: Path) -> None:
        """Read the file if it changed. Never keeps a key that the file no longer has: a file that cannot be read has none."""
        try:
            # Taken before reading: a change while it is read makes the next request read again.
            signature = _signature(path)
        except OSError:
            signature = ()
        if signature is not None and signature == self._last_signature:
            return
        self._last_signature = signature
        try:
            keys, faults = parse_keys(_read(path), self._label, self._limits)
        except KeyFileFault as fault:
            keys, faults = (), [str(fault)]
        if (keys, faults) == (self._from_file, self._faults):
            return
        self._from_file, self._faults = keys, faults
        for sentence in faults:
            log.error(f"{path}: {sentence}")
        log.info(f"read keys from {path}", keys=len(keys))


class AnyOf:
    """Keys of two kinds, where either opens a path."""

    def __init__(self, first: Keys, second: Keys) -> None:
        self._first, self._second = first, second

    def __bool__(self) -> bool:
        """True if keys are required."""
        return bool(self._first) or bool(self._second)

    def find(self, key: bytes) -> Key | None:
        """The key that a request carries, None if it is valid for neither kind. Both kinds are compared, so that the time does
        not tell which one it is of."""
        first, second = self._first.find(key), self._second.find(key)
        return first or second


def parse_keys(text: str, label: str = "key", limits: bool = False) -> tuple[tuple[Key, ...], list[str]]:
    """The keys of a file, and a sentence for each line that is not one. A key without a name is called `LABEL-line-N`. `limits`:
    whether keys may be limited to models."""
    keys: list[Key] = []
    faults: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        models: tuple[str, ...] | None = None
        if len(words) > 1 and words[-1].startswith(_MODELS):
            models = tuple(filter(None, words.pop().removeprefix(_MODELS).split(",")))
            if not limits:
                faults.append(
                    f"line {number}: {_MODELS} limits clients of several models, NAME=SOURCE, alone"
                )
                continue
            if not models:
                faults.append(f"line {number}: {_MODELS} names no model")
                continue
        if len(words) == 1:
            keys.append(replace(_unnamed(f"{label}-line-{number}", words[0].encode()), models=models))
        elif len(words) == 2 and _NAME.fullmatch(words[0]):
            name = words[0]
            tenant = _hash(f"name {name}".encode()).hex()[:16]
            keys.append(Key(name, _hash(words[1].encode()), tenant, models))
        else:
            faults.append(
                f"line {number}: it should be KEY, or NAME KEY with a name of letters, digits and ._@-"
            )
    return tuple(keys), faults


def _unnamed(name: str, key: bytes) -> Key:
    digest = _hash(key)
    return Key(name, digest, digest.hex()[:16])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise KeyFileFault(f"it is larger than {_MAX_BYTES} bytes")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise KeyFileFault("it is not UTF-8 text") from None
    except OSError as error:
        raise KeyFileFault(error.strerror or str(error)) from None


def _signature(path: Path) -> tuple[int, ...] | None:
    """What changes with the file; None while it is so new that a further change might not show. Raises OSError."""
    now = path.stat()
    # Where clocks differ, as on a network's file system, a file may seem to come from the future.
    if abs(time.time() - max(now.st_mtime, now.st_ctime)) < _SETTLED:
        return None
    return (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
