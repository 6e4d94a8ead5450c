"""`StepFeed`: steps, sequences and KV blocks as server-sent events, for the console's live picture.

    StepWatch -> steps since the last frame -+
    EngineCore.stats, .sequences ------------+-> one frame, encoded once -> every watcher

One task makes the frames for all watchers; without a watcher there is none. Everything is bounded: watchers, frames
that wait for a slow one, steps and sequences in a frame.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import structlog

from engine.core.step_watch import PREFILL, RECOMPUTE, SequenceEnd, SequenceView, StepRecord
from engine.errors import Overloaded
from engine.interruptions import Outage
from engine.request import EngineStats, Stage
from server import __version__
from server.state.server_state import CoreLike, ServerState

log = structlog.get_logger("server")

INTERVAL = 0.2
"""Seconds between frames."""
_IDLE_FRAMES = 5
"""Intervals after which a frame is sent although nothing happens."""
MAX_WATCHERS = 16
MAX_STEPS = 160
"""Steps in a frame: 800 a second. Of more, the latest are told."""
MAX_SEQUENCES = 128
MAX_ENDS = 128
"""Ends in a frame. Of more, the latest are told."""
OUTAGE_SPAN = 60.0
"""Seconds for which an outage is told after its end."""
_MAX_BEHIND = 10
"""Frames that wait for a slow watcher; older ones are dropped."""
_RETRY_AFTER = 10


_NOTHING: dict[str, Any] = {"skipped": 0, "steps": [], "skipped_ends": 0, "ended": []}
"""What has happened before a client's first frame."""


class _Watcher:
    """Frames for one client. Written by the feed's task, read by the client's. `early`: its first frame came before the model."""

    def __init__(self, early: bool) -> None:
        self._frames: deque[bytes] = deque(maxlen=_MAX_BEHIND)
        self._ended = False
        self._news = asyncio.Event()
        self.early = early

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def take(self) -> bytes | None:
        """The next frame; None at the end."""
        while not self._frames:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        return self._frames.popleft()


class StepFeed:
    """The feed of one server. All of it belongs to the event loop."""

    def __init__(self, state: ServerState, *, kill_button: bool = False) -> None:
        """`kill_button`: whether POST /v1/kill_executor is offered."""
        self.kill_button = kill_button
        self._state = state
        self._watchers: list[_Watcher] = []
        self._task: asyncio.Task[None] | None = None
        self._leave: Callable[[], None] | None = None
        self._core: CoreLike | None = None
        """The engine that is listened to."""
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._num_steps = 0
        """Steps since the last frame, those that are not told included."""
        self._ends: deque[SequenceEnd] = deque(maxlen=MAX_ENDS)
        self._num_ends = 0
        """Ends since the last frame, those that are not told included."""
        self._output_tokens = self._prompt_tokens = 0

    @property
    def state(self) -> ServerState:
        """What is watched."""
        return self._state

    @property
    def num_watchers(self) -> int:
        """Clients that watch now."""
        return len(self._watchers)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Events for one client, until it leaves or the server drains. Raises Overloaded if too many watch."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} clients watch the steps already", _RETRY_AFTER)
        watcher = _Watcher(early=self._state.model is None)
        watcher.put(self._encoded(self._frame() | _NOTHING | {"server": self._server()}))
        self._watchers.append(watcher)
        self._subscribe()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="step feed")
        try:
            while (frame := await watcher.take()) is not None:
                yield frame
        finally:
            self._watchers.remove(watcher)
            if not self._watchers and self._task is not None:
                self._task.cancel()
                self._stop()

    # -- the producer ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        before: object = None
        quiet = 0
        try:
            while True:
                await asyncio.sleep(INTERVAL)
                self._subscribe()
                if self._state.draining:  # a drain waits for every answer, and this one has no end of its own
                    break
                active = bool(self._num_steps or self._num_ends)
                now = self._state.stage(), active, self._num_sequences()
                quiet = quiet + 1 if now == before and not active and not now[2] else 0
                before = now
                news = self._model_news()
                if news or quiet % _IDLE_FRAMES == 0:
                    event = self._encoded(self._frame() | self._told() | news)
                    for watcher in self._watchers:
                        watcher.put(event)
        except Exception:
            log.exception("the feed of steps failed")
        for watcher in self._watchers:
            watcher.end()
        self._stop()

    def _model_news(self) -> dict[str, Any]:
        """Once the model is loaded: what could not be told to the clients that came before."""
        if self._state.model is None or not any(watcher.early for watcher in self._watchers):
            return {}
        for watcher in self._watchers:
            watcher.early = False
        return {"server": self._server()}

    def _stop(self) -> None:
        if self._leave is not None:
            self._leave()
        self._leave = self._task = self._core = None
        self._steps.clear()
        self._ends.clear()
        self._num_ends = self._num_steps = self._output_tokens = self._prompt_tokens = 0

    def _subscribe(self) -> None:
        """Listen to the engine, once there is one."""
        core = self._state.core
        if (
            core is not self._core and self._leave is not None
        ):  # the model was unloaded, and maybe loaded again
            self._leave()
            self._leave = None
        self._core = core
        if self._leave is None and core is not None:
            self._leave = core.watch.subscribe(self._hear, self._hear_end)

    def _hear(self, record: StepRecord) -> None:
        """Called by the engine's loop task after each step."""
        self._steps.append(record)
        self._num_steps += 1
        items = record.items
        self._output_tokens += sum(items.num_sampled)
        if PREFILL in items.kinds or RECOMPUTE in items.kinds:
            chunks = zip(items.kinds, items.num_q_tokens, strict=True)
            self._prompt_tokens += sum(count for kind, count in chunks if kind in PREFILL + RECOMPUTE)

    def _hear_end(self, end: SequenceEnd) -> None:
        """Called by the engine's loop task for each sequence that ends."""
        self._ends.append(end)
        self._num_ends += 1

    def _num_sequences(self) -> int:
        stats = self._stats()
        return 0 if stats is None else stats.running + stats.waiting

    # -- a frame -----------------------------------------------------------------------------------------------------------

    def _told(self) -> dict[str, Any]:
        """Steps and ends since the last frame, and how many more there were. A step with the items of the one before omits
        them."""
        steps: list[dict[str, Any]] = []
        before = None
        for record in self._steps:
            steps.append(_step(record, same=before is record.items))
            before = record.items
        self._steps.clear()
        skipped, self._num_steps = self._num_steps - len(steps), 0
        ends = [_end(one) for one in self._ends]
        self._ends.clear()
        skipped_ends, self._num_ends = self._num_ends - len(ends), 0
        return {"skipped": skipped, "steps": steps, "skipped_ends": skipped_ends, "ended": ends}

    def _frame(self) -> dict[str, Any]:
        """What there is now."""
        core, (stage, detail) = self._state.core, self._state.stage()
        frame: dict[str, Any] = {"stage": stage.value, "detail": detail or self._loading(stage)}
        if core is not None:
            frame |= _engine(core, core.stats())
            frame["output_tokens"], frame["prompt_tokens"] = self._output_tokens, self._prompt_tokens
            frame["sequences"] = [_sequence(view) for view in core.sequences(MAX_SEQUENCES)]
            recent = core.clock() - OUTAGE_SPAN
            frame["outages"] = [
                _outage(one) for one in core.outages() if one.ended is None or one.ended > recent
            ]
        return frame

    def _loading(self, stage: Stage) -> str:
        progress = self._state.progress
        return "" if progress is None or stage is not Stage.LOADING else progress.text()

    def _stats(self) -> EngineStats | None:
        return None if self._state.core is None else self._state.core.stats()

    def _server(self) -> dict[str, Any]:
        """What does not change once the model is loaded; told to each client at first."""
        core, model = self._state.core, self._state.model
        executor = None if core is None else core.executor
        layout = None if model is None or executor is None else executor.kv_layout()
        return {
            "version": __version__,
            "model": self._state.names[0],
            "max_model_len": None if model is None else model.max_model_len,
            "block_size": layout.block_size if layout is not None and layout.paged else None,
            "interval": INTERVAL,
            "kill_button": self.kill_button and callable(getattr(executor, "kill", None)),
        }

    @staticmethod
    def _encoded(frame: dict[str, Any]) -> bytes:
        return b"event: frame\ndata: " + msgspec.json.encode(frame) + b"\n\n"


