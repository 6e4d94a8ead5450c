"""`Standbys`: child processes that stand by while others serve, one for each rank. What takes long before a load is done in them.

    life ready -> `after_s` -> begun -> StandBy -> StandingBy ... life dies -> StandBy -> StandingBy -> the next life: Load
                                imports, perhaps opens the device            asked whether it still answers

A child that is not done yet, does not answer in time or has ended is passed over: the next life begins as without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from executors.contract import ExecutorConfig, replace
from executors.memory_file import MemoryFile
from executors.process.children import Begun, ChildProcess, kill_group
from executors.process.messages import StandBy, StandingBy, ToServer
from executors.process.stream import MessageStream
from executors.process.wire import encode

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 3600.0

StandbyKind = Literal["auto", "off", "imports", "device"]
"""What stands by: "imports": a process that has imported what the executor needs; "device": one that has opened its device, too;
"auto": "imports" where executors are not forked although what they import is known; "off": nothing."""
STANDBY_KINDS: tuple[StandbyKind, ...] = get_args(StandbyKind)


@dataclass(frozen=True, slots=True)
class StandbyTimes:
    """Seconds. Only tests change them."""

    after_s: float = 5.0
    """From a life's first moments, which belong to the streams that go on, to the start of what stands by."""
    begin_s: float = 60.0
    """Time in which a process must be done with its imports, and its device be open."""
    answer_s: float = 3.0
    """Time in which it must answer when it is needed."""
    again_s: float = 60.0
    """Pause before another one after one that has ended; it doubles each time, up to an hour."""


class Taken(NamedTuple):
    """A child and the server's end of its socketpair, for `Life`."""

    process: ChildProcess
    stream: MessageStream


class StandbyChild:
    """One child, until it is taken or ended. Belongs to one event loop."""

    def __init__(
        self, start: Begun, config: ExecutorConfig, opens_device: bool, ended: Callable[[], None]
    ) -> None:
        """`ended`: called once, on the loop, when it ends by itself."""
        self._loop = asyncio.get_running_loop()
        self._process, self._config, self._opens_device = start.process, config, opens_device
        self._ended = ended
        self._answer: asyncio.Future[str | None] = self._loop.create_future()
        """What it has opened; None once it has ended."""
        self._questions = 0
        """Questions that are not answered."""
        self._over = False
        """Whether it was taken or has ended."""
        self._reaped: asyncio.Future[None] = self._loop.create_future()
        self.opened: str | None = None
        """What it has opened beside its imports, "" for nothing; None: it is not done."""
        self._stream = MessageStream(self._loop, start.socket, self._received, lambda garbage: self._lost())
        self._process.watch(self._poll)
        self.ask()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it is done, alive as far as is known, and has answered all questions."""
        return self.opened is not None and not self._over and not self._questions

    def fits(self, config: ExecutorConfig) -> bool:
        """Whether it can be the process of this configuration: what it has done depends on no other part."""
        mine, other = self._config, config
        return (mine.executor, mine.model, mine.device, mine.parallel.rank, mine.parallel.world_size) == (
            other.executor, other.model, other.device, other.parallel.rank, other.parallel.world_size,
        )  # fmt: skip

    def ask(self) -> None:
        """Have it do its part, or tell that it still can."""
        if self._answer.done():
            self._answer = self._loop.create_future()
        self._questions += 1
        self._stream.send(encode(StandBy(self._config, self._opens_device)))

    async def answered(self, timeout_s: float) -> bool:
        """Wait for the answer to all questions. False, and it is ended, if it does not come in time."""
        await asyncio.wait((self._answer,), timeout=timeout_s)
        if not self.is_ready:
            self.end()
        return self.is_ready

    def take(self) -> Taken:
        """Give it away."""
        self._over = True
        return Taken(self._process, self._stream)

    def end(self) -> None:
        """Kill it. Idempotent; `reaped` waits for the rest."""
        if not self._over:
            self._over = True
            self._stream.close()
            if not self._process.ended:  # its number may be another's then
                kill_group(self.pid)
            self._settle()
            self._reap()

    async def reaped(self) -> None:
        """Wait until it is gone for good, if it was ended."""
        await asyncio.shield(self._reaped)

    def when_reaped(self, call: Callable[[], None]) -> None:
        """Call this once `reaped` is over."""
        self._reaped.add_done_callback(lambda _: call())

    def _received(self, message: ToServer) -> None:
        if isinstance(message, StandingBy):  # others are signs of life
            self._questions -= 1
            self.opened = message.opened
            if not self._questions:
                self._settle()

    def _settle(self) -> None:
        if not self._answer.done():
            self._answer.set_result(None if self._over else self.opened)

    def _lost(self) -> None:
        if not self._over:
            self.end()
            self._ended()

    def _poll(self) -> None:
        """The process may have exited."""
        if not self._process.ended and self._process.poll() is not None:
            self._lost()
            if not self._reaped.done():
                self._reaped.set_result(None)

    def _reap(self) -> None:
        """Look until it has exited, where the system tells of no exits."""
        if not self._process.ended:
            self._poll()
        if not self._process.ended:
            self._loop.call_later(0.5, self._reap)


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to stand by for the next life of an executor. `memory`: its memory files by rank, or none."""

    config: ExecutorConfig
    memory: Sequence[MemoryFile]
    opens_device: bool

    def of_rank(self, rank: int) -> tuple[ExecutorConfig, MemoryFile | None]:
        """Return the configuration and the memory file of a rank."""
        return _of_rank(self.config, rank), self.memory[rank] if self.memory else None


