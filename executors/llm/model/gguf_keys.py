"""Access to a GGUF file's metadata, which keeps account of what is read, and the verdict on what is not. No torch here.

A key below the architecture's prefix (`llama.block_count`) is read; or without effect; or has an effect that this architecture
does not support, which is refused unless the value has none; or is unknown, which is refused, too: nothing says that it has no
effect. `gguf_key_table.py` has the tables.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from executors.contract.errors import ConfigError
from executors.gguf.file import GgufFile
from executors.llm.model import gguf_key_table as table
from executors.llm.model.fields import Fields
from executors.llm.model.nearest import advice

_WINDOW, _PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
_MOST_NUMBERS = 4096
"""Size of the largest tensor whose numbers are read with the metadata."""
_SUPPRESSED = "tokenizer.ggml.suppress_tokens"
_CURE = "if it does not, remove it: gguf-new-metadata --remove-metadata"


class GgufKeys(Fields):
    """The metadata below an architecture's prefix, and which of them have been read. An older name of a key is found by the
    newer one; errors have the name in the file. Raises ConfigError if both are there and differ."""

    def __init__(self, gguf: GgufFile, arch: str, written: str | None = None) -> None:
        """`arch`: llama.cpp's name of the architecture; `written`: the name before the file's keys, if it is another."""
        prefix = f"{written or arch}."
        plain = {key: _plain(value) for key, value in gguf.metadata.items() if key.startswith(prefix)}
        super().__init__(str(gguf.path), plain)
        self.gguf, self.arch, self.prefix = gguf, arch, prefix
        self.read: set[str] = set()
        for name in table.ZERO_IS_MISSING:
            if (value := plain.get(prefix + name)) == 0 and type(value) in (int, float):
                del plain[prefix + name]
        self._written: dict[str, str] = {}
        for older, newer in table.OLDER.items():
            value = plain.get(prefix + older)
            if value is None:
                continue
            if prefix + newer in plain and plain[prefix + newer] != value:
                raise ConfigError(
                    f"{self.where}: {prefix}{older} {shown(value)} and {prefix}{newer} {shown(plain[prefix + newer])} say "
                    "the same differently; remove one of the two"
                )
            plain.pop(prefix + newer, None)
            self._written[newer] = older

    def name(self, name: str) -> str:
        """Return the whole key, as the file has it."""
        whole = self.prefix + self._written.get(name, name)
        self.read.add(whole)
        return whole

    def has(self, name: str) -> bool:
        """Return whether the key is there."""
        return self.get(name) is not None

    def supply(self, name: str, value: object) -> None:
        """Set what a missing key stands for in this architecture."""
        if not self.has(name):
            self.values = {**self.values, self.name(name): value}

    def replace(self, name: str, value: object) -> None:
        """Set what a key stands for; `written` still returns what the file has."""
        self.values = {**self.values, self.name(name): value}

    def written(self, name: str) -> Any:
        """Return the value that the file has; None if it has none."""
        return _plain(self.gguf.metadata.get(self.name(name)))

    def one(self, name: str, default: int | None = None) -> int:
        """Return a positive integer that may be written once for each layer."""
        value = self.get(name)
        if isinstance(value, list):
            if not value or any(one != value[0] for one in value):
                raise ConfigError(
                    f"{self.where}: {self.name(name)} differs between layers, which is not supported"
                )
            self.values = {**self.values, self.name(name): value[0]}
        return self.natural(name, default)

    def refuse(self, name: str, supported: str) -> None:
        """Raise ConfigError for a value that is not supported."""
        raise ConfigError(
            f"{self.where}: {self.name(name)} {shown(self.get(name))} is not supported; supported: {supported}"
        )

    def check_unread(self, activation: str) -> None:
        """Raise ConfigError for a key that was not read and would change the result, or that is unknown. `activation`: the one
        that is computed."""
        newer = {older: name for name, older in self._written.items()}
        for key, value in self.values.items():
            written = key.removeprefix(self.prefix)
            name = newer.get(written, written)
            if key in self.read or table.OTHER_PARTS.fullmatch(name):
                continue
            if name == "hidden_activation" and value in table.ACTIVATIONS.get(activation, ()):
                continue
            neutral = table.REFUSED.get(name)
            if neutral is not None:
                if not neutral(value) and not self._repeats(name, value):
                    raise ConfigError(
                        f"{self.where}: {key} {shown(value)} is not supported for architecture {self.arch}{self._model_of(name)}"
                    )
            elif name not in table.HARMLESS:
                raise ConfigError(
                    f"{self.where}: {shown(key)} {shown(value)} is an unknown key, which may change the result; {_CURE} "
                    f"{shown(key)}"
                )

    def _model_of(self, name: str) -> str:
        """Return the end of a sentence that refuses a key: what another model that has this architecture's name needs."""
        model = table.OTHER_MODELS.get((self.arch, name)) or table.OTHER_MODELS.get(("", name))
        return f": {advice(model)}" if model else ""

    def _repeats(self, name: str, value: object) -> bool:
        """Return whether a key that is not read says only what holds in any case."""
        if name in (_WINDOW, _PATTERN):
            window, context = self.values.get(self.prefix + _WINDOW), self.get("context_length")
            if name == _PATTERN and self.prefix + _WINDOW in self.read and window:
                return value == 0 or (isinstance(value, list) and all(one is True for one in value))
            # A window of the whole context hides nothing, and without a window a pattern selects nothing.
            return not window or (type(window) is int and type(context) is int and window >= context)
        return name in table.SAME_AS and value == self.get(table.SAME_AS[name])


