"""An executor that misbehaves on demand: the first token id of a step says how. Imported by the child under test."""

import asyncio
import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from executors.contract import (
    AttentionType,
    BatchModelExecutor,
    ConfigError,
    DecodeInput,
    DecodeOutput,
    DeviceChecks,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    ExecutorType,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    KvLayout,
    MemoryRequirements,
    ModelExecutor,
    ModelExecutorFactory,
    ModelInfo,
    OutOfMemory,
    Pace,
    PrefillInput,
    PrefillOutput,
    ProgressCallback,
    SampledToken,
    SealedBlocks,
    SnapshotValue,
    StepFailed,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
)

(
    PLAIN,
    SLEEP,
    HOLD_GIL,
    STEP_FAILED,
    CRASH,
    EXIT,
    INVALID,
    NO_MEMORY,
    CUDA,
    COMPILE,
    DIE,
    NEVER,
    SURROGATE,
    LOSE,
) = range(100, 114)


class AcceleratorError(RuntimeError):
    """As torch's, whose name is what counts."""


class Stub(BatchModelExecutor):
    """Answers each item with its last token + 1; `log` of ordered members rides on the cache snapshot."""

    def __init__(self, config: ExecutorConfig, loaded_by: int | None = None) -> None:
        """`loaded_by`: the process that has loaded what it shares with others."""
        self.loaded_by = loaded_by
        self.options = config.options
        self.told: dict[str, float] = {} if config.pace is None else {"told_pace": config.pace.prompt_token}
        if config.checks is not None:
            self.told["told_checks"] = len(config.checks.passed)
        self.acts = config.options.get("rank", config.parallel.rank) == config.parallel.rank
        """Whether it misbehaves: with the option `rank`, that rank alone does."""
        self.log: list[str] = []
        self.lost = False
        """Whether its device says so from now on, in each answer."""
        self.report: ProgressCallback = lambda stage, done, total: None

    def set_progress(self, report: ProgressCallback) -> None:
        self.report = report

    async def warmup(self) -> None:
        match self.options.get("load") if self.acts else None:
            case "config":
                raise ConfigError("model: no such\nfolder")
            case "crash":
                raise KeyError("unforeseen")
            case "exit":
                os._exit(7)
            case "slow":
                sleep_long()
            case "half a second":
                sleep_briefly()
        for done in range(3):
            self.report("weights", done, 2)

    def info(self) -> ModelInfo:
        return ModelInfo("stub", "stub", 1, 1, 1, 4, 4, 1000, 1000, 128, "float32")

    def capabilities(self) -> ExecutorCapabilities:
        return ExecutorCapabilities(8, 128, (AttentionType.PAGED,), MemoryRequirements(1, 2, 3, 4))

    def kv_layout(self) -> KvLayout:
        return KvLayout.of(16, 8, 64)

    def kv_capacity(self) -> int | None:
        return 99

    def device_checks(self) -> DeviceChecks | None:
        return DeviceChecks("here", ("one",))

    def pace(self) -> Pace | None:
        return Pace(0.25, ((1, 0.5), (8, 1.5)))

    def optimal_batch_size(self) -> int:
        return 4

    def supports_native_unified_decode(self) -> bool:
        return True

    def status(self) -> ExecutorStatus:
        if self.lost:
            raise AcceleratorError("CUDA error: an illegal memory access was encountered")
        return ExecutorStatus(ExecutorState.READY, True, decode_count=len(self.log))

    def metrics(self) -> ExecutorMetrics:
        return ExecutorMetrics(total_steps=len(self.log))

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        shared = {} if self.loaded_by is None else {"loaded_by": self.loaded_by}
        return {"log": " ".join(self.log), "rss": np.float32(0.5), **shared, **self.told}  # type: ignore[dict-item]

    async def shutdown(self) -> None:
        if self.options.get("stubborn"):
            sleep_long()

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        self.log.append(f"epoch{epoch}")
        return np.empty(0, np.int32)

    def release_cache(self, cache_id: int) -> None:
        if cache_id == 666:
            raise RuntimeError("cannot release")
        self.log.append(f"release{cache_id}")

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        self.log.append(f"truncate{handle.cache_id}:{new_len}:{len(handle.block_tables)}")
        return new_len

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        self.log.append(f"memory{group}{block_ids.tolist()}".replace(" ", ""))

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        self.log.append(f"step{batch.step_id}")
        action = ACTIONS.get(int(batch.token_ids[0]))
        if action is not None and not self.acts and self.options.get("others") == "wait":
            sleep_long()
        if action is not None and self.acts:
            result = action(self)
            if result is not None:
                await result
        last = batch.token_ids[batch.q_starts[1:] - 1] + 1
        return UnifiedOutput(np.ones(len(batch), np.int32), last.astype(np.int32))

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        self.log.append("prefill")
        logits = Tensor.of(np.arange(4, dtype=np.float32).reshape(1, 1, 4))
        return PrefillOutput(logits, request.kv_cache, sampled=SampledToken(7, -0.5, ((7, -0.5),)))

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        self.log.append("decode")
        token = int(request.input_ids.numpy()[0, 0])
        return DecodeOutput(request.input_ids, request.kv_cache, sampled=SampledToken(token + 1))

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        self.log.append(f"batch{len(inputs)}")
        return [await self.decode(one) for one in inputs]


