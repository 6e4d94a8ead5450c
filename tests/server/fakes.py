"""A scripted TextEngine and a byte tokenizer: honest to the engine's API, and complaining where it is misused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import httpx
import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray

from engine.core.step_watch import SequenceView, StepWatch
from engine.interruptions import Outage
from engine.request import EngineStats, Stage, StateStats
from engine.text.embedding import EmbeddingRequest
from engine.text.generation import TextDelta, TextRequest, TokenText, Usage
from engine.text.tokenizer import PairEncoding
from executors.contract import (
    ExecutorCapabilities,
    ExecutorMemoryUsage,
    ExecutorState,
    ExecutorStatus,
    KvLayout,
    MemoryRequirements,
    ModelInfo,
    SampledToken,
)
from server.answer.notation import ModelNotation
from server.model_defaults.retrieval import Scoring
from server.model_defaults.sampling import SamplingDefaults
from server.startup.app import create_app
from server.state.server_state import ServedModel, ServerState
from server.telemetry.metrics import Metrics
from server.templates.pairs import Qwen3Pairs
from server.templates.template import ChatTemplate

TEMPLATE = (
    "{{ bos_token }}{% if tools %}[tools:{{ tools | tojson }}]{% endif %}"
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }}={{ c.function.arguments | tojson }}){% endfor %}]"
    "{% endfor %}{% if add_generation_prompt %}[assistant:{% endif %}"
)
MAX_MODEL_LEN = 512
LOGITS_WIDTH = 320
BOS = 256

AS_JSON = {"Content-Type": "application/json"}
"""For bodies that are sent as bytes."""

Step = TextDelta | Exception | asyncio.Event
"""A delta to yield, an error to raise, or an event to wait for."""
Script = Callable[[TextRequest], Iterable[Step]]


def says(*words: str, finish: str = "stop", stop_reason: str | int | None = None) -> Script:
    """Every choice says the same, a delta a word, and ends."""

    def script(request: TextRequest) -> Iterable[Step]:
        count = len(request.prompts) * request.n
        for number, word in enumerate(words):
            for index in range(count):
                yield TextDelta(index, word, (number,))
        for index in range(count):
            yield TextDelta(index, "", (len(words),), finish_reason=finish, stop_reason=stop_reason)

    return script


def spells(text: str, finish: str = "stop", size: int = 1) -> Script:
    """Every choice writes this text, `size` characters a delta, whose ids are its bytes, and keeps to `ends`."""

    def script(request: TextRequest) -> Iterable[Step]:
        for index in range(len(request.prompts) * request.n):
            ends = request.ends() if request.ends is not None else lambda text: False
            reason = finish
            for start in range(0, len(text), size):
                piece = text[start : start + size]
                logprobs = (
                    None if request.sampling.logprobs is None else tuple(map(_token_text, piece.encode()))
                )
                yield TextDelta(index, piece, tuple(piece.encode()), logprobs)
                if ends(piece):
                    reason = "stop"
                    break
            yield TextDelta(
                index, "", (), None if request.sampling.logprobs is None else (), finish_reason=reason
            )

    return script


def _token_text(byte: int) -> TokenText:
    return TokenText(SampledToken(byte, -0.5), chr(byte), bytes([byte]), 0)


def steps(*script: Step) -> Script:
    """Exactly these."""
    return lambda request: script


class FakeGeneration:
    """Plays a script. Leaving it before every choice ended is an abort; using it unopened or after is a mistake."""

    def __init__(self, engine: FakeTextEngine, request: TextRequest) -> None:
        self.request = request
        self.seed = request.seed if request.seed is not None else 7
        self.usage = Usage(sum(map(len, request.prompts)), cached_tokens=engine.cached_tokens)
        self._engine = engine
        self._running = set(range(len(request.prompts) * request.n))
        self._entered = False

    async def __aenter__(self) -> FakeGeneration:
        self._entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = False
        self._engine.open.remove(self.request.context.request_id)
        if self._running:
            self._engine.aborted.append(self.request.context.request_id)

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        for step in self._engine.script(self.request):
            assert self._entered, "iterated outside of its block"
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                self._engine.paused.set()
                await step.wait()
                continue
            self.usage.completion_tokens += len(step.token_ids)
            if step.finish_reason is not None:
                self._running.remove(step.index)
            yield step
        assert not self._running, "the script left choices without an end"


@dataclass
class FakeTextEngine:
    """`refusal` is raised by `start`; `open` are calls whose block has not been left. `cached_tokens`: found of each prompt."""

    script: Script = field(default_factory=lambda: says("Hel", "lo", "!"))
    refusal: Exception | None = None
    cached_tokens: int = 0
    requests: list[TextRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    embedded: list[EmbeddingRequest] = field(default_factory=list)
    grammars: list[str] = field(default_factory=list)
    paused: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, request: TextRequest) -> Any:
        assert all(request.prompts), "an empty prompt reached the engine"
        assert all(0 <= t < LOGITS_WIDTH for prompt in request.prompts for t in prompt), "an id out of range"
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.open.append(request.context.request_id)
        return FakeGeneration(self, request)

    async def embed(self, request: EmbeddingRequest) -> tuple[list[NDArray[np.float32]], Usage]:
        """float32 [4] made of the prompt: its length, first and last id, and 1 for "mean". Label logits: the number of times that
        each label's id occurs in the prompt."""
        assert all(request.prompts), "an empty prompt reached the engine"
        if self.refusal is not None:
            raise self.refusal
        self.embedded.append(request)
        usage = Usage(sum(map(len, request.prompts)))
        if request.pooling == "logits":
            return [
                np.array([p.count(one) for one in request.label_ids], np.float32) for p in request.prompts
            ], usage
        mean = float(request.pooling == "mean")
        vectors = [np.array([len(p), p[0], p[-1], mean], np.float32) for p in request.prompts]
        return vectors, usage

    async def prepare_grammar(self, grammar: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.grammars.append(grammar)


class ByteTokenizer:
    """An id is a byte; 256 is the beginning of text, which "special tokens" adds."""

    vocab_size = 257
    config: ClassVar[dict[str, Any]] = {
        "bos_token": "<s>",
        "name_or_path": "/models/x",
        "tokenizer_class": "ByteTokenizer",
    }
    special_tokens: ClassVar[dict[str, str]] = {"bos_token": "<s>"}

    def __init__(self, added: Iterable[str] = ()) -> None:
        self.added_tokens = {"<s>": BOS} | {text: BOS + 1 + i for i, text in enumerate(added)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + list(text.encode())

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """As BERT's: begin, first, end, second, end; the end is the same token as the begin."""
        a, b = list(first.encode()), list(second.encode())
        ids = [BOS, *a, BOS, *b, BOS]
        types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        return PairEncoding(ids, types, [None, *[0] * len(a), None, *[1] * len(b), None])

    def encode_with_ends(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        ends = [end for end, character in enumerate(text, 1) for _ in character.encode()]
        return self.encode(text, add_special_tokens), [0] * add_special_tokens + ends

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        special = "" if skip_special_tokens else "<s>"
        return "".join(special if i == BOS else chr(i) for i in ids)

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id], False)

    def token_bytes(self, token_id: int) -> bytes:
        return self.token_text(token_id).encode() if token_id >= BOS else bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return token_id >= BOS


class FakeExecutor:
    """Only what metrics and routes read. `grammars` is what it can do."""

    def __init__(self) -> None:
        self.cache: dict[str, Any] | None = {"blocks": 4, "dtype": "bf16", "odd name!": 1.5}
        self.grammars = True

    def cache_metrics_snapshot(self) -> dict[str, Any] | None:
        return self.cache

    def lora_metrics_snapshot(self) -> dict[str, Any] | None:
        return None

    def status(self) -> ExecutorStatus:
        return ExecutorStatus(ExecutorState.READY, True, memory=ExecutorMemoryUsage(400, 100, 150, 1000))

    def snapshot_age(self) -> float:
        return 1.25

    def kv_layout(self) -> KvLayout:
        return KvLayout.of(block_size=16, num_blocks=20, bytes_per_block=1024)

    def capabilities(self) -> ExecutorCapabilities:
        memory = MemoryRequirements(400, 1, 1, 0)
        return ExecutorCapabilities(8, MAX_MODEL_LEN, (), memory, grammars=self.grammars)


class FakeJudge:
    """Takes every grammar for a good one, unless a test says what is wrong with it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.refusal: Exception | None = None
        self.closed = False

    async def check(self, grammar: str, tenant: str = "") -> str:
        assert not self.closed
        self.asked.append(grammar)
        if self.refusal is not None:
            raise self.refusal
        return grammar

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeLora:
    """An adapter: `model` answers under its name."""

    name: str
    root: str
    model: ServedModel
    created: int = 1000
    notes: tuple[str, ...] = ("its head is not used",)


@dataclass
class FakeLoras:
    """Loads whatever is asked for, and has those that it was given."""

    held: dict[str, FakeLora] = field(default_factory=dict)
    max_loras: int = 2
    loaded: list[tuple[str, str]] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)

    def get(self, name: str) -> FakeLora | None:
        return self.held.get(name)

    def all(self) -> list[FakeLora]:
        return list(self.held.values())

    async def find(self, name: str) -> FakeLora | None:
        return self.get(name)

    async def load_below_root(self, name: str, said: str, *, replaces: bool = True) -> None:
        self.loaded.append((name, said))

    async def unload(self, name: str) -> None:
        self.unloaded.append(name)


@dataclass
class FakeCore:
    """`stage` is what a test says it is."""

    stage: Stage = Stage.READY
    detail: str = ""
    executor: Any = field(default_factory=FakeExecutor)
    watch: StepWatch = field(default_factory=StepWatch)
    views: list[SequenceView] = field(default_factory=list)
    lost: list[Outage] = field(default_factory=list)

    def clock(self) -> float:
        return 100.0

    def sequences(self, most: int) -> list[SequenceView]:
        return self.views[:most]

    def outages(self) -> list[Outage]:
        return self.lost

    def stats(self) -> EngineStats:
        return EngineStats(
            stage=self.stage, running=3, waiting=2, kv_blocks_used=5, kv_blocks_total=20, epoch=1, steps=9,
            preemptions=1, detail=self.detail, kv_blocks_cached=4, prefix_queries=100, prefix_hits=60,
            step_tokens=64, steps_cut=7, kv_blocks_touched=12, states=StateStats(10, 3, 6), oldest_wait=2.5, kv_bytes_given=4096,
        )  # fmt: skip

    def info(self) -> ModelInfo | None:
        return INFO


INFO = ModelInfo(
    name="fake", family="fake", num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, hidden_size=8,
    vocab_size=257, logits_width=LOGITS_WIDTH, max_model_len=MAX_MODEL_LEN, dtype="float32",
)  # fmt: skip


@dataclass
class House:
    """A server over the fakes. `loading()` takes the model away."""

    engine: FakeTextEngine = field(default_factory=FakeTextEngine)
    core: FakeCore = field(default_factory=FakeCore)
    judge: FakeJudge = field(default_factory=FakeJudge)
    names: tuple[str, ...] = ("fake", "org/fake-1")
    template: str | None = TEMPLATE
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    notation: ModelNotation = field(default_factory=ModelNotation)
    options: dict[str, Any] = field(default_factory=dict)
    state: ServerState = field(init=False)
    app: FastAPI = field(init=False)

    def __post_init__(self) -> None:
        self.state = ServerState(self.names, Metrics(), core=self.core, judge=self.judge)
        self.state.metrics.watch(self.core)
        self.state.adapters = FakeLoras()
        self.state.model = ServedModel(
            engine=self.engine,
            tokenizer=ByteTokenizer(),
            info=INFO,
            max_model_len=MAX_MODEL_LEN,
            template=None if self.template is None else ChatTemplate(self.template, {"bos_token": "<s>"}),
            defaults=self.defaults,
            notation=self.notation,
            scoring=Scoring((ord("y"), ord("n"))),
            pairs=Qwen3Pairs(),
            fingerprint="fp_fake",
        )
        self.app = create_app(self.state, **{"admin_key": "admin", **self.options})

    def client(self, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        if not self.options.get("api_keys"):  # every path is open then, but those of the admin
            options.setdefault("headers", {"Authorization": "Bearer admin"})
        return httpx.AsyncClient(transport=transport, base_url="http://server", **options)

    async def chat(self, **body: Any) -> httpx.Response:
        body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], **body}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, **body: Any) -> httpx.Response:
        return await self.post("/v1/completions", {"model": "fake", "prompt": "Hi", **body})

    async def post(self, path: str, body: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.post(path, json=body)

    async def get(self, path: str, **options: Any) -> httpx.Response:
        async with self.client() as client:
            return await client.get(path, **options)

    def asked(self) -> TextRequest:
        """The one request that reached the engine."""
        [request] = self.engine.requests
        return request


def events(response: httpx.Response) -> list[str]:
    """The data of each server-sent event, in order; anything else in the body is a mistake."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *blocks, last = response.text.split("\n\n")
    assert last == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object, after a look at its shape."""
    body = response.json()
    if "type" in body:  # Anthropic's form, which names no field and no code
        assert set(body) == {"type", "error", "request_id"} and body["type"] == "error", body
        assert body["request_id"] == response.headers["x-request-id"] == response.headers["request-id"]
        assert set(body["error"]) == {"type", "message"} and body["error"]["message"], body
        return {**body["error"], "param": None, "code": None}
    assert set(body) == {"error"}, body
    error = body["error"]
    if isinstance(error, str):  # Ollama's form, which has only a message
        assert error and response.headers["x-request-id"].startswith("req_")
        return {"message": error, "type": None, "param": None, "code": None}
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    assert response.headers["x-request-id"].startswith("req_")
    return dict(error)


__all__ = [
    "AS_JSON",
    "BOS",
    "FakeCore",
    "FakeTextEngine",
    "House",
    "error_of",
    "events",
    "says",
    "spells",
    "steps",
]
