"""`Stories`: the calls under way, and the last ones that ended."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

import structlog

from engine.errors import InvalidRequest
from server.telemetry.stories.record import CallStory
from server.telemetry.stories.wire import summary, whole

log = structlog.get_logger("server")

ACTIVE = "active"
"""Outcome that stands for calls under way."""

Key = Callable[[CallStory, float], float | None]

SORTS: dict[str, Key] = {
    "received": lambda story, now: story.received,
    "ttft": lambda story, now: story.ttft_seconds(),
    "queue": lambda story, now: story.queue_seconds(now),
    "prefill": lambda story, now: story.prefill_seconds(now),
    "decode": lambda story, now: story.decode_seconds(now),
    "e2e": lambda story, now: story.e2e_seconds(now),
    "prompt_tokens": lambda story, now: story.prompt_tokens,
    "cached_tokens": lambda story, now: story.cached_tokens,
    "output_tokens": lambda story, now: story.output_tokens,
    "preempted": lambda story, now: story.preempted,
    "resumed": lambda story, now: story.resumed,
}
"""What stories are sorted by, by name."""
OUTCOMES = ("stop", "length", "abort", "error", "refused", ACTIVE)


class RequestNotFound(InvalidRequest):
    """The ring has no call of this id: it never had one, or newer calls replaced it."""

    status = 404
    code = "request_not_found"


class Stories:
    """The stories of one server. Written by the tasks that answer calls, and read by the routes."""

    def __init__(self, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: number of ended calls that are kept."""
        self._most = most
        self._clock = clock
        self._active: dict[str, CallStory] = {}
        self._ended: OrderedDict[str, CallStory] = OrderedDict()
        """By the request's id, the one that ended first comes first."""
        self._listeners: list[Callable[[CallStory], None]] = []

    def on_end(self, listener: Callable[[CallStory], None]) -> None:
        """Call `listener` with each call that is over. It runs between two steps of the engine: it must be quick."""
        self._listeners.append(listener)

    def begin(
        self, received: float, request_id: str, route: str, key: str, client_request_id: str | None
    ) -> CallStory:
        """The story of a call that has arrived."""
        story = CallStory(
            received, request_id, route, key=key, client_request_id=client_request_id, over=self._end
        )
        self._active[request_id] = story
        return story

    def _end(self, story: CallStory) -> None:
        del self._active[story.request_id]
        if self._most:
            self._ended[story.request_id] = story
            if len(self._ended) > self._most:
                self._ended.popitem(last=False)
        for listener in self._listeners:
            try:
                listener(story)
            except Exception:  # the caller may be the engine's loop
                log.exception("a story was not told", request_id=story.request_id)

    def list(
        self,
        sort: str = "received",
        *,
        descending: bool = True,
        outcomes: Collection[str] = (),
        key: str | None = None,
        model: str | None = None,
        client_request_id: str | None = None,
        limit: int = 100,
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return stories as plain data, without events, and whether there are more. Those without the value come last."""
        now, value = self._clock(), SORTS[sort]
        matching = [
            story
            for story in chain(self._ended.values(), self._active.values())
            if (not outcomes or (story.outcome or ACTIVE) in outcomes)
            and (key is None or story.key == key)
            and (model is None or story.model == model)
            and (client_request_id is None or story.client_request_id == client_request_id)
        ]
        ranked = [(one, story) for story in matching if (one := value(story, now)) is not None]
        ranked.sort(key=lambda pair: pair[0], reverse=descending)
        ordered = [story for _, story in ranked] + [story for story in matching if value(story, now) is None]
        return [summary(story, now) for story in ordered[:limit]], len(ordered) > limit

    def get(self, id_: str) -> dict[str, Any] | None:
        """Return a story with its events, by the id of the answer or of the request, or else the latest one by the id that the
        client sent."""
        story = self._active.get(id_) or self._ended.get(id_)
        if story is None:
            newest_first = [*reversed(self._active.values()), *reversed(self._ended.values())]
            story = next((one for one in newest_first if one.id == id_), None)
            story = story or next((one for one in newest_first if one.client_request_id == id_), None)
        return None if story is None else whole(story, self._clock())
