"""Requests to the engine and its answers, in token ids. No text, no HTTP."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError
from engine.story import Story
from executors.contract import Int32Array, SampledToken, SamplingParams


class FinishReason(enum.StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end token, a stop token or (found by the text layer) a stop string."""
    LENGTH = "length"
    """max_tokens or the model's context is used up."""
    ABORT = "abort"
    """The client went away, the caller took it back, or its own settings do not let it go on."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a call is besides its content: who sent it, when, and how urgent it is. Built once, where the call arrives; all
    sequences of the call refer to the same object."""

    request_id: str
    """Id of the call, for its answer and the log."""
    arrival_time: float
    """Time when the call arrived, before its preparation, in seconds of the engine's monotonic clock. Measured times count from
    it."""
    priority: int = 0
    """Rank under the priority policy: lower comes first, equal ones in order of arrival. Other policies refuse all but 0."""
    cache_salt: str | None = None
    """Salt of the prefix cache: prefixes are shared only between calls with the same one."""
    tenant: str = ""
    """Identity of the sender, which the fair policy serves in turn with others."""
    deadline: float | None = None
    """Time of the engine's clock by which the computation must have started, or the call is dropped; None: no limit."""
    key_name: str = ""
    """Name of the API key that the call came with, for logs and metrics; "" where none was required."""
    story: Story = field(default_factory=Story, compare=False, repr=False)
    """Record of what becomes of the call."""


@dataclass(frozen=True, slots=True)
class Request:
    """An immutable request for ONE sequence. A call with n choices or several prompts is several of these.

    `prompt_token_ids` int32 [prompt length], never empty. `sampling.seed` and `.choice` are set by the maker of the request.
    `stop_token_ids` end the sequence and include the model's end tokens unless the client said ignore_eos.
    """

    context: RequestContext
    prompt_token_ids: Int32Array
    sampling: SamplingParams
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    adapter: str | None = None
    """Digest of the LoRA adapter to compute with; None: the model alone."""
    grammar: str | None = None
    """What the output must follow, in the form that `ModelExecutor.prepare_grammar` takes; None for free text."""
    speculative: bool = True
    """Whether drafts may be made for it, if the engine makes any."""
    prompt_logprobs: int | None = None
    """So many alternatives for each prompt token but the first; None: no logprobs of the prompt."""
    pooling: str | None = None
    """"last" or "mean": an embedding of the prompt; "logits": those of `label_ids` at its last token. There is no output, and
    `max_tokens` is 1, a token that is never sampled."""
    cache_points: tuple[int, ...] = ()
    """Positions in the prompt where later prompts are likely to part from it, beside those that the engine expects: layers with a
    window or a state keep there what such a prompt needs."""
    label_ids: tuple[int, ...] = ()
    """Labels of the model's classification head, or token ids if it has none."""
    second_segment: int | None = None
    """Position in the prompt at which the second text of a pair begins, for models that tell texts apart; None: one text."""

    @property
    def needs_whole_prompt(self) -> bool:
        """True if something is made of every position of the prompt: none of it may be taken from the prefix cache."""
        return self.prompt_logprobs is not None or self.pooling == "mean"


@dataclass(slots=True)
class TokenDelta:
    """What a sequence gained since the last delta its reader took. Deltas not yet taken are merged.

    `tokens` are committed and final: none is ever taken back. `finish_reason` is set on the last delta; `error` with
    FinishReason.ERROR only.
    """

    tokens: list[SampledToken] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    """The id that ended the sequence, when a stop token did; it is the last of `tokens`."""
    num_cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache."""
    error: EngineError | None = None
    prompt_logprobs: tuple[SampledToken, ...] | None = None
    """Where asked for, with the first token: one entry for each prompt token after the first."""
    pooled: NDArray[np.float32] | None = None
    """float32 [hidden] or [labels], of a request with `pooling`: its only delta."""

    def merge(self, later: TokenDelta) -> None:
        """Append a later delta of the same sequence."""
        self.tokens.extend(later.tokens)
        self.finish_reason = later.finish_reason
        self.stop_token_id = later.stop_token_id
        self.num_cached_tokens = later.num_cached_tokens
        self.error = later.error
        # Only the first delta has these, so a later one never overwrites them.
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        if later.pooled is not None:
            self.pooled = later.pooled


class PlainTokens(dict[int, SampledToken]):
    """Tokens without logprobs, one object for each id of the vocabulary: making thousands a second costs time, and the
    garbage collector more."""

    def __missing__(self, token_id: int) -> SampledToken:
        token = self[token_id] = SampledToken(token_id)
        return token


PLAIN_TOKENS = PlainTokens()
"""Of this process."""


class Stage(enum.StrEnum):
    """What the engine is doing, for health answers."""

    LOADING = "loading"
    READY = "ready"
    RECOVERING = "recovering"
    DRAINING = "draining"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(slots=True)
class DraftStats:
    """Drafts that steps verified: proposals, their tokens, and how many of those were accepted, in all and by place."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StateStats:
    """Slots of states of layers, 0 for a model without: `total`; `used`: those that sequences hold; `snapshots`: those that later
    sequences can begin with, some of which are used."""

    total: int = 0
    used: int = 0
    snapshots: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges, read between steps."""

    stage: Stage
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    """Those that sequences may use: fewer than the executor has while another model has their memory."""
    epoch: int
    steps: int
    preemptions: int
    detail: str = ""
    kv_blocks_cached: int = 0
    """Free blocks whose KV may be found again."""
    prompt_tokens: int = 0
    """Prompt tokens that steps computed, ever: those of a long prompt count as its chunks are done, and those that are computed
    again after a preemption or a restart count again."""
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, ever."""
    prefix_hits: int = 0
    """Those of them that need not be computed."""
    resumed: int = 0
    """Running sequences that went on after a failed step or a restart, ever."""
    step_tokens: int = 0
    """Tokens that a step may have by now: fewer than the configured number after there was no memory for one."""
    drafts: DraftStats = field(default_factory=DraftStats)
    """Drafts that steps verified, ever."""
    states: StateStats = StateStats()
    """Slots of states."""
    kv_blocks_touched: int = 0
    """Blocks that were written and whose memory was not given back."""
    steps_cut: int = 0
    """Steps for which there was no memory and that were tried again in parts, ever."""
    oldest_wait: float = 0.0
    """Seconds for which the oldest sequence has waited that was never started; 0 if there is none."""

    kv_bytes_given: int = 0
    """Bytes of KV memory that sequences do without while another model has it."""

    kv_fullest_group: float | None = None
    """Share of blocks in use, 0 to 1, in the KV group where it is highest: the first to have no room; None: as over all."""

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1, where it is highest."""
        if self.kv_fullest_group is not None:
            return self.kv_fullest_group
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0