class LoadsLoras(Stub):
    """A stub with adapters and a plain forward."""

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        self.log.append(f"load:{name}:{path}:{digest}")

    async def unload_adapter(self, name: str) -> None:
        self.log.append(f"unload:{name}")

    async def forward(self, tensor: Tensor) -> Tensor:
        return Tensor.of(tensor.numpy() * 2)


def _raise(error: BaseException) -> None:
    raise error


def sleep_briefly() -> None:
    """As a load that takes longer than a fork."""
    time.sleep(0.5)


def sleep_long() -> None:
    """As a long torch call: the main thread is gone, other threads run."""
    time.sleep(60)


async def _compile(stub: Stub) -> None:
    stub.report("compile", 0, 1)
    await asyncio.sleep(0.6)
    stub.report("compile", 1, 1)


ACTIONS: dict[int, Callable[[Stub], object]] = {
    SLEEP: lambda stub: sleep_long(),
    HOLD_GIL: lambda stub: ctypes.PyDLL(None).sleep(60) and None,
    STEP_FAILED: lambda stub: _raise(StepFailed("asked for")),
    CRASH: lambda stub: _raise(ZeroDivisionError("one\nby nought")),
    EXIT: lambda stub: os._exit(9),
    INVALID: lambda stub: _raise(InvalidInput("asked for")),
    NO_MEMORY: lambda stub: _raise(OutOfMemory("asked for")),
    CUDA: lambda stub: _raise(AcceleratorError("CUDA error: an illegal memory access")),
    COMPILE: _compile,
    DIE: lambda stub: _raise(ExecutorDied("gave up", "fake")),
    SURROGATE: lambda stub: _raise(StepFailed("no file \udcff")),
    NEVER: lambda stub: asyncio.Event().wait(),
    LOSE: lambda stub: setattr(stub, "lost", True),
}  # type: ignore[dict-item]


class Factory(ModelExecutorFactory):
    """The factory that tests name in `ExecutorConfig.executor`."""

    def create_executor(self, config: ExecutorConfig) -> ModelExecutor:
        return LoadsLoras(config) if config.options.get("adapters") else Stub(config)

    def load_shared(
        self, config: ExecutorConfig, progress: ProgressCallback
    ) -> Callable[[ExecutorConfig], ModelExecutor] | None:
        """The option `shared` says how it goes."""
        how = config.options.get("shared")
        if how is None:
            return None
        progress("weights", 1, 2)
        match how:
            case "config":
                raise ConfigError("model: no such\nfolder")
            case "crash":
                raise KeyError("unforeseen")
            case "exit":
                os._exit(9)
            case "hold":
                ctypes.PyDLL(None).sleep(60)  # with the GIL: no sign of life
            case "slow":
                time.sleep(2)
            case "threads":
                threading.Thread(target=sleep_long, daemon=True).start()
        loaded_by = os.getpid()
        return lambda config: Stub(config, loaded_by)

    def stand_by(self, config: ExecutorConfig, opens_device: bool) -> str:
        """The option `stands_by` says how it goes."""
        match config.options.get("stands_by"):
            case "slow":
                sleep_long()
            case "crash":
                raise KeyError("unforeseen")
            case "exit":
                os._exit(9)
            case "opens" if opens_device:
                return f"stub:{config.parallel.rank}"
        return ""

    def supported_types(self) -> tuple[ExecutorType, ...]:
        return (ExecutorType.CONTINUOUS_BATCH, ExecutorType.TENSOR_PARALLEL)