def _engine(core: CoreLike, stats: EngineStats) -> dict[str, Any]:
    """The engine's gauges as of now."""
    return {
        "at": round(core.clock(), 6),
        "epoch": stats.epoch,
        "pid": getattr(core.executor, "pid", None),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_blocks": {
            "total": stats.kv_blocks_total,
            "used": stats.kv_blocks_used,
            "cached": stats.kv_blocks_cached,
            "touched": stats.kv_blocks_touched,
        },
        "states": {
            "total": stats.states.total,
            "used": stats.states.used,
            "snapshots": stats.states.snapshots,
        },
        "step_tokens": stats.step_tokens,
        "num_steps": stats.steps,
        "preemptions": stats.preemptions,
        "resumed": stats.resumed,
        "prefix_queries": stats.prefix_queries,
        "prefix_hits": stats.prefix_hits,
    }


def _step(record: StepRecord, *, same: bool) -> dict[str, Any]:
    items = record.items
    fields: dict[str, Any] = {
        "id": record.step_id,
        "epoch": record.epoch,
        "began": round(record.began, 6),
        "ended": round(record.ended, 6),
    }
    if not same:
        fields |= {
            "seq_ids": items.seq_ids,
            "kinds": items.kinds,
            "tokens": items.num_q_tokens,
            "sampled": items.num_sampled,
        }
    if record.started:
        fields["started"] = [_sequence(view) for view in record.started]
    if record.first_tokens:
        fields["first_tokens"] = [(seq_id, round(ttft, 6)) for seq_id, ttft in record.first_tokens]
    if record.error:
        fields["error"] = record.error
    return fields


def _sequence(view: SequenceView) -> dict[str, Any]:
    return {
        "id": view.seq_id,
        "request_id": view.request_id,
        "choice": view.choice,
        "status": view.status,
        "arrived": round(view.arrived, 6),
        "prompt_tokens": view.prompt_tokens,
        "cached_tokens": view.cached_tokens,
        "computed_tokens": view.computed_tokens,
        "output_tokens": view.output_tokens,
        "max_tokens": view.max_tokens,
        "blocks": view.blocks,
        "shared_blocks": view.shared_blocks,
        "ttft": _seconds(view.ttft),
    }


def _end(end: SequenceEnd) -> dict[str, Any]:
    return _sequence(end.view) | {"ended": _seconds(end.at), "finish_reason": end.reason}


def _outage(outage: Outage) -> dict[str, Any]:
    return {
        "epoch": outage.epoch,
        "began": _seconds(outage.began),
        "ended": _seconds(outage.ended),
        "cause": outage.cause,
    }


def _seconds(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
