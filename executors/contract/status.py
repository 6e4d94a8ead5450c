"""Facts, capabilities and status of an executor. Standard library only.

Immutable records that travel whole over the wire. Units are in the field names or beside them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

POOLINGS = ("last", "mean")
"""Values of `SequenceStart.pooling` that every decoder has, beside "logits"."""


class AttentionType(enum.StrEnum):
    """Attention forms an executor may declare."""

    MULTI_HEAD = "MultiHead"
    MULTI_QUERY = "MultiQuery"
    GROUPED_QUERY = "GroupedQuery"
    FLASH = "Flash"
    PAGED = "Paged"
    SLIDING_WINDOW = "SlidingWindow"


class ExecutorState(enum.StrEnum):
    """States of an executor's life."""

    INITIALIZING = "Initializing"
    READY = "Ready"
    BUSY = "Busy"
    ERROR = "Error"
    SHUTDOWN = "Shutdown"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts of the loaded model.

    `vocab_size` counts the ids the tokenizer may produce; `logits_width` is the number of columns of lm_head and may be
    larger (padding). Every token id handed to an executor must be below `logits_width`.
    """

    name: str
    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    logits_width: int
    max_model_len: int
    dtype: str
    quantization: str | None = None
    num_parameters: int = 0
    device: str = "cpu"
    generates: bool = True
    """Whether the model generates tokens. A model without a head has hidden states but no logits; steps that request tokens are
    refused."""
    num_labels: int = 0
    """Number of labels of the classification head that the model has in place of lm_head; 0: it has none."""
    poolings: tuple[str, ...] = POOLINGS
    """Values of `SequenceStart.pooling` beside "logits" that sequences may ask for; the first is what the model has that declares
    none."""
    token_types: int = 0
    """Number of token types of an encoder, which reads a pair of texts as one prompt; 2 or more: it tells the texts apart by
    `SequenceStart.second_segment`. 0: the model is no encoder."""
    vector_layers: tuple[int, ...] = ()
    """Widths of the linear layers (`Dense` of sentence-transformers) that embeddings go through behind the pooling, in their
    order."""

    @property
    def embedding_size(self) -> int:
        """Number of elements of an embedding."""
        return self.vector_layers[-1] if self.vector_layers else self.hidden_size

    @property
    def label_width(self) -> int:
        """Number of ids that pooling "logits" may ask for: labels, else columns of lm_head; 0 without any head."""
        return self.num_labels or (self.logits_width if self.generates else 0)


@dataclass(frozen=True, slots=True)
class MemoryRequirements:
    """Bytes an executor needs on its device, by the quantity they grow with, without the memory of its libraries.

    A token in KV takes KV memory; a token in the current step takes activation memory too, and a step has at most
    `max_batched_tokens` (None: all tokens are computed at once).
    """

    parameter_memory: int
    activation_memory_per_token: int
    kv_memory_per_token_per_layer: int
    overhead_memory: int
    max_batched_tokens: int | None = None

    def calculate_total_memory(self, batch_size: int, sequence_length: int, num_layers: int) -> int:
        """Bytes for `batch_size` sequences of `sequence_length` tokens each."""
        tokens = batch_size * sequence_length
        computed = tokens if self.max_batched_tokens is None else min(tokens, self.max_batched_tokens)
        return (
            self.parameter_memory
            + self.overhead_memory
            + computed * self.activation_memory_per_token
            + tokens * num_layers * self.kv_memory_per_token_per_layer
        )


@dataclass(frozen=True, slots=True)
class ExecutorCapabilities:
    """Capabilities of an executor. The conformance kit tests each field that is True (or lists a form)."""

    max_batch_size: int
    """Most sequences in a step; differs from `ExecutorConfig.max_num_seqs` where that is a default, see `default_limits`."""
    max_sequence_length: int
    attention_types: tuple[AttentionType, ...]
    memory: MemoryRequirements
    max_batched_tokens: int | None = None
    """Most tokens in a step if that is not `ExecutorConfig.max_num_batched_tokens`; None: as configured."""
    max_in_flight: int = 1
    """Number of steps that may be submitted before the first of them is answered. They run in the order of submission."""
    max_step_drafts: int | None = None
    """Most drafts of a step, of all its sequences together, that cost no more than their rows. A step with more is computed, by
    slower means. None: as many as it has tokens."""
    dynamic_batching: bool = False
    continuous_batching: bool = False
    speculative: bool = False
    tensor_parallel: bool = False
    pipeline_parallel: bool = False
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    drafts: bool = False
    """Whether steps may ask for drafts: see `UnifiedBatch.drafts_wanted`."""
    grammars: bool = False
    """Whether sequences may have a grammar: see `SequenceStart.grammar`."""
    whole_prompts_only: bool = False
    """Whether a prompt has to be computed in one step, as each of its tokens attends to all of them. A step has room for the
    longest one."""

    @property
    def paged(self) -> bool:
        """True if the engine lays out KV blocks; False if the executor owns its KV and block tables stay empty."""
        return AttentionType.PAGED in self.attention_types


@dataclass(frozen=True, slots=True)
class ExecutorMemoryUsage:
    """Bytes held on the executor's device (host memory for CPU)."""

    allocated_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0
    total_bytes: int = 0

    @property
    def percent(self) -> float:
        """Allocated share of the total, 0 to 100; 0 when the total is unknown."""
        return 100.0 * self.allocated_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """The executor's current status. Counts are since start, times are means in milliseconds."""

    state: ExecutorState
    is_ready: bool
    current_batch_size: int = 0
    prefill_count: int = 0
    decode_count: int = 0
    mean_prefill_ms: float = 0.0
    mean_decode_ms: float = 0.0
    memory: ExecutorMemoryUsage = field(default_factory=ExecutorMemoryUsage)
    last_operation: str = ""
    notes: tuple[str, ...] = ()
    """Notes on slower or missing features and the reasons, e.g. a fallback kernel."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The speed of an executor after warmup, known before the first request.

    A step takes about `decode_step(decodes)` seconds and `prompt_token` seconds for each prompt token in it.
    """

    prompt_token: float
    """Time per prompt token in seconds, more than 0."""
    decode_steps: tuple[tuple[int, float], ...]
    """Pairs (sequences, seconds of a step with one token of each), by rising number; at least one."""

    draft_steps: tuple[tuple[int, float], ...] = ()
    """The same of the draft model alone; () if there is none."""

    def decode_step(self, num_seqs: int) -> float:
        """Seconds of a step with one token of each of `num_seqs` sequences: by linear interpolation between two measurements;
        outside their range, the nearest one; 0 for no sequences."""
        return interpolated(self.decode_steps, num_seqs)