def small_floats(keys: GgufKeys, name: str, count: int) -> list[float]:
    """Return the numbers of a small float32 tensor."""
    tensor = keys.gguf.tensors.get(name)
    if tensor is None or tensor.type != "F32" or tensor.shape != (count,) or count > _MOST_NUMBERS:
        actual = "missing" if tensor is None else f"{tensor.type} of shape {list(tensor.shape)}"
        raise ConfigError(f"{keys.where}: tensor {name} is {actual}; F32 of shape [{count}] is needed")
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            raw = file.read(tensor.num_bytes)
    except OSError as error:
        raise ConfigError(f"{tensor.path}: cannot be read ({error})") from None
    numbers = np.frombuffer(raw, "<f4")
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ConfigError(f"{tensor.path}: tensor {name} is cut short or has numbers that are not finite")
    return [float(one) for one in numbers]


def check_outside(gguf: GgufFile) -> tuple[str, ...]:
    """Return notes on keys outside the architecture's prefix. Raises ConfigError for a file that is not a model and for a key
    that changes the result of others."""
    kind = _plain(gguf.metadata.get("general.type", "model"))
    if kind != "model":
        what = table.FILE_TYPES.get(str(kind), "not supported; supported: model")
        raise ConfigError(f"{gguf.path}: general.type {shown(kind)}: {what}")
    version = gguf.metadata.get("general.quantization_version", 2)
    if type(version) is not int or version > 2:
        raise ConfigError(
            f"{gguf.path}: general.quantization_version {shown(version)} is not supported; supported: up to 2"
        )
    unused = []
    for key, value in gguf.metadata.items():
        if key in table.OF_OTHERS and not table.OF_OTHERS[key](_plain(value)):
            raise ConfigError(f"{gguf.path}: {key} {shown(value)} is not supported")
        if key.startswith("tokenizer.") and not _is_known(key):
            raise ConfigError(
                f"{gguf.path}: {shown(key)} is an unknown key, which may change the tokens; {_CURE} {shown(key)}"
            )
        if key in table.UNUSED_SAMPLING and not table.UNUSED_SAMPLING[key](_plain(value)):
            unused.append(f"{key} {shown(value)}")
    notes = [f"recommended sampling settings that are not served: {', '.join(unused)}"] if unused else []
    suppressed = _plain(gguf.metadata.get(_SUPPRESSED, []))
    if _plain(gguf.metadata.get("general.architecture")) == "gemma4" and suppressed != []:
        if not isinstance(suppressed, list):
            raise ConfigError(
                f"{gguf.path}: {_SUPPRESSED} {shown(suppressed)} is not supported; supported: a list"
            )
        notes.append(
            f"{_SUPPRESSED}: {len(suppressed)} tokens that llama.cpp never draws may be drawn here; use logit_bias"
        )
    return tuple(notes)


def _is_known(key: str) -> bool:
    """Return whether a key of the tokenizer is known."""
    part = table.OTHER_PARTS.fullmatch(key.removeprefix("tokenizer.ggml."))
    return key in table.TOKENIZER or key.startswith(table.TEMPLATE) or part is not None


def shown(value: object) -> str:
    """Return a value as part of a message of one line."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return text if text.isprintable() else ascii(text)


def _plain(value: Any) -> Any:
    """Return an array as a list, and a number that is a float32's nearest as the shortest decimal for it: 1e-06, not
    9.999999974752427e-07."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list):
        return (
            [_plain(one) for one in value]
            if any(isinstance(one, np.ndarray | list) for one in value)
            else value
        )
    if (
        isinstance(value, float)
        and math.isfinite(value)
        and abs(value) < 3e38
        and float(np.float32(value)) == value
    ):
        return float(str(np.float32(value)))
    return value
