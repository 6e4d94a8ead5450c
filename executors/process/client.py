"""`RemoteExecutor`: an executor in a child process, for the engine's event loop. No torch, no threads, nothing blocks.

A call is a frame to the child and a future for its answer; answers come in order and several calls may be outstanding.
A cancelled caller changes nothing for the child: the call runs and its answer is dropped. The synchronous members answer
from the facts that the child sent when it became ready, and from its last heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from executors.contract import (
    BatchModelExecutor,
    BlockMemory,
    DecodeInput,
    DecodeOutput,
    DeviceChecks,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    Int32Array,
    KvCacheHandle,
    KvLayout,
    ModelInfo,
    NotReady,
    Pace,
    PrefillInput,
    PrefillOutput,
    ProgressCallback,
    SealedBlocks,
    SnapshotValue,
    SpeculativeDecodeOutput,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
    replace,
)
from executors.contract.seals import check_adopted
from executors.memory_file import FileBlocks, MemoryFile
from executors.process import messages as m
from executors.process.children import (
    Begin,
    Begun,
    ChildProcess,
    Command,
    Descriptors,
    StartedChild,
    child_command,
    connection,
    started,
)
from executors.process.forks import ForkServer
from executors.process.group import RankProcesses
from executors.process.life import Life, Listener
from executors.process.output import ChildOutput
from executors.process.standby import StandbyKind, Standbys, StandbyTimes, Wish
from executors.process.watch import Limits, TokenCost

_log = logging.getLogger(__name__)

A = TypeVar("A", bound=m.Answer)


_DOUBTFUL = ("device", "hang", "load")
"""Causes of death after which the next life checks its device again: a kernel may be what did not end."""


def _chosen_seqs(config: ExecutorConfig, most: int) -> int:
    """Most sequences of a step, of which a ready executor says that it takes `most`: an explicit limit is not raised."""
    return most if "max_num_seqs" in config.default_limits else min(config.max_num_seqs, most)


class RemoteExecutor(BatchModelExecutor):
    """See the module. All of it belongs to one event loop.

    - `on_death`: called on the loop at each death of a child, `shutdown` excepted.
    - `config.executor` names a built-in executor or `package.module:Factory`: factories that `register_factory` added in this
      process do not exist in the child.
    - `imports`: modules that a fork server imports, which then begins the children; without them `command` does.
    - `standby`: see `StandbyKind`. A process stands by for the next life only where weights are not shared with it anyway.
    - `turns`: see `CoreTurns.open`: steps take turns with those of other executors; None: they do not.
    """

    mode = "process"

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_death: Callable[[ExecutorDied], None] | None = None,
        command: Command = child_command,
        output: ChildOutput | None = None,
        imports: Sequence[str] = (),
        turns: str | None = None,
        standby: StandbyKind = "off",
        standby_times: StandbyTimes | None = None,
    ) -> None:
        self.config = config
        self.on_death = on_death
        self._limits = limits or Limits()
        self._clock = clock
        self._command, self._output = command, output
        self._imports = imports
        self._turns = turns
        self._fork_server: ForkServer | None = None
        self._standby = standby
        self._standbys = Standbys(self._begin_standby, standby_times)
        self._could_fork = bool(imports)
        """Whether what the executor imports is known."""
        self._why_none = ""
        """Why nothing stands by though it was asked for, as the log says."""
        self._cost = TokenCost()
        self._report: ProgressCallback | None = None
        self._life: Life | RankProcesses | None = None
        self._ending: asyncio.Task[None] | None = None
        self._memory: list[MemoryFile] | None = None
        """Memory for KV blocks of each rank, which outlives the children; [] where the system has none, None before the first."""
        self._closed = False
        self._facts: m.Ready | None = None
        self._beat = m.Heartbeat(None, "", None)
        self._snapshot: m.Snapshot | None = None
        self._snapshot_at = clock()

    # -- facts ---------------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        return self._known().info

    def capabilities(self) -> ExecutorCapabilities:
        # Where an executor takes one at a time, a second one can wait here.
        limits = self._known().capabilities
        return replace(limits, max_in_flight=max(2, limits.max_in_flight))

    def kv_layout(self) -> KvLayout:
        return self._known().kv_layout

    def kv_capacity(self) -> int | None:
        return self._known().kv_capacity

    def pace(self) -> Pace | None:
        return self._known().pace

    def device_checks(self) -> DeviceChecks | None:
        return self._known().checks

    def supports_native_unified_decode(self) -> bool:
        return self._known().native_unified_decode

    def optimal_batch_size(self) -> int:
        return self._known().optimal_batch_size

    def status(self) -> ExecutorStatus:
        """The child's last status, with the state as this side knows it: loading, dead, shut down."""
        last = self._snapshot.status if self._snapshot else ExecutorStatus(ExecutorState.INITIALIZING, False)
        if self._closed:
            return replace(last, state=ExecutorState.SHUTDOWN, is_ready=False)
        if self._life is None or self._life.is_ready:
            note = self._standbys.note
            return last if note is None else replace(last, notes=(*last.notes, note))
        if self._life.death is not None:
            return replace(
                last, state=ExecutorState.ERROR, is_ready=False, last_operation=str(self._life.death)
            )
        return replace(
            last, state=ExecutorState.INITIALIZING, is_ready=False, last_operation=self._beat.stage
        )

    def metrics(self) -> ExecutorMetrics:
        return self._snapshot.metrics if self._snapshot else ExecutorMetrics()

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return self._snapshot.cache if self._snapshot else None

    def lora_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        return self._snapshot.lora if self._snapshot else None

    def snapshot_age(self) -> float:
        """Seconds since the status, metrics and snapshots were true (since creation before the first)."""
        return self._clock() - self._snapshot_at

    def stage(self) -> str:
        """The stage of the child's loading or compilation, "" if none, as of the last heartbeat or report."""
        return self._beat.stage

    def running_seconds(self) -> float | None:
        """Seconds that the child's current call had been running at the last heartbeat; None if it was idle."""
        return self._beat.running_s

    def supports_adapters(self) -> bool:
        """True if `load_adapter` works."""
        return self._known().adapters

    @property
    def pid(self) -> int | None:
        """The process id of the child, dead or alive; None before the first."""
        return self._life.pid if self._life else None

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of all ranks, dead or alive; () before the first."""
        if self._life is None:
            return ()
        return self._life.pids if isinstance(self._life, RankProcesses) else (self._life.pid,)

    # -- life ----------------------------------------------------------------------------------------------------------

    def set_progress(self, report: ProgressCallback) -> None:
        """As the contract's; `report` is called on the event loop, from the next report on."""
        self._report = report

    def set_death_listener(self, report: Callable[[ExecutorDied], None]) -> None:
        """As the contract's; replaces `on_death`."""
        self.on_death = report

    async def warmup(self) -> None:
        """Start the child and wait until it is ready; start it again if it died. Raises ConfigError, OutOfMemory or
        ExecutorDied (cause "load"). A cancelled caller leaves it loading: a later warmup or begin_epoch waits for it."""
        await self._warm(adopting=False)

    async def _warm(self, adopting: bool) -> None:
        if self._closed:
            raise NotReady("the executor was shut down")
        while self._life is None or self._life.death is not None:
            before = self._life
            if before is not None:
                await before.reaped()
                if not adopting:
                    # Before the new child takes memory: the one before it may have died for want of it.
                    await asyncio.to_thread(_empty, self._memory or [])
            # The child reports nothing before it has imported its wire.
            self._progressed("starting", 0, 0)
            begin: Begin = self._forked if self._can_fork() else self._by_command
            if not await self._standbys.probe(self.config) and self._life is before:
                begin = await self._begin()
            if self._closed:
                raise NotReady("the executor was shut down")
            if self._life is before:
                self._start(begin)
        await self._life.ready()

    async def _begin(self) -> Begin:
        """Return what begins children: the fork server once it has imported, or the command."""
        if self._fork_server is not None and not self._fork_server.alive:
            ended, self._fork_server = self._fork_server, None
            await ended.end()
        if self._imports and self._fork_server is None and not self._closed:
            self._progressed("importing", 0, 0)
            try:
                self._fork_server = ForkServer(self._imports, self._output)
            except OSError as error:
                _log.warning("executors import by themselves: there is no fork server: %s", error)
                self._imports = ()
        if (server := self._fork_server) is not None:
            silence_s = self._limits.loading_silence_s
            if await server.imported(silence_s) and (
                self.config.parallel.world_size > 1
                or await server.loaded(self.config, self._progressed, silence_s)
            ):
                return self._forked
            await server.end()
            self._fork_server = None
            self._imports = ()  # an executor that imports by itself tells what was wrong
        return self._by_command

    def _can_fork(self) -> bool:
        return self._fork_server is not None and self._fork_server.alive

    def _forked(self, descriptors: Descriptors) -> ChildProcess:
        try:
            if self._fork_server is None:
                raise OSError("there is no fork server")
            return self._fork_server.fork(descriptors)
        except OSError as error:
            _log.warning("the executor is not forked: %s; it imports by itself, and so do later ones", error)
            self._imports = ()
            return self._by_command(descriptors)

    def _by_command(self, descriptors: Descriptors) -> ChildProcess:
        json_lines = self._output is not None and self._output.json
        return StartedChild(started(self._command(descriptors.socket), descriptors, json_lines))

    # -- what stands by --------------------------------------------------------------------------------------------------

    def _keep_standby(self) -> None:
        """Have a process stand by for the next life, if one is wanted and of use."""
        server, forks = self._fork_server, self._can_fork()
        if self._closed or self._standby == "off":
            return
        if server is not None and forks and server.shares_weights:
            why = "it is forked with its weights"
        elif forks and self._standby != "device":
            why = "it is forked from a process that has imported everything"
        elif self._standby == "auto" and not self._could_fork:
            why = "what it imports is not known"
        else:
            why = ""
            wish = Wish(self.config, self._memory or (), self._standby == "device")
            self._standbys.keep(wish)
        if why and why != self._why_none and self._standby != "auto":
            _log.info("nothing stands by for the executor: %s", why)
        self._why_none = why

    async def _begin_standby(self, config: ExecutorConfig, memory: MemoryFile | None) -> Begun:
        """Begin a child as the next life's would be, without a pause for the loop. Raises OSError."""
        with connection(self._output, config, None if memory is None else memory.descriptor) as (
            descriptors,
            ours,
        ):
            if self._can_fork():
                assert self._fork_server is not None
                return Begun(await self._fork_server.fork_soon(descriptors), ours, forked=True)
            return Begun(self._by_command(descriptors), ours)

    # -- the life ----------------------------------------------------------------------------------------------------------

    def _start(self, begin: Begin) -> None:
        if self._memory is None:
            self._memory = _memory_files(self.config.parallel.world_size)
        listener = Listener(self._progressed, self._beaten, self._became_ready, self._died)
        try:
            self._life = self._new_life(begin, listener, self._memory)
        except OSError as error:
            if self._life is None:
                _close(self._memory)
                self._memory = None
            raise ExecutorDied(f"the executor process cannot be started: {error}", "load") from error

    def _new_life(
        self, begin: Begin, listener: Listener, memory: Sequence[MemoryFile]
    ) -> Life | RankProcesses:
        arguments = self.config, self._limits, self._cost, self._clock, listener, begin
        again, output, turns = self._facts is not None, self._output, self._turns
        if self.config.parallel.world_size > 1:
            take = self._standbys.take
            return RankProcesses(
                *arguments, again=again, output=output, memory=memory, turns=turns, standby=take
            )
        first, standby = memory[0] if memory else None, self._standbys.take(0)
        return Life(*arguments, again=again, output=output, memory=first, turns=turns, standby=standby)

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """As the contract's; starts a new child when the old one is dead."""
        await self._warm(adopting=adopt is not None)
        answer = await self._ask(m.EpochBegun, lambda call: m.BeginEpoch(call, epoch, adopt))
        if not check_adopted(answer.adopted, 0 if adopt is None else len(adopt)):
            raise self._garbage("began an epoch with blocks that were not offered")
        return answer.adopted

    def block_memory(self) -> BlockMemory | None:
        """As the contract's: the memory file of the only rank, where all blocks lie in it."""
        if not self._memory or len(self._memory) > 1:
            return None
        return FileBlocks.of(self._memory[0], self.kv_layout())

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        answer = await self._ask(m.Adopted, lambda call: m.AdoptBlocks(call, sealed))
        if not check_adopted(answer.adopted, len(sealed)):
            raise self._garbage("adopted blocks that were not offered")
        return answer.adopted

    async def suspend(self) -> None:
        """As the contract's: the child ends, and so does the process that children are forked from; KV memory is emptied. Called
        between steps. `begin_epoch` starts a new child."""
        life, server = self._life, self._fork_server
        await self._standbys.end()
        if life is not None:
            await life.stop()
        if server is not None:
            self._fork_server = None
            await server.end()
        await asyncio.to_thread(_empty, self._memory or [])

    async def shutdown(self) -> None:
        """Ask the child to end, wait at most 2 s, kill it, reap it. Outstanding calls that it does not answer in this time
        raise NotReady. Continues if its caller is cancelled."""
        self._closed = True
        if self._life is None and self._fork_server is None:
            return
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(self._life))
        await asyncio.shield(self._ending)

    async def _end(self, life: Life | RankProcesses | None) -> None:
        try:
            if life is not None:
                await life.stop()
        finally:
            await self._standbys.end()
            if self._fork_server is not None:
                await self._fork_server.end()
            # Gigabytes are given back here, which takes a second or more.
            await asyncio.to_thread(_close, self._memory or [])
            self._memory = []

    def kill(self) -> int:
        """Send SIGKILL to the child, as an operator's `kill -9` does; the death is noticed like any other. Returns its process
        id. Raises NotReady if no child lives."""
        if self._life is None or not self._life.send_kill():
            raise NotReady("no executor process lives")
        return self._life.pid

    async def wait_dead(self) -> ExecutorDied | None:
        """Wait until the current child is dead (returns at once if it is); returns its death, None if it was shut down.

        Raises NotReady if there has never been one.
        """
        life = self._life
        if life is None:
            raise NotReady("the executor was not started")
        await life.dead()
        return None if self._closed else life.death

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """As the contract's; an executor without a native one takes the split path in the child."""
        answer = await self._ask(m.StepDone, lambda call: m.pack_batch(call, batch), batch.total_q_tokens())
        return m.unpack_output(answer)

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        tokens = request.sequence_length()
        answer = await self._ask(m.PrefillDone, lambda call: m.Prefill(call, [request], "one"), tokens)
        return m.own(answer.outputs[0])

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        tokens = sum(one.sequence_length() for one in inputs)
        answer = await self._ask(m.PrefillDone, lambda call: m.Prefill(call, list(inputs), "many"), tokens)
        return [m.own(one) for one in answer.outputs]

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        answer = await self._ask(m.DecodeDone, lambda call: m.Decode(call, [request], "one"), 1)
        return m.own(answer.outputs[0])

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        answer = await self._ask(m.DecodeDone, lambda call: m.Decode(call, list(inputs), "many"), len(inputs))
        return [m.own(one) for one in answer.outputs]

    async def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        answer = await self._ask(
            m.DecodeDone, lambda call: m.Decode(call, list(inputs), "verify"), len(inputs)
        )
        return [m.own(one) for one in answer.outputs]

    async def speculative_decode(
        self, request: DecodeInput, draft_tokens: Sequence[int], acceptance_threshold: float = 1.0
    ) -> SpeculativeDecodeOutput:
        drafts = [int(token) for token in draft_tokens]
        answer = await self._ask(
            m.SpeculateDone,
            lambda call: m.Speculate(call, request, drafts, acceptance_threshold),
            len(drafts) + 1,
        )
        return m.own(answer.output)

    async def forward(self, tensor: Tensor) -> Tensor:
        answer = await self._ask(m.ForwardDone, lambda call: m.Forward(call, tensor))
        return m.own_tensor(answer.tensor)

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """As `LoraExecutor`'s. Raises Unsupported if the executor loads no adapters."""
        await self._ask(m.Done, lambda call: m.LoadAdapter(call, name, path, digest))

    async def prepare_adapter(self, name: str, path: str, digest: str) -> None:
        """As the contract's; its answer does not wait for steps."""
        await self._ready_life().prepare_adapter(name, path, digest)

    async def unload_adapter(self, name: str) -> None:
        """As load_adapter."""
        await self._ask(m.Done, lambda call: m.UnloadAdapter(call, name))

    async def prepare_grammar(self, grammar: str) -> None:
        """As the contract's; its answer does not wait for steps."""
        await self._ready_life().prepare(grammar)

    async def _ask(self, kind: type[A], make: Callable[[int], m.Call], tokens: int | None = None) -> A:
        life = self._ready_life()
        answer = await life.call(make(life.next_call()), tokens)
        if not isinstance(answer, kind):
            raise self._garbage(f"answered with {type(answer).__name__}, not {kind.__name__}")
        return cast(A, answer)

    def _garbage(self, reason: str) -> ExecutorDied:
        """End the child for what it sent, and return its death."""
        life = self._ready_life()
        life.kill("closed", reason)
        return ExecutorDied(str(life.death), "closed")

    def _ready_life(self) -> Life | RankProcesses:
        """The child that accepts calls. Raises NotReady or ExecutorDied."""
        life = self._life
        if self._closed:
            raise NotReady("the executor was shut down")
        if life is not None and life.death is not None:
            raise ExecutorDied(str(life.death), life.death.cause, from_outside=life.death.from_outside)
        if life is None or not life.is_ready:
            raise NotReady("the executor is not loaded")
        return life

    # -- sequence state: no answer ---------------------------------------------------------------------------------------

    def release_cache(self, cache_id: int) -> None:
        """As the contract's; sent after the calls made so far. Does nothing for a dead child, which holds no cache."""
        if self._life is not None:
            self._life.tell(m.Release(cache_id))

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        """As release_cache; returns what the layout says. If the executor cannot, the steps after it are answered Skipped."""
        if self._life is not None:
            self._life.tell(m.Truncate(handle, new_len))
        return self.kv_layout().kept(handle.num_tokens, new_len) if new_len else 0

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        """As release_cache."""
        if self._life is not None:
            self._life.tell(m.ReleaseMemory(group, block_ids))

    # -- what the child says -----------------------------------------------------------------------------------------------

    def _known(self) -> m.Ready:
        if self._facts is None:
            raise NotReady("the executor is not loaded")
        return self._facts

    def _became_ready(self, facts: m.Ready) -> None:
        self._facts = facts
        layout, limits = facts.kv_layout, facts.capabilities
        self.config = replace(
            self.config,
            # The next life gets the limits that this one chose: what the engine runs at once stays valid.
            default_limits=(),
            max_num_seqs=_chosen_seqs(self.config, limits.max_batch_size),
            max_num_batched_tokens=limits.max_batched_tokens or self.config.max_num_batched_tokens,
            # Shorter than the model's own where KV allows no more: a pool of given size would refuse that one.
            max_model_len=facts.info.max_model_len,
            # It is the same machine: to measure once more would make a pause longer by a third of a second and more.
            pace=facts.pace,
            checks=facts.checks,
        )
        if layout.paged:
            # The next life gets as many blocks: the engine's accounting, and what was admitted by it, stay valid.
            memory = replace(
                self.config.memory, kv_cache_memory_bytes=layout.num_bytes, kv_on_demand=layout.on_demand
            )
            self.config = replace(self.config, memory=memory)
        self._keep_standby()

    def _beaten(self, beat: m.Heartbeat) -> None:
        self._beat = beat
        if beat.snapshot is not None:
            self._snapshot, self._snapshot_at = beat.snapshot, self._clock()

    def _progressed(self, stage: str, done: int, total: int) -> None:
        self._beat.stage = "" if 0 < total <= done else stage
        if self._report is not None:
            asyncio.get_running_loop().call_soon(self._report, stage, done, total)  # apart: it may raise

    def _died(self, death: ExecutorDied) -> None:
        self._standbys.hold_back()
        if death.cause in _DOUBTFUL:
            self.config = replace(self.config, checks=None)
        if self.on_death is not None:
            asyncio.get_running_loop().call_soon(self.on_death, death)


def _memory_files(count: int) -> list[MemoryFile]:
    """Create that many; none, with a line in the log, where the system refuses one."""
    files: list[MemoryFile] = []
    try:
        for rank in range(count):
            files.append(MemoryFile.create(f"cohort-kv-{rank}"))
    except (OSError, AttributeError) as error:  # not Linux, or a sandbox that forbids it
        _log.warning(
            "KV ends with the executor's process: the system gives no memory that outlives it: %s", error
        )
        _close(files)
        return []
    return files


def _empty(files: Sequence[MemoryFile]) -> None:
    for file in files:
        file.empty()


def _close(files: Sequence[MemoryFile]) -> None:
    for file in files:
        file.close()
