"""The codec of API workers and replicas: a frame (`executors.process.wire`) holds a list of messages.

All that one end sends in one turn of its event loop goes out in one frame, and a frame is taken in at once: the choices of a
call above all are applied before the engine goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_origin

import msgspec

from engine.story import Story
from executors.process.wire import FrameDecoder, FrameEncoder, WireError

__all__ = ["FrameDecoder", "WireError", "decoder", "encode"]


def _without_story(value: Any) -> None:
    """The story of a call stays in its process: the engine's is written in the process that schedules."""
    if not isinstance(value, Story):
        raise WireError(f"{type(value).__name__} cannot travel to another process")


def _checked(kind: Any, value: Any) -> Any:
    """A value of a type that msgspec does not know."""
    if isinstance(value, get_origin(kind) or kind):
        return value
    if kind is Story and value is None:
        return Story()
    raise TypeError(f"not a {kind}")


_encoder = FrameEncoder(_without_story)


def encode(messages: Sequence[msgspec.Struct]) -> bytearray:
    """One frame. Raises WireError for what cannot travel."""
    return _encoder.frame(messages)


def decoder(union: Any) -> FrameDecoder[list[Any]]:
    """The decoder of one end. `union`: the type of the messages; `feed` returns a list of them for each frame."""
    return FrameDecoder(list[union], other=_checked)
