"""`ModelExecutor`: the engine's interface to the executors that compute tokens. The rules are in `executors.contract`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from executors.contract.batch import (
    Int32Array,
    KvCacheHandle,
    SampledToken,
    UnifiedBatch,
    UnifiedOutput,
)
from executors.contract.config import (
    ExecutorConfig,
    ExecutorType,
)
from executors.contract.errors import (
    ConfigError,
    ExecutorDied,
    InvalidInput,
    Unsupported,
)
from executors.contract.records import (
    DecodeInput,
    DecodeOutput,
    PrefillInput,
    PrefillOutput,
    SpeculativeDecodeOutput,
)
from executors.contract.seals import BlockMemory, SealedBlocks
from executors.contract.slots import SlotTable
from executors.contract.split import split_unified_decode
from executors.contract.status import (
    DeviceChecks,
    ExecutorCapabilities,
    ExecutorMetrics,
    ExecutorStatus,
    KvLayout,
    ModelInfo,
    Pace,
)
from executors.contract.tensor import Tensor

SnapshotValue = float | int | str
"""Type of a metrics snapshot's value: numbers become gauges, strings become labels of an info metric."""


ProgressCallback = Callable[[str, int, int], None]
"""Function that takes reports (stage, done, total) while loading."""


class ModelExecutor(ABC):
    """Computes tokens. See the module's rules; optional members are grouped at the end of the class."""

    # -- facts: synchronous, answered from memory --------------------------------------------------------------------

    @abstractmethod
    def info(self) -> ModelInfo:
        """The loaded model. Raises NotReady before warmup."""

    @abstractmethod
    def capabilities(self) -> ExecutorCapabilities:
        """The executor's capabilities. Raises NotReady before warmup."""

    @abstractmethod
    def status(self) -> ExecutorStatus:
        """The executor's status; answers in every state."""

    @abstractmethod
    def metrics(self) -> ExecutorMetrics:
        """Totals since start; answers in every state."""

    @abstractmethod
    def kv_layout(self) -> KvLayout:
        """Block size and count, fixed after warmup. Raises NotReady before."""

    def kv_capacity(self) -> int | None:
        """Most tokens that one sequence can hold in KV if that is less than the context length, else None."""
        return None

    def pace(self) -> Pace | None:
        """The speed measured by warmup; fixed after it. None if it was not measured: the engine then does not know the speed
        until some steps have been computed."""
        return None

    def device_checks(self) -> DeviceChecks | None:
        """What warmup has found right on the device, for `ExecutorConfig.checks` of the next life. None: nothing that a next life
        would look for again."""
        return None

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        """Gauges on KV memory for Prometheus, or None."""
        return None

    def lora_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        """Gauges on loaded adapters for Prometheus, or None."""
        return None

    # -- life --------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def warmup(self) -> None:
        """Load weights, allocate KV, become ready. Idempotent. Raises ConfigError for a model that cannot be served."""

    @abstractmethod
    async def shutdown(self) -> None:
        """Free everything. Idempotent; later calls of other members raise NotReady."""

    async def suspend(self) -> None:
        """Free all memory, weights included, until `begin_epoch` brings everything back. Called between steps, once nothing that
        the executor holds is needed. Default: raises Unsupported."""
        raise Unsupported("this executor cannot be suspended")

    @abstractmethod
    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """Forget every sequence and start over; the next batch carries this epoch.

        Returns int32 [k], rising: the indices of those blocks of `adopt` whose memory holds what was sealed. All other blocks
        hold nothing of value, and so do all blocks of an executor that cannot adopt, which returns an empty array. Slots of
        states are adopted as blocks are. With None
        nothing is adopted, and memory that outlived an earlier process is given back to the system first, before a new
        process is started.

        Ends the `Skipped` answers that follow a failed step. A dead executor process is started again and loaded first,
        which takes as long as warmup. Raises ConfigError or ExecutorDied if it cannot be brought back.
        """

    def set_progress(self, report: ProgressCallback) -> None:
        """Request reports while `warmup` (or a restart) loads: stage, done, total (bytes or tensors; total 0 = unknown).

        `report` is called from any thread. The default reports nothing.
        """

    def use_memory(self, descriptor: int) -> None:
        """Offer a file of memory that outlives this process, see `executors.memory_file`, for KV blocks. Called before `warmup`,
        if at all; every life gets the same file. An executor that takes it has a `KvLayout.fingerprint`; the default ignores it.
        """

    def block_memory(self) -> BlockMemory | None:
        """The memory of blocks and of slots of states, for copies from and to files; None if this process cannot reach it."""
        return None

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        """Adopt blocks, and slots of states, that were written through `block_memory` since the epoch began: as `begin_epoch`,
        but in an epoch that goes on, and beside what it holds. Takes effect behind the steps and the released memory before it.

        No step in flight reads or writes these blocks. Returns int32 [k], rising: the indices of those whose memory holds what
        was sealed; others hold nothing of value. Raises InvalidInput, ExecutorDied. Default: raises Unsupported.
        """
        raise Unsupported("this executor adopts no blocks while it runs")

    def set_death_listener(self, report: Callable[[ExecutorDied], None]) -> None:
        """Request a report when the executor dies by itself, also between calls; `begin_epoch` restarts it.

        `report` is called on the event loop. The default never calls it: an executor without its own process does not die.
        """

    # -- one sequence ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        """Compute one prompt or chunk. Raises InvalidInput, OutOfMemory, StepFailed."""

    @abstractmethod
    async def decode(self, request: DecodeInput) -> DecodeOutput:
        """Compute one token of one sequence. Raises as prefill."""

    # -- many sequences ----------------------------------------------------------------------------------------------

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """Compute many prompts. Executors should override it with ONE forward; this default runs them one by one."""
        return [await self.prefill(one) for one in inputs]

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Compute one token for each of many sequences; this default runs them one by one."""
        return [await self.decode(one) for one in inputs]

    def supports_native_unified_decode(self) -> bool:
        """True if `unified_decode` is one forward. False: the engine takes the split path."""
        return False

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """Compute any mix of prefill chunks, decode steps and verification.

        One output per item. Default: the split fallback, one `batch_prefill` and one `batch_decode`
        (`executors/contract/split.py`), which needs this executor to keep `slot_table()`.

        Raises InvalidInput (nothing was computed), StepFailed or OutOfMemory (state of these sequences is unknown until
        the next epoch), Skipped (an earlier step of this epoch failed), ExecutorDied.
        """
        return await split_unified_decode(self, batch)

    def slot_table(self) -> SlotTable:
        """The persistent rows that a `UnifiedBatch` refers to; needed by the split fallback."""
        raise Unsupported(f"{type(self).__name__} keeps no slot table")

    # -- sequence state: synchronous, ordered before any later step ---------------------------------------------------

    @abstractmethod
    def release_cache(self, cache_id: int) -> None:
        """Free everything the sequence holds: slot, sampler state, KV the executor owns.

        Called once per sequence, after its last step in flight, on the executor alive then. Unknown ids are harmless.
        """

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        """Roll a sequence of `handle.num_tokens` tokens back to its first `new_len`; 0 = preempted, sampler state is kept.

        Returns the number of tokens that are left, from which the sequence goes on: at most `new_len`, and 0 where blocks of a
        window or the state at that place are gone (`KvLayout.kept`). Returns at once and takes effect before any later step. The
        default suits paged executors: their KV beyond the computed length is never read, so there is nothing to do. An executor
        that owns its KV must override it.
        """
        if not self.capabilities().paged:
            raise Unsupported(f"{type(self).__name__} owns its KV and cannot truncate it")
        return self.kv_layout().kept(handle.num_tokens, new_len)

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        """Allow the executor to return the memory of these blocks of a KV group to the system: they are not read before they are
        rewritten. With `KvLayout.state_group` for the group: of these slots of states.

        `block_ids` int32 [n], rising. Takes effect between the steps submitted before and those after. Optional, and called
        only for groups with `blocks_per_span`, for slots where the layout is `on_demand`; the default keeps the memory.
        """

    # -- verification ------------------------------------------------------------------------------------------------

    async def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """Logits after each of N + 1 consecutive tokens of ONE sequence (its last token and N drafts).

        Default: N + 1 decodes, the same answer more slowly.
        """
        return [await self.decode(one) for one in inputs]

    async def speculative_decode(
        self, request: DecodeInput, draft_tokens: Sequence[int], acceptance_threshold: float = 1.0
    ) -> SpeculativeDecodeOutput:
        """Verify drafts for one sequence: see `SpeculativeDecodeOutput`.

        A draft is accepted iff it equals the token that sampling at its position gives, hence only
        `acceptance_threshold == 1.0` is supported. KV beyond the accepted tokens is rolled back.
        Raises Unsupported for another threshold, InvalidInput without sampling.
        """
        if acceptance_threshold != 1.0:
            raise Unsupported(
                "only acceptance_threshold 1.0 is supported: a draft counts iff it equals the sampled token"
            )
        if request.sampling is None:
            raise InvalidInput("speculative_decode needs sampling parameters")
        accepted: list[SampledToken] = []
        logits: Tensor | None = None
        token, pos, handle = request.input_ids, request.pos_offset, request.kv_cache
        for draft in (*draft_tokens, None):
            output = await self.decode(replace(request, input_ids=token, pos_offset=pos, kv_cache=handle))
            if output.sampled is None:
                raise Unsupported(f"{type(self).__name__} does not sample; wrap it in SamplingWrapper")
            accepted.append(output.sampled)
            logits, written = output.logits, output.kv_cache
            if draft is None or draft != output.sampled.token_id:
                break
            token, pos, handle = Tensor.of([[draft]], "int32"), pos + 1, output.kv_cache
        return SpeculativeDecodeOutput(tuple(accepted), logits, written, len(accepted) - 1)

    # -- other ---------------------------------------------------------------------------------------------------------

    async def prepare_grammar(self, grammar: str) -> None:
        """Compile a grammar (the form of `SequenceStart.grammar`) that sequences are about to begin with.

        It is an exception to the rules above: any task may call it at any time, several at once, and steps proceed meanwhile.
        It is optional: a sequence with an unprepared grammar, or one that begins again after a restart, compiles its grammar
        in its first step. Raises InvalidInput for an invalid grammar. Default: Unsupported, as `capabilities()` says.
        """
        raise Unsupported(f"{type(self).__name__} has no grammars")

    async def prepare_adapter(self, name: str, path: str, digest: str) -> None:
        """Read and check an adapter that `LoraExecutor.load_adapter` is about to load, so that loading takes next to no time.

        Like `prepare_grammar` it may be called at any time, and steps proceed meanwhile. It is optional: `load_adapter` reads
        what was not prepared, or was displaced by another one. Raises as `load_adapter`. Default: nothing is prepared.
        """

    async def forward(self, tensor: Tensor) -> Tensor:
        """Full forward for non-autoregressive use (encoders). Default: Unsupported."""
        raise Unsupported(f"{type(self).__name__} has no plain forward: it is an autoregressive executor")


class BatchModelExecutor(ModelExecutor):
    """An executor that reports suitable batch sizes."""

    def optimal_batch_size(self) -> int:
        """The batch size with the best throughput. Default: the largest."""
        return self.capabilities().max_batch_size

    def supports_batch_size(self, n: int) -> bool:
        """True if n sequences fit one step."""
        return 1 <= n <= self.capabilities().max_batch_size


@runtime_checkable
class LoraExecutor(Protocol):
    """An executor that can load LoRA adapters."""

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """Load safetensors LoRA weights, prepared or not; `digest` is of their content. Raises ConfigError, OutOfMemory."""

    async def unload_adapter(self, name: str) -> None:
        """Free an adapter once no sequence uses it. Unknown names are harmless."""


@runtime_checkable
class SpeculativeExecutor(Protocol):
    """An executor that verifies drafts of one sequence. Every `ModelExecutor` is one, by its defaults."""

    async def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """See `ModelExecutor`."""

    async def speculative_decode(
        self, request: DecodeInput, draft_tokens: Sequence[int], acceptance_threshold: float = 1.0
    ) -> SpeculativeDecodeOutput:
        """See `ModelExecutor`."""


class ModelExecutorFactory(ABC):
    """Makes executors of one kind; registered by name in `executors/registry.py`."""

    @abstractmethod
    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        """An executor that has loaded nothing yet (`warmup` does). Raises ConfigError, see validate_config."""

    def create_batch_executor(self, config: ExecutorConfig) -> BatchModelExecutor:
        """As create_executor. Raises Unsupported if the executor is not a BatchModelExecutor."""
        executor = self.create_executor(config)
        if not isinstance(executor, BatchModelExecutor):
            raise Unsupported(f"{type(executor).__name__} is not a batch executor")
        return executor

    def load_shared(
        self, config: ExecutorConfig, progress: ProgressCallback
    ) -> Callable[[ExecutorConfig], ModelExecutor] | None:
        """Load what all lives of an executor may share, and return what creates one over it; None if they share nothing.

        Called once, in a process that forks the executors: what it returns has no threads, no open device and no memory that
        an executor writes. It takes configurations that differ in limits alone. Raises what `warmup` raises.
        """
        return None

    def stand_by(self, config: ExecutorConfig, opens_device: bool) -> str:
        """Do in this process what precedes every load of such an executor and depends on no limit: imports and, with
        `opens_device`, what a process needs at its device before it has loaded anything. May be called again.

        Returns the name of the device that is open, "" if none was to be opened. Raises what `warmup` raises for a device.
        """
        return ""

    @abstractmethod
    def supported_types(self) -> tuple[ExecutorType, ...]:
        """The types this factory can make."""

    def validate_config(self, config: ExecutorConfig) -> None:
        """Raises ConfigError, one line naming the field, for a configuration it cannot serve."""
        if config.executor_type not in self.supported_types():
            names = ", ".join(self.supported_types())
            raise ConfigError(
                f"executor_type {config.executor_type} is not supported by {config.executor}; it is: {names}"
            )