@dataclass(frozen=True, slots=True)
class DeviceChecks:
    """What a life of an executor has found right on its device, and the next need not find again under the same conditions."""

    conditions: str
    """Digest of what the checks depend on: device, driver, libraries, kernels, model and settings."""
    passed: tuple[str, ...]
    """Names of checks and trials."""


def interpolated(points: Sequence[tuple[int, float]], at: int) -> float:
    """The value of a piecewise linear function at `at`, given by (place, value) with rising places, at least one; outside their
    range, the nearest one's; 0 for `at` below 1."""
    if at <= 0:
        return 0.0
    before, after = points[0], points[-1]
    for point in points:
        if point[0] <= at:
            before = point
        else:
            after = point
            break
    if at <= before[0] or at >= after[0]:
        return before[1] if at <= before[0] else after[1]
    return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0])


@dataclass(frozen=True, slots=True)
class ExecutorMetrics:
    """Totals since start and latencies in milliseconds over the last steps."""

    total_steps: int = 0
    total_prefill_tokens: int = 0
    total_decode_tokens: int = 0
    total_sampled_tokens: int = 0
    failed_steps: int = 0
    mean_step_ms: float = 0.0
    p95_step_ms: float = 0.0
    tokens_per_second: float = 0.0
    memory_efficiency: float = 0.0
    """Used share of allocated KV memory, 0 to 1."""
    batch_utilization: float = 0.0
    """Mean batch size as a share of `max_batch_size`, 0 to 1."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """States that layers keep of sequences beside KV; fixed after warmup.

    A state sums up all tokens before a position and cannot be taken back. A sequence can begin with another one's KV only where
    the state at that very position was kept.
    """

    slot_bytes: int
    num_slots: int
    """Slots that the engine gives out in `UnifiedBatch.state_src` and `state_dst`: at least as many as sequences run at once, and
    some for snapshots."""
    interval: int
    """Number of tokens, a multiple of the block size: a step can keep the state at each multiple of it as a snapshot."""
    memory_begin: int | None = None
    """As of `KvGroup`, of the first slot."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Paged KV of layers that keep keys and values of the same tokens, in blocks whose ids begin at 0 in each group."""

    num_blocks: int
    bytes_per_block: int
    window: int | None = None
    """Number of tokens that a token sees, itself included; blocks behind it are not read. None: all tokens before it."""
    blocks_per_span: int = 0
    """Number of consecutive blocks, starting at a multiple of it, whose memory `release_memory` can release together; 0: the
    memory was allocated at the start and is never released."""
    memory_begin: int | None = None
    """Where the first block begins in the memory file of `use_memory`, in bytes; the others follow. None: they lie elsewhere."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The paged KV memory as the engine accounts for it; fixed after warmup.

    An executor without Paged attention has no groups: the engine then keeps no block tables for it. Blocks of all groups hold
    `block_size` tokens.
    """

    block_size: int
    groups: tuple[KvGroup, ...] = ()
    state: StateLayout | None = None
    """States of sequences; None if the model has KV alone."""
    max_tokens: int = 0
    """Tokens of context that the sizes of the groups were planned for; 0: as many as the full groups hold."""
    fingerprint: str = ""
    """Digest of geometry, dtypes, instruction set, kernel sources and weights. Not empty: the blocks outlive the executor's
    process, steps answer `UnifiedBatch.seals`, and `begin_epoch` may adopt blocks that were sealed under the same fingerprint.
    The same holds for slots of states, where the engine gives them out (`snapshots`)."""
    content: str = ""
    """As `fingerprint`, without the number of blocks and what else changes from one start to the next: digest of what the bytes
    of a block depend on beside the tokens before it. Not empty: blocks may be written to memory from files, and adopted while the
    executor runs (`ModelExecutor.adopt_blocks`)."""

    @staticmethod
    def of(block_size: int, num_blocks: int, bytes_per_block: int, blocks_per_span: int = 0) -> KvLayout:
        """Return the layout of one group whose tokens see all tokens before them."""
        return KvLayout(block_size, (KvGroup(num_blocks, bytes_per_block, blocks_per_span=blocks_per_span),))

    @property
    def paged(self) -> bool:
        """Whether the engine keeps block tables."""
        return bool(self.groups)

    @property
    def num_blocks(self) -> int:
        """Number of blocks of all groups."""
        return sum(group.num_blocks for group in self.groups)

    @property
    def block_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(group.num_blocks * group.bytes_per_block for group in self.groups)

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks and states."""
        return self.block_bytes + self.state_bytes

    @property
    def state_group(self) -> int:
        """The group by which seals and `release_memory` name slots of states: the one behind the last group of blocks."""
        return len(self.groups)

    @property
    def state_bytes(self) -> int:
        """Bytes of all slots of states."""
        return 0 if self.state is None else self.state.num_slots * self.state.slot_bytes

    @property
    def num_sealable(self) -> tuple[int, ...]:
        """How many blocks of each group can be sealed, and last, where layers have states, how many slots of these."""
        counts = tuple(group.num_blocks for group in self.groups)
        return counts if self.state is None else (*counts, self.state.num_slots)

    def kept(self, num_tokens: int, new_len: int) -> int:
        """How many tokens a sequence of `num_tokens` keeps where it is rolled back to `new_len`: none if a state is of a later
        position, or blocks may be gone that have left a window."""
        if new_len >= num_tokens:
            return new_len
        if self.state is not None:
            return 0
        for group in self.groups:
            if group.window is not None:
                first, now = (
                    max(0, end - group.window + 1) // self.block_size for end in (new_len, num_tokens)
                )
                if first < now:
                    return 0
        return new_len

    @property
    def on_demand(self) -> bool:
        """Whether memory is taken at its first use, and can be released."""
        return any(group.blocks_per_span for group in self.groups)

    @property
    def capacity_tokens(self) -> int:
        """Number of tokens that fit: `max_tokens`, or those of the full groups when every block is full; 0 without groups."""
        if self.max_tokens:
            return self.max_tokens
        full = [group.num_blocks for group in self.groups if group.window is None]
        blocks = full or [group.num_blocks for group in self.groups]
        return self.block_size * min(blocks, default=0)
