"""The state that the routes read: the served model, once it is loaded, and the server's stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from fastapi import Request
from numpy.typing import NDArray
from starlette.responses import Response

from engine.core.step_watch import SequenceView, StepWatch
from engine.errors import InvalidRequest, ModelNotFound, Unavailable
from engine.interruptions import Outage
from engine.request import EngineStats, Stage
from engine.text.embedding import EmbeddingRequest
from engine.text.generation import Generation, TextRequest, Usage
from engine.text.tokenizer import PairEncoding
from executors.contract import ModelExecutor, ModelInfo, StateLayout
from server.answer.call_progress import CallsProgress
from server.answer.notation import ModelNotation
from server.http.call import Call
from server.model_defaults.pooling import DefaultPooling
from server.model_defaults.preset import Preset
from server.model_defaults.retrieval import EmbeddingPrompts, Scoring
from server.model_defaults.sampling import SamplingDefaults
from server.schemas.answers.chat import ReasoningField
from server.settings.table import DEFAULTS, Settings
from server.state.prefix_keeping import PrefixKeeping
from server.state.progress import Progress
from server.state.responses.store import MemoryResponseStore, SharedResponseStore
from server.system.worker_threads import FencedThreads
from server.telemetry.metrics import Metrics
from server.telemetry.stories.ring import Stories
from server.templates.joined_pairs import JoinedPairs
from server.templates.pairs import PairPrompt
from server.templates.template import ChatTemplate

_MOST_NAMES = 16
"""Names that are told to a request for another one."""


class TextEngineLike(Protocol):
    """The part of `engine.text.generation.TextEngine` that routes use."""

    def start(self, request: TextRequest) -> Generation:
        """Begin a call. Raises EngineError at once if it is refused."""

    async def embed(self, request: EmbeddingRequest) -> tuple[list[NDArray[np.float32]], Usage]:
        """A vector for each prompt. Raises EngineError."""

    async def prepare_grammar(self, grammar: str) -> None:
        """Compile the grammar in the executor. Raises InvalidRequest."""


class TokenizerLike(Protocol):
    """The part of `engine.text.tokenizer.Tokenizer` that routes use."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of added tokens by their texts."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts of special tokens by role."""

    @property
    def config(self) -> Mapping[str, Any]:
        """tokenizer_config.json."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to ids."""

    def encode_with_ends(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """Text to ids, and where each token ends in it."""

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """Two texts to ids, joined as the model's pairs are."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Ids to text."""

    def token_text(self, token_id: int) -> str:
        """One id as text."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one id."""

    def is_special(self, token_id: int) -> bool:
        """True for special tokens, which are not shown as text."""


class CoreLike(Protocol):
    """The part of `engine.core.engine.EngineCore` that routes and metrics read."""

    @property
    def executor(self) -> ModelExecutor:
        """The executor, for its snapshots."""

    def stats(self) -> EngineStats:
        """Gauges; never blocks."""

    def info(self) -> ModelInfo | None:
        """The model's facts, None while it loads."""

    @property
    def watch(self) -> StepWatch:
        """Where to subscribe to steps."""

    @property
    def clock(self) -> Callable[[], float]:
        """The engine's clock, in seconds."""

    def sequences(self, most: int) -> list[SequenceView]:
        """Sequences that run, then those that wait, at most so many."""

    def outages(self) -> Sequence[Outage]:
        """The latest times without an executor, in order."""


class GrammarJudgeLike(Protocol):
    """The part of `server.grammar.validator.GrammarJudge` that routes use."""

    async def check(self, grammar: str, tenant: str = "") -> str:
        """The validated text for the executor. Raises InvalidRequest with the reason."""

    async def close(self) -> None:
        """End the validator's process."""


class LoraLike(Protocol):
    """The part of `server.lora.registry.ServedLora` that routes use."""

    @property
    def name(self) -> str:
        """Name that requests give as `model`."""

    @property
    def root(self) -> str:
        """Where it was loaded from."""

    @property
    def created(self) -> int:
        """When it was loaded, in Unix seconds."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each thing in its files that is not used."""

    @property
    def model(self) -> ServedModel:
        """The model that answers under this name."""


class LorasLike(Protocol):
    """The part of `server.lora.registry.LoraRegistry` that routes and metrics use."""

    max_loras: int

    def get(self, name: str) -> LoraLike | None:
        """The adapter of this name."""

    def all(self) -> Sequence[LoraLike]:
        """By name."""

    async def find(self, name: str) -> LoraLike | None:
        """The adapter of this name, loaded if that is allowed. Raises EngineError."""


@runtime_checkable
class LoraManager(LorasLike, Protocol):
    """The same in the process that schedules, which alone changes the table."""

    async def load_below_root(self, name: str, path: str, *, replaces: bool = True) -> None:
        """Load an adapter. Raises EngineError."""

    async def unload(self, name: str) -> None:
        """Forget a name. Raises EngineError."""


class Elsewhere(Protocol):
    """Passes requests on to the process that they concern."""

    def response(self, request: Request, body: bytes) -> Response:
        """The answer that the other process gives to this request."""


class WorkersLike(Protocol):
    """The part of `server.remote.workers.pool.WorkerPool` that routes use."""

    async def sync(self, timeout: float) -> None:
        """Wait, at most `timeout` seconds, until every worker has told what it counted."""


class ExecutorsLike(Protocol):
    """The part of `executors.registry.ExecutorRegistry` that routes read."""

    def list_names(self) -> list[str]:
        """Names of the live executors."""

    def get(self, name: str) -> ModelExecutor | None:
        """The executor of this name, None if there is none."""


ModelState = Literal["loaded", "loading", "unloaded", "failed"]
"""A model's state in the words of llama.cpp's server."""


class ModelRowLike(Protocol):
    """One of several models."""

    @property
    def name(self) -> str:
        """Its own name."""

    @property
    def aliases(self) -> Sequence[str]:
        """Further names of it."""

    @property
    def variants(self) -> Iterable[str]:
        """Names under which it answers with other defaults."""

    @property
    def loras(self) -> Mapping[str, str]:
        """Names under which it answers with an adapter, and where that is loaded from."""

    def lora_of(self, name: str | None) -> str | None:
        """The adapter that one of its names stands for; None: the model without one."""

    def served(self, name: str | None, model: ServedModel) -> ServedModel:
        """The model as it answers under one of its names, none of which is an adapter's."""

    @property
    def status(self) -> ModelState:
        """What it is doing."""

    @property
    def reason(self) -> str:
        """Why it is `failed`, "" otherwise."""

    @property
    def need(self) -> int:
        """Bytes that it needs while it is loaded."""

    @property
    def pinned(self) -> bool:
        """Whether it stays loaded."""

    @property
    def expires_in(self) -> float | None:
        """Seconds after which it is unloaded if no call comes; None: never, or it is not loaded."""

    @property
    def state(self) -> ServerState:
        """What routes read of it, as of a server of this model alone."""


class ModelsLike(Protocol):
    """All models of the server."""

    @property
    def budget(self) -> float:
        """Bytes that all loaded models may need together; infinity: no limit."""

    def only(self, patterns: Sequence[str]) -> ModelsLike:
        """The models with a name that one of `patterns` fits, for a client that knows no others."""

    def rows(self) -> Sequence[ModelRowLike]:
        """In the order of their declaration."""

    async def refresh(self) -> None:
        """Make models known that have come into the folder of models."""

    def find(self, name: str | None) -> ModelRowLike:
        """The model of a name or alias; without a name the first one. Raises ModelNotFound with the nearest name."""

    async def find_or_scan(self, name: str | None) -> ModelRowLike:
        """As `find`; where the name is unknown, the folder of models is looked at again."""

    async def hold(
        self, name: str | None, call: Call, *, keep: float | None = None, deadline: float | None = None
    ) -> ModelRowLike:
        """The model, loaded and held until `call` ends. `keep`: seconds without a call after which it is unloaded. `deadline`: by
        the monotonic clock. Raises EngineError."""

    async def load(self, name: str) -> None:
        """Load it. Raises EngineError."""

    def unload(self, name: str) -> None:
        """Unload it as soon as no call uses it. Raises ModelNotFound."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model with its tokenizer, template, engine and defaults."""

    engine: TextEngineLike
    tokenizer: TokenizerLike
    info: ModelInfo
    max_model_len: int
    template: ChatTemplate | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    preset: Preset = field(default_factory=Preset)
    pooling: DefaultPooling = field(default_factory=DefaultPooling)
    prompts: EmbeddingPrompts = field(default_factory=EmbeddingPrompts)
    scoring: Scoring = field(default_factory=Scoring)
    pairs: PairPrompt | JoinedPairs | None = None
    """What makes the prompts of a reranker: of text, or of token ids; None: their form is unknown."""
    notation: ModelNotation = field(default_factory=ModelNotation)
    fingerprint: str = "cohort"
    salt_per_key: bool = False
    """Whether KV of a common prefix is shared only between requests with the same API key."""
    drafts: bool = False
    """Whether steps verify drafts."""
    log_prompts: bool = False
    """Whether the access log shows prompts."""
    prefixes: PrefixKeeping = field(default_factory=PrefixKeeping)
    states: StateLayout | None = None
    """States that layers keep of sequences; None if they keep none."""
    adapter: str | None = None
    """Digest of the LoRA adapter that is part of this model."""

    @property
    def template_lack(self) -> str | None:
        """Why chats are refused for want of a chat template, with the cure; None if there is one."""
        if self.template is not None:
            return self.template.lack
        if self.preset.template:
            return (
                "This model has no chat template in Jinja: its template in Ollama's store is in Go's language, which is not "
                "supported. Use /v1/completions, or start the server with --chat-template."
            )
        return (
            "This model has no chat template: use /v1/completions, or start the server with --chat-template."
        )


@dataclass(slots=True)
class ServerState:
    """The server's state, or that of one of its models if it serves several. One writer: the composition root, which sets
    `core` and `executors` once they exist, `model` once it is loaded, and `progress`."""

    names: tuple[str, ...]
    metrics: Metrics
    settings: Settings = DEFAULTS
    """What the server was told, for the administrator."""
    core: CoreLike | None = None
    executors: ExecutorsLike | None = None
    """Registry of the live executors."""
    executor_names: tuple[str, ...] = ()
    """Short names that `--executor` accepts."""
    model: ServedModel | None = None
    judge: GrammarJudgeLike | None = None
    """Validator of grammars; set with the model."""
    models: ModelsLike | None = None
    """The models of a server of several; None with one model, and in the state of each of several."""
    elsewhere: Elsewhere | None = None
    """In an API worker: the way to the server's process. None in that process itself."""
    workers: WorkersLike | None = None
    """The API workers; None without any, and in a worker."""
    adapters: LorasLike | None = None
    """LoRA adapters; None: there are none. Set with the model."""
    progress: Progress | None = None
    """Progress while loading. Written from the loading threads; a reader sees a complete value, the old or the new one."""
    reasoning_fields: tuple[ReasoningField, ...] = ("reasoning", "reasoning_content")
    """Names of the reasoning field in messages and deltas: both are in use."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Patterns of further names, and the served name or adapter that each stands for. The first match counts."""
    unread_parts: str = DEFAULTS.unread_parts
    """What happens to parts of messages that the model cannot read: `refuse` or `placeholder`."""
    responses: SharedResponseStore = field(
        default_factory=lambda: MemoryResponseStore(
            DEFAULTS.responses_store_entries, DEFAULTS.responses_store_bytes, DEFAULTS.responses_store_age
        )
    )
    """Responses that clients retrieve and continue."""
    stories: Stories = field(default_factory=Stories)
    """What became of the calls."""
    calls_progress: CallsProgress = field(default_factory=CallsProgress)
    """What calls under way wait for."""
    recovery_timeout: float = DEFAULTS.recovery_timeout
    write_timeout: float = DEFAULTS.write_timeout
    """Time within which a client must read some of the data sent to it, or its connection is closed, in seconds."""
    started: int = field(default_factory=lambda: int(time.time()))
    draining: bool = False
    threads: FencedThreads = field(default_factory=FencedThreads)
    clock: Callable[[], float] = time.monotonic
    _recovering_since: float | None = None

    def __post_init__(self) -> None:
        self.metrics.watch_stage(lambda: self.stage()[0])

    def of_model(
        self, names: tuple[str, ...], settings: Settings, metrics: Metrics, recovery_timeout: float
    ) -> ServerState:
        """The state of one of several models, which shares everything with this one but what a model has of its own."""
        return replace(
            self,
            names=names,
            settings=settings,
            metrics=metrics,
            recovery_timeout=recovery_timeout,
            models=None,  # a model that is found later gets its state from a server that has its models already
        )

    def forget_model(self) -> None:
        """The model is unloaded."""
        self.core = self.executors = self.model = self.judge = self.adapters = self.progress = None
        self._recovering_since = None

    def stage(self) -> tuple[Stage, str]:
        """The server's stage, and a detail of it. The composition root calls it at least once a second, so that the start of a
        recovery is noticed."""
        if self.models is not None:  # models load while calls wait for them
            return (Stage.DRAINING if self.draining else Stage.READY), ""
        stats = self.core.stats() if self.core is not None else None
        if stats is None or (stats.stage is Stage.READY and self.model is None):
            stage, detail = Stage.LOADING, ""
        else:
            stage, detail = stats.stage, stats.detail
        if stage is not Stage.RECOVERING:
            self._recovering_since = None
        elif self._recovering_since is None:
            self._recovering_since = self.clock()
        if self.draining and stage is Stage.READY:
            stage = Stage.DRAINING
        return stage, detail

    def recovering_for(self) -> float:
        """Seconds since the current recovery was first noticed, 0 without one."""
        return 0.0 if self._recovering_since is None else self.clock() - self._recovering_since

    def require(self, name: str | None, *, generating: bool = False) -> tuple[ServedModel, str]:
        """The model for a request and the name to answer with. `generating`: the request needs a model that generates tokens.

        Raises ModelNotFound for a name that is not served, Unavailable while the model loads, InvalidRequest if the model
        cannot generate. A request without a name gets the served model.
        """
        requested, name = name, self.served_name(name)
        if name and name not in self.names:
            adapter = None if self.adapters is None else self.adapters.get(name)
            if adapter is None:
                raise self._not_found(name)
            model: ServedModel | None = adapter.model
        else:
            model = self.model
        if model is None:
            raise Unavailable("The model is still loading.")
        if generating and not model.info.generates:
            serves = "POST /v1/rerank" if model.scoring.kind == "reranker" else "POST /v1/embeddings"
            why = "it is an encoder" if model.info.token_types else "its checkpoint has no lm_head"
            message = f"This model generates no tokens: {why}. It serves {serves}."
            raise InvalidRequest(message, param="model", code="unsupported_value")
        return model, requested or self.names[0]

    def served_name(self, name: str | None) -> str | None:
        """The name itself if it is served, else that which an alias gives it; unchanged if there is none."""
        if not name or name in self.names or (self.adapters is not None and self.adapters.get(name)):
            return name
        return next((target for pattern, target in self.aliases if fnmatchcase(name, pattern)), name)

    async def find(self, name: str | None, *, generating: bool = False) -> tuple[ServedModel, str]:
        """As `require`, for a request that may wait: an adapter that is loaded on demand is loaded first."""
        served = self.served_name(name)
        if served and served not in self.names and self.adapters is not None:
            await self.adapters.find(served)
        return self.require(name, generating=generating)

    def _not_found(self, name: str) -> ModelNotFound:
        names = [*self.names, *(one.name for one in (self.adapters.all() if self.adapters else ()))]
        names += [pattern for pattern, _ in self.aliases]
        served = ", ".join(f"'{one}'" for one in names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        message = f"The model '{name[:200]}' does not exist. This server has: {served}{more}."
        return ModelNotFound(message, param="model")