Begin = Callable[[ExecutorConfig, MemoryFile | None], Awaitable[Begun]]
"""Function that begins a child of a rank, which inherits the memory file. Raises OSError."""


class Standbys:
    """The children that stand by for the next life of one executor. Belongs to one event loop."""

    def __init__(self, begin: Begin, times: StandbyTimes | None = None) -> None:
        self._begin, self._times = begin, times or StandbyTimes()
        self._children: dict[int, StandbyChild] = {}
        """Those that stand by, or will, by rank."""
        self._ending: set[StandbyChild] = set()
        """Those that are killed and not reaped."""
        self._starting: asyncio.Task[None] | None = None
        self._probing: asyncio.Task[bool] | None = None
        self._pause_s = self._times.again_s
        self._useless = False
        """Whether a child had nothing to do that its fork had not done already."""

    @property
    def note(self) -> str | None:
        """A line for `status()`; None if nothing stands by."""
        ready = [child for child in self._children.values() if child.is_ready]
        if not ready:
            return None
        opened = ", ".join(child.opened for child in ready if child.opened)
        processes = f"process{'es' if len(ready) > 1 else ''} {', '.join(str(child.pid) for child in ready)}"
        return f"standby: {processes}, {f'with {opened} open' if opened else 'with all imports done'}"

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of those that are ready."""
        return tuple(child.pid for child in self._children.values() if child.is_ready)

    def keep(self, wish: Wish) -> None:
        """Begin children in `after_s`: a life has become ready."""
        self._cancel()
        if not self._useless:
            self._start(wish, self._times.after_s)

    def hold_back(self) -> None:
        """Begin no child: the life has died. Those that are there stay."""
        self._cancel()

    async def probe(self, config: ExecutorConfig) -> bool:
        """Find out which children can be taken, as a life has died; others are ended. Whether there is one for each rank. Callers
        at one time share the questions: a child that was asked again meanwhile would seem to owe an answer."""
        if not self._children:
            self._cancel()
            return False
        if self._probing is None or self._probing.done():
            self._probing = asyncio.get_running_loop().create_task(self._probe(config))
        return await asyncio.shield(self._probing)

    async def _probe(self, config: ExecutorConfig) -> bool:
        self._cancel()
        for rank, child in list(self._children.items()):
            if child.opened is None or not child.fits(_of_rank(config, rank)):
                self._drop(rank)
        children = list(self._children.values())
        for child in children:
            child.ask()
        await asyncio.gather(*(child.answered(self._times.answer_s) for child in children))
        for rank, child in list(self._children.items()):
            if not child.is_ready:
                _log.warning("process %d stands by for the executor, but does not answer", child.pid)
                self._drop(rank)
        return len(self._children) == config.parallel.world_size

    def take(self, rank: int) -> Taken | None:
        """Give away the child of that rank, if it has answered `probe`."""
        child = self._children.get(rank)
        if child is None or not child.is_ready:
            return None
        del self._children[rank]
        self._pause_s = self._times.again_s
        return child.take()

    async def end(self) -> None:
        """End all; returns when they are reaped."""
        self._cancel()
        for rank in list(self._children):
            self._drop(rank)
        if self._probing is not None:
            await asyncio.wait((self._probing,))
        await asyncio.gather(*(child.reaped() for child in list(self._ending)))

    # -- beginning them --------------------------------------------------------------------------------------------------

    def _start(self, wish: Wish, after_s: float) -> None:
        self._starting = asyncio.get_running_loop().create_task(self._started(wish, after_s))

    async def _started(self, wish: Wish, after_s: float) -> None:
        """Begin those that are missing, one after the other."""
        await asyncio.sleep(after_s)
        for rank in range(wish.config.parallel.world_size):
            if rank not in self._children and not await self._begun(wish, rank):
                return

    async def _begun(self, wish: Wish, rank: int) -> bool:
        """Begin the child of a rank and wait until it is ready. False if it will not be."""
        config, memory = wish.of_rank(rank)
        try:
            start = await self._begin(config, memory)
        except OSError as error:
            self._again(wish, f"it cannot be started: {error}")
            return False
        child = StandbyChild(start, config, wish.opens_device, lambda: self._lost(wish, rank))
        self._children[rank] = child
        if not await child.answered(self._times.begin_s):
            if self._children.get(rank) is child:  # it has not ended by itself
                self._drop(rank)
                self._again(wish, f"process {child.pid} was not ready after {self._times.begin_s:.0f} s")
            return False
        if start.forked and not child.opened:
            _log.info(
                "nothing stands by for the executor: it is forked, and there is no device to open before"
            )
            self._useless = True
            self._drop(rank)
            return False
        return True

    def _lost(self, wish: Wish, rank: int) -> None:
        """A child has ended by itself."""
        pid = self._children[rank].pid
        self._drop(rank)
        self._again(wish, f"process {pid} has ended")

    def _again(self, wish: Wish, why: str) -> None:
        _log.warning("nothing stands by for the executor: %s; the next try is in %.0f s", why, self._pause_s)
        self._cancel()
        self._start(wish, self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _cancel(self) -> None:
        if self._starting is not None and self._starting is not asyncio.current_task():
            self._starting.cancel()
        self._starting = None

    def _drop(self, rank: int) -> None:
        """End a child, and remember it until it is reaped."""
        child = self._children.pop(rank)
        self._ending.add(child)
        child.end()
        child.when_reaped(lambda: self._ending.discard(child))


def _of_rank(config: ExecutorConfig, rank: int) -> ExecutorConfig:
    return replace(config, parallel=replace(config.parallel, rank=rank))
