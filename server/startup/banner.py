"""What an operator sees of a server that is ready: its address, facts about the model, and an example call."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import structlog

from executors.contract import KvLayout, ModelInfo, StateLayout
from server import __version__

log = structlog.get_logger("server")

_PATIENCE = 0.25
"""Time to wait for the text to be printed, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What an operator is told of a server that is ready. `weight_bytes`: size of the model's parameters. `notes`: more lines
    about the model, by their labels. `scores`: `Scoring.kind`. `admin_key`: a key that the console's address on a terminal
    is to carry, in its fragment, which a browser does not send."""

    url: str
    name: str
    info: ModelInfo
    layout: KvLayout
    weight_bytes: int
    max_model_len: int
    needs_key: bool
    notes: Mapping[str, str] = field(default_factory=dict)
    scores: str = ""
    admin_key: str | None = field(default=None, repr=False)
    template_lack: str | None = None
    """`ServedModel.template_lack`."""

    @property
    def _serves(self) -> str:
        """What the model serves, unless it generates text."""
        if self.scores == "reranker":
            return "scores of a reranker" if self.info.generates else f"scores only: {self._headless}"
        return "" if self.info.generates else f"embeddings only: {self._headless}"

    @property
    def _headless(self) -> str:
        """Why a model generates nothing."""
        return "the model is an encoder" if self.info.token_types else "the checkpoint has no lm_head"

    @property
    def _chat(self) -> str | None:
        """Why chats are refused, of a model that generates text."""
        generates = self.info.generates and self.scores not in ("reranker", "embedding")
        return self.template_lack if generates else None

    @property
    def _head(self) -> str:
        return f"Cohort {__version__} is ready at {self.url}"

    @property
    def _kv_bytes(self) -> int:
        return self.layout.num_bytes

    def log(self) -> None:
        """One event in the log."""
        info, layout = self.info, self.layout
        fields = {
            "model": self.name,
            "family": info.family,
            "parameters": info.num_parameters,
            "formats": _formats(info),
            "device": info.device,
            "context_tokens": self.max_model_len,
            "kv_tokens": layout.capacity_tokens if layout.paged else None,
            "kv_bytes": self._kv_bytes or None,
            "kv_memory": _how_taken(layout) if layout.paged else None,
            "state_slots": layout.state.num_slots if layout.state else None,
            "state_bytes": layout.state_bytes if layout.state else None,
            "weight_bytes": self.weight_bytes,
            "serves": self._serves or None,
        }
        values = {name: value for name, value in fields.items() if value is not None}
        log.info(self._head, **values, **self.notes)
        if self._chat:
            log.warning(self._chat)

    def text(self) -> str:
        """Lines for a terminal, the last of which is a curl command."""
        info, layout = self.info, self.layout
        memory = []
        if layout.paged:
            memory = [f"  memory    {_memory(layout, self.weight_bytes, self._kv_bytes)}"]
            blocks = f"{layout.num_blocks:,} blocks of {layout.block_size}"
            if len(layout.groups) > 1:
                blocks += f" in {len(layout.groups)} groups of layers"
            capacity = f"{layout.capacity_tokens:,} tokens ({blocks})"
        elif info.token_types:
            capacity = "none: texts are computed whole, and nothing of them is kept"
        else:
            capacity = f"{self.max_model_len:,} tokens per sequence (held by the executor)"
        size = f", {_count(info.num_parameters)} parameters" if info.num_parameters else ""
        fragment = "" if self.admin_key is None else f"#admin_key={quote(self.admin_key)}"
        lines = [
            self._head,
            f"  console   {self.url}/{fragment}",
            f"  model     {self.name} ({info.family}{size}, {_formats(info)})",
            *(f"  {label:<9} {text}" for label, text in self.notes.items()),
            f"  device    {info.device}",
            f"  context   {self.max_model_len:,} tokens",
            f"  KV cache  {capacity}",
            *([f"  states    {_states(layout.state)}"] if layout.state else []),
            *memory,
            *([f"  serves    {self._serves}"] if self._serves else []),
            *([f"  chat      {self._chat}"] if self._chat else []),
            "Try it:",
            f"  {shlex.join(self._curl())}",
        ]
        return "\n".join(lines)

    def _curl(self) -> list[str]:
        path = "chat/completions"
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of Peru?"}]}
        if self.scores == "reranker":
            path = "rerank"
            body = {"query": "What is the capital of Peru?", "documents": ["Lima", "Llamas are mammals."]}
        elif not self.info.generates or self.scores == "embedding":
            path, body = "embeddings", {"input": "What is the capital of Peru?"}
        elif self.template_lack:
            path, body = "completions", {"prompt": "The capital of Peru is"}
        curl = ["curl", f"{self.url}/v1/{path}", "-H", "Content-Type: application/json"]
        if self.needs_key:
            curl += ["-H", "Authorization: Bearer YOUR_KEY"]
        return [*curl, "-d", json.dumps({"model": self.name, **body})]


def show(text: str) -> None:
    """Print the text. A closed terminal or a full disk is logged and does not stop the server; nor does a stdout that is not
    read, for which this waits `_PATIENCE` seconds."""
    printing = threading.Thread(target=_print, args=(text,), name="banner", daemon=True)
    printing.start()
    printing.join(_PATIENCE)


def _print(text: str) -> None:
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a stream of Python's, a closed one, or none
        descriptor = None
    try:
        if descriptor is None:
            print(text, flush=True)
            return
        # Not through the stream, whose lock the interpreter takes at its end.
        rest = memoryview(f"{text}\n".encode(sys.stdout.encoding, "replace"))
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except (OSError, ValueError) as error:  # ValueError: the stream is closed
        log.warning("the start-up text could not be printed", reason=str(error))
        # What is still in the buffer would fail again at the end, and turn the exit code into 120.
        sys.stdout = None


def show_admin_key(key: str) -> None:
    """Print the admin key of this start to the terminal that is stderr. It is never part of a log line."""
    with contextlib.suppress(OSError, ValueError):
        print(f"Admin key of this start: {key}", file=sys.stderr, flush=True)


def url_of(host: str, port: int, *, secure: bool = False) -> str:
    """A URL that a browser can open: a wildcard address becomes localhost."""
    if host in ("0.0.0.0", "::", "", "*"):
        host = "localhost"
    host = host.removeprefix("[").removesuffix("]")
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _formats(info: ModelInfo) -> str:
    """The format of the weights if it is not that of the computation, and the computation's."""
    return info.dtype if info.quantization is None else f"{info.quantization} weights, {info.dtype}"


def _memory(layout: KvLayout, weight_bytes: int, kv_bytes: int) -> str:
    weights, kv, total = (
        f"{size / 2**30:.2f} GiB" for size in (weight_bytes, kv_bytes, weight_bytes + kv_bytes)
    )
    how = _how_taken(layout)
    kind = "KV" if layout.state is None else "KV and states"
    return f"{weights} weights + {kv} {kind} = {total}; KV is {how}, --kv-cache-memory-bytes sets its size"


def _states(state: StateLayout) -> str:
    """What layers keep of sequences beside KV."""
    return (
        f"{state.num_slots:,} of {state.slot_bytes / 2**20:.2f} MiB, one a sequence, others as snapshots: "
        f"prompts share beginnings at multiples of {state.interval} tokens"
    )


def _how_taken(layout: KvLayout) -> str:
    return "taken as it is used" if layout.on_demand else "reserved at the start"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
