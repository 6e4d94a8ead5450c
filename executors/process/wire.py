"""Frames: messages as bytes on a stream between two processes of this program.

    frame:  length (4 bytes, little endian, of what follows)  |  msgpack

Both ends are started from the same files. Messages are tagged msgspec structs written as arrays, or lists of them; dataclasses
are encoded inside them as maps. A NumPy array of one dimension is a msgpack extension whose code names the dtype, which
decoding restores: an unexpected dtype is an error for the reader, never a reinterpretation. No message can name code to run.

The protocol of the executor process (`executors.process.messages`) and that of API workers and replicas (`server.remote`) are
made of these frames.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from executors.contract.errors import ExecutorError

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 1 << 30
"""Greatest size of a frame in bytes. Both sides refuse larger frames: a greater length is taken for garbage."""

_TRAVELLING = (np.int32, np.int64, np.float32, np.bool_, np.uint8, np.uint64, np.float16, np.float64)
_DTYPE_OF = {code: np.dtype(plain) for code, plain in enumerate(_TRAVELLING, start=1)}
_CODE_OF = {dtype: code for code, dtype in _DTYPE_OF.items()}

M = TypeVar("M")


class WireError(Exception):
    """Bytes that are not a message of the protocol, or a message that cannot be encoded or is too large for one frame."""


class FrameEncoder:
    """Messages in, frames out.

    - `other`: function that returns something that can be encoded in place of a value that neither msgspec nor the codec knows.
      It raises WireError for what cannot travel.
    """

    def __init__(self, other: Callable[[Any], Any] | None = None) -> None:
        self._other = other
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._extension)

    def frame(self, message: Any) -> bytearray:
        """The whole frame of a message, including its header. Raises WireError if it cannot be encoded or is too large."""
        frame = bytearray(512)
        try:
            self._encoder.encode_into(message, frame, HEADER.size)
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise WireError(str(error)) from error
        size = len(frame) - HEADER.size
        if size > MAX_FRAME_BYTES:
            raise WireError(f"{size} bytes do not fit a frame of {MAX_FRAME_BYTES}")
        HEADER.pack_into(frame, 0, size)
        return frame

    def _extension(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray):
            if self._other is not None:
                return self._other(value)
            raise WireError(f"{type(value).__name__} cannot travel to another process")
        code = _CODE_OF.get(value.dtype)
        if code is None or value.ndim != 1:
            raise WireError(
                f"an array {value.dtype}{list(value.shape)} cannot travel: not plain, or of several dimensions"
            )
        return msgspec.msgpack.Ext(code, np.ascontiguousarray(value).data)


_encoder = FrameEncoder()


def encode(message: msgspec.Struct) -> bytearray:
    """The frame of a message between the server and the executor process. Raises WireError, which names the message's type."""
    try:
        return _encoder.frame(message)
    except WireError as error:
        raise WireError(f"{type(message).__name__}: {error}") from error


class FrameDecoder(Generic[M]):
    """Bytes in any pieces in, messages of one type out.

    - `kind`: type of the messages: a union of structs, or a list of one.
    - `other`: msgspec's `dec_hook` for types that msgspec does not know.
    - `rescue`: function that returns a message in place of an invalid frame, given the frame's content and its fault; if it
      returns None, or there is no rescue, the frame is garbage.
    """

    def __init__(
        self,
        kind: Any,
        *,
        other: Callable[[Any, Any], Any] | None = None,
        rescue: Callable[[bytearray, str], M | None] | None = None,
    ) -> None:
        self._rescue = rescue
        self._decoder = msgspec.msgpack.Decoder(kind, ext_hook=_read_array, dec_hook=other)
        self._rest = bytearray()

    def feed(self, data: bytes | memoryview) -> list[M]:
        """The messages that are complete now. Raises WireError on garbage: nothing after it can be trusted."""
        self._rest += data
        messages: list[M] = []
        begin = 0
        while len(self._rest) - begin >= HEADER.size:
            (size,) = HEADER.unpack_from(self._rest, begin)
            if size > MAX_FRAME_BYTES:
                raise WireError(f"a frame of {size} bytes is refused")
            end = begin + HEADER.size + size
            if len(self._rest) < end:
                break
            messages.append(self._decode(self._rest[begin + HEADER.size : end]))
            begin = end
        del self._rest[:begin]
        return messages

    def _decode(self, content: bytearray) -> M:
        """`content` is a copy: large arrays of a message may lie in it as memoryviews."""
        try:
            message: M = self._decoder.decode(content)
            return message
        # msgspec turns no ExecutorError into its own: records that check themselves raise them from in there.
        except (
            msgspec.MsgspecError, TypeError, ValueError, RecursionError, WireError, ExecutorError,
        ) as error:  # fmt: skip
            saved = self._rescue(content, str(error)) if self._rescue is not None else None
            if saved is None:
                raise WireError(f"not a message: {error}") from error
            return saved


def _read_array(code: int, data: memoryview) -> NDArray[Any]:
    dtype = _DTYPE_OF.get(code)
    if dtype is None:
        raise WireError(f"unknown extension code {code}")
    # A copy: writable, aligned (bytes in a frame lie anywhere), and it does not keep the whole frame alive.
    return np.frombuffer(bytearray(data), dtype)
